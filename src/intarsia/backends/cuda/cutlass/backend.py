# SPDX-License-Identifier: Apache-2.0
"""The kind `cutlass`: products by kernels of CUTLASS, compiled by nvcc for the device of `cuda`.

Attributes: `use_3xtf32`, `find_first_valid`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from intarsia.backends.artifact import refuse, unpack_payload
from intarsia.backends.cuda.cutlass.kernels import (
    ProductKernel,
    ProductTile,
    tiles_of,
    write_kernel,
)
from intarsia.backends.cuda.cutlass.products import (
    CompiledProduct,
    CutlassProduct,
    CutlassProgram,
)
from intarsia.backends.cuda.cutlass.toolkit import (
    BACKEND_NAME,
    compile_kernel,
    resources,
    toolkit,
)
from intarsia.backends.cuda.library_backend import CudaLibraryBackend, region_matches
from intarsia.backends.cuda.library_program import RegionTensors
from intarsia.backends.queues import said_in_vain
from intarsia.errors import ReasonCode

if TYPE_CHECKING:
    from pathlib import Path

    from intarsia.arrays import Array
    from intarsia.backends.cuda.cublas.products import LtProduct
    from intarsia.backends.cuda.cutlass.execution import CutlassExecutable
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.values import Artifact, BuildContext, Refusal
    from intarsia.graph.graph import Graph
    from intarsia.graph.pattern import Table
    from intarsia.graph.region import Region
    from intarsia.native.ptxas import KernelResources
    from intarsia.target import Target

_LEAST_CAPABILITY = 80
"""The least compute capability that has what the kernels copy and multiply by."""
_UNUSED = (
    "split_k_slices",
    "profile_all_alignments",
    "use_multiprocessing",
    "threads",
    "use_fast_math",
    "tmp_dir",
)
"""Attributes that change nothing."""


@dataclass(frozen=True)
class CutlassBackend(CudaLibraryBackend):
    """Serves the kind `cutlass`."""

    name = BACKEND_NAME
    title = "CUTLASS"
    kinds = (BACKEND_NAME,)

    def library_version(self) -> str:
        """Return the versions of CUTLASS and of nvcc.

        Raises:
            BackendError: One is not installed.
        """
        return toolkit().version

    def table(self) -> Table:
        """Return what kernels of CUTLASS compute, as patterns."""
        from intarsia.backends.cuda.cutlass.table import TABLE  # running a package reads no graph

        return TABLE

    def refuse_on_device(self, graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
        """Return refusals of all nodes for a GPU that is too old."""
        if _capability(self.arch(context)) >= _LEAST_CAPABILITY:
            return {}
        reason = f"its kernels need sm_{_LEAST_CAPABILITY}, and this is for {self.arch(context)}"
        code = ReasonCode.UNSUPPORTED_OP
        return {node.id: refuse(node, context, code, reason) for node in graph.nodes}

    def check_target(self, target: Target) -> Sequence[str]:
        """Return the attributes that change nothing."""
        return said_in_vain(target, _UNUSED)

    def arch(self, context: BuildContext) -> str:
        """Return the architecture that kernels are compiled for: the device's own.

        Raises:
            BackendError: There is no such device.
        """
        return f"sm_{self.device(context).capability}"

    def write(
        self, region: Region, context: BuildContext
    ) -> tuple[CutlassProgram, dict[str, Array]]:
        """Return a region as products with their kernels, and its constants by name.

        Raises:
            BackendError: A node is no product, nor of one; or nvcc refuses a kernel.
        """
        caches = self.settings.cache_folder()
        return program_of(region, context, self.arch(context), caches)

    def executable(self, artifact: Artifact, view: CudaView) -> CutlassExecutable:
        """Return products that are loaded.

        Raises:
            BackendError: The driver does not take the kernels.
            ExecutionError: The weights do not fit.
            PackageError: The artifact is damaged.
        """
        from intarsia.backends.cuda.cutlass.execution import CutlassExecutable

        return CutlassExecutable(artifact, unpack_payload(artifact, CutlassProgram), view)

    def kernel_needs(self, artifact: Artifact) -> Sequence[KernelResources]:
        """Return what the kernels of an artifact need of a GPU, as was counted when compiling.

        Raises:
            PackageError: The artifact is damaged.
        """
        program = unpack_payload(artifact, CutlassProgram)
        return [resources(kernel.name, kernel.needs) for kernel in program.kernels]


def _capability(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def program_of(
    region: Region, context: BuildContext, arch: str, caches: Path | None
) -> tuple[CutlassProgram, dict[str, Array]]:
    """Return a region as products with their kernels, and its constants by name.

    Args:
        region: Of products.
        context: With the target.
        arch: As in `sm_80`.
        caches: The cache folder.

    Raises:
        BackendError: A node is no product, nor of one; or nvcc refuses a kernel.
    """
    from intarsia.backends.cuda.cublas.table import drafted
    from intarsia.backends.cuda.cutlass.table import TABLE, sort_of

    matches = region_matches(region, TABLE, BACKEND_NAME, "product of CUTLASS's")
    numbers, kernels = RegionTensors(region), dict[str, ProductKernel]()
    attrs, products = context.attrs, []
    for match in matches:
        product = drafted(match).numbered(numbers.number)
        sort = sort_of(product, is_exact=not attrs.get("use_3xtf32", True))
        tiles = tiles_of(sort)
        made = [write_kernel(sort, tile) for tile in _fitting(product, tiles)]
        if attrs.get("find_first_valid"):
            made = made[:1]
        kernels |= {kernel.name: kernel for kernel in made}
        order = list(kernels)
        chosen = tuple(order.index(kernel.name) for kernel in made)
        products.append(CutlassProduct(**msgspec.structs.asdict(product), kernels=chosen))
    compiled = []
    for kernel in kernels.values():
        code = compile_kernel(kernel, arch, caches)
        compiled.append(
            CompiledProduct(kernel.name, code.cubin, kernel.tile, kernel.threads, code.needs)
        )
    program = CutlassProgram(arch, numbers.tensors, products, compiled, numbers.scratch_bytes)
    return program, numbers.constants


def _fitting(product: LtProduct, tiles: Sequence[ProductTile]) -> Sequence[ProductTile]:
    """Return the tiles that a product fills at least once, or the smallest."""
    fitting = [tile for tile in tiles if product.m >= tile.block[0] and product.n >= tile.block[1]]
    return fitting or tiles[-1:]


BACKEND = CutlassBackend()
