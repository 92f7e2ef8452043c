# SPDX-License-Identifier: Apache-2.0
"""Why a plan is as it is: what every unit costs everywhere, and what its cuts cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from intarsia.errors import InternalError
from intarsia.place.assign import refusal_of
from intarsia.place.order import cut_regions
from intarsia.plan.tuning import CutReport, UnitCost, UnitReport
from intarsia.search.marginals import min_marginals
from intarsia.tuning.costing.formulation import border_bytes
from intarsia.tuning.costing.model import predict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.place.decide import Calls
    from intarsia.tuning.tuner import Tuner

MOST_CUTS = 20
_LEAST_SAVED_SECONDS = 1e-6
_MOST_MOVED_UNITS = 8


def report_units(tuner: Tuner, calls: Calls) -> tuple[UnitReport, ...]:
    """Return what every unit costs on every target.

    Args:
        tuner: One that has searched.
        calls: The plan that ships.
    """
    if not tuner.prospector.models or tuner.prospector.problem is None:
        return ()
    plan_seconds = _plan_seconds(tuner)
    graph, targets = tuner.setting.graph, tuner.setting.targets
    region_of = {node: i for i, (_, nodes) in enumerate(calls) for node in nodes}
    reports = []
    for unit, every in enumerate(tuner.space.units.units):
        region = region_of[every.nodes[0]]
        reports.append(
            UnitReport(
                nodes=tuple(graph.nodes[node].name for node in every.nodes),
                operators=tuple(graph.nodes[node].op_type for node in every.nodes),
                target=str(targets[calls[region][0]]),
                region=region,
                costs=tuple(
                    _unit_cost(tuner, position, unit, plan_seconds)
                    for position in range(len(targets))
                ),
            )
        )
    return tuple(reports)


def _plan_seconds(tuner: Tuner) -> dict[tuple[int, int], float]:
    """Return by target and unit what the best plan costs that has it there."""
    assert tuner.prospector.problem is not None
    try:
        marginals = min_marginals(tuner.prospector.problem).labels
    except InternalError:  # the graph is too wide: then there is no telling
        return {}
    found: dict[tuple[int, int], float] = {}
    for label, seconds in zip(tuner.prospector.problem.labels, marginals, strict=True):
        if np.isfinite(seconds):
            for unit in label.ops:
                key = (label.backend, unit)
                found[key] = min(found.get(key, np.inf), float(seconds))
    return found


def _unit_cost(
    tuner: Tuner, position: int, unit: int, plan_seconds: dict[tuple[int, int], float]
) -> UnitCost:
    setting = tuner.setting
    target = str(setting.targets[position])
    refusal = _refusal(tuner, position, unit)
    if refusal:
        return UnitCost(target, refusal=refusal)
    cost = tuner.book.cost(tuner.prospector.costing.key_of((position, (unit,))))
    model = tuner.prospector.models.get(position)
    return UnitCost(
        target,
        alone_seconds=None if cost is None else cost.seconds,
        inside_seconds=None if model is None else model.marginals.get(unit),
        source=_source(tuner, position, unit) if cost is None else str(cost.source),
        plan_seconds=plan_seconds.get((position, unit)),
    )


def _source(tuner: Tuner, position: int, unit: int) -> str:
    """Return where the figure of a unit comes from that was not measured alone."""
    return "group" if (position, unit) in tuner.space.refused else "hoped"


def _refusal(tuner: Tuner, position: int, unit: int) -> str:
    """Return why a target cannot have a unit; empty if it can."""
    setting, every = tuner.setting, tuner.space.units.units[unit]
    capability = setting.capabilities[position]
    for node in every.nodes:
        pin = setting.devices.pins.get(node)
        if pin is not None and capability.target not in pin.targets:
            return pin.why
        refusal = refusal_of(setting.graph.nodes[node], capability, setting.constraints)
        if refusal is not None:
            return f"{refusal.code}: {refusal.reason}"
    poison = tuner.book.poison(tuner.prospector.costing.key_of((position, (unit,))))
    if poison is not None:
        return f"{poison.code}: {poison.reason}"
    return "" if position in every.targets else "left out of the search"


def report_cuts(tuner: Tuner, calls: Calls) -> tuple[CutReport, ...]:
    """Return what would be saved if a neighbour's target took nodes as fast as their own does.

    Units at a border, and whole small regions, are moved to the target of a neighbour; the plan is
    cut anew and priced by what was fitted to the measurements.

    Args:
        tuner: One that has searched.
        calls: The plan that ships.
    """
    if not tuner.prospector.models or len(calls) < 2:  # noqa: PLR2004 - one call has no cut
        return ()
    if not all(tuner.prospector.costing.is_of_units(nodes) for _, nodes in calls):
        return ()  # a plan in the user's order, which parts what the search keeps together
    mover = _Mover(tuner, calls)
    graph = tuner.setting.graph
    found = []
    for moved, other in mover.moves():
        saved, fewer = mover.saved(moved, other)
        if saved > _LEAST_SAVED_SECONDS:
            nodes = tuner.space.units.nodes_of(moved)
            own = str(tuner.setting.targets[mover.choices[moved[0]]])
            found.append(
                CutReport(
                    tuple(graph.nodes[node].name for node in nodes),
                    own,
                    str(tuner.setting.targets[other]),
                    saved,
                    fewer,
                )
            )
    found.sort(key=lambda cut: (-cut.saved_seconds, cut.nodes))
    return tuple(found[:MOST_CUTS])


class _Mover:
    """Prices the plan with some units on another target."""

    def __init__(self, tuner: Tuner, calls: Calls) -> None:
        self.tuner = tuner
        self.units = tuner.space.units
        self.calls = [
            (position, tuner.prospector.costing.units_of(nodes)) for position, nodes in calls
        ]
        self.choices = [0] * len(self.units.units)
        for position, members in self.calls:
            for unit in members:
                self.choices[unit] = position
        self.seconds, self.count = self._price(self.choices, {})

    def moves(self) -> list[tuple[tuple[int, ...], int]]:
        """Return units at a border, and small regions, with the targets of their neighbours."""
        graph, owner = self.units.graph, self.units.owner
        neighbours: dict[int, set[int]] = {}
        for node, after in enumerate(graph.successors):
            for other in after:
                one, two = owner[node], owner[other]
                if self.choices[one] != self.choices[two]:
                    neighbours.setdefault(one, set()).add(self.choices[two])
                    neighbours.setdefault(two, set()).add(self.choices[one])
        found: set[tuple[tuple[int, ...], int]] = {
            ((unit,), at) for unit, every in neighbours.items() for at in every
        }
        for position, members in self.calls:
            if 1 < len(members) <= _MOST_MOVED_UNITS:
                around = {at for unit in members for at in neighbours.get(unit, ())} - {position}
                found |= {(members, at) for at in around}
        return sorted(found)

    def saved(self, moved: Sequence[int], other: int) -> tuple[float, int]:
        """Return the seconds saved, and how many calls fewer there are."""
        choices = list(self.choices)
        assumed = {}
        for unit in moved:
            own = self.tuner.prospector.models[choices[unit]].marginals[unit]
            there = self.tuner.prospector.models[other].marginals.get(unit, own)
            assumed[unit] = min(own, there)
            choices[unit] = other
        seconds, count = self._price(choices, assumed)
        return self.seconds - seconds, self.count - count

    def _price(self, choices: Sequence[int], assumed: dict[int, float]) -> tuple[float, int]:
        by_node = [choices[self.units.owner[node.id]] for node in self.units.graph.nodes]
        total, regions = 0.0, cut_regions(self.units.graph, by_node)
        for position, nodes in regions:
            members = self.tuner.prospector.costing.units_of(nodes)
            model = self.tuner.prospector.models[position]
            missing = [unit for unit in members if unit in assumed]
            known = tuple(unit for unit in members if unit not in assumed)
            total += predict(model, known, border_bytes(self.units, members))
            total += sum(assumed[unit] for unit in missing)
        return total, len(regions)
