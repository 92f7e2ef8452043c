# SPDX-License-Identifier: Apache-2.0
"""Target kinds: families of targets that share one build pipeline and one attribute schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from intarsia.errors import TargetError
from intarsia.target.device import DeviceType
from intarsia.target.frozen import FrozenMap
from intarsia.target.pipeline import STANDARD_PIPELINE, check_pipeline
from intarsia.target.schema import AttrSpec

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
ANY_OF_DEVICE = "*"

TAG_ATTR = AttrSpec(
    "tag", "array<string>", "names of the configurations that this target came from"
)
COMMON_ATTRS = (
    AttrSpec("keys", "array<string>", "dispatch labels, most specific first"),
    TAG_ATTR,
    AttrSpec("device", "string", "name of the device family; becomes the first key"),
    AttrSpec("model", "string", "name of the model of the device"),
    AttrSpec("libs", "array<string>", "libraries that may be called", order="unordered"),
    AttrSpec("host", "target", "what runs shapes, control flow and the plan itself"),
    AttrSpec(
        "from_device",
        "int",
        "ordinal of a device here that is asked for the other attributes",
        minimum=0,
    ),
    AttrSpec("target_device_type", "int", "DLPack number that replaces the kind's device type"),
)
BASE_ATTR = AttrSpec("base", "target", "the one complete target that this partial one refines")
RESERVED = ("kind", "features", "device_id", "memory_scope", "compiler", "inherits")


@dataclass(frozen=True, slots=True)
class Canonical:
    """What a canonicaliser makes of the given attributes.

    Attributes:
        attrs: All attributes, rewritten where needed.
        keys: Keys to use unless the user gave some; empty means the kind's own.
        features: Facts derived from the attributes, for `Target.features`.
        needed_keys: Keys that come after those that the user gave.
    """

    attrs: Mapping[str, Any]
    keys: tuple[str, ...] = ()
    features: Mapping[str, Any] = field(default_factory=dict)
    needed_keys: tuple[str, ...] = ()


Canonicalizer = Callable[[Mapping[str, Any]], Canonical]
"""Rewrites checked attributes, in which defaults are filled in. It has to be idempotent, and raises
a `TargetError` whose message starts with the attribute at fault."""


@dataclass(frozen=True, slots=True, init=False)
class TargetKind:
    """A family of targets.

    Attributes:
        name: As written first in a target's text.
        device_type: Where its programs run; for a partial kind, the usual place.
        attrs: Every attribute that its targets may have, the ones of all kinds included.
        default_keys: Keys of a target for which neither user nor canonicaliser gave any.
        canonicalizer: Rewrites attributes and sets keys and features, or None.
        is_complete: Whether its code generator can run a whole graph.
        refines: Of a partial kind: names of the complete kinds it can refine; `*` means every
            complete kind of its device type.
        memory_scope: Of a partial kind: the memory of its own, beside that of the device of what
            it refines, that its programs work in; empty means that they share the device's.
        is_hidden: Whether lists leave it out unless all kinds are asked for.
        is_native: Whether it is code of ours for a CPU: one that names no CPU means this machine.
        is_source: Whether its code is C, for compilers of other machines.
        is_slow: Whether running on it is worth a warning.
        stands_in: Its place among the kinds that run, in the host's place, what no target takes,
            and that compute what results are compared with; 0 for none of these.
        pipeline: The passes that it brings, in order, each as `STAGE: NAME`.
        aliases: Other names of it, each with the attributes that the name stands for.
        help: One line for `target show`.
        defaults: By attribute, the value of those that have one.

    Raises:
        TargetError: The declaration contradicts itself.
    """

    name: str
    device_type: DeviceType
    attrs: Mapping[str, AttrSpec]
    default_keys: tuple[str, ...]
    canonicalizer: Canonicalizer | None
    is_complete: bool
    refines: tuple[str, ...]
    memory_scope: str
    is_hidden: bool
    is_native: bool
    is_source: bool
    is_slow: bool
    stands_in: int
    pipeline: tuple[str, ...]
    aliases: Mapping[str, Mapping[str, Any]]
    help: str
    defaults: Mapping[str, Any] = field(compare=False)

    def __init__(  # noqa: PLR0913 - all by name
        self,
        name: str,
        device_type: DeviceType,
        *,
        attrs: Iterable[AttrSpec] | Mapping[str, AttrSpec] = (),
        default_keys: Iterable[str] = (),
        canonicalizer: Canonicalizer | None = None,
        is_complete: bool = True,
        refines: Iterable[str] = (),
        memory_scope: str = "",
        is_hidden: bool = False,
        is_native: bool = False,
        is_source: bool = False,
        is_slow: bool = False,
        stands_in: int = 0,
        pipeline: Iterable[str] = STANDARD_PIPELINE,
        aliases: Mapping[str, Mapping[str, Any]] | None = None,
        help: str = "",  # noqa: A002 - the field's own word
    ) -> None:
        refines = tuple(refines)
        if not _NAME.fullmatch(name):
            raise TargetError(f"{name!r} is not a kind name", hint="use letters, digits, _ . and -")
        if is_complete and refines:
            raise TargetError(f"kind {name!r} is complete and refines {', '.join(refines)}")
        schema = _schema(name, attrs, is_complete=is_complete)
        values = {
            "name": name,
            "device_type": DeviceType(device_type),
            "attrs": schema,
            "default_keys": tuple(default_keys),
            "canonicalizer": canonicalizer,
            "is_complete": is_complete,
            "refines": refines,
            "memory_scope": memory_scope,
            "is_hidden": is_hidden,
            "is_native": is_native,
            "is_source": is_source,
            "is_slow": is_slow,
            "stands_in": stands_in,
            "pipeline": check_pipeline(pipeline),
            "aliases": _aliases(name, aliases or {}, schema),
            "help": help,
            "defaults": {
                spec.name: spec.default for spec in schema.values() if spec.default is not None
            },
        }
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def defaults_on(self, base: Any) -> Mapping[str, Any]:
        """Return the defaults of a target that refines another one, if it names that.

        Args:
            base: The target that it refines, or None.
        """
        if base is None:
            return self.defaults
        followed = {spec.name: spec.follows for spec in self.attrs.values() if spec.follows}
        followed_values = {name: base.features.get(feature) for name, feature in followed.items()}
        return {
            **self.defaults,
            **{name: v for name, v in followed_values.items() if v is not None},
        }

    def can_refine(self, other: TargetKind) -> bool:
        """Tell whether a target of this partial kind can specialise one of the other kind."""
        if self.is_complete or not other.is_complete:
            return False
        if other.name in self.refines:
            return True
        return ANY_OF_DEVICE in self.refines and other.device_type == self.device_type

    def __str__(self) -> str:
        return self.name


def _schema(
    kind: str, attrs: Iterable[AttrSpec] | Mapping[str, AttrSpec], *, is_complete: bool
) -> FrozenMap:
    inherited = {spec.name: spec for spec in COMMON_ATTRS}
    if not is_complete:
        inherited[BASE_ATTR.name] = BASE_ATTR
    schema = dict(inherited)
    for spec in attrs.values() if isinstance(attrs, Mapping) else attrs:
        if spec.name in RESERVED or inherited.get(spec.name, spec) != spec:
            raise TargetError(
                f"kind {kind!r}: attribute {spec.name!r} clashes with one that every kind has"
            )
        if spec.name in schema and spec.name not in inherited:
            raise TargetError(f"kind {kind!r}: attribute {spec.name!r} is declared twice")
        schema[spec.name] = spec
    return FrozenMap(schema)


def _aliases(
    kind: str, aliases: Mapping[str, Mapping[str, Any]], schema: Mapping[str, AttrSpec]
) -> FrozenMap:
    checked = {}
    for alias, attrs in aliases.items():
        if not _NAME.fullmatch(alias) or alias == kind or not isinstance(attrs, Mapping):
            raise TargetError(f"kind {kind!r}: {alias!r} is not an alias with attributes")
        for name in attrs:
            if name not in schema:
                raise TargetError(
                    f"kind {kind!r}: alias {alias!r} has an unknown attribute {name!r}"
                )
        checked[alias] = FrozenMap(
            {name: replace(schema[name], default=value).default for name, value in attrs.items()}
        )
    return FrozenMap(checked)
