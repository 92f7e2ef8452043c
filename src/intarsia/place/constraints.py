# SPDX-License-Identifier: Apache-2.0
"""What the user said about where nodes may run: pins, annotations, exclusions.

Pins are written onto the loaded model before it is prepared, as the same metadata that
`on_device` writes, so that no rewrite merges nodes that must run apart. Annotations may stand in
bodies, in functions, and on edges: an explicit copy is an Identity annotated `SOURCE ->
DESTINATION`; what makes its input is on the source, and what reads its output on the destination.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.graph.annotate import find_border, hint_inside, nearest_names
from intarsia.graph.inline import calls_of
from intarsia.graph.metadata import DEVICE_KEY, name_matches
from intarsia.place.devices import Borders, find_targets
from intarsia.place.foreign import annotate_foreign

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.graph.graph import Graph, Node
    from intarsia.place.request import Exclusions, Request
    from intarsia.target import CompilationConfig, PlacedTarget


logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class Pin:
    """Where a node has to run, and who said so.

    Attributes:
        targets: What it may run on, in the user's order; several if only a device was named.
        why: Who said so, as `explain` prints it.
        said: The same with the user's own words, for errors.
    """

    targets: tuple[PlacedTarget, ...]
    why: str
    said: str


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the user said, by node id.

    Attributes:
        pins: The only targets that a node may have.
        exclusions: By target, the nodes that it must not have, with the words that said so.
    """

    pins: Mapping[int, Pin]
    exclusions: Mapping[PlacedTarget, Mapping[int, str]]


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
    borders: Borders
    operators: Mapping[str, str]


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
    operators = {node.name or "": node.op_type for node in model.graph}
    operators |= {call.name: call.op_type for node in model.graph for call in calls_of(node)}
    pins, borders = take_borders(model, request.pins or {})
    copied = resolve_copies(model, config)
    annotate_calls(model, config, copied)
    words = annotate_pins(model, pins, config, copied)
    words |= annotate_foreign(model, request.layers or {}, config)
    return Annotations(words, borders, operators)


def take_borders(model: ir.Model, pins: Mapping[str, str]) -> tuple[dict[str, str], Borders]:
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
    nodes = list(model.graph)
    for pattern, text in pins.items():
        words = f"pin '{pattern}={text}'"
        meant = find_targets(config, text, words)
        matched = [node for node in nodes if _is_named(node, pattern)]
        if not matched:
            raise PlacementError(
                f"{words} matches no node",
                hint=hint_inside(nodes, pattern)
                or nearest_names(pattern, (node.name or "" for node in nodes)),
            )
        for node in matched:
            name = node.name or ""
            before = why.get(name, f"the annotation {node.metadata_props.get(DEVICE_KEY)!r}")
            narrow_annotation(node, config, text, meant, (words, before))
            why.setdefault(name, words)
    return why


def resolve_constraints(
    graph: Graph,
    config: CompilationConfig,
    annotations: Annotations,
    exclude: Exclusions = (),
) -> Constraints:
    """Return what the annotations of a prepared graph and the exclusions say.

    Args:
        graph: Made of a model that was annotated.
        config: The machine.
        annotations: What `annotate_model` returned.
        exclude: What must not run where.

    Raises:
        PlacementError: An exclusion matches nothing, or forbids what a pin demands.
        TargetError: A target is not one of the machine's.
    """
    pins: dict[int, Pin] = {}
    pinned, operators = annotations.words, annotations.operators
    _say_what_vanished(graph, pinned)
    for node in graph.nodes:
        if node.device is not None:
            words = next((pinned[name] for name in _names(node) if name in pinned), "")
            pins[node.id] = Pin(
                find_targets(config, node.device, f"node {node.name!r}"),
                words or "annotation",
                words or f"annotation {node.device!r}",
            )
        for inner, device in annotated_inside(node.ir, graph.model.functions):
            pins[node.id] = _with_inner(node, pins.get(node.id), config, inner, device)
    exclusions: dict[PlacedTarget, dict[int, str]] = {}
    known = (*operators, *operators.values())
    for text, pattern in _exclusion_pairs(exclude):
        words = f"exclude '{text}:{pattern}'"
        targets = find_targets(config, text, words)
        matched = [node for node in graph.nodes if _is_meant(node, pattern, operators)]
        if not matched and not any(name_matches(name, pattern) for name in known):
            raise PlacementError(
                f"{words} matches no operator and no node",
                target=text,
                hint=nearest_names(
                    pattern, (*{node.op_type: None for node in graph.nodes}, *known)
                ),
            )
        for node in matched:
            for target in targets:
                exclusions.setdefault(target, {}).setdefault(node.id, words)
            pin = pins.get(node.id)
            if pin and all(node.id in exclusions.get(target, ()) for target in pin.targets):
                raise PlacementError(
                    f"node {node.name!r}: {words} contradicts {pin.said}",
                    node=node.name,
                    target=str(pin.targets[0]),
                    hint="remove one of the two, or narrow its pattern",
                )
    return Constraints(pins, exclusions)


def _is_named(node: ir.Node, pattern: str) -> bool:
    """Whether a pattern means a node, or a call in whose place it stands."""
    names = (node.name or "", *(call.name for call in calls_of(node)))
    return any(name_matches(name, pattern) for name in names)


def _with_inner(
    node: Node, pin: Pin | None, config: CompilationConfig, inner: tuple[str, ...], device: str
) -> Pin:
    """Return what is said of a node, and of one inside its bodies.

    Raises:
        PlacementError: The two contradict; names both and the way from one to the other.
    """
    said = f"annotation {device!r} of {inner[-1]!r}"
    meant = find_targets(config, device, f"node {inner[-1]!r}")
    if pin is None:
        return Pin(meant, said, said)
    both = tuple(target for target in pin.targets if target in meant)
    if not both:
        raise PlacementError(
            f"node {node.name!r}: {said} contradicts {pin.said}: a body runs where its "
            f"operator runs: {' -> '.join((node.name, *inner))}",
            node=node.name,
            target=str(meant[0]),
            hint="put both on one device, or remove one of the two",
        )
    return Pin(both, pin.why, pin.said)


def _say_what_vanished(graph: Graph, pinned: Mapping[str, str]) -> None:
    """Warn of pins of which no node is left: what they named was computed when compiling."""
    present = {name for node in graph.nodes for name in _names(node)}
    kept = {words for name, words in pinned.items() if name in present}
    for words in dict.fromkeys(pinned.values()):
        if words not in kept:
            logger.warning("%s has no effect: its nodes were folded away before placement", words)


def _names(node: Node) -> tuple[str, ...]:
    return (node.name, *node.origins)


def _is_meant(node: Node, pattern: str, operators: Mapping[str, str]) -> bool:
    """Whether a pattern means a node, or one that it stands for, by name or by operator."""
    names = _names(node)
    meant = (node.op_type, *names, *(operators.get(name, "") for name in names))
    return any(name_matches(text, pattern) for text in meant)


def _exclusion_pairs(exclude: Exclusions) -> list[tuple[str, str]]:
    if isinstance(exclude, str):
        exclude = (exclude,)
    if isinstance(exclude, Mapping):
        return [
            (target, pattern)
            for target, patterns in exclude.items()
            for pattern in ((patterns,) if isinstance(patterns, str) else patterns)
        ]
    return [_split_exclusion(text) for text in exclude]


def _split_exclusion(text: str) -> tuple[str, str]:
    target, colon, pattern = text.partition(":")
    ordinal, second_colon, rest = pattern.partition(":")
    if second_colon and ordinal.isdecimal():  # the ordinal of a placed target
        target, pattern = f"{target}:{ordinal}", rest
    if not (target and colon and pattern):
        raise PlacementError(
            f"exclusion {text!r} is not TARGET:OPERATOR",
            hint="write for example openvino:Resize, or openvino:layer4/*",
        )
    return target, pattern


ARROW = "->"


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
    """Annotate a node, unless what is there already says as much or more.

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


def annotated_inside(
    node: ir.Node, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the way to each annotated node in the bodies and functions of a node, and its device.

    Args:
        node: Of the graph.
        functions: The model's.
    """
    stack: list[tuple[tuple[str, ...], ir.Node]] = [((), node)]
    while stack:
        way, outer = stack.pop()
        parts = [
            (name, attribute.as_graph())
            for name, attribute in outer.attributes.items()
            if not attribute.is_ref() and attribute.type.name == "GRAPH"
        ]
        called = functions.get(outer.op_identifier())
        parts += [] if called is None else [(called.name, called.graph)]
        for name, graph in parts:
            for inner in graph:
                path = (*way, name, inner.name or inner.op_type)
                if DEVICE_KEY in inner.metadata_props:
                    yield path, inner.metadata_props[DEVICE_KEY]
                stack.append((path, inner))
