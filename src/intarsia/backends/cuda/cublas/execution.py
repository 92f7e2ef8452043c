# SPDX-License-Identifier: Apache-2.0
"""Products that are loaded on a GPU: weights there, and the algorithm that was measured best."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from intarsia.backends.cuda.cublas.library import (
    ALIGNMENT,
    BACKEND_NAME,
    Algorithm,
    CublasError,
    CublasLt,
    Description,
    library,
)
from intarsia.backends.cuda.cublas.products import LtPlace, LtProduct, LtProgram
from intarsia.backends.cuda.device import CudaView, DeviceMemory, PrimaryContext, release_in
from intarsia.backends.cuda.driver import PROCESS, call
from intarsia.backends.values import TensorSpec
from intarsia.errors import BackendError, ExecutionError

if TYPE_CHECKING:
    from intarsia.backends.device import Buffer, Step
    from intarsia.backends.queues import Block, DeviceTensor
    from intarsia.backends.values import Artifact

_MOST_ALGORITHMS = 8
_RUNS = 5
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class CublasExecutable:
    """Products with their weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        program: Its payload.
        device: Where it is loaded.

    Raises:
        BackendError: The library has no algorithm for a product.
        ExecutionError: The weights do not fit on the device.
    """

    def __init__(self, artifact: Artifact, program: LtProgram, device: CudaView) -> None:
        self.scratch_bytes = program.scratch_bytes
        self._target = artifact.target
        self._program = program
        self._device = device
        self._lt = library()
        self._constants = []
        for constant in artifact.constants:
            data = constant.data
            spec = TensorSpec(constant.name, data.dtype.name, data.shape)
            tensor = device.tensor(device.allocate(spec.nbytes), 0, spec)
            device.write(data, tensor)
            self._constants.append(tensor)
        with device.failing("cannot choose algorithms"):
            device.context.enter()
            try:
                self._handle = LtHandle(self._lt, device.context)
                self._algorithms = [self._fastest(product) for product in program.products]
            except CublasError as error:
                raise BackendError(
                    f"cuda:{device.number} cannot compute a region by cuBLASLt: {error}",
                    backend=BACKEND_NAME,
                    target=artifact.target,
                    hint="exclude its nodes from this target, or leave attributes of it out",
                ) from error

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Block | None
    ) -> Step:
        """Return the call that queues the products, on the queue of its buffers."""
        view = self._device.view_of((*inputs, *outputs))
        addresses = self._addresses(inputs, outputs, scratch)
        most = max(one.workspace_bytes for one in self._algorithms)
        workspace = view.allocate(max(most, ALIGNMENT))
        calls: list[Callable[[], None]] = []
        with self._failing():
            for product, algorithm in zip(self._program.products, self._algorithms, strict=True):
                description = Description(self._lt, product, self._program.math_mode)
                if product.bias >= 0:
                    description.set_bias(addresses[product.bias])
                queue = description.caller(
                    self._handle.value, algorithm, workspace.memory.address, int(view.stream)
                )
                used = [addresses[one] for one in (product.left, product.right, product.result)]
                calls.append(_bound(queue, used))
        owned = (self, tuple(inputs), tuple(outputs), scratch, workspace)

        def step(_owned: object = owned) -> None:
            PROCESS.check()
            with view.failing("failed to multiply"), self._failing():
                view.context.enter()
                for one in calls:
                    one()

        return step

    def _failing(self) -> _Failing:
        return _Failing(self._target)

    def _addresses(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Block | None
    ) -> list[int]:
        """Return where each tensor lies.

        Raises:
            ExecutionError: It is not aligned as algorithms rely on.
        """
        found = []
        for tensor in self._program.tensors:
            if tensor.place is LtPlace.SCRATCH:
                assert scratch is not None
                found.append(scratch.memory.address + tensor.index)
                continue
            lists = {
                LtPlace.INPUT: inputs,
                LtPlace.OUTPUT: outputs,
                LtPlace.CONSTANT: self._constants,
            }
            place: DeviceTensor = lists[tensor.place][tensor.index]
            found.append(place.block.memory.address + place.offset)
        if any(address % ALIGNMENT for address in found):
            raise ExecutionError(
                f"a tensor is not aligned to {ALIGNMENT} bytes",
                backend=BACKEND_NAME,
                target=self._target,
            )
        return found

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
        context = self._device.context
        if product.bias >= 0:  # algorithms are asked for with one
            row = DeviceMemory(context, product.n * _ITEM_BYTES[product.dtype])
            description.set_bias(row.address)
        found = description.algorithms(self._handle.value, asked, _MOST_ALGORITHMS)
        if not found:
            raise BackendError(
                f"cuBLASLt has no algorithm for {product.node!r}",
                backend=BACKEND_NAME,
                node=product.node,
                target=self._target,
                hint="exclude it from this target",
            )
        if len(found) == 1:
            return found[0]
        m, n, k, batch = product.m, product.n, product.k, product.batch
        item = _ITEM_BYTES[product.dtype]
        memory = [DeviceMemory(context, batch * size * item) for size in (m * k, k * n, m * n)]
        most = max(one.workspace_bytes for one in found)
        workspace = DeviceMemory(context, max(most, ALIGNMENT))
        addresses = [one.address for one in memory]
        stream = int(self._device.stream)
        times: dict[float, Algorithm] = {}
        refused: list[CublasError] = []
        for algorithm in found:
            queue = description.caller(self._handle.value, algorithm, workspace.address, stream)
            try:
                times[_median_time(self._device, _bound(queue, addresses))] = algorithm
            except CublasError as error:  # a heuristic promises nothing
                refused.append(error)
        if not times:
            raise refused[0]
        return times[min(times)]


class LtHandle:
    """cuBLASLt's handle of a context, which lives as long as this does.

    Args:
        lt: The library.
        context: The current one.

    Raises:
        CublasError: It does not start.
    """

    def __init__(self, lt: CublasLt, context: PrimaryContext) -> None:
        self.value = lt.make("cublasLtCreate")
        weakref.finalize(self, _destroy, lt, context, self.value)


def _destroy(lt: CublasLt, context: PrimaryContext, handle: Any) -> None:
    release_in(context, "cuCtxSetCurrent", context.handle)  # that of the device may be another
    lt.functions.cublasLtDestroy(handle)


class _Failing:
    """Turns the library's errors into errors of ours."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, CublasError):
            raise ExecutionError(
                f"cuBLASLt failed: {error}", backend=BACKEND_NAME, target=self._target
            ) from error


def _bound(queue: Callable[[int, int, int], None], addresses: Sequence[int]) -> Callable[[], None]:
    left, right, result = addresses
    return lambda: queue(left, right, result)


def _median_time(view: CudaView, queue: Callable[[], None]) -> float:
    """Return the milliseconds that something queued takes, after one run that does not count."""
    start, end = (call("cuEventCreate", 0) for _ in range(2))
    try:
        times = []
        for _ in range(_RUNS + 1):
            call("cuEventRecord", start, view.stream)
            queue()
            call("cuEventRecord", end, view.stream)
            call("cuEventSynchronize", end)
            times.append(float(call("cuEventElapsedTime", start, end)))
        return statistics.median(times[1:])
    finally:
        for event in (start, end):
            call("cuEventDestroy", event)
