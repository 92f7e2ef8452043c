# SPDX-License-Identifier: Apache-2.0
"""The kind `cublas`: a partial backend of matrix products, on the device that `cuda` opens.

Attributes: `math_mode`, `disallow_reduced_precision_reduction`, `workspace_size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from intarsia.backends.artifact import unpack_payload
from intarsia.backends.cuda.cublas.library import BACKEND_NAME, library
from intarsia.backends.cuda.cublas.products import LtProgram
from intarsia.backends.cuda.library_backend import CudaLibraryBackend, region_matches
from intarsia.backends.cuda.library_program import RegionTensors

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.cuda.cublas.execution import CublasExecutable
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.values import Artifact, BuildContext
    from intarsia.graph.pattern import Table
    from intarsia.graph.region import Region

_WORKSPACE_BYTES = 32 << 20
"""What cuBLAS's manual recommends for the newest GPUs."""


@dataclass(frozen=True)
class CublasBackend(CudaLibraryBackend):
    """Serves the kind `cublas`."""

    name = BACKEND_NAME
    title = "cuBLASLt"
    kinds = (BACKEND_NAME,)

    def library_version(self) -> str:
        """Return the version of cuBLASLt.

        Raises:
            BackendError: It is not installed.
        """
        return library().version()

    def table(self) -> Table:
        """Return what cuBLASLt computes, as patterns."""
        from intarsia.backends.cuda.cublas.table import TABLE  # running a package reads no graph

        return TABLE

    def write(self, region: Region, context: BuildContext) -> tuple[LtProgram, dict[str, Array]]:
        """Return a region as products, and its constants by name.

        Raises:
            BackendError: A node is no product, nor of one.
        """
        return program_of(region, context)

    def executable(self, artifact: Artifact, view: CudaView) -> CublasExecutable:
        """Return products that are loaded.

        Raises:
            BackendError: The library has no algorithm for a product.
            ExecutionError: The weights do not fit.
            PackageError: The artifact is damaged.
        """
        from intarsia.backends.cuda.cublas.execution import CublasExecutable

        return CublasExecutable(artifact, unpack_payload(artifact, LtProgram), view)


def program_of(region: Region, context: BuildContext) -> tuple[LtProgram, dict[str, Array]]:
    """Return a region as products, and its constants by name.

    Raises:
        BackendError: A node is no product, nor of one.
    """
    from intarsia.backends.cuda.cublas.table import TABLE, drafted

    matches = region_matches(region, TABLE, BACKEND_NAME, "product of cuBLASLt's")
    numbers = RegionTensors(region)
    products = [drafted(match).numbered(numbers.number) for match in matches]
    attrs = context.attrs
    size = attrs.get("workspace_size")
    program = LtProgram(
        numbers.tensors,
        products,
        numbers.scratch_bytes,
        str(attrs.get("math_mode") or "default"),
        bool(attrs.get("disallow_reduced_precision_reduction")),
        _WORKSPACE_BYTES if size is None else int(size),
    )
    return program, numbers.constants


BACKEND = CublasBackend()
