# SPDX-License-Identifier: Apache-2.0
"""Shapes to find in a graph, as data: a tree of operators, and a table of such trees.

A match can be run as one: what its inner nodes make is read by the match alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from intarsia.graph.ops import operator_of
from intarsia.graph.per_graph import per_graph

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node

ANY = "any"
CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Op:
    """An operator and what it reads.

    Attributes:
        types: Operator types, one of which the node has.
        inputs: Per input an `Op`, `ANY` or `CONSTANT`; further inputs may be anything. Two inputs
            of a commutative operator may stand in either order.
        domain: The operator's domain.
    """

    types: tuple[str, ...]
    inputs: tuple[Op | str, ...]
    domain: str

    def __init__(self, types: str | Sequence[str], *inputs: Op | str, domain: str = "") -> None:
        object.__setattr__(self, "types", (types,) if isinstance(types, str) else tuple(types))
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "domain", domain)


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that have the shape of a pattern.

    Attributes:
        graph: Where they are.
        nodes: In the order of the pattern: an operator before what it reads.
    """

    graph: Graph
    nodes: tuple[Node, ...]


Predicate: TypeAlias = Callable[[Match], bool]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A shape with a name.

    Attributes:
        name: Printed as the reason of a placement.
        shape: What to find; its operator makes the result.
        predicate: Says of a match whether it is meant; None means always.
    """

    name: str
    shape: Op
    predicate: Predicate | None = None


@dataclass(frozen=True, slots=True)
class PatternMatches:
    """What a table of patterns finds.

    Attributes:
        taken: By node id, the name of the pattern that has it.
        declined: By node id, the first pattern that matches it but whose predicate says no; for
            nodes that no pattern has.
        matches: Of each match that was taken the name of its pattern, and its nodes, ascending.
    """

    taken: dict[int, str]
    declined: dict[int, str]
    matches: tuple[tuple[str, tuple[int, ...]], ...] = ()


@per_graph
def find_patterns(graph: Graph, patterns: tuple[Pattern, ...]) -> PatternMatches:
    """Match a table of patterns; earlier ones have priority, and matches never overlap."""
    taken: dict[int, str] = {}
    declined: dict[int, str] = {}
    matches: list[tuple[str, tuple[int, ...]]] = []
    for pattern in patterns:
        for node in graph.nodes:
            free = (m for m in _matches(graph, node, pattern.shape) if not _is_used(m, taken))
            match = next(free, None)
            if match is None:
                continue
            if pattern.predicate is None or pattern.predicate(Match(graph, match)):
                taken.update((member.id, pattern.name) for member in match)
                matches.append((pattern.name, tuple(sorted(member.id for member in match))))
            else:
                for member in match:
                    declined.setdefault(member.id, pattern.name)
    others = {node: name for node, name in declined.items() if node not in taken}
    return PatternMatches(taken, others, tuple(matches))


def find_matches(graph: Graph, pattern: Pattern) -> Iterator[Match]:
    """Yield, for every node that makes a pattern's result, the first way in which it fits."""
    for node in graph.nodes:
        for match in _matches(graph, node, pattern.shape):
            candidate = Match(graph, match)
            if pattern.predicate is None or pattern.predicate(candidate):
                yield candidate
                break


def _is_used(match: tuple[Node, ...], taken: dict[int, str]) -> bool:
    return any(node.id in taken for node in match)


def _matches(graph: Graph, root: Node, shape: Op) -> Iterator[tuple[Node, ...]]:
    """Yield the ways in which a pattern fits whose result a node makes."""
    for match in _fits(graph, root, shape):
        members = {node.id for node in match}
        inner = (output for node in match[1:] for output in node.outputs if output >= 0)
        if len(members) == len(match) and not any(
            output in graph.output_set or not members.issuperset(graph.values[output].consumers)
            for output in inner
        ):
            yield match


def _fits(graph: Graph, node: Node, shape: Op) -> Iterator[tuple[Node, ...]]:
    if node.op_type not in shape.types or node.domain != shape.domain:
        return
    if len(node.inputs) < len(shape.inputs):
        return
    orders = [node.inputs]
    if len(shape.inputs) == len(node.inputs) == 2 and operator_of(node).is_commutative:  # noqa: PLR2004
        orders.append(node.inputs[::-1])
    for values in orders:
        yield from _fit_inputs(graph, (node,), values, shape.inputs)


def _fit_inputs(
    graph: Graph, match: tuple[Node, ...], values: Sequence[int], shapes: Sequence[Op | str]
) -> Iterator[tuple[Node, ...]]:
    if not shapes:
        yield match
        return
    value, shape = values[0], shapes[0]
    inner: Iterable[tuple[Node, ...]] = ()
    if isinstance(shape, Op):
        producer = graph.values[value].producer if value >= 0 else -1
        if producer >= 0:
            inner = _fits(graph, graph.nodes[producer], shape)
    elif shape != CONSTANT or (value >= 0 and graph.values[value].constant is not None):
        inner = ((),)
    for nodes in inner:
        yield from _fit_inputs(graph, (*match, *nodes), values[1:], shapes[1:])
