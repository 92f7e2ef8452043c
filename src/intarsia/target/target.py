# SPDX-License-Identifier: Apache-2.0
"""`Target`: what to compile for, as an immutable value."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, overload

from intarsia.errors import TargetError
from intarsia.target.build import HOST, NO_HOST, Parts, build_parts, fail_unknown, in_spec
from intarsia.target.cache import TextCache
from intarsia.target.derive import Features
from intarsia.target.device import DeviceType
from intarsia.target.fields import Fields, read_fields, rename_target_host
from intarsia.target.kind import BASE_ATTR, TargetKind
from intarsia.target.raw import Raw
from intarsia.target.schema import check_depth, plain, write
from intarsia.target.toml import read_toml, write_toml

_NOT_GIVEN_ANEW = {
    "host": "with_host() or --host names another host",
    "tag": "write the tag as the target",
}
_stack = threading.local()
_cache: TextCache[Target] = TextCache()


T = TypeVar("T")


class Target:
    """A compile-time description of one kind of device, or of a whole machine (`composite`).

    Frozen and hashable. Equality is structural; tags and features, which say where a target came
    from and what follows from it, do not count. `Target(str(t)) == t` holds for every target.

    Args:
        spec: Text (`kind -name=value`), a tag, a dictionary, JSON text, or a target.
        host: The host, in any of these forms, for a target that carries none.
        target_host: The old name of `host`; deprecated.

    Attributes:
        kind: The family that it belongs to.
        attrs: Its attributes with the kind's defaults filled in; read-only.
        keys: Dispatch labels, most specific first.
        host: The host that it carries, or None.
        tags: The tags that it was made from, nearest first.
        features: What the kind's canonicaliser derived.
        has_tags: Whether it, or a target in it, was made from a tag.

    Raises:
        TargetError: The description is malformed, unknown or contradictory.
    """

    __slots__ = (
        "__weakref__",
        "_has_deduced_keys",
        "_identity",
        "_text",
        "attrs",
        "features",
        "has_tags",
        "host",
        "keys",
        "kind",
        "tags",
    )  # fmt: skip

    kind: TargetKind
    attrs: Mapping[str, Any]
    keys: tuple[str, ...]
    host: Target | None
    tags: tuple[str, ...]
    features: Features
    has_tags: bool
    _has_deduced_keys: bool
    _identity: str | None
    _text: str | None

    def __new__(  # noqa: D102 - the class docstring covers it
        cls, spec: object, host: object = None, *, target_host: object = None
    ) -> Target:
        target = _cache.get(spec) if isinstance(spec, str) else None
        if target is None:
            target = _outermost(spec)
        if host is not None or target_host is not None:
            host = rename_target_host(host, target_host)
            return target if host is None else _pair(target, _outermost(host))
        return target

    @classmethod
    def _make(cls, parts: Parts) -> Target:
        target = object.__new__(cls)
        set_ = object.__setattr__
        set_(target, "kind", parts.kind)
        set_(target, "attrs", parts.attrs)
        set_(target, "keys", parts.keys)
        set_(target, "host", parts.host)
        set_(target, "tags", parts.tags)
        set_(target, "features", parts.features)
        set_(target, "has_tags", bool(parts.tags) or _has_tags((parts.host, *parts.attrs.values())))
        set_(target, "_has_deduced_keys", parts.has_deduced_keys)
        set_(target, "_identity", None)
        set_(target, "_text", None)
        return target

    @property
    def device_type(self) -> DeviceType:
        """Where its programs run; for a partial kind, the usual place."""
        return DeviceType(self.attrs.get("target_device_type", self.kind.device_type))

    @property
    def identity(self) -> str:
        """The text without tags: equal targets, and only they, have the same."""
        if self._identity is None:
            object.__setattr__(self, "_identity", self._print(with_tags=False))
            assert self._identity is not None
        return self._identity

    def _print(self, *, with_tags: bool) -> str:
        tags = self.tags if with_tags else ()
        tagged = self._as_tagged() if tags else self
        defaults = self.kind.defaults_on(self.attrs.get(BASE_ATTR.name))
        attrs: dict[str, Any] = {
            name: value
            for name, value in self.attrs.items()
            if value != defaults.get(name)
            or (tagged is not self and (tagged is None or value != tagged.attrs.get(name)))
        }
        if self.host is not None or tagged is None or tagged.host is not None:
            attrs[HOST] = self.host or NO_HOST
        is_plain = self._has_deduced_keys and self.keys == self.kind.default_keys
        is_plain = is_plain and tagged is not None and tagged.keys == self.keys
        return print_target(
            self.kind, attrs, None if is_plain else self.keys, tags, with_tags=with_tags
        )

    def _as_tagged(self) -> Target | None:
        """Return what its kind and tags alone would be, or None if they settle nothing."""
        try:
            return build_from_fields(read_fields({"kind": self.kind.name, "tag": self.tags}))
        except TargetError:  # they contradict each other, or one is known no longer
            return None

    def without_tags(self) -> Target:
        """Return an equal target that says nothing of where it came from."""
        return Target(self.identity) if self.has_tags else self

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
        return Target._make(
            Parts(
                self.kind,
                self.attrs,
                self.keys,
                host,
                self.tags,
                self.features,
                self._has_deduced_keys,
            )
        )

    def with_attrs(self, attrs: Mapping[str, Any]) -> Target:
        """Return this target with attributes given anew, and what follows from them.

        Args:
            attrs: Values by name. A text for an attribute of another type than string is read as
                in the text form: `{"mattr": "+fp,+mve"}`.

        Raises:
            TargetError: An attribute is unknown, is the host or a tag, or a value is not of its
                type.
        """
        for name in attrs:
            if name not in self.kind.attrs:
                fail_unknown(self.kind, name)
            if name in _NOT_GIVEN_ANEW:
                raise TargetError(
                    f"{name!r} cannot be given again",
                    target=str(self),
                    hint=_NOT_GIVEN_ANEW[name],
                )
        types = {name: spec.type for name, spec in self.kind.attrs.items()}
        fields = {
            name: Raw(value) if isinstance(value, str) and types.get(name) != "string" else value
            for name, value in attrs.items()
        }
        own = read_fields(str(self))
        if self._has_deduced_keys:
            own.pop("keys", None)
        return build_from_fields({**own, **fields})

    def refines(self, other: Target) -> bool:
        """Tell whether this is the other, complete target with a more specific code generator."""
        base = self.attrs.get(BASE_ATTR.name)
        if base is not None and base.without_host() != other.without_host():
            return False
        return self.kind.can_refine(other.kind)

    def is_external_for(self, other: Target) -> bool:
        """Tell whether this partial target may take work from the complete one on its device."""
        if self.kind.is_complete or not other.kind.is_complete:
            return False
        is_there = BASE_ATTR.name not in self.attrs and self.device_type == other.device_type
        return is_there or self.refines(other)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON that says everything, defaults included."""
        items: dict[str, Any] = {"kind": self.kind.name}
        if self.tags:
            items["tag"] = list(self.tags)
        items["keys"] = list(self.keys)
        if self.host is not None:
            items[HOST] = self.host.to_json()
        elif self.tags and ((tagged := self._as_tagged()) is None or tagged.host is not None):
            items[HOST] = NO_HOST
        return {**items, **plain(self.attrs)}

    @classmethod
    def from_json(cls, items: Mapping[str, Any]) -> Target:
        """Make a target of what `to_json` returned.

        Raises:
            TargetError: Something in it is unknown or of the wrong type.
        """
        return cls(items)

    def to_toml(self) -> str:
        """Return a TOML document from which `from_toml` makes an equal target."""
        return write_toml(self.to_json())

    @classmethod
    def from_toml(cls, text: str) -> Target:
        """Make a target of a TOML document, such as `to_toml` returns.

        Raises:
            TargetError: It is not TOML, or something in it is unknown or of the wrong type.
        """
        return cls(read_toml(text))

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
        if not isinstance(other, Target):
            return NotImplemented
        # Neither tags nor features count: row 47 in another form, so that a tag spelled out equals
        # it.
        return self is other or self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __str__(self) -> str:
        if self._text is None:
            text = self._print(with_tags=True) if self.has_tags else self.identity
            object.__setattr__(self, "_text", text)
            assert self._text is not None
        return self._text

    def __repr__(self) -> str:
        return f"Target({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # JSON has the defaults in it, which another release may change.
        return Target, (self.to_json(),)


def _has_tags(values: tuple[Any, ...]) -> bool:
    for value in values:
        if isinstance(value, Target):
            if value.has_tags:
                return True
        elif isinstance(value, tuple) and _has_tags(value):
            return True
    return False


def build_target(spec: object, path: str = "") -> Target:
    """Make a target; messages start with the path of the place that it stands in.

    Raises:
        TargetError: The description is malformed, unknown or contradictory.
    """
    if isinstance(spec, Target):
        return spec
    if not isinstance(spec, str):
        return build_from_fields(read_fields(spec, path), path)
    cached = _cache.get(spec)
    if cached is not None:
        return cached
    return _cache.keep(
        spec, lambda: build_from_fields(read_fields(spec, path), path), lambda target: target
    )


def build_from_fields(fields: Fields, path: str = "") -> Target:
    """Make a target of fields that `read_fields` returned.

    Raises:
        TargetError: A field is unknown, of the wrong type, or contradicts another.
    """
    return Target._make(build_parts(fields, path, build_target, Target._make))


def _outermost(spec: object) -> Target:
    """Build a target and say in an error what the whole input was."""
    check_depth(spec)
    try:
        return build_target(spec)
    except TargetError as error:
        if not isinstance(spec, str | Mapping):
            raise
        raise in_spec(error, spec) from None


def _pair(target: Target, host: Target) -> Target:
    # The original replaces it silently (row 82).
    if target.host is not None and target.host != host:
        raise TargetError(
            f"target '{target}' has another host than '{host}'",
            target=str(target),
            hint="with_host() replaces a host",
        )
    return target.with_host(host)


def print_target(
    kind: TargetKind,
    attrs: Mapping[str, Any],
    keys: tuple[str, ...] | None,
    tags: tuple[str, ...],
    *,
    with_tags: bool,
) -> str:
    """Return the text of a target.

    It leaves out what a reader (and the parser) can deduce: attributes that have their default, and
    keys that follow from the rest. JSON leaves nothing out, as it outlives releases.

    Args:
        kind: Its kind.
        attrs: Its attributes that are to be written, the host last.
        keys: Its keys, unless they follow from the rest.
        tags: Its own tags, if they are to be written.
        with_tags: Whether the tags of targets in it are written.
    """
    words = [kind.name]
    if keys is not None:
        words.append(f"-keys={write('array<string>', keys)}")
    for name, value in attrs.items():
        text = write(kind.attrs[name].type, value if with_tags else _untagged(value))
        words.append(f"-{name}={text}")
    if tags:
        words.append(f"-tag={write('array<string>', tags)}")
    return " ".join(words)


def _untagged(value: Any) -> Any:
    if isinstance(value, Target):
        return TargetText(value.identity)
    return tuple(_untagged(item) for item in value) if isinstance(value, tuple) else value


class TargetText(str):
    """The text of a nested target, printed as it is."""

    __slots__ = ()


class KeyTable(Generic[T]):
    """Implementations by key: a target gets that of its first key that has one.

    Args:
        default: For targets none of whose keys has an implementation.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._by_key: dict[str, T] = {}

    def register(
        self, keys: str | Iterable[str], implementation: T, *, override: bool = False
    ) -> None:
        """Give a key, or several, an implementation.

        Raises:
            TargetError: A key has one already, and `override` is false.
        """
        names = (keys,) if isinstance(keys, str) else tuple(keys)
        for key in names:
            if key in self._by_key and not override:
                raise TargetError(
                    f"key {key!r} has an implementation already", hint="pass override=True"
                )
        self._by_key.update(dict.fromkeys(names, implementation))

    def find(self, target: Target) -> T:
        """Return the implementation for a target."""
        return next(
            (self._by_key[key] for key in target.keys if key in self._by_key), self._default
        )
