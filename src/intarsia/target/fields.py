# SPDX-License-Identifier: Apache-2.0
"""From any written form of one target to its fields, still unchecked: text, JSON, dictionary, tag.

Values from text stay words (`Raw`) until the kind's schema says how to read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from intarsia.errors import Place, TargetError
from intarsia.target.kind import TAG_ATTR, TargetKind
from intarsia.target.raw import Raw
from intarsia.target.registry import REGISTRY, get_kind
from intarsia.target.schema import check_unicode, fail, join_path, parse_json, read, type_of
from intarsia.target.text import Word, split_words, suggest, unquote
from intarsia.target.warn import warn

FORMS = "text, a dictionary or a Target"
_DIGITS = re.compile(r"[0-9]{1,9}")

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Disputed:
    """What several tags give as the value of one field; read, the values have to be equal.

    Attributes:
        by_tag: A tag's name, and its value.
    """

    by_tag: Mapping[str, Any]


def read_fields(spec: object, path: str = "") -> Fields:
    """Return the fields of one target: `kind`, `tag` (a list of names), attributes and the rest.

    Raises:
        TargetError: The form is malformed, or the kind or tag is not known.
    """
    return _resolve(_unresolved(spec, path), path, ())


def _unresolved(spec: object, path: str) -> Fields:
    if isinstance(spec, str):
        text = spec.strip()
        if not text:
            fail(path, "the target is an empty text", "write a kind, such as onnxruntime")
        if not text.startswith("{"):
            return _parse_options(text, path)
        spec = parse_json(text, path)
    if not isinstance(spec, Mapping):
        fail(path, f"a target has to be {FORMS}, not {type_of(spec)}: {spec!r}")
    for name in spec:
        if not isinstance(name, str):
            fail(path, f"the name of an attribute has to be a string, not {name!r}")
    return dict(spec)


def _parse_options(text: str, path: str) -> Fields:
    try:
        first, *words = split_words(text)
    except TargetError as error:
        fail(path, error.message, error.hint, error.place)
    name, ordinal = _split_ordinal(text, first, path)
    at = first
    if words and _DIGITS.fullmatch(words[0].text):  # `opencl 1`
        at = words.pop(0)
        if ordinal is not None:
            fail(path, f"device ordinal {at.text!r} is a second one", None, _place(text, at))
        ordinal = at.text
    end = first.start + len(first.text)
    fields: Fields = {}
    # A tag is looked for first, and may not have a kind's name (row 78).
    if REGISTRY.tags.find(name) is None:
        fields["kind"] = Raw(name, text, first.start, end)
    else:
        fields["tag"] = name
    while words:
        option, value = _parse_option(text, words, path)
        if option in fields or option == "kind":
            fail(path, f"attribute {option!r} appears more than once", None, value.place())
        fields[option] = value
    if ordinal is not None:
        _set_ordinal(fields, Raw(ordinal, text, at.start, at.start + len(at.text)), path)
    return fields


def _split_ordinal(text: str, first: Word, path: str) -> tuple[str, str | None]:
    """Split `opencl:1`."""
    name, colon, ordinal = unquote(first.text).partition(":")
    if colon and not _DIGITS.fullmatch(ordinal):
        hint = f"write it as in {name}:1"
        fail(path, f"{ordinal!r} is not a device ordinal", hint, _place(text, first))
    return name, ordinal if colon else None


def _parse_option(text: str, words: list[Word], path: str) -> tuple[str, Raw]:
    """Take one option off the words, and return its name and value."""
    word = words.pop(0)
    # Any number of dashes, and the value may have more `=` in it (row 3).
    name, equals, value = word.text.lstrip("-").partition("=")
    if not word.text.startswith("-") or not name or (equals and not value):
        _fail_option(text, word, path)
    end = word.start + len(word.text)
    if equals:
        return name, Raw(value, text, word.start, end)
    # So a negative number needs the `=` (row 23).
    if words and not words[0].text.startswith("-"):
        following = words.pop(0)
        return name, Raw(following.text, text, word.start, following.start + len(following.text))
    return name, Raw(None, text, word.start, end)


def _fail_option(text: str, word: Word, path: str) -> NoReturn:
    """Say what is wrong with a word that is not an option."""
    place, name = _place(text, word), word.text.lstrip("-").partition("=")[0]
    if word.text.startswith("-") and name:
        fail(join_path(path, name), "the value is empty", "write '' to mean that", place)
    if word.text.startswith("-"):
        fail(path, f"{word.text!r} at position {word.start}: the option has no name", None, place)
    if text[: word.start].rstrip().endswith(","):
        hint = "give a list to CompilationConfig.resolve or compile"
        fail(path, f"one target is expected, and {word.text!r} follows a comma", hint, place)
    message = f"{word.text!r} at position {word.start}: an option starts with a dash"
    hint = f"write -{word.text}, or quote a value that has blanks"
    if word.text.startswith("+"):
        hint = f"write features without blanks between: -mattr=+x,{word.text}"
    fail(path, message, hint, place)


def _place(text: str, word: Word) -> Place:
    return Place(text, word.start, len(word.text))


def _set_ordinal(fields: Fields, ordinal: Raw, path: str) -> None:
    given = fields.get("device_id")
    if given is not None and int(ordinal.text or "") != _decimal(unquote(given.text or "")):
        message = f"device ordinal {ordinal.text} contradicts -device_id={given.text}"
        fail(path, message, None, given.place())
    fields["device_id"] = ordinal


def _decimal(text: str) -> int | None:
    return int(text) if _DIGITS.fullmatch(text) else None


def _resolve(fields: Fields, path: str, seen: tuple[str, ...]) -> Fields:
    if "features" in fields:
        fail(path, "features cannot be given", "they are derived from the attributes")
    tags, written = _tag_names(fields, path), fields.get("tag")
    place = written.whole() if isinstance(written, Raw) else None
    if "kind" not in fields:
        if not tags:
            fail(path, "a target needs a kind", 'add "kind", or "tag" to build on a tag')
        base = _expand_tags(tags, path, seen)
        attributes = _rename_old(fields, get_kind(base["kind"]), path)
        return {**base, **attributes, "tag": base["tag"]}
    name = fields["kind"]
    word = name if isinstance(name, Raw) else Raw(name)
    if not isinstance(word.text, str):
        fail(path, f"kind has to be a string, not {type_of(name)}: {name!r}")
    name = word.text.strip()
    kind = _find_kind(name, path, word)
    base = _expand_tags(tags, path, seen, kind, place)
    attributes = {**kind.aliases.get(name, {}), **_rename_old(fields, kind, path)}
    return {**base, **attributes, "kind": kind.name, "tag": base["tag"]}


def _tag_names(fields: Fields, path: str) -> tuple[str, ...]:
    if "tag" not in fields:
        return ()
    written = fields["tag"]
    if isinstance(written, Raw):
        return tuple(read(TAG_ATTR, written, join_path(path, "tag"), lambda value, _: value))
    names = [written] if isinstance(written, str) else written
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        fail(path, f"tag has to be a string or a list of strings, not {written!r}")
    return tuple(check_unicode(name, join_path(path, "tag")) for name in names)


def _expand_tags(
    names: tuple[str, ...],
    path: str,
    seen: tuple[str, ...],
    kind: TargetKind | None = None,
    place: Place | None = None,
) -> Fields:
    """Return what tags stand for together; where they differ, it is not settled yet.

    Args:
        names: The tags. One that another builds on adds nothing.
        path: Where they are, for messages.
        seen: The tags that are being expanded.
        kind: What has to be the kind of all, if that is known.
        place: Where in the text they are.
    """
    expanded: dict[str, Fields] = {}
    for name in names:
        if not any(name in base["tag"] for base in expanded.values()):
            base = _expand_tag(name, path, seen, place)
            expanded = {key: each for key, each in expanded.items() if key not in base["tag"]}
            expanded[name] = base
    given: dict[str, dict[str, Any]] = {}
    for name, base in expanded.items():
        kind = kind or get_kind(base["kind"])
        if base["kind"] != kind.name:
            message = f"tag {name!r} is of kind {base['kind']!r}, not {kind.name!r}"
            hint = f"write the tag as the target: {name}, or leave it out"
            fail(path, message, hint, place)
        for field, value in base.items():
            given.setdefault(field, {})[name] = value
    fields = {
        field: Disputed(values) if len(values) > 1 else next(iter(values.values()))
        for field, values in given.items()
    }
    tags = (tag for base in expanded.values() for tag in base["tag"])
    kinds = {} if kind is None else {"kind": kind.name}
    return {**fields, **kinds, "tag": list(dict.fromkeys(tags))}


def _expand_tag(name: str, path: str, seen: tuple[str, ...], place: Place | None) -> Fields:
    if name in seen:
        fail(path, f"tag {name!r} builds on itself: {' -> '.join((*seen, name))}")
    entry = REGISTRY.tags.find(name)
    if entry is None:
        hint = suggest(name, REGISTRY.tags.names(), what="tags")
        fail(path, f"tag {name!r} is not known", hint, place)
    try:
        base = _resolve(_unresolved(entry.config, path), path, (*seen, name))
    except TargetError as error:
        if entry.source is None or str(entry.source.file) in error.message:
            raise
        fail(entry.place(), error.message, error.hint)
    return {**base, "tag": [name, *base["tag"]]}


def _find_kind(name: str, path: str, word: Raw) -> TargetKind:
    kind = REGISTRY.find_kind(name)
    if kind is None:
        _fail_unknown(name, path, word.place())
    return kind


_HERE = "leave the target out: what is found on this machine is used"
_FOREIGN = {
    **dict.fromkeys(("auto", "default", "best", "any", "host"), _HERE),
    "cpu": f"for native code write llvm, for a runtime onnxruntime or openvino; or {_HERE}",
    "gpu": f"write opencl for any GPU with a driver; or {_HERE}",
    "npu": f"no kind stands for every NPU: `intarsia target list` names the kinds; or {_HERE}",
}
"""What other programs call a machine, and what to write here."""
_PROVIDER = f"`InferenceSession` takes providers; as a target write onnxruntime; or {_HERE}"


def _fail_unknown(name: str, path: str, place: Place | None) -> NoReturn:
    """Say what a name that is not a kind might have been."""
    if REGISTRY.tags.find_label(name) is not None:
        message = f"{name!r} is a label, which stands for a placed target"
        fail(path, message, "give it alone, where targets are listed", place)
    if REGISTRY.tags.find(name) is not None:
        fail(path, f"{name!r} is a tag, not a kind", f'write {{"tag": "{name}"}}', place)
    is_provider = name.lower().endswith("executionprovider")
    foreign = _PROVIDER if is_provider else _FOREIGN.get(name.lower())
    if foreign is not None:
        fail(path, f"target kind {name!r} is not known", foreign, place)
    tags = REGISTRY.tags.names()
    if "/" in name:
        fail(path, f"tag {name!r} is not known", suggest(name, tags, what="tags"), place)
    labels = REGISTRY.tags.files.tables.labels
    names = (*REGISTRY.kind_names(), *REGISTRY.alias_names(), *tags, *labels)
    hint = suggest(name, names, what="kinds", listed=REGISTRY.kind_names(hidden=False))
    fail(path, f"target kind {name!r} is not known", f"{hint}; or one of {len(tags)} tags", place)


def _rename_old(fields: Fields, kind: TargetKind, path: str) -> Fields:
    """Give what older systems called differently its name of today."""
    if "target_host" not in fields and "accelerators" not in fields:
        return fields
    old = {"target_host": "host"} | (
        {"accelerators": "devices"} if kind.name == "composite" else {}
    )
    for name, new in old.items():
        if name in fields and new in fields:
            fail(path, f"{name!r} and {new!r} are both given", f"keep {new!r}")
        if name in fields:
            warn(f"{name!r} is deprecated: it is now {new!r}", FutureWarning)
    return {old.get(name, name): value for name, value in fields.items()}


def rename_target_host(host: object, target_host: object) -> object:
    """Return the host that one of the two arguments gives, warning about the old one.

    Raises:
        TargetError: Both are given.
    """
    if target_host is None:
        return host
    if host is not None:
        raise TargetError("'target_host' and 'host' are both given", hint="keep 'host'")
    warn("'target_host' is deprecated: it is now 'host'", FutureWarning)
    return target_host
