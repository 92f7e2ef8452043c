# SPDX-License-Identifier: Apache-2.0
"""What the emitters of languages for devices share: work-items, and vectors cut into variables.

A kernel with a grid loop says which work-items there are: a turn of it is a group. Of any other
one a turn of the parallel loop becomes one work-item; where loops inside it are provably parallel
(`distribute`), several work-items share them, as one group if they must wait for each other. A
kernel's own buffers are private, or local to the group that shares a turn.

A vector of the IR lies in variables that are as wide as the language has them. A dialect says how
these are declared and joined, how memory is read and written, and where a work-item is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.blocked_dots import without_blocks
from intarsia.codegen.emit.c_family import CFamily, Spelling, spell
from intarsia.codegen.emit.distribute import Distribution, distribute
from intarsia.codegen.grid_rules import shared_bytes
from intarsia.codegen.unit import CpuModel, GpuModel

_LEAST_GROUP = 32
"""Work-items of a group from which a device is taken for a GPU: those that NVIDIA's run at once."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the emitter must know of a device; from the target, or from the device itself.

    Attributes:
        vector_bits: Width of its vector registers; 128 suits devices that run scalar lanes.
        registers: Vectors of that width that one work-item may hold.
        max_work_group: Most work-items of a group (`max_num_threads`).
        work_group: Work-items of a group: 1 for CPUs, which run a group's items in turn; a multiple
            of what a GPU runs in lockstep.
        busy_items: Work-items that keep it busy: turns are shared by several items below that.
        local_bytes: Local memory of a group.
        has_fp64: Whether it computes with float64.
        has_fp16: Whether it computes with float16.
        has_int64: Whether it has integers of 64 bits; every OpenCL device does.
        has_fma: Whether `fma` is fast; if not, it rounds twice, as the IR allows.
        is_correctly_rounded: Whether divisions and square roots can round once.
        has_mma: Whether warps multiply matrices of float16.
        has_tf32: Whether they may multiply those of float32, rounded to TF32.
        has_shuffles: Whether an instruction hands numbers from lane to lane.
        most_buffers: Arrays that a kernel can be given; None for any number.
    """

    vector_bits: int = 128
    registers: int = 32
    max_work_group: int = 256
    work_group: int = 1
    busy_items: int = 16
    local_bytes: int = 32 << 10
    has_fp64: bool = True
    has_fp16: bool = False
    has_int64: bool = True
    has_fma: bool = True
    is_correctly_rounded: bool = False
    has_mma: bool = False
    has_tf32: bool = False
    has_shuffles: bool = False
    most_buffers: int | None = None

    @property
    def group_size(self) -> int:
        """Work-items of a group."""
        return min(self.work_group, self.max_work_group)

    @property
    def unit(self) -> CpuModel:
        """The vector unit that a work-item's code is shaped for."""
        return CpuModel(self.vector_bits, self.registers, has_fma=self.has_fma)

    @property
    def machine(self) -> CpuModel | GpuModel:
        """What kernels for the device are shaped for: a GPU runs the items of a group at once."""
        if self.group_size < _LEAST_GROUP:
            return self.unit
        return GpuModel(
            self.unit,
            most_items=self.max_work_group,
            shared_bytes=self.local_bytes,
            has_mma=self.has_mma,
            has_tf32=self.has_tf32,
            has_shuffles=self.has_shuffles,
        )


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """One kernel in a language for devices.

    Attributes:
        name: Of its function.
        source: Its text.
        buffers: Names of the buffers.
        sizes: How many sizes it is given.
        local_size: Work-items of a group: those of different turns, those that share a turn.
        items: Most work-items that can share a turn; 1 if it is one item's.
        is_group: Whether the items of a turn are one group.
        busy_items: Work-items that keep the device busy.
        shared_bytes: Of memory that the items of a group share.
    """

    name: str
    source: str
    buffers: tuple[str, ...]
    sizes: int
    local_size: tuple[int, int]
    items: int
    is_group: bool
    busy_items: int
    shared_bytes: int = 0

    def global_size(self, extent: int) -> tuple[int, int]:
        """Return the work-items of a call of so many turns (`Call.extent`), as `local_size`."""
        turns, items = self.local_size
        if not self.is_group and self.items > 1:
            # Few turns: several items share one, as many as keep the device busy; many turns need
            # no sharing.
            wanted = max(1, min(self.items, -(-self.busy_items // max(1, extent))))
            items *= -(-wanted // items)
        return max(1, -(-extent // turns)) * turns, items


def device_kernel(
    function: ir.Function, limits: DeviceLimits, plan: Distribution, source: str
) -> DeviceKernel:
    """Return a kernel with its text and its work-items.

    Args:
        function: The kernel.
        limits: Of the device.
        plan: How work-items share a turn.
        source: The text.
    """
    width = function.work_items or sharing(limits, plan)
    is_shared = bool(function.work_items) or plan.items > 1
    return DeviceKernel(
        name=function.name,
        source=source,
        buffers=tuple(buffer.name for buffer in function.buffers),
        sizes=len(function.sizes),
        local_size=(1, width) if is_shared else (limits.group_size, 1),
        items=function.work_items or plan.items,
        is_group=is_shared and (plan.waits or bool(function.locals or function.work_items)),
        busy_items=limits.busy_items,
        shared_bytes=plan.shared_bytes,
    )


def sharing(limits: DeviceLimits, plan: Distribution) -> int:
    """Return how many work-items of a group share a turn."""
    return min(limits.group_size, plan.items)


def divide(
    function: ir.Function,
    limits: DeviceLimits,
    item_bytes: Callable[[str], int],
    meeting_bytes: Callable[[ir.Type], Mapping[object, int]],
) -> Distribution:
    """Return how work-items share a turn, as far as a device allows.

    Args:
        function: The kernel.
        limits: Of the device.
        item_bytes: Returns the bytes of an element of a kernel's own buffers.
        meeting_bytes: Returns the bytes that a work-item needs where all of them see a value, for
            each kind of variable that holds it.
    """
    if function.grid is not None:
        # It says itself what is parallel.
        has_shuffles = limits.has_shuffles
        return Distribution(shared_bytes=shared_bytes(function, has_shuffles=has_shuffles))
    plan = distribute(function)
    own_bytes = sum(buffer.span * item_bytes(buffer.dtype) for buffer in function.locals)
    meeting: dict[object, int] = {}
    for loop in ir.walk(function.body):
        if isinstance(loop, ir.Loop) and id(loop) in plan.reduced:
            for value in loop.carried:
                meeting |= meeting_bytes(value.type)
    own_bytes += sharing(limits, plan) * sum(meeting.values())
    is_group = plan.waits or own_bytes > 0
    # On CPUs barriers cost more than they gain: items of a group run in turn.
    if is_group and (limits.group_size == 1 or own_bytes > limits.local_bytes):
        return Distribution()
    return replace(plan, shared_bytes=own_bytes) if plan.items > 1 else plan


def dtypes_of(function: ir.Function) -> set[str]:
    """Return the dtypes that a kernel keeps or computes."""
    used = {buffer.dtype for buffer in (*function.buffers, *function.locals)}
    return used | {
        value.type.dtype for item in ir.walk(function.body) for value in ir.results(item)
    }


def pieces(lanes: int, widths: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return first lane and width of the variables that hold a vector: of 7 lanes 4, 2 and 1.

    Args:
        lanes: Of the vector.
        widths: Lanes that a variable can have, the most first.
    """
    out: list[tuple[int, int]] = []
    first = 0
    while first < lanes:
        width = next(width for width in widths if width <= lanes - first)
        out.append((first, width))
        first += width
    return tuple(out)


class DeviceSpelling(Spelling):
    """How a language for devices spells an operation on one variable, of some number of lanes."""

    @abstractmethod
    def type_of(self, dtype: str) -> str:
        """Return the type of a variable with lanes of a dtype."""

    @abstractmethod
    def repeated(self, scalar: str, dtype: str) -> str:
        """Return a scalar in every lane."""

    @abstractmethod
    def joined(self, lanes: Sequence[str], dtype: str) -> str:
        """Return a vector of scalars."""


class DeviceFamily(CFamily):
    """Writes the body of one kernel for the work-items of a device.

    Args:
        function: The kernel: verified, expanded, pruned.
        limits: Of the device.
    """

    wide: Mapping[int, DeviceSpelling]
    """The spellings by the lanes that a variable can have, the most first; one is always there."""

    def __init__(self, function: ir.Function, limits: DeviceLimits) -> None:
        super().__init__(function)
        self.limits = limits
        self.plan = divide(function, limits, self.item_bytes, self._meeting_bytes)
        self.meeting_places: dict[str, str] = {}
        self._literals: dict[ir.IrValue, str] = {}
        self._is_inside = False

    def made(self, source: str) -> DeviceKernel:
        """Return the kernel with its text."""
        return device_kernel(self.function, self.limits, self.plan, source)

    @property
    def group_size(self) -> int:
        """Work-items of a group."""
        return self.limits.group_size

    @property
    def sharing(self) -> int:
        """Work-items of a group that share a turn."""
        return sharing(self.limits, self.plan)

    def pieces(self, lanes: int) -> tuple[tuple[int, int], ...]:
        """Return first lane and width of the variables that hold a vector."""
        return pieces(lanes, self.wide)

    def _meeting_bytes(self, type_: ir.Type) -> Mapping[object, int]:
        dtype = type_.dtype
        parts = self.pieces(type_.lanes)
        return {(dtype, width): self.item_bytes(dtype) * width for _, width in parts}

    def item_bytes(self, dtype: str) -> int:
        """Return the bytes of an element of a kernel's own buffers."""
        return np.dtype(dtype).itemsize

    # What a dialect says

    turn: str
    """Which turn a work-item has, if turns are counted from 0."""
    group: str
    """Which group a work-item is in."""
    item_of_group: str
    """Its number there."""

    @abstractmethod
    def wait(self) -> None:
        """Write that the items of a group wait for each other."""

    @abstractmethod
    def literal(self, value: float, dtype: str) -> str:
        """Return a number as a scalar of a dtype."""

    @abstractmethod
    def picked(self, name: str, lanes: Sequence[int]) -> str:
        """Return lanes of a vector variable."""

    @abstractmethod
    def loaded(self, load: ir.Load, first: int, width: int) -> str:
        """Return as many lanes of a load as a variable has."""

    @abstractmethod
    def write(self, store: ir.Store, first: int, width: int, value: str) -> None:
        """Write as many lanes of a store as a variable has."""

    # Variables and memory

    def declare(
        self, value: ir.IrValue, expressions: Sequence[str], *, is_const: bool = True
    ) -> None:
        """Declare the variables of a value."""
        self.names[value] = self._variables(value, expressions, is_const=is_const)

    def _variables(
        self, value: ir.IrValue, expressions: Sequence[str], *, is_const: bool
    ) -> tuple[str, ...]:
        name = self.fresh()
        parts = self.pieces(value.type.lanes)
        names = tuple(name if len(parts) == 1 else f"{name}_{i}" for i in range(len(parts)))
        for part, (_, width), expression in zip(names, parts, expressions, strict=True):
            type_ = self.wide[width].type_of(value.type.dtype)
            self.variable(type_, part, expression, is_const=is_const)
        return names

    def copy(self, value: ir.IrValue) -> tuple[str, ...]:
        """Declare variables that may change and have the value of others."""
        return self._variables(value, self.names[value], is_const=False)

    def assign(self, carried: ir.IrValue, names: tuple[str, ...]) -> None:
        """Assign variables to those of a carried value."""
        for target, source in zip(self.names[carried], names, strict=True):
            self.line(f"{target} = {source};")

    def constant(self, operation: ir.Constant) -> None:
        """Take a number as a value."""
        self.keep_scalar(
            operation.result, self.literal(operation.value, operation.result.type.dtype)
        )

    def keep_scalar(self, value: ir.IrValue, scalar: str) -> None:
        """Take a scalar's text as every lane of a value."""
        self._literals[value] = scalar
        self.names[value] = tuple(
            self.wide[width].repeated(scalar, value.type.dtype)
            for _, width in self.pieces(value.type.lanes)
        )

    def lane(self, value: ir.IrValue, lane: int) -> str:
        """Return one lane as a scalar."""
        if value in self._literals:
            return self._literals[value]
        name, _, width, inner = self._place(value, lane)
        return name if width == 1 else self.picked(name, (inner,))

    def _place(self, value: ir.IrValue, lane: int) -> tuple[str, int, int, int]:
        """Return the variable that holds a lane, its number, its width, and which lane of it."""
        for number, (first, width) in enumerate(self.pieces(value.type.lanes)):
            if first <= lane < first + width:
                return self.names[value][number], number, width, lane - first
        raise AssertionError(f"lane {lane} of {value.type}")

    def _gathered(self, picks: Sequence[tuple[ir.IrValue, int]], dtype: str) -> list[str]:
        """Return expressions for a vector whose lanes come from anywhere."""
        return [
            self._gathered_piece(picks[first : first + width], dtype)
            for first, width in self.pieces(len(picks))
        ]

    def _gathered_piece(self, picks: Sequence[tuple[ir.IrValue, int]], dtype: str) -> str:
        width = len(picks)
        if width == 1:
            return self.lane(*picks[0])
        places = [None if v in self._literals else self._place(v, lane) for v, lane in picks]
        sources = {place[:3] if place else None for place in places}
        # A swizzle of one variable is free or one instruction; a vector of scalars may be one for
        # each lane.
        if len(sources) == 1 and places[0] is not None:
            name, _, source_width, _ = places[0]
            lanes = [place[3] for place in places if place]
            if source_width == 1:
                return self.wide[width].repeated(name, dtype)
            if lanes == list(range(source_width)):
                return name
            return self.picked(name, lanes)
        return self.wide[width].joined([self.lane(*pick) for pick in picks], dtype)

    def load(self, load: ir.Load) -> None:
        """Write a load."""
        parts = self.pieces(load.result.type.lanes)
        self.declare(load.result, [self.loaded(load, first, width) for first, width in parts])

    def store(self, store: ir.Store) -> None:
        """Write a store."""
        value, dtype = store.value, store.buffer.dtype
        if store.stride != 1:
            for lane in range(store.count):
                self.write(store, lane, 1, self.lane(value, lane))
            return
        expressions: Sequence[str] = self.names[value]
        if store.count != value.type.lanes:
            expressions = self._gathered([(value, lane) for lane in range(store.count)], dtype)
        for (first, width), expression in zip(self.pieces(store.count), expressions, strict=True):
            self.write(store, first, width, expression)

    def compute(self, operation: ir.Operation) -> None:
        """Write an operation without effects."""
        match operation:
            case ir.Splat(result=result, operand=a):
                self._splat(result, a)
            case ir.Shuffle(result=result, left=a, right=b, lanes=lanes):
                count = a.type.lanes
                picks = [(a, lane) if lane < count else (b, lane - count) for lane in lanes]
                self.declare(result, self._gathered(picks, a.type.dtype))
            case ir.Extract(result=result, operand=a, lane=lane):
                self.declare(result, [self.lane(a, lane)])
            case ir.Reduce():
                self._reduce(operation)
            case ir.Dot(is_blocked=True):
                for part in without_blocks(operation):
                    self.compute(part)
            case ir.Dot():
                self._dot(operation)
            case ir.WarpShuffle():
                self._warp_shuffle(operation)
            case _:
                self.lanewise(operation)

    def lanewise(self, operation: ir.Operation) -> None:
        """Declare a result variable by variable."""
        (result,) = ir.results(operation)

        def part(number: int, width: int) -> str:
            return spell(operation, lambda value: self.names[value][number], self.wide[width])

        widths = (width for _, width in self.pieces(result.type.lanes))
        self.declare(result, [part(number, width) for number, width in enumerate(widths)])

    def _dot(self, dot: ir.Dot) -> None:
        """Add products of neighbours, the last one first."""
        total = dot.addend
        for number in reversed(range(dot.group)):
            x, y = (self._neighbours(dot, item, number) for item in (dot.left, dot.right))
            step = ir.IrValue(dot.result.type)
            self.lanewise(ir.Fma(step, x, y, total))
            total = step
        self.names[dot.result] = self.names[total]

    def _neighbours(self, dot: ir.Dot, operand: ir.IrValue, number: int) -> ir.IrValue:
        """Declare one neighbour of each group as what products are summed in."""
        dtype, lanes, group = operand.type.dtype, dot.result.type.lanes, dot.group
        part = ir.IrValue(ir.Type(dtype, lanes))
        picks = [(operand, group * lane + number) for lane in range(lanes)]
        self.declare(part, self._gathered(picks, dtype))
        total = dot.result.type.dtype
        wide = ir.IrValue(ir.Type("uint32" if total == "float32" else total, lanes))
        self.lanewise(ir.Cast(wide, part))
        if total != "float32":
            return wide
        bits, shift = ir.IrValue(wide.type), ir.IrValue(wide.type)
        self.constant(ir.Constant(shift, 16))  # bfloat16: the upper half of a float32
        self.lanewise(ir.Binary(bits, "shl", wide, shift))
        number_value = ir.IrValue(wide.type.with_dtype(total))
        self.lanewise(ir.Bitcast(number_value, bits))
        return number_value

    def _warp_shuffle(self, shuffle: ir.WarpShuffle) -> None:
        """Hand a number to another lane through shared memory."""
        place = self._meeting_place(self.wide[1].type_of(shuffle.operand.type.dtype))
        self.line(f"{place}[{self.item_of_group}] = {self.names[shuffle.operand][0]};")
        self.wait()
        self.declare(shuffle.result, [f"{place}[({self.item_of_group}) ^ {shuffle.mask}]"])
        self.wait()  # before the next one uses the place

    def _meeting_place(self, type_: str) -> str:
        """Return the name of shared memory with a variable of each work-item."""
        return self.meeting_places.setdefault(type_, f"v0_{len(self.meeting_places)}")

    @property
    def meeting(self) -> int:
        """Work-items that meet in shared memory."""
        return self.function.work_items or self.sharing

    def _splat(self, result: ir.IrValue, operand: ir.IrValue) -> None:
        type_ = result.type
        (scalar,) = self.names[operand]
        if operand in self._literals:
            self._literals[result] = scalar
        parts = [
            self.wide[width].repeated(scalar, type_.dtype) for _, width in self.pieces(type_.lanes)
        ]
        if operand in self._literals:
            self.names[result] = tuple(parts)
        else:
            self.declare(result, parts)

    def _reduce(self, reduce: ir.Reduce) -> None:
        """Combine the upper half with the lower one until one lane is left."""
        current, dtype = reduce.operand, reduce.operand.type.dtype
        while current.type.lanes > 1:
            lanes = current.type.lanes
            half = (lanes + 1) // 2
            rest = lanes - half
            lower = ir.IrValue(current.type.with_lanes(rest))
            upper = ir.IrValue(current.type.with_lanes(rest))
            for part, first in ((lower, 0), (upper, half)):
                picks = [(current, first + lane) for lane in range(rest)]
                self.declare(part, self._gathered(picks, dtype))
            total = ir.IrValue(current.type.with_lanes(rest))
            self.lanewise(ir.Binary(total, reduce.name, lower, upper))
            if half > rest:  # the lane in the middle has no partner
                joined = ir.IrValue(current.type.with_lanes(half))
                picks = [*((total, lane) for lane in range(rest)), (current, rest)]
                self.declare(joined, self._gathered(picks, dtype))
                total = joined
            current = total
        self.names[reduce.result] = self.names[current]

    def operation(self, operation: ir.Operation) -> None:
        """Write one operation, where one work-item does it or all of them wait before it."""
        plan = self.plan
        if id(operation) in plan.barriers:
            self.wait()
        if isinstance(operation, ir.Barrier):
            self.wait()
            return
        # Outside of shared loops all items compute the same: one of them writes it.
        is_alone = plan.items > 1 and not self._is_inside and isinstance(operation, ir.Store)
        if is_alone:
            self.open("if (item == 0)")
        super().operation(operation)
        if is_alone:
            self.close()

    def loop(self, loop: ir.Loop) -> None:
        """Write a serial loop, and combine what its work-items have summed."""
        super().loop(loop)
        if id(loop) in self.plan.reduced:
            for carried, name in zip(loop.carried, self.plan.reduced[id(loop)], strict=True):
                self._combine(carried, name)

    def started(self, loop: ir.Loop) -> None:
        """Write what a work-item starts its sums from."""
        names = self.plan.reduced.get(id(loop))
        if names:
            self._start(loop, names)

    def _start(self, loop: ir.Loop, names: tuple[str, ...]) -> None:
        """Let the first item alone start from the initial values; extrema do not mind."""
        for carried, name in zip(loop.carried, names, strict=True):
            if name not in ("add", "mul"):
                continue
            dtype = carried.type.dtype
            # Only one item may bring the initial value, or a sum would have it once for each.
            neutral = self.literal(0 if name == "add" else 1, dtype)
            parts = zip(self.names[carried], self.pieces(carried.type.lanes), strict=True)
            self.open("if (item != 0)")
            for part, (_, width) in parts:
                self.line(f"{part} = {self.wide[width].repeated(neutral, dtype)};")
            self.close()

    def _combine(self, carried: ir.IrValue, name: str) -> None:
        """Let every item have all items' terms, in the order of the items."""
        dtype = carried.type.dtype
        pieces = self.pieces(carried.type.lanes)
        for part, (_, width) in zip(self.names[carried], pieces, strict=True):
            type_ = self.wide[width].type_of(dtype)
            place = self._meeting_place(type_)
            self.line(f"{place}[item] = {part};")
            self.wait()
            # Each item adds up all terms in one order, so that all have the same sum, to the bit,
            # in every run.
            self.line(f"{part} = {place}[0];")
            self.open(self.head("other", "1", "items", "1"))
            self.line(f"{part} = {self.wide[width].binary(name, f'{place}[other]', part, dtype)};")
            self.close()
            self.wait()

    def turns(self, loop: ir.Loop) -> tuple[str, str]:
        """Return the first value of a loop's variable, and its step."""
        lower, step = super().turns(loop)
        if id(loop) not in self.plan.shared:
            return lower, step
        first = "item" if loop.step == 1 else f"{loop.step} * item"
        step = "items" if loop.step == 1 else f"{loop.step} * items"
        return first if lower == "0" else f"{lower} + {first}", step

    def inside(self, loop: ir.Loop) -> None:
        """Write one turn of a loop."""
        before = self._is_inside
        self._is_inside = before or id(loop) in self.plan.shared
        super().inside(loop)
        if id(loop) in self.plan.closing:
            self.wait()
        self._is_inside = before

    def parallel(self, loop: ir.Loop) -> None:
        """Write one turn of the parallel loop, or of a loop of a kernel for a GPU."""
        if loop.kind in (ir.LoopKind.BLOCK, ir.LoopKind.LANE):
            self._side_by_side(loop)
            return
        lower, upper = self.index(loop.lower), self.index(loop.upper)
        turn = self.turn if loop.kind is ir.LoopKind.PARALLEL else self.group
        if loop.step != 1:
            turn = f"{loop.step} * {turn}"
        if lower != "0":
            turn = f"{lower} + {turn}"
        self.variable(self.integer, "turn", turn)
        self.names[loop.variable] = ("turn",)
        self.open(f"if (turn < {upper})")
        self.body(loop.body)
        self.close()

    def _side_by_side(self, loop: ir.Loop) -> None:
        """Write the turn of a block loop or lane loop that is this work-item's."""
        lane = self.function.lane
        number = self.item_of_group
        if lane is not None:
            number = f"({number}) {'%' if loop is lane else '/'} {lane.trip_count}"
        name = self.fresh()
        self.variable(self.integer, name, number)
        self.names[loop.variable] = (name,)
        self.body(loop.body)
