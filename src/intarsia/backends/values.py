# SPDX-License-Identifier: Apache-2.0
"""The values that pass between us and a backend: candidates, refusals, artifacts, passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from intarsia.arrays import Array, np_dtype
from intarsia.errors import IntarsiaError, ReasonCode
from intarsia.graph.state import PLAIN, TensorState
from intarsia.target.pipeline import Stage

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import CompilationConfig, PlacedTarget, Target

Border: TypeAlias = "tuple[tuple[TensorState, ...], tuple[TensorState, ...]]"
"""A state per input and one per output of a region, in their order."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region with the target that may run it and the states of its border tensors.

    Attributes:
        region: A convex set of nodes.
        target: The placed target.
        inputs: A state per input of the region, in the order of `region.inputs`.
        outputs: A state per output of the region, in the order of `region.outputs`.
        options: Choices of the proposing rule that the backend understands.
    """

    region: Region
    target: PlacedTarget
    inputs: tuple[TensorState, ...]
    outputs: tuple[TensorState, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def plain(cls, region: Region, target: PlacedTarget) -> Candidate:
        """Return the candidate whose border tensors are all row-major on the target's device."""

        def state(value_id: int) -> TensorState:
            return TensorState(target.memory_domain, PLAIN, region.graph.values[value_id].dtype)

        return cls(
            region,
            target,
            tuple(state(value_id) for value_id in region.inputs),
            tuple(state(value_id) for value_id in region.outputs),
        )


def _quiet(stage: str, done: int, total: int) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a backend gets beside a candidate.

    Attributes:
        target: The placed target that the backend serves.
        refined: The complete target that a partial target refines on its device; a complete
            target refines itself.
        config: The whole machine.
        num_threads: Threads that one run may use, at least 1.
        tell: Told of progress inside a region: what is done, how much of it, and of how much.
        is_frozen: Whether nothing that was measured on this machine may change what is made.
        sums: If a model with free dimensions is compiled for some sizes, what the artifacts of its
            program for all sizes say under `SUMS`, so that results can be the same bits.
    """

    target: PlacedTarget
    refined: Target
    config: CompilationConfig
    num_threads: int
    tell: Callable[[str, int, int], None] = field(default=_quiet, compare=False)
    is_frozen: bool = False
    sums: tuple[str, ...] = ()

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the target, defaults among them."""
        return self.target.target.attrs

    @property
    def host(self) -> Target:
        """The target that runs shapes, control flow and the plan itself."""
        return self.config.host


ListStates: TypeAlias = "Callable[[Candidate, BuildContext], Sequence[Border]]"
"""The borders that a backend would rather have than the plain one."""


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
class FusedGroup:
    """Nodes that a backend runs as one kernel or primitive.

    Attributes:
        nodes: Their ids, ascending; at least two.
        name: What runs them, for people: `convolution`.
    """

    nodes: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor at a border: name, dtype by its numpy or ml_dtypes name, shape.

    `shape` is None where it is only known while running (or the value is not a dense tensor); such
    a tensor travels in a `ValueSlot`.
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
class ArtifactConstant:
    """A constant that an artifact refers to.

    Attributes:
        name: Its name there.
        data: A read-only view of it.
        is_packed: Whether the backend made it while it compiled, and nothing else holds it.
    """

    name: str
    data: Array
    is_packed: bool = False


LAYERS = "layers"
"""Key of a candidate's options: whether all layers between Q and DQ nodes are computed in `float32`
or in `integers`; without it as was measured."""

ABOUT = "about"
"""Key of an artifact's metadata: a line for people that `explain` shows."""

SCRATCH = "scratch_bytes"
"""Key of an artifact's metadata: bytes of scratch memory, where compiling settles them."""

SUMS = "sums"
"""Key of an artifact's metadata: which order its sums have, where sizes are free. The backend gets
it back where it compiles the model for some sizes."""

IN_PLACE = "in_place"
"""Key of an artifact's metadata: JSON pairs of numbers of inputs and outputs that may be bound to
the same memory, as a cache that a run adds to."""


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
    constants: tuple[ArtifactConstant, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class Detection:
    """What a backend found on this machine: targets, or the reason why there are none.

    Attributes:
        targets: What was found.
        reason: Why there is nothing.
        hint: One thing to do about it.
        rank: Where they stand among those: the lowest come first. Accelerators and plug-ins have
            0, so that they come before the CPU's.
        devices: A line for each run-time device, its number first, where there may be several.
    """

    targets: tuple[Target, ...] = ()
    reason: str = ""
    hint: str = ""
    rank: int = 0
    devices: tuple[str, ...] = ()

    @classmethod
    def failed(cls, error: IntarsiaError) -> Detection:
        """Return that nothing can be used, and why."""
        return cls(reason=error.message, hint=error.hint or "")


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes that run together on one target; in the end, a region.

    Attributes:
        target: The placed target.
        nodes: Node ids, ascending.
    """

    target: PlacedTarget
    nodes: tuple[int, ...]


ModelPass: TypeAlias = "Callable[[ir.Model, BuildContext], object]"
"""Before placement: rewrites the whole model in place, for all targets. On a region: rewrites the
region's own model in place. Inputs and outputs keep their names and their order."""

PiecesPass: TypeAlias = "Callable[[Graph, Sequence[Piece], BuildContext], Sequence[Piece]]"
"""After placement: merges, splits or reorders pieces. They are in the order in which they run, at
first one per node; every node stays on its target."""


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass of a backend's own.

    Attributes:
        stage: When it runs.
        name: As pipelines call it; no pass of ours has this name.
        run: A `ModelPass`, or after placement a `PiecesPass`.
    """

    stage: Stage
    name: str
    run: ModelPass | PiecesPass


@dataclass(frozen=True, slots=True)
class CodeIdentity:
    """What decides, beside a backend's version, which code one of its targets runs.

    Attributes:
        generators: Names of modules of Intarsia's that decide it, and of packages with all that is
            in them; a change of their sources is measured anew.
        tuning: Which results of measuring here change what is compiled, in a few words.
        device: Which device it is where those of a kind are not alike, as its driver names it and
            without its number, which may belong to another one tomorrow.
    """

    generators: tuple[str, ...] = ()
    tuning: str = ""
    device: str = ""
