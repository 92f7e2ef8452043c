# SPDX-License-Identifier: Apache-2.0
"""`Target`: what to compile for, as an immutable value.

The text form leaves out what a reader (and the parser) can deduce: attributes that have their
default and keys that are the kind's own. JSON leaves nothing out, as it outlives releases.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, overload

from intarsia.errors import TargetError
from intarsia.target.derive import Features, canonicalize, deduce_keys
from intarsia.target.device import DeviceType
from intarsia.target.fields import Fields, read_fields
from intarsia.target.kind import BASE_ATTR, TargetKind
from intarsia.target.registry import get_kind
from intarsia.target.schema import FrozenMap, Raw, fail, join_path, plain, read, type_of, write
from intarsia.target.text import suggest, unquote

_PLACED = ("device_id", "memory_scope")
_stack = threading.local()


class Target:
    """A compile-time description of one kind of device, or of a whole machine (`composite`).

    Frozen and hashable. Equality is structural; tags and features, which say where a target came
    from and what follows from it, do not count. `Target(str(t)) == t` holds for every target.

    Args:
        spec: Text (`kind -name=value`), a tag, a dictionary, JSON text, or a target.
        host: The host, in any of these forms, for a target that carries none.

    Attributes:
        kind: The family that it belongs to.
        attrs: Its attributes with the kind's defaults filled in; read-only.
        keys: Dispatch labels, most specific first.
        host: The host that it carries, or None.
        tags: The tags that it was made from, nearest first.
        features: What the kind's canonicaliser derived.

    Raises:
        TargetError: The description is malformed, unknown or contradictory.
    """

    __slots__ = ("__weakref__", "_identity", "attrs", "features", "host", "keys", "kind", "tags")

    kind: TargetKind
    attrs: Mapping[str, Any]
    keys: tuple[str, ...]
    host: Target | None
    tags: tuple[str, ...]
    features: Features
    _identity: str

    def __init__(self, spec: object, host: object = None) -> None:
        target = _outermost(spec)
        if host is not None:
            target = _pair(target, _outermost(host))
        for name in ("kind", "attrs", "keys", "host", "tags", "features", "_identity"):
            object.__setattr__(self, name, getattr(target, name))

    @classmethod
    def _make(
        cls,
        kind: TargetKind,
        attrs: Mapping[str, Any],
        keys: tuple[str, ...],
        host: Target | None,
        tags: tuple[str, ...],
        features: Features,
    ) -> Target:
        target = object.__new__(cls)
        object.__setattr__(target, "kind", kind)
        object.__setattr__(target, "attrs", FrozenMap(attrs))
        object.__setattr__(target, "keys", keys)
        object.__setattr__(target, "host", host)
        object.__setattr__(target, "tags", tags)
        object.__setattr__(target, "features", features)
        object.__setattr__(target, "_identity", _text(target, with_tags=False))
        return target

    @property
    def device_type(self) -> DeviceType:
        """Where its programs run; for a partial kind, the usual place."""
        return DeviceType(self.attrs.get("target_device_type", self.kind.device_type))

    @property
    def identity(self) -> str:
        """The text without tags: equal targets, and only they, have the same."""
        return self._identity

    def with_host(self, host: object) -> Target:
        """Return this target with the host, which replaces one that it has.

        Raises:
            TargetError: The host is None or malformed; `without_host` removes one.
        """
        if host is None:
            raise TargetError("the host is None", hint="use without_host() to remove a host")
        return self._with_host(_outermost(host))

    def without_host(self) -> Target:
        """Return this target without a host."""
        return self if self.host is None else self._with_host(None)

    def _with_host(self, host: Target | None) -> Target:
        return Target._make(self.kind, self.attrs, self.keys, host, self.tags, self.features)

    def refines(self, other: Target) -> bool:
        """Tell whether this is the other, complete target with a more specific code generator."""
        base = self.attrs.get(BASE_ATTR.name)
        if base is not None and base.without_host() != other.without_host():
            return False
        return self.kind.can_refine(other.kind)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON that says everything, defaults included."""
        items: dict[str, Any] = {"kind": self.kind.name}
        if self.tags:
            items["tag"] = list(self.tags)
        items["keys"] = list(self.keys)
        if self.host is not None:
            items["host"] = self.host.to_json()
        return {**items, **plain(self.attrs)}

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> Target:
        """Make a target of what `to_json` returned.

        Raises:
            TargetError: Something in it is unknown or of the wrong type.
        """
        return cls(items)

    @overload
    @classmethod
    def current(cls, allow_none: Literal[False]) -> Target: ...
    @overload
    @classmethod
    def current(cls, allow_none: bool = True) -> Target | None: ...
    @classmethod
    def current(cls, allow_none: bool = True) -> Target | None:
        """Return the innermost target entered with `with` in this thread, or None.

        Raises:
            TargetError: There is none, and `allow_none` is false.
        """
        stack: list[Target] = getattr(_stack, "targets", [])
        if not stack and not allow_none:
            raise TargetError("there is no current target", hint="enter one: with Target(...):")
        return stack[-1] if stack else None

    def __enter__(self) -> Target:
        if not hasattr(_stack, "targets"):
            _stack.targets = []
        _stack.targets.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _stack.targets.pop()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"targets are immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"targets are immutable: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, Target) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity)

    def __str__(self) -> str:
        return _text(self, with_tags=True)

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Target, (self.to_json(),)


def build_target(spec: object, path: str = "") -> Target:
    """Make a target; messages start with the path of the place that it stands in.

    Raises:
        TargetError: The description is malformed, unknown or contradictory.
    """
    if isinstance(spec, Target):
        return spec
    return build_from_fields(read_fields(spec, path), path)


def build_from_fields(fields: Fields, path: str = "") -> Target:
    """Make a target of fields that `read_fields` returned.

    Raises:
        TargetError: A field is unknown, of the wrong type, or contradicts another.
    """
    for name in _PLACED:
        if name in fields:
            hint = "targets know no ordinal: give the placed form where targets are listed"
            fail(path, f"{name} belongs to a placed target", hint)
    if "compiler" in fields:
        fields = _specialise(fields, path)
    kind = get_kind(fields["kind"])
    values = {
        name: read(kind.attrs[name], fields[name], join_path(path, name), build_target)
        for name in _known_names(kind, fields, path)
        if name not in ("kind", "tag")
    }
    user_keys, host = values.pop("keys", ()), values.pop("host", None)
    for spec in kind.attrs.values():
        if spec.default is not None:
            values.setdefault(spec.name, spec.default)
    if "target_device_type" in values:
        _check_device_type(values["target_device_type"], path)
    canonical = canonicalize(kind, values, path, build_target)
    keys = deduce_keys(kind, canonical.attrs, tuple(user_keys) or canonical.keys)
    tags, features = tuple(fields["tag"]), Features(canonical.features)
    return Target._make(kind, canonical.attrs, keys, host, tags, features)


def _outermost(spec: object) -> Target:
    """Build a target and say in an error what the whole input was."""
    try:
        return build_target(spec)
    except TargetError as error:
        if not isinstance(spec, str | Mapping):
            raise
        text = str(spec)
        message = error.message if text.strip() in error.message else f"{error.message} in {spec!r}"
        raise TargetError(message, target=text, hint=error.hint) from None


def _pair(target: Target, host: Target) -> Target:
    if target.host is not None and target.host != host:
        raise TargetError(
            f"target '{target}' has another host than '{host}'",
            target=str(target),
            hint="with_host() replaces a host",
        )
    return target.with_host(host)


def _known_names(kind: TargetKind, fields: Fields, path: str) -> tuple[str, ...]:
    for name in fields:
        if name not in kind.attrs and name != "kind":
            known = tuple(sorted(kind.attrs))
            hint = suggest(name, known, what=f"attributes of {kind.name}")
            fail(path, f"kind {kind.name!r} has no attribute {name!r}", hint)
    return tuple(fields)


def _check_device_type(number: int, path: str) -> None:
    if number not in tuple(DeviceType):
        numbers = ", ".join(f"{item.value} {item.name}" for item in DeviceType)
        fail(join_path(path, "target_device_type"), f"{number} is no device type", numbers)


def _specialise(fields: Fields, path: str) -> Fields:
    """Turn `cuda -arch=sm_80 -compiler=tensorrt` into `tensorrt -base='cuda -arch=sm_80'`."""
    given = fields["compiler"]
    name = unquote(given.text or "") if isinstance(given, Raw) else given
    if not isinstance(name, str):
        fail(join_path(path, "compiler"), f"expects type string, but gets {type_of(name)}")
    rest = {key: value for key, value in fields.items() if key not in ("compiler", "host")}
    base = build_from_fields(rest, path)
    kind = get_kind(read_fields(name, join_path(path, "compiler"))["kind"])
    if not kind.can_refine(base.kind):
        fail(
            join_path(path, "compiler"),
            f"{name!r} does not refine a target of kind {base.kind.name!r}",
        )
    host = {"host": fields["host"]} if "host" in fields else {}
    return {"kind": kind.name, "tag": [], BASE_ATTR.name: base, **host}


def _text(target: Target, *, with_tags: bool) -> str:
    kind = target.kind
    words = [kind.name]
    canonical = canonicalize(kind, target.attrs, "", build_target).keys
    if target.keys != kind.default_keys or target.keys != deduce_keys(
        kind, target.attrs, canonical
    ):
        words.append(f"-keys={write('array<string>', target.keys)}")
    for name, value in target.attrs.items():
        if value != kind.attrs[name].default:
            words.append(f"-{name}={_written(kind.attrs[name].type, value, with_tags=with_tags)}")
    if target.host is not None:
        words.append(f"-host={_written('target', target.host, with_tags=with_tags)}")
    if with_tags and target.tags:
        words.append(f"-tag={write('array<string>', target.tags)}")
    return " ".join(words)


def _written(type_name: str, value: Any, *, with_tags: bool) -> str:
    return write(type_name, value if with_tags else _untagged(value))


def _untagged(value: Any) -> Any:
    if isinstance(value, Target):
        return Identity(value.identity)
    return tuple(_untagged(item) for item in value) if isinstance(value, tuple) else value


class Identity(str):
    """The identity of a nested target, printed as it is."""

    __slots__ = ()
