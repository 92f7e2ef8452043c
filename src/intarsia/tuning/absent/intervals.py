# SPDX-License-Identifier: Apache-2.0
"""What is known of a machine that is not here: intervals of costs, and the cases they leave open.

Every cost comes from the best source there is (`cost.estimator`). Errors of one target's estimates
go together, so each target in turn is taken to be as fast as it may be and the others as slow, and
the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.values import Candidate
from intarsia.cost.cost import Cost
from intarsia.cost.estimator import CostSubject, Estimator
from intarsia.cost.peak import target_peak
from intarsia.cost.transition import LINK, SPREAD, TransitionTable
from intarsia.place.capability import calling
from intarsia.place.memory_limits import constants_of
from intarsia.search.problem import PlacementProblem
from intarsia.target import DeviceType, Target
from intarsia.tuning.costing.cost_table import KeyMaker
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import TYPICAL_BYTE_SECONDS, TargetModel
from intarsia.tuning.proposals.candidates import Space, make_space

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.peak import Peak
    from intarsia.graph.region import Region
    from intarsia.place.setting import Setting

CALL_SECONDS = 5e-6
"""Assumed overhead of one call."""

LINK_SECONDS = 1e-5
"""Assumed time of a copy of nothing to or from a device."""

_LEAST_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    """One way the costs may be.

    Attributes:
        name: In words.
        fast: Positions of targets that are as fast as they may be.
        slow: Positions of those that are as slow; all others are as the middles say.
    """

    name: str
    fast: frozenset[int] = frozenset()
    slow: frozenset[int] = frozenset()

    def seconds(self, position: int, cost: Cost) -> float:
        """Return the seconds to plan with."""
        if position in self.fast:
            return cost.low_seconds
        return high_seconds(cost) if position in self.slow else cost.seconds

    def copy_factor(self, position: int, spread: float) -> float:
        """Return what a copy to or from a target is to be multiplied by."""
        if position in self.fast:
            return 1.0 / spread
        return spread if position in self.slow else 1.0


MIDDLE = Case("middles")


def high_seconds(cost: Cost) -> float:
    """Return the most that something may take."""
    return min(cost.high_seconds, 100 * cost.seconds)


def cases_of(positions: Sequence[int]) -> tuple[Case, ...]:
    """Return the cases to look at: the middles, and each target against the others."""
    every = frozenset(positions)
    found = [MIDDLE]
    for position in positions if len(positions) > 1 else ():
        one = frozenset((position,))
        found.append(Case("fast", one, every - one))
        found.append(Case("slow", every - one, one))
    return tuple(found)


@dataclass(slots=True)
class Planner:
    """What is known of a machine that is not here.

    Attributes:
        setting: The model and the machine.
        space: What may be chosen.
        subjects: By position and unit: what costs are asked of.
        estimator: Knows them.
        tables: By position: copies to and from the memory of targets that have one of their own.
        costs: By position and unit.
    """

    setting: Setting
    space: Space
    subjects: Mapping[tuple[int, int], CostSubject]
    estimator: Estimator
    tables: Mapping[int, TransitionTable]
    costs: dict[tuple[int, int], Cost] = field(init=False)

    def __post_init__(self) -> None:
        self.costs = {place: self.estimator.cost(each) for place, each in self.subjects.items()}

    @property
    def positions(self) -> tuple[int, ...]:
        """The targets that may have some unit, ascending."""
        return tuple(sorted({position for position, _ in self.costs}))

    def problem(self, case: Case) -> PlacementProblem:
        """Return what the search is asked in one case."""
        models = {}
        for position in self.positions:
            marginals = {
                unit: max(_LEAST_SECONDS, case.seconds(position, cost))
                for (at, unit), cost in self.costs.items()
                if at == position
            }
            groups = {  # nobody will measure them: what fusing them saves is not hoped for
                group.units: sum(marginals[unit] for unit in group.units)
                for group in self.space.groups
                if group.position == position
            }
            models[position] = TargetModel(
                CALL_SECONDS, TYPICAL_BYTE_SECONDS, marginals, frozenset(marginals), groups
            )
        refused = frozenset((position, (unit,)) for position, unit in self.space.refused)
        copies = partial(self._copy_seconds, case)
        return formulate(self.space, Facts(models, {}, refused, copies, self._nbytes))

    def _nbytes(self, unit: int) -> int:
        units = self.space.units
        return sum(constants_of(units.graph, units.units[unit].nodes).values())

    def _copy_seconds(self, case: Case, position: int, nbytes: int) -> float:
        table = self.tables.get(position)
        if table is None:
            return 0.0
        return table.seconds(nbytes) * case.copy_factor(position, SPREAD[table.source])


def make_planner(setting: Setting, database: CostDatabase | None) -> Planner:
    """Return what is known without measuring.

    Raises:
        UnsupportedError: A node has no target.
    """
    space = make_space(setting)
    naming = KeyMaker(setting)
    subjects: dict[tuple[int, int], CostSubject] = {}
    peaks: dict[int, Peak] = {}
    tables = {}
    for position, capability in enumerate(setting.capabilities):
        described = _described(setting, capability.context.refined)
        peaks[position] = target_peak(described, setting.num_threads)
        if setting.config.device_of(capability.target).device_type is not DeviceType.CPU:
            tables[position] = TransitionTable.assumed(LINK, LINK_SECONDS)
    for unit, every in enumerate(space.units.units):
        region = space.units.region((unit,))
        for position in every.targets:
            key = naming.key(((position, every.nodes),))
            estimate = partial(_ask, setting, position, region)
            subjects[position, unit] = CostSubject(region, key, peaks[position], None, estimate)
    estimator = Estimator()
    if database is not None:
        known = database.costs({subject.key for subject in subjects.values()})
        estimator.learn(known, subjects.values())
    return Planner(setting, space, subjects, estimator, tables)


def _described(setting: Setting, target: Target) -> Target:
    """Return a target that says which CPU it runs on: there is one, so any that names it will do.

    A runtime's target, such as `onnxruntime`, does not.
    """
    if target.device_type is not DeviceType.CPU or "mcpu" in target.attrs:
        return target
    every = (placed.target for placed in setting.targets)
    naming = (e for e in every if e and e.device_type is DeviceType.CPU and "mcpu" in e.attrs)
    return next(naming, target)


def _ask(setting: Setting, position: int, region: Region) -> Cost | None:
    """Return what the backend says that a region costs."""
    capability = setting.capabilities[position]
    estimate = capability.backend.estimate
    if estimate is None:
        return None
    with calling(capability.backend.name, capability.context, "when asked for an estimate"):
        candidate = Candidate.plain(region, capability.target)
        return estimate(candidate, capability.context)
