# SPDX-License-Identifier: Apache-2.0
"""A plan as its devices see it: what each runs, holds, gets and gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from intarsia.backends.values import Artifact
from intarsia.plan.plan import HOST, CopyStep, Plan, TensorStorage
from intarsia.plan.profile import Profile


@dataclass(frozen=True, slots=True)
class Traffic:
    """Copies in one direction.

    Attributes:
        copies: How many a run makes.
        nbytes: Bytes of all of them.
        seconds: How long they took, if that was measured.
    """

    copies: int
    nbytes: int
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.copies} ({self.nbytes} B{_time(self.seconds)})"


@dataclass(frozen=True, slots=True)
class DeviceView:
    """What one memory domain runs and holds.

    Memory is what one run needs there. What a runtime allocates for itself is not known and not
    counted; several runs at once each have their own, but for the constants.

    Attributes:
        device: Its text, as `opencl:0`.
        targets: Text of each target that runs there, in the order of their first regions.
        regions: Positions of its regions in the placement.
        nodes: How many nodes these have.
        tensor_bytes: Of tensors between regions and at the model's border.
        constant_bytes: Of weights, as the code there reads them; shared ones count once.
        scratch_bytes: Of memory inside regions, which they share.
        incoming: Copies to it.
        outgoing: Copies from it.
        seconds: How long its regions took, if that was measured.
        peak_bytes: Of tensors, constants and scratch together.
    """

    device: str
    targets: tuple[str, ...]
    regions: tuple[int, ...]
    nodes: int
    tensor_bytes: int
    constant_bytes: int
    scratch_bytes: int
    incoming: Traffic
    outgoing: Traffic
    seconds: float | None = None
    peak_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        total = self.tensor_bytes + self.constant_bytes + self.scratch_bytes
        object.__setattr__(self, "peak_bytes", total)

    def __str__(self) -> str:
        return (
            f"{self.device}: {self.nodes} nodes in {len(self.regions)} regions"
            f"{' on ' if self.targets else ''}{', '.join(self.targets)}{_time(self.seconds)}; "
            f"{self.peak_bytes} B ({self.tensor_bytes} tensors, {self.constant_bytes} constants, "
            f"{self.scratch_bytes} scratch); copies in {self.incoming}, out {self.outgoing}"
        )


def view_devices(
    plan: Plan,
    artifacts: Sequence[Artifact],
    scratch_bytes: Sequence[int],
    profile: Profile | None = None,
) -> tuple[DeviceView, ...]:
    """Return what each device of a plan runs and holds, the host first.

    Args:
        plan: What is run.
        artifacts: One per region.
        scratch_bytes: Of each region.
        profile: How long each step took.
    """
    region_seconds = profile.of_regions(plan) if profile else None
    views = []
    for position, device in enumerate(plan.devices):
        regions = tuple(i for i, r in enumerate(plan.placement.regions) if r.device == device)
        placed = [plan.placement.regions[i] for i in regions]
        views.append(
            DeviceView(
                device,
                targets=tuple(dict.fromkeys(region.runs_on for region in placed)),
                regions=regions,
                nodes=sum(len(region.nodes) for region in placed),
                tensor_bytes=plan.arena_bytes[position] + _border_bytes(plan, position),
                constant_bytes=_constant_bytes([artifacts[i] for i in regions]),
                scratch_bytes=max((scratch_bytes[i] for i in regions), default=0),
                incoming=_traffic(plan, profile, destination=position),
                outgoing=_traffic(plan, profile, source=position),
                seconds=sum(region_seconds[i] for i in regions) if region_seconds else None,
            )
        )
    return tuple(views)


def _border_bytes(plan: Plan, device: int) -> int:
    """Return the bytes of the model's inputs and outputs that have memory of their own."""
    if device != HOST:
        return 0
    return sum(
        tensor.spec.nbytes
        for tensor in plan.tensors
        if tensor.storage in (TensorStorage.INPUT, TensorStorage.OUTPUT)
        and tensor.dtype != "string"
    )


def _constant_bytes(artifacts: Iterable[Artifact]) -> int:
    """Return the bytes of all constants; what several regions share counts once."""
    seen = {
        (constant.data.ctypes.data, constant.data.nbytes)
        for artifact in artifacts
        for constant in artifact.constants
    }
    return sum(nbytes for _, nbytes in seen)


def _traffic(
    plan: Plan, profile: Profile | None, source: int | None = None, destination: int | None = None
) -> Traffic:
    copies, nbytes, seconds = 0, 0, 0.0
    for position, step in enumerate(plan.steps):
        if not isinstance(step, CopyStep):
            continue
        ends = plan.tensors[step.source].device, plan.tensors[step.destination].device
        if source in (None, ends[0]) and destination in (None, ends[1]):
            copies += 1
            nbytes += step.nbytes
            seconds += profile.seconds[position] if profile else 0.0
    return Traffic(copies, nbytes, seconds if profile else None)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f", {1e3 * seconds:.3f} ms"
