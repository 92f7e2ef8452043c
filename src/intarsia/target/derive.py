# SPDX-License-Identifier: Apache-2.0
"""What follows from a target's attributes: canonical attributes, keys and features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.frozen import FrozenMap
from intarsia.target.kind import Canonical, Canonicalizer, TargetKind
from intarsia.target.schema import BuildTarget, fail, join_path, read

FROM_DEVICE = "from_device"
LIFTED = ("kind", "tag", "keys", "host", FROM_DEVICE)


class Features(FrozenMap):
    """Facts that a canonicaliser derived; one that is absent reads as None."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.get(name)


def ask_device(kind: TargetKind, ordinal: int, path: str) -> dict[str, Any]:
    """Return the attributes that a device of this machine has, for those that were not given.

    Raises:
        TargetError: There is no such device, or devices of its type cannot be asked.
    """
    from intarsia.target.query import query_device  # only who asks pays for it

    try:
        return query_device(kind, ordinal)
    except TargetError as error:
        fail("", join_path(path, error.message), error.hint)


def canonicalize(
    kind: TargetKind, values: Mapping[str, Any], path: str, build: BuildTarget
) -> Canonical:
    """Run the kind's canonicaliser, and check that it is idempotent and sets only attributes.

    Raises:
        TargetError: It is not, or it refuses a value.
    """
    if kind.canonicalizer is None:
        return Canonical(values)
    canonical = _apply(kind, kind.canonicalizer, values, path, build)
    if canonical.attrs != values:
        again = _apply(kind, kind.canonicalizer, canonical.attrs, path, build)
        if again.attrs != canonical.attrs or again.keys != canonical.keys:
            fail(path, f"the canonicaliser of kind {kind.name!r} is not idempotent")
    return canonical


def _apply(
    kind: TargetKind,
    canonicalizer: Canonicalizer,
    values: Mapping[str, Any],
    path: str,
    build: BuildTarget,
) -> Canonical:
    given = FrozenMap(values)
    try:
        canonical = canonicalizer(given)
    except TargetError as error:
        fail("", join_path(path, error.message), error.hint)
    if canonical.attrs is given:
        return replace(canonical, attrs=given, keys=tuple(canonical.keys))
    for name in canonical.attrs:
        if name not in kind.attrs or name in LIFTED:
            fail(path, f"the canonicaliser of kind {kind.name!r} sets {name!r}, not an attribute")
    attrs = {
        name: value
        if value is values.get(name)
        else read(kind.attrs[name], value, join_path(path, name), build)
        for name, value in canonical.attrs.items()
    }
    return replace(canonical, attrs=FrozenMap(attrs), keys=tuple(canonical.keys))


def deduce_keys(
    kind: TargetKind, attrs: Mapping[str, Any], given: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the given keys, the device's and, if none are given, the kind's own."""
    if not given and "device" not in attrs:
        return kind.default_keys
    device = (attrs["device"],) if attrs.get("device") else ()
    return tuple(dict.fromkeys((*given, *device, *(() if given else kind.default_keys))))
