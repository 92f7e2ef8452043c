# SPDX-License-Identifier: Apache-2.0
"""Where tensors are, and how they lie: memories that targets share, homes, layouts in blocks.

A plan copies a value from where it is made, or given, to each other memory in which it is read, or
wanted, once; between two devices by way of the host. An input or output is the host's, unless the
user said otherwise (`place.devices`).

The search tells states of tensors apart: one is a plain tensor in the host's memory, one is private
to each target, and where at least two targets know layouts in blocks of channels (`states`), one
is the layout that they share. It is asked of units as they are alone; larger regions may answer
otherwise, so plans are priced by what was measured at their borders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.place.schedule import list_layouts, may_block
from intarsia.plan.devices import HOST_DOMAIN

if TYPE_CHECKING:
    from intarsia.place.setting import Setting
    from intarsia.tuning.costing.model import Units
    from intarsia.tuning.proposals.units import UnitGraph


HOST = -1
"""Stands for the host where the position of a target is asked for."""

CopySeconds = Callable[[int, int], float]
"""Seconds to copy so many bytes between the host's memory and that of a target."""


@dataclass(frozen=True, slots=True)
class Homes:
    """Which targets share a memory, and which values are not the host's at a model's border.

    Attributes:
        memories: By position of a target, the number of its memory; 0 is the host's.
        borders: By value id, the position of a target in whose memory an input is given or an
            output is wanted.
    """

    memories: tuple[int, ...] = ()
    borders: Mapping[int, int] = field(default_factory=dict)

    def memory(self, position: int) -> int:
        """Return the number of the memory of a target, or of the host."""
        return self.memories[position] if position != HOST and self.memories else 0

    def between(self, one: int, other: int, nbytes: int, copy: CopySeconds) -> float:
        """Return the seconds of a copy between the memories of two targets, or of the host."""
        if one == other or (self.memories and self.memory(one) == self.memory(other)):
            return 0.0
        return sum(copy(position, nbytes) for position in (one, other) if position != HOST)

    def around(self, units: UnitGraph, position: int, members: Units, copy: CopySeconds) -> float:
        """Return the seconds that it takes to bring a region's tensors from and to their homes.

        What is neither an input nor an output of the model is taken to be at home on the host.
        """
        region, values = units.region(members), units.graph.values
        return sum(
            self.between(self.borders.get(value, HOST), position, values[value].nbytes, copy)
            for value in (*region.inputs, *region.outputs)
        )

    def of_plan(
        self, units: UnitGraph, plan: Sequence[tuple[int, Units]], copy: CopySeconds
    ) -> float:
        """Return the seconds of all copies of a plan: positions of targets and their units."""
        graph = units.graph
        origins: dict[int, int] = {value: self.borders.get(value, HOST) for value in graph.inputs}
        readers: dict[int, list[int]] = {}
        for position, members in plan:
            region = units.region(members)
            origins.update(dict.fromkeys(region.outputs, position))
            for value in region.inputs:
                readers.setdefault(value, []).append(position)
        for value in graph.outputs:
            readers.setdefault(value, []).append(self.borders.get(value, HOST))
        total = 0.0
        for value, positions in readers.items():
            if value not in origins:  # a constant
                continue
            places = {self.memory(position): position for position in positions}
            nbytes = graph.values[value].nbytes
            total += sum(self.between(origins[value], at, nbytes, copy) for at in places.values())
        return total


HOST_ONLY = Homes()
"""Nothing is said of memories."""


def find_homes(setting: Setting) -> Homes:
    """Return the memories of a machine, and what of a model's border is not the host's."""
    domains = [setting.devices.domains[target] for target in setting.targets]
    numbers = {domain: i for i, domain in enumerate(dict.fromkeys((HOST_DOMAIN, *domains)))}
    borders = {
        value: domains.index(domain)
        for value, domain in setting.devices.borders.items()
        if domain in domains
    }
    return Homes(tuple(numbers[domain] for domain in domains), borders)


MOST_STATES = 6
"""Of tensors, in all: the tables of the search double with each."""

Targets = frozenset[int]
"""Positions of targets."""

NOBODY: Targets = frozenset()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Who may exchange which tensors in a layout in blocks of channels.

    Attributes:
        makers: By value id, targets that would make it in that layout.
        readers: By value id, targets on which all units that read it would take it so.
    """

    makers: Mapping[int, Targets] = field(default_factory=dict)
    readers: Mapping[int, Targets] = field(default_factory=dict)


def ask_blocked(setting: Setting, units: UnitGraph) -> tuple[Blocked | None, str]:
    """Return which targets may exchange what in blocks; None where no two can.

    Of several layouts of a value, the one that most targets know is meant.

    Args:
        setting: The model and the machine.
        units: What may run where.

    Returns:
        That, and a line about what was left out; empty if nothing was.
    """
    used = {position for unit in units.units for position in unit.targets}
    bordered = tuple(
        position
        for position, one in enumerate(setting.capabilities)
        if position in used
        and one.backend.states is not None
        and setting.devices.domains[one.target] == HOST_DOMAIN
    )
    if len(bordered) < 2:  # noqa: PLR2004 - it takes two to exchange
        return None, ""
    has_homes = bool(setting.devices.borders)  # which take a state of their own
    if len(used) + 2 + has_homes > MOST_STATES:
        names = ", ".join(str(setting.capabilities[position].target) for position in bordered)
        return None, (
            f"the search tells {MOST_STATES} states of tensors apart: with {len(used)} targets it "
            f"does not know the blocked layouts that {names} may share"
        )
    makers: dict[int, Targets] = {}
    readers: dict[int, Targets] = {}
    for value in units.graph.values:
        if value.producer < 0 or value.id in units.graph.output_set:
            continue
        maker = units.owner[value.producer]
        others = sorted({units.owner[reader] for reader in value.consumers} - {maker})
        if not others or not may_block(units.graph, value.id):
            continue
        layouts_made = _answers(setting, units, bordered, [maker], value.id)
        read = _answers(setting, units, bordered, others, value.id)
        both = [
            (len(layouts_made[x] | read[x]), x) for x in sorted(layouts_made.keys() & read.keys())
        ]
        if both and max(both)[0] > 1:
            layout = max(both)[1]
            makers[value.id], readers[value.id] = layouts_made[layout], read[layout]
    return (Blocked(makers, readers) if makers else None), ""


def _answers(
    setting: Setting,
    units: UnitGraph,
    bordered: Sequence[int],
    members: Sequence[int],
    value: int,
) -> dict[str, Targets]:
    """Return by layout the targets on which all of some units list it for a value."""
    targets_by_layout: dict[str, set[int]] = {}
    for position in bordered:
        every = [
            set(list_layouts(units.region((unit,)), setting.capabilities[position]).get(value, ()))
            for unit in members
            if position in units.units[unit].targets
        ]
        if len(every) == len(members):
            for layout in set.intersection(*every):
                targets_by_layout.setdefault(layout, set()).add(position)
    return {layout: frozenset(positions) for layout, positions in targets_by_layout.items()}
