# SPDX-License-Identifier: Apache-2.0
"""Annotations that stand elsewhere than on a node of the graph: in bodies, in functions, on edges.

An explicit copy is an Identity annotated `SOURCE -> DESTINATION`: what makes its input is on the
source, and what reads its output is on the destination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.graph.inline import calls_of
from intarsia.graph.metadata import DEVICE_KEY
from intarsia.place.devices import find_targets

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.target import CompilationConfig, PlacedTarget

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
