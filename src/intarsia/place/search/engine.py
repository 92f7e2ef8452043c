# SPDX-License-Identifier: Apache-2.0
"""One structure, many scenarios: cheapest plans for several variations of the costs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.place.search.elimination import (
    TABLE_LIMIT,
    Factor,
    Order,
    eliminate,
    find_order,
    recall,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.place.search.model import Model
    from intarsia.place.search.problem import Piece, Problem


@dataclass(frozen=True, eq=False, slots=True)
class Scenario:
    """A variation of the costs.

    Attributes:
        strain: How much of a call's overhead each crossing tensor pays in advance.
        barred: Backends that may not be used.
        lean: Seconds by which each operator prefers earlier backends, per position.
        extra: f64, flat as the model's values: seconds added to each value.
    """

    strain: float = 0.0
    barred: frozenset[int] = frozenset()
    lean: float = 0.0
    extra: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The cheapest plan of a scenario.

    Attributes:
        value: Its cost in the scenario; infinite if there is none.
        chosen: The pieces, ordered by their first operators.
    """

    value: float
    chosen: tuple[Piece, ...]


def costs_of(model: Model, scenarios: Sequence[Scenario]) -> NDArray[np.float64]:
    """Return f64[B, values]: what each value costs in each scenario."""
    costs = np.tile(model.seconds, (len(scenarios), 1))
    for row, scenario in enumerate(scenarios):
        if scenario.barred:
            costs[row, np.isin(model.backends, sorted(scenario.barred))] = np.inf
        if scenario.lean:
            costs[row] += scenario.lean * np.maximum(model.backends, 0)
        if scenario.extra is not None:
            costs[row] += scenario.extra
    return costs


class Engine:
    """Solves scenarios of one model exactly, if its tables are small enough.

    Args:
        problem: The problem.
        model: Its model.
        strained: Whether scenarios may have strain.
        limit: The most entries of one table, all scenarios together.
    """

    def __init__(
        self, problem: Problem, model: Model, *, strained: bool, limit: float = TABLE_LIMIT
    ) -> None:
        self.problem = problem
        self.model = model
        self.strained = strained
        self.limit = limit
        self.order: Order | None = find_order(
            model.domains, model.scopes(strained=strained), limit=limit
        )

    def solve(self, scenarios: Sequence[Scenario]) -> list[Found]:
        """Return the cheapest plan of each scenario."""
        if self.order is None:
            raise AssertionError("too wide")
        batch = max(1, int(self.limit / self.order.entries))
        found = []
        for start in range(0, len(scenarios), batch):
            found += self._solve(self.order, scenarios[start : start + batch])
        return found

    def _solve(self, order: Order, scenarios: Sequence[Scenario]) -> list[Found]:
        model = self.model
        factors = model.unary(costs_of(model, scenarios)) + model.factors
        factors += strained(model, scenarios)
        eliminated = eliminate(model.domains, factors, order)
        values = np.zeros((len(model.domains), len(scenarios)), dtype=np.intp)
        recall(order, eliminated, values)
        totals = np.broadcast_to(eliminated.constant + model.constant, len(scenarios))
        return [
            Found(float(total), self.decode(values[:, row]) if np.isfinite(total) else ())
            for row, total in enumerate(totals)
        ]

    def decode(self, values: NDArray[np.intp]) -> tuple[Piece, ...]:
        """Return the pieces that an assignment means, ordered by their first operators."""
        labels = self.problem.labels
        chosen = (
            labels[options[value]]
            for options, value in zip(self.model.options, values.tolist(), strict=False)
        )
        return tuple(label for op, label in enumerate(chosen) if label.ops[0] == op)


def strained(model: Model, scenarios: Sequence[Scenario]) -> list[Factor]:
    """Return the tables of strain, where any scenario has some."""
    strains = np.array([scenario.strain for scenario in scenarios])
    if not strains.any():
        return []
    tables: dict[int, NDArray[np.float64]] = {}
    for factor in model.strains:
        if id(factor.table) not in tables:
            tables[id(factor.table)] = strains[:, None, None] * factor.table
    return [Factor(factor.scope, tables[id(factor.table)]) for factor in model.strains]
