# SPDX-License-Identifier: Apache-2.0
"""What the search is told: costs that are known, fitted where they are not.

Each unit is looked up as a region of its own, each region that was ever measured as itself; what
has no measurement has an optimistic bound, so that the search finds out what is worth measuring.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from intarsia.cost.key import CostKey
from intarsia.graph.region import Region
from intarsia.place.decide import Calls
from intarsia.tuning.costing.boundaries import Boundaries, Pair
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import Evidence, TargetModel, Units, fit, pieces_of, predict
from intarsia.tuning.proposals.space import CopySeconds, Space

if TYPE_CHECKING:
    from intarsia.search.problem import PlacementProblem, PlannedCall
    from intarsia.tuning.costing.cost_table import CostTable

Wanted = tuple[int, Units]
"""The position of a target, and ascending units."""

MOST_GAIN = 0.3
"""What part of the best time that is known of a unit an unmeasured target may need."""

BoundSeconds = Callable[[Region, int], float]
"""The seconds that a region needs at least on the target of that position."""


@dataclass(slots=True)
class Costing:
    """Turns what the table knows into problems, and their solutions into plans.

    Attributes:
        space: What may be chosen.
        table: What is known.
        bound: The roofline.
        copy_seconds: What it costs to bring bytes to a target's memory or back.
        regions: Every region of several units that was measured or proposed.
        call_seconds: By position, the overhead of one call where it was measured.
        banned: Targets that do not work at all; they keep what no other target takes.
        call_penalty: Seconds that each call costs beyond what its parts say, fed back from whole
            plans.
        boundaries: What boundaries between calls cost, measured in place.
    """

    space: Space
    table: CostTable
    bound: BoundSeconds
    copy_seconds: CopySeconds
    regions: set[Wanted] = field(default_factory=set)
    call_seconds: dict[int, float] = field(default_factory=dict)
    banned: set[int] = field(default_factory=set)
    call_penalty: float = 0.0
    boundaries: Boundaries = field(init=False)
    _bounds: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.regions |= {(group.position, group.units) for group in self.space.groups}
        self.boundaries = Boundaries(self.table, self.space.units.nodes_of, self._copied_between)

    @property
    def positions(self) -> tuple[int, ...]:
        """The targets that may have some unit, ascending."""
        units = self.space.units.units
        usable = {position for unit in units for position in unit.targets} - self.banned
        usable |= {unit.targets[0] for unit in units if self.banned.issuperset(unit.targets)}
        return tuple(sorted(usable))

    def restrict(self, banned: Iterable[int]) -> None:
        """Let these targets have only what no other target takes."""
        self.banned = set(banned)

    def calls_of(self, wanted: Wanted) -> Calls:
        """Return some units as one call."""
        position, units = wanted
        return ((position, self.space.units.nodes_of(units)),)

    def units_of(self, nodes: Sequence[int]) -> Units:
        """Return the units that some nodes make up."""
        return tuple(sorted({self.space.units.owner[node] for node in nodes}))

    def is_of_units(self, nodes: Sequence[int]) -> bool:
        """Whether nodes are whole units."""
        return len(self.space.units.nodes_of(self.units_of(nodes))) == len(nodes)

    def key_of(self, wanted: Wanted) -> CostKey:
        """Return what the cost of some units is filed under."""
        return self.table.keys.key(self.calls_of(wanted))

    def seconds_of(self, wanted: Wanted) -> float | None:
        """Return the measured seconds of some units as one call."""
        cost = self.table.cost(self.key_of(wanted))
        return None if cost is None else cost.seconds

    def is_poisoned(self, wanted: Wanted) -> bool:
        """Whether these units failed on this target before."""
        return self.table.poison(self.key_of(wanted)) is not None

    def look_up(self) -> None:
        """Ask the database for all units, and all regions that were proposed, at once."""
        self.table.ask(map(self.key_of, (*self.space.pieces, *self.regions)))

    def models(self) -> dict[int, TargetModel]:
        """Return the model fitted to each target; unmeasured costs are assumed to be low.

        Shares of a whole say little about a unit: a target that is slow on the model may be the
        fastest on one of its operators. So what is not known on one target may be several times
        as fast as where it is known, and the search will ask.
        """
        models = {position: self._fit(position) for position in self.positions}
        best: dict[int, float] = {}
        for model in models.values():
            for unit in model.measured:
                best[unit] = min(best.get(unit, math.inf), model.marginals[unit])
        return {
            position: replace(model, marginals=self._optimistic(position, model, best))
            for position, model in models.items()
        }

    def _optimistic(
        self, position: int, model: TargetModel, best: Mapping[int, float]
    ) -> dict[int, float]:
        marginals = dict(model.marginals)
        for unit in marginals.keys() - model.measured:
            if unit in best:
                hoped = max(self.least_seconds(position, unit), MOST_GAIN * best[unit])
                marginals[unit] = min(marginals[unit], hoped)
        return marginals

    def _fit(self, position: int) -> TargetModel:
        units = self.space.units
        may_have = [i for i, unit in enumerate(units.units) if position in unit.targets]
        measured: dict[Units, float] = {}
        for members in (*((unit,) for unit in may_have), *self._proposed(position)):
            seconds = self.seconds_of((position, members))
            if seconds is not None:
                measured[members] = seconds
        evidence = Evidence(
            may_have,
            measured,
            border=units.border_bytes,
            bound=lambda unit: self.least_seconds(position, unit),
            family=self.family,
            call_seconds=self.call_seconds.get(position),
            groups=self._groups(position),
        )
        model = fit(evidence)
        return replace(model, call_seconds=model.call_seconds + self.call_penalty_of(position))

    def raise_call_penalty(self, seconds: float) -> bool:
        """Charge each call more, if that is more than before; return whether it is."""
        is_more = seconds > self.call_penalty
        self.call_penalty = max(self.call_penalty, seconds)
        return is_more

    def call_penalty_of(self, position: int) -> float:
        """Return the cost of a call on a target beyond the costs of its parts."""
        return self.call_penalty + self.boundaries.call_penalty(position)

    def _groups(self, position: int) -> frozenset[Units]:
        return frozenset(group.units for group in self.space.groups if group.position == position)

    def pieces(self, wanted: Wanted) -> list[Wanted]:
        """Return what the units of a call are priced as: groups that were measured, and units."""
        position, units = wanted
        groups = self._measured_groups(position)
        return [(position, piece) for piece in pieces_of(units, groups)]

    def _measured_groups(self, position: int) -> list[Units]:
        """Return the groups of a target that were measured."""
        every = self._groups(position)
        return [units for units in every if self.seconds_of((position, units)) is not None]

    def _proposed(self, position: int) -> list[Units]:
        return sorted(members for at, members in self.regions if at == position)

    def least_seconds(self, position: int, unit: int) -> float:
        """Return what a unit needs at least on a target, whatever was measured."""
        key = (position, unit)
        if key not in self._bounds:
            self._bounds[key] = self.bound(self.space.units.region((unit,)), position)
        return self._bounds[key]

    def family(self, unit: int) -> str:
        """Return what a unit is likened to: its operator with the most constants, or its first."""
        graph = self.space.units.graph
        nodes = [graph.nodes[node] for node in self.space.units.units[unit].nodes]

        def weight(op: int) -> int:
            values = (graph.values[read] for read in nodes[op].reads)
            return sum(prod(value.shape or ()) for value in values if value.constant is not None)

        heaviest = max(range(len(nodes)), key=lambda op: (weight(op), -op))
        return nodes[heaviest].op_type

    def nbytes(self, unit: int) -> int:
        """Return the bytes of a unit's constants."""
        graph = self.space.units.graph
        reads = {
            read for node in self.space.units.units[unit].nodes for read in graph.nodes[node].reads
        }
        return sum(
            graph.values[read].nbytes for read in reads if graph.values[read].constant is not None
        )

    def problem(self, models: dict[int, TargetModel]) -> PlacementProblem:
        """Return the problem as far as costs are known."""
        measured: dict[Wanted, float] = {}
        excluded: set[Wanted] = {(position, (unit,)) for position, unit in self.space.refused}
        for wanted in sorted(self.regions):
            seconds = self.seconds_of(wanted)
            if seconds is not None:
                measured[wanted] = seconds + self.call_penalty_of(wanted[0])
        excluded |= set(filter(self.is_poisoned, (*self.space.pieces, *self.regions)))

        def hoped(pair: Pair) -> float:
            prices = (models[position].byte_seconds for position, _ in pair if position in models)
            return self.boundaries.blocked_bytes(pair) * sum(prices)

        facts = Facts(
            models,
            measured,
            frozenset(excluded),
            self.copy_seconds,
            self.nbytes,
            self.boundaries.saved_share(hoped),
        )
        return formulate(self.space, facts)

    def plan_of(self, calls: Sequence[PlannedCall]) -> tuple[Wanted, ...]:
        """Return calls of the search as targets and units."""
        return tuple((call.backend, tuple(sorted(call.ops))) for call in calls)

    def price(self, plan: Sequence[Wanted], models: dict[int, TargetModel]) -> float:
        """Return what a plan costs: each call as measured, or as fitted where it was not.

        So are boundaries between calls: measured in place, or as others of the same targets.
        """
        total = self.boundaries.of_plan(plan)
        total += self.space.copied_in(plan, self.copy_seconds)
        for position, members in plan:
            seconds = self.seconds_of((position, members))
            if seconds is None:
                border = self.space.units.border_bytes(members)
                seconds = predict(models[position], members, border)
                seconds -= self.boundaries.call_penalty(position)
            else:
                seconds += self.call_penalty
            total += seconds
        return total

    def _copied_between(self, pair: Pair) -> float:
        """Return the seconds of the copies from one call to the next."""
        (one, before), (other, after) = pair
        read = set(self.space.units.region(after).inputs)
        values = self.space.units.graph.values
        crossing = [v for v in self.space.units.region(before).outputs if v in read]
        return sum(
            self.space.copied_between(one, other, values[value].nbytes, self.copy_seconds)
            for value in crossing
        )

    def unmeasured(self, plan: Sequence[Wanted]) -> tuple[Wanted, ...]:
        """Return the calls of a plan without a measurement, each shape once."""
        missing: dict[CostKey, Wanted] = {}
        for wanted in plan:
            key = self.key_of(wanted)
            if self.table.cost(key) is None and self.table.poison(key) is None:
                missing.setdefault(key, wanted)
        return tuple(missing.values())

    def multiplicity(self) -> Counter[CostKey]:
        """Return how often the shape of each unit and group occurs, by key."""
        return Counter(map(self.key_of, self.space.pieces))
