# SPDX-License-Identifier: Apache-2.0
"""What runs where and why, as one frozen value with a plain `str`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.backends.api import ABOUT, Artifact
from intarsia.plan.placement import Placement
from intarsia.plan.plan import CopyStep, PassRun, Plan
from intarsia.plan.tuning import TuningReport


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy between memory domains."""

    tensor: str
    source: str
    destination: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What runs where and why.

    Attributes:
        placement: Regions, nodes and refusals.
        steps: The plan's steps, a line each.
        copies: Every copy, with its bytes.
        rewrites: What was done to the model before placement.
        passes: Every pass that ran, in order.
        versions: Version of each backend in use, by name.
        arena_bytes: Size of the boundary buffers' arena, by device.
        summary: One line: how many nodes on which target, in how many regions.
        shortfall: One line if something that was asked for did not happen.
        regions: For each region what its backend says of it, or an empty line.
        tuning: How the plan was found, if it was found by cost.
    """

    placement: Placement
    steps: tuple[str, ...]
    copies: tuple[CopyRow, ...]
    rewrites: tuple[str, ...]
    passes: tuple[PassRun, ...]
    versions: dict[str, str]
    arena_bytes: dict[str, int]
    summary: str
    shortfall: str | None
    regions: tuple[str, ...] = ()
    tuning: TuningReport | None = None

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            self.summary,
            *([self.tuning.summary] if self.tuning else []),
            *([self.shortfall] if self.shortfall else []),
            str(self.placement),
            *(f"region {i}: {about}" for i, about in enumerate(self.regions) if about),
            f"copies: {len(self.copies)}",
            *(
                f"  {row.tensor}: {row.source} -> {row.destination}, {row.nbytes} B"
                for row in self.copies
            ),
            f"rewrites: {', '.join(self.rewrites) or 'none'}",
            f"backends: {versions or 'none'}",
        ]
        lines += [f"refused: {refusal}" for refusal in self.placement.refusals]
        return "\n".join(lines)


def explain_plan(plan: Plan, artifacts: Sequence[Artifact]) -> Explanation:
    """Return the explanation of a plan with its artifacts."""
    placement = plan.placement
    counts = ", ".join(
        f"{count} on {target}" for target, count in placement.coverage().items() if count
    )
    summary = (
        f"{_count(placement.node_count, 'node')} in {_count(len(placement.regions), 'region')}, "
        f"{_count(len(plan.copies), 'copy', 'copies')} ({placement.policy} placement): "
        f"{counts or 'nothing to run'}"
    )
    return Explanation(
        placement=placement,
        steps=tuple(str(plan).splitlines()),
        copies=tuple(_copy_row(plan, step) for step in plan.copies),
        rewrites=plan.rewrites,
        passes=plan.passes,
        versions={artifact.backend: artifact.version for artifact in artifacts},
        arena_bytes=dict(zip(plan.devices, plan.arena_bytes, strict=True)),
        summary=summary,
        shortfall=placement.shortfall,
        regions=tuple(artifact.metadata.get(ABOUT, "") for artifact in artifacts),
        tuning=plan.tuning,
    )


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def _copy_row(plan: Plan, step: CopyStep) -> CopyRow:
    source, destination = plan.tensors[step.source], plan.tensors[step.destination]
    return CopyRow(
        source.name, plan.devices[source.device], plan.devices[destination.device], step.nbytes
    )
