# SPDX-License-Identifier: Apache-2.0
"""Accepted plans: under which circumstances one was accepted, and how it is carried out again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from intarsia.cost.records import Assigned, PlanVerdict
from intarsia.place.decide import Calls
from intarsia.plan.tuning import TuningReport, to_json

if TYPE_CHECKING:
    from intarsia.place.setting import Setting


def make_verdict(
    setting: Setting, calls: Calls, report: TuningReport, session: str = ""
) -> PlanVerdict:
    """Return an accepted plan as the database keeps it.

    Args:
        setting: The model and the machine.
        calls: The plan.
        report: How it was found.
        session: Which run of the tuner found it.
    """
    nodes, targets = setting.graph.nodes, setting.targets
    return PlanVerdict(
        regions=tuple(
            Assigned(str(targets[position]), tuple(nodes[node].name for node in members))
            for position, members in calls
        ),
        seconds=report.seconds or 0.0,
        single=report.single,
        single_seconds=report.single_seconds or 0.0,
        predicted_seconds=report.predicted_seconds or 0.0,
        confidence=report.confidence,
        is_mixed=report.is_mixed,
        decided_at=time.time(),
        session=session,
        report=to_json(report),
    )


def verdict_calls(setting: Setting, verdict: PlanVerdict) -> Calls | None:
    """Return the calls of an accepted plan; None if its nodes or targets are not these."""
    ids = {node.name: node.id for node in setting.graph.nodes}
    positions = {str(target): i for i, target in enumerate(setting.targets)}
    calls = []
    for region in verdict.regions:
        if region.target not in positions or not all(name in ids for name in region.nodes):
            return None
        nodes = tuple(sorted(ids[name] for name in region.nodes))
        calls.append((positions[region.target], nodes))
    placed = [node for _, nodes in calls for node in nodes]
    return tuple(calls) if sorted(placed) == list(range(len(ids))) else None
