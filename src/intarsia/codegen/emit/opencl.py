# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to OpenCL C 1.2 (Khronos, "The OpenCL C Specification", 1.2).

One IR kernel becomes one `__kernel`::

    limits = DeviceLimits(vector_bits=512)
    kernel = emit_opencl(function, limits)
    source = program_source([kernel, ...])
    # build `source` with `build_options(limits)`, then for a call of `function.extent` turns:
    # enqueue kernel.name with kernel.global_size(extent) and kernel.local_size

A turn of the parallel loop becomes one work-item of dimension 0; where loops inside it are provably
parallel (`distribute`), the items of dimension 1 share them, as one work-group if they must wait
for each other. A kernel's own buffers are private, or local to the group that shares a turn.

Arguments, in order: for each buffer of the kernel its `cl_mem` and, as a `cl_long`, the element of
it at which the buffer begins (so that buffers may share one `cl_mem`, at any offset); then each
size as a `cl_long`. Elements lie as on the host; a bool is a byte.

Floating point: kernels are built without relaxed mathematics and without contraction. `+`, `-`,
`*` and `fma` round once to nearest; division and square root do where the device says so
(`build_options`), else they are within 2.5 and 3 units in the last place. Whether results below
the smallest normal number are kept is the device's (`CL_FP_DENORM`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.emit import opencl_text as text
from intarsia.codegen.emit.c_family import CFamily, spell
from intarsia.codegen.emit.distribute import Distribution, distribute
from intarsia.codegen.emit.live import prune
from intarsia.codegen.unit import VectorUnit
from intarsia.errors import BackendError

_FP16, _FP64 = "cl_khr_fp16", "cl_khr_fp64"


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What the emitter must know of a device; from the target, or from the device itself.

    Attributes:
        vector_bits: Width of its vector registers: 32 times `CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT`;
            128 suits devices that run scalar lanes.
        registers: Vectors of that width that one work-item may hold.
        max_work_group: Most work-items of a group (`max_num_threads`).
        work_group: Work-items of a group: 1 for CPUs, which run a group's items in turn; a multiple
            of what a GPU runs in lockstep.
        busy_items: Work-items that keep it busy: turns are shared by several items below that.
        local_bytes: Local memory of a group.
        has_fp64: Whether it has `cl_khr_fp64`.
        has_fp16: Whether it has `cl_khr_fp16`.
        has_fma: Whether `fma` is fast (`FP_FAST_FMAF`); if not, it rounds twice, as the IR allows.
        is_correctly_rounded: Whether it has `CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT`.
    """

    vector_bits: int = 128
    registers: int = 32
    max_work_group: int = 256
    work_group: int = 1
    busy_items: int = 16
    local_bytes: int = 32 << 10
    has_fp64: bool = True
    has_fp16: bool = False
    has_fma: bool = True
    is_correctly_rounded: bool = False

    @property
    def unit(self) -> VectorUnit:
        """The vector unit that kernels for the device are shaped for."""
        return VectorUnit(self.vector_bits, self.registers, has_fma=self.has_fma)


@dataclass(frozen=True, slots=True)
class OpenClKernel:
    """One kernel in OpenCL C.

    Attributes:
        name: Of the `__kernel`.
        source: Its text; `program_source` puts the header before it.
        buffers: Names of the buffers, two arguments each.
        sizes: How many `cl_long` arguments follow.
        local_size: Work-items of a group, per dimension.
        items: Most work-items that can share a turn; 1 if it is one item's.
        is_group: Whether the items of a turn are one group.
        busy_items: Work-items that keep the device busy.
    """

    name: str
    source: str
    buffers: tuple[str, ...]
    sizes: int
    local_size: tuple[int, int]
    items: int
    is_group: bool
    busy_items: int

    def global_size(self, extent: int) -> tuple[int, int]:
        """Return the work-items of a call of so many turns (`Call.extent`), per dimension."""
        turns, items = self.local_size
        if not self.is_group and self.items > 1:
            # Few turns: several items share one, as many as keep the device busy; many turns need
            # no sharing.
            wanted = max(1, min(self.items, -(-self.busy_items // max(1, extent))))
            items *= -(-wanted // items)
        return max(1, -(-extent // turns)) * turns, items


def refuse_types(function: ir.Function, limits: DeviceLimits) -> str | None:
    """Return which extension of OpenCL a kernel needs and the device lacks; None if it can run."""
    used = {buffer.dtype for buffer in (*function.buffers, *function.locals)}
    used |= {value.type.dtype for item in ir.walk(function.body) for value in ir.results(item)}
    if "float64" in used and not limits.has_fp64:
        return _FP64
    return _FP16 if "float16" in used and not limits.has_fp16 else None


def emit_opencl(function: ir.Function, limits: DeviceLimits) -> OpenClKernel:
    """Return a kernel in OpenCL C.

    Args:
        function: The kernel, verified and expanded.
        limits: Of the device.

    Raises:
        BackendError: It has elements that the device has no arithmetic for.
    """
    missing = refuse_types(function, limits)
    if missing:
        raise BackendError(
            f"kernel {function.name} needs {missing}, which the device does not have",
            backend="opencl",
            hint="exclude its nodes from this target, or convert the model to float32",
        )
    return _OpenCl(prune(function), limits).kernel()


def build_options(limits: DeviceLimits) -> tuple[str, ...]:
    """Return options for OpenCL's compiler."""
    # The option is an error for devices that do not have it.
    exact = ("-cl-fp32-correctly-rounded-divide-sqrt",) if limits.is_correctly_rounded else ()
    return ("-cl-std=CL1.2", "-w", *exact)  # compilers warn of what generated code may well do


def program_source(kernels: Sequence[OpenClKernel], limits: DeviceLimits) -> str:
    """Return a program of kernels."""
    pragmas = ["#pragma OPENCL FP_CONTRACT OFF"]
    for extension, is_there in ((_FP16, limits.has_fp16), (_FP64, limits.has_fp64)):
        if is_there:
            pragmas.append(f"#pragma OPENCL EXTENSION {extension} : enable")
    return "\n\n".join(("\n".join(pragmas), *(kernel.source for kernel in kernels))) + "\n"


def pieces(lanes: int) -> tuple[tuple[int, int], ...]:
    """Return first lane and width of the variables that hold a vector: 19 lanes are 16, 2 and 1."""
    out: list[tuple[int, int]] = []
    first = 0
    while first < lanes:
        width = next(width for width in text.WIDTHS if width <= lanes - first)
        out.append((first, width))
        first += width
    return tuple(out)


_RESERVED = """
kernel global local constant private half image sampler read_only write_only read_write restrict
const in out uint signed unsigned char short int long float double bool mix step sign length
distance dot cross select shuffle min max clamp fma mad abs exp log pow turn item items auto
default switch case register static void volatile size_t
"""
"""Names that have a meaning in OpenCL C, or that we give ourselves."""


class _OpenCl(CFamily):
    integer = "long"
    reserved = frozenset(_RESERVED.split())

    def __init__(self, function: ir.Function, limits: DeviceLimits) -> None:
        super().__init__(function)
        self._limits = limits
        self._wide = {width: text.OpenClSpelling(width, limits.has_fma) for width in text.WIDTHS}
        self._literals: dict[ir.IrValue, str] = {}
        self._plan = self._distribution()
        self._is_inside = False
        self._meeting_places: dict[str, str] = {}

    def _distribution(self) -> Distribution:
        """Return how work-items share a turn, as far as the device allows."""
        plan, limits = distribute(self.function), self._limits
        own_bytes = sum(buffer.span * buffer.item_bytes for buffer in self.function.locals)
        meeting = {
            (value.type.dtype, width)
            for loop in ir.walk(self.function.body)
            if isinstance(loop, ir.Loop) and id(loop) in plan.reduced
            for value in loop.carried
            for _, width in pieces(value.type.lanes)
        }
        items = min(limits.work_group, limits.max_work_group, plan.items)
        own_bytes += items * sum(np.dtype(dtype).itemsize * width for dtype, width in meeting)
        is_group = plan.waits or own_bytes > 0
        # On CPUs barriers cost more than they gain: items of a group run in turn.
        if is_group and (limits.work_group == 1 or own_bytes > limits.local_bytes):
            return Distribution()
        return plan

    def kernel(self) -> OpenClKernel:
        function = self.function
        parameters = []
        for buffer in function.buffers:
            name, element = self.buffers[buffer], text.MEMORY[buffer.dtype]
            const = "" if buffer.is_written else "const "
            # A buffer and where the tensor begins in it: OpenCL 1.2 has no pointers into a buffer
            # on the host.
            parameters += [f"__global {const}{element} *restrict {name}", f"long {name}_at"]
        parameters += [f"long {name}" for size in function.sizes for name in self.names[size]]
        for buffer in function.buffers:
            name = self.buffers[buffer]
            self.line(f"{name} += {name}_at;")
        for buffer in function.locals:
            element = text.MEMORY[buffer.dtype]
            if self._plan.items > 1:
                element = f"__local {element}"
            align = f"__attribute__((aligned({buffer.align})))"
            self.line(f"{element} {self.buffers[buffer]}[{buffer.span}] {align};")
        if self._plan.items > 1:
            self.line("const long item = get_global_id(1), items = get_global_size(1);")
        # Without a parallel loop one work-item does it all; a group may have more.
        if function.parallel is None:
            self.open("if (get_global_id(0) == 0)")
            self.body(function.body)
            self.close()
        else:
            self.body(function.body)
        is_group = self._plan.items > 1 and (self._plan.waits or bool(function.locals))
        width = min(self._limits.work_group, self._limits.max_work_group)
        width_of_turn = min(width, self._plan.items)
        declared = [
            f"    __local {type_} {name}[{width_of_turn}];"
            for type_, name in self._meeting_places.items()
        ]
        notes = [f"// {note}" for note in function.notes]
        head = f"__kernel void {function.name}(\n    " + ",\n    ".join(parameters) + ")\n{"
        return OpenClKernel(
            name=function.name,
            source="\n".join((*notes, head, *declared, *self.lines, "}")),
            buffers=tuple(buffer.name for buffer in function.buffers),
            sizes=len(function.sizes),
            local_size=(1, width_of_turn) if self._plan.items > 1 else (width, 1),
            items=self._plan.items,
            is_group=is_group,
            busy_items=self._limits.busy_items,
        )

    # Variables

    def _declare(
        self, value: ir.IrValue, expressions: Sequence[str], *, is_const: bool = True
    ) -> None:
        self.names[value] = self._variables(value, expressions, is_const=is_const)

    def _variables(
        self, value: ir.IrValue, expressions: Sequence[str], *, is_const: bool
    ) -> tuple[str, ...]:
        name = self.fresh()
        parts = pieces(value.type.lanes)
        names = tuple(name if len(parts) == 1 else f"{name}_{i}" for i in range(len(parts)))
        const = "const " if is_const else ""
        for part, (_, width), expression in zip(names, parts, expressions, strict=True):
            type_ = self._wide[width].type_of(value.type.dtype)
            self.line(f"{const}{type_} {part} = {expression};")
        return names

    def copy(self, value: ir.IrValue) -> tuple[str, ...]:
        return self._variables(value, self.names[value], is_const=False)

    def assign(self, carried: ir.IrValue, names: tuple[str, ...]) -> None:
        for target, source in zip(self.names[carried], names, strict=True):
            self.line(f"{target} = {source};")

    def constant(self, operation: ir.Constant) -> None:
        type_ = operation.result.type
        scalar = text.literal(operation.value, type_.dtype)
        self._literals[operation.result] = scalar
        self.names[operation.result] = tuple(
            self._wide[width].repeated(scalar, type_.dtype) for _, width in pieces(type_.lanes)
        )

    def _lane(self, value: ir.IrValue, lane: int) -> str:
        """Return one lane as a scalar."""
        if value in self._literals:
            return self._literals[value]
        name, _, width, inner = self._place(value, lane)
        return name if width == 1 else f"{name}.s{inner:x}"

    def _place(self, value: ir.IrValue, lane: int) -> tuple[str, int, int, int]:
        """Return the variable that holds a lane, its number, its width, and which lane of it."""
        for number, (first, width) in enumerate(pieces(value.type.lanes)):
            if first <= lane < first + width:
                return self.names[value][number], number, width, lane - first
        raise AssertionError(f"lane {lane} of {value.type}")

    def _gathered(self, picks: Sequence[tuple[ir.IrValue, int]], dtype: str) -> list[str]:
        """Return expressions for a vector whose lanes come from anywhere."""
        return [
            self._gathered_piece(picks[first : first + width], dtype)
            for first, width in pieces(len(picks))
        ]

    def _gathered_piece(self, picks: Sequence[tuple[ir.IrValue, int]], dtype: str) -> str:
        width = len(picks)
        if width == 1:
            return self._lane(*picks[0])
        places = [None if v in self._literals else self._place(v, lane) for v, lane in picks]
        sources = {place[:3] if place else None for place in places}
        # A swizzle of one variable is free or one instruction; a vector of scalars may be one for
        # each lane.
        if len(sources) == 1 and places[0] is not None:
            name, _, source_width, _ = places[0]
            lanes = [place[3] for place in places if place]
            if source_width == 1:
                return self._wide[width].repeated(name, dtype)
            if lanes == list(range(source_width)):
                return name
            return f"{name}.s{''.join(f'{lane:x}' for lane in lanes)}"
        lanes_text = ", ".join(self._lane(*pick) for pick in picks)
        return f"({self._wide[width].type_of(dtype)})({lanes_text})"

    # Memory

    def load(self, load: ir.Load) -> None:
        parts = pieces(load.result.type.lanes)
        self._declare(load.result, [self._loaded(load, first, width) for first, width in parts])

    def _loaded(self, load: ir.Load, first: int, width: int) -> str:
        name, dtype = self.buffers[load.buffer], load.buffer.dtype
        element = text.MEMORY[dtype]
        # `vload` asks for the alignment of an element alone (6.12.7), where a pointer to vectors
        # would ask for a vector's.
        if width > 1 and load.stride == 1 and first + width <= load.count:
            place = f"{name} + {self.offset(load, first)}"
            return self._wide[width].from_memory(f"vload{width}(0, {place})", dtype)
        if width > 1 and load.stride == 0 and first + width <= load.count:
            scalar = f"({self._wide[width].vector(element)})({name}[{self.offset(load)}])"
            return self._wide[width].from_memory(scalar, dtype)
        lanes = [
            f"{name}[{self.offset(load, lane)}]" if lane < load.count else f"({element})0"
            for lane in range(first, first + width)
        ]
        raw = (
            lanes[0] if width == 1 else f"({self._wide[width].vector(element)})({', '.join(lanes)})"
        )
        return self._wide[width].from_memory(raw, dtype)

    def store(self, store: ir.Store) -> None:
        name, dtype = self.buffers[store.buffer], store.buffer.dtype
        whole = [(store.value, lane) for lane in range(store.count)]
        if store.stride != 1:
            for lane in range(store.count):
                value = self._wide[1].to_memory(self._lane(store.value, lane), dtype)
                self.line(f"{name}[{self.offset(store, lane)}] = {value};")
            return
        expressions = self._gathered(whole, dtype)
        if store.count == store.value.type.lanes:
            expressions = list(self.names[store.value])
        for (first, width), expression in zip(pieces(store.count), expressions, strict=True):
            value, place = (
                self._wide[width].to_memory(expression, dtype),
                self.offset(store, first),
            )
            if width == 1:
                self.line(f"{name}[{place}] = {value};")
            else:
                self.line(f"vstore{width}({value}, 0, {name} + {place});")

    # Operations

    def compute(self, operation: ir.Operation) -> None:
        match operation:
            case ir.Splat(result=result, operand=a):
                self._splat(result, a)
            case ir.Shuffle(result=result, left=a, right=b, lanes=lanes):
                count = a.type.lanes
                picks = [(a, lane) if lane < count else (b, lane - count) for lane in lanes]
                self._declare(result, self._gathered(picks, a.type.dtype))
            case ir.Extract(result=result, operand=a, lane=lane):
                self._declare(result, [self._lane(a, lane)])
            case ir.Reduce():
                self._reduce(operation)
            case ir.Dot():
                self._dot(operation)
            case _:
                self._lanewise(operation)

    def _lanewise(self, operation: ir.Operation) -> None:
        """Declare a result variable by variable."""
        (result,) = ir.results(operation)

        def part(number: int, width: int) -> str:
            return spell(operation, lambda value: self.names[value][number], self._wide[width])

        widths = (width for _, width in pieces(result.type.lanes))
        self._declare(result, [part(number, width) for number, width in enumerate(widths)])

    def _dot(self, dot: ir.Dot) -> None:
        """Add products of neighbours, the last one first."""
        total = dot.addend
        for number in reversed(range(dot.group)):
            x, y = (self._neighbours(dot, item, number) for item in (dot.left, dot.right))
            step = ir.IrValue(dot.result.type)
            self._lanewise(ir.Fma(step, x, y, total))
            total = step
        self.names[dot.result] = self.names[total]

    def _neighbours(self, dot: ir.Dot, operand: ir.IrValue, number: int) -> ir.IrValue:
        """Declare one neighbour of each group as what products are summed in."""
        dtype, lanes, group = operand.type.dtype, dot.result.type.lanes, dot.group
        part = ir.IrValue(ir.Type(dtype, lanes))
        picks = [(operand, group * lane + number) for lane in range(lanes)]
        self._declare(part, self._gathered(picks, dtype))
        total = dot.result.type.dtype
        wide = ir.IrValue(ir.Type("uint32" if total == "float32" else total, lanes))
        self._lanewise(ir.Cast(wide, part))
        if total != "float32":
            return wide
        bits, shift = ir.IrValue(wide.type), ir.IrValue(wide.type)
        self.constant(ir.Constant(shift, 16))  # bfloat16: the upper half of a float32
        self._lanewise(ir.Binary(bits, "shl", wide, shift))
        number_value = ir.IrValue(wide.type.with_dtype(total))
        self._lanewise(ir.Bitcast(number_value, bits))
        return number_value

    def _splat(self, result: ir.IrValue, operand: ir.IrValue) -> None:
        type_ = result.type
        (scalar,) = self.names[operand]
        if operand in self._literals:
            self._literals[result] = scalar
        parts = [
            self._wide[width].repeated(scalar, type_.dtype) for _, width in pieces(type_.lanes)
        ]
        if operand in self._literals:
            self.names[result] = tuple(parts)
        else:
            self._declare(result, parts)

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
                self._declare(part, self._gathered(picks, dtype))
            total = ir.IrValue(current.type.with_lanes(rest))
            self._lanewise(ir.Binary(total, reduce.name, lower, upper))
            if half > rest:  # the lane in the middle has no partner
                joined = ir.IrValue(current.type.with_lanes(half))
                picks = [*((total, lane) for lane in range(rest)), (current, rest)]
                self._declare(joined, self._gathered(picks, dtype))
                total = joined
            current = total
        self.names[reduce.result] = self.names[current]

    # Work-items

    def operation(self, operation: ir.Operation) -> None:
        plan = self._plan
        if id(operation) in plan.barriers:
            self._wait()
        # Outside of shared loops all items compute the same: one of them writes it.
        is_alone = plan.items > 1 and not self._is_inside and isinstance(operation, ir.Store)
        if is_alone:
            self.open("if (item == 0)")
        super().operation(operation)
        if is_alone:
            self.close()

    def _wait(self) -> None:
        self.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")

    def loop(self, loop: ir.Loop) -> None:
        super().loop(loop)
        if id(loop) in self._plan.reduced:
            for carried, name in zip(loop.carried, self._plan.reduced[id(loop)], strict=True):
                self._combine(carried, name)

    def started(self, loop: ir.Loop) -> None:
        names = self._plan.reduced.get(id(loop))
        if names:
            self._start(loop, names)

    def _start(self, loop: ir.Loop, names: tuple[str, ...]) -> None:
        """Let the first item alone start from the initial values; extrema do not mind."""
        for carried, name in zip(loop.carried, names, strict=True):
            if name not in ("add", "mul"):
                continue
            dtype = carried.type.dtype
            # Only one item may bring the initial value, or a sum would have it once for each.
            neutral = text.literal(0 if name == "add" else 1, dtype)
            parts = zip(self.names[carried], pieces(carried.type.lanes), strict=True)
            self.open("if (item != 0)")
            for part, (_, width) in parts:
                self.line(f"{part} = {self._wide[width].repeated(neutral, dtype)};")
            self.close()

    def _combine(self, carried: ir.IrValue, name: str) -> None:
        """Let every item have all items' terms, in the order of the items."""
        dtype = carried.type.dtype
        for part, (_, width) in zip(self.names[carried], pieces(carried.type.lanes), strict=True):
            type_ = self._wide[width].type_of(dtype)
            place = self._meeting_places.setdefault(type_, f"v0_{len(self._meeting_places)}")
            self.line(f"{place}[item] = {part};")
            self._wait()
            # Each item adds up all terms in one order, so that all have the same sum, to the bit,
            # in every run.
            self.line(f"{part} = {place}[0];")
            self.open("for (long other = 1; other < items; ++other)")
            self.line(f"{part} = {self._wide[width].binary(name, f'{place}[other]', part, dtype)};")
            self.close()
            self._wait()

    def turns(self, loop: ir.Loop) -> tuple[str, str]:
        lower, step = super().turns(loop)
        if id(loop) not in self._plan.shared:
            return lower, step
        first = "item" if loop.step == 1 else f"{loop.step} * item"
        step = "items" if loop.step == 1 else f"{loop.step} * items"
        return first if lower == "0" else f"{lower} + {first}", step

    def inside(self, loop: ir.Loop) -> None:
        before = self._is_inside
        self._is_inside = before or id(loop) in self._plan.shared
        super().inside(loop)
        if id(loop) in self._plan.closing:
            self._wait()
        self._is_inside = before

    def parallel(self, loop: ir.Loop) -> None:
        lower, upper = self.index(loop.lower), self.index(loop.upper)
        turn = "(long)get_global_id(0)"
        if loop.step != 1:
            turn = f"{loop.step} * {turn}"
        if lower != "0":
            turn = f"{lower} + {turn}"
        self.line(f"const long turn = {turn};")
        self.names[loop.variable] = ("turn",)
        self.open(f"if (turn < {upper})")
        self.body(loop.body)
        self.close()
