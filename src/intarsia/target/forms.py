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

from intarsia.errors import TargetError
from intarsia.target.device import DeviceType
from intarsia.target.labels import SUFFIXES, Labels, read_file, read_labels
from intarsia.target.placed import VirtualDevice
from intarsia.target.registry import REGISTRY
from intarsia.target.schema import parse_json, type_of
from intarsia.target.target import Target
from intarsia.target.text import cut, outside, suggest, trim

_DOCUMENT = ("targets", "host", "labels")


@dataclass(frozen=True, slots=True)
class Given:
    """What a user listed: placed targets, perhaps composites among them, a host, and labels."""

    targets: tuple[VirtualDevice, ...]
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
        return read_forms(read_file(os.fspath(spec)), labels)
    if isinstance(spec, Target):
        return Given((VirtualDevice.parse(spec),), labels=labels)
    if isinstance(spec, VirtualDevice):
        return Given((_placed(spec),), labels=labels)
    if isinstance(spec, Mapping):
        return _read_mapping(spec, labels)
    if isinstance(spec, list | tuple):
        return _read_sequence(spec, labels)
    raise TargetError(
        f"a target cannot be {type_of(spec)} {spec!r}",
        hint='give text such as "openvino, onnxruntime", a dictionary, a Target or a list of these',
    )


def split_targets(text: str) -> tuple[str, ...]:
    """Split the comma form into the texts of its targets.

    Raises:
        TargetError: A target is missing between, before or after commas.
    """
    parts = tuple(trim(word.text) for word in cut(text, _separators(text)))
    if not all(parts):
        raise TargetError(
            f"a target is missing at a comma of {text!r}" if text.strip() else "no target is given",
            hint='separate targets as in "openvino, onnxruntime"',
        )
    return parts


def _separators(text: str) -> Iterator[int]:
    start, has_options, skip_to = 0, False, 0
    for position, char in outside(text):
        if char.isspace():
            has_options = has_options or bool(text[start:position].strip())
        elif char == "," and position >= skip_to:
            spaced = text[position + 1 : position + 2].isspace() or text[:position][-1:].isspace()
            end = _end_of_tag(text, start, position)
            if end and not has_options:
                skip_to = end
            elif spaced or not has_options or position + 1 == len(text):
                yield position
                start, has_options = position + 1, False


def _end_of_tag(text: str, start: int, comma: int) -> int:
    """Return where a tag ends whose name has this comma, or 0."""
    for tag in REGISTRY.tag_names():
        end = start + len(tag)
        if end > comma and text.startswith(tag, start) and re.match(r"[\s,:]|$", text[end:]):
            return end
    return 0


def _read_text(text: str, labels: Labels) -> Given:
    text = text.strip()
    if text[:1] in ("{", "["):
        return read_forms(parse_json(text), labels)
    if text.endswith(SUFFIXES) and " -" not in text:
        return read_forms(read_file(text), labels)
    return Given(tuple(_read_one(part, labels) for part in split_targets(text)), labels=labels)


def _read_one(text: str, labels: Labels) -> VirtualDevice:
    if text in labels:
        return _placed(labels[text])
    if text.split(None, 1)[0] in labels:
        raise TargetError(
            f"a label takes no options: {text!r}", hint="define another label that inherits from it"
        )
    return VirtualDevice.parse(text)


def _read_mapping(spec: Mapping[Any, Any], labels: Labels) -> Given:
    if not spec:
        raise TargetError("no target is given: the dictionary is empty")
    if "kind" in spec or "tag" in spec:
        return Given((VirtualDevice.parse(spec),), labels=labels)
    if "targets" in spec:
        return _read_document(spec, labels)
    placed: list[VirtualDevice] = []
    named = dict(labels)
    for device, target in spec.items():
        found = read_forms(target, labels).targets
        if len(found) != 1:
            raise TargetError(f"{device!r} has to map to one target, not to {len(found)}")
        placed.append(_on_device(device, found[0]))
        if isinstance(device, str) and _device_type(device) is None:
            named |= read_labels({device: placed[-1].to_json()})
    return Given(tuple(placed), labels=named)


def _read_document(spec: Mapping[str, Any], labels: Labels) -> Given:
    for name in spec:
        if name not in _DOCUMENT:
            raise TargetError(
                f"a list of targets has no field {name!r}",
                hint=suggest(str(name), _DOCUMENT, what="fields"),
            )
    known = {**labels, **read_labels(spec.get("labels", {}))}
    given = read_forms(spec["targets"], known)
    return replace(given, host=Target(spec["host"]) if "host" in spec else given.host)


def _read_sequence(spec: list[Any] | tuple[Any, ...], labels: Labels) -> Given:
    if not spec:
        raise TargetError("no target is given: the list is empty", hint='add one: ["onnxruntime"]')
    parts = [read_forms(item, labels) for item in spec]
    named = dict(labels)
    for part in parts:
        named |= part.labels
    host = next((part.host for part in parts if part.host is not None), None)
    return Given(tuple(item for part in parts for item in part.targets), host, named)


def _placed(device: VirtualDevice) -> VirtualDevice:
    if device.target is None:
        raise TargetError(f"{device} has no target", hint="say what is to run there")
    return replace(device, device_id=device.device_id or 0)


def _on_device(device: object, placed: VirtualDevice) -> VirtualDevice:
    """Check and apply one key of a dictionary from device to target."""
    name, _, ordinal = str(device).partition(":")
    if isinstance(device, bool) or not isinstance(device, int | str):
        raise TargetError(f"a device has to be a name or a number, not {device!r}")
    expected = _device_type(device)
    if isinstance(device, int) and expected is None:
        raise TargetError(f"{device} is no device type")
    if expected is None:
        return placed
    if ordinal and not ordinal.isdecimal():
        raise TargetError(f"{ordinal!r} is no device ordinal", hint=f"write it as in {name}:1")
    try:
        number = int(ordinal) if ordinal else placed.device_id
        return replace(placed, device_type=expected, device_id=number)
    except TargetError as error:
        raise TargetError(f"{device!r}: {error.message}", hint=error.hint) from None


def _device_type(device: int | str) -> DeviceType | None:
    if isinstance(device, int):
        return DeviceType(device) if device in tuple(DeviceType) else None
    return DeviceType.__members__.get(device.partition(":")[0].upper())
