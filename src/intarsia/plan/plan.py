# SPDX-License-Identifier: Apache-2.0
"""A placement plus order, copies and buffers: all that running needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from intarsia.backends.values import TensorSpec
from intarsia.extents import Data, data_symbols, evaluate_data
from intarsia.graph.arena import assign_offsets
from intarsia.graph.model_info import ModelInfo
from intarsia.graph.state import PLAIN
from intarsia.plan.identity import Identity
from intarsia.plan.placement import Placement

if TYPE_CHECKING:
    from intarsia.plan.tuning import TuningReport

FORMAT_VERSION = 4
"""Version of plans and packages; it rises when older readers could not read newer files."""

READ_VERSIONS = (1, 2, 3, FORMAT_VERSION)
"""Versions that can be read. Version 2 brought free dimensions, 3 sizes that the data decides, 4
who vouches for a package, and the model of one that has code."""

HOST = 0
"""Position of host memory in `Plan.devices`."""


class TensorStorage(StrEnum):
    """Where a tensor of a plan lives.

    One whose size is only known while running is in a slot, and for native code in an arena.
    """

    INPUT = "input"
    OUTPUT = "output"
    ARENA = "arena"
    CONSTANT = "constant"
    SLOT = "slot"


@dataclass(frozen=True, slots=True)
class PlanTensor:
    """One value in one memory domain.

    Attributes:
        name: The value's name in the model.
        dtype: Element type, by its numpy or ml_dtypes name.
        shape: Dimensions of the dense array that it is; None if only known while running.
        device: Position in `Plan.devices`.
        storage: What holds it.
        offset: Bytes from the start of the device's arena, for `TensorStorage.ARENA`.
        layout: `plain`, or the shared layout in blocks of channels in which it lies between
            regions: in `nchw16c` the array of a value `[N, C, H, W]` is `[N, C/16, H, W, 16]`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    device: int
    storage: TensorStorage
    offset: int = 0
    layout: str = PLAIN

    @property
    def spec(self) -> TensorSpec:
        """Its name, dtype and shape."""
        return TensorSpec(self.name, self.dtype, self.shape)

    def of_shape(self, shape: tuple[int, ...]) -> PlanTensor:
        """Return it with another shape; `replace` takes three times as long."""
        held = self.device, self.storage, self.offset, self.layout
        return PlanTensor(self.name, self.dtype, shape, *held)


@dataclass(frozen=True, slots=True)
class RegionStep:
    """Run one region of the placement.

    Attributes:
        region: Position in `Plan.placement.regions`.
        inputs: Positions in `Plan.tensors`, in the order in which the region takes them.
        outputs: Likewise.
        sizes: Names of the sizes that the data decides and its code is given before it runs.
    """

    region: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copy one value to another memory domain; once per value and destination.

    In the host's memory, a value whose size the data decides is copied between a slot and an arena.

    Attributes:
        source: Position in `Plan.tensors`.
        destination: Likewise.
        nbytes: Bytes that cross.
    """

    source: int
    destination: int
    nbytes: int


PlanStep: TypeAlias = RegionStep | CopyStep


@dataclass(frozen=True, slots=True)
class LateSize:
    """A size that the data decides: known as soon as a tensor is there.

    Attributes:
        name: What expressions call it.
        tensor: Position in `Plan.tensors`; in a slot.
        axis: Which of its dimensions it is.
        high: The largest that it may be; None if nothing is known.
    """

    name: str
    tensor: int
    axis: int
    high: int | None = None


@dataclass(frozen=True, slots=True)
class PassRun:
    """One pass that ran while compiling.

    Attributes:
        text: As the pipeline of its kind writes it: `before placement: fold-constants`.
        target: Text of the placed target that brought it.
        region: Of a pass on a region: its position in `Plan.placement.regions`; else None.
    """

    text: str
    target: str
    region: int | None = None

    def __str__(self) -> str:
        place = "" if self.region is None else f" {self.region}"
        stage, _, name = self.text.partition(": ")
        return f"{stage}{place}: {name} ({self.target})"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The plan of one body of an If, Loop or Scan that is a step of a plan.

    Attributes:
        region: Position in `Plan.placement.regions` of the operator.
        name: The attribute that holds the body, such as `then_branch`.
        plan: What runs in it; its inputs are the body's own, then the values from outside.
    """

    region: int
    name: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class Plan:
    """All that running needs, without the code.

    Attributes:
        placement: The decision that it carries out.
        devices: Text of the virtual device of each memory domain; the first is the host's.
        tensors: Every value in every domain where it is needed.
        steps: In order.
        inputs: Positions in `tensors` of the model's inputs.
        outputs: Positions in `tensors` of the model's outputs; one may stand twice, or be an
            input or a constant.
        arena_bytes: Size of the arena of each device.
        rewrites: What `prepare` did to the model, as `name xCOUNT`.
        passes: Every pass that ran, in order.
        tuning: How it was found, if it was found by cost.
        identity: What it depends on; None if it was made by an older version.
        model: What the model says of itself; None if it was made by an older version.
        bodies: The plans of the bodies of operators that are steps of it.
        extents: By position in `tensors`, the dimensions of those that have free ones: the plan is
            for nominal sizes then, and `at` returns that for others. Expressions are as
            `intarsia.extents.to_data` writes them. Tensors whose size the data decides have no
            shape until `at` is given that too.
        late: The sizes that the data decides and code is given, in the order in which they are
            found.
        sizes: Those that `at` was given, as far as expressions are left.
        wiring: Which values each node reads and writes, as `intarsia.plan.wiring` writes it; empty
            if it was made by an older version.
    """

    placement: Placement
    devices: tuple[str, ...]
    tensors: tuple[PlanTensor, ...]
    steps: tuple[PlanStep, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: tuple[int, ...]
    rewrites: tuple[str, ...] = ()
    passes: tuple[PassRun, ...] = ()
    tuning: TuningReport | None = None
    identity: Identity | None = None
    model: ModelInfo | None = None
    bodies: tuple[BodyPlan, ...] = ()
    extents: Mapping[int, tuple[int | Data, ...]] = field(default_factory=dict)
    late: tuple[LateSize, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    wiring: bytes = field(default=b"", repr=False)

    def at(self, sizes: Mapping[str, int]) -> Plan:
        """Return the plan for sizes of free dimensions, by name: other shapes, other offsets.

        What depends on sizes that the data decides stays open until these are given too.
        """
        sizes = {**self.sizes, **sizes}
        tensors = list(self.tensors)
        still_open = {}
        unknown = {one.name for one in self.late} - sizes.keys()
        shapes: dict[int, tuple[int, ...] | None] = {}
        for position, extents in self.extents.items():
            key = id(extents)  # a decoder has some dozen caches of one shape, see `with_shared`
            if key not in shapes:
                shapes[key] = _shape_at(extents, sizes, unknown)
            shape = shapes[key]
            if shape is None:
                still_open[position] = extents
            else:
                tensors[position] = tensors[position].of_shape(shape)
        steps = tuple(
            replace(step, nbytes=tensors[step.destination].spec.nbytes)
            if isinstance(step, CopyStep)
            else step
            for step in self.steps
        )
        arenas = tuple(fill_arena(tensors, steps, i) for i in range(len(self.devices)))
        return replace(
            self,
            tensors=tuple(tensors),
            steps=steps,
            arena_bytes=arenas,
            extents=still_open,
            sizes=sizes if unknown else {},
        )

    def with_shared(self) -> Plan:
        """Return it with one object for all extents that are the same, which `at` computes once."""
        seen: dict[str, tuple[int | Data, ...]] = {}
        shared = {i: seen.setdefault(repr(one), one) for i, one in self.extents.items()}
        return replace(self, extents=shared)

    @property
    def copies(self) -> tuple[CopyStep, ...]:
        """The steps that are copies between memory domains."""
        return tuple(step for step in self.steps if isinstance(step, CopyStep))

    @property
    def layouts(self) -> dict[str, str]:
        """The layout of each value between regions that is not plain, by the value's name."""
        return {tensor.name: tensor.layout for tensor in self.tensors if tensor.layout != PLAIN}

    @property
    def is_mixed(self) -> bool:
        """Whether more than one backend runs in it."""
        return len({region.backend for region in self.placement.regions}) > 1

    def __str__(self) -> str:
        arenas = ", ".join(
            f"{device} {nbytes} B"
            for device, nbytes in zip(self.devices, self.arena_bytes, strict=True)
        )
        lines = [
            f"arenas: {arenas}",
            f"inputs: {self._tensors(self.inputs)}",
            *(self._step(step) for step in self.steps),
            f"outputs: {self._tensors(self.outputs)}",
        ]
        return "\n".join(lines)

    def _step(self, step: PlanStep) -> str:
        if isinstance(step, CopyStep):
            tensor = self.tensors[step.source]
            return (
                f"copy {tensor.name}: {self.devices[tensor.device]} -> "
                f"{self.devices[self.tensors[step.destination].device]}, {step.nbytes} B"
            )
        region = self.placement.regions[step.region]
        return (
            f"run {step.region} on {region.target}: {self._tensors(step.inputs)} -> "
            f"{self._tensors(step.outputs)}"
        )

    def _tensors(self, positions: Iterable[int]) -> str:
        tensors = (self.tensors[position] for position in positions)
        return ", ".join(
            f"{tensor.spec}{'' if tensor.layout == PLAIN else ' ' + tensor.layout} {tensor.storage}"
            + (f"+{tensor.offset}" if tensor.storage is TensorStorage.ARENA else "")
            for tensor in tensors
        )


def _shape_at(
    extents: Sequence[int | Data], sizes: Mapping[str, int], unknown: set[str]
) -> tuple[int, ...] | None:
    """Return the shape at some sizes; None if it depends on one that is unknown."""
    if unknown:
        names = [data_symbols(one) for one in extents if not isinstance(one, int)]
        if not unknown.isdisjoint(frozenset().union(*names)):
            return None
    shape = [one if isinstance(one, int) else evaluate_data(one, sizes) for one in extents]
    return tuple(shape)


def ends_of(step: PlanStep) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tensors that a step reads, and those that it writes."""
    if isinstance(step, CopyStep):
        return (step.source,), (step.destination,)
    return step.inputs, step.outputs


def needed_sizes(plan: Plan, step: PlanStep) -> frozenset[str]:
    """Return the sizes that the data decides and that have to be known before a step is bound."""
    if isinstance(step, RegionStep):
        return frozenset(step.sizes)
    ends = [plan.extents.get(i, ()) for i in (step.source, step.destination)]
    data = [one for extents in ends for one in extents if not isinstance(one, int)]
    late = {one.name for one in plan.late}
    return frozenset(name for one in data for name in data_symbols(one) if name in late)


def fill_arena(tensors: list[PlanTensor], steps: Sequence[PlanStep], device: int) -> int:
    """Give every arena tensor of a device its offset and return the arena's size, in bytes.

    Args:
        tensors: Of a plan, to be changed.
        steps: Of the plan.
        device: Position in `Plan.devices`.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for when, step in enumerate(steps):
        if isinstance(step, CopyStep):
            used: tuple[int, ...] = (step.source, step.destination)
        else:
            used = (*step.inputs, *step.outputs)
        for position in used:
            tensor = tensors[position]
            is_placed = tensor.storage is TensorStorage.ARENA and tensor.shape is not None
            if tensor.device == device and is_placed:
                first.setdefault(position, when)
                last[position] = when
    sizes = {position: tensors[position].spec.nbytes for position in first}
    offsets, size = assign_offsets(
        [(first[position], last[position], sizes[position]) for position in first]
    )
    for position, offset in zip(first, offsets, strict=True):
        tensors[position] = replace(tensors[position], offset=offset)
    return size
