# SPDX-License-Identifier: Apache-2.0
"""What would run where, and why, on a machine that is not here: nothing is compiled for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.backends.artifact import tensor_spec
from intarsia.backends.calling import calling
from intarsia.backends.values import ABOUT, Artifact, ArtifactConstant
from intarsia.errors import BackendError
from intarsia.graph.extract import constant_array
from intarsia.place.assign import Policy
from intarsia.place.decide import Decision, decide_as_chosen, decide_in_order
from intarsia.place.schedule import AssignedRegion, candidate_of, make_draft
from intarsia.plan.explanation import Explanation, explain_plan
from intarsia.tuning.absent.absent import plan_absent
from intarsia.tuning.options import Options

if TYPE_CHECKING:
    from intarsia.place.schedule import PlanDraft
    from intarsia.place.setting import Setting
    from intarsia.plan.tuning import TuningReport


def decide_absent(
    setting: Setting, placement: str, costs: str | None = None
) -> tuple[Decision, TuningReport | None]:
    """Return where nodes run on a machine that is not here.

    Args:
        setting: The model and the machine.
        placement: As of `intarsia.compile`; `collage` plans by estimates.
        costs: The database of costs that were measured there; None means what the settings say.

    Returns:
        The decision, and how it was found if that was by costs.

    Raises:
        PlacementError: A pinned node's target does not take it.
        UnsupportedError: No target takes some node.
    """
    if placement == Policy.COLLAGE:
        calls, report = plan_absent(setting, Options(), costs=costs)
        return decide_as_chosen(setting, calls, "cost"), report
    policy = Policy.MANUAL if placement == Policy.MANUAL else Policy.GREEDY
    return decide_in_order(setting, policy), None


def explain_absent(setting: Setting, placement: str, costs: str | None = None) -> Explanation:
    """Explain a plan for a machine that is not here, with what its backends estimate.

    Args:
        setting: As of `decide_absent`, and so is the rest.
        placement: How targets are found.
        costs: The database.
    """
    decision, report = decide_absent(setting, placement, costs)
    draft = make_draft(setting, decision)
    artifacts = [_sketch(draft, assigned) for assigned in draft.regions]
    explanation = explain_plan(replace(draft.plan, tuning=report), artifacts)
    return replace(explanation, passes=(*setting.passes, *decision.passes))


def _sketch(draft: PlanDraft, assigned: AssignedRegion) -> Artifact:
    """Return what an artifact would say of a region that is not compiled."""
    capability, region = assigned.capability, assigned.region
    backend, values = capability.backend, region.graph.values
    candidate = candidate_of(assigned, draft.layouts)
    cost = None
    if backend.estimate is not None:
        with calling(backend.name, capability.context, "on a region"):
            cost = backend.estimate(candidate, capability.context)
    about = "its cost is not known" if cost is None else f"{cost}: {cost.provenance}"
    try:
        version = backend.version()
    except BackendError:
        version = "not installed"
    return Artifact(
        backend=backend.name,
        version=version,
        target=str(capability.target),
        payload=b"",
        inputs=tuple(tensor_spec(values[one]) for one in region.inputs),
        outputs=tuple(tensor_spec(values[one]) for one in region.outputs),
        constants=tuple(
            ArtifactConstant(values[one].name, constant_array(values[one]), False)
            for one in region.constants
        ),
        metadata={ABOUT: f"{about}; not run here"},
    )
