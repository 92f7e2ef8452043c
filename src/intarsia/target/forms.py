# SPDX-License-Identifier: Apache-2.0
"""Every form in which a user may list targets, read into placed targets in priority order.

A comma followed (or preceded) by a blank separates targets. A comma without one does so only while
no option has begun, as in `ethos-u,cmsis-nn,c`; inside an option it belongs to the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.errors import Place, TargetError
from intarsia.target.fields import read_fields, rename_target_host
from intarsia.target.labels import Labels, find_label, read_labels, resolve_label
from intarsia.target.legacy import read_device_key
from intarsia.target.placed import PlacedTarget, VirtualDevice
from intarsia.target.registry import REGISTRY, get_kind
from intarsia.target.schema import check_depth, parse_json, type_of
from intarsia.target.source import SUFFIXES, TargetFile, read_source
from intarsia.target.target import Target
from intarsia.target.text import Word, cut, outside, split_words, suggest, trim
from intarsia.target.warn import warn

_LACKS_DASH = re.compile(r"\s[^\s-]\S*=")
_DOCUMENT = ("targets", "host", "labels", "target_host")


@dataclass(frozen=True, slots=True)
class Given:
    """What a user listed.

    Attributes:
        targets: Placed targets in priority order, perhaps composites among them.
        host: The host that was named for all of them.
        labels: The user's names for placed targets.
    """

    targets: tuple[PlacedTarget, ...]
    host: Target | None = None
    labels: Labels = field(default_factory=dict)


def read_forms(spec: object, labels: Labels) -> Given:
    """Read any form of one target or of several.

    Raises:
        TargetError: The form is unknown, or something in it is malformed.
    """
    if isinstance(spec, str):
        return _read_text(spec, labels)
    if isinstance(spec, os.PathLike):
        return _read_file(os.fspath(spec), labels)
    if isinstance(spec, Target):
        return Given((PlacedTarget.parse(spec),), labels=labels)
    if isinstance(spec, VirtualDevice):
        return Given((spec.placed(),), labels=labels)
    check_depth(spec)
    if isinstance(spec, Mapping):
        return _read_mapping(spec, labels)
    if isinstance(spec, list | tuple):
        return _read_sequence(spec, labels)
    raise TargetError(
        f"a target cannot be {type_of(spec)} {spec!r}",
        hint='give text such as "openvino, onnxruntime", a dictionary, a Target or a list of these',
    )


def read_host(spec: object, labels: Labels) -> Target:
    """Read any form of one target, or a label, as a host.

    Raises:
        TargetError: The form is unknown, or something in it is malformed.
    """
    if isinstance(spec, str):
        used = dict(labels)
        name = spec.strip()
        if _find_label(name, used):
            return used[name].target
    return Target(spec)


def _split(text: str) -> tuple[Word, ...]:
    """Split the comma form into the texts of its targets."""
    parts = cut(text, _separators(text) if "," in text else ())
    words = [Word(trim(part.text), part.start + _indent(part.text)) for part in parts]
    for part, word in zip(parts, words, strict=True):
        if not word.text:
            if not text.strip():
                raise TargetError("no target is given", hint="write one, such as onnxruntime")
            raise TargetError(
                f"a target is missing at a comma of {text!r}",
                hint='separate targets as in "openvino, onnxruntime"',
                place=Place(text, max(part.start - 1, 0)),
            )
    return tuple(words)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _separators(text: str) -> Iterator[int]:
    start, has_options, skip_to = 0, False, 0
    for position, char in outside(text):
        if char.isspace():
            has_options = has_options or bool(text[start:position].strip())
        elif char == "," and position >= skip_to:
            # A comma without a blank belongs to the value: `foo -opt2=test,+v, bar -x=1` are two
            # targets (row 94).
            spaced = (
                text[position + 1 : position + 2].isspace()
                or text[position - 1 : position].isspace()
            )
            # One tag of NVIDIA's boards has a comma in its name:
            # `nvidia/geforce-gt-730-ddr3,128bit`.
            end = 0 if has_options else _end_of_tag(text, start, position)
            if end:
                skip_to = end
            elif spaced or not has_options or position + 1 == len(text):
                yield position
                start, has_options = position + 1, False


def _end_of_tag(text: str, start: int, comma: int) -> int:
    """Return where a tag ends whose name has this comma, or 0."""
    start += _indent(text[start:comma])
    for tag in REGISTRY.tags.names_with_comma(text[start:comma]):
        end = start + len(tag)
        if text.startswith(tag, start) and re.match(r"[\s,:]|$", text[end:]):
            return end
    return 0


def _read_text(text: str, labels: Labels) -> Given:
    text = text.strip()
    if text[:1] in ("{", "["):
        return read_forms(parse_json(text), labels)
    if text.endswith(SUFFIXES) and " -" not in text:
        return _read_file(text, labels)
    words = _split(text)
    placed, used = [], dict(labels)
    for word in words:
        # In a list only (row 141): a single target without the dash is an error (row 10).
        part = _with_dashes(word.text) if len(words) > 1 else word.text
        try:
            placed.append(_read_one(part, used))
        except TargetError as error:
            raise _in_list(error, text, word) from None
    return Given(tuple(placed), labels=used)


def _read_file(path: str, labels: Labels) -> Given:
    source = read_source(path)
    content = source.content
    try:
        if not isinstance(content, Mapping):
            return read_forms(content, labels)
        if "tags" in content:
            REGISTRY.tags.add_tags(source)
            content = {name: value for name, value in content.items() if name != "tags"}
        return _read_mapping(content, labels, source)
    except TargetError as error:
        if str(source.file) in error.message:
            raise
        message = f"{source.file}: {error.message}"
        raise TargetError(message, hint=error.hint, place=error.place) from None


def _in_list(error: TargetError, text: str, word: Word) -> TargetError:
    """Point at the place in the whole list."""
    inner = error.place.inside(word.text) if error.place else None
    place = Place(text, word.start + inner.start, inner.length) if inner else None
    return TargetError(error.message, target=error.target, hint=error.hint, place=place)


def _with_dashes(text: str) -> str:
    """Add the dash that an option of a target in a list lacks, as in `acl, llvm mattr=+neon`.

    Only before the name of an attribute of the kind; anything else stays an error.
    """
    if not _LACKS_DASH.search(text):
        return text
    first, *words = split_words(text)
    missing = [
        word
        for before, word in zip((first, *words), words, strict=False)
        if "=" in word.text
        and not word.text.startswith("-")
        and ("=" in before.text or not before.text.startswith("-"))
    ]
    if not missing or REGISTRY.find_kind(first.text) is None is REGISTRY.tags.find(first.text):
        return text
    attrs = get_kind(read_fields(first.text)["kind"]).attrs
    for word in reversed(missing):
        if word.text.partition("=")[0] in attrs:
            warn(f"{word.text!r} of '{text}' is read as an option; hint: write -{word.text}")
            text = f"{text[: word.start]}-{text[word.start :]}"
    return text


def _read_one(text: str, labels: dict[str, PlacedTarget]) -> PlacedTarget:
    if _find_label(text, labels):
        return labels[text]
    first = text.split(None, 1)[0]
    if first != text and _find_label(first, labels):
        raise TargetError(
            f"a label takes no options: {text!r}", hint="define another label that inherits from it"
        )
    return PlacedTarget.parse(text)


def _find_label(name: str, labels: dict[str, PlacedTarget]) -> bool:
    """Tell whether the name is a label; one of the user's files is added to the labels."""
    if name in labels:
        return True
    if not REGISTRY.tags.is_name(name) or REGISTRY.find_kind(name) is not None:
        return False
    placed = find_label(name) if REGISTRY.tags.find(name) is None else None
    if placed is not None:
        labels[name] = placed
    return placed is not None


def _read_mapping(
    spec: Mapping[Any, Any], labels: Labels, source: TargetFile | None = None
) -> Given:
    if not spec:
        raise TargetError("no target is given: the dictionary is empty")
    if "kind" in spec or "tag" in spec:
        return Given((PlacedTarget.parse(spec),), labels=labels)
    if "targets" in spec:
        return _read_document(spec, labels, source)
    placed: list[PlacedTarget] = []
    named = dict(labels)
    for device, target in spec.items():
        key = read_device_key(device)
        if isinstance(target, Mapping) and "inherits" in target:
            targets: tuple[PlacedTarget, ...] = (resolve_label(device, spec, source, ("targets",)),)
        else:
            targets = read_forms(target, labels).targets
        if len(targets) != 1:
            raise TargetError(f"{device!r} has to map to one target, not to {len(targets)}")
        placed.append(key.apply(targets[0]))
        if key.is_label:
            named |= read_labels({device: placed[-1].to_json()})
    return Given(tuple(placed), labels=named)


def _read_document(spec: Mapping[str, Any], labels: Labels, source: TargetFile | None) -> Given:
    for name in spec:
        if name not in _DOCUMENT:
            raise TargetError(
                f"a list of targets has no field {name!r}",
                hint=suggest(str(name), _DOCUMENT[:3], what="fields"),
            )
    all_labels = {**labels, **read_labels(spec.get("labels", {}), source, ("labels",))}
    targets = spec["targets"]
    is_table = isinstance(targets, Mapping)
    given = (
        _read_mapping(targets, all_labels, source) if is_table else read_forms(targets, all_labels)
    )
    host = rename_target_host(spec.get("host"), spec.get("target_host"))
    return replace(given, host=given.host if host is None else read_host(host, given.labels))


def _read_sequence(spec: list[Any] | tuple[Any, ...], labels: Labels) -> Given:
    if not spec:
        raise TargetError("no target is given: the list is empty", hint='add one: ["onnxruntime"]')
    parts = [read_forms(item, labels) for item in spec]
    named = dict(labels)
    for part in parts:
        named |= part.labels
    host = next((part.host for part in parts if part.host is not None), None)
    return Given(tuple(item for part in parts for item in part.targets), host, named)
