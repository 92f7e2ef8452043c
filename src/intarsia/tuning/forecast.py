# SPDX-License-Identifier: Apache-2.0
"""What tuning would measure, without measuring it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.cost.database import known_costs
from intarsia.cost.fingerprint import this_machine
from intarsia.plan.tuning import BorderForecast, Forecast, ForecastRow
from intarsia.tuning.costing.cost_table import KeyMaker
from intarsia.tuning.proposals.space import Space, make_space

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.place.setting import Setting
    from intarsia.tuning.options import Options


def forecast(setting: Setting, options: Options, *, costs: str | None = None) -> Forecast:
    """Return what tuning would measure; nothing is measured.

    Args:
        setting: The model and the machine.
        options: How to tune.
        costs: The database; None means what the settings say.

    Raises:
        CostDatabaseError: The database is damaged or out of reach.
        UnsupportedError: A node has no target.
    """
    with known_costs(costs, setting.backends.settings) as database:
        return _forecast(setting, database, options)


def _forecast(setting: Setting, database: CostDatabase | None, options: Options) -> Forecast:
    from intarsia.cost.weights import find_weights

    asked, setting = setting, setting.whole
    space = make_space(setting)
    keys = KeyMaker(setting)
    of_plans = {plan.name: keys.key(plan.calls) for plan in space.plans}
    of_units = {
        position: {
            keys.key(((at, space.units.nodes_of(units)),))
            for at, units in space.pieces
            if at == position
        }
        for position in range(len(setting.targets))
    }
    every = {*of_plans.values(), *(key for target_keys in of_units.values() for key in target_keys)}
    costs = database.costs(every) if database is not None else {}
    known_keys = set(costs)
    objective = options.objective
    if objective.weighs_pieces:  # and times them only if a plan may be too slow
        weights = find_weights(database, every) if database is not None else {}
        known_keys = set(weights) if objective.slowdown is None else known_keys & weights.keys()
    poisons = database.poisoned(every) if database is not None else {}
    verdict = None
    if database is not None:
        identity = asked.identity(is_exact=True)
        verdict = database.verdict(identity.verdict_key(objective.describe()))
    return Forecast(
        nodes=len(setting.graph.nodes),
        units=len(space.units.units),
        plans=tuple(of_plans),
        known_plans={name: costs[key].seconds for name, key in of_plans.items() if key in costs},
        rows=tuple(
            ForecastRow(
                str(setting.targets[position]),
                len(target_keys),
                len(target_keys & known_keys),
                len(target_keys & poisons.keys()),
            )
            for position, target_keys in of_units.items()
        ),
        is_accepted=verdict is not None,
        caps=space.caps,
        budget_seconds=options.budget_seconds,
        borders=() if objective.weighs_pieces else _borders(space, keys, database),
    )


def _borders(
    space: Space, keys: KeyMaker, database: CostDatabase | None
) -> tuple[BorderForecast, ...]:
    """Return the pairs of targets whose regions may be neighbours."""
    units, targets = space.units, keys.setting.targets
    pairs = {
        (one, other)
        for node, readers in enumerate(units.graph.successors)
        for reader in readers
        if units.owner[node] != units.owner[reader]
        for one in units.units[units.owner[node]].targets
        for other in units.units[units.owner[reader]].targets
        if one != other
    }
    return tuple(
        BorderForecast(
            str(targets[one]),
            str(targets[other]),
            _known_borders(database, str(targets[one].target), str(targets[other].target)),
        )
        for one, other in sorted(pairs)
    )


def _known_borders(database: CostDatabase | None, before: str, after: str) -> int:
    if database is None:
        return 0
    from intarsia.cost.selection import count_boundaries

    return count_boundaries(database, before, after, this_machine().digest)
