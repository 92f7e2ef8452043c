# SPDX-License-Identifier: Apache-2.0
"""A problem as a sum of small tables over one variable per operator: the label that covers it.

* A label's seconds stand at its first operator; a label of several operators is held by all of
  them or by none, along a tree that connects them.
* A tensor with one or two readers is one table. With more readers it gets a variable of its own,
  the set of states in which it is made available: its maker pays for the set, and each reader
  only needs its state to be in it. The minimum is the same, because more states never cost less,
  and no table grows with the number of readers.
* The *price of crossing* is what a reader pays for being in another call than its input. It
  stands in for the overhead of calls, which is known only when calls are formed; scenarios sweep
  it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.elimination import Factor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.conversions import Conversions
    from intarsia.search.layout import CutLayout
    from intarsia.search.problem import PlacementProblem, ProblemTensor

_TWO = 2
_PAIR_ENTRIES = 4096
# On 81 recorded problems (benchmarks/search_stages.py), 1 changes nothing; 4 makes one plan 2.0%
# cheaper and one 5.7% dearer, in 1.2 times the time.
_CHARGED_READERS = 2  # more readers would widen the tables of every residual block
_USUAL_OVERHEAD = 1e-6  # only its being positive counts: where calls are free, fewer are nicer


@dataclass(frozen=True, eq=False)
class Model:
    """Variables and tables.

    Attributes:
        options: By operator, what its values mean: a position in `Problem.labels`, or
            `-1 - state` for "covered by an interval that leaves its result in this state".
        domains: By variable, how many values it has; variables from `len(options)` on are sets
            of states.
        offsets: By operator, where its values begin in the flat arrays.
        seconds: f64, flat: the cost of each value of each operator; infinite for those that only
            an interval can reach.
        backends: intp, flat: the backend of each value, -1 for none.
        factors: Tables without the values' own costs, one for each tensor and tie.
        crossings: Tables of overheads, to be multiplied by the price of crossing.
        spine: Tables of the overheads of calls that one path through the graph cannot avoid.
        constant: What every plan pays.
        dropped: How many labels were left out because another is never worse.
        sets: By set variable, from `len(options)` on: the tensor and the states of the sets.
    """

    options: list[list[int]]
    domains: list[int]
    offsets: NDArray[np.intp]
    seconds: NDArray[np.float64]
    backends: NDArray[np.intp]
    factors: list[Factor]
    crossings: list[Factor]
    spine: list[Factor]
    constant: float
    dropped: int
    sets: list[tuple[int, tuple[int, ...]]]

    def scopes(self, *, has_crossings: bool) -> list[tuple[int, ...]]:
        """Return which variables share tables."""
        scopes = [factor.scope for factor in self.factors]
        if has_crossings:
            scopes += [factor.scope for factor in (*self.crossings, *self.spine)]
        return scopes

    def unary(self, costs: NDArray[np.float64]) -> list[Factor]:
        """Return costs, f64[..., values], as one table for each operator."""
        bounds = self.offsets.tolist()
        return [
            Factor((op,), costs[..., bounds[op] : bounds[op + 1]])
            for op in range(len(self.options))
        ]


@dataclass(frozen=True, slots=True)
class _Side:
    """What tables need of one operator's values: equal sides share tables."""

    sources: NDArray[np.intp]
    states: NDArray[np.intp]
    backends: NDArray[np.intp]
    alone: NDArray[np.bool_]
    identity: int


class ModelBuilder:
    """Turns one problem into a model.

    Args:
        problem: The problem.
        conversions: Its conversions.
        layout: Where intervals end; these operators get one value more for each state.
        keep_all: Keep labels that are never better than another.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        conversions: Conversions,
        *,
        layout: CutLayout | None = None,
        keep_all: bool = False,
    ) -> None:
        self.problem = problem
        self.conversions = conversions
        self.factors: list[Factor] = []
        self.crossings: list[Factor] = []
        self.spine: list[Factor] = []
        self.constant = 0.0
        self.sets: list[tuple[int, tuple[int, ...]]] = []
        self.options: list[list[int]] = [[] for _ in range(problem.count)]
        self.dropped = 0
        self._tables: dict[object, NDArray[np.float64]] = {}
        self._sides: dict[tuple[tuple[int, int, int, bool], ...], _Side] = {}
        self.tied: list[int] = []
        self._fill_options(keep_all=keep_all, ends=layout.cuts if layout else ())
        self.side_of = [self._side(options) for options in self.options]

    def build(self) -> Model:
        """Return the model."""
        problem = self.problem
        self.domains = [len(options) for options in self.options]
        self.offsets = np.concatenate([[0], np.cumsum(self.domains, dtype=np.intp)])
        self.seconds = self._seconds()
        self._tie()
        for position, tensor in enumerate(problem.tensors):
            self._add_tensor(position, tensor)
        if problem.backends > 1 or any(problem.labels[label].alone for label in self.tied):
            self._add_crossings()
        if any(problem.overheads):
            self._add_spine()
        return Model(
            options=self.options,
            domains=self.domains,
            offsets=self.offsets,
            seconds=self.seconds,
            backends=np.concatenate([side.backends for side in self.side_of] or [np.zeros(0, int)]),
            factors=self.factors,
            crossings=self.crossings,
            spine=self.spine,
            constant=self.constant,
            dropped=self.dropped,
            sets=self.sets,
        )

    def _fill_options(self, *, keep_all: bool, ends: Sequence[int]) -> None:
        best: dict[object, int] = {}
        labels = self.problem.labels
        counts_bytes = bool(self.problem.memory)
        for position, label in enumerate(labels):
            same: object = (
                # Whatever is around it, the dearer of two labels that are alike in all of this can
                # be exchanged for the cheaper.
                (label.ops, label.source, label.state, label.backend, label.alone)
                if not keep_all
                else position
            )
            if counts_bytes:
                same = (same, label.nbytes)
            rival = best.get(same)
            if rival is not None:
                self.dropped += 1
            if rival is None or label.seconds < labels[rival].seconds:
                best[same] = position
        for position in sorted(best.values()):
            ops = labels[position].ops
            for op in ops:
                self.options[op].append(position)
            if len(ops) > 1:
                self.tied.append(position)
        for op in ends:
            self.options[op].extend(-1 - state for state in range(self.problem.states))
        for options in self.options:
            if not options:  # only an interval can cover it
                options.append(-1 - self.problem.outside)

    def _side(self, options: Sequence[int]) -> _Side:
        labels, outside = self.problem.labels, self.problem.outside
        rows = tuple(
            (label.source, label.state, label.backend, label.alone)
            if option >= 0 and (label := labels[option])
            else (outside, -1 - option, -1, False)
            for option in options
        )
        side = self._sides.get(rows)
        if side is None:
            columns = np.array(rows, dtype=np.intp).T
            side = _Side(
                columns[0], columns[1], columns[2], columns[3].astype(bool), len(self._sides)
            )
            self._sides[rows] = side
        return side

    def _seconds(self) -> NDArray[np.float64]:
        labels = self.problem.labels
        return np.array(
            [
                np.inf
                if option < 0
                else labels[option].seconds
                if labels[option].ops[0] == op
                else 0.0
                for op, options in enumerate(self.options)
                for option in options
            ],
            dtype=np.float64,
        )

    def _tie(self) -> None:
        """Add a table for each pair of operators that hold a label together or not at all."""
        pairs = find_ties(self.problem, self.tied)
        for (first, second), positions in sorted(pairs.items()):
            table = np.zeros((self.domains[first], self.domains[second]))
            for position in positions:
                row = self.options[first].index(position)
                column = self.options[second].index(position)
                table[row, :] = np.inf
                table[:, column] = np.inf
            for position in positions:
                table[self.options[first].index(position), self.options[second].index(position)] = 0
            self.factors.append(Factor((first, second), table))

    def _needs(self, op: int, producer: int) -> tuple[NDArray[np.intp], object]:
        """Return by value the state in which an operator needs a tensor, -1 for not at all."""
        side = self.side_of[op]
        if producer < 0 or not self.tied:
            return side.sources, side.identity
        labels = self.problem.labels
        inside = tuple(
            place
            for place, option in enumerate(self.options[op])
            if option >= 0 and len(labels[option].ops) > 1 and producer in labels[option].ops
        )
        if not inside:
            return side.sources, side.identity
        needs = side.sources.copy()
        needs[list(inside)] = -1
        return needs, (side.identity, inside)

    def _add_tensor(self, position: int, tensor: ProblemTensor) -> None:
        producer, readers = tensor.producer, tuple(dict.fromkeys(tensor.consumers))
        outside = self.problem.outside
        always = 1 << outside if tensor.is_output else 0
        multicast = self.conversions.multicast[tensor.transition]
        if producer >= 0:
            states = self.side_of[producer].states
            rows = multicast[states]
        else:
            rows = multicast[outside][None, :]
        if not readers:
            self._add_alone(producer, rows[:, always])
            return
        needs = [self._needs(op, producer) for op in readers]
        bits = [np.where(need >= 0, 1 << np.maximum(need, 0), 0) for need, _ in needs]
        if len(readers) == 1:
            table = rows[:, bits[0] | always]
            self._add_between(producer, readers, table)
            return
        size = len(rows) * int(np.prod([len(bit) for bit in bits[:2]]))
        # Two readers in one table spare a variable; larger ones would decide the width.
        if len(readers) == _TWO and size <= _PAIR_ENTRIES:
            table = rows[:, bits[0][:, None] | bits[1][None, :] | always]
            self._add_between(producer, readers, table)
            return
        self._add_set(position, tensor, readers, needs, rows)

    def _add_alone(self, op: int, costs: NDArray[np.float64]) -> None:
        if op < 0:
            self.constant += float(costs[0])
        else:
            self.seconds[self.offsets[op] : self.offsets[op + 1]] += costs

    def _add_between(
        self, producer: int, readers: tuple[int, ...], table: NDArray[np.float64]
    ) -> None:
        if producer >= 0:
            self.factors.append(Factor((producer, *readers), table))
        elif len(readers) == 1:
            self._add_alone(readers[0], table[0])
        else:
            self.factors.append(Factor(readers, table[0]))

    def _add_set(
        self,
        position: int,
        tensor: ProblemTensor,
        readers: tuple[int, ...],
        needs: Sequence[tuple[NDArray[np.intp], object]],
        rows: NDArray[np.float64],
    ) -> None:
        """Add a variable for the set of states in which a tensor is available."""
        wanted = tuple(sorted({int(state) for need, _ in needs for state in need if state >= 0}))
        variable = len(self.domains)
        self.domains.append(1 << len(wanted))
        self.sets.append((position, wanted))
        masks = set_masks(wanted)
        costs = rows[:, masks | (1 << self.problem.outside if tensor.is_output else 0)]
        if tensor.producer >= 0:
            self.factors.append(Factor((tensor.producer, variable), costs))
        else:
            self.factors.append(Factor((variable,), costs[0]))
        for op, (need, identity) in zip(readers, needs, strict=True):
            name = ("set", wanted, identity)
            table = self._tables.get(name)
            if table is None:
                has = (masks[:, None] >> np.maximum(need, 0)[None, :]) & 1
                table = np.where((need < 0)[None, :] | (has == 1), 0.0, np.inf)
                self._tables[name] = table
            self.factors.append(Factor((variable, op), table))

    def _add_crossings(self) -> None:
        # A price of crossing is in units of overheads; where there are none, it only breaks ties.
        usual = max(self.problem.overheads, default=0.0) or _USUAL_OVERHEAD
        overheads = np.array([*(each or usual for each in self.problem.overheads), 0.0])
        seen = set()
        for tensor in self.problem.tensors:
            producer = tensor.producer
            if producer < 0 or len(tensor.consumers) > _CHARGED_READERS:
                continue
            for op in tensor.consumers:
                if (producer, op) in seen:
                    continue
                seen.add((producer, op))
                before, after = self.side_of[producer], self.side_of[op]
                name = ("crossing", before.identity, after.identity)
                self.crossings.append(self._make_crossing(name, producer, op, overheads))

    def _make_crossing(
        self, name: object, producer: int, op: int, overheads: NDArray[np.float64]
    ) -> Factor:
        """Return the overhead of the reader's call wherever its input is of another call."""
        before, after = self.side_of[producer], self.side_of[op]
        table = self._tables.get(name)
        if table is None:
            apart = before.backends[:, None] != after.backends[None, :]
            apart |= before.alone[:, None] | after.alone[None, :]
            table = np.where(apart, overheads[after.backends][None, :], 0.0)
            self._tables[name] = table
        if before.alone.any() and after.alone.any():
            table = self._uncharged(producer, op, table)
        return Factor((producer, op), table)

    def _add_spine(self) -> None:
        """Add the overheads along the longest path.

        Along a path, each change of call begins a call that nothing before it can be part of; so
        what these tables charge is paid by every plan, and the optimum with them is a bound.
        """
        overheads = np.array([*self.problem.overheads, 0.0])
        # Any path gives a bound; the longest one can charge for most changes.
        path = longest_path(self.problem)
        if path:
            first = overheads[self.side_of[path[0]].backends]
            self.spine.append(Factor((path[0],), first))
        for producer, op in pairwise(path):
            before, after = self.side_of[producer], self.side_of[op]
            name = ("spine", before.identity, after.identity)
            self.spine.append(self._make_crossing(name, producer, op, overheads))

    def _uncharged(self, producer: int, op: int, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a table in which both ends of one label are in one call."""
        table = table.copy()
        for row, option in enumerate(self.options[producer]):
            if option >= 0 and option in self.options[op]:
                table[row, self.options[op].index(option)] = 0.0
        return table


def set_masks(wanted: Sequence[int]) -> NDArray[np.intp]:
    """Return by value of a set variable the bit set of states."""
    values = np.arange(1 << len(wanted))
    masks = np.zeros_like(values)
    for place, state in enumerate(wanted):
        masks |= ((values >> place) & 1) << state
    return masks


def find_ties(
    problem: PlacementProblem, positions: Iterable[int] | None = None
) -> dict[tuple[int, int], list[int]]:
    """Return by pair of operators the labels that tie them, a tree of pairs for each label.

    Args:
        problem: The problem.
        positions: The labels; all of several operators if not given.
    """
    labels = problem.labels
    if positions is None:
        positions = [place for place, label in enumerate(labels) if len(label.ops) > 1]
    makers: list[list[int]] = [[] for _ in range(problem.count)]
    for tensor in problem.tensors:
        if tensor.producer >= 0:
            for op in tensor.consumers:
                makers[op].append(tensor.producer)
    pairs: dict[tuple[int, int], list[int]] = {}
    for position in positions:
        for pair in _spanning_tree(labels[position].ops, makers):
            pairs.setdefault(pair, []).append(position)
    return pairs


def longest_path(problem: PlacementProblem) -> list[int]:
    """Return the operators of a path of the most operators."""
    length = [1] * problem.count
    best = [-1] * problem.count
    reading: list[list[int]] = [[] for _ in range(problem.count)]
    for tensor in problem.tensors:
        if tensor.producer >= 0:
            for op in tensor.consumers:
                reading[op].append(tensor.producer)
    for op, makers in enumerate(reading):
        for producer in makers:
            if length[producer] + 1 > length[op]:
                length[op] = length[producer] + 1
                best[op] = producer
    if not length:
        return []
    path = [max(range(problem.count), key=length.__getitem__)]
    while best[path[-1]] >= 0:
        path.append(best[path[-1]])
    return path[::-1]


def _spanning_tree(ops: tuple[int, ...], makers: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return pairs that connect operators, along tensors wherever there is one."""
    inside = set(ops)
    root = {op: op for op in ops}

    def find(op: int) -> int:
        while root[op] != op:
            root[op] = root[root[op]]
            op = root[op]
        return op

    pairs = []
    for op in ops:
        for maker in makers[op]:
            if maker in inside and find(maker) != find(op):
                root[find(op)] = find(maker)
                pairs.append((maker, op))
    for op in ops[1:]:
        if find(op) != find(ops[0]):
            root[find(op)] = find(ops[0])
            pairs.append((ops[0], op))
    return pairs
