# SPDX-License-Identifier: Apache-2.0
"""Annotations in a model's file: read as other systems write them, and written for all to read.

What others wrote about where nodes run is a default beneath our own annotations.
ONNX's `configuration` and `device_configurations` win over ONNX Runtime's `layer_ann`; whatever is
pinned, or annotated for us, wins over both.

Source:
    onnx.proto3, `DeviceConfigurationProto` and `NodeDeviceConfigurationProto` (IR version 11);
    ONNX Runtime, session option `session.layer_assignment_settings`.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import onnx
import onnx_ir as ir

from intarsia.errors import ModelError, PlacementError, SettingError, TargetError
from intarsia.graph.annotate import nearest_names
from intarsia.graph.load import ModelLike, parse
from intarsia.graph.metadata import DEVICE_KEY
from intarsia.place.devices import find_targets
from intarsia.plan.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

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


CONFIGURATION = "intarsia"
"""The name of the device configuration that we write."""
_DEVICES_IR_VERSION = 11
_PROTOBUF_LIMIT = 2**31 - 2**24


class Placed(Protocol):
    """What has a placement: an executable."""

    @property
    def placement(self) -> Placement:
        """What runs where."""


def annotate(model: ModelLike, placed: Placement | Placed) -> onnx.ModelProto:
    """Return the user's model with each node annotated with where it was placed.

    Each node gets `intarsia.device` (the target's text), `layer_ann` (a name per target, for ONNX
    Runtime's `session.layer_assignment_settings`), and a device configuration named `intarsia`
    whose devices are the targets: the node's outputs are on its target, and its pipeline stage is
    its region. A node that was folded away gets nothing, nor does a call of a function whose nodes
    are on several targets: the annotations inside the function stay. What was there under these
    names is replaced, everything else stays; external data is read in.

    Args:
        model: The model that was compiled, in any form that `compile` takes.
        placed: An executable, or its placement.

    Raises:
        ModelError: The model cannot be read or is invalid.
        PlacementError: The placement is of another model.
    """
    placement = placed if isinstance(placed, Placement) else placed.placement
    names = _node_names(model)
    proto = _copy(model)
    regions = {
        origin: index
        for index, region in reversed(list(enumerate(placement.regions)))
        for node in region.nodes
        for origin in node.origins
    }
    known = frozenset(names.values())
    for origin in regions:
        if origin not in known:
            raise PlacementError(
                f"the model has no node {origin!r}: the placement is of another model",
                node=origin,
                hint="give the model that was compiled",
            )
    devices = list(dict.fromkeys(region.target for region in placement.regions))
    layers = layer_names(devices)
    _declare(proto, devices)
    split = _split_calls(proto, placement)
    for node in proto.graph.node:
        name = names[_first_output(node)]
        index = regions.get(name)
        if index is not None and name not in split:
            target = placement.regions[index].target
            _set(node, {DEVICE_KEY: target, LAYER_KEY: layers[target]})
            _configure(node, devices.index(target), index)
    return proto


def _split_calls(proto: onnx.ModelProto, placement: Placement) -> frozenset[str]:
    """Return the names of calls of functions whose nodes are on several targets."""
    if not proto.functions:
        return frozenset()
    targets: dict[str, set[str]] = {}
    for region in placement.regions:
        for node in region.nodes:
            for origin in node.origins:
                if node.name.startswith(f"{origin}/"):
                    targets.setdefault(origin, set()).add(region.target)
    return frozenset(name for name, found in targets.items() if len(found) > 1)


def layer_names(targets: Sequence[str]) -> dict[str, str]:
    """Return the name of each target's layer: its kind, numbered if several have that kind."""
    kinds = [target.split()[0].partition(":")[0] for target in targets]
    counts, seen = Counter(kinds), Counter[str]()
    layers = {}
    for target, kind in zip(targets, kinds, strict=True):
        seen[kind] += 1
        layers[target] = kind if counts[kind] == 1 else f"{kind}-{seen[kind]}"
    return layers


def save_annotated(proto: onnx.ModelProto, file: Path) -> None:
    """Write a model; what one protobuf file cannot hold goes into `FILE.data` beside it.

    Raises:
        SettingError: The file cannot be written.
    """
    data = Path(f"{file}.data")
    is_big = proto.ByteSize() > _PROTOBUF_LIMIT
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if is_big:
            data.unlink(missing_ok=True)  # onnx would append to it
        onnx.save_model(proto, file, save_as_external_data=is_big, location=data.name)
    except OSError as error:
        raise SettingError(
            f"cannot write {str(file)!r}: {error.strerror or error}",
            hint="choose a writable folder",
        ) from error


def _node_names(model: ModelLike) -> dict[str, str]:
    """Return the names that loading gives to the nodes, by their first outputs."""
    return {
        next((value.name for value in node.outputs if value.name), ""): node.name or ""
        for node in parse(model).graph
    }


def _first_output(node: onnx.NodeProto) -> str:
    return next((name for name in node.output if name), "")


def _copy(model: ModelLike) -> onnx.ModelProto:
    if isinstance(model, ir.Model):
        return ir.to_proto(model)
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    if isinstance(model, str | os.PathLike):
        try:
            return onnx.load(model)  # its paths were checked when it was parsed
        except (OSError, ValueError) as error:
            raise ModelError(f"the model cannot be read: {error}") from error
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    return proto


def _declare(proto: onnx.ModelProto, devices: Sequence[str]) -> None:
    kept = [item for item in proto.configuration if item.name != CONFIGURATION]
    del proto.configuration[:]
    proto.configuration.extend(kept)
    proto.configuration.add(name=CONFIGURATION, num_devices=len(devices), device=devices)
    proto.ir_version = max(proto.ir_version, _DEVICES_IR_VERSION)
    for node in proto.graph.node:
        others = [i for i in node.device_configurations if i.configuration_id != CONFIGURATION]
        del node.device_configurations[:]
        node.device_configurations.extend(others)
        entries = [i for i in node.metadata_props if i.key not in (DEVICE_KEY, LAYER_KEY)]
        del node.metadata_props[:]
        node.metadata_props.extend(entries)


def _set(node: onnx.NodeProto, entries: Mapping[str, str]) -> None:
    for key, value in entries.items():
        node.metadata_props.add(key=key, value=value)


def _configure(node: onnx.NodeProto, device: int, stage: int) -> None:
    item = node.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=stage)
    for name in node.output:
        if name:
            item.sharding_spec.add(tensor_name=name, device=[device])
