# SPDX-License-Identifier: Apache-2.0
"""What a backend opens and loads: devices with their memory, executables, bound steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import KernelCall, TensorSpec
from intarsia.graph.arena import aligned_bytes

Step: TypeAlias = Callable[[], object]
"""One bound call: its buffers are fixed, it takes nothing and what it returns is ignored.

It keeps alive all that it points to: its executable with the constants, and its buffers.
"""


@dataclass(slots=True)
class ValueSlot:
    """Holds a value whose shape is only known while running, or that is not a dense tensor."""

    value: Any = None


Buffer: TypeAlias = Any
"""What `Device.tensor` gives: a numpy array in host memory, an opaque handle elsewhere; or a
`ValueSlot`."""


@dataclass(frozen=True, slots=True)
class ThreadOptions:
    """How loaded code may use the machine.

    Attributes:
        num_threads: Threads that one run may use, at least 1.
        is_shared: Whether several runtimes take turns in one run; their idle threads must then
            sleep rather than spin.
        gomp_parallel: Address of `GOMP_parallel` of the OpenMP runtime whose threads run other
            regions of the plan; 0 for none. A backend that can shares them.
    """

    num_threads: int = 1
    is_shared: bool = False
    gomp_parallel: int = 0


class Device(Protocol):
    """An opened device: its memory. One memory domain each."""

    options: ThreadOptions

    def allocate(self, nbytes: int) -> Any:
        """Return a block of memory, aligned to at least 64 bytes."""

    def tensor(self, block: Any, offset: int, spec: TensorSpec) -> Buffer:
        """Return a buffer that views `block` from `offset` (bytes) on as a dense tensor."""

    def write(self, source: Array, destination: Buffer) -> None:
        """Copy from host memory into a buffer of this device."""

    def read(self, source: Buffer, destination: Array) -> None:
        """Copy from a buffer of this device into host memory."""


@runtime_checkable
class Clocked(Protocol):
    """What a device may have besides: its own clock, by which its costs are then measured."""

    def clock(self) -> float:
        """Return for how long the device has been busy since it was opened, in seconds."""


@runtime_checkable
class QueuedDevice(Device, Protocol):
    """A device that does its work later, in the order in which it was queued.

    Steps of regions queue their work and return; `write` and `read` wait until all before them is
    done, and they too. What raises nothing when it is queued may fail when it is waited for.
    """

    def open_queue(self) -> QueuedDevice:
        """Return this device with a queue of its own; memory, code and constants are shared.

        A buffer belongs to the queue of the device that made its block: a step works on the queue
        of the buffers to which it is bound.
        """

    def start_write(self, source: Array, destination: Buffer) -> Step:
        """Queue a copy from host memory; the source must not change until it is done.

        Returns:
            What waits until it is done.
        """

    def start_read(self, source: Buffer, destination: Array) -> Step:
        """Queue a copy into host memory, which is not to be looked at until it is done.

        Returns:
            What waits until it is done.
        """

    def synchronize(self) -> None:
        """Wait until all that is queued is done; raises if some of it failed."""


@dataclass(frozen=True, slots=True)
class CapturedSteps:
    """Queued steps as one thing that a device starts.

    Attributes:
        launch: Queues all of them.
        kept: What a later capture of the same steps, bound to other buffers, may take over.
    """

    launch: Step
    kept: object


@runtime_checkable
class CapturingDevice(QueuedDevice, Protocol):
    """A device that starts many queued steps by one call, once it has been shown them."""

    def capture(self, steps: Step, spare: object = None) -> CapturedSteps:
        """Return steps of this device's queue as one; they are called once, and nothing is done.

        What a step waits for by `start_write` and `start_read` is then what it waits for after
        each launch.

        Args:
            steps: Regions' calls, and copies between this device and host memory that lies where
                it lies at each launch.
            spare: `CapturedSteps.kept` of such steps that are not launched any more.

        Raises:
            ExecutionError: They cannot be captured.
        """


def capturing_of(device: Device) -> CapturingDevice | None:
    """Return a device as one that captures steps, if it does."""
    found = queue_of(device)
    return cast("CapturingDevice", found) if hasattr(type(device), "capture") and found else None


@runtime_checkable
class PeerDevice(QueuedDevice, Protocol):
    """A device that may copy from the memory of another one without the host."""

    def reaches(self, other: Device) -> bool:
        """Tell whether it does from another one."""

    def queue_copy(self, source: Buffer, destination: Buffer) -> None:
        """Queue a copy from a device that it reaches, behind all that is queued on both.

        What is queued later on either comes behind it.
        """


def peer_of(device: Device, source: Device) -> PeerDevice | None:
    """Return a device as one that copies from another one without the host, if it does."""
    if not hasattr(type(device), "reaches"):
        return None
    found = cast("PeerDevice", device)
    return found if found.reaches(source) else None


def queue_of(device: Device) -> QueuedDevice | None:
    """Return a device as one that does its work later, if it does."""
    return cast("QueuedDevice", device) if _has_queue(type(device)) else None


@cache
def _has_queue(kind: type) -> bool:
    """Tell whether devices of a class have queues; to ask the protocol takes 20 microseconds."""
    names = ("open_queue", "start_write", "start_read", "synchronize")
    return all(hasattr(kind, name) for name in names)


def device_clock(device: Device) -> Callable[[], float] | None:
    """Return the clock of a device, if it has one."""
    return device.clock if isinstance(device, Clocked) else None


class HostDevice:
    """Host memory: buffers are numpy arrays."""

    def __init__(self, options: ThreadOptions | None = None) -> None:
        self.options = options or ThreadOptions()

    def allocate(self, nbytes: int) -> Array:
        """Return `u8[nbytes]`, aligned to 64 bytes."""
        return aligned_bytes(nbytes)

    def tensor(self, block: Array, offset: int, spec: TensorSpec) -> Array:
        """Return a view of `block`."""
        assert spec.shape is not None
        return block[offset : offset + spec.nbytes].view(np_dtype(spec.dtype)).reshape(spec.shape)

    def write(self, source: Array, destination: Array) -> None:
        """Copy one array to another."""
        np.copyto(destination, source)

    def read(self, source: Array, destination: Array) -> None:
        """Copy one array to another."""
        np.copyto(destination, source)


class Executable(Protocol):
    """Something loaded that runs: one compiled region. Owns its weights; threads share it."""

    scratch_bytes: int

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Fix the buffers of one context and return the call that runs on them.

        Args:
            inputs: A buffer per input of the artifact.
            outputs: A buffer per output.
            scratch: A block of the device of at least `scratch_bytes`, whose contents are not
                defined, if that is not 0. Regions that run one after another share it.
        """


@runtime_checkable
class Resizable(Protocol):
    """What an executable of a region with free dimensions may have besides; see `takes_free`."""

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """Return it for sizes of the free dimensions, by name; code and weights are shared."""


@runtime_checkable
class Profiled(Protocol):
    """What an executable may have besides: its kernels one by one."""

    def kernel_steps(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Sequence[tuple[KernelCall, Step]]:
        """Return the calls that `bind` runs, in order, each as a step of its own."""


PutAddress: TypeAlias = Callable[[int], None]
"""Says at which address a run finds an input, or leaves an output."""


class MovableStep(NamedTuple):
    """The call that `bind` returns, whose inputs and outputs may lie elsewhere at each run.

    Attributes:
        step: It.
        inputs: For each input what tells the step where it lies.
        outputs: For each output likewise.
    """

    step: Step
    inputs: Sequence[PutAddress]
    outputs: Sequence[PutAddress]


@runtime_checkable
class Movable(Protocol):
    """What an executable may have besides, if it works on the memory of the host."""

    def movable_step(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> MovableStep | None:
        """Return what `bind` returns, with places; None if a copy costs less than they gain."""


def movable_step(
    executable: Executable,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    scratch: Buffer | None,
) -> MovableStep | None:
    """Return the call of an executable with the places of its tensors, if it has any."""
    if not isinstance(executable, Movable):
        return None
    return executable.movable_step(inputs, outputs, scratch)


def profiled(executable: Executable) -> Profiled | None:
    """Return an executable as one that tells its kernels one by one, if it does."""
    return executable if isinstance(executable, Profiled) else None


def never_fails(executable: Executable) -> bool:
    """Tell whether its steps raise nothing, as its attribute `never_fails` says if it has one."""
    return bool(getattr(executable, "never_fails", False))


def survives_fork(executable: Executable) -> bool:
    """Tell whether it also runs in children made by `fork`, as its `survives_fork` says if it can.

    Whatever has threads or connections of its own does not.
    """
    return bool(getattr(executable, "survives_fork", False))


class Baseline(Protocol):
    """A model in a runtime's own API, bound to its inputs as the runtime's best users would."""

    def run(self) -> object:
        """Run once."""

    def outputs(self) -> list[Array]:
        """Return fresh arrays with the outputs of the last run, in the model's order."""
