# SPDX-License-Identifier: Apache-2.0
"""In which memories tensors are: what targets share, and where inputs and outputs are at home.

A plan copies a value from where it is made, or given, to each other memory in which it is read, or
wanted, once; between two devices by way of the host. An input or output is the host's, unless the
user said otherwise (`place.borders`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
