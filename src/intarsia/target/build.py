# SPDX-License-Identifier: Apache-2.0
"""From the fields of one target to its checked and completed parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from intarsia.errors import Place, TargetError
from intarsia.target.derive import FROM_DEVICE, Features, ask_device, canonicalize, deduce_keys
from intarsia.target.device import DeviceType
from intarsia.target.fields import Disputed, Fields, read_fields
from intarsia.target.frozen import FrozenMap
from intarsia.target.kind import BASE_ATTR, TargetKind
from intarsia.target.raw import Raw
from intarsia.target.registry import get_kind
from intarsia.target.schema import (
    AttrSpec,
    BuildTarget,
    fail,
    join_path,
    read,
    type_of,
    write,
)
from intarsia.target.text import suggest, unquote

_PLACED = ("device_id", "memory_scope")
HOST = "host"
NO_HOST = ""
"""What says that a target has no host although its tag carries one."""


class Parts(NamedTuple):
    """What a target is made of; see `Target`.

    Attributes:
        has_deduced_keys: Whether the keys are those that follow from the rest.
    """

    kind: TargetKind
    attrs: Mapping[str, Any]
    keys: tuple[str, ...]
    host: Any
    tags: tuple[str, ...]
    features: Features
    has_deduced_keys: bool


MakeTarget = Callable[[Parts], Any]
"""Makes a target of its parts."""


def build_parts(fields: Fields, path: str, build: BuildTarget, make: MakeTarget) -> Parts:
    """Check fields that `read_fields` returned, and complete them.

    Raises:
        TargetError: A field is unknown, of the wrong type, or contradicts another.
    """
    try:
        return _build(fields, path, build, make)
    except TargetError as error:
        _locate(error, fields, path)
        raise


def in_spec(error: TargetError, spec: str | Mapping[Any, Any]) -> TargetError:
    """Return the error with the whole input: in its place, or else in its message."""
    text = str(spec)
    place = error.place.inside(text) if error.place and isinstance(spec, str) else error.place
    is_shown = text.strip() in error.message or (place is not None and place.text == text)
    message = error.message if is_shown else f"{error.message} in {spec!r}"
    return TargetError(message, target=text, hint=error.hint, place=place)


def _locate(error: TargetError, fields: Fields, path: str) -> None:
    """Say in an error where in the text the field is that the message begins with."""
    for name, value in fields.items():
        place = join_path(path, name)
        if isinstance(value, Raw) and error.message.startswith(
            (f"{place}:", f"{place}[", f"{place}.")
        ):
            value.locate(error)
            return


def _build(fields: Fields, path: str, build: BuildTarget, make: MakeTarget) -> Parts:
    for name in _PLACED:
        if name in fields:
            hint = "a target has no ordinal: give the placed form where targets are listed"
            place = fields[name].whole() if isinstance(fields[name], Raw) else None
            fail(path, f"{name} belongs to a placed target", hint, place)
    # A spelling that was proposed for the original, and lost to lists of targets.
    if "compiler" in fields:
        fields = _specialise(fields, path, build, make)
    if fields["tag"] and _is_no_host(fields.get(HOST)):
        fields = {name: value for name, value in fields.items() if name != HOST}
    kind = get_kind(fields["kind"])
    values = {
        name: _read(kind.attrs[name], fields[name], join_path(path, name), build)
        for name in _known_names(kind, fields, path)
        if name not in ("kind", "tag")
    }
    user_keys, host = values.pop("keys", ()), values.pop(HOST, None)
    if FROM_DEVICE in values:
        values = {**ask_device(kind, values.pop(FROM_DEVICE), path), **values}
    values = {**kind.defaults_on(values.get(BASE_ATTR.name)), **values}
    if "target_device_type" in values:
        _check_device_type(values["target_device_type"], path)
    canonical = canonicalize(kind, values, path, build)
    deduced = deduce_keys(kind, canonical.attrs, canonical.keys)
    keys_given = (*user_keys, *canonical.needed_keys) if user_keys else ()
    keys = deduce_keys(kind, canonical.attrs, keys_given) if keys_given else deduced
    return Parts(
        kind,
        canonical.attrs if type(canonical.attrs) is FrozenMap else FrozenMap(canonical.attrs),
        keys,
        host,
        tuple(fields["tag"]),
        Features(canonical.features),
        keys == deduced,
    )


def _is_no_host(value: object) -> bool:
    text = unquote(value.text) if isinstance(value, Raw) and value.text is not None else value
    return text == NO_HOST


def _read(spec: AttrSpec, value: object, path: str, build: BuildTarget) -> Any:
    """Read a value, of which tags may give several that have to be equal."""
    if isinstance(value, Disputed):
        by_tag = {tag: _read(spec, each, path, build) for tag, each in value.by_tag.items()}
        (first, settled), *others = by_tag.items()
        for tag, other in others:
            if other != settled:
                texts = [write(spec.type, each) for each in (settled, other)]
                message = f"tag {first!r} says {texts[0]}, and tag {tag!r} says {texts[1]}"
                fail(path, message, f"give {spec.name} as well, or keep one of the tags")
        return settled
    return read(spec, value, path, build)


def _known_names(kind: TargetKind, fields: Fields, path: str) -> tuple[str, ...]:
    for name, value in fields.items():
        if name not in kind.attrs and name != "kind":
            fail_unknown(kind, name, path, value.place() if isinstance(value, Raw) else None)
    return tuple(fields)


def fail_unknown(
    kind: TargetKind, name: object, path: str = "", place: Place | None = None
) -> NoReturn:
    """Say that a kind has no such attribute, and which it has."""
    hint = suggest(str(name), tuple(sorted(kind.attrs)), what=f"attributes of {kind.name}")
    fail(path, f"kind {kind.name!r} has no attribute {name!r}", hint, place)


def _check_device_type(number: int, path: str) -> None:
    if number not in tuple(DeviceType):
        numbers = ", ".join(f"{item.value} {item.name}" for item in DeviceType)
        fail(join_path(path, "target_device_type"), f"{number} is not a device type", numbers)


def _specialise(fields: Fields, path: str, build: BuildTarget, make: MakeTarget) -> Fields:
    """Turn `cuda -arch=sm_80 -compiler=tensorrt` into `tensorrt -base='cuda -arch=sm_80'`."""
    compiler = fields["compiler"]
    name = unquote(compiler.text or "") if isinstance(compiler, Raw) else compiler
    if not isinstance(name, str):
        fail(join_path(path, "compiler"), f"expects type string, but gets {type_of(name)}")
    rest = {key: value for key, value in fields.items() if key not in ("compiler", "host")}
    base = make(build_parts(rest, path, build, make))
    kind = get_kind(read_fields(name, join_path(path, "compiler"))["kind"])
    if not kind.can_refine(base.kind):
        fail(
            join_path(path, "compiler"),
            f"{name!r} does not refine a target of kind {base.kind.name!r}",
        )
    host = {"host": fields["host"]} if "host" in fields else {}
    return {"kind": kind.name, "tag": [], BASE_ATTR.name: base, **host}
