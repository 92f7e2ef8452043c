# SPDX-License-Identifier: Apache-2.0
"""Why nodes do not run on a target: refused, or dearer there; by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.errors import SettingError
from intarsia.report.nodes import NodeView, view_nodes
from intarsia.target.text import suggest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.plan.placement import Placement
    from intarsia.plan.tuning import TuningReport, UnitCost, UnitReport

MOST_ROWS = 30


@dataclass(frozen=True, slots=True)
class Absence:
    """Nodes that run elsewhere, and why.

    Attributes:
        nodes: Their names.
        target: Where they run.
        reason: Why the asked target does not have them.
        worse_seconds: By how much the best plan with them there is predicted to be slower; None if
            they are refused there, there is no telling, or it is not clearly slower.
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


def absences(placement: Placement, tuning: TuningReport | None, target: str) -> Absences:
    """Return why nodes are not on a target: by its refusals, and by costs where they are known.

    Args:
        placement: Where they are.
        tuning: How the plan was found, if it was by cost.
        target: Its text, or its kind.

    Raises:
        SettingError: The plan knows no such target, or several.
    """
    text = _find_target(placement.targets, target)
    if tuning is None or not tuning.unit_reports:
        return Absences(text, _by_refusals(placement, text))
    units = []
    for unit in tuning.unit_reports:
        if unit.target != text:
            there = next(cost for cost in unit.costs if cost.target == text)
            worse, reason = compare_plans(tuning, unit, there)
            units.append(Absence(unit.nodes, unit.target, reason, worse))
    units.sort(key=lambda item: (item.worse_seconds is None, item.worse_seconds or 0.0))
    return Absences(text, tuple(units))


def compare_plans(
    tuning: TuningReport, unit: UnitReport, there: UnitCost
) -> tuple[float | None, str]:
    """Return what the costs say of having a unit on another target.

    What is compared are predictions. They are as far off as the prediction of the plan that ships,
    which has been run: what differs by less is not told apart.

    Args:
        tuning: How the plan was found.
        unit: Nodes, and what they cost everywhere.
        there: What they cost on the other target.

    Returns:
        Seconds by which the best plan with them there is slower, if it clearly is; and in words why
        they are not there.
    """
    if there.refusal:
        return None, there.refusal
    here = next((cost for cost in unit.costs if cost.target == unit.target), None)
    if there.plan_seconds is None or here is None or here.plan_seconds is None:
        reason = "no plan has it there" if there.alone_seconds is None else "no plan to compare"
        return None, reason
    worse = there.plan_seconds - here.plan_seconds
    error = 0.0
    if tuning.seconds is not None and tuning.predicted_seconds is not None:
        error = abs(tuning.predicted_seconds - tuning.seconds)
    if worse > error:
        return worse, "dearer"
    if worse >= -error:
        return None, f"as cheap there, within the {1e3 * error:.3f} ms that predictions are off by"
    return None, (
        f"predicted to be {-1e3 * worse:.3f} ms cheaper there, but {tuning.winner} was the fastest "
        "of the plans that were run"
    )


def _by_refusals(placement: Placement, text: str) -> tuple[Absence, ...]:
    """Return why nodes are not on a target where no costs are known."""
    order = placement.targets.index(text)
    nodes: dict[tuple[str, str], list[str]] = {}
    for view in view_nodes(placement):
        if view.target == text:
            continue
        refusal = next((each for each in view.refusals if each.target == text), None)
        reason = f"{view.target} takes it and comes first"
        if refusal is not None:
            reason = f"{refusal.code}: {refusal.reason}"
        elif view.target not in placement.targets[:order]:
            reason = f"{view.why} on {view.target}"
        nodes.setdefault((view.target, reason), []).append(view.name)
    return tuple(Absence(tuple(names), *key, None) for key, names in nodes.items())


def _find_target(targets: Sequence[str], target: str) -> str:
    if target in targets:
        return target
    matching = [text for text in targets if text.partition(" ")[0] == target]
    if len(matching) != 1:
        how_many = "no target" if not matching else "several targets"
        raise SettingError(
            f"the plan has {how_many} {target!r}", hint=suggest(target, targets, what="targets")
        )
    return matching[0]


def absences_view(absences: Absences, *, complete: bool) -> RenderableType:
    """Return a row per unit.

    Args:
        absences: What to show.
        complete: Whether to list all of them.
    """
    from rich.text import Text

    from intarsia.report.tables import make_table

    if not absences.units:
        return Text(f"every node runs on {absences.target}")
    shown = absences.units if complete else absences.units[:MOST_ROWS]
    more = len(absences.units) - len(shown)
    return make_table(
        f"not on {absences.target}"
        + (f" (first {len(shown)}, {more} more: --all)" if more else ""),
        ("nodes", "on", "plan slower by>", "why"),
        (
            (
                ", ".join(absence.nodes[:3]) + (", ..." if len(absence.nodes) > 3 else ""),  # noqa: PLR2004
                absence.target,
                "-" if absence.worse_seconds is None else f"{1e3 * absence.worse_seconds:.3f} ms",
                absence.reason,
            )
            for absence in shown
        ),
    )
