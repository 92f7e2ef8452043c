# SPDX-License-Identifier: Apache-2.0
"""Why nodes do not run on a target: refused, or dearer there; by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.errors import SettingError
from intarsia.target.text import suggest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.plan.tuning import TuningReport, UnitReport
    from intarsia.report.nodes import NodeView

MOST_ROWS = 30


@dataclass(frozen=True, slots=True)
class Absence:
    """Nodes that run elsewhere, and why.

    Attributes:
        nodes: Their names.
        target: Where they run.
        reason: Why the asked target does not have them.
        worse_seconds: By how much the best plan with them there is slower; None if they are
            refused there, or there is no telling.
    """

    nodes: tuple[str, ...]
    target: str
    reason: str
    worse_seconds: float | None


@dataclass(frozen=True, slots=True)
class Absences:
    """All nodes that are not on a target, those that would cost least first."""

    target: str
    units: tuple[Absence, ...]


def find_units(tuning: TuningReport | None, nodes: Sequence[NodeView]) -> tuple[UnitReport, ...]:
    """Return the costs of the units that some nodes are in; nothing if there are no costs."""
    if tuning is None:
        return ()
    names = {node.name for node in nodes}
    return tuple(unit for unit in tuning.unit_reports if names & set(unit.nodes))


def absences(tuning: TuningReport, target: str) -> Absences:
    """Return why nodes are not on a target.

    Args:
        tuning: How the plan was found.
        target: Its text, or its kind.

    Raises:
        SettingError: The plan knows no such target, or several.
    """
    text = _find_target(tuning, target)
    found = []
    for unit in tuning.unit_reports:
        if unit.target == text:
            continue
        own = {cost.target: cost for cost in unit.costs}
        there, here = own[text], own.get(unit.target)
        worse, reason = None, there.refusal
        if not reason:
            reason = "dearer"
            if there.plan_seconds is not None and here is not None and here.plan_seconds:
                worse = there.plan_seconds - here.plan_seconds
            else:
                reason = "no plan has it there" if there.alone_seconds is None else "dearer"
        found.append(Absence(unit.nodes, unit.target, reason, worse))
    found.sort(key=lambda item: (item.worse_seconds is None, item.worse_seconds or 0.0))
    return Absences(text, tuple(found))


def _find_target(tuning: TuningReport, target: str) -> str:
    if target in tuning.targets:
        return target
    found = [text for text in tuning.targets if text.partition(" ")[0] == target]
    if len(found) != 1:
        said = "no target" if not found else "several targets"
        raise SettingError(
            f"the plan has {said} {target!r}",
            hint=suggest(target, tuning.targets, what="targets"),
        )
    return found[0]


def absences_view(found: Absences, *, complete: bool) -> RenderableType:
    """Return a row per unit.

    Args:
        found: What to show.
        complete: Whether to list all of them.
    """
    from rich.text import Text

    from intarsia.report.tables import make_table

    if not found.units:
        return Text(f"every node runs on {found.target}")
    shown = found.units if complete else found.units[:MOST_ROWS]
    more = len(found.units) - len(shown)
    return make_table(
        f"not on {found.target}" + (f" (first {len(shown)}, {more} more: --all)" if more else ""),
        ("nodes", "on", "the plan would be slower by>", "why"),
        (
            (
                ", ".join(item.nodes[:3]) + (", ..." if len(item.nodes) > 3 else ""),  # noqa: PLR2004
                item.target,
                "-" if item.worse_seconds is None else f"{1e3 * item.worse_seconds:.3f} ms",
                item.reason,
            )
            for item in shown
        ),
    )
