# SPDX-License-Identifier: Apache-2.0
"""A library's program that is loaded on a GPU: weights there, and calls in the plan's streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from intarsia.backends.artifact import damaged
from intarsia.backends.cuda.driver import PROCESS
from intarsia.backends.cuda.libraries import LibraryError
from intarsia.backends.cuda.library_program import LibraryPlace
from intarsia.backends.values import TensorSpec
from intarsia.errors import BackendError, ExecutionError

if TYPE_CHECKING:
    from intarsia.backends.cuda.device import CudaView
    from intarsia.backends.cuda.library_program import LibraryTensor
    from intarsia.backends.device import Buffer, Step
    from intarsia.backends.queues import Block, DeviceTensor
    from intarsia.backends.values import Artifact

ALIGNMENT = 16
"""Bytes to which all tensors are aligned at least."""


def check_numbers(
    artifact: Artifact, tensors: Sequence[LibraryTensor], node: str, numbers: Iterable[int]
) -> None:
    """Check that what a part of a program computes with are tensors of the program.

    Args:
        artifact: Whose program.
        tensors: Of the program.
        node: Whose operation the part is.
        numbers: Of tensors.

    Raises:
        PackageError: One is not.
    """
    if not set(numbers) <= set(range(len(tensors))):
        raise damaged(artifact, f"{node!r} has a tensor that is none of it")


class LibraryExecutable(ABC):
    """A program with its weights; bindings and threads share it.

    Args:
        artifact: What is loaded.
        tensors: Of its program.
        scratch_bytes: Of its program.
        device: Where it is loaded.
        title: Of the library, for people.

    Raises:
        BackendError: The library has no way to compute a part of it.
        ExecutionError: The weights do not fit on the device.
        PackageError: The artifact is damaged: a tensor is none that it has.
    """

    def __init__(
        self,
        artifact: Artifact,
        tensors: Sequence[LibraryTensor],
        scratch_bytes: int,
        device: CudaView,
        title: str,
    ) -> None:
        counts = {
            LibraryPlace.INPUT: len(artifact.inputs),
            LibraryPlace.OUTPUT: len(artifact.outputs),
            LibraryPlace.CONSTANT: len(artifact.constants),
            LibraryPlace.SCRATCH: scratch_bytes,
        }
        for number, one in enumerate(tensors):
            if not 0 <= one.index < counts[one.place]:
                raise damaged(artifact, f"tensor {number} is no {one.place} of it")
        self.scratch_bytes = scratch_bytes
        self.target = artifact.target
        self.device = device
        self._tensors = tensors
        self._backend, self._title = artifact.backend, title
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
                self._workspace_bytes = self.choose()
            except LibraryError as error:
                raise BackendError(
                    f"cuda:{device.number} cannot compute a region by {title}: {error}",
                    backend=self._backend,
                    target=self.target,
                    hint="exclude its nodes from this target, or leave attributes of it out",
                ) from error

    @abstractmethod
    def choose(self) -> int:
        """Choose how each part is computed, and return the workspace that the largest needs.

        Raises:
            BackendError: The library has no way for one.
            LibraryError: It failed.
        """

    @abstractmethod
    def calls(self, view: CudaView, addresses: Sequence[int], workspace: int) -> Sequence[Step]:
        """Return what queues the parts, one after another.

        Args:
            view: Whose stream they run in; its context is the current one.
            addresses: Of the program's tensors.
            workspace: The address of the workspace.

        Raises:
            LibraryError: The library does not take them.
        """

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Block | None
    ) -> Step:
        """Return the call that queues the program, on the queue of its buffers."""
        view = self.device.view_of((*inputs, *outputs))
        addresses = self._addresses(inputs, outputs, scratch)
        workspace = view.allocate(max(self._workspace_bytes, ALIGNMENT))
        view.context.enter()
        with self._failing():
            calls = tuple(self.calls(view, addresses, workspace.memory.address))
        owned = (self, tuple(inputs), tuple(outputs), scratch, workspace)

        def step(_owned: object = owned) -> None:
            PROCESS.check()
            with view.failing("failed to compute"), self._failing():
                view.context.enter()
                for one in calls:
                    one()

        return step

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn the library's errors into errors of ours.

        Raises:
            ExecutionError: It answered with one.
        """
        try:
            yield
        except LibraryError as error:
            raise ExecutionError(
                f"{self._title} failed: {error}", backend=self._backend, target=self.target
            ) from error

    def _addresses(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Block | None
    ) -> list[int]:
        """Return where each tensor lies.

        Raises:
            ExecutionError: It is not aligned as algorithms rely on.
        """
        found = []
        for tensor in self._tensors:
            if tensor.place is LibraryPlace.SCRATCH:
                assert scratch is not None
                found.append(scratch.memory.address + tensor.index)
                continue
            lists = {
                LibraryPlace.INPUT: inputs,
                LibraryPlace.OUTPUT: outputs,
                LibraryPlace.CONSTANT: self._constants,
            }
            place: DeviceTensor = lists[tensor.place][tensor.index]
            found.append(place.block.memory.address + place.offset)
        if any(address % ALIGNMENT for address in found):
            raise ExecutionError(
                f"a tensor is not aligned to {ALIGNMENT} bytes",
                backend=self._backend,
                target=self.target,
            )
        return found
