# SPDX-License-Identifier: Apache-2.0
"""Products that are loaded on a GPU, each with the algorithm that was measured best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from intarsia.backends.cuda.cublas.library import BACKEND_NAME, Algorithm, Description, library
from intarsia.backends.cuda.device import DeviceMemory
from intarsia.backends.cuda.libraries import LibraryHandle, fastest, handle_of
from intarsia.backends.cuda.library_execution import ALIGNMENT, LibraryExecutable, check_numbers
from intarsia.errors import BackendError

if TYPE_CHECKING:
    from intarsia.backends.cuda.cublas.products import LtProduct, LtProgram
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.device import Step
    from intarsia.backends.values import Artifact

_MOST_ALGORITHMS = 8
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class CublasExecutable(LibraryExecutable):
    """Products with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        program: Its payload.
        device: Where it is loaded.

    Raises:
        BackendError: The library has no algorithm for a product.
        ExecutionError: The weights do not fit on the device.
        PackageError: The artifact is damaged.
    """

    def __init__(self, artifact: Artifact, program: LtProgram, device: CudaView) -> None:
        for product in program.products:
            check_numbers(artifact, program.tensors, product.node, product.operands)
        self._program, self._lt = program, library()
        self._algorithms: list[Algorithm] = []
        super().__init__(artifact, program.tensors, program.scratch_bytes, device, "cuBLASLt")

    def choose(self) -> int:
        """Choose the algorithm of each product, and return the most workspace that one needs.

        Raises:
            BackendError: The library has none for one.
            CublasError: It failed.
        """
        self._algorithms = [self._fastest(product) for product in self._program.products]
        return max(int(one.workspace_bytes) for one in self._algorithms)

    def calls(self, view: CudaView, addresses: Sequence[int], workspace: int) -> list[Step]:
        """Return what queues the products.

        Raises:
            CublasError: The library does not take them.
        """
        calls, handle = [], self._handle(view)
        for product, algorithm in zip(self._program.products, self._algorithms, strict=True):
            description = Description(self._lt, product, self._program.math_mode)
            if product.bias >= 0:
                description.set_bias(addresses[product.bias])
            queue = description.caller(handle, algorithm, workspace, int(view.stream))
            used = [addresses[one] for one in (product.left, product.right, product.result)]
            calls.append(_bound(queue, used))
        return calls

    def _handle(self, view: CudaView) -> Any:
        def make() -> LibraryHandle:
            made = self._lt.make("cublasLtCreate")
            return LibraryHandle(view.context, made, self._lt.functions.cublasLtDestroy)

        return handle_of(view, BACKEND_NAME, make)

    def _fastest(self, product: LtProduct) -> Algorithm:
        """Return the algorithm of a product that takes the least time, on memory of its own.

        Raises:
            BackendError: The library has none.
        """
        program = self._program
        description = Description(self._lt, product, program.math_mode)
        asked = description.preference(
            program.workspace_bytes, is_reduced_in_sums=program.is_reduced_in_sums
        )
        context, handle = self.device.context, self._handle(self.device)
        if product.bias >= 0:  # algorithms are asked for with one
            row = DeviceMemory(context, product.n * _ITEM_BYTES[product.dtype])
            description.set_bias(row.address)
        found = description.algorithms(handle, asked, _MOST_ALGORITHMS)
        if not found:
            raise BackendError(
                f"cuBLASLt has no algorithm for {product.node!r}",
                backend=BACKEND_NAME,
                node=product.node,
                target=self.target,
                hint="exclude it from this target",
            )
        m, n, k, batch = product.m, product.n, product.k, product.batch
        item = _ITEM_BYTES[product.dtype]
        memory = [DeviceMemory(context, batch * size * item) for size in (m * k, k * n, m * n)]
        workspace = DeviceMemory(context, max(ALIGNMENT, *(one.workspace_bytes for one in found)))
        addresses = [one.address for one in memory]
        stream = int(self.device.stream)

        def queue_of(algorithm: Algorithm) -> Step:
            queue = description.caller(handle, algorithm, workspace.address, stream)
            return _bound(queue, addresses)

        return fastest(self.device, found, queue_of)


def _bound(queue: Callable[[int, int, int], None], addresses: Sequence[int]) -> Step:
    left, right, result = addresses
    return lambda: queue(left, right, result)
