# SPDX-License-Identifier: Apache-2.0
"""What was said of where nodes may run, written onto the loaded model before it is prepared.

All of it becomes the metadata that `on_device` writes, so that no rewrite merges nodes that must
run apart. Annotations may stand in bodies, in functions, and on edges: an explicit copy is an
Identity annotated `SOURCE -> DESTINATION`; what makes its input is on the source, and what reads
its output on the destination.

Pins win over our annotations, and what other systems wrote is a default beneath both: ONNX's
`configuration` and `device_configurations`, then ONNX Runtime's `layer_ann`.

Source:
    onnx.proto3, `DeviceConfigurationProto` and `NodeDeviceConfigurationProto` (IR version 11);
    ONNX Runtime, session option `session.layer_assignment_settings`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from intarsia.errors import PlacementError, TargetError
from intarsia.graph.annotate import find_border, nearest_names
from intarsia.graph.inline import calls_of
from intarsia.graph.metadata import DEVICE_KEY, LAYER_KEY, name_matches
from intarsia.place.machine import find_targets

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.place.request import Request
    from intarsia.target import CompilationConfig, PlacedTarget

EXACT = "="
"""Before a layer's name: the whole name is meant, and not all that begin with it."""
ARROW = "->"

logger = logging.getLogger("intarsia")

SaidOfEnds: TypeAlias = Mapping[tuple[str, str], tuple[str, str]]
"""By `input` or `output` and a name: the text of a device, and the words that said it."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """What was said of a loaded model, beside what is written on its nodes now.

    Attributes:
        words: By node name, the words that pinned or annotated it.
        borders: What was said of inputs and outputs.
        operators: By name, the operators of the nodes before the model is prepared: an exclusion
            holds for what a node stands for, and one that matches a node that was folded away is
            no mistake.
    """

    words: Mapping[str, str]
    borders: SaidOfEnds
    operators: Mapping[str, str]

    def of(self, model: ir.Model) -> Annotations:
        """Return what was said of the nodes of a model, without those in bodies, or of a body."""
        names = {node.name for node in model.graph}
        ends = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
        return replace(
            self,
            words={name: words for name, words in self.words.items() if name in names},
            borders={key: said for key, said in self.borders.items() if key[1] in ends},
        )


def annotate_model(model: ir.Model, request: Request, config: CompilationConfig) -> Annotations:
    """Write all that was said of nodes onto the nodes of a loaded model, in place.

    Pins win over annotations of ours; what other systems wrote is a default beneath both.

    Args:
        model: Ours to change.
        request: What the user said.
        config: The machine.

    Raises:
        PlacementError: Something matches nothing, or contradicts something else.
        TargetError: What was said is none of the machine's targets or devices.
    """
    operators = {node.name or "": node.op_type for node in model.graph.all_nodes()}
    operators |= {call.name: call.op_type for node in model.graph for call in calls_of(node)}
    pins, borders = take_borders(model, request.pins or {})
    copied = resolve_copies(model, config)
    annotate_calls(model, config, copied)
    words = annotate_pins(model, pins, config, copied)
    words |= annotate_foreign(model, request.layers or {}, config)
    return Annotations(words, borders, operators)


def take_borders(model: ir.Model, pins: Mapping[str, str]) -> tuple[dict[str, str], SaidOfEnds]:
    """Return the pins that are of nodes, and what pins and annotations say of inputs and outputs.

    Args:
        model: As it was loaded; what it says may not outlive its preparation.
        pins: From a name or a pattern to the text of a target.

    Raises:
        PlacementError: A pin contradicts an annotation, or names no input or output.
    """
    said: dict[tuple[str, str], tuple[str, str]] = {}
    for what, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
        for value in values:
            text = value.metadata_props.get(f"{DEVICE_KEY}.{what}")
            if text is not None:
                said[what, value.name or ""] = (text, f"annotation {text!r} of {what}")
    of_nodes = {}
    for pattern, text in pins.items():
        found = find_border(model, pattern)
        if found is None:
            of_nodes[pattern] = text
            continue
        key, words = (found[0], found[1].name or ""), f"pin '{pattern}={text}'"
        before = said.setdefault(key, (text, words))
        if before[0] != text:
            raise PlacementError(
                f"{key[0]} {key[1]!r}: {words} contradicts {before[1]}",
                target=text,
                hint="remove one of the two",
            )
    return of_nodes, said


def annotate_pins(
    model: ir.Model,
    pins: Mapping[str, str],
    config: CompilationConfig,
    said: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write pins onto the nodes of a loaded model, in place.

    Args:
        model: Ours to change.
        pins: From a glob over node names to the text of a target of `config`.
        config: The machine.
        said: By node name, the words that annotated it before.

    Returns:
        By node name, the words that pinned it, or annotated it before.

    Raises:
        PlacementError: A pattern matches no node, or two say different things of one node.
        TargetError: A target is not one of the machine's.
    """
    why = dict(said or {})
    nodes = list(model.graph.all_nodes())
    for pattern, text in pins.items():
        words = f"pin '{pattern}={text}'"
        meant = find_targets(config, text, words)
        matched = [node for node in nodes if _is_named(node, pattern)]
        if not matched:
            raise PlacementError(
                f"{words} matches no node",
                hint=nearest_names(pattern, (node.name or "" for node in nodes)),
            )
        for node in matched:
            name = node.name or ""
            before = why.get(name, f"the annotation {node.metadata_props.get(DEVICE_KEY)!r}")
            narrow_annotation(node, config, text, meant, (words, before))
            why.setdefault(name, words)
    return why


def _is_named(node: ir.Node, pattern: str) -> bool:
    """Whether a pattern means a node, or a call in whose place it stands."""
    names = (node.name or "", *(call.name for call in calls_of(node)))
    return any(name_matches(name, pattern) for name in names)


def annotate_calls(model: ir.Model, config: CompilationConfig, said: Mapping[str, str]) -> None:
    """Write what was said of a call onto the nodes that stand in its place.

    Args:
        model: Ours to change; its functions are inlined.
        config: The machine.
        said: By node name, the words that annotated it before.

    Raises:
        PlacementError: A call and a node inside are annotated with different devices.
        TargetError: An annotation is none of the machine's targets or devices.
    """
    for node in model.graph:
        name = node.name or ""
        for call in reversed(calls_of(node)):
            if call.device is None:
                continue
            words = f"annotation {call.device!r} of the call {call.name!r}"
            meant = find_targets(config, call.device, f"node {call.name!r}")
            before = said.get(name, f"annotation {node.metadata_props.get(DEVICE_KEY)!r}")
            narrow_annotation(node, config, call.device, meant, (words, before))


def resolve_copies(model: ir.Model, config: CompilationConfig) -> dict[str, str]:
    """Turn explicit copies into annotations of what makes and what reads the copied value.

    The Identity itself goes, unless it makes an output of the model: the plan has a copy where the
    two sides are in different memories, and none where they are in one.

    Args:
        model: Ours to change.
        config: The machine.

    Returns:
        By node name, the words that annotated it.

    Raises:
        PlacementError: Such an annotation is not on an Identity, or contradicts another.
        TargetError: A side is not one of the machine's targets or devices.
    """
    copies = [node for node in model.graph if _is_copy(node)]
    owners = _owners(model) if copies else {}
    words: dict[str, str] = {}
    for copy in copies:
        _annotate_sides(copy, config, owners, words)
    for copy in copies:
        result = copy.outputs[0]
        if result.is_graph_output():
            copy.metadata_props[DEVICE_KEY] = _sides(copy)[1]
        else:
            result.replace_all_uses_with(copy.inputs[0])  # type: ignore[arg-type]
            model.graph.remove(copy, safe=True)
    return words


def narrow_annotation(
    node: ir.Node,
    config: CompilationConfig,
    text: str,
    meant: Sequence[PlacedTarget],
    words: tuple[str, str],
) -> None:
    """Annotate a node, unless its annotation is already as narrow or narrower.

    Args:
        node: Ours to change.
        config: The machine.
        text: What is to be written.
        meant: Its targets.
        words: Who says so, and who wrote what is there.

    Raises:
        PlacementError: No target is meant by both.
        TargetError: What is there means none.
    """
    name = node.name or ""
    present = node.metadata_props.get(DEVICE_KEY)
    known = meant if present is None else find_targets(config, present, f"node {name!r}")
    both = [target for target in meant if target in known]
    if not both:
        raise PlacementError(
            f"node {name!r}: {words[0]} contradicts {words[1]}",
            node=name,
            target=str(meant[0]),
            hint="remove one of the two, or narrow its pattern",
        )
    if present is None or len(both) < len(known) or len(both) == 1:
        node.metadata_props[DEVICE_KEY] = str(both[0]) if len(both) == 1 else text


def _is_copy(node: ir.Node) -> bool:
    return ARROW in node.metadata_props.get(DEVICE_KEY, "")


def _sides(copy: ir.Node) -> tuple[str, str]:
    source, _, destination = copy.metadata_props[DEVICE_KEY].partition(ARROW)
    return source.strip(), destination.strip()


def _owners(model: ir.Model) -> dict[ir.Node, ir.Node]:
    """Return the node of the graph to which each node belongs: itself, or that with its body."""
    from intarsia.graph.snapshot import node_bodies

    owners = {node: node for node in model.graph}
    for node in model.graph:
        for body in node_bodies(node):
            owners.update((inner, node) for inner in body.all_nodes())
    return owners


def _annotate_sides(
    copy: ir.Node,
    config: CompilationConfig,
    owners: Mapping[ir.Node, ir.Node],
    words: dict[str, str],
) -> None:
    said = f"copy {copy.name!r} ({copy.metadata_props[DEVICE_KEY]})"
    value = copy.inputs[0] if copy.inputs else None
    if (copy.domain, copy.op_type) != ("", "Identity") or value is None:
        raise PlacementError(
            f"node {copy.name!r}: a copy is an Identity, not {copy.op_type}: {said}",
            node=copy.name,
            hint="annotate it with one device, or put an Identity for the copy before it",
        )
    source, destination = (
        (side, find_targets(config, side, f"node {copy.name!r}")) for side in _sides(copy)
    )
    producer = value.producer()
    ends = [] if producer is None else [(producer, *source)]
    readers = dict.fromkeys(owners[use.node] for use in copy.outputs[0].uses())
    for node, text, meant in (*ends, *((reader, *destination) for reader in readers)):
        name = node.name or ""
        if not _is_copy(node):
            before = words.get(name, f"annotation {node.metadata_props.get(DEVICE_KEY)!r}")
            narrow_annotation(node, config, text, meant, (said, before))
            words.setdefault(name, said)
        elif node is not producer and not set(meant) & set(
            find_targets(config, _sides(node)[0], f"node {name!r}")
        ):
            raise PlacementError(
                f"{said} contradicts copy {name!r} ({node.metadata_props[DEVICE_KEY]}), which "
                f"reads what it copies: {copy.name} -> {name}",
                node=name,
                target=str(meant[0]),
                hint="let the second copy start where the first one ends",
            )


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
    chosen = _choose_configuration(model, config) if model.device_configurations else None
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
        except TargetError:  # a device type, perhaps: see below
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
