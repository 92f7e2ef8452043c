# SPDX-License-Identifier: Apache-2.0
"""From any written form of one target to its fields, still unchecked: text, JSON, dictionary, tag.

Values from text stay words (`Raw`) until the kind's schema says how to read them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.kind import TAG_ATTR
from intarsia.target.registry import REGISTRY
from intarsia.target.schema import Raw, fail, join_path, parse_json, read, type_of
from intarsia.target.text import Word, split_words, suggest, unquote

FORMS = "text, a dictionary or a Target"
_ORDINAL = re.compile(r"(?P<name>[^:]*):(?P<ordinal>.*)")
_OLD_NAMES = {"target_host": "host", "accelerators": "devices"}

Fields = dict[str, Any]


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
        spec = parse_json(text, path) if text.startswith("{") else _parse_options(text, path)
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
        fail(path, error.message, error.hint)
    fields: Fields = {"kind": Raw(first.text)}
    index = 0
    while index < len(words):
        word = words[index]
        following = words[index + 1] if index + 1 < len(words) else None
        name, value, used = _parse_option(word, following, path)
        if name in fields:
            fail(path, f"attribute {name!r} appears more than once")
        fields[name] = Raw(value)
        index += used
    name = unquote(first.text)
    ordinal = _ORDINAL.fullmatch(name)
    if ordinal:
        name = ordinal["name"]
        if not re.fullmatch(r"[0-9]{1,9}", ordinal["ordinal"]):
            fail(path, f"{ordinal['ordinal']!r} is no device ordinal", f"write it as in {name}:1")
        _set_ordinal(fields, int(ordinal["ordinal"]), path)
    del fields["kind"]
    return {"tag" if REGISTRY.has_tag(name) else "kind": name} | fields


def _parse_option(word: Word, following: Word | None, path: str) -> tuple[str, str | None, int]:
    """Return name, value and the number of words used."""
    if not word.text.startswith("-"):
        fail(
            path,
            f"{word.text!r} at position {word.start}: an option starts with a dash",
            f"write -{word.text}, or quote a value that has blanks",
        )
    name, equals, value = word.text.lstrip("-").partition("=")
    if not name:
        fail(path, f"{word.text!r} at position {word.start}: the option has no name")
    if equals and not value:
        fail(join_path(path, name), "the value is empty", "write '' to mean that")
    if equals:
        return name, value, 1
    if following is not None and not following.text.startswith("-"):
        return name, following.text, 2
    return name, None, 1


def _set_ordinal(fields: Fields, ordinal: int, path: str) -> None:
    given = fields.get("device_id", Raw(str(ordinal)))
    if given.text != str(ordinal):
        fail(path, f"device ordinal {ordinal} contradicts -device_id={given.text}")
    fields["device_id"] = ordinal


def _resolve(fields: Fields, path: str, seen: tuple[str, ...]) -> Fields:
    if "features" in fields:
        fail(path, "features cannot be given", "they are derived from the attributes")
    tags = _tag_names(fields, path)
    if "kind" not in fields:
        if len(tags) != 1:
            fail(path, "a target needs a kind", 'add "kind", or "tag" to build on a tag')
        fields = _expand_tag(tags[0], fields, path, seen)
        tags = tuple(fields["tag"])
    name = fields["kind"]
    if not isinstance(name, str):
        fail(path, f"kind has to be a string, not {type_of(name)}: {name!r}")
    name = name.strip()
    _check_kind(name, path)
    resolved = fields | {"kind": name, "tag": list(tags)}
    return _rename_old(resolved, path) if name == "composite" else resolved


def _tag_names(fields: Fields, path: str) -> tuple[str, ...]:
    given = fields.get("tag", ())
    if isinstance(given, Raw):
        return tuple(read(TAG_ATTR, given, join_path(path, "tag"), lambda value, _: value))
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        fail(path, f"tag has to be a string or a list of strings, not {given!r}")
    return tuple(names)


def _expand_tag(name: str, fields: Fields, path: str, seen: tuple[str, ...]) -> Fields:
    if name in seen:
        fail(path, f"tag {name!r} builds on itself: {' -> '.join((*seen, name))}")
    if not REGISTRY.has_tag(name):
        fail(path, f"tag {name!r} is not known", suggest(name, REGISTRY.tag_names(), what="tags"))
    own = _unresolved(REGISTRY.tag_config(name), path)
    base = _resolve(own, path, (*seen, name))
    return {**base, **fields, "tag": [name, *base["tag"]]}


def _check_kind(name: str, path: str) -> None:
    if REGISTRY.find_kind(name) is not None:
        return
    if "/" in name:
        fail(path, f"tag {name!r} is not known", suggest(name, REGISTRY.tag_names(), what="tags"))
    tags = REGISTRY.tag_names()
    known, listed = (*REGISTRY.kind_names(), *tags), (*REGISTRY.kind_names(hidden=False), *tags)
    hint = suggest(name, known, what="kinds and tags", listed=listed)
    fail(path, f"target kind {name!r} is not known", hint)


def _rename_old(fields: Fields, path: str) -> Fields:
    renamed: Fields = {}
    for name, value in fields.items():
        new = _OLD_NAMES.get(name, name)
        if new != name:
            if new in fields:
                fail(path, f"{name!r} and {new!r} are both given", f"keep {new!r}")
            warnings.warn(f"{name!r} of a composite is now {new!r}", UserWarning, stacklevel=2)
        renamed[new] = value
    return renamed
