# SPDX-License-Identifier: Apache-2.0
"""Checks a kernel: types, order of definition, subscripts inside their buffers where that is known.

A kernel that fails is a bug of ours, so what is raised is an `InternalError`.
"""

from __future__ import annotations

from collections.abc import Iterable

from intarsia.codegen import ir
from intarsia.codegen.grid_rules import check_grid
from intarsia.codegen.unit import CpuModel, GpuModel
from intarsia.errors import InternalError

_OUTERMOST = (ir.LoopKind.PARALLEL, ir.LoopKind.GRID)
_GPU_SCOPES = (ir.Scope.SHARED, ir.Scope.REGISTER)

_SHUFFLED = tuple(ir.Type(name) for name in ir.SHUFFLE_DTYPES)

Span = tuple[int, int]
"""The smallest and the largest value that an int64 can have, as far as loops tell."""


def verify(function: ir.Function, machine: CpuModel | GpuModel | None = None) -> None:
    """Check a kernel.

    Args:
        function: The kernel.
        machine: Of what it is for; None leaves out what depends on that.

    Raises:
        InternalError: It uses a value before its definition, mixes types, writes where it must
            not, has two parallel loops, leaves a buffer, has a barrier that not all work-items come
            to, or is none for the machine.
    """
    _Verifier(function).run()
    if function.grid is not None:
        check_grid(function, machine)


class _Verifier:
    def __init__(self, function: ir.Function) -> None:
        self._function = function
        self._defined: set[ir.IrValue] = set(function.sizes)
        self._spans: dict[ir.IrValue, Span] = {}
        self._buffers = {*function.buffers, *function.locals}

    def run(self) -> None:
        if not self._function.name.isidentifier():
            self._fail(f"{self._function.name!r} is not an identifier")
        for buffer in self._buffers:
            self._check_buffer(buffer)
        if self._function.grid is None and any(map(_is_gpus, ir.walk(self._function.body))):
            self._fail("it has a barrier, or an operation of a warp, and no grid loop")
        if len(self._function.tiles) > ir.MOST_TILES:
            self._fail(f"there are {len(self._function.tiles)} tiles")
        loops = [item for item in self._function.body if isinstance(item, ir.Loop)]
        parallel = [item for item in loops if item.kind in _OUTERMOST]
        if len(parallel) > 1:
            self._fail("there are two parallel loops")
        if parallel and any(_writes(item) for item in self._function.body if item not in parallel):
            self._fail("something is written outside the parallel loop")
        self._body(self._function.body, is_outermost=True)

    def _check_buffer(self, buffer: ir.Buffer) -> None:
        if buffer.dtype not in ir.DTYPES:
            self._fail(f"buffer {buffer.name} has dtype {buffer.dtype}")
        if len(buffer.shape) != len(buffer.strides):
            self._fail(f"buffer {buffer.name} has {len(buffer.strides)} strides")
        if any(extent < 0 for extent in buffer.shape):
            self._fail(f"buffer {buffer.name} has a negative extent")
        own = _GPU_SCOPES if self._function.grid is not None else (ir.Scope.LOCAL,)
        expected = own if buffer in self._function.locals else (ir.Scope.GLOBAL,)
        if buffer.scope not in expected:
            self._fail(f"buffer {buffer.name} has scope {buffer.scope}")

    def _body(self, body: Iterable[ir.Operation], *, is_outermost: bool = False) -> None:
        defined = self._defined
        for operation in body:
            for value in ir.operands(operation):
                if value not in defined:
                    self._check_defined(value, operation)
            if isinstance(operation, ir.Loop):
                if operation.kind in _OUTERMOST and not is_outermost:
                    self._fail(f"a {operation.kind} loop lies inside another loop")
                self._loop(operation)
            else:
                self._check_types(operation)
            if isinstance(operation, ir.Load | ir.Store):
                self._check_access(operation)
            elif isinstance(operation, ir.TileLoad | ir.TileStore):
                self._check_tile_access(operation)
            for result in ir.results(operation):
                self._define(result)

    def _define(self, value: ir.IrValue) -> None:
        if value in self._defined:
            self._fail("a value is defined twice")
        self._defined.add(value)

    def _check_defined(self, value: ir.IrValue, operation: ir.Operation) -> None:
        if value not in self._defined:
            self._fail(f"{type(operation).__name__} uses a value before it is defined")

    def _loop(self, loop: ir.Loop) -> None:
        if loop.step < 1:
            self._fail(f"a loop has step {loop.step}")
        groups = (loop.initial, loop.carried, loop.yielded, loop.results)
        if len({tuple(value.type for value in group) for group in groups}) != 1:
            self._fail("a loop carries, yields and returns different types")
        if loop.kind is not ir.LoopKind.SERIAL and loop.initial:
            self._fail(f"a {loop.kind} loop carries values")
        outer = self._defined  # what is inside is not known after it
        self._defined = set(outer)
        self._define(loop.variable)
        for value in loop.carried:
            self._define(value)
        lower, upper = self._span(loop.lower), self._span(loop.upper)
        if lower and upper:
            last = max(lower[0], upper[1] - 1)
            if not loop.lower.terms and not loop.upper.terms:
                turns = max(loop.trip_count or 0, 1)
                last = loop.lower.const + (turns - 1) * loop.step
            self._spans[loop.variable] = (lower[0], last)
        if loop.trip_count != 0:
            self._body(loop.body)
            for value in loop.yielded:
                self._check_defined(value, loop)
        self._defined = outer

    def _span(self, index: ir.Index) -> Span | None:
        """Return the least and the largest value of a subscript, if its values' spans are known."""
        low = high = index.const
        for value, scale in index.terms:
            if value not in self._spans:
                return None
            ends = [end * scale for end in self._spans[value]]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _check_access(self, operation: ir.Load | ir.Store) -> None:
        buffer = operation.buffer
        if buffer not in self._buffers:
            self._fail(f"buffer {buffer.name} is not declared")
        value = operation.result if isinstance(operation, ir.Load) else operation.value
        if value.type.dtype != buffer.dtype:
            self._fail(f"{value.type} goes with {buffer.name}, which is {buffer.dtype}")
        if isinstance(operation, ir.Store) and not buffer.is_written:
            self._fail(f"buffer {buffer.name} is only read")
        if not 1 <= operation.count <= value.type.lanes:
            self._fail(f"{operation.count} of {value.type.lanes} lanes of {buffer.name}")
        flat = self._span(buffer.flatten(operation.subscripts))
        if flat is None or buffer.is_free:
            return
        last = flat[1] + (operation.count - 1) * operation.stride
        if flat[0] < 0 or last >= buffer.span or 0 in buffer.shape:
            self._fail(f"{buffer.name} is left: {flat[0]} to {last} of {buffer.span} elements")

    def _check_tile_access(self, operation: ir.TileLoad | ir.TileStore) -> None:
        buffer, tile = operation.buffer, operation.tile
        if buffer not in self._buffers:
            self._fail(f"buffer {buffer.name} is not declared")
        if tile.dtype != buffer.dtype:
            self._fail(f"tile {tile.name} of {tile.dtype} goes with {buffer.dtype} {buffer.name}")
        if isinstance(operation, ir.TileStore) and not buffer.is_written:
            self._fail(f"buffer {buffer.name} is only read")
        if buffer.strides[-1] != 1 or operation.stride < 0:
            self._fail(f"rows of tile {tile.name} are not contiguous in {buffer.name}")
        flat = self._span(buffer.flatten(operation.subscripts))
        if flat is None or buffer.is_free:
            return
        last = flat[1] + (ir.TILE_ROWS - 1) * operation.stride + tile.columns - 1
        if flat[0] < 0 or last >= buffer.span or 0 in buffer.shape:
            self._fail(f"{buffer.name} is left: {flat[0]} to {last} of {buffer.span} elements")

    def _check_types(self, operation: ir.Operation) -> None:
        problem = _type_problem(operation)
        if problem:
            self._fail(f"{type(operation).__name__}: {problem}")
        for tile in _tiles(operation):
            if tile not in self._function.tiles:
                self._fail(f"tile {tile.name} is not declared")
        if isinstance(operation, ir.Load | ir.Store | ir.Prefetch | ir.TileLoad | ir.TileStore):
            for index in operation.subscripts:
                for value, _ in index.terms:
                    if value.type is not ir.INT64 and value.type != ir.INT64:
                        self._fail(f"{value.type} stands in a subscript")

    def _fail(self, problem: str) -> None:
        raise InternalError(f"kernel {self._function.name}: {problem}")


def _is_gpus(operation: ir.Operation) -> bool:
    return isinstance(operation, ir.Barrier | ir.Mma | ir.WarpShuffle)


def _writes(operation: ir.Operation) -> bool:
    if isinstance(operation, ir.Loop):
        return any(_writes(item) for item in operation.body)
    return isinstance(operation, ir.Store | ir.TileOperation)


def _tiles(operation: ir.Operation) -> tuple[ir.TileRegister, ...]:
    match operation:
        case ir.TileZero(tile=tile) | ir.TileLoad(tile=tile) | ir.TileStore(tile=tile):
            return (tile,)
        case ir.TileDot(total=total, left=left, right=right):
            return (total, left, right)
        case _:
            return ()


def _type_problem(operation: ir.Operation) -> str | None:  # noqa: PLR0911, PLR0912, C901 - cases
    match operation:
        case ir.Unary(result=result, name=name, operand=a):
            if name == "bfloat16" and a.type.dtype != "float32":
                return f"{name} of {a.type}"
            expected = a.type.with_dtype(ir.UNARY_RESULTS.get(name, a.type.dtype))
            return _mismatch(result.type, expected)
        case ir.Binary(result=result, left=a, right=b):
            return _mismatch(result.type, a.type, b.type)
        case ir.Fma(result=result, left=a, right=b, addend=c):
            return _mismatch(result.type, a.type, b.type, c.type)
        case ir.Dot(result=result, left=a, right=b, addend=c, is_blocked=is_blocked):
            if is_blocked and (c.type.lanes % ir.DOT_BLOCK or c.type.dtype == "int16"):
                return f"{c.type} is no blocks of sums"
            return _mismatch(result.type, c.type) or _dot_problem(a.type, b.type, c.type)
        case ir.Mma(result=result, left=a, right=b, addend=c):
            dtype = "float32" if a.type.dtype == "float32" else "float16"
            lanes = ir.MMA_DEPTHS[dtype] // 2
            return _mismatch(ir.Type("float32", 4), result.type, c.type) or (
                _mismatch(a.type, ir.Type(dtype, lanes))
                or _mismatch(b.type, ir.Type(dtype, lanes // 2))
            )
        case ir.WarpShuffle(result=result, operand=a):
            if a.type not in _SHUFFLED:
                return f"no instruction hands {a.type} to another lane"
            return _mismatch(result.type, a.type)
        case ir.Compare(result=result, left=a, right=b):
            return _mismatch(a.type, b.type) or _mismatch(result.type, a.type.with_dtype("bool"))
        case ir.Select(result=result, condition=condition, left=a, right=b):
            return _mismatch(result.type, a.type, b.type) or _mismatch(
                condition.type, a.type.with_dtype("bool")
            )
        case ir.Cast(result=result, operand=a):
            return _mismatch(result.type, a.type.with_dtype(result.type.dtype))
        case ir.Bitcast(result=result, operand=a):
            import numpy as np

            widths = {np.dtype(item.type.dtype).itemsize for item in (result, a)}
            return "another width" if len(widths) > 1 else None
        case ir.Splat(result=result, operand=a):
            return _mismatch(result.type.with_lanes(1), a.type)
        case ir.Shuffle(result=result, left=a, right=b, lanes=lanes):
            if any(not 0 <= lane < 2 * a.type.lanes for lane in lanes):
                return f"lanes {lanes} of two {a.type}"
            return _mismatch(a.type, b.type) or _mismatch(
                result.type, a.type.with_lanes(len(lanes))
            )
        case ir.Extract(result=result, operand=a, lane=lane):
            if not 0 <= lane < a.type.lanes:
                return f"lane {lane} of {a.type}"
            return _mismatch(result.type, a.type.with_lanes(1))
        case ir.Reduce(result=result, operand=a):
            return _mismatch(result.type, a.type.with_lanes(1))
        case ir.TileDot(total=total, left=left, right=right):
            return _tile_dot_problem(total, left, right)
        case _:
            return None


def _dot_problem(left: ir.Type, right: ir.Type, total: ir.Type) -> str | None:
    group = ir.DOT_GROUPS.get(left.dtype, 0)
    sums = ir.DOT_SUMS.get(left.dtype, "")
    if total.dtype == "int16" and {left.dtype, right.dtype} == {"int8", "uint8"}:
        group, sums = 2, total.dtype
    is_mixed = left.dtype != right.dtype and {left.dtype, right.dtype} != {"int8", "uint8"}
    if not group or is_mixed:
        return f"there is no dot product of {left.dtype} and {right.dtype}"
    wide = ir.Type(left.dtype, group * total.lanes)
    return (
        _mismatch(left, wide)
        or _mismatch(right.with_dtype(left.dtype), wide)
        or _mismatch(total, total.with_dtype(sums))
    )


def _tile_dot_problem(
    total: ir.TileRegister, left: ir.TileRegister, right: ir.TileRegister
) -> str | None:
    if len({total, left, right}) < 3:  # noqa: PLR2004 - no operand may be another one
        return "its tiles are not three"
    is_bytes = {left.dtype, right.dtype} <= {"int8", "uint8"}
    if not is_bytes and (left.dtype, right.dtype) != ("uint16", "uint16"):
        return f"there is no product of tiles of {left.dtype} and {right.dtype}"
    return _mismatch(ir.Type(total.dtype), ir.Type(ir.DOT_SUMS[left.dtype]))


def _mismatch(first: ir.Type, *others: ir.Type) -> str | None:
    for other in others:
        if other is not first and other != first:  # most are the very same
            return f"{first} meets {other}"
    return None
