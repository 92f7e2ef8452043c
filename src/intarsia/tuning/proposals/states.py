# SPDX-License-Identifier: Apache-2.0
"""The states of tensors that the search tells apart, and who may exchange tensors in blocks.

One state is a plain tensor in the host's memory, one is private to each target, and where at least
two targets know layouts in blocks of channels (`states`), one is the layout that they share. It
is asked of units as they are alone; larger regions may answer otherwise, so plans are priced by
what was measured at their borders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from intarsia.place.layouts import list_layouts, may_block
from intarsia.plan.devices import HOST_DOMAIN

if TYPE_CHECKING:
    from intarsia.place.setting import Setting
    from intarsia.tuning.proposals.units import UnitGraph

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
        readers: By value id, targets on which all who read it would take it so.
    """

    makers: Mapping[int, Targets] = field(default_factory=dict)
    readers: Mapping[int, Targets] = field(default_factory=dict)


def ask_blocked(setting: Setting, units: UnitGraph) -> tuple[Blocked | None, str]:
    """Return who may exchange what in blocks; None where no two targets can.

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
        made = _answers(setting, units, bordered, [maker], value.id)
        read = _answers(setting, units, bordered, others, value.id)
        both = [(len(made[x] | read[x]), x) for x in sorted(made.keys() & read.keys())]
        if both and max(both)[0] > 1:
            layout = max(both)[1]
            makers[value.id], readers[value.id] = made[layout], read[layout]
    return (Blocked(makers, readers) if makers else None), ""


def _answers(
    setting: Setting,
    units: UnitGraph,
    bordered: Sequence[int],
    members: Sequence[int],
    value: int,
) -> dict[str, Targets]:
    """Return by layout the targets on which all of some units list it for a value."""
    found: dict[str, set[int]] = {}
    for position in bordered:
        every = [
            set(list_layouts(units.region((unit,)), setting.capabilities[position]).get(value, ()))
            for unit in members
            if position in units.units[unit].targets
        ]
        if len(every) == len(members):
            for layout in set.intersection(*every):
                found.setdefault(layout, set()).add(position)
    return {layout: frozenset(positions) for layout, positions in found.items()}
