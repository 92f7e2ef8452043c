# SPDX-License-Identifier: Apache-2.0
"""Values of planning and nothing else: candidate, placement, plan, explanation."""

from intarsia.backends.values import Candidate
from intarsia.plan.placement import NodePlacement, PlacedRegion, Placement
from intarsia.plan.plan import CopyStep, PassRun, Plan, PlanTensor, RegionStep, TensorStorage

__all__ = [
    "Candidate",
    "CopyStep",
    "NodePlacement",
    "PassRun",
    "PlacedRegion",
    "Placement",
    "Plan",
    "PlanTensor",
    "RegionStep",
    "TensorStorage",
]
