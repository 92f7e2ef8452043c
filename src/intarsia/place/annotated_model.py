# SPDX-License-Identifier: Apache-2.0
"""The user's model, annotated with where its nodes were placed, for other systems to read.

Source:
    onnx.proto3, `DeviceConfigurationProto` and `NodeDeviceConfigurationProto` (IR version 11);
    ONNX Runtime, session option `session.layer_assignment_settings`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import onnx
import onnx_ir as ir

from intarsia.errors import ModelError, PlacementError, SettingError
from intarsia.files import ModelFile, whole_file, writing_hint
from intarsia.graph.external import check_external_data, read_in, root_of
from intarsia.graph.load import ModelLike, parse
from intarsia.graph.metadata import DEVICE_KEY, LAYER_KEY, SUMMARY_KEY, WHY_KEYS
from intarsia.graph.read import read_file
from intarsia.plan.placement import CONTROL_FLOW, Placement

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
    its region. A node that was folded away gets none of these, nor does a call of a function whose
    nodes are on several targets: the annotations inside the function stay.

    For people, each node gets its region, its backend, why it is there, and which targets refused
    it (`WHY_KEYS`), the model one line on all (`SUMMARY_KEY`), and a node without a name the one
    that explanations and traces call it by. Netron shows all of these, and the same of outputs.

    What was there under these keys is replaced, everything else stays; external data is read in.

    Args:
        model: The model that was compiled, in any form that `compile` takes.
        placed: An executable, or its placement.

    Raises:
        ModelError: The model cannot be read or is invalid.
        PlacementError: The placement is of another model.
    """
    placement = placed if isinstance(placed, Placement) else placed.placement
    names = node_names(model)
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
    devices = list(
        dict.fromkeys(one.target for one in placement.regions if one.backend != CONTROL_FLOW)
    )
    layers = layer_names(devices)
    _declare(proto, devices)
    counts = [(count, target) for target, count in placement.coverage().items() if count]
    summary = ", ".join(f"{count} on {target}" for count, target in counts)
    text = f"{placement.node_count} nodes in {len(placement.regions)} regions: {summary}"
    proto.metadata_props.add(key=SUMMARY_KEY, value=text)
    split = _split_calls(proto, placement)
    reasons = _reasons(placement)
    for node in proto.graph.node:
        name = names[_first_output(node)]
        node.name = name
        _set(node, reasons.get(name, _ABSENT))
        index = regions.get(name)
        if index is None or name in split:
            continue
        if placement.regions[index].backend != CONTROL_FLOW:
            target = placement.regions[index].target
            _set(node, {DEVICE_KEY: target, LAYER_KEY: layers[target]})
            _configure(node, devices.index(target), index)
    return proto


_ABSENT = {WHY_KEYS["why"]: "no part of the program: computed while compiling, or of no use"}


def _reasons(placement: Placement) -> dict[str, dict[str, str]]:
    """Return what people may want to read on each node of the user's model, by its name."""
    refused: dict[str, list[str]] = {}
    for refusal in placement.refusals:
        text = f"{refusal.target}: {refusal.reason} ({refusal.code.value})"
        refused.setdefault(refusal.node, []).append(text)
    found: dict[str, dict[str, dict[str, None]]] = {}
    count = len(placement.regions)
    for index, region in enumerate(placement.regions):
        for node in region.nodes:
            told = {
                "region": [f"{index} (there are {count})"],
                "backend": [region.backend],
                "why": [node.why],
                "refused": refused.get(node.name, []),
                "computed": [f"{node.op_type} {node.name}"],
            }
            for origin in node.origins:
                for what, texts in told.items():
                    found.setdefault(origin, {}).setdefault(what, {}).update(dict.fromkeys(texts))
    return {
        origin: {WHY_KEYS[what]: "; ".join(texts) for what, texts in told.items() if texts}
        for origin, told in found.items()
    }


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
        kind = onnx.serialization.registry.get_format_from_file_extension(file.suffix)
        with whole_file(file) as draft:
            onnx.save_model(proto, draft, kind, save_as_external_data=is_big, location=data.name)
    except OSError as error:
        raise SettingError(
            f"cannot write {str(file)!r}: {error.strerror or error}",
            hint=writing_hint(error),
        ) from error


def node_names(model: ModelLike) -> dict[str, str]:
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
    if isinstance(model, ModelFile):
        proto = read_file(model)
        read_in(proto, check_external_data(proto, model.path.parent, root_of(model)))
        return proto
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
    own_line = [i for i, entry in enumerate(proto.metadata_props) if entry.key == SUMMARY_KEY]
    for position in reversed(own_line):
        del proto.metadata_props[position]
    ours = (DEVICE_KEY, LAYER_KEY, *WHY_KEYS.values())
    for node in proto.graph.node:
        others = [i for i in node.device_configurations if i.configuration_id != CONFIGURATION]
        del node.device_configurations[:]
        node.device_configurations.extend(others)
        entries = [i for i in node.metadata_props if i.key not in ours]
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
