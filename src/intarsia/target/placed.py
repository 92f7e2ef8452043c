# SPDX-License-Identifier: Apache-2.0
"""`VirtualDevice`: where something may be, as far as that is known.

One that surely has a target and an ordinal is a `PlacedTarget`, written `opencl:1 -name=value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from intarsia.errors import TargetError
from intarsia.target.build import in_spec
from intarsia.target.cache import TextCache
from intarsia.target.device import DeviceType
from intarsia.target.fields import Fields, read_fields
from intarsia.target.kind import ANY_OF_DEVICE, TargetKind
from intarsia.target.raw import Raw
from intarsia.target.registry import REGISTRY
from intarsia.target.schema import check_unicode
from intarsia.target.target import Target, build_from_fields
from intarsia.target.text import quote_if_needed, suggest, unquote

MemoryDomain = tuple[int, int, str]
_FIELDS = ("device_type", "device_id", "memory_scope")
_cache: TextCache[PlacedTarget] = TextCache()


@dataclass(frozen=True, slots=True, eq=False)
class VirtualDevice:
    """A device type, an ordinal, a target and a memory scope, each known or not.

    Attributes:
        device_type: None means unconstrained; deduced from the target where that settles it.
        device_id: The ordinal among the devices of that type; None means unconstrained.
        target: What runs there; None means unconstrained.
        memory_scope: Which memory of the device; empty means unconstrained.

    Raises:
        TargetError: The target cannot run on that type of device, or the ordinal is negative.
    """

    device_type: DeviceType | None = None
    device_id: int | None = None
    target: Target | None = None
    memory_scope: str = ""

    def __post_init__(self) -> None:
        if self.device_id is not None and self.device_id < 0:
            raise TargetError(f"device ordinal {self.device_id} is negative")
        if self.device_type is not None:
            if self.device_type not in tuple(DeviceType):
                raise TargetError(f"{self.device_type} is not a device type")
            object.__setattr__(self, "device_type", DeviceType(self.device_type))
        if self.target is None:
            return
        possible = device_types(self.target)
        if self.device_type is None and len(possible) == 1:
            object.__setattr__(self, "device_type", possible[0])
        elif self.device_type is not None and self.device_type not in possible:
            raise TargetError(
                f"target '{self.target}' does not run on device type {self.device_type.name}",
                target=str(self.target),
                hint=f"it runs on {', '.join(item.name for item in possible)}",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VirtualDevice):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def _fields(self) -> tuple[DeviceType | None, int | None, Target | None, str]:
        return self.device_type, self.device_id, self.target, self.memory_scope

    def placed(self) -> PlacedTarget:
        """Return this as a placed target; no ordinal means 0.

        Raises:
            TargetError: It has no target.
        """
        if self.target is None:
            raise TargetError(f"{self} has no target", hint="say what is to run there")
        return PlacedTarget(
            self.device_type,
            self.device_id or 0,
            target=self.target,
            memory_scope=self.memory_scope,
        )

    @property
    def memory_domain(self) -> MemoryDomain:
        """Device type, ordinal and scope; a copy is needed if and only if these differ.

        A kind with a memory of its own has that one where no scope is given.

        Raises:
            TargetError: The device type or the ordinal is not known.
        """
        if self.device_type is None or self.device_id is None:
            raise TargetError(
                f"{self} is not one device", hint="resolve it by a CompilationConfig first"
            )
        kind_scope = self.target.kind.memory_scope if self.target is not None else ""
        return self.device_type, self.device_id, self.memory_scope or kind_scope

    @property
    def short_text(self) -> str:
        """Device type, ordinal and scope in few letters.

        As `cuda:1`, `opencl:0/texture` or `any`.
        """
        name = "any" if self.device_type is None else self.device_type.name.lower()
        ordinal = "" if self.device_id is None else f":{self.device_id}"
        return f"{name}{ordinal}{f'/{self.memory_scope}' if self.memory_scope else ''}"

    def without_tags(self) -> Self:
        """Return an equal one whose target says nothing of where it came from."""
        if self.target is None or not self.target.has_tags:
            return self
        return replace(self, target=self.target.without_tags())

    def join(self, other: VirtualDevice) -> VirtualDevice | None:
        """Return what satisfies both, or None if they contradict."""
        values: dict[str, Any] = {}
        for name in ("device_type", "device_id", "target", "memory_scope"):
            mine, its = getattr(self, name), getattr(other, name)
            # By value: in the original, equal targets that were made apart do not join (row 110).
            if is_unknown(mine) or is_unknown(its) or mine == its:
                values[name] = its if is_unknown(mine) else mine
            else:
                return None
        target, device_type = values["target"], values["device_type"]
        if target is not None and device_type not in (None, *device_types(target)):
            return None
        return VirtualDevice(**values)

    def default(self, other: VirtualDevice) -> VirtualDevice:
        """Return this with what is unknown taken from the other.

        The other's target is taken only if the device types agree.
        """
        device_type = self.device_type if self.device_type is not None else other.device_type
        target = self.target
        if target is None and device_type == other.device_type:
            target = other.target
        return VirtualDevice(
            device_type,
            self.device_id if self.device_id is not None else other.device_id,
            target,
            self.memory_scope or other.memory_scope,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON; what is unknown is left out."""
        items: dict[str, Any] = {} if self.target is None else self.target.to_json()
        is_settled = self.target is not None and len(device_types(self.target)) == 1
        if self.device_type is not None and not is_settled:
            items["device_type"] = int(self.device_type)
        if self.device_id is not None:
            items["device_id"] = self.device_id
        if self.memory_scope:
            items["memory_scope"] = self.memory_scope
        return items

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> VirtualDevice:
        """Make a virtual device of what `to_json` returned.

        Raises:
            TargetError: Something in it is unknown or of the wrong type.
        """
        if not isinstance(items, Mapping):
            raise TargetError(f"a virtual device has to be a dictionary, not {items!r}")
        if "kind" in items or "tag" in items:
            placed = PlacedTarget.parse(items)
            if "device_id" in items:
                return placed
            return cls(placed.device_type, None, placed.target, placed.memory_scope)
        for name in items:
            if name not in _FIELDS:
                raise TargetError(
                    f"a virtual device has no field {name!r}",
                    hint=suggest(str(name), _FIELDS, what="fields"),
                )
        fields = {"device_type": None, "device_id": None, **items}
        device_type = _device_type(fields["device_type"])
        ordinal = None if fields["device_id"] is None else _ordinal(fields["device_id"])
        return cls(device_type, ordinal, None, _scope(fields.get("memory_scope", "")))

    def __str__(self) -> str:
        if self.target is None or self.device_id is None:
            parts = (
                self.target or (self.device_type.name if self.device_type else "any"),
                "any" if self.device_id is None else self.device_id,
                self.memory_scope or "any",
            )
            return "device({}, {}, {})".format(*parts)
        kind, blank, options = str(self.target).partition(" ")
        ordinal = f":{self.device_id}" if self.device_id else ""
        scope = f" -memory_scope={quote_if_needed(self.memory_scope)}" if self.memory_scope else ""
        return f"{kind}{ordinal}{blank}{options}{scope}"


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTarget(VirtualDevice):
    """A virtual device that surely has a target, and the ordinal of the device that runs it.

    It equals a `VirtualDevice` of the same fields. The device type of a partial target stays open
    until a `CompilationConfig` says what it refines.

    Attributes:
        device_id: The ordinal among the devices of that type.
        target: What runs there.
    """

    device_id: int = 0
    target: Target = field(kw_only=True)

    @classmethod
    def parse(cls, spec: object) -> PlacedTarget:
        """Make a placed target of any form of one target, with `:1` or `device_id` or neither.

        No ordinal means 0.

        Raises:
            TargetError: The form is malformed, unknown or contradictory.
        """
        if isinstance(spec, PlacedTarget):
            return spec
        if isinstance(spec, VirtualDevice):
            return spec.placed()
        if isinstance(spec, Target):
            return cls(target=spec)
        if not isinstance(spec, str):
            return cls._read(spec)
        cached = _cache.get(spec)
        if cached is None:
            cached = _cache.keep(spec, lambda: cls._read(spec), lambda placed: placed.target)
        return cached

    @classmethod
    def _read(cls, spec: object) -> PlacedTarget:
        try:
            return placed_from_fields(read_fields(spec))
        except TargetError as error:
            if not isinstance(spec, str | Mapping):
                raise
            raise in_spec(error, spec) from None


def is_unknown(value: object) -> bool:
    """Tell whether a field of a virtual device is unconstrained."""
    return value is None or value == ""


def device_types(target: Target) -> tuple[DeviceType, ...]:
    """Return the types of device that the target can run on, the usual one first."""
    kind = target.kind
    base = target.attrs.get("base")
    if base is not None:
        return (base.device_type,)
    if kind.is_complete or "target_device_type" in target.attrs:
        return (target.device_type,)
    types = [_refined_type(kind, name) for name in kind.refines]
    return tuple(dict.fromkeys(types)) or (kind.device_type,)


def placed_from_fields(fields: Fields) -> PlacedTarget:
    """Make a placed target of fields that `read_fields` returned.

    Raises:
        TargetError: A field is unknown, of the wrong type, or contradicts another.
    """
    rest = dict(fields)
    ordinal = _ordinal(rest.pop("device_id", 0))
    scope = _scope(rest.pop("memory_scope", ""))
    number = rest.get("device_type")  # of kinds that have such an attribute, it is a string
    device_type = _device_type(rest.pop("device_type")) if isinstance(number, int) else None
    return PlacedTarget(device_type, ordinal, target=build_from_fields(rest), memory_scope=scope)


def _device_type(value: object) -> DeviceType | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in tuple(DeviceType):
        raise TargetError(f"device_type: {value!r} is not a device type")
    return DeviceType(value)


def _scope(value: object) -> str:
    text = unquote(value.text or "") if isinstance(value, Raw) else value
    if not isinstance(text, str):
        raise TargetError(f"memory_scope: expects type string, but gets {text!r}")
    return check_unicode(text, "memory_scope")


def _ordinal(value: object) -> int:
    if isinstance(value, Raw):
        text = unquote(value.text or "")
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text  # noqa: PLR2004
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TargetError(f"device_id: expects an ordinal, but gets {value!r}")
    return value


def _refined_type(kind: TargetKind, name: str) -> DeviceType:
    refined = None if name == ANY_OF_DEVICE else REGISTRY.find_kind(name)
    return kind.device_type if refined is None else refined.device_type
