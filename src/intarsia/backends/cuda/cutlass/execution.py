# SPDX-License-Identifier: Apache-2.0
"""Products that are loaded on a GPU, each with the kernel that was measured fastest."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from intarsia.backends.artifact import damaged
from intarsia.backends.cuda.cutlass.kernels import item_bytes
from intarsia.backends.cuda.cutlass.toolkit import BACKEND_NAME
from intarsia.backends.cuda.device import DeviceMemory, release_in
from intarsia.backends.cuda.driver import CudaError, call
from intarsia.backends.cuda.execution import Arguments
from intarsia.backends.cuda.libraries import fastest
from intarsia.backends.cuda.library_execution import LibraryExecutable, check_numbers
from intarsia.errors import BackendError

if TYPE_CHECKING:
    from intarsia.backends.cuda.cutlass.products import CutlassProduct, CutlassProgram
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.device import Step
    from intarsia.backends.values import Artifact


class CutlassExecutable(LibraryExecutable):
    """Products with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        program: Its payload.
        device: Where it is loaded.

    Raises:
        BackendError: The driver does not take a kernel.
        ExecutionError: The weights do not fit on the device.
        PackageError: The artifact is damaged.
    """

    def __init__(self, artifact: Artifact, program: CutlassProgram, device: CudaView) -> None:
        self._program = program
        self._functions: list[Any] = []
        self._chosen: list[int] = []
        kernels = set(range(len(program.kernels)))
        for product in program.products:
            check_numbers(artifact, program.tensors, product.node, product.operands)
            if not product.kernels or not set(product.kernels) <= kernels:
                raise damaged(artifact, f"{product.node!r} has no kernel")
        super().__init__(artifact, program.tensors, program.scratch_bytes, device, "CUTLASS")

    def choose(self) -> int:
        """Load the kernels and choose that of each product; none needs a workspace.

        Raises:
            BackendError: The driver does not take a kernel.
        """
        device, program = self.device, self._program
        for kernel in program.kernels:
            try:
                module = call("cuModuleLoadData", kernel.cubin)
                weakref.finalize(self, release_in, device.context, "cuModuleUnload", module)
                self._functions.append(call("cuModuleGetFunction", module, kernel.name.encode()))
            except CudaError as error:
                raise BackendError(
                    f"cuda:{device.number} does not take kernels of CUTLASS: {error}",
                    backend=BACKEND_NAME,
                    target=self.target,
                    hint=f"it is {device.name}, and the code is for {program.arch}; compile the "
                    "model for it, or with an nvcc that is no newer than the driver",
                ) from error
        self._chosen = [self._fastest(product) for product in program.products]
        return 0

    def calls(self, view: CudaView, addresses: Sequence[int], workspace: int) -> list[Step]:
        """Return what queues the products."""
        calls = []
        for product, number in zip(self._program.products, self._chosen, strict=True):
            row = 0 if product.bias < 0 else addresses[product.bias]
            used = [addresses[one] for one in (product.left, product.right, product.result)]
            calls.append(self._call(view, product, number, (used[0], used[1], row, used[2])))
        return calls

    def _call(
        self, view: CudaView, product: CutlassProduct, number: int, addresses: Sequence[int]
    ) -> Step:
        """Return what queues a product by a kernel.

        Args:
            view: In whose stream.
            product: The product.
            number: Of the kernel.
            addresses: Of the left operand, the right one, the row that is added, and the result.
        """
        kernel, function = self._program.kernels[number], self._functions[number]
        m, n, k = product.m, product.n, product.k
        (alpha,) = struct.unpack("<q", struct.pack("<d", product.alpha))
        steps = (
            0 if product.is_left_repeated else m * k,
            0 if product.is_right_repeated else k * n,
        )
        arguments = Arguments([*addresses, m, n, k, *steps, alpha])
        rows, columns, _ = kernel.tile.block
        grid = (-(-m // rows), -(-n // columns), product.batch)
        threads = (kernel.threads, 1, 1)

        def queue() -> None:
            stream, given = view.stream, arguments.address
            call("cuLaunchKernel", function, *grid, *threads, 0, stream, given, 0)

        return queue

    def _fastest(self, product: CutlassProduct) -> int:
        """Return the number of the kernel of a product that takes the least time here."""
        if len(product.kernels) == 1:
            return product.kernels[0]
        item, batch = item_bytes(product.dtype), product.batch
        m, n, k = product.m, product.n, product.k
        memory = [
            DeviceMemory(self.device.context, size * item)
            for size in (batch * m * k, batch * k * n, n, batch * m * n)
        ]
        addresses = [one.address for one in memory]

        def queue_of(number: int) -> Step:
            return self._call(self.device, product, number, addresses)

        return fastest(self.device, product.kernels, queue_of)
