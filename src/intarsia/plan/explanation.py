# SPDX-License-Identifier: Apache-2.0
"""What runs where and why, as one frozen value with a plain `str`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from intarsia.backends.values import ABOUT, SCRATCH, Artifact
from intarsia.plan.device_view import DeviceView, view_devices
from intarsia.plan.placement import CONTROL_FLOW, Placement
from intarsia.plan.plan import CopyStep, LateSize, PassRun, Plan, RegionStep
from intarsia.plan.profile import Profile
from intarsia.plan.wiring import Wiring, read_wiring

if TYPE_CHECKING:
    from intarsia.plan.by_sizes import PlansBySizes
    from intarsia.plan.tuning import TuningReport


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy between memory domains.

    Attributes:
        tensor: Name of the value.
        source: The device that it is on.
        destination: The device that it goes to.
        nbytes: Bytes that cross.
        seconds: How long it took, if that was measured.
        route: From one device to another: `direct`, or `through the host`; empty for what begins
            or ends at the host, and unless the plan is loaded.
    """

    tensor: str
    source: str
    destination: str
    nbytes: int
    seconds: float | None = None
    route: str = ""

    def __str__(self) -> str:
        route = f", {self.route}" if self.route else ""
        return f"{self.tensor}: {self.source} -> {self.destination}, {self.nbytes} B{route}"


@dataclass(frozen=True, slots=True)
class BodyExplanation:
    """What runs where in a body of an If, Loop or Scan that the plan runs itself.

    Attributes:
        region: Position of the operator's region.
        name: The attribute that holds the body.
        explanation: Of its own plan; times there are of all iterations of a run.
        iterations: How often it ran in a run, if that was counted.
        seconds: How long these took.
    """

    region: int
    name: str
    explanation: Explanation
    iterations: int | None = None
    seconds: float | None = None

    @property
    def title(self) -> str:
        """Which body it is, and how often it ran."""
        ran = ""
        if self.iterations is not None and self.seconds is not None:
            runs = _count(self.iterations, "iteration")
            ran = f" ({runs}, {1e3 * self.seconds:.3f} ms)"
        return f"{self.name} of region {self.region}{ran}"

    def __str__(self) -> str:
        inner = self.explanation
        lines = [inner.summary, *([inner.shortfall] if inner.shortfall else [])]
        lines += [
            line for text in (inner.placement, *inner.bodies) for line in str(text).split("\n")
        ]
        return "\n".join([f"{self.title}:", *(f"  {line}" for line in lines)])


_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """What runs where and why.

    Attributes:
        placement: Regions, nodes and refusals.
        steps: The plan's steps, a line each.
        copies: Every copy, with its bytes.
        devices: What each device does and holds, the host first.
        rewrites: What was done to the model before placement.
        passes: Every pass that ran, in order.
        versions: Version of each backend in use, by name.
        arena_bytes: Size of the boundary buffers' arena, by device.
        summary: One line: how many nodes on which target, in how many regions.
        shortfall: One line if something that was asked for did not happen.
        regions: For each region what its backend says of it, or an empty line.
        tuning: How the plan was found, if it was found by cost.
        region_seconds: For each region how long it took, if that was measured.
        layouts: By name, how tensors lie between regions that are not row-major there.
        free: One line on free dimensions and the sizes that this is for; empty if there are none.
        bodies: What runs where in If, Loop and Scan, where the plan runs them itself.
        by_sizes: Which plan is for which sizes of free dimensions, if that was measured.
        late: A line for each size that is found while it runs and given to the code behind.
        wiring: Which values each node reads and writes; None if its plan is of an older version.
        captures: A line for each span of steps that a device starts by one call, or why it does
            not; none unless the plan is loaded.
    """

    placement: Placement
    steps: tuple[str, ...]
    copies: tuple[CopyRow, ...]
    devices: tuple[DeviceView, ...]
    rewrites: tuple[str, ...]
    passes: tuple[PassRun, ...]
    versions: dict[str, str]
    arena_bytes: dict[str, int]
    summary: str
    shortfall: str | None
    regions: tuple[str, ...] = ()
    tuning: TuningReport | None = None
    region_seconds: tuple[float, ...] | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    free: str = ""
    bodies: tuple[BodyExplanation, ...] = ()
    by_sizes: PlansBySizes | None = None
    late: tuple[str, ...] = ()
    wiring: Wiring | None = None
    captures: tuple[str, ...] = ()

    def with_free(
        self,
        text: str,
        plans: PlansBySizes | None,
        sizes: Mapping[str, int],
        *,
        is_generic: bool,
    ) -> Explanation:
        """Return it with what is known of free dimensions.

        Args:
            text: One line on them.
            plans: Which plan is for which sizes.
            sizes: Those that it is for.
            is_generic: Whether it is of the program for all sizes.
        """
        if plans is not None and is_generic:
            text = f"{text}; this is the program for all sizes, which no measured plan places"
        elif plans is not None and sizes:
            text = f"{text}; its plan: {plans.choose(sizes).why}"
        return replace(self, free=text, by_sizes=plans)

    @property
    def layout_lines(self) -> tuple[str, ...]:
        """A line for each layout, with the first tensors that have it."""
        lines = []
        for layout in sorted(set(self.layouts.values())):
            names = [name for name, other in self.layouts.items() if other == layout]
            more = ", ..." if len(names) > _MOST_NAMES else ""
            lines.append(
                f"{layout}: {_count(len(names), 'tensor')} between regions: "
                f"{', '.join(names[:_MOST_NAMES])}{more}"
            )
        return tuple(lines)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            self.summary,
            *([self.free] if self.free else []),
            *([str(self.by_sizes)] if self.by_sizes else []),
            *self.late,
            *([self.tuning.summary] if self.tuning else []),
            *([self.shortfall] if self.shortfall else []),
            *self.placement.passed_over,
            str(self.placement),
            *map(str, self.bodies),
            *(f"region {i}: {about}" for i, about in enumerate(self.regions) if about),
            *(f"device {device}" for device in self.devices),
            f"copies: {len(self.copies)}",
            *(f"  {row}" for row in self.copies),
            *self.captures,
            *self.layout_lines,
            f"rewrites: {', '.join(self.rewrites) or 'none'}",
            f"backends: {versions or 'none'}",
        ]
        lines += [f"refused: {refusal}" for refusal in self.placement.refusals]
        return "\n".join(lines)


def explain_plan(
    plan: Plan,
    artifacts: Sequence[Artifact],
    scratch_bytes: Sequence[int] | None = None,
    profile: Profile | None = None,
    bodies: Sequence[Explanation] = (),
) -> Explanation:
    """Return the explanation of a plan with its artifacts.

    Args:
        plan: What is run.
        artifacts: One per region.
        scratch_bytes: Of each region, once it is loaded; None takes what the artifacts say.
        profile: How long each step took.
        bodies: Of the plan's bodies.

    Raises:
        PackageError: What the plan says of its nodes' values is malformed.
    """
    placement = plan.placement
    counts = ", ".join(
        f"{count} on {target}" for target, count in placement.coverage().items() if count
    )
    summary = (
        f"{_count(placement.node_count, 'node')} in {_count(len(placement.regions), 'region')}, "
        f"{_count(len(plan.copies), 'copy', 'copies')} ({placement.policy} placement): "
        f"{counts or 'nothing to run'}"
    )
    if scratch_bytes is None:
        scratch_bytes = [int(artifact.metadata.get(SCRATCH, 0)) for artifact in artifacts]
    return Explanation(
        placement=placement,
        steps=tuple(str(plan).splitlines()),
        copies=tuple(
            _copy_row(plan, step, profile.seconds[position] if profile else None)
            for position, step in enumerate(plan.steps)
            if isinstance(step, CopyStep)
        ),
        devices=view_devices(plan, artifacts, scratch_bytes, profile),
        rewrites=plan.rewrites,
        passes=plan.passes,
        versions={
            artifact.backend: artifact.version
            for artifact in artifacts
            if artifact.backend != CONTROL_FLOW
        }
        | {name: version for body in bodies for name, version in body.versions.items()},
        arena_bytes=dict(zip(plan.devices, plan.arena_bytes, strict=True)),
        summary=summary,
        shortfall=placement.shortfall,
        regions=tuple(artifact.metadata.get(ABOUT, "") for artifact in artifacts),
        tuning=plan.tuning,
        region_seconds=profile.of_regions(plan) if profile else None,
        layouts=plan.layouts,
        bodies=tuple(
            BodyExplanation(body.region, body.name, inner, *_ran(profile, number))
            for number, (body, inner) in enumerate(zip(plan.bodies, bodies, strict=True))
        ),
        late=tuple(_late_line(plan, size) for size in plan.late),
        wiring=read_wiring(plan.wiring),
    )


def _late_line(plan: Plan, size: LateSize) -> str:
    """Say of a size that the data decides what finds it."""
    makers = (
        plan.placement.regions[step.region]
        for step in plan.steps
        if isinstance(step, RegionStep) and size.tensor in step.outputs
    )
    maker = next((f"when {one.operators} has run on {one.target}" for one in makers), "as an input")
    bound = "" if size.high is None else f", at most {size.high}"
    name = plan.tensors[size.tensor].name
    return f"size {size.name}: dimension {size.axis} of {name!r}, found {maker}{bound}"


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def _ran(profile: Profile | None, body: int) -> tuple[int | None, float | None]:
    """Return how often a body ran and how long that took, if it was timed."""
    if profile is None:
        return None, None
    return profile.bodies[body].iterations, profile.bodies[body].seconds


def _copy_row(plan: Plan, step: CopyStep, seconds: float | None) -> CopyRow:
    source, destination = plan.tensors[step.source], plan.tensors[step.destination]
    devices = plan.devices[source.device], plan.devices[destination.device]
    return CopyRow(source.name, *devices, step.nbytes, seconds)
