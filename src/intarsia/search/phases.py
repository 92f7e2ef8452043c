# SPDX-License-Identifier: Apache-2.0
"""A bound that knows of calls beside the longest path, and what leaves a call to enter another.

*Cuts* are operators each of which needs the one before. Whatever needs one cut and is needed by
the next runs, in every plan, between the call of the first and the call of the second: in the
*first* call, in the *last* one, or in the *middle*, between them; and if one call runs both cuts,
it runs everything between them. So each value of an operator says its label and one of these
phases. Between different phases there are different calls: a tensor in a private state leaves the
one and enters the other. Within the middle nothing is claimed of calls of one backend. Along the
longest path of the middle, and for each cut that is not in the call of the cut before, a call is
paid. All of that is true of every plan with its calls, so the optimum of these tables is a bound;
and its labels, chosen with an eye on calls, are often the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.elimination import Factor
from intarsia.search.engine import Engine, Optimum, Scenario
from intarsia.search.intervals import CutChain
from intarsia.search.model import ModelBuilder, find_ties, set_masks
from intarsia.search.sections import Sections, find_sections

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.conversions import Conversions
    from intarsia.search.layout import CutLayout
    from intarsia.search.problem import PlacementProblem, ProblemTensor
    from intarsia.search.search import Search

FREE, FIRST, MIDDLE, LAST = range(4)
_PAIR_ENTRIES = 1 << 15
# With 100, one of 81 recorded plans is 0.05% dearer, a proof is lost and a bound is 3.4% looser.
_MOST_OPS = 1000
# With 2^17, one of 81 recorded plans is 0.65% dearer, one proof is lost and a bound is 2.9% looser.
_MOST_ENTRIES = 1 << 21
_TWO = 2


@dataclass(frozen=True, eq=False, slots=True)
class _Values:
    """What the values of one operator mean, each array by value.

    Attributes:
        labels: Positions of labels, negative for none.
        reads: The phase in which it reads.
        makes: The phase in which it makes its results: those of a cut begin a section.
        sources: The state in which it needs tensors.
        states: The state of its results.
        backends: What runs it, -1 for nothing.
        alone: Whether it is a call of its own.
    """

    labels: NDArray[np.intp]
    reads: NDArray[np.intp]
    makes: NDArray[np.intp]
    sources: NDArray[np.intp]
    states: NDArray[np.intp]
    backends: NDArray[np.intp]
    alone: NDArray[np.bool_]


@dataclass(frozen=True, eq=False, slots=True)
class Relation:
    """How one operator's values (rows) go with those of a reader (columns).

    Attributes:
        impossible: They contradict each other.
        inside: They are one label: nothing is handed over.
        apart: They are certainly in different calls.
    """

    impossible: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    apart: NDArray[np.bool_]


class PhasedBuilder(ModelBuilder):
    """Builds the tables of labels with their phases.

    Args:
        problem: The problem.
        conversions: Its conversions.
        sections: Its sections.
        layout: Where intervals end; all of these must be cuts.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        conversions: Conversions,
        sections: Sections,
        layout: CutLayout | None = None,
    ) -> None:
        self.sections = sections
        self.cut_places = {cut: place for place, cut in enumerate(sections.cuts)}
        self.shared = sum(1 << s for s in range(problem.states) if s not in problem.private)
        self.entered = _entered(conversions, problem)
        super().__init__(problem, conversions, layout=layout)

    def _fill_options(self, *, keep_all: bool, ends: Sequence[int]) -> None:
        super()._fill_options(keep_all=keep_all, ends=ends)
        self.values: list[_Values] = []
        for op, options in enumerate(self.options):
            endings = options[-self.problem.states :] if op in ends else []
            labels = options[: len(options) - len(endings)]
            phases = self._phases(op)
            self.options[op] = [label for label in labels for _ in phases] + endings
            reads = [*(list(phases) * len(labels)), *(LAST for _ in endings)]
            makes = [FIRST] * len(reads) if op in self.cut_places else reads
            self.values.append(self._values(self.options[op], reads, makes))

    def _phases(self, op: int) -> tuple[int, ...]:
        place = self.cut_places.get(op)
        if place is not None:
            return (FIRST, LAST) if place else (LAST,)
        section = self.sections.section[op]
        if section < 0:
            return (FREE,)
        first = (FIRST,) if section else ()
        return (*first, MIDDLE, *((LAST,) if section < len(self.sections.cuts) else ()))

    def _values(
        self, options: Sequence[int], reads: Sequence[int], makes: Sequence[int]
    ) -> _Values:
        labels, outside = self.problem.labels, self.problem.outside
        rows = [
            (labels[each].source, labels[each].state, labels[each].backend, labels[each].alone)
            if each >= 0
            else (outside, -1 - each, -1, True)
            for each in options
        ]
        sources, states, backends, alone = np.array(rows, dtype=np.intp).T
        return _Values(
            np.array(options, dtype=np.intp),
            np.array(reads, dtype=np.intp),
            np.array(makes, dtype=np.intp),
            sources,
            states,
            backends,
            alone.astype(bool),
        )

    def _shared_calls(self, producer: int, op: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which values of two operators are in one label, and which may be in one call."""
        before, after = self.values[producer], self.values[op]
        inside = (before.labels[:, None] == after.labels) & (after.labels >= 0)
        joined = (before.backends[:, None] == after.backends) & (after.backends >= 0)
        joined &= ~(before.alone[:, None] | after.alone)
        return inside, joined | inside

    def _relation(self, producer: int, op: int) -> Relation:
        """Return how a producer's values go with those of a reader."""
        inside, joined = self._shared_calls(producer, op)
        apart = ~joined
        impossible = np.zeros_like(apart)
        makes, reads = self.values[producer].makes[:, None], self.values[op].reads
        section = self.cut_places.get(producer, -_TWO) + 1
        if section < 0:
            section = self.sections.section[producer]
        if section >= 0 and section == self.sections.section[op]:
            differ = makes != reads
            # Phases follow one another, and a label is in one call.
            impossible = (makes > reads) | (differ & inside)
            # The first and the last are one call each: what is in it must be of its backend.
            impossible |= ~differ & (reads != MIDDLE) & ~joined
            apart = apart | differ
        return Relation(impossible, inside, apart)

    def _tie(self) -> None:
        for (first, second), positions in sorted(find_ties(self.problem, self.tied).items()):
            before, after = self.values[first], self.values[second]
            joint = np.array(sorted(positions))
            table = np.where(
                np.isin(before.labels, joint)[:, None] | np.isin(after.labels, joint), np.inf, 0.0
            )
            same = (before.labels[:, None] == after.labels) & np.isin(after.labels, joint)
            is_inner = {first, second}.isdisjoint(self.cut_places)
            if is_inner and self.sections.section[first] == self.sections.section[second]:
                # The operators of one label are in one call.
                same &= before.reads[:, None] == after.reads
            table[same] = 0.0
            self.factors.append(Factor((first, second), table))

    def _handed(
        self,
        position: int,
        states: NDArray[np.intp],
        inner: NDArray[np.intp],
        far: NDArray[np.intp],
    ) -> NDArray[np.float64]:
        """Return what it costs to hand a tensor to readers in its call and in others.

        Args:
            position: The tensor's.
            states: The states in which it is made.
            inner: Bit sets of the states that readers in its call need.
            far: Bit sets of the states that readers in other calls need.
        """
        tensor = self.problem.tensors[position]
        always = 1 << self.problem.outside if tensor.is_output else 0
        near = self.conversions.multicast[tensor.transition]
        entered = self.entered[tensor.transition]
        # Each is a bound alone: the one leaves out private states that other calls enter, the other
        # those inside its own call.
        handed: NDArray[np.float64] = np.maximum(
            near[states, inner | far & self.shared | always],
            entered[states, far | inner & self.shared | always],
        )
        return handed

    def _add_tensor(self, position: int, tensor: ProblemTensor) -> None:
        readers = tuple(dict.fromkeys(tensor.consumers))
        if not readers:
            super()._add_tensor(position, tensor)
            return
        producer = tensor.producer
        sizes = [len(self.values[op].labels) for op in (producer, *readers[:_TWO]) if op >= 0]
        # A table over the producer and both readers is exact; beyond its limit a variable for the
        # set of states stands between them, and each table is over two.
        if len(readers) > _TWO or int(np.prod(sizes)) > _PAIR_ENTRIES:
            self._add_far_set(position, tensor, readers)
            return
        inner: list[NDArray[np.intp]] = []
        far: list[NDArray[np.intp]] = []
        impossible: list[NDArray[np.bool_]] = []
        for op in readers:
            bits = 1 << self.values[op].sources[None, :]
            if producer < 0:
                inner.append(np.zeros_like(bits))
                far.append(bits)
                impossible.append(np.zeros(bits.shape, dtype=bool))
                continue
            relation = self._relation(producer, op)
            inner.append(np.where(relation.inside | relation.apart, 0, bits))
            far.append(np.where(relation.apart & ~relation.inside, bits, 0))
            impossible.append(relation.impossible)
        outside = np.array([self.problem.outside])
        states = outside if producer < 0 else self.values[producer].states
        if len(readers) == 1:
            table = self._handed(position, states[:, None], inner[0], far[0])
            table = np.where(impossible[0], np.inf, table)
        else:
            table = self._handed(
                position,
                states[:, None, None],
                inner[0][:, :, None] | inner[1][:, None, :],
                far[0][:, :, None] | far[1][:, None, :],
            )
            table = np.where(impossible[0][:, :, None] | impossible[1][:, None, :], np.inf, table)
        self._add_between(producer, readers, table)

    def _add_far_set(self, position: int, tensor: ProblemTensor, readers: tuple[int, ...]) -> None:
        """Add a variable for how a tensor is made and in which states others have it."""
        producer = tensor.producer
        wanted = tuple(sorted({int(s) for op in readers for s in self.values[op].sources}))
        masks = set_masks(wanted)
        always = 1 << self.problem.outside if tensor.is_output else 0
        entered = self.entered[tensor.transition][:, masks | always]
        variable = len(self.domains)
        self.sets.append((position, wanted))
        if producer < 0:
            self.domains.append(len(masks))
            self.factors.append(Factor((variable,), entered[self.problem.outside]))
            for op in readers:
                has = (masks[:, None] >> self.values[op].sources) & 1
                self.factors.append(Factor((variable, op), np.where(has, 0.0, np.inf)))
            return
        producer_values = self.values[producer]
        names = [
            (make, state, backend, alone, label if self._is_tied(label) else -1)
            for make, state, backend, alone, label in zip(
                producer_values.makes.tolist(),
                producer_values.states.tolist(),
                producer_values.backends.tolist(),
                producer_values.alone.tolist(),
                producer_values.labels.tolist(),
                strict=True,
            )
        ]
        # Values that readers cannot tell apart share one, or the variable would have a value for
        # each label.
        kinds = list(dict.fromkeys(names))
        kind_of = np.array([kinds.index(name) for name in names])
        examples = np.array([names.index(kind) for kind in kinds])
        self.domains.append(len(kinds) * len(masks))
        table = np.full((len(names), len(kinds), len(masks)), np.inf)
        table[np.arange(len(names)), kind_of] = entered[producer_values.states]
        self.factors.append(Factor((producer, variable), table.reshape(len(names), -1)))
        for op in readers:
            relation = self._relation(producer, op)
            bits = 1 << self.values[op].sources[None, :]
            need = np.where(relation.apart | (bits & self.shared > 0), bits, 0)
            need = np.where(relation.inside, 0, need)[examples]
            lacking = (need[:, None, :] & ~masks[None, :, None]) > 0
            lacking |= relation.impossible[examples][:, None, :]
            having = np.where(lacking, np.inf, 0.0).reshape(-1, lacking.shape[-1])
            self.factors.append(Factor((variable, op), having))

    def _is_tied(self, label: int) -> bool:
        return label >= 0 and len(self.problem.labels[label].ops) > 1

    def _add_crossings(self) -> None:
        """Add none: calls are charged by phases."""

    def _add_spine(self) -> None:
        """Add the overheads: of cuts in a call of their own, and along one path of each middle."""
        overheads = np.array([*self.problem.overheads, 0.0])
        for cut in self.sections.cuts:
            values = self.values[cut]
            begins = np.where(values.reads == LAST, overheads[values.backends], 0.0)
            self._add_alone(cut, begins)
        for path in filter(None, self.sections.paths):
            self._add_path(path, MIDDLE, overheads)

    def _add_path(self, path: Sequence[int], reads: int, overheads: NDArray[np.float64]) -> None:
        """Add the overheads of the calls along a path whose operators read in some phase."""
        values = self.values[path[0]]
        begins = np.where(values.reads == reads, overheads[values.backends], 0.0)
        self._add_alone(path[0], begins)
        for before, after in pairwise(path):
            values = self.values[after]
            begins = self._relation(before, after).apart & (values.reads == reads)
            table = np.where(begins, overheads[values.backends], 0.0)
            self.factors.append(Factor((before, after), table))


def solve_phased(search: Search) -> Optimum | None:
    """Return the optimum of the tables of labels with their phases; None if they are large.

    Its value is a bound on every plan with its calls.
    """
    problem = search.problem
    if problem.count > _MOST_OPS:
        return None
    layout = search.chain.layout if search.chain else None
    sections = find_sections(problem, layout.cuts if layout else ())
    if sections is None:
        return None
    model = PhasedBuilder(problem, search.conversions, sections, layout).build()
    chain = CutChain(problem, search.conversions, model, layout) if layout else None
    engine = Engine(problem, model, chain, limit=_MOST_ENTRIES)
    return engine.solve([Scenario(spine=1.0)])[0] if engine.order else None


def _entered(conversions: Conversions, problem: PlacementProblem) -> NDArray[np.float64]:
    """Return f64[X, S, 2**S]: conversions where private states are entered from shared ones."""
    states, private = problem.states, sorted(problem.private)
    if not private:
        return conversions.multicast
    shared = [s for s in range(states) if s not in problem.private]
    costs = np.full_like(conversions.multicast, np.inf)
    costs[:, :, 0] = 0.0
    every = range(1, 1 << states)
    for subset in range(1, 1 << len(shared)):
        at = [s for place, s in enumerate(shared) if subset >> place & 1]
        bits = sum(1 << s for s in at)
        entering = conversions.direct[:, at, :].min(1)  # f64[X, S]
        for wanted in every:
            if wanted & ~bits & sum(1 << s for s in shared):
                continue
            cost = conversions.multicast[:, :, bits].copy()
            for s in private:
                if wanted >> s & 1:
                    cost += entering[:, None, s]
            np.minimum(costs[:, :, wanted], cost, out=costs[:, :, wanted])
    return costs
