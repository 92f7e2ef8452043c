# SPDX-License-Identifier: Apache-2.0
"""What is known of the costs of calls: from the database, and measured by this tuner.

What is measured is written to the database at once, so that a tuner that is stopped loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from intarsia.backends.sources import code_version
from intarsia.cost.cost import Cost
from intarsia.cost.fingerprint import machines_digest
from intarsia.cost.key import BoundaryKey, CostKey, Sample, session_host
from intarsia.cost.records import Poison
from intarsia.graph.hashes import shape_hash
from intarsia.graph.region import Region
from intarsia.hashing import digest
from intarsia.place.decide import Calls
from intarsia.place.schedule import (
    AssignedRegion,
    Layouts,
    border_text,
    candidate_of,
    choose_layouts,
)
from intarsia.plan.devices import domain_text
from intarsia.process.runner import insist
from intarsia.target.cpu_there import RUNNER

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.place.setting import Setting
    from intarsia.tuning.costing.boundaries import MeasuredBoundary

Call = tuple[int, tuple[int, ...]]
"""The position of a target, and ascending node ids."""


@dataclass(slots=True)
class KeyMaker:
    """Says what the costs of calls are filed under.

    Attributes:
        setting: The model and the machine.
    """

    setting: Setting
    _keys: dict[Calls, CostKey] = field(default_factory=dict)
    _versions: dict[int, str] = field(default_factory=dict)
    _layouts: dict[tuple[Call, Call], Layouts] = field(default_factory=dict)

    def is_shared(self, calls: Sequence[Call]) -> bool:
        """Whether several runtimes take turns in a plan."""
        names = {self.setting.capabilities[position].backend.name for position, _ in calls}
        return len(names) > 1

    def version(self, position: int) -> str:
        """Return the name and version of a target's backend, and of our code if it runs that."""
        if position not in self._versions:
            capability = self.setting.capabilities[position]
            self._versions[position] = code_version(capability.backend, capability.context)
        return self._versions[position]

    def key(self, calls: Calls) -> CostKey:
        """Return what the costs of some calls in a row are filed under.

        One call is filed under its region, so that another model with the same region shares it;
        several calls under a hash of theirs, with their borders where these are not plain. A part
        of the model runs as in a mixed plan.
        """
        if calls not in self._keys:
            self._keys[calls] = self._make_key(calls)
        return self._keys[calls]

    def _make_key(self, calls: Calls) -> CostKey:
        graph, targets = self.setting.graph, self.setting.targets
        is_whole = sum(len(nodes) for _, nodes in calls) == len(graph.nodes)
        # a whole plan runs as it would ship; a part of the model as if in a plan of all targets
        is_shared = self.is_shared(calls if is_whole else [(i, ()) for i in range(len(targets))])
        hashes = [shape_hash(Region.of(graph, nodes)) for _, nodes in calls]
        texts = [str(targets[position].target) for position, _ in calls]
        positions = dict.fromkeys(position for position, _ in calls)
        versions = " | ".join(map(self.version, positions))
        threads = f"{self.setting.num_threads}{' shared' if is_shared else ''}"
        runners = [self._runner(position) for position in positions]
        machine = insist(lambda: machines_digest(runners))
        homes = self._homes() if is_whole else []
        if len(calls) == 1 and not homes:
            return CostKey(hashes[0], texts[0], versions, machine, threads)
        names = [part for pair in zip(hashes, texts, strict=True) for part in pair]
        names += self._borders(calls)
        names += homes
        unique = ", ".join(str(targets[position].target) for position in positions)
        return CostKey(digest(("calls", *names)), unique, versions, machine, threads)

    def _runner(self, position: int) -> str:
        """Return the way to the machine of a target; a partial one is where what it refines is."""
        placed = self.setting.targets[position]
        base = None if placed.target.kind.is_complete else self.setting.config.refined(placed)
        return str(placed.target.attrs.get(RUNNER) or (base and base.attrs.get(RUNNER)) or "")

    def _homes(self) -> list[str]:
        """Return which inputs and outputs of the model are not the host's."""
        borders, graph = self.setting.constraints.borders, self.setting.graph
        sides = (("input", graph.inputs), ("output", graph.outputs))
        return [
            f"{what} {i} on {domain_text(borders[value])}"
            for what, values in sides
            for i, value in enumerate(values)
            if value in borders
        ]

    def _borders(self, calls: Calls) -> list[str]:
        """Return the layouts of the border of each call; nothing if all are plain."""
        sides = self._sides(calls)
        layouts = choose_layouts(sides)
        if not layouts:
            return []
        every = (candidate_of(side, layouts) for side in sides)
        return [border_text(candidate) for candidate in every]

    def _sides(self, calls: Calls) -> list[AssignedRegion]:
        domains, graph = self.setting.constraints.domains, self.setting.graph
        every = ((self.setting.capabilities[position], nodes) for position, nodes in calls)
        return [
            AssignedRegion(Region.of(graph, nodes), capability, domains[capability.target])
            for capability, nodes in every
        ]

    def boundary_key(self, before: Call, after: Call) -> BoundaryKey:
        """Return what the boundary between two calls is filed under.

        Where tensors cross it in blocks of channels, their layouts follow the second region.
        """
        one, other = self.key((before,)), self.key((after,))
        versions = " | ".join(dict.fromkeys((one.backend, other.backend)))
        layouts = self.layouts_between(before, after)
        states = "".join(f" {layout}" for _, layout in sorted(layouts.items()))
        return BoundaryKey(
            one.region,
            one.target,
            f"{other.region}{states}",
            other.target,
            versions,
            one.machine,
            one.threads,
        )

    def layouts_between(self, before: Call, after: Call) -> Layouts:
        """Return how tensors lie that go from a call to the next, where that is not plain.

        It is so in every plan that has the two calls, as no other call reads these.
        """
        layouts = self._layouts.get((before, after))
        if layouts is None:
            layouts = choose_layouts(self._sides((before, after)))
            self._layouts[before, after] = layouts
        return layouts


@dataclass(slots=True)
class CostTable:
    """Costs and failures of calls and of whole plans.

    Attributes:
        keys: Says what they are filed under.
        database: Where they are kept.
        session: The name of this run of the tuner.
        fresh: Keys that this run has measured.
        known: How many costs came from the database.
    """

    keys: KeyMaker
    database: CostDatabase
    session: str
    fresh: set[CostKey] = field(default_factory=set)
    known: int = 0
    _costs: dict[CostKey, Cost] = field(default_factory=dict)
    _poisons: dict[CostKey, Poison] = field(default_factory=dict)
    _asked: set[CostKey] = field(default_factory=set)

    def ask(self, keys: Iterable[CostKey]) -> None:
        """Look up, all at once, what was not asked for before."""
        new = [key for key in dict.fromkeys(keys) if key not in self._asked]
        if not new:
            return
        self._asked.update(new)
        self._look_up(new)

    def _look_up(self, keys: Sequence[CostKey]) -> None:
        costs = self.database.costs(keys)
        self.known += len(costs)
        self._costs.update(costs)
        for key, poison in self.database.poisoned(keys).items():
            if isinstance(key, CostKey):
                self._poisons[key] = poison

    def cost(self, key: CostKey) -> Cost | None:
        """Return the measured cost of a key, if there is one."""
        self.ask((key,))
        return self._costs.get(key)

    def poison(self, key: CostKey) -> Poison | None:
        """Return why a key must not be tried again, if it failed."""
        self.ask((key,))
        return self._poisons.get(key)

    def add(self, samples: Mapping[CostKey, Sequence[Sample]]) -> None:
        """Record measurements."""
        if not samples:
            return
        self.database.add_all(samples)
        self.fresh.update(samples)
        self._asked.update(samples)
        self._costs.update(self.database.costs(samples))

    def boundaries(self, keys: Iterable[BoundaryKey]) -> dict[BoundaryKey, float]:
        """Return the seconds of boundaries that were measured, on this host if there are any."""
        seconds = {}
        for key, samples in self.database.samples(keys).items():
            here = [sample for sample in samples if sample.host == session_host(self.session)]
            seconds[key] = median(sample.seconds for sample in here or samples)
        return seconds

    def add_boundary(self, key: BoundaryKey, boundary: MeasuredBoundary) -> None:
        """Record a measurement of a boundary."""
        self.database.add(key, boundary.samples(self.session))

    def fail(self, key: CostKey, code: str, reason: str, taken_at: float) -> None:
        """Record that something failed with this version of its backend."""
        self.database.poison(key, code, reason, taken_at=taken_at, session=self.session)
        self._asked.add(key)
        self._poisons[key] = Poison(code, reason, taken_at, self.session)
