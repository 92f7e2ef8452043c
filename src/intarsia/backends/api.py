# SPDX-License-Identifier: Apache-2.0
"""The backend contract: what a backend answers, and the values that pass between it and us.

A backend is one value, registered under the entry-point group `intarsia.backends`. It is a
`Protocol`: nothing is inherited. `Candidate` and `BuildContext` are in `backends.candidate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.errors import ReasonCode
from intarsia.graph.arena import aligned_bytes

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from intarsia.backends.candidate import BuildContext, Candidate
    from intarsia.backends.defects import KnownDefect
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.graph.state import TensorState
    from intarsia.target import PlacedTarget, Target, TargetKind, VirtualDevice

Step: TypeAlias = Callable[[], object]
"""One bound call: its buffers are fixed, it takes nothing and what it returns is ignored.

It keeps alive all that it points to: its executable with the constants, and its buffers.
"""


Border: TypeAlias = "tuple[tuple[TensorState, ...], tuple[TensorState, ...]]"
"""A state per input and one per output of a region, in their order."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node does not run on a target: returned, never raised.

    Attributes:
        node: Name of the node.
        op_type: Its operator.
        target: Text of the target.
        code: The reason's code.
        reason: One sentence that says what was in the way.
        hint: One thing to do about it.
    """

    node: str
    op_type: str
    target: str
    code: ReasonCode
    reason: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.node} ({self.op_type}) not on {self.target}: {self.code}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to propose regions for a target: operators that grow to maximal convex regions.

    Attributes:
        name: What it is called.
        refuse: From a graph and a context to a refusal for each node (by id) that the target
            cannot take; a node that is missing from the answer is taken.
        why: Printed as the reason why the nodes that it takes are where they are; empty means
            what the policy says.
    """

    name: str
    refuse: Callable[[Graph, BuildContext], Mapping[int, Refusal]]
    why: str = ""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor at a border: name, dtype by its numpy or ml_dtypes name, shape.

    `shape` is None where it is only known while running (or the value is no dense tensor); such
    a tensor travels in a `Slot`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """Size in bytes; 0 where the shape is unknown."""
        if self.shape is None:
            return 0
        return math.prod(self.shape) * np_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        shape = "?" if self.shape is None else ",".join(map(str, self.shape))
        return f"{self.name}: {self.dtype}[{shape}]"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that an artifact refers to: its name there, and a read-only view of its data."""

    name: str
    data: Array


ABOUT = "about"
"""Key of an artifact's metadata: a line for people that `explain` shows."""

SCRATCH = "scratch_bytes"
"""Key of an artifact's metadata: bytes of scratch memory, where compiling settles them."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """What compiling a region yields: bytes and metadata, no live handles.

    Attributes:
        backend: Name of the backend that made it and that loads it.
        version: That backend's version.
        target: Text of the placed target.
        payload: What `load` needs beside the constants.
        inputs: The region's inputs, in the order in which `bind` takes them.
        outputs: The region's outputs, likewise.
        constants: Referred to, not copied into the payload.
        metadata: Small facts in text.
    """

    backend: str
    version: str
    target: str
    payload: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[Constant, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Slot:
    """Holds a value whose shape is only known while running, or that is no dense tensor."""

    value: Any = None


Buffer: TypeAlias = Any
"""What `Device.tensor` gives: a numpy array in host memory, an opaque handle elsewhere; or a
`Slot`."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How loaded code may use the machine.

    Attributes:
        num_threads: Threads that one run may use, at least 1.
        is_shared: Whether several runtimes take turns in one run; their idle threads must then
            sleep rather than spin.
        gomp_parallel: Address of `GOMP_parallel` of the OpenMP runtime whose threads run other
            regions of the plan; 0 for none. Who can, shares them.
    """

    num_threads: int = 1
    is_shared: bool = False
    gomp_parallel: int = 0


class Device(Protocol):
    """An opened device: its memory. One memory domain each."""

    options: RunOptions

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
    """What a device may have beside: a clock of its own, which measuring then goes by."""

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


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a kernel inside a region, for profiles.

    Attributes:
        kernel: What it is called.
        nodes: Names of the nodes that it computes; none for a conversion of a layout.
        note: How, in words.
        shape: What it reads first and what it writes.
        flop: Operations of its nodes, by the definitions of their operators.
        nbytes: What it reads and writes, each byte once.
        schedule: Where its schedule is from, such as `heuristic` or `tuned`.
    """

    kernel: str
    nodes: tuple[str, ...]
    note: str
    shape: str
    flop: int
    nbytes: int
    schedule: str = ""


@runtime_checkable
class Profiled(Protocol):
    """What an executable may have beside: its kernels one by one."""

    def kernel_steps(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Sequence[tuple[KernelCall, Step]]:
        """Return the calls that `bind` runs, in order, each as a step of its own."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What a backend found on this machine: targets, or the reason why there are none.

    Attributes:
        targets: What was found.
        reason: Why there is nothing.
        hint: One thing to do about it.
        is_default: Whether they are used when no target is given.
        rank: Where they stand among those: the lowest come first. Accelerators and strangers have
            0, so that they come before the CPU's.
        devices: A line for each run-time device, its number first, where there may be several.
    """

    targets: tuple[Target, ...] = ()
    reason: str = ""
    hint: str = ""
    is_default: bool = True
    rank: int = 0
    devices: tuple[str, ...] = ()


@runtime_checkable
class Backend(Protocol):
    """Serves one or more target kinds."""

    name: str
    kinds: tuple[TargetKind | str, ...]

    def version(self) -> str:
        """Return the version of what runs the code.

        Raises:
            BackendError: The runtime is not installed.
        """

    def detect(self) -> Detection:
        """Return the targets found on this machine, or why there are none. Never raises."""

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return how to propose regions for the context's target, best first."""

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing if the candidate can be compiled as far as one can tell."""

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return what one run costs, or nothing when there is no telling."""

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Compile a region.

        Raises:
            BackendError: The runtime refused it.
        """

    def open(self, placed: VirtualDevice, options: RunOptions) -> Device:
        """Open the device of a placed target."""

    def load(self, artifact: Artifact, device: Device) -> Executable:
        """Load what `compile` made, here or in another process.

        Raises:
            BackendError: The artifact does not fit this machine or version.
        """


@runtime_checkable
class SelfTested(Protocol):
    """What a stranger's backend may have beside: a trial of the foreign code that it loads.

    Without it, its first use is tried: a few operators are compiled, loaded and run.
    """

    def self_test(self) -> object:
        """Raise, or die, if what is loaded cannot be relied upon.

        Called in a process of its own before the plug-in is loaded anywhere else, once for each
        version and CPU (`intarsia.process.selftest`).
        """


@runtime_checkable
class Checking(Protocol):
    """What a backend may have beside: checks of what a target's attributes say.

    Without it all attributes of the kind's own are taken to be carried out.
    """

    def check_target(self, target: Target) -> Sequence[str]:
        """Check a target before a model is compiled for it here.

        Returns:
            Names of attributes that it has and that change nothing.

        Raises:
            TargetError: An attribute is unknown to what makes the code, means another machine, or
                contradicts another; the message starts with its name.
        """


@runtime_checkable
class Generating(Protocol):
    """What a backend may have beside: code of Intarsia's that decides what its regions run.

    Costs are then filed under a digest of it too, so that a change of it is measured anew.

    Attributes:
        generators: Names of modules, and of packages with all that is in them.
    """

    generators: tuple[str, ...]


@runtime_checkable
class Tunable(Protocol):
    """What a backend may have beside: results of measuring here that change what it compiles.

    Costs and accepted plans are filed under them too, so that those of before are not used.
    """

    def tuning(self, context: BuildContext) -> str:
        """Return which results there are for a target, in a few words; nothing without any."""


@runtime_checkable
class Identifying(Protocol):
    """What a backend may have beside: devices of one kind that are not alike.

    Costs, accepted plans and kept programs are filed under the device, not under its number, which
    may belong to another one tomorrow.
    """

    def device_identity(self, placed: PlacedTarget) -> str:
        """Return which device a placed target is, as its driver names it, without its number.

        Raises:
            BackendError: There is no such device.
        """


@runtime_checkable
class TypeInferring(Protocol):
    """What a backend may have beside: the types of what operators that only it knows make."""

    def infer_types(self, model: ir.Model, context: BuildContext) -> Mapping[str, onnx.TypeProto]:
        """Return types of values, by name; what it cannot tell is left out.

        Args:
            model: Loaded, with values of unknown type; not to be changed.
            context: The target that is asked.

        Raises:
            BackendError: It does not take the model, or is not installed.
        """


@runtime_checkable
class Yielding(Protocol):
    """What a backend may have beside: knowledge of models that others run faster as a whole.

    It is asked only where no order was given and nothing measured.
    """

    def yields(self, graph: Graph) -> str | None:
        """Return why another target had better go first on this model; None if none had."""


@runtime_checkable
class Imperfect(Protocol):
    """What a backend may have beside: what its library is known to compute otherwise than ONNX.

    Attributes:
        defects: One rule for each cause; see `backends.defects`.
    """

    defects: Sequence[KnownDefect]


@runtime_checkable
class Noted(Protocol):
    """What a backend may have beside: lines about itself for `doctor`."""

    def notes(self) -> Sequence[str]:
        """Return one line for each fact, such as the file that is used and why.

        Raises:
            BackendError: The runtime is not installed.
        """


@runtime_checkable
class Bordered(Protocol):
    """What a backend may have beside: borders that it would rather have than the plain one."""

    def states(self, candidate: Candidate, context: BuildContext) -> Sequence[Border]:
        """Return states of a candidate's border that `compile` honours, best first.

        The plain border is always taken and is not listed. The first border that is listed has
        every tensor in the layout that the region would like best. `compile` honours every mix in
        which each tensor is plain or in the layout that some listed border has for it: a plan
        takes for each what all of its readers list too. A border tensor in a shared blocked layout
        has the shape of the dense array that it is: `[N, C/16, H, W, 16]` in `nchw16c`.

        The answer follows from the region, the target and the context alone. It is asked for
        often, so nothing is compiled for it.
        """


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Nodes that a backend runs as one kernel or primitive.

    Attributes:
        nodes: Their ids, ascending; at least two.
        name: What runs them, for people: `convolution`.
    """

    nodes: tuple[int, ...]
    name: str


@runtime_checkable
class Fusing(Protocol):
    """What a backend may have beside: knowledge of which nodes it runs as one.

    Placement by cost asks for it. It makes a candidate of each group, keeps together what all who
    speak of it keep together, and lets nobody cut a group of which `check` refuses the pieces.
    What a backend without it fuses is guessed from the operators.
    """

    def groups(self, region: Region, context: BuildContext) -> Sequence[FusedGroup]:
        """Return what would run as one if a region were compiled.

        Groups share no node; a node in none runs by itself. Nothing is compiled.

        Args:
            region: Nodes that the target takes; it need not be convex.
            context: As for `compile`.
        """


class Baseline(Protocol):
    """A model in a runtime's own API, bound to its inputs as the runtime's best users would."""

    def run(self) -> object:
        """Run once."""

    def outputs(self) -> list[Array]:
        """Return fresh arrays with the outputs of the last run, in the model's order."""


@runtime_checkable
class OnOpenMP(Protocol):
    """What a backend may have beside: threads of an OpenMP runtime, which others may share."""

    def gomp_parallel(self) -> int:
        """Return the address of the runtime's `GOMP_parallel`; 0 if it has none."""


@runtime_checkable
class Comparable(Protocol):
    """What a backend may have beside: its runtime as a user would use it without us."""

    def baseline(
        self, model: bytes | str, feeds: Mapping[str, Array], num_threads: int
    ) -> Baseline:
        """Return the untouched model in this runtime's own plain API, for comparisons.

        Args:
            model: A serialized `ModelProto` without external data, or a path.
            feeds: An array per input, by name; they are read in place where that is possible.
            num_threads: Threads that one run may use, at least 1.

        Raises:
            BackendError: The runtime is not installed, or refused the model.
        """


class HostDevice:
    """Host memory: buffers are numpy arrays."""

    def __init__(self, options: RunOptions | None = None) -> None:
        self.options = options or RunOptions()

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
