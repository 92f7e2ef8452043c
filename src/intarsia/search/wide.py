# SPDX-License-Identifier: Apache-2.0
"""Problems whose tables would be too large: neighbourhood search, a bound, then CP-SAT."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from intarsia.search.bucket import bound_by_splitting, improve_by_freezing
from intarsia.search.elimination import Factor
from intarsia.search.engine import Engine, Scenario
from intarsia.search.model import Model, ModelBuilder
from intarsia.search.problem import Join, Piece, ProblemTensor

if TYPE_CHECKING:
    from intarsia.search.problem import PlacementProblem
    from intarsia.search.search import Search

_FREEZING_LIMIT = 50_000
_SPLITTING_LIMIT = 200_000
_ROUNDS = 40
_PATIENCE = 8
_HUGE = 1e6


@dataclass(frozen=True, slots=True)
class Wide:
    """What a search without exact tables found.

    Attributes:
        bound: No plan costs less before calls are formed.
        chosen: The pieces of plans, the best last; empty if none was found.
        rounds: How many neighbourhoods were searched.
    """

    bound: float
    chosen: tuple[tuple[Piece, ...], ...]
    rounds: int


def search_wide(search: Search, seconds: float, seed: int) -> Wide:
    """Search neighbourhoods of the best of several starts, and bound the optimum.

    Args:
        search: The problem.
        seconds: How long at most to go on.
        seed: For what is tried at random.
    """
    deadline = time.monotonic() + seconds
    model = search.model
    finite = model.seconds[np.isfinite(model.seconds)]
    huge = _HUGE * max(float(finite.sum()), _largest(model), 1e-9)
    factors = [
        Factor(factor.scope, np.minimum(factor.table, huge))
        for factor in (*model.unary(model.seconds), *model.factors)
    ]
    relaxed = bound_by_splitting(model.domains, factors, _SPLITTING_LIMIT)
    starts = [relaxed.values]
    for chosen in _simple_plans(search):
        values = assignment(search.problem, model, chosen)
        if values is not None:
            starts.append(values)
    best = min(starts, key=lambda values: cost_of(factors, values))
    least = cost_of(factors, best)
    random = Random(seed)
    plans: list[list[int]] = [best]
    rounds = idle = 0
    while rounds < _ROUNDS and idle < _PATIENCE and time.monotonic() < deadline:
        rounds += 1
        found = improve_by_freezing(model.domains, factors, best, _FREEZING_LIMIT, random)
        if found.total < least * (1 - 1e-12):
            best, least, idle = found.values, found.total, 0
            plans.append(best)
        else:
            idle += 1
    decoded = [
        decode(search.problem, model, values) for values in plans if cost_of(factors, values) < huge
    ]
    bound = relaxed.total + model.constant
    return Wide(min(bound, least + model.constant), tuple(decoded), rounds)


def cost_of(factors: Sequence[Factor], values: Sequence[int]) -> float:
    """Return the sum of all tables for one assignment."""
    return float(sum(factor.table[tuple(values[v] for v in factor.scope)] for factor in factors))


def assignment(
    problem: PlacementProblem, model: Model, chosen: Sequence[Piece]
) -> list[int] | None:
    """Return the values that mean these labels; None if the model left one of them out."""
    values = [0] * len(model.domains)
    position = {id(label): place for place, label in enumerate(problem.labels)}
    piece_of: list[Piece | None] = [None] * problem.count
    for piece in chosen:
        option = position.get(id(piece), -1)
        for op in piece.ops:
            if option not in model.options[op]:
                return None
            values[op] = model.options[op].index(option)
            piece_of[op] = piece
    for variable, (tensor, wanted) in enumerate(model.sets, start=problem.count):
        made = problem.tensors[tensor]
        maker = piece_of[made.producer] if made.producer >= 0 else None
        for op in made.consumers:
            reader = piece_of[op]
            if reader is not None and reader is not maker:
                values[variable] |= 1 << wanted.index(reader.source)
    return values


def decode(problem: PlacementProblem, model: Model, values: Sequence[int]) -> tuple[Piece, ...]:
    """Return the labels that an assignment means, ordered by their first operators."""
    chosen = [
        problem.labels[options[value]]
        for options, value in zip(model.options, values, strict=False)
    ]
    return tuple(label for op, label in enumerate(chosen) if label.ops[0] == op)


def _largest(model: Model) -> float:
    return max(
        (float(factor.table[np.isfinite(factor.table)].max(initial=0)) for factor in model.factors),
        default=0.0,
    )


def _simple_plans(search: Search) -> list[tuple[Piece, ...]]:
    """Return plans of a model in which joins continue earlier joins, and with each label alone."""
    problem = search.problem
    found: list[tuple[Piece, ...]] = []
    tensors = chained(problem)
    if tensors is not None:
        model = ModelBuilder(problem, search.conversions, tensors=tensors).build()
        engine = Engine(problem, model, strained=False)
        if engine.order is not None:
            found += [each.chosen for each in engine.solve([Scenario()]) if each.chosen]
    for backend in range(problem.backends):
        single = _single(problem, backend)
        if single:
            found.append(single)
    return found


def _single(problem: PlacementProblem, backend: int) -> tuple[Piece, ...]:
    """Return labels of one operator: of one backend where it has one, else the cheapest."""
    best: dict[int, Piece] = {}
    for label in problem.labels:
        if len(label.ops) == 1:
            op = label.ops[0]
            known = best.get(op)
            rank = (label.backend != backend, label.seconds)
            if known is None or rank < (known.backend != backend, known.seconds):
                best[op] = label
    return tuple(best[op] for op in sorted(best)) if len(best) == problem.count else ()


def chained(problem: PlacementProblem) -> list[ProblemTensor] | None:
    """Return tensors in which each join reads the longest earlier join that it continues.

    None if no join continues another.
    """
    joins: dict[tuple[int, ...], Join] = {}
    dropped: dict[int, set[int]] = {}
    added: dict[int, list[int]] = {}
    result = {
        tensor.producer: place for place, tensor in reversed(list(enumerate(problem.tensors)))
    }
    for gather in sorted(problem.gathers, key=lambda gather: gather.op):
        names = gather.tensors
        for length in range(len(names) - 1, 1, -1):
            earlier = joins.get(names[:length])
            if earlier is not None and earlier.op in result:
                rest = set(names[length:])
                for tensor in set(names[:length]) - rest:
                    dropped.setdefault(tensor, set()).add(gather.op)
                added.setdefault(result[earlier.op], []).append(gather.op)
                break
        joins.setdefault(names, gather)
    if not added:
        return None
    return [
        ProblemTensor(
            tensor.producer,
            tuple(
                dict.fromkeys(
                    [op for op in tensor.consumers if op not in dropped.get(place, ())]
                    + added.get(place, [])
                )
            ),
            tensor.transition,
            tensor.is_output,
        )
        for place, tensor in enumerate(problem.tensors)
    ]
