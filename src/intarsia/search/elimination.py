# SPDX-License-Identifier: Apache-2.0
"""Exact minimisation of a sum of tables by eliminating one variable after another.

R. Dechter, "Bucket elimination: a unifying framework for reasoning" (Artificial Intelligence 113,
1999). The order is found first, on the scopes alone; then the tables are combined, for many
scenarios of the same structure at once: a table may have a leading axis of scenarios.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import log2
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# 160 MB.
TABLE_LIMIT = 20_000_000
# Sums of integers do not depend on their order, and ties not on a machine's last bits.
_LOG_SCALE = 1 << 20
_FEW_FACTORS = 2
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Factor:
    """A table over some variables, with or without a leading axis of scenarios."""

    scope: tuple[int, ...]
    table: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Order:
    """The order in which variables are eliminated.

    Attributes:
        steps: Each variable with its neighbours at that time, ordered by when they go themselves.
        entries: The size of the largest table.
        place: By variable, when it goes; those that stay come last.
    """

    steps: tuple[tuple[int, tuple[int, ...]], ...]
    entries: float
    place: tuple[int, ...]


def find_order(
    domains: Sequence[int],
    scopes: Sequence[tuple[int, ...]],
    *,
    staying: Sequence[int] = (),
    limit: float = TABLE_LIMIT,
) -> Order | None:
    """Order by the least table first, or return None if a table would exceed the limit.

    Weights are integers, and ties go to the first variable, so that the order is the same
    everywhere.
    """
    adjacent = adjacency(len(domains), scopes)
    logs = [round(log2(size) * _LOG_SCALE) for size in domains]
    most = log2(limit) * _LOG_SCALE
    weights = [logs[v] + sum(logs[x] for x in near) for v, near in enumerate(adjacent)]
    waiting = [True] * len(domains)
    for variable in staying:
        waiting[variable] = False
    # The least product of domains first: the rule of minimal weight (Koller and Friedman,
    # "Probabilistic Graphical Models", 2009, section 9.4.3). The best order is NP-hard to find
    # (Arnborg, Corneil and Proskurowski, SIAM Journal on Algebraic Discrete Methods 8(2), 1987),
    # and not needed: graphs of networks have widths from 1 (VGG) over 2 (ResNet-50, Inception) to 4
    # (NASNet-A).
    heap = [(weights[v], v) for v in range(len(domains)) if waiting[v]]
    heapify(heap)
    steps: list[tuple[int, set[int]]] = []
    largest = 0
    while heap:
        weight, variable = heappop(heap)
        # Left from before its weight changed.
        if not waiting[variable] or weight != weights[variable]:
            continue
        if weight > most:
            return None
        largest = max(largest, weight)
        waiting[variable] = False
        near = adjacent[variable]
        steps.append((variable, near))
        for x in near:
            mine = adjacent[x]
            mine.discard(variable)
            change = -logs[variable]
            if len(near) > 1:
                # What went leaves a table over its neighbours, so that they all share one now.
                missing = near - mine
                missing.discard(x)
                if missing:
                    mine |= missing
                    change += sum(logs[y] for y in missing)
            if change:
                weights[x] += change
            if waiting[x]:
                heappush(heap, (weights[x], x))
    place = [0] * len(domains)
    for position, (variable, _) in enumerate(steps):
        place[variable] = position
    for position, variable in enumerate(staying):
        place[variable] = len(steps) + position
    by_place = place.__getitem__
    return Order(
        steps=tuple((variable, tuple(sorted(near, key=by_place))) for variable, near in steps),
        entries=2.0 ** (largest / _LOG_SCALE),
        place=tuple(place),
    )


def adjacency(count: int, scopes: Sequence[tuple[int, ...]]) -> list[set[int]]:
    """Return by variable those that share a table with it."""
    adjacent: list[set[int]] = [set() for _ in range(count)]
    for scope in scopes:
        if len(scope) > 1:
            for variable in scope:
                adjacent[variable].update(scope)
                adjacent[variable].discard(variable)
    return adjacent


@dataclass(frozen=True, slots=True)
class Eliminated:
    """What is left, and how to find the assignment again.

    Attributes:
        choices: By step, the best value for each assignment of the neighbours.
        left: Tables over kept variables only, or over none (constants), each with the variable
            that left it behind, -1 for a factor that was given like this.
    """

    choices: list[NDArray[np.integer]]
    left: list[tuple[int, Factor]]

    def constant(self) -> NDArray[np.float64]:
        """Return f64[B] or f64[]: the minimum, where no variable was kept."""
        return sum((factor.table for _, factor in self.left), start=np.zeros(()))


def eliminate(domains: Sequence[int], factors: Sequence[Factor], order: Order) -> Eliminated:
    """Minimise the sum of all factors over the variables of the order's steps."""
    place = order.place
    buckets: list[list[Factor]] = [[] for _ in domains]
    gone = len(order.steps)
    left: list[tuple[int, Factor]] = []
    for given in factors:
        factor = ordered(given, place)
        if factor.scope and place[factor.scope[0]] < gone:
            buckets[factor.scope[0]].append(factor)
        else:
            left.append((-1, factor))
    choices: list[NDArray[np.integer]] = []
    for variable, near in order.steps:
        total = combine(buckets[variable], (variable, *near), domains)
        buckets[variable] = []
        axis = total.ndim - 1 - len(near)
        # Only which value is best is kept for the way back: a byte for each entry, where tables
        # take eight.
        choices.append(total.argmin(axis).astype(_choice_dtype(domains[variable])))
        message = Factor(near, total.min(axis))
        if near and place[near[0]] < gone:
            buckets[near[0]].append(message)
        else:
            left.append((variable, message))
    return Eliminated(choices, left)


def _choice_dtype(size: int) -> type[np.integer]:
    return np.uint8 if size <= np.iinfo(np.uint8).max else np.int32


def ordered(factor: Factor, place: Sequence[int] | Mapping[int, int]) -> Factor:
    """Return the factor with its axes in the order in which its variables go."""
    scope = factor.scope
    if len(scope) == 1:
        return factor
    places = [place[variable] for variable in scope]
    if len(scope) == _PAIR and places[0] < places[1]:
        return factor
    axes = sorted(range(len(scope)), key=places.__getitem__)
    if axes == list(range(len(scope))):
        return factor
    batch = factor.table.ndim - len(scope)
    table = factor.table.transpose(*range(batch), *(axis + batch for axis in axes))
    return Factor(tuple(scope[axis] for axis in axes), table)


def combine(
    factors: Sequence[Factor], scope: tuple[int, ...], domains: Sequence[int]
) -> NDArray[np.float64]:
    """Return the sum of factors as one table over a scope whose order is theirs."""
    total: NDArray[np.float64] | None = None
    full = tuple([domains[v] for v in scope])
    owned = False
    # Small ones first: sums of those are small, and the large tables are added once.
    for factor in sorted(factors, key=_size) if len(factors) > _FEW_FACTORS else factors:
        table = factor.table
        mine = factor.scope
        if len(mine) != len(scope):
            batch = table.shape[: table.ndim - len(mine)]
            table = table.reshape(
                batch
                + tuple([size if v in mine else 1 for v, size in zip(scope, full, strict=True)])
            )
        if total is None:
            total = table
        # In place, but never in a table that was given.
        elif owned and total.ndim >= table.ndim and total.shape[-len(full) :] == full:
            total += table
        else:
            total = total + table
            owned = True
    if total is None:
        return np.zeros(full)
    if total.shape[total.ndim - len(full) :] != full:
        total = np.broadcast_to(total, total.shape[: total.ndim - len(full)] + full)
    return total


def _size(factor: Factor) -> int:
    return factor.table.size


def recall(
    order: Order,
    eliminated: Eliminated,
    values: NDArray[np.intp],
) -> None:
    """Fill in the best values of all variables that went.

    Args:
        order: The order used.
        eliminated: What `eliminate` returned.
        values: intp[N, B]: by variable and column; kept variables hold theirs already.
    """
    rows = np.arange(values.shape[1])
    for (variable, near), choice in zip(
        reversed(order.steps), reversed(eliminated.choices), strict=True
    ):
        index = tuple(values[x] for x in near)
        if choice.ndim > len(near):
            index = (rows, *index)
        values[variable] = choice[index] if index else choice
