# SPDX-License-Identifier: Apache-2.0
"""From what is known of costs to a problem for the search, and back.

State 0 is a plain tensor in host memory. Each target has a private state, in which tensors lie
inside its calls, so that a graph compiler's regions need not be listed: an operator is priced
inside a call, and leaving the call costs what the border's bytes cost. Where two targets may
exchange tensors in blocks of channels, that is the last state: next to nothing from theirs, as far
as measured boundaries do not say otherwise, and a reorder from the plain one. Where an input or
output is at home on a device, state 0 of that value is there, and one more state is the host's.
Regions that were measured are labels and intervals of their own, from state 0 to state 0, at what
they were measured to cost and their copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError
from intarsia.search.marginals import min_marginals
from intarsia.search.problem import Interval, Label, PlacementProblem, ProblemTensor
from intarsia.tuning.costing.model import (
    LEAST_BYTE_SECONDS,
    OPTIMISM,
    TYPICAL_BYTE_SECONDS,
    TargetModel,
    Units,
)
from intarsia.tuning.proposals.space import HOST, NOBODY, Blocked, CopySeconds, Targets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.tuning.proposals.space import Space

LEAST_SECONDS = 1e-9


def best_with(problem: PlacementProblem) -> dict[tuple[int, int], float]:
    """Return by target and unit the seconds of the best plan that has it there.

    Returns:
        Nothing where there is no such plan; nothing at all if the graph is too wide to tell.
    """
    try:
        marginals = min_marginals(problem).labels
    except InternalError:
        return {}
    best: dict[tuple[int, int], float] = {}
    for label, seconds in zip(problem.labels, marginals.tolist(), strict=True):
        for unit in label.ops if math.isfinite(seconds) else ():
            place = (label.backend, unit)
            best[place] = min(best.get(place, math.inf), seconds)
    return best


@dataclass(frozen=True, slots=True)
class Facts:
    """What a problem is made from.

    Attributes:
        models: By position of the target.
        regions: By position of the target and units: seconds of regions that were measured.
        excluded: Targets and units that must not be chosen: they failed.
        copy_seconds: What it costs to bring bytes to a target's memory or back: 0 for the host's.
        nbytes: Bytes of the constants of a unit.
        saved_share: Which part of a tensor's price is saved where it crosses in blocks of channels.
    """

    models: Mapping[int, TargetModel]
    regions: Mapping[tuple[int, Units], float]
    excluded: frozenset[tuple[int, Units]]
    copy_seconds: CopySeconds
    nbytes: Callable[[int], int]
    saved_share: float = 1.0


def formulate(space: Space, facts: Facts) -> PlacementProblem:
    """Return the problem of covering the units of a graph.

    Args:
        space: What may be chosen.
        facts: What it costs.
    """
    units = space.units
    positions = sorted(facts.models)
    states = {position: 1 + i for i, position in enumerate(positions)}
    labels: list[Label] = []
    for unit in range(len(units.units)):
        labels += [
            _label(position, (unit,), states[position], facts)
            for position in units.units[unit].targets
            if position in states and (position, (unit,)) not in facts.excluded
        ]
    for group in space.groups:
        at = group.position, group.units
        if (
            at[0] in states
            and at not in facts.excluded
            and (group.is_declared or at in facts.regions)
        ):
            labels.append(_group_label(*at, states[at[0]], facts))
    intervals: list[Interval] = []
    for (position, members), seconds in sorted(facts.regions.items()):
        if position not in states or (position, members) in facts.excluded:
            continue
        inside = max(LEAST_SECONDS, seconds - facts.models[position].call_seconds)
        inside += space.copied_around(position, members, facts.copy_seconds)
        nbytes = sum(facts.nbytes(unit) for unit in members)
        key = ("measured", position, members)
        if members[-1] - members[0] == len(members) - 1 and len(members) > 1:
            ends = members[0] - 1, members[-1]
            intervals.append(Interval(*ends, 0, 0, inside, position, key, nbytes))
        elif 1 < len(members) <= _MOST_LABEL_UNITS:
            labels.append(Label(members, 0, 0, inside, position, key, True, nbytes))
    tensors, transitions = _tensors(space, states, facts)
    return PlacementProblem(
        count=len(units.units),
        labels=tuple(labels),
        tensors=tensors,
        transitions=transitions,
        outside=0,
        call_seconds=tuple(
            facts.models[position].call_seconds if position in states else 0.0
            for position in range(1 + max(positions))
        ),
        intervals=tuple(intervals),
        private=frozenset(states.values()),
        devices=space.memories if space.limits else (),
        memory=space.limits,
    )


_MOST_LABEL_UNITS = 12
"""Units of a measured region that is not an interval; a larger one only corrects the marginals."""


def _label(position: int, members: Units, state: int, facts: Facts) -> Label:
    model = facts.models[position]
    (unit,) = members
    seconds = model.marginals[unit] * (1.0 if unit in model.measured else OPTIMISM)
    key = ("unit", position, members)
    return Label(
        members, state, state, max(LEAST_SECONDS, seconds), position, key, nbytes=facts.nbytes(unit)
    )


def _group_label(position: int, group: Units, state: int, facts: Facts) -> Label:
    """Return the label of units that run as one.

    What was not measured may be as fast as the dearest of its units by itself.
    """
    model = facts.models[position]
    apart = [model.marginals[unit] for unit in group]
    inside = model.groups.get(group, OPTIMISM * max(apart))
    nbytes = sum(facts.nbytes(unit) for unit in group)
    key = ("group", position, group)
    seconds = max(LEAST_SECONDS, min(sum(apart), inside))
    return Label(group, state, state, seconds, position, key, nbytes=nbytes)


def _of_two(blocked: Blocked | None, states: Mapping[int, int]) -> Blocked | None:
    """Return which targets may exchange tensors in blocks, if at least two take part."""
    if blocked is None:
        return None
    every = NOBODY.union(*blocked.makers.values(), *blocked.readers.values())
    return blocked if len(every & states.keys()) > 1 else None


def _tensors(
    space: Space, states: Mapping[int, int], facts: Facts
) -> tuple[tuple[ProblemTensor, ...], tuple[NDArray[np.float64], ...]]:
    """Return every value that crosses between units, and a matrix for each kind."""
    graph, owner = space.units.graph, space.units.owner
    blocked = _of_two(space.blocked, states)
    matrices: dict[tuple[int, Targets, Targets, int], int] = {}
    transitions: list[NDArray[np.float64]] = []
    tensors: list[ProblemTensor] = []
    for value in graph.values:
        if value.constant is not None:
            continue
        producer = -1 if value.producer < 0 else owner[value.producer]
        consumers = tuple(sorted({owner[reader] for reader in value.consumers} - {producer}))
        is_output = value.id in graph.output_set
        if not consumers and not is_output:
            continue
        home = space.borders.get(value.id, HOST)
        both = (NOBODY, NOBODY)
        if blocked is not None:
            every = blocked.makers, blocked.readers
            both = every[0].get(value.id, NOBODY), every[1].get(value.id, NOBODY)
        kind = (value.nbytes, *both, home)
        if kind not in matrices:
            matrices[kind] = len(transitions)
            matrix = _matrix(value.nbytes, states, facts)
            if blocked is not None:
                matrix = _with_blocks(matrix, states, value.nbytes, both, facts.saved_share)
            if space.borders:
                matrix = _with_host(matrix, states, value.nbytes, home, space, facts)
            transitions.append(matrix)
        tensors.append(ProblemTensor(producer, consumers, matrices[kind], is_output))
    if not transitions:
        transitions.append(_matrix(0, states, facts))
    return tuple(tensors), tuple(transitions)


def _with_blocks(
    matrix: NDArray[np.float64],
    states: Mapping[int, int],
    nbytes: int,
    both: tuple[Targets, Targets],
    saved_share: float,
) -> NDArray[np.float64]:
    """Return a matrix with one more state: the layout in blocks that targets share."""
    makers, readers = both
    blocks = len(matrix)
    larger = np.full((blocks + 1, blocks + 1), np.inf)
    larger[:blocks, :blocks] = matrix
    larger[blocks, blocks] = 0.0
    if makers and readers:
        larger[0, blocks] = larger[blocks, 0] = TYPICAL_BYTE_SECONDS * nbytes
    least = LEAST_BYTE_SECONDS * nbytes
    for position, state in states.items():
        seconds = least + (1 - saved_share) * max(0.0, matrix[0, state] - least)
        if position in makers:
            larger[state, blocks] = seconds
        if position in readers:
            larger[blocks, state] = seconds
    return larger


def _with_host(
    matrix: NDArray[np.float64],
    states: Mapping[int, int],
    nbytes: int,
    home: int,
    space: Space,
    facts: Facts,
) -> NDArray[np.float64]:
    """Return a matrix with one more state: the host's memory, for a value with another home.

    State 0 is then that home, from which targets in its memory are reached without a copy. Nobody
    needs the new state of a value whose home is the host.
    """
    host = len(matrix)
    larger = np.full((host + 1, host + 1), np.inf)
    larger[:host, :host] = matrix
    larger[host, host] = 0.0
    if home == HOST:
        return larger
    larger[host, :host], larger[:host, host] = matrix[0], matrix[:, 0]
    larger[0, 1:host] = larger[1:host, 0] = np.inf
    larger[host, 0] = larger[0, host] = facts.copy_seconds(home, nbytes)
    for position, state in states.items():
        if space.memory(position) == space.memory(home):
            larger[0, state] = larger[state, 0] = facts.models[position].byte_seconds * nbytes
            larger[host, state] = larger[state, host] = np.inf
    return larger


def _matrix(nbytes: int, states: Mapping[int, int], facts: Facts) -> NDArray[np.float64]:
    count = 1 + len(states)
    matrix = np.full((count, count), np.inf)
    np.fill_diagonal(matrix, 0.0)
    for position, state in states.items():
        seconds = facts.models[position].byte_seconds * nbytes
        seconds += facts.copy_seconds(position, nbytes)
        matrix[0, state] = matrix[state, 0] = seconds
    return matrix
