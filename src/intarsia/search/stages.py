# SPDX-License-Identifier: Apache-2.0
"""Tables of labels with the call that runs them, for a given sequence of calls.

The backends of the first calls are given, one *stage* for each; what runs after them is the
*rest*. Each value of an operator says its label and its stage. Stages follow one another, so who
reads may not be in an earlier stage than who makes; what is of one stage is of one call, what is of
two stages is certainly apart. So a tensor that goes to several calls is priced as plans are. Of the
rest, labels and conversions count, and the calls that one path cannot avoid. If nothing is left
for the rest, the tables hold the price of the plan; otherwise they bound all plans that begin
with these calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.elimination import Factor
from intarsia.search.phases import PhasedBuilder, Relation
from intarsia.search.sections import Sections
from intarsia.search.ties import find_ties, longest_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.conversions import Conversions
    from intarsia.search.problem import PlacementProblem, ProblemTensor

_JOINT_ENTRIES = 1 << 13


@dataclass(frozen=True, order=True, slots=True)
class SequencedCall:
    """One call of a sequence.

    Attributes:
        backend: Who runs it.
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
        nothing = Sections((), (-1,) * problem.count, ((),))
        super().__init__(problem, conversions, nothing)

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
        made, read = self.values[producer], self.values[op]
        labels = made.labels[:, None] == read.labels
        inside = labels & (read.labels >= 0)
        is_one_call = (made.backends[:, None] == read.backends) & (read.backends >= 0)
        is_one_call &= ~(made.alone[:, None] | read.alone)
        is_one_call |= inside
        makes, reads = made.makes[:, None], read.reads
        differ = makes != reads
        impossible = (makes > reads) | (differ & inside)
        impossible |= ~differ & (reads < self.rest) & ~is_one_call
        return Relation(impossible, inside, differ | ~is_one_call)

    def _tie(self) -> None:
        for (first, second), positions in sorted(find_ties(self.problem, self.tied).items()):
            before, after = self.values[first], self.values[second]
            joint = np.array(sorted(positions))
            holds = np.isin(before.labels, joint)[:, None], np.isin(after.labels, joint)
            same = (before.labels[:, None] == after.labels) & holds[1]
            same &= before.reads[:, None] == after.reads
            table = np.where((holds[0] | holds[1]) & ~same, np.inf, 0.0)
            self.factors.append(Factor((first, second), table))

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
        found: NDArray[np.float64] | None = None
        for choice in range(1 << len(shared)):
            extra = sum(1 << s for place, s in enumerate(shared) if choice >> place & 1)
            cost = multicast[states, plain | extra]
            at = (plain | extra | 1 << states) & self.shared
            for sources, _, enters in entries:
                cost = cost + np.where(enters, entering[at, sources], 0.0)
            found = cost if found is None else np.minimum(found, cost)
        assert found is not None
        return found

    @staticmethod
    def _on_axis(array: NDArray[np.intp], axis: int, axes: int) -> NDArray[np.intp]:
        return array.reshape([-1 if each == axis else 1 for each in range(axes)])

    def _add_spine(self) -> None:
        """Add the overheads of calls of the rest, along the longest path."""
        if not self.is_open:
            return
        overheads = np.array([*self.problem.overheads, 0.0])
        path, _ = longest_path(self.problem)
        if path:
            values = self.values[path[0]]
            begins = np.where(values.reads == self.rest, overheads[values.backends], 0.0)
            self._add_alone(path[0], begins)
        for before, after in pairwise(path):
            relation = self._relation(before, after)
            values = self.values[after]
            begins = relation.apart & (values.reads == self.rest)
            table = np.where(begins, overheads[values.backends], 0.0)
            self.factors.append(Factor((before, after), table))


def _entering(conversions: Conversions, problem: PlacementProblem) -> NDArray[np.float64]:
    """Return f64[X, 2**S, S]: entering a state from the cheapest shared one of a bit set."""
    states = problem.states
    direct = conversions.direct
    found = np.full((len(direct), 1 << states, states), np.inf)
    for bits in range(1, 1 << states):
        at = [s for s in range(states) if bits >> s & 1]
        found[:, bits] = direct[:, at, :].min(1)
    return found
