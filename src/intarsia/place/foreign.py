# SPDX-License-Identifier: Apache-2.0
"""Reads what other systems wrote about where nodes run, as defaults beneath our own annotations.

ONNX's `configuration` and `device_configurations` win over ONNX Runtime's `layer_ann`; whatever is
pinned, or annotated for us, wins over both.

Source:
    onnx.proto3, `DeviceConfigurationProto` and `NodeDeviceConfigurationProto` (IR version 11);
    ONNX Runtime, session option `session.layer_assignment_settings`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from intarsia.errors import PlacementError, TargetError
from intarsia.graph.metadata import DEVICE_KEY
from intarsia.place.constraints import nearest_names
from intarsia.place.devices import find_targets

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.target import CompilationConfig, PlacedTarget

LAYER_KEY = "layer_ann"
"""The node metadata in which ONNX Runtime looks for a node's layer."""
EXACT = "="
"""Before a layer's name: the whole name is meant, and not all that begin with it."""

logger = logging.getLogger("intarsia")


def annotate_foreign(
    model: ir.Model, layers: Mapping[str, str], config: CompilationConfig
) -> dict[str, str]:
    """Write foreign annotations as ours onto the nodes of a loaded model that have none of ours.

    Args:
        model: Ours to change; pins are on it already.
        layers: From a layer's name, or what it begins with, to the text of a target of `config`.
            `=name` means this name only, and wins; of the others the longest wins.
        config: The machine.

    Returns:
        By node name, the words that placed it.

    Raises:
        PlacementError: A layer matches no node, or a device configuration names a device that
            this machine does not have beside others that it has.
        TargetError: A target is not one of the machine's.
    """
    rules = _read_rules(model, layers, config)
    chosen = _choose_configuration(model, config)
    why: dict[str, str] = {}
    sharded = 0
    for node in model.graph:
        if DEVICE_KEY in node.metadata_props:
            continue
        found = None
        if chosen is not None:
            try:
                found = chosen.find(node)
            except _ShardedError:
                sharded += 1
        found = found or _find_rule(rules, node.metadata_props.get(LAYER_KEY, ""))
        if found is not None:
            node.metadata_props[DEVICE_KEY], why[node.name or ""] = found
    if sharded:
        logger.warning(
            "%d nodes are split over several devices by a device configuration, which is not "
            "supported: each is placed whole, as if it were not annotated",
            sharded,
        )
    return why


Found: TypeAlias = tuple[str, str]
"""The text of a target, and the words that led there."""


def _read_rules(
    model: ir.Model, layers: Mapping[str, str], config: CompilationConfig
) -> dict[str, Found]:
    names = [
        node.metadata_props[LAYER_KEY] for node in model.graph if node.metadata_props.get(LAYER_KEY)
    ]
    rules: dict[str, Found] = {}
    for rule, text in layers.items():
        words = f"layer '{rule}={text}'"
        targets = find_targets(config, text, words)
        target = str(targets[0]) if len(targets) == 1 else text
        if not any(_matches(rule, name) for name in names):
            raise PlacementError(
                f"{words} matches no node's {LAYER_KEY}",
                target=target,
                hint=nearest_names(rule.lstrip(EXACT), names)
                if names
                else f"no node of the model has {LAYER_KEY} in its metadata",
            )
        rules[rule] = (target, words)
    return dict(
        sorted(rules.items(), key=lambda item: (not item[0].startswith(EXACT), -len(item[0])))
    )


def _find_rule(rules: Mapping[str, Found], name: str) -> Found | None:
    return next((found for rule, found in rules.items() if name and _matches(rule, name)), None)


def _matches(rule: str, name: str) -> bool:
    return name == rule[1:] if rule.startswith(EXACT) else name.startswith(rule)


class _Unknown(Enum):
    """What a device's name means if it means no single target."""

    ABSENT = "absent"
    SEVERAL = "several"


class _ShardedError(Exception):
    """A node is split over several devices."""


@dataclass(frozen=True, slots=True)
class _Configuration:
    """A configuration of a model, and what its devices mean on this machine."""

    name: str
    devices: tuple[str, ...]
    targets: tuple[PlacedTarget | _Unknown, ...]
    machine: str

    @property
    def known(self) -> int:
        return sum(target is not _Unknown.ABSENT for target in self.targets)

    def find(self, node: ir.Node) -> Found | None:
        """Return where a node runs; nothing if that is left open."""
        ours = [
            item
            for item in node.device_configurations
            if item.configuration is not None and item.configuration.name == self.name
        ]
        if not ours:
            return None
        index = _device_index(ours[0], len(self.targets))
        if index is None:
            return None
        words = f"device configuration {self.name!r}"
        if not 0 <= index < len(self.targets):
            raise PlacementError(
                f"node {node.name!r}: {words} has no device {index}",
                node=node.name,
                hint=f"it has {len(self.targets)} devices",
            )
        target = self.targets[index]
        if target is _Unknown.ABSENT:
            raise PlacementError(
                f"node {node.name!r}: {words} puts it on {self.devices[index]!r}, which is none "
                "of the targets",
                node=node.name,
                target=self.devices[index],
                hint=f"give a target or label of that name, or pin the node; here: {self.machine}",
            )
        return None if target is _Unknown.SEVERAL else (str(target), words)


def _device_index(item: ir.NodeDeviceConfiguration, devices: int) -> int | None:
    """Return the one device of a node: that of its tensors, else that of its pipeline stage."""
    found: dict[int, None] = {}
    for spec in item.sharding_specs:
        groups = {entry.key: entry.value for entry in spec.index_to_device_group_map}
        for key in spec.device:
            found.update(dict.fromkeys(groups.get(key, (key,))))
    if len(found) > 1:
        raise _ShardedError
    if found:
        return next(iter(found))
    if devices == 1:
        return 0
    stage = item.pipeline_stage
    return stage if stage is not None and 0 <= stage < devices else None


def _choose_configuration(model: ir.Model, config: CompilationConfig) -> _Configuration | None:
    """Return the first configuration whose devices are all here, else the first with any."""
    used = {
        item.configuration.name: None
        for node in model.graph
        for item in node.device_configurations
        if item.configuration is not None
    }
    machine = "; ".join(str(target) for target in config.targets)
    known = []
    for declared in model.device_configurations:
        names = declared.device_names
        targets = tuple(_meaning(config, name) for name in names)
        if declared.name in used and names:
            known.append(_Configuration(declared.name, names, targets, machine))
    best = max(known, key=lambda item: item.known == len(item.targets), default=None)
    if best is None or not best.known:
        best = next((item for item in known if item.known), None)
    if used and best is None:
        logger.warning(
            "the device configurations of the model (%s) are for another machine, and are not "
            "followed; the targets are %s",
            ", ".join(used),
            machine,
        )
    return best


def _meaning(config: CompilationConfig, name: str) -> PlacedTarget | _Unknown:
    """Return the target that a device's name means: as `find` says, or by device type."""
    for text in (name, name.lower()):
        try:
            return config.find(text)
        except TargetError:
            continue
    family, _, ordinal = name.lower().partition(":")
    found = []
    for item in config.targets:
        place = config.device_of(item)
        families = [place.device_type.name.lower()] if place.device_type is not None else []
        families.append(item.target.kind.name)
        if family in families and ordinal in ("", str(place.device_id or 0)):
            found.append(item)
    if len(found) == 1:
        return found[0]
    return _Unknown.SEVERAL if found else _Unknown.ABSENT
