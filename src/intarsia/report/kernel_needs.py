# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a plan need of their devices: registers, stack, shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.native.ptxas import KernelResources

if TYPE_CHECKING:
    from rich.console import RenderableType

    from intarsia.backends.registry import Backends
    from intarsia.backends.values import Artifact
    from intarsia.plan.placement import Placement


@dataclass(frozen=True, slots=True)
class RegionKernels:
    """The kernels of one region.

    Attributes:
        region: Position in the placement.
        target: Where it runs.
        operators: Of its nodes.
        kernels: What each needs.
    """

    region: int
    target: str
    operators: str
    kernels: tuple[KernelResources, ...]


@dataclass(frozen=True, slots=True)
class PlanKernels:
    """The kernels of a plan, of the regions whose backends tell what they need."""

    regions: tuple[RegionKernels, ...]


def find_kernels(
    placement: Placement, artifacts: Sequence[Artifact], backends: Backends
) -> PlanKernels:
    """Return what the kernels of a plan need.

    Args:
        placement: Of the plan.
        artifacts: One per region.
        backends: What compiled them, or the same elsewhere: no device is needed.

    Raises:
        BackendError: An assembler is missing, or refuses kernels.
        PackageError: An artifact is damaged.
    """
    found = []
    for number, (region, artifact) in enumerate(zip(placement.regions, artifacts, strict=True)):
        backend = backends.by_name.get(artifact.backend)
        if backend is not None and backend.kernel_needs is not None:
            kernels = tuple(backend.kernel_needs(artifact))
            found.append(RegionKernels(number, region.target, region.operators, kernels))
    return PlanKernels(tuple(found))


def needs_view(kernels: PlanKernels) -> RenderableType:
    """Return a row for each kernel."""
    from rich.text import Text

    from intarsia.report.tables import make_table

    if not kernels.regions:
        return Text("no region has kernels that an assembler could count")
    return make_table(
        "kernels, as the assembler counts",
        ("region>", "target", "kernel", "registers>", "stack>", "spilled>", "shared>"),
        [
            (
                *(region.region, region.target, kernel.name, kernel.registers),
                *(kernel.stack_bytes, kernel.spilled_bytes, kernel.shared_bytes),
            )
            for region in kernels.regions
            for kernel in region.kernels
        ],
    )
