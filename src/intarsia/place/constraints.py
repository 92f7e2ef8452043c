# SPDX-License-Identifier: Apache-2.0
"""Where nodes may run: what the user said of a prepared graph, and what memories add to it.

An operator runs on one device: what it reads is there, and what it makes is there. A value that is
read elsewhere is copied, once for each destination, so what is said of a node binds that node and
no other. Three things bind more:

* A value that cannot be copied (a sequence, a string, a tensor whose shape is only known while
  running) keeps its maker and its readers in one memory. The host gives the model's inputs and
  takes its outputs, so such an input or output keeps them in the host's.
* An annotation inside a body of If, Loop or Scan holds for the whole operator, unless the plan runs
  the operator itself: then the bodies are placed as graphs of their own.
* Small integers that only make shapes are computed on the host, which has to know them.

All else is the policy's: a node of which nothing is said is where the policy puts it.

Inputs and outputs may be given and taken in a device's memory. They are named as `input:NAME` and
`output:NAME`; an input also by its name alone, and so is an output, unless a node has that name:
then the node is meant.

Source:
    Row 110 to 125 of the contract of the target system (docs/target_rows.md).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from intarsia.errors import PlacementError
from intarsia.graph.annotate import nearest_names
from intarsia.graph.indices import shape_nodes
from intarsia.graph.metadata import DEVICE_KEY, name_matches
from intarsia.hashing import digest
from intarsia.place.machine import find_targets, memory_domains
from intarsia.plan.devices import HOST_DOMAIN, domain_text

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.graph.graph import Graph, Node, Value
    from intarsia.place.annotations import Annotations
    from intarsia.place.machine import Machine
    from intarsia.place.request import Exclusions
    from intarsia.target import CompilationConfig, PlacedTarget
    from intarsia.target.placed import MemoryDomain


_SHOWN = 5
"""Of a long path, how much of each end is shown."""
_HOST = "the host, which has the model's inputs and outputs"

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
class MemoryGroup:
    """Nodes that have to share a memory, because a value between them cannot be copied.

    Attributes:
        nodes: Their ids, ascending.
        value: Name of one such value.
        on_host: Whether one of them is an input or an output of the model.
    """

    nodes: tuple[int, ...]
    value: str
    on_host: bool


@dataclass(frozen=True, slots=True)
class Constraints:
    """Where nodes may run.

    Attributes:
        domains: By target, the memory in which its tensors lie.
        said: By node id, the only targets that the node may have, as the user said of it.
        pins: The same, also for nodes that share a memory with one of these.
        exclusions: By target, the nodes that it must not have, with the words that said so.
        groups: Nodes that have to share a memory.
        shapes: Nodes that compute shapes, where the host's memory is not the only one: they are
            the host's, unless something was said of them.
        borders: By value id, the memory of each input and output that is not the host's.
        digest: Hash of what the user said of nodes, inputs and outputs; empty if nothing.
    """

    domains: Mapping[PlacedTarget, MemoryDomain]
    said: Mapping[int, Pin] = field(default_factory=dict)
    pins: Mapping[int, Pin] = field(default_factory=dict)
    exclusions: Mapping[PlacedTarget, Mapping[int, str]] = field(default_factory=dict)
    groups: tuple[MemoryGroup, ...] = ()
    shapes: frozenset[int] = frozenset()
    borders: Mapping[int, MemoryDomain] = field(default_factory=dict)
    digest: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the user said nothing of any node, input or output."""
        return not self.digest


def resolve_constraints(
    graph: Graph,
    machine: Machine,
    annotations: Annotations,
    exclude: Exclusions = (),
    steps: Mapping[int, str] | None = None,
) -> Constraints:
    """Return where the nodes of a prepared graph may run. Linear in it, and without recursion.

    Args:
        graph: Made of a model that was annotated.
        machine: Where it is to run.
        annotations: What `annotate_model` returned.
        exclude: What must not run where.
        steps: By id, the nodes whose bodies are placed apart, with the digest of what was said of
            nodes inside.

    Raises:
        PlacementError: An exclusion matches nothing, or forbids what a pin demands. Two nodes that
            have to share a memory were put into different ones; names both and the path between
            them. Or an input or output cannot be in the memory that was named for it.
        TargetError: A target is not one of the machine's.
    """
    config = machine.config
    inner = steps or {}
    said = _pins_of(graph, config, annotations, inner)
    exclusions = _exclusions_of(graph, config, annotations, exclude, said)
    domains = memory_domains(config, machine.backends)
    borders = _place_borders(graph, annotations, config, domains)
    of_said = _digest_of(graph, said, exclusions, borders, inner)
    if set(domains.values()) == {HOST_DOMAIN}:
        return Constraints(domains, said, said, exclusions, borders=borders, digest=of_said)
    pins = dict(said)
    groups = _group_by_memory(graph, pins, domains)
    shapes = shape_nodes(graph)
    return Constraints(domains, said, pins, exclusions, groups, shapes, borders, of_said)


def _digest_of(
    graph: Graph,
    pins: Mapping[int, Pin],
    exclusions: Mapping[PlacedTarget, Mapping[int, str]],
    borders: Mapping[int, MemoryDomain],
    inner: Mapping[int, str],
) -> str:
    """Return a hash of what the user said of nodes, inputs and outputs; empty if nothing."""
    nodes, values = graph.nodes, graph.values
    parts = [
        f"{nodes[node].name}={'|'.join(map(str, pin.targets))}"
        for node, pin in sorted(pins.items())
    ]
    for target, excluded in sorted(exclusions.items(), key=lambda item: str(item[0])):
        parts += [f"{nodes[node].name}!{target}" for node in sorted(excluded)]
    parts += [f"{values[value].name}@{domain_text(borders[value])}" for value in sorted(borders)]
    parts += [f"{nodes[node].name}/{said}" for node, said in sorted(inner.items()) if said]
    return digest(parts) if parts else ""


def _pins_of(
    graph: Graph, config: CompilationConfig, annotations: Annotations, steps: Collection[int]
) -> dict[int, Pin]:
    """Return by node id what its annotation says, and those inside its bodies."""
    pins: dict[int, Pin] = {}
    _say_what_vanished(graph, annotations.words)
    for node in graph.nodes:
        if node.device is not None:
            words = next(
                (annotations.words[name] for name in _names(node) if name in annotations.words), ""
            )
            pins[node.id] = Pin(
                find_targets(config, node.device, f"node {node.name!r}"),
                words or "annotation",
                words or f"annotation {node.device!r}",
            )
        if node.id in steps:
            continue
        for inner, device in annotated_inside(node.ir, graph.model.functions):
            pins[node.id] = _with_inner(node, pins.get(node.id), config, inner, device)
    return pins


def _exclusions_of(
    graph: Graph,
    config: CompilationConfig,
    annotations: Annotations,
    exclude: Exclusions,
    pins: Mapping[int, Pin],
) -> dict[PlacedTarget, dict[int, str]]:
    """Return by target the nodes that it must not have, with the words that said so."""
    exclusions: dict[PlacedTarget, dict[int, str]] = {}
    operators = annotations.operators
    names = (*operators, *operators.values())
    for text, pattern in _exclusion_pairs(exclude):
        words = f"exclude '{text}:{pattern}'"
        targets = find_targets(config, text, words)
        matched = [node for node in graph.nodes if _is_meant(node, pattern, operators)]
        if not matched and not any(name_matches(name, pattern) for name in names):
            raise PlacementError(
                f"{words} matches no operator and no node",
                target=text,
                hint=nearest_names(
                    pattern, (*{node.op_type: None for node in graph.nodes}, *names)
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
    return exclusions


def _with_inner(
    node: Node, pin: Pin | None, config: CompilationConfig, inner: tuple[str, ...], device: str
) -> Pin:
    """Return the pin of a node, combined with an annotation inside its bodies.

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
    """Whether a pattern matches a node, or one of its origins, by name or by operator."""
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


def _group_by_memory(
    graph: Graph, pins: dict[int, Pin], domains: Mapping[PlacedTarget, MemoryDomain]
) -> tuple[MemoryGroup, ...]:
    """Return the nodes that have to share a memory; what was said of some is then said of all."""
    groups = []
    for items in _components(graph):
        nodes = tuple(sorted(item.id for item in items if item.is_node))
        touching = [item for item in items if not item.is_node and _is_at_border(graph, item.id)]
        value = graph.values[next(item.id for item in items if not item.is_node)].name
        groups.append(MemoryGroup(nodes, value, on_host=bool(touching)))
        said = [_Item(node, is_node=True) for node in nodes if node in pins]
        if said:
            _spread(graph, said, touching, nodes, pins, domains)
    return tuple(groups)


def is_copyable(value: Value) -> bool:
    """Tell whether a value can go from one memory to another: a dense tensor of known size."""
    return value.is_static and value.dtype != "string"


@dataclass(frozen=True, slots=True)
class _Item:
    """A node, or a value that cannot be copied: what a path leads over."""

    id: int
    is_node: bool


def _components(graph: Graph) -> list[list[_Item]]:
    """Return what hangs together by values that cannot be copied, in the graph's order."""
    seen: set[_Item] = set()
    components = []
    for value in graph.values:
        item = _Item(value.id, is_node=False)
        if item in seen or not _binds(graph, value.id):
            continue
        reached = list(_search(graph, item))
        seen.update(reached)
        if any(other.is_node for other in reached):
            components.append(reached)
    return components


def _search(graph: Graph, start: _Item) -> dict[_Item, _Item | None]:
    """Return what hangs together with an item, nearest first, each with the item before it."""
    before: dict[_Item, _Item | None] = {start: None}
    queue = deque([start])
    while queue:
        item = queue.popleft()
        for other in _neighbours(graph, item):
            if other not in before:
                before[other] = item
                queue.append(other)
    return before


def _neighbours(graph: Graph, item: _Item) -> list[_Item]:
    if not item.is_node:
        value = graph.values[item.id]
        nodes = ((value.producer,) if value.producer >= 0 else ()) + value.consumers
        return [_Item(node, is_node=True) for node in nodes]
    node = graph.nodes[item.id]
    values = dict.fromkeys((*node.reads, *(value for value in node.outputs if value >= 0)))
    return [_Item(value, is_node=False) for value in values if _binds(graph, value)]


def _binds(graph: Graph, value_id: int) -> bool:
    value = graph.values[value_id]
    return value.constant is None and not is_copyable(value)


def _is_at_border(graph: Graph, value_id: int) -> bool:
    return graph.values[value_id].producer < 0 or value_id in graph.output_set


def _spread(
    graph: Graph,
    said: Sequence[_Item],
    touching: Sequence[_Item],
    nodes: Sequence[int],
    pins: dict[int, Pin],
    domains: Mapping[PlacedTarget, MemoryDomain],
) -> None:
    """Give the nodes of a group the memory that was said for some of them."""
    allowed, deciding = _allowed(said[0], pins, domains), said[0]
    for item in (*said[1:], *touching[:1]):
        mine = _allowed(item, pins, domains)
        both = [domain for domain in allowed if domain in mine]
        if not both:
            raise _contradiction(graph, deciding, item, pins)
        if len(both) < len(allowed):
            allowed, deciding = both, item
    source = said[0] if not deciding.is_node else deciding
    first = pins[source.id]
    targets = tuple(target for target, domain in domains.items() if domain in allowed)
    why = f"{first.why} of {graph.nodes[source.id].name!r}"
    for node in nodes:
        pin = pins.get(node)
        if pin is None:
            pins[node] = replace(first, targets=targets, why=why)
        else:
            kept = tuple(target for target in pin.targets if domains[target] in allowed)
            pins[node] = replace(pin, targets=kept)


def _allowed(
    item: _Item, pins: Mapping[int, Pin], domains: Mapping[PlacedTarget, MemoryDomain]
) -> list[MemoryDomain]:
    if not item.is_node:
        return [HOST_DOMAIN]
    return list(dict.fromkeys(domains[target] for target in pins[item.id].targets))


def _contradiction(
    graph: Graph, one: _Item, other: _Item, pins: Mapping[int, Pin]
) -> PlacementError:
    before = _search(graph, one)
    path: list[str] = []
    item: _Item | None = other
    while item is not None:
        path.append(
            graph.nodes[item.id].name if item.is_node else f"{graph.values[item.id].name!r}"
        )
        item = before[item]
    if len(path) > 2 * _SHOWN:
        path[_SHOWN:-_SHOWN] = [f"... {len(path) - 2 * _SHOWN} more ..."]
    sides = [
        f"{pins[item.id].said} (node {graph.nodes[item.id].name!r})" if item.is_node else _HOST
        for item in (one, other)
    ]
    node = graph.nodes[(one if one.is_node else other).id]
    return PlacementError(
        f"{sides[0]} contradicts {sides[1]}: they have to share a memory, because what lies "
        f"between cannot be copied: {' -> '.join(reversed(path))}",
        node=node.name,
        target=str(pins[node.id].targets[0]),
        hint="put both on one device, or remove one of the two",
    )


def _place_borders(
    graph: Graph,
    annotations: Annotations,
    config: CompilationConfig,
    domains: Mapping[PlacedTarget, MemoryDomain],
) -> dict[int, MemoryDomain]:
    """Return by value id the memory of each input and output that is not the host's.

    Raises:
        PlacementError: A value cannot be on a device, or is both an input and an output and is
            to be in two memories.
        TargetError: What was said is not a target or device of the machine.
    """
    borders: dict[int, MemoryDomain] = {}
    sides = {"input": graph.inputs, "output": graph.outputs}
    ids = {(what, graph.values[i].name): i for what, some in sides.items() for i in some}
    for key, (text, words) in annotations.borders.items():
        what, name = key
        targets = find_targets(config, text, f"{what} {name!r}")
        domain = domains[targets[0]]
        if domain == HOST_DOMAIN:
            continue
        value = graph.values[ids[key]]
        problem = _problem(value)
        if problem:
            raise PlacementError(
                f"{what} {name!r} cannot be on {text}: {problem} ({words})",
                target=text,
                hint="leave it in the host's memory",
            )
        if borders.setdefault(value.id, domain) != domain:
            raise PlacementError(
                f"{name!r} is an input and an output, and was put into two memories ({words})",
                target=text,
                hint="annotate both alike, or put an Identity between them",
            )
    return borders


def _problem(value: Value) -> str:
    """Return why a value cannot be in a device's memory; empty if it can."""
    if value.constant is not None:
        return "it is a constant of the program"
    return "" if is_copyable(value) else "only dense tensors of known size can be copied"
