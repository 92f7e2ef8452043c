# SPDX-License-Identifier: Apache-2.0
"""Labels and calls at once: the best plan near a plan, and the best one of a small problem, proven.

*Tables of a sequence.* The backends of the first calls are given, one *stage* for each; what runs
after them is the *rest*. Each value of an operator says its label and its stage. Stages follow one
another, so who reads may not be in an earlier stage than who makes; what is of one stage is of one
call, what is of two stages is certainly apart. So a tensor that goes to several calls is priced as
plans are. Of the rest, labels and conversions count, and the calls that one path cannot avoid. If
nothing is left for the rest, the tables hold the price of the plan; otherwise they bound all plans
that begin with these calls.

*Small problems.* A node is how a plan begins: the backends of its first calls. The least node is
looked at next; its sequence is made longer by each call there could be. A node that leaves nothing
for later is a plan. A. H. Land and A. G. Doig, "An automatic method of solving discrete programming
problems" (Econometrica 28(3), 1960). Without it, 4% of the plans of small random problems are not
the best ones, and 13% to 19% of the proofs are lost (`benchmarks/search.py --gaps --harsh`).

*Larger ones.* The sequence of a plan's calls is kept; each operator may have any label of a backend
whose call is near its present one. That is solved exactly, with all calls and without each of the
shorter ones, and again from the best plan of these while it gets better. Without it, five of
the 81 plans of `benchmarks/search_stages.py` are up to 6.0% dearer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.calls import Cycle, form_calls
from intarsia.search.engine import Engine, Scenario
from intarsia.search.folding import Unfolded
from intarsia.search.model import longest_path
from intarsia.search.phases import PhasedBuilder, Relation
from intarsia.search.pricing import gap, price
from intarsia.search.problem import PlannedCall
from intarsia.search.search import PricedPlan, best_plan
from intarsia.search.sections import Sections

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.conversions import Conversions
    from intarsia.search.problem import Piece, PlacementProblem, ProblemTensor
    from intarsia.search.search import Search

_JOINT_ENTRIES = 1 << 13

MOST_OPS = 14
"""What has more operators is not solved completely."""

MOST_WORK = 12_000  # operators times scenarios
_NODE_WORK = 8  # scenarios that building tables costs as much as
_MOST_ENTRIES = 1 << 20

# With 40, one of the 81 recorded plans is 3.4% dearer; with 400, one is 0.02% cheaper.
_MOST_RESHAPED_OPS = 160
_RESHAPED_ENTRIES = 1 << 14
_BATCH_ENTRIES = 1 << 19
# Of 81 recorded plans (benchmarks/search_stages.py), 3 makes three dearer by up to 6.0%, as more
# labels do not fit the tables, and 0 two by up to 3.4%.
_NEAR = 2
# With one round that leaves no call out, three of the 81 plans are 1.6% to 5.2% dearer.
_LEFT_OUT = 8
_ROUNDS = 3
_WORTH = 0.001  # less than that is not worth the time


@dataclass(frozen=True, order=True, slots=True)
class SequencedCall:
    """One call of a sequence.

    Attributes:
        backend: What runs it.
        label: The label that is a call of its own, a position in `Problem.labels`; -1 for any
            labels that are none.
    """

    backend: int
    label: int = -1


class StagedBuilder(PhasedBuilder):
    """Builds the tables of labels with their stages.

    Args:
        problem: The problem, without intervals.
        conversions: Its conversions.
        stages: By stage, the calls that it may be; one is taken by barring the values of others.
        is_open: Whether something may run after the last stage.
        windows: By operator, the first and the last stage that it may have; all if not given.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        conversions: Conversions,
        stages: Sequence[Sequence[SequencedCall]],
        *,
        is_open: bool,
        windows: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self.stages = stages
        self.is_open = is_open
        self.rest = len(stages)
        self.windows = windows
        self.entering = _entering(conversions, problem)
        whole = Sections((), (-1,) * problem.count, ((),))
        super().__init__(problem, conversions, whole)

    def _fill_options(self, *, keep_all: bool, ends: Sequence[int]) -> None:
        super(PhasedBuilder, self)._fill_options(keep_all=keep_all, ends=ends)
        self.values = []
        labels = self.problem.labels
        mixed = [{each.backend for each in moves if each.label < 0} for moves in self.stages]
        single = [{each.label for each in moves if each.label >= 0} for moves in self.stages]
        for op, options in enumerate(self.options):
            first, last = self.windows[op] if self.windows else (0, len(self.stages) - 1)
            pairs = [
                (option, stage)
                for option in options
                if option >= 0
                for stage in range(first, last + 1)
                if (
                    option in single[stage]
                    if labels[option].alone
                    else labels[option].backend in mixed[stage]
                )
            ]
            if self.is_open or not pairs:
                pairs += [(option, self.rest) for option in options]
            self.options[op] = [option for option, _ in pairs]
            reads = [stage for _, stage in pairs]
            self.values.append(self._values(self.options[op], reads, reads))

    def decode(self, values: NDArray[np.intp]) -> tuple[list[int], list[int]]:
        """Return by operator the position of its label and its stage."""
        by_op = values[: self.problem.count].tolist()
        labels = [int(each.labels[value]) for each, value in zip(self.values, by_op, strict=True)]
        stages = [int(each.reads[value]) for each, value in zip(self.values, by_op, strict=True)]
        return labels, stages

    def _relation(self, producer: int, op: int) -> Relation:
        inside, is_one_call = self._shared_calls(producer, op)
        makes, reads = self.values[producer].makes[:, None], self.values[op].reads
        differ = makes != reads
        impossible = (makes > reads) | (differ & inside)
        impossible |= ~differ & (reads < self.rest) & ~is_one_call
        return Relation(impossible, inside, differ | ~is_one_call)

    def _add_tensor(self, position: int, tensor: ProblemTensor) -> None:
        readers = tuple(dict.fromkeys(tensor.consumers))
        sizes = [len(self.values[op].labels) for op in (tensor.producer, *readers) if op >= 0]
        is_joint = len(readers) > 1 and self.problem.private
        if not is_joint or float(np.prod([float(size) for size in sizes])) > _JOINT_ENTRIES:
            super()._add_tensor(position, tensor)
            return
        self._add_between(tensor.producer, readers, self._joint(tensor, readers))

    def _joint(self, tensor: ProblemTensor, readers: tuple[int, ...]) -> NDArray[np.float64]:
        """Return what one tensor costs by the values of its maker and of all its readers.

        A call that takes the tensor into a private state pays for that, each call for itself.
        """
        problem, producer = self.problem, tensor.producer
        axes = 1 + len(readers)
        outside = np.array([problem.outside])
        states = self._on_axis(outside if producer < 0 else self.values[producer].states, 0, axes)
        plain: NDArray[np.intp] = np.full((1,) * axes, 0)
        plain |= 1 << problem.outside if tensor.is_output else 0
        impossible: NDArray[np.bool_] = np.zeros((1,) * axes, dtype=bool)
        entries: list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]] = []
        for place, op in enumerate(readers, start=1):
            read = self.values[op]
            sources = self._on_axis(read.sources, place, axes)
            stages = self._on_axis(read.reads, place, axes)
            bits = 1 << sources
            is_shared = (bits & self.shared) > 0
            if producer < 0:
                inside = np.zeros((1,) * axes, dtype=bool)
                enters = ~is_shared
            else:
                relation = self._relation(producer, op)
                shape = [1] * axes
                shape[0], shape[place] = relation.apart.shape
                inside = relation.inside.reshape(shape)
                enters = relation.apart.reshape(shape) & ~is_shared & ~inside
                impossible = impossible | relation.impossible.reshape(shape)
            plain = plain | np.where(inside | enters, 0, bits)
            for other, stage, before in entries:  # one call enters a state once
                enters = enters & ~((other == sources) & (stage == stages) & before)
            entries.append((sources, stages, enters))
        return np.where(impossible, np.inf, self._priced(tensor.transition, states, plain, entries))

    def _priced(
        self,
        transition: int,
        states: NDArray[np.intp],
        plain: NDArray[np.intp],
        entries: Sequence[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]],
    ) -> NDArray[np.float64]:
        """Return the least over what else is made available in shared states, to enter from."""
        multicast = self.conversions.multicast[transition]
        entering = self.entering[transition]
        shared = [s for s in range(self.problem.states) if self.shared >> s & 1]
        least: NDArray[np.float64] | None = None
        for choice in range(1 << len(shared)):
            extra = sum(1 << s for place, s in enumerate(shared) if choice >> place & 1)
            cost = multicast[states, plain | extra]
            at = (plain | extra | 1 << states) & self.shared
            for sources, _, enters in entries:
                cost = cost + np.where(enters, entering[at, sources], 0.0)
            least = cost if least is None else np.minimum(least, cost)
        assert least is not None
        return least

    @staticmethod
    def _on_axis(array: NDArray[np.intp], axis: int, axes: int) -> NDArray[np.intp]:
        return array.reshape([-1 if each == axis else 1 for each in range(axes)])

    def _add_spine(self) -> None:
        """Add the overheads of calls of the rest, along the longest path."""
        path = longest_path(self.problem) if self.is_open else ()
        if path:
            self._add_path(path, self.rest, np.array([*self.problem.overheads, 0.0]))


def _entering(conversions: Conversions, problem: PlacementProblem) -> NDArray[np.float64]:
    """Return f64[X, 2**S, S]: entering a state from the cheapest shared one of a bit set."""
    states = problem.states
    direct = conversions.direct
    costs = np.full((len(direct), 1 << states, states), np.inf)
    for bits in range(1, 1 << states):
        at = [s for s in range(states) if bits >> s & 1]
        costs[:, bits] = direct[:, at, :].min(1)
    return costs


@dataclass(frozen=True, slots=True)
class _Node:
    """Plans that begin alike.

    Attributes:
        begin: Their first calls.
        moves: The calls that may follow, if not any.
        barred: Labels that they do not use, positions: these have been in a cycle.
    """

    begin: tuple[SequencedCall, ...] = ()
    moves: tuple[SequencedCall, ...] | None = None
    barred: frozenset[int] = frozenset()


def complete(
    search: Search, plan: PricedPlan, bound: float, *, most: float = MOST_WORK
) -> tuple[PricedPlan, float, int]:
    """Return the best plan found, a bound on all plans, and how many beginnings were looked at.

    Args:
        search: The problem.
        plan: The best plan so far.
        bound: What no plan undercuts.
        most: How much work to do, in operators times scenarios.
    """
    if search.problem.count > MOST_OPS or not gap(plan.price.seconds, bound):
        return plan, bound, 0
    tree = _Tree(search, plan)
    heap: list[tuple[float, int, _Node]] = [(bound, 0, _Node())]
    work = looked = number = 0
    while heap and gap(tree.plan.price.seconds, heap[0][0]):
        value, _, node = heap[0]
        moves = tree.moves(node)
        work += (_NODE_WORK + 2 * len(moves)) * search.problem.count
        # Work, not time: the same problem ends at the same node everywhere.
        children = tree.expand(node, moves) if work <= most else None
        if children is None:
            break
        heappop(heap)
        looked += 1
        for child, least in children:
            if gap(tree.plan.price.seconds, least):
                number += 1
                # A longer beginning has fewer plans: it cannot cost less than the shorter one's
                # bound.
                heappush(heap, (max(value, least), number, child))
    least = min(heap[0][0] if heap else inf, tree.unsettled)
    return tree.plan, max(bound, min(least, tree.plan.price.seconds)), looked


class _Tree:
    """What all nodes share, and the best plan met."""

    def __init__(self, search: Search, plan: PricedPlan) -> None:
        self.search = search
        self.plan = plan
        self.unsettled = inf
        self.unfolded = Unfolded(search.problem)
        self.problem = self.unfolded.problem
        labels = self.problem.labels
        self.single = [
            SequencedCall(label.backend, place) for place, label in enumerate(labels) if label.alone
        ]
        mixed = {label.backend for label in labels if not label.alone}
        self.mixed = [SequencedCall(backend) for backend in sorted(mixed)]

    def moves(self, node: _Node) -> tuple[SequencedCall, ...]:
        """Return the calls that may follow."""
        if node.moves is not None:
            return node.moves
        labels = self.problem.labels
        taken = {op for each in node.begin if each.label >= 0 for op in labels[each.label].ops}
        last = node.begin[-1] if node.begin else None
        return (
            *(each for each in self.mixed if each != last),
            *(each for each in self.single if not taken.intersection(labels[each.label].ops)),
        )

    def expand(
        self, node: _Node, moves: Sequence[SequencedCall]
    ) -> list[tuple[_Node, float]] | None:
        """Return longer beginnings that leave something for later, with bounds.

        None if the tables would be too large.
        """
        if not moves:
            return []
        calls = [*([each] for each in node.begin), moves]
        builder = StagedBuilder(self.problem, self.search.conversions, calls, is_open=True)
        engine = Engine(self.problem, builder.build(), limit=_MOST_ENTRIES)
        if engine.order is None:
            return None
        scenarios = _scenarios(builder, moves, node.barred)
        batch = max(1, int(_MOST_ENTRIES / engine.order.entries))
        children: list[tuple[_Node, float]] = []
        again: set[SequencedCall] = set()
        for start in range(0, len(scenarios), batch):
            some = scenarios[start : start + batch]
            totals, values = engine.assign([scenario for _, _, scenario in some])
            for (move, is_open, _), total, column in zip(
                some, totals.tolist(), values.T, strict=True
            ):
                begin = (*node.begin, move)
                least = total + sum(self.problem.overheads[each.backend] for each in begin)
                if move in again or not gap(self.plan.price.seconds, least):
                    continue
                labels, stages = builder.decode(column)
                apart = self._apart(node, move, labels)
                if apart is not None:  # these nodes stand for what is left for later as well
                    again.add(move)
                    children += [(each, least) for each in apart]
                elif max(stages) < len(begin):
                    self._close(labels, stages, least)
                elif is_open:
                    self._look(labels)
                    children.append((_Node(begin, None, node.barred), least))
        return children

    def _apart(self, node: _Node, move: SequencedCall, labels: Sequence[int]) -> list[_Node] | None:
        """Return nodes without one label each of those in a cycle; None if there is none."""
        formed = form_calls(self.problem, self.unfolded.labels(labels))
        if not isinstance(formed, Cycle):
            return None
        given = self.problem.labels
        first = [label for op, label in enumerate(labels) if given[label].ops[0] == op]
        several = {first[piece] for piece in formed.pieces}
        return [
            _Node(node.begin, (move,), node.barred | {label})
            for label in sorted(several)
            if len(given[label].ops) > 1
        ]

    def _look(self, labels: Sequence[int]) -> None:
        """Price the plan of these labels, whatever calls they get."""
        other = self.search.plan(self.unfolded.pieces(labels), thorough=True)
        self.plan = best_plan([self.plan, *([other] if other else [])], self.problem.count)

    def _close(self, labels: Sequence[int], stages: Sequence[int], least: float) -> None:
        """Price the plan of these labels in these calls; keep in mind if the tables said less."""
        chosen = self.unfolded.pieces(labels)
        calls = _calls(chosen, stages)
        cost = price(self.search.problem, chosen, calls, self.search.conversions)
        self.plan = best_plan([self.plan, PricedPlan(chosen, calls, cost)], self.problem.count)
        if gap(cost.seconds, least):
            self.unsettled = min(self.unsettled, least)


def _scenarios(
    builder: StagedBuilder, moves: Sequence[SequencedCall], barred: frozenset[int]
) -> list[tuple[SequencedCall, bool, Scenario]]:
    """Return by move two scenarios: something may be left for later, or nothing."""
    stages = np.concatenate([values.reads for values in builder.values])
    labels = np.concatenate([values.labels for values in builder.values])
    backends = np.concatenate([values.backends for values in builder.values])
    alone = np.concatenate([values.alone for values in builder.values])
    is_last, is_rest = stages == builder.rest - 1, stages == builder.rest
    never = np.isin(labels, sorted(barred))
    scenarios = []
    for move in moves:
        mine = labels == move.label if move.label >= 0 else ~alone & (backends == move.backend)
        other = (is_last & ~mine) | never
        for is_open, gone in ((True, other), (False, other | is_rest)):
            scenario = Scenario(spine=1.0, extra=np.where(gone, np.inf, 0.0))
            scenarios.append((move, is_open, scenario))
    return scenarios


def _calls(chosen: Sequence[Piece], stages: Sequence[int]) -> tuple[PlannedCall, ...]:
    """Return the calls of pieces by the stages of their operators."""
    pieces: dict[int, list[Piece]] = {}
    for piece in chosen:
        pieces.setdefault(stages[piece.ops[0]], []).append(piece)
    return tuple(
        PlannedCall(
            each[0].backend, tuple(sorted(op for piece in each for op in piece.ops)), tuple(each)
        )
        for _, each in sorted(pieces.items())
    )


def reshape(search: Search, plan: PricedPlan, bound: float) -> tuple[PricedPlan, int]:
    """Return the best plan near a plan, and how many others were looked at.

    Args:
        search: The problem.
        plan: The best plan so far.
        bound: What no plan undercuts.
    """
    count = search.problem.count
    looked = 0
    if not MOST_OPS < count <= _MOST_RESHAPED_OPS:
        return plan, looked
    unfolded = Unfolded(search.problem)
    for _ in range(_ROUNDS):
        if len(plan.calls) <= 1 or gap(plan.price.seconds, bound) <= _WORTH:
            break
        others = _near(search, unfolded, plan)
        looked += len(others)
        better = best_plan([plan, *others], count)
        if better.price.seconds >= plan.price.seconds:
            break
        plan = better
    return plan, looked


def _near(search: Search, unfolded: Unfolded, plan: PricedPlan) -> list[PricedPlan]:
    """Return the best plan in the sequence of a plan's calls, and those without one of them."""
    problem = unfolded.problem
    calls: list[list[SequencedCall]] = []
    windows = [(0, 0)] * problem.count
    last = len(plan.calls) - 1
    for place, call in enumerate(plan.calls):
        label = unfolded.position(call.pieces[0])
        calls.append([SequencedCall(call.backend, label if problem.labels[label].alone else -1)])
        for op in call.ops:
            windows[op] = max(0, place - _NEAR), min(last, place + _NEAR)
    builder = StagedBuilder(problem, search.conversions, calls, is_open=False, windows=windows)
    engine = Engine(problem, builder.build(), limit=_RESHAPED_ENTRIES)
    if engine.order is None:
        return []
    stages = np.concatenate([values.reads for values in builder.values])
    short = sorted(range(last + 1), key=lambda place: len(plan.calls[place].ops))[:_LEFT_OUT]
    barred = [np.where(stages == place, np.inf, 0.0) for place in short]
    scenarios = [Scenario(), *(Scenario(extra=each) for each in barred)]
    batch = max(1, int(_BATCH_ENTRIES / engine.order.entries))
    plans = []
    for start in range(0, len(scenarios), batch):
        totals, values = engine.assign(scenarios[start : start + batch])
        for total, column in zip(totals.tolist(), values.T, strict=True):
            if np.isfinite(total):
                chosen = unfolded.pieces(builder.decode(column)[0])
                other = search.plan(chosen, thorough=True)
                plans += [other] if other else []
    return plans
