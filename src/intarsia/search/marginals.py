# SPDX-License-Identifier: Apache-2.0
"""What it would cost to decide otherwise: by label, the cheapest plan that uses it.

After the upward pass of elimination, a second pass downward gives every variable the cost of the
best completion of each of its values (a message-passing scheme: S. M. Aji and R. J. McEliece,
"The generalized distributive law", IEEE Transactions on Information Theory 46(2), 2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError
from intarsia.search.elimination import Factor, Order, combine, ordered
from intarsia.search.engine import Scenario
from intarsia.search.search import Search

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.problem import PlacementProblem

_MOST_FORCED = 1e9
"""Entries of tables that are made for intervals, all labels together: a few seconds."""

_BATCH = 256


@dataclass(frozen=True, eq=False, slots=True)
class Marginals:
    """The cost of the best plan with each label, before calls are formed.

    Attributes:
        labels: f64 by position in `Problem.labels`, infinite where no plan can use it.
        best: The cost of the best plan.
    """

    labels: NDArray[np.float64]
    best: float


def min_marginals(problem: PlacementProblem) -> Marginals:
    """Return by label what the cheapest plan costs that uses it.

    Calls and their overheads do not count, and neither does a cycle among several labels that
    leave their regions in more than one place. Intervals may surround the label, unless that
    would take long (many labels, large tables): then the plans compared have none.

    Raises:
        InternalError: The tables are too large for it.
    """
    if problem.intervals:
        search = Search(problem, keep_all=True, intervals=True)
        order = search.engine.order
        if order is not None and _forced_entries(problem, search, order) <= _MOST_FORCED:
            return _forced(problem, search)
    search = Search(problem, keep_all=True, intervals=False)
    order = search.engine.order
    if order is None:
        raise InternalError("the tables of this problem are too large for marginals")
    model = search.model
    beliefs = value_marginals(model.domains, [*model.unary(model.seconds), *model.factors], order)
    labels = np.full(len(problem.labels), np.inf)
    for op, options in enumerate(model.options):
        for value, option in enumerate(options):
            if option >= 0:
                labels[option] = min(labels[option], beliefs[op][value] + model.constant)
    return Marginals(labels, float(labels.min(initial=np.inf)))


def _forced_entries(problem: PlacementProblem, search: Search, order: Order) -> float:
    """Return an upper bound of the entries of all tables that `_forced` makes."""
    return len(problem.labels) * len(order.steps) * order.entries


def _forced(problem: PlacementProblem, search: Search) -> Marginals:
    """Solve once for each label, with every other label of its first operator barred."""
    model = search.model
    scenarios = []
    for position, label in enumerate(problem.labels):
        op = label.ops[0]
        extra = np.zeros(len(model.seconds))
        values = slice(model.offsets[op], model.offsets[op + 1])
        extra[values] = [0.0 if option == position else np.inf for option in model.options[op]]
        scenarios.append(Scenario(held=op, extra=extra))
    best = search.engine.solve([Scenario()])[0].value
    costs = [
        optimum.value
        for start in range(0, len(scenarios), _BATCH)
        for optimum in search.engine.solve(scenarios[start : start + _BATCH])
    ]
    return Marginals(np.array(costs), best)


def value_marginals(
    domains: Sequence[int], factors: Sequence[Factor], order: Order
) -> list[NDArray[np.float64]]:
    """Return by variable and value the least sum of all factors with that value."""
    place = order.place
    buckets: list[list[Factor]] = [[] for _ in domains]
    constant = 0.0
    for factor in factors:
        if factor.scope:
            aligned = ordered(factor, place)
            buckets[aligned.scope[0]].append(aligned)
        else:
            constant += float(factor.table)
    tables: dict[int, NDArray[np.float64]] = {}
    messages: dict[int, NDArray[np.float64]] = {}
    rooted = []
    for variable, near in order.steps:
        tables[variable] = combine(buckets[variable], (variable, *near), domains)
        messages[variable] = tables[variable].min(0)
        if near:
            buckets[near[0]].append(Factor(near, messages[variable]))
        else:
            rooted.append((variable, float(messages[variable])))
    total = constant + sum(cost for _, cost in rooted)
    own = dict(rooted)
    scopes = dict(order.steps)
    marginals: list[NDArray[np.float64]] = [np.zeros(size) for size in domains]
    beliefs: dict[int, NDArray[np.float64]] = {}
    for variable, near in reversed(order.steps):
        table = tables[variable]
        if near:
            parent = (near[0], *scopes[near[0]])
            over = tuple(axis for axis, each in enumerate(parent) if each not in near)
            # What the parent knows without what this variable told it itself.
            outside = _without(beliefs[near[0]].min(over), messages[variable])
            beliefs[variable] = table + outside
        else:  # the other components at their best
            beliefs[variable] = table + (total - own[variable])
        marginals[variable] = beliefs[variable].reshape(domains[variable], -1).min(1)
    return marginals


def _without(belief: NDArray[np.float64], message: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a sum less one of its terms; what is impossible in either stays impossible."""
    possible = np.isfinite(message) & np.isfinite(belief)
    outside = np.full(belief.shape, np.inf)
    np.subtract(belief, message, out=outside, where=possible)
    return outside
