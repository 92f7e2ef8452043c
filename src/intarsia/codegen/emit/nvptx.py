# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to LLVM IR for NVIDIA's GPUs (LLVM, "User Guide for NVPTX Back-end").

A kernel becomes one `ptx_kernel`. Blocks have one dimension of threads, as many as
`DeviceKernel.local_size` has work-items. A turn of a grid loop is a block. Of other kernels a turn
of the parallel loop is a thread's, by its block and its number there; where loops inside it are
provably parallel (`distribute`), a turn is a block's (`ctaid.x`), whose threads share them, with
those of other blocks (`ctaid.y`) if nobody waits. A kernel's own buffers are private to a thread,
or lie in shared memory for the block that shares a turn.

Arguments, in order: for each buffer the address of its first element, then each size as an int64.

Floating point: `+`, `-`, `*`, `/`, square roots and `fma` round once to nearest, nothing is
contracted, and results below the smallest normal number are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.emit.device_family import (
    DeviceKernel,
    DeviceLimits,
    device_kernel,
    divide,
    sharing,
)
from intarsia.codegen.emit.live import prune
from intarsia.codegen.emit.llvm_core import (
    Bounds,
    CodeBlock,
    LlvmCore,
    llvm_literal,
    llvm_type,
    memory_type,
)
from intarsia.errors import BackendError

_GLOBAL, _SHARED = "ptr addrspace(1)", "ptr addrspace(3)"
_WARP = 32
"""Threads of a warp."""
_HALF_PRODUCT, _TF32_PRODUCT = "m16n8k16.row.col.f32.f32", "m16n8k8.row.col.tf32"
"""LLVM's names of the products of a warp (`ir.Mma`)."""
_MOST_PARAMETERS = 4096 // 8
"""What a kernel can be given: 4 KiB (CUDA C++ Programming Guide, "Function Parameters")."""
_MOST_PRIVATE = 512 << 10
"""Bytes of memory of its own that a thread can have (there, "Technical Specifications")."""


def emit_nvptx(function: ir.Function, limits: DeviceLimits) -> DeviceKernel:
    """Return a kernel whose text is an LLVM IR module for NVPTX.

    Args:
        function: The kernel, verified and expanded.
        limits: Of the device.

    Raises:
        BackendError: It has more arguments, or more memory of its own, than CUDA has for one.
    """
    return _Nvptx(prune(function), limits).kernel()


def _meeting_bytes(type_: ir.Type) -> Mapping[object, int]:
    """Return the bytes of a value in shared memory: vectors are filled up to powers of two."""
    lanes = 1 << (type_.lanes - 1).bit_length()
    return {type_: lanes * _item_bytes(type_.dtype)}


def _item_bytes(dtype: str) -> int:
    return np.dtype(dtype).itemsize


class _Nvptx(LlvmCore):
    rounds_at_once = False

    def __init__(self, function: ir.Function, limits: DeviceLimits) -> None:
        super().__init__(function, limits.unit)
        self.limits = limits
        self.plan = divide(function, limits, _item_bytes, _meeting_bytes)
        self._is_shared = self.plan.items > 1
        self._is_inside = False
        self._globals: list[str] = []
        self._meeting_places: dict[str, str] = {}

    def kernel(self) -> DeviceKernel:
        function = self.function
        if len(function.buffers) + len(function.sizes) > _MOST_PARAMETERS:
            raise self._refused(f"more than {_MOST_PARAMETERS} arguments")
        parameters = []
        for number, buffer in enumerate(function.buffers):
            self.pointers[buffer] = f"%b{number}"
            access = "" if buffer.is_written else " readonly"
            parameters.append(f"{_GLOBAL} noalias{access} align {buffer.align} %b{number}")
        for number, size in enumerate(function.sizes):
            self.keep(size, f"%s{number}", 0)
            parameters.append(f"i64 %s{number}")
        self.blocks.append(CodeBlock("entry"))
        for number, buffer in enumerate(function.locals):
            self._local(number, buffer)
        self._place()
        if function.parallel is None and function.grid is None:
            self._turn(None, function.body)
        else:
            self.body(function.body)
        (block,) = self.blocks
        made = device_kernel(function, self.limits, self.plan, "")
        threads = made.local_size[0] * made.local_size[1]
        head = f"define ptx_kernel void @{function.name}({', '.join(parameters)}) #0 {{"
        attributes = f'attributes #0 = {{ nounwind "nvvm.reqntid"="{threads}" }}'
        notes = [f"; {note}" for note in function.notes]
        lines = (*notes, *self._globals, head, "entry:", *block.lines, "  ret void", "}")
        text = "\n".join((*lines, *self.declared.values(), attributes, ""))
        # Modules of a program are joined: what a kernel has of its own needs a name of its own.
        text = text.replace("@intarsia.", f"@{function.name}.")
        return device_kernel(function, self.limits, self.plan, text)

    def _refused(self, what: str) -> BackendError:
        return BackendError(
            f"kernel {self.function.name} has {what}",
            backend="cuda",
            hint="exclude its nodes from this target",
        )

    def _local(self, number: int, buffer: ir.Buffer) -> None:
        """Make a buffer of the kernel's own."""
        what = f"[{buffer.span} x {memory_type(buffer.dtype)}]"
        if self._is_shared or buffer.scope is ir.Scope.SHARED:
            self.pointers[buffer] = self._shared_memory(f"l{number}", what, buffer.align)
            return
        nbytes = buffer.span * buffer.item_bytes
        if nbytes > _MOST_PRIVATE:
            raise self._refused(f"{nbytes} bytes of its own for each thread")
        self.pointers[buffer] = f"%l{number}"
        self.line(f"%l{number} = alloca {what}, align {buffer.align}")

    def _shared_memory(self, name: str, what: str, align: int) -> str:
        pointer = f"@{self.function.name}.{name}"
        self._globals.append(
            f"{pointer} = internal unnamed_addr addrspace(3) global {what} poison, align {align}"
        )
        return pointer

    # Where a thread is

    def _register(self, name: str) -> str:
        """Return a special register as an i64."""
        callee = self.declare(f"llvm.nvvm.read.ptx.sreg.{name}", "i32 ()")
        narrow, wide = self.fresh(), self.fresh()
        self.line(f"{narrow} = call i32 {callee}()")
        self.line(f"{wide} = zext i32 {narrow} to i64")
        return wide

    def _place(self) -> None:
        """Write which turn a thread has, and which part of it."""
        thread, block = self._register("tid.x"), self._register("ctaid.x")
        self._now, self._item, self._items = block, thread, str(sharing(self.limits, self.plan))
        if self.function.grid is not None:
            return
        if not self._is_shared:
            self._now = self._sum(self._product(block, self.limits.group_size), thread)
        elif not (self.plan.waits or self.function.locals):
            row, rows = self._register("ctaid.y"), self._register("nctaid.y")
            threads = sharing(self.limits, self.plan)
            self._item = self._sum(self._product(row, threads), thread)
            self._items = self._product(rows, threads)
        if self._is_shared:
            self._is_first = self.fresh()
            self.line(f"{self._is_first} = icmp eq i64 {self._item}, 0")

    def _product(self, left: str, right: int | str) -> str:
        if str(right) == "1":
            return left
        name = self.fresh()
        self.line(f"{name} = mul nuw nsw i64 {left}, {right}")
        return name

    def _sum(self, left: str, right: str) -> str:
        name = self.fresh()
        self.line(f"{name} = add nsw i64 {left}, {right}")
        return name

    def barrier(self) -> None:
        self._wait()

    def _wait(self) -> None:
        callee = self.declare("llvm.nvvm.barrier.cta.sync.aligned.all", "void (i32)")
        self.line(f"call void {callee}(i32 0)")

    # What this half says

    def pointer_type(self, buffer: ir.Buffer) -> str:
        if buffer in self.function.buffers:
            return _GLOBAL
        return _SHARED if self._is_shared or buffer.scope is ir.Scope.SHARED else "ptr"

    def operation(self, operation: ir.Operation) -> None:
        if id(operation) in self.plan.barriers:
            self._wait()
        if isinstance(operation, ir.Loop) and operation.kind is not ir.LoopKind.SERIAL:
            if operation.kind in (ir.LoopKind.BLOCK, ir.LoopKind.LANE):
                self._side_by_side(operation)
            else:
                self._turn(operation, operation.body)
            return
        if isinstance(operation, ir.Mma):
            self._mma(operation)
            return
        if isinstance(operation, ir.WarpShuffle):
            self._warp_shuffle(operation)
            return
        super().operation(operation)
        if isinstance(operation, ir.Loop) and id(operation) in self.plan.reduced:
            names = self.plan.reduced[id(operation)]
            for result, name in zip(operation.results, names, strict=True):
                self._combine(result, name)

    def write(self, text: str) -> None:
        if not self._is_shared or self._is_inside:
            self.line(text)
            return
        # Outside of shared loops all threads compute the same: one of them writes it.
        label = self.fresh()[1:]
        self.line(f"br i1 {self._is_first}, label %one.{label}, label %all.{label}")
        self._begin(f"one.{label}")
        self.line(text)
        self.line(f"br label %all.{label}")
        self._begin(f"all.{label}")

    def _begin(self, label: str) -> None:
        """Begin a basic block inside the current body."""
        self.blocks[-1].lines.append(f"{label}:")
        self.blocks[-1].label = label

    def loop(self, loop: ir.Loop) -> None:
        before = self._is_inside
        self._is_inside = before or id(loop) in self.plan.shared
        super().loop(loop)
        self._is_inside = before

    def turned(self, loop: ir.Loop) -> None:
        if id(loop) in self.plan.closing:
            self._wait()

    def bounds(self, loop: ir.Loop) -> Bounds:
        bounds = super().bounds(loop)
        if id(loop) not in self.plan.shared:
            return bounds
        first = self._product(self._item, loop.step)
        if bounds.lower != "0":
            first = self._sum(bounds.lower, first)
        step = self._product(self._items, loop.step)
        return Bounds(first, bounds.upper, step, is_sure=False)

    def initial(self, loop: ir.Loop) -> list[str]:
        """Let the first thread alone start from the initial values; extrema do not mind."""
        names = super().initial(loop)
        combined = self.plan.reduced.get(id(loop))
        if combined is None:
            return names
        return [
            self._only_once(carried.type, first, name) if name in ("add", "mul") else first
            for carried, first, name in zip(loop.carried, names, combined, strict=True)
        ]

    def _only_once(self, type_: ir.Type, first: str, name: str) -> str:
        neutral, text = llvm_literal(0 if name == "add" else 1, type_), llvm_type(type_)
        chosen = self.fresh()
        self.line(f"{chosen} = select i1 {self._is_first}, {text} {first}, {text} {neutral}")
        return chosen

    def _combine(self, result: ir.IrValue, name: str) -> None:
        """Let every thread have all threads' terms, in the order of the threads."""
        type_, depth, threads = llvm_type(result.type), len(self.blocks) - 1, self._items
        nbytes = sum(_meeting_bytes(result.type).values())
        align = min(nbytes, 16)
        if type_ not in self._meeting_places:
            label = f"m{len(self._meeting_places)}"
            place = self._shared_memory(label, f"[{threads} x {type_}]", align)
            self._meeting_places[type_] = place
        place = self._meeting_places[type_]
        where = f"getelementptr inbounds {type_}, {_SHARED} {place}, i64"
        mine, first, at, index, following = (self.fresh() for _ in range(5))
        self.line(f"{mine} = {where} {self._item}")
        self.line(f"store {type_} {self.names[result]}, {_SHARED} {mine}, align {align}")
        self._wait()
        # Each thread adds up all terms in one order, so that all have the same sum, to the bit, in
        # every run.
        self.line(f"{first} = load {type_}, {_SHARED} {place}, align {align}")
        head, before = f"sum.{at[1:]}", self.blocks[-1].label
        total, other, next_total = (ir.IrValue(result.type) for _ in range(3))
        for value in (total, other):
            self.keep(value, self.fresh(), depth)
        self.line(f"br label %{head}")
        self._begin(head)
        phis = len(self.blocks[-1].lines)
        self.line(f"{at} = {where} {index}")
        self.line(f"{self.names[other]} = load {type_}, {_SHARED} {at}, align {align}")
        self.pure(ir.Binary(next_total, name, other, total))
        self.line(f"{following} = add nuw nsw i64 {index}, 1")
        self.line(f"{at}.more = icmp slt i64 {following}, {threads}")
        self.line(f"br i1 {at}.more, label %{head}, label %{head}.end")
        self.blocks[-1].lines[phis:phis] = [
            f"  {index} = phi i64 [ 1, %{before} ], [ {following}, %{head} ]",
            f"  {self.names[total]} = phi {type_} [ {first}, %{before} ], "
            f"[ {self.names[next_total]}, %{head} ]",
        ]
        self._begin(f"{head}.end")
        self._wait()
        self.keep(result, self.names[next_total], depth)

    def _turn(self, loop: ir.Loop | None, body: tuple[ir.Operation, ...]) -> None:
        """Write one turn of the parallel loop, or of a kernel that has none."""
        outer, upper, turn = self.blocks[-1], "1", self._now
        if loop is not None:
            lower, upper = self.index(loop.lower), self.index(loop.upper)
            turn = self._product(turn, loop.step)
            turn = turn if lower == "0" else self._sum(lower, turn)
        self.blocks.append(CodeBlock("turn"))
        if loop is not None:
            self.keep(loop.variable, turn, len(self.blocks) - 1)
        self.body(body)
        inner = self.blocks.pop()
        self.line(f"%is.mine = icmp slt i64 {turn}, {upper}")
        self.line("br i1 %is.mine, label %turn, label %end")
        outer.lines += ["turn:", *inner.lines, "  br label %end", "end:"]
        outer.label = "end"

    def _side_by_side(self, loop: ir.Loop) -> None:
        """Write the turn of a block loop or lane loop that is this thread's."""
        lane = self.function.lane
        number = self._item
        if lane is not None:
            number = self.fresh()
            name = "urem" if loop is lane else "udiv"
            self.line(f"{number} = {name} i64 {self._item}, {lane.trip_count}")
        self.keep(loop.variable, number, len(self.blocks) - 1)
        self.body(loop.body)

    def _warp_shuffle(self, shuffle: ir.WarpShuffle) -> None:
        """Write how a warp's threads hand numbers to each other: 32 bits of each."""
        type_, given = llvm_type(shuffle.operand.type), self.names[shuffle.operand]
        called = self.declare("llvm.nvvm.shfl.sync.bfly.i32", "i32 (i32, i32, i32, i32)")
        bits, found, result = self.fresh(), self.fresh(), self.fresh()
        items = self.function.work_items
        everyone = -1 if items >= _WARP else (1 << items) - 1
        self.line(f"{bits} = bitcast {type_} {given} to i32")
        arguments = f"i32 {everyone}, i32 {bits}, i32 {shuffle.mask}, i32 {_WARP - 1}"
        # Convergent: it must not move to where some of the threads do not go.
        self.line(f"{found} = call i32 {called}({arguments}) convergent")
        self.line(f"{result} = bitcast i32 {found} to {type_}")
        self.keep(shuffle.result, result, len(self.blocks) - 1)

    def _mma(self, mma: ir.Mma) -> None:
        """Write a product of a warp's matrices."""
        single, is_half = "float", mma.left.type.dtype == "float16"
        fragments = self._halves if is_half else self._tf32
        arguments = [*fragments(mma.left), *fragments(mma.right)]
        vector, count = llvm_type(mma.addend.type), mma.addend.type.lanes
        for lane in range(count):
            name = self.fresh()
            self.line(f"{name} = extractelement {vector} {self.names[mma.addend]}, i32 {lane}")
            arguments.append(f"{single} {name}")
        struct = f"{{ {', '.join([single] * count)} }}"
        called = f"llvm.nvvm.mma.{_HALF_PRODUCT if is_half else _TF32_PRODUCT}"
        types = ", ".join(argument.rpartition(" ")[0] for argument in arguments)
        self.declared.setdefault(called, f"declare {struct} @{called}({types})")
        found, current = self.fresh(), "poison"
        # The whole warp comes to it, so it must not move to where some of its threads do not go.
        self.line(f"{found} = call {struct} @{called}({', '.join(arguments)}) convergent")
        for lane in range(count):
            one, name = self.fresh(), self.fresh()
            self.line(f"{one} = extractvalue {struct} {found}, {lane}")
            self.line(f"{name} = insertelement {vector} {current}, {single} {one}, i32 {lane}")
            current = name
        self.keep(mma.result, current, len(self.blocks) - 1)

    def _halves(self, value: ir.IrValue) -> list[str]:
        """Write the registers of a matrix's fragment: two float16 each."""
        type_, found = llvm_type(value.type), []
        for first in range(0, value.type.lanes, 2):
            name = self.fresh()
            mask = f"<2 x i32> <i32 {first}, i32 {first + 1}>"
            source = f"{type_} {self.names[value]}, {type_} poison"
            self.line(f"{name} = shufflevector {source}, {mask}")
            found.append(f"<2 x half> {name}")
        return found

    def _tf32(self, value: ir.IrValue) -> list[str]:
        """Write the registers of a matrix's fragment: one float32 each, rounded to TF32."""
        type_, found = llvm_type(value.type), []
        # Without rounding, the instruction would cut the bits that it does not take.
        called = self.declare("llvm.nvvm.f2tf32.rna", "i32 (float)")
        for lane in range(value.type.lanes):
            one, name = self.fresh(), self.fresh()
            self.line(f"{one} = extractelement {type_} {self.names[value]}, i32 {lane}")
            self.line(f"{name} = call i32 {called}(float {one})")
            found.append(f"i32 {name}")
        return found
