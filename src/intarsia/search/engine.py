# SPDX-License-Identifier: Apache-2.0
"""One structure, many scenarios: cheapest plans for several variations of the costs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError
from intarsia.search.elimination import (
    TABLE_LIMIT,
    Factor,
    Order,
    eliminate,
    find_order,
    ordered,
    recall,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from intarsia.search.intervals import CutChain
    from intarsia.search.model import Model
    from intarsia.search.problem import Piece, PlacementProblem


@dataclass(frozen=True, eq=False, slots=True)
class Scenario:
    """A variation of the costs.

    Attributes:
        crossing_price: How much of a call's overhead each crossing tensor pays in advance.
        spine: Whether the calls that one path cannot avoid are paid: their overhead times this.
        barred: Backends that may not be used.
        lean: Seconds by which each operator prefers earlier backends, per position.
        held: An operator that no interval may cover.
        extra: f64, flat as the model's values: seconds added to each value.
    """

    crossing_price: float = 0.0
    spine: float = 0.0
    barred: frozenset[int] = frozenset()
    lean: float = 0.0
    held: int | None = None
    extra: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Optimum:
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
        chain: The cuts between which intervals are chosen, if there are intervals.
        has_crossings: Whether a scenario's price of crossing and spine count; without, tables are
            smaller.
        limit: The most entries of one table, all scenarios together.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        model: Model,
        chain: CutChain | None = None,
        *,
        has_crossings: bool = True,
        limit: float = TABLE_LIMIT,
    ) -> None:
        self.problem = problem
        self.model = model
        self.chain = chain
        self.has_crossings = has_crossings
        self.limit = limit
        scopes = model.scopes(has_crossings=has_crossings)
        cuts: tuple[int, ...] = ()
        if chain is not None:
            cuts = chain.layout.cuts
        self.order = find_order(model.domains, scopes, staying=cuts, limit=limit)
        self._given: tuple[list[Factor], ...] = (model.factors, model.crossings, model.spine)
        if self.order is not None:  # once for all solutions
            place = self.order.place
            self._given = tuple([ordered(each, place) for each in part] for part in self._given)

    def solve(self, scenarios: Sequence[Scenario]) -> list[Optimum]:
        """Return the cheapest plan of each scenario.

        Raises:
            InternalError: The tables are too large; `order` is None.
        """
        if self.order is None:
            raise InternalError(f"a table of more than {self.limit} entries")
        # So many scenarios at once as keep the largest table within the limit, its extra axis
        # included.
        batch = max(1, int(self.limit / self.order.entries))
        optima: list[Optimum] = []
        for start in range(0, len(scenarios), batch):
            optima += self._solve(self.order, scenarios[start : start + batch])
        return optima

    def assign(self, scenarios: Sequence[Scenario]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the least cost of each scenario, and the values of all variables in columns.

        Only for models without intervals. A cost that is infinite has no plan.

        Raises:
            InternalError: The tables are too large; `order` is None.
        """
        if self.order is None:
            raise InternalError(f"a table of more than {self.limit} entries")
        model = self.model
        values = np.zeros((len(model.domains), len(scenarios)), dtype=np.intp)
        eliminated = eliminate(model.domains, self._factors(scenarios), self.order)
        recall(self.order, eliminated, values)
        totals = np.broadcast_to(eliminated.constant(), len(scenarios))
        return totals + model.constant, values

    def _factors(self, scenarios: Sequence[Scenario]) -> list[Factor]:
        model = self.model
        tables, crossings, spine = self._given
        factors = model.unary(costs_of(model, scenarios)) + tables
        if self.has_crossings:
            factors += weighted([scenario.crossing_price for scenario in scenarios], crossings)
            factors += weighted([scenario.spine for scenario in scenarios], spine)
        return factors

    def _solve(self, order: Order, scenarios: Sequence[Scenario]) -> list[Optimum]:
        model, chain = self.model, self.chain
        if chain is None:
            totals, values = self.assign(scenarios)
            return [
                self._found(float(total), values[:, column], ())
                for column, total in enumerate(totals)
            ]
        values = np.zeros((len(model.domains), len(scenarios)), dtype=np.intp)
        eliminated = eliminate(model.domains, self._factors(scenarios), order)
        paths = chain.paths(eliminated, scenarios)
        for column, path in enumerate(paths):
            values[list(chain.layout.cuts), column] = path.values
        recall(order, eliminated, values)
        return [
            self._found(path.total + model.constant, values[:, column], path.intervals)
            for column, path in enumerate(paths)
        ]

    def _found(self, total: float, values: NDArray[np.intp], intervals: Sequence[int]) -> Optimum:
        if not np.isfinite(total):
            return Optimum(total, ())
        labels, taken = self.problem.labels, [self.problem.intervals[each] for each in intervals]
        covered = {op for interval in taken for op in interval.ops}
        pieces: list[Piece] = list(taken)
        for op, (options, value) in enumerate(
            zip(self.model.options, values.tolist(), strict=False)
        ):
            if op not in covered and labels[options[value]].ops[0] == op:
                pieces.append(labels[options[value]])
        pieces.sort(key=lambda piece: piece.ops[0])
        return Optimum(total, tuple(pieces))


def weighted(weights: Sequence[float], given: Sequence[Factor]) -> list[Factor]:
    """Return tables times one weight for each scenario; none if all weights are zero."""
    if not any(weights):
        return []
    products = []
    tables: dict[object, NDArray[np.float64]] = {}
    for factor in given:  # many share their numbers, as they are or transposed
        table = factor.table
        name = table.__array_interface__["data"], table.strides, table.shape
        if name not in tables:
            shape = (len(weights), *(1,) * table.ndim)
            tables[name] = np.reshape(weights, shape) * table
        products.append(Factor(factor.scope, tables[name]))
    return products
