# SPDX-License-Identifier: Apache-2.0
"""What kernels for GPUs have to keep to: their nest of loops, their memory, and where they wait."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.unit import CpuModel, GpuModel
from intarsia.errors import InternalError

_OF_LANES = (ir.Loop, ir.Store, ir.Barrier, ir.Mma, ir.WarpShuffle)


class _Variation(IntEnum):
    """Between which work-items of a block a value may differ."""

    NONE = 0
    WARPS = 1
    LANES = 2


def check_grid(function: ir.Function, machine: CpuModel | GpuModel | None) -> None:
    """Check a kernel that has a grid loop, and is well-formed otherwise.

    Args:
        function: The kernel.
        machine: What it is for; None leaves out what depends on that.

    Raises:
        InternalError: It breaks a rule.
    """
    _GridRules(function).run()
    if machine is not None:
        _check_machine(function, machine)


class _GridRules:
    def __init__(self, function: ir.Function) -> None:
        self._function = function
        self._variation: dict[ir.IrValue, _Variation] = {}
        self._lanes = 0

    def run(self) -> None:
        for operation in self._function.body:
            if isinstance(operation, ir.Loop) and operation.kind is ir.LoopKind.GRID:
                block = self._only_loop(operation, ir.LoopKind.BLOCK)
                lane = ir.find_loop(block.body, ir.LoopKind.LANE)
                self._lanes = 0 if lane is None else lane.trip_count or 0
            self._outside(operation)

    def _only_loop(self, outer: ir.Loop, kind: ir.LoopKind) -> ir.Loop:
        found = [item for item in outer.body if isinstance(item, ir.Loop) and item.kind is kind]
        if len(found) != 1:
            self._fail(f"a {outer.kind} loop has {len(found)} {kind} loops")
        return found[0]

    def _outside(self, operation: ir.Operation) -> None:
        """Check what each block does once, if it has any effect."""
        match operation:
            case ir.Loop(kind=ir.LoopKind.GRID):
                for item in operation.body:
                    self._outside(item)
            case ir.Loop(kind=ir.LoopKind.BLOCK):
                self._nested(operation)
            case ir.Loop(kind=ir.LoopKind.LANE):
                self._fail("a lane loop lies outside of a block loop")
            case ir.Loop():
                for item in operation.body:
                    if isinstance(item, ir.Loop) and item.kind is not ir.LoopKind.SERIAL:
                        self._fail(f"a {item.kind} loop lies in a serial loop")
                    self._outside(item)
            case ir.Store() | ir.Barrier() | ir.Mma() | ir.WarpShuffle():
                self._fail(f"a {type(operation).__name__} lies outside of the block loop")
            # Every work-item does it, and some of them may have written what others read.
            case ir.Load(buffer=b) if b.is_written or b.scope is not ir.Scope.GLOBAL:
                self._fail(f"{b.name} is read outside of the block loop")
            case _:
                pass

    def _nested(self, loop: ir.Loop) -> None:
        """Check a block loop or a lane loop."""
        if loop.lower != ir.Index() or loop.step != 1 or not loop.trip_count:
            self._fail(f"a {loop.kind} loop does not count from 0 to a known number")
        is_last = loop.kind is ir.LoopKind.LANE or not self._lanes
        self._variation[loop.variable] = _Variation.LANES if is_last else _Variation.WARPS
        if is_last:
            self._body(loop.body, _Variation.NONE)
            return
        self._only_loop(loop, ir.LoopKind.LANE)
        for operation in loop.body:
            if isinstance(operation, ir.Loop) and operation.kind is ir.LoopKind.LANE:
                self._nested(operation)
            elif isinstance(operation, _OF_LANES):
                self._fail(f"a {type(operation).__name__} lies outside of the lane loop")
            else:
                self._note(operation)

    def _body(self, body: tuple[ir.Operation, ...], around: _Variation) -> None:
        """Check what work-items do in loops whose turns differ between some of them."""
        for operation in body:
            match operation:
                case ir.Loop():
                    self._serial(operation, around)
                case ir.Barrier():
                    if around is not _Variation.NONE:
                        self._fail("a barrier lies in a loop whose turns differ in a block")
                case ir.WarpShuffle(mask=mask):
                    if around is not _Variation.NONE:
                        self._fail("a warp's shuffle lies in a loop whose turns differ in a block")
                    if not 0 < mask < self._lanes or self._lanes & (self._lanes - 1):
                        self._fail(f"a warp's shuffle has mask {mask} for {self._lanes} lanes")
                case ir.Mma():
                    if around is _Variation.LANES or self._lanes != ir.MMA_LANES:
                        self._fail(f"a product of a warp is not all of its {ir.MMA_LANES} lanes'")
                case ir.Load() | ir.Store():
                    self._check_register(operation)
                case _:
                    pass
            if not isinstance(operation, ir.Loop):
                self._note(operation)

    def _serial(self, loop: ir.Loop, around: _Variation) -> None:
        if loop.kind is not ir.LoopKind.SERIAL:
            self._fail(f"a {loop.kind} loop lies inside the work-items")
        bounds = [value for index in (loop.lower, loop.upper) for value, _ in index.terms]
        inside = max([around, *map(self._of, bounds)])
        self._variation[loop.variable] = max(map(self._of, bounds), default=_Variation.NONE)
        for value in (*loop.carried, *loop.results):
            self._variation[value] = _Variation.LANES
        self._body(loop.body, inside)

    def _check_register(self, access: ir.Load | ir.Store) -> None:
        buffer = access.buffer
        if buffer.scope is ir.Scope.REGISTER and buffer.flatten(access.subscripts).terms:
            self._fail(f"{buffer.name} lies in registers, and its subscript is no constant")

    def _of(self, value: ir.IrValue) -> _Variation:
        return self._variation.get(value, _Variation.NONE)

    def _note(self, operation: ir.Operation) -> None:
        """Note between whom the result of an operation may differ."""
        found = max(map(self._of, ir.operands(operation)), default=_Variation.NONE)
        if isinstance(operation, ir.Load) and operation.buffer.is_written:
            found = _Variation.LANES  # some may read it earlier than others
        if isinstance(operation, ir.WarpShuffle):
            found = max(found, _Variation.LANES)  # not where it is the same, but that is of no use
        for result in ir.results(operation):
            self._variation[result] = found

    def _fail(self, problem: str) -> None:
        raise InternalError(f"kernel {self._function.name}: {problem}")


def _check_machine(function: ir.Function, machine: CpuModel | GpuModel) -> None:
    name = function.name
    if not isinstance(machine, GpuModel):
        raise InternalError(f"kernel {name} has a grid loop, and is for a CPU")
    for item in ir.walk(function.body):
        if isinstance(item, ir.Mma):
            dtype = item.left.type.dtype
            if not (machine.has_tf32 if dtype == "float32" else machine.has_mma):
                raise InternalError(
                    f"kernel {name} has a product of a warp of {dtype}, and the machine has none"
                )
        if not isinstance(item, ir.Loop) or item.kind is not ir.LoopKind.LANE:
            continue
        if item.trip_count != machine.lanes:
            raise InternalError(
                f"kernel {name} has {item.trip_count} lanes, and the machine {machine.lanes}"
            )
    if function.work_items > machine.most_items:
        raise InternalError(
            f"kernel {name} has blocks of {function.work_items} work-items, and the machine runs "
            f"{machine.most_items}"
        )
    nbytes = shared_bytes(function, has_shuffles=machine.has_shuffles)
    if nbytes > machine.shared_bytes:
        raise InternalError(
            f"kernel {name} shares {nbytes} bytes, and a block has {machine.shared_bytes}"
        )


def shared_bytes(function: ir.Function, *, has_shuffles: bool) -> int:
    """Return the bytes of shared memory that a block of a kernel has.

    Args:
        function: The kernel.
        has_shuffles: Whether an instruction hands numbers from lane to lane; else shuffles need a
            number of each work-item for each dtype.
    """
    shared = [item for item in function.locals if item.scope is ir.Scope.SHARED]
    shuffles = [item for item in ir.walk(function.body) if isinstance(item, ir.WarpShuffle)]
    dtypes = {item.operand.type.dtype for item in shuffles}
    meeting = sum(np.dtype(name).itemsize * function.work_items for name in dtypes)
    meeting = 0 if has_shuffles else meeting
    return meeting + sum(int(item.span) * item.item_bytes for item in shared)
