# SPDX-License-Identifier: Apache-2.0
"""Shapes to find in a graph, as data: a tree of operators, and a table of such trees.

A match can be run as one: what its inner nodes make is read by the match alone. A pattern may have
followers, which become a part of the match that they follow, one after another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from intarsia.graph.ops import operator_of
from intarsia.graph.per_graph import per_graph
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph, Node

ANY = "any"
CONSTANT = "constant"
SOURCE = "source"
"""A value that is no constant; the same one wherever it stands in a shape. In the shape of a
follower it is the result of what it follows, which nothing else reads."""


@dataclass(frozen=True, slots=True)
class Op:
    """An operator and what it reads.

    Attributes:
        types: Operator types, one of which the node has.
        inputs: Per input an `Op`, `ANY`, `CONSTANT` or `SOURCE`; further inputs may be anything.
            Two inputs of a commutative operator may stand in either order. Nodes of different
            places in a shape are different, unless the same object stands at these places.
        domain: The operator's domain.
        names: Domain and type of each operator.
    """

    types: tuple[str, ...]
    inputs: tuple[Op | str, ...]
    domain: str
    names: frozenset[tuple[str, str]]

    def __init__(self, types: str | Sequence[str], *inputs: Op | str, domain: str = "") -> None:
        object.__setattr__(self, "types", (types,) if isinstance(types, str) else tuple(types))
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "names", frozenset((domain, name) for name in self.types))


@dataclass(frozen=True, eq=False)
class Match:
    """Nodes that have the shape of a pattern.

    Attributes:
        region: Where they are.
        pattern: Whose shape they have.
        nodes: In the order of the pattern: an operator before what it reads.
        source: The value that `SOURCE` is; -1 if the shape has none.
        follows: Of a follower, the match before it with the followers that it has so far.
        followers: What followed, in order.
        meaning: What the predicate returned: whatever it has found out of the match.
    """

    region: Region
    pattern: Pattern
    nodes: tuple[Node, ...]
    source: int = -1
    follows: Match | None = None
    followers: tuple[Match, ...] = ()
    meaning: Any = True

    @property
    def graph(self) -> Graph:
        """The graph of the region."""
        return self.region.graph

    @property
    def result(self) -> int:
        """The value that the last follower makes, or the match itself; its first output."""
        return (self.followers[-1] if self.followers else self).nodes[0].outputs[0]

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The ids of its nodes and those of its followers, ascending."""
        parts = (self, *self.followers)
        return tuple(sorted(node.id for part in parts for node in part.nodes))


Predicate: TypeAlias = Callable[[Match], Any]
"""Says of a match whether it is meant. A false value says no, and so does a text, which is the
reason; any other value says yes, and is the match's `meaning`."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A shape with a name.

    Attributes:
        name: Printed as the reason of a placement.
        shape: What to find; its operator makes the result.
        predicate: Says of a match whether it is meant; None means always.
        followers: What may follow, any number of times, and become a part of the match; earlier
            ones have priority. Their shapes have a `SOURCE`.
    """

    name: str
    shape: Op
    predicate: Predicate | None = None
    followers: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class Tier:
    """Patterns of a table that have no priority over one another but where they begin.

    Attributes:
        patterns: Of two that begin at the same node, the earlier one has priority.
        is_reversed: Whether the match that begins last comes first: of two whose results are added,
            the later one takes the sum.
    """

    patterns: tuple[Pattern, ...]
    is_reversed: bool = False


Table: TypeAlias = Sequence[Pattern | Tier]


@dataclass(frozen=True, slots=True)
class PatternMatches:
    """What a table of patterns finds.

    Attributes:
        taken: By node id, the name of the pattern that has it.
        declined: By node id, the first pattern that matches it but whose predicate says no; for
            nodes that no pattern has.
        matches: Of each match that was taken the name of its pattern, and its nodes, ascending.
        reasons: What the predicates that declined said, by node id; "" if they only said no.
    """

    taken: dict[int, str]
    declined: dict[int, str]
    matches: tuple[tuple[str, tuple[int, ...]], ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)


@per_graph
def find_patterns(graph: Graph, patterns: tuple[Pattern | Tier, ...]) -> PatternMatches:
    """Match a table of patterns; earlier ones have priority, and matches never overlap."""
    matcher = _Matcher(Region.of(graph, range(len(graph.nodes))))
    matches = matcher.run(patterns)
    taken = {node: match.pattern.name for match in matches for node in match.members}
    declined = {node: says for node, says in matcher.declined.items() if node not in taken}
    return PatternMatches(
        taken,
        {node: name for node, (name, _) in declined.items()},
        tuple((match.pattern.name, match.members) for match in matches),
        {node: reason for node, (_, reason) in declined.items()},
    )


def match_region(region: Region, table: Table) -> tuple[Match, ...]:
    """Return the matches of a table inside a region, with their followers, in order of priority."""
    return _Matcher(region).run(table)


_Fit: TypeAlias = "tuple[tuple[Node, ...], int]"
"""Nodes in the order of a shape, and the value that is its source or -1."""

_Starts: TypeAlias = "dict[int, list[tuple[Pattern, tuple[Node, ...]]]]"


class _Matcher:
    """Matches a table inside a region; no node is in two matches.

    Args:
        region: Where.

    Attributes:
        declined: By node id, the first pattern whose predicate said no, and why.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.graph = region.graph
        self.declined: dict[int, tuple[str, str]] = {}
        self._taken: set[int] = set()
        self._fits_of: dict[int, tuple[_Fit, ...]] = {}  # by the shape's id()
        self._starts: dict[int, _Starts] = {}  # by the id() of the followers
        self._nodes: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for node_id in region.nodes:
            node = self.graph.nodes[node_id]
            self._nodes[node.domain, node.op_type].append(node)

    def run(self, table: Table) -> tuple[Match, ...]:
        """Return the matches in order of priority, with their followers."""
        matches = []
        for entry in table:
            tier = entry if isinstance(entry, Tier) else Tier((entry,))
            for pattern, fits in self._candidates(tier):
                fit = next((fit for fit in fits if not self._is_used(fit[0])), None)
                if fit is None:
                    continue
                match = self._meant(Match(self.region, pattern, *fit))
                if match is not None:
                    self._taken.update(node.id for node in match.nodes)
                    matches.append(self._grown(match))
        return tuple(matches)

    def _candidates(self, tier: Tier) -> Iterable[tuple[Pattern, Sequence[_Fit]]]:
        """Return the ways in which patterns fit that make one result, in the order of the tier."""
        candidates = []
        for rank, pattern in enumerate(tier.patterns):
            for root in self._roots(pattern.shape):
                fits = tuple(self._fits(root, pattern.shape))
                if fits:
                    first = min(node.id for node in fits[0][0])
                    place = (-first if tier.is_reversed else first, rank)
                    candidates.append((place, pattern, fits))
        candidates.sort(key=itemgetter(0))
        return ((pattern, fits) for _, pattern, fits in candidates)

    def _roots(self, shape: Op) -> Sequence[Node]:
        """Return the nodes that may make the result of a shape, ascending."""
        if shape.names.isdisjoint(self._nodes):
            return ()
        roots = [self._nodes[name] for name in shape.names if name in self._nodes]
        return roots[0] if len(roots) == 1 else sorted(chain(*roots), key=attrgetter("id"))

    def _fits(self, root: Node, shape: Op) -> Iterator[_Fit]:
        """Yield the ways in which a shape fits whose result a node makes."""
        if not shape.inputs:
            yield (root,), -1
            return
        for nodes, source in _fits(self.graph, root, shape, -1):
            members = {node.id: node for node in nodes}
            if len(nodes) == 1 or (
                (len(members) == len(nodes) or _is_shared(nodes, shape))
                and all(
                    self._is_read_inside(output, members.keys())
                    for node in nodes[1:]
                    for output in node.outputs
                    if output >= 0
                )
            ):
                yield tuple(members.values()), source

    def _is_read_inside(self, value: int, members: Collection[int]) -> bool:
        return value not in self.graph.output_set and all(
            reader in members for reader in self.graph.values[value].consumers
        )

    def _is_used(self, nodes: tuple[Node, ...]) -> bool:
        return any(node.id in self._taken or node.id not in self.region for node in nodes)

    def _meant(self, match: Match) -> Match | None:
        """Return a match with its meaning if the predicate says that it is meant."""
        verdict = True if match.pattern.predicate is None else match.pattern.predicate(match)
        if verdict and not isinstance(verdict, str):
            return replace(match, meaning=verdict)
        for node in match.nodes:
            self.declined.setdefault(node.id, (match.pattern.name, verdict or ""))
        return None

    def _grown(self, match: Match) -> Match:
        """Return a match with all that follows it."""
        follower = self._follower(match)
        while follower is not None:
            self._taken.update(node.id for node in follower.nodes)
            match = replace(match, followers=(*match.followers, follower))
            follower = self._follower(match)
        return match

    def _follower(self, match: Match) -> Match | None:
        if not match.pattern.followers:
            return None
        result = match.result
        for pattern, nodes in self._starts_of(match.pattern.followers).get(result, ()):
            if self._is_used(nodes):
                continue
            if self._is_read_inside(result, {node.id for node in nodes}):
                follower = self._meant(Match(self.region, pattern, nodes, result, match))
                if follower is not None:
                    return follower
        return None

    def _starts_of(self, followers: tuple[Pattern, ...]) -> _Starts:
        """Return by its source how each follower fits, in the order of their priority."""
        starts = self._starts.get(id(followers))
        if starts is None:
            starts = self._starts[id(followers)] = defaultdict(list)
            for pattern in followers:
                for nodes, source in self._all_fits(pattern.shape):
                    starts[source].append((pattern, nodes))
        return starts

    def _all_fits(self, shape: Op) -> tuple[_Fit, ...]:
        fits = self._fits_of.get(id(shape))
        if fits is None:
            fits = tuple(fit for root in self._roots(shape) for fit in self._fits(root, shape))
            self._fits_of[id(shape)] = fits
        return fits


def _is_shared(nodes: Sequence[Node], shape: Op) -> bool:
    """Tell whether a node that is found twice is found where the shape has one object twice."""
    places: list[Op] = []
    stack = [shape]
    while stack:
        place = stack.pop()
        places.append(place)
        stack += [item for item in reversed(place.inputs) if isinstance(item, Op)]
    ops = dict(zip((node.id for node in nodes), places, strict=True))
    return all(ops[node.id] is place for node, place in zip(nodes, places, strict=True))


def _fits(graph: Graph, node: Node, shape: Op, source: int) -> Iterator[_Fit]:
    if node.op_type not in shape.types or node.domain != shape.domain:
        return
    if len(node.inputs) < len(shape.inputs):
        return
    orders = [node.inputs]
    if len(shape.inputs) == len(node.inputs) == 2 and operator_of(node).is_commutative:  # noqa: PLR2004
        orders.append(node.inputs[::-1])
    for values in orders:
        yield from _fit_inputs(graph, ((node,), source), values, shape.inputs)


def _fit_inputs(
    graph: Graph, fit: _Fit, values: Sequence[int], shapes: Sequence[Op | str]
) -> Iterator[_Fit]:
    if not shapes:
        yield fit
        return
    (nodes, source), value, shape = fit, values[0], shapes[0]
    is_constant = value >= 0 and graph.values[value].constant is not None
    inner: Iterable[_Fit] = ()
    if isinstance(shape, Op):
        producer = graph.values[value].producer if value >= 0 else -1
        if producer >= 0:
            inner = _fits(graph, graph.nodes[producer], shape, source)
    elif shape == SOURCE:
        if value >= 0 and not is_constant and source in (-1, value):
            inner = (((), value),)
    elif shape != CONSTANT or is_constant:
        inner = (((), source),)
    for more, bound in inner:
        yield from _fit_inputs(graph, ((*nodes, *more), bound), values[1:], shapes[1:])
