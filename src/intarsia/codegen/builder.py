# SPDX-License-Identifier: Apache-2.0
"""Makes kernels of the loop-level IR.

Methods append to the innermost open block. Numbers and scalars become constants and splats of what
they meet, so that kernel code reads like arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import TypeAlias

from intarsia.codegen import ir
from intarsia.extents import Expression, Size, UndecidedError

Number: TypeAlias = "float | int | bool"
Operand: TypeAlias = "ir.IrValue | Expression | float | int | bool"
Position: TypeAlias = "ir.Subscript | Sequence[ir.Subscript]"
Body: TypeAlias = "Callable[..., Sequence[ir.IrValue] | None]"


class Builder:
    """Makes one kernel.

    Args:
        name: Of the kernel, a C identifier.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._buffers: list[ir.Buffer] = []
        self._locals: list[ir.Buffer] = []
        self._tiles: list[ir.TileRegister] = []
        self._sizes: dict[Expression, ir.IrValue] = {}
        self._turns: Expression | None = None
        self._is_free = False
        self._blocks: list[list[ir.Operation]] = [[]]
        self._notes: list[str] = []

    def finish(self) -> ir.Function:
        """Return the kernel."""
        (body,) = self._blocks
        return ir.Function(
            self.name,
            tuple(self._buffers),
            tuple(self._locals),
            tuple(self._sizes.values()),
            tuple(body),
            tuple(self._notes),
            tuple(self._sizes),
            self._turns,
            tuple(self._tiles),
        )

    def finish_empty(self) -> ir.Function:
        """Return the kernel, of which no turn is to be run."""
        with self.parallel(0):
            pass
        return self.finish()

    def note(self, text: str) -> None:
        """Add a comment that stands above the printed kernel."""
        self._notes.append(text)

    # Memory

    def argument(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Size],
        strides: Sequence[Size] | None = None,
        *,
        is_written: bool = False,
        align: int | None = None,
    ) -> ir.Buffer:
        """Declare the next argument; strides are in elements, row-major unless given.

        It is aligned to one element unless `align` (bytes) says more.
        """
        strides = tuple(strides) if strides is not None else ir.row_major(tuple(shape))
        buffer = ir.Buffer(name, dtype, tuple(shape), strides, is_written=is_written)
        buffer.align = align or buffer.item_bytes
        self._is_free |= buffer.is_free
        self._buffers.append(buffer)
        return buffer

    def local(self, name: str, dtype: str, shape: Sequence[int], align: int = 64) -> ir.Buffer:
        """Declare a dense buffer of the kernel's own, of at most some tens of kilobytes."""
        return self._own(name, dtype, shape, ir.Scope.LOCAL, align)

    def shared(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        align: int = 16,
    ) -> ir.Buffer:
        """Declare a buffer that all work-items of a block see; row-major unless strides say so."""
        buffer = self._own(name, dtype, shape, ir.Scope.SHARED, align)
        buffer.strides = tuple(strides) if strides is not None else buffer.strides
        return buffer

    def registers(self, name: str, dtype: str, shape: Sequence[int]) -> ir.Buffer:
        """Declare a dense buffer of each work-item's own, whose subscripts are constants."""
        return self._own(name, dtype, shape, ir.Scope.REGISTER, 16)

    def _own(
        self, name: str, dtype: str, shape: Sequence[int], scope: ir.Scope, align: int
    ) -> ir.Buffer:
        shape = tuple(shape)
        strides = ir.row_major(shape)
        buffer = ir.Buffer(name, dtype, shape, strides, scope, align, is_written=True)
        self._locals.append(buffer)
        return buffer

    def _size(self, extent: Expression) -> ir.IrValue:
        """Return an extent that is known only when the kernel runs: an argument of it."""
        self._is_free = True
        if extent not in self._sizes:
            self._sizes[extent] = ir.IrValue(ir.INT64, f"s{len(self._sizes)}")
        return self._sizes[extent]

    def _valued(self, item: ir.Subscript) -> ir.Index:
        """Return a subscript in which free extents are values."""
        index = ir.Index.of(item)
        is_known = not isinstance(index.const, Expression)
        if is_known and not any(isinstance(scale, Expression) for _, scale in index.terms):
            return index
        result = ir.Index(index.const)
        if isinstance(index.const, Expression):  # `n + 1` and `n + 2` are one value
            known = index.const.known_part
            free = index.const - known
            assert isinstance(free, Expression)
            result = ir.Index.of(self._size(free)) + known
        for value, scale in index.terms:
            if isinstance(scale, Expression):
                product = ir.Binary(ir.IrValue(ir.INT64), "mul", value, self._size(scale))
                result = result + self._append(product)
            else:
                result = result + ir.Index(0, ((value, scale),))
        return result

    def load(
        self,
        buffer: ir.Buffer,
        position: Position,
        lanes: int = 1,
        *,
        stride: Size = 1,
        count: int | None = None,
    ) -> ir.IrValue:
        """Read a scalar, or `lanes` lanes `stride` elements of memory apart, the first `count`."""
        result = ir.IrValue(ir.Type(buffer.dtype, lanes))
        count = lanes if count is None else count
        stride = stride if lanes > 1 else 1
        check_lanes(stride)
        return self._append(
            ir.Load(result, buffer, self._position(buffer, position), stride, count)
        )

    def store(
        self,
        value: ir.IrValue,
        buffer: ir.Buffer,
        position: Position,
        *,
        stride: Size = 1,
        count: int | None = None,
    ) -> None:
        """Write a scalar, or the first `count` lanes, `stride` elements of memory apart."""
        assert buffer.is_written, f"{buffer.name} is only read"
        assert value.type.dtype == buffer.dtype, f"{value.type} into {buffer.dtype} {buffer.name}"
        stride = stride if value.type.lanes > 1 else 1
        check_lanes(stride)
        count = value.type.lanes if count is None else count
        place = self._position(buffer, position)
        self._blocks[-1].append(ir.Store(value, buffer, place, stride, count))

    def prefetch(self, buffer: ir.Buffer, position: Position, *, is_far: bool = False) -> None:
        """Ask for the cache line of an entry, which may lie outside the buffer.

        Args:
            buffer: Where the entry is in.
            position: Of the entry.
            is_far: Whether it is for later, and only as near as the second cache.
        """
        self._blocks[-1].append(ir.Prefetch(buffer, self._position(buffer, position), is_far))

    def barrier(self) -> None:
        """Let all work-items of a block wait for each other."""
        self._blocks[-1].append(ir.Barrier())

    # Tiles

    def tile(self, name: str, dtype: str) -> ir.TileRegister:
        """Declare a tile register; a kernel has eight at most."""
        tile = ir.TileRegister(name, dtype)
        self._tiles.append(tile)
        return tile

    def tile_zero(self, tile: ir.TileRegister) -> None:
        """Fill a tile with zeros."""
        self._blocks[-1].append(ir.TileZero(tile))

    def tile_load(
        self, tile: ir.TileRegister, buffer: ir.Buffer, position: Position, stride: int
    ) -> None:
        """Read a tile whose first entry is at a position, and rows `stride` elements apart."""
        self._blocks[-1].append(ir.TileLoad(tile, buffer, self._position(buffer, position), stride))

    def tile_store(
        self, tile: ir.TileRegister, buffer: ir.Buffer, position: Position, stride: int
    ) -> None:
        """Write a tile; as `tile_load`."""
        self._blocks[-1].append(
            ir.TileStore(tile, buffer, self._position(buffer, position), stride)
        )

    def tile_dot(
        self, total: ir.TileRegister, left: ir.TileRegister, right: ir.TileRegister
    ) -> None:
        """Add the product of two tiles to a third; see `ir.TileDot`."""
        self._blocks[-1].append(ir.TileDot(total, left, right))

    def _position(self, buffer: ir.Buffer, position: Position) -> tuple[ir.Index, ...]:
        items = position if isinstance(position, Sequence) else (position,)
        subscripts = tuple(ir.Index.of(item) for item in items)
        assert len(subscripts) == len(buffer.shape), f"{buffer.name} has rank {len(buffer.shape)}"
        if not self._is_free and all(type(index.const) is int for index in subscripts):
            return subscripts
        return tuple(
            self._valued(index * stride if isinstance(stride, Expression) else index)
            for index, stride in zip(subscripts, buffer.strides, strict=True)
        )

    # Values

    def constant(self, value: Number, type_: ir.Type) -> ir.IrValue:
        """Return a number in every lane."""
        number = bool(value) if type_.dtype == "bool" else value
        number = float(number) if type_.is_float else number
        return self._append(ir.Constant(ir.IrValue(type_), number))

    def index(self, index: ir.Subscript) -> ir.IrValue:
        """Return an int64 value of a subscript."""
        index = self._valued(index)
        if not index.terms:
            return self.constant(index.const, ir.INT64)
        if index.const == 0 and len(index.terms) == 1 and index.terms[0][1] == 1:
            return index.terms[0][0]
        return self._append(ir.IndexValue(ir.IrValue(ir.INT64), index))

    def split(self, index: ir.Subscript, divisor: Size) -> tuple[ir.Index, ir.Index]:
        """Return quotient and remainder of a subscript that is not negative."""
        index = ir.Index.of(index)
        if not index.terms and isinstance(divisor, int):
            return ir.Index(index.const // divisor), ir.Index(index.const % divisor)
        if divisor == 1:
            return index, ir.Index()
        value = self.index(index)
        number = self.index(divisor)
        quotient = self._append(ir.Binary(ir.IrValue(ir.INT64), "div", value, number))
        return ir.Index.of(quotient), index - ir.Index.of(quotient) * divisor

    def unravel(self, index: ir.Subscript, shape: Sequence[Size]) -> list[ir.Index]:
        """Return the subscripts of an entry of a row-major box by its number."""
        subscripts = []
        rest = ir.Index.of(index)
        for extent in reversed(list(shape)[1:]):
            rest, last = self.split(rest, extent)
            subscripts.append(last)
        return [rest, *reversed(subscripts)]

    def smaller(self, left: ir.Subscript, right: ir.Subscript) -> ir.Index:
        """Return the smaller subscript."""
        return self._either("min", left, right)

    def larger(self, left: ir.Subscript, right: ir.Subscript) -> ir.Index:
        """Return the larger subscript."""
        return self._either("max", left, right)

    def _either(self, name: str, left: ir.Subscript, right: ir.Subscript) -> ir.Index:
        left, right = ir.Index.of(left), ir.Index.of(right)
        if not left.terms and not right.terms:
            pick = min if name == "min" else max
            try:
                return ir.Index(pick(left.const, right.const))
            except UndecidedError:
                pass  # the kernel finds out
        return ir.Index.of(self.binary(name, self.index(left), self.index(right)))

    def unary(self, name: str, operand: ir.IrValue) -> ir.IrValue:
        """Apply one of `ir.UNARY`."""
        assert name in ir.UNARY, name
        dtype = ir.UNARY_RESULTS.get(name, operand.type.dtype)
        return self._append(ir.Unary(ir.IrValue(operand.type.with_dtype(dtype)), name, operand))

    def binary(self, name: str, left: Operand, right: Operand) -> ir.IrValue:
        """Apply one of `ir.BINARY`; a number or scalar becomes what the other operand is."""
        assert name in ir.BINARY, name
        left, right = self._match(left, right)
        return self._append(ir.Binary(ir.IrValue(left.type), name, left, right))

    def add(self, left: Operand, right: Operand) -> ir.IrValue:
        """Return the sum."""
        return self.binary("add", left, right)

    def sub(self, left: Operand, right: Operand) -> ir.IrValue:
        """Return the difference."""
        return self.binary("sub", left, right)

    def mul(self, left: Operand, right: Operand) -> ir.IrValue:
        """Return the product."""
        return self.binary("mul", left, right)

    def div(self, left: Operand, right: Operand) -> ir.IrValue:
        """Return the quotient."""
        return self.binary("div", left, right)

    def minimum(self, left: Operand, right: Operand) -> ir.IrValue:
        """Return the smaller one; see `ir.BINARY` for NaN."""
        return self.binary("min", left, right)

    def maximum(self, left: Operand, right: Operand) -> ir.IrValue:
        """Return the larger one; see `ir.BINARY` for NaN."""
        return self.binary("max", left, right)

    def fma(self, left: Operand, right: Operand, addend: Operand) -> ir.IrValue:
        """Return `left * right + addend`."""
        model = next(item for item in (left, right, addend) if isinstance(item, ir.IrValue))
        for item in (left, right, addend):
            if isinstance(item, ir.IrValue) and item.type.lanes > 1:
                model = item
        left, right, addend = (self._as(item, model.type) for item in (left, right, addend))
        return self._append(ir.Fma(ir.IrValue(model.type), left, right, addend))

    def dot(
        self,
        left: ir.IrValue,
        right: ir.IrValue,
        addend: ir.IrValue,
        *,
        fits_pairs: bool = False,
        is_blocked: bool = False,
    ) -> ir.IrValue:
        """Return the addend plus the products of a lane's neighbours; see `ir.Dot`."""
        result = ir.IrValue(addend.type)
        return self._append(ir.Dot(result, left, right, addend, fits_pairs, is_blocked))

    def mma(self, left: ir.IrValue, right: ir.IrValue, addend: ir.IrValue) -> ir.IrValue:
        """Return the product of a warp's matrices plus a third; see `ir.Mma`."""
        return self._append(ir.Mma(ir.IrValue(addend.type), left, right, addend))

    def warp_shuffle(self, operand: ir.IrValue, mask: int) -> ir.IrValue:
        """Return what the lane `mask` away has, by exclusive or; see `ir.WarpShuffle`."""
        return self._append(ir.WarpShuffle(ir.IrValue(operand.type), operand, mask))

    def compare(self, predicate: str, left: Operand, right: Operand) -> ir.IrValue:
        """Compare by one of `ir.PREDICATES`."""
        assert predicate in ir.PREDICATES, predicate
        left, right = self._match(left, right)
        return self._append(
            ir.Compare(ir.IrValue(left.type.with_dtype("bool")), predicate, left, right)
        )

    def select(self, condition: ir.IrValue, left: Operand, right: Operand) -> ir.IrValue:
        """Return `left` where the condition holds, else `right`."""
        if not isinstance(left, ir.IrValue) and not isinstance(right, ir.IrValue):
            raise TypeError("select needs a value")
        left, right = self._match(left, right)
        lanes = max(condition.type.lanes, left.type.lanes)
        type_ = left.type.with_lanes(lanes)
        condition = self._as(condition, ir.Type("bool", lanes))
        left, right = self._as(left, type_), self._as(right, type_)
        return self._append(ir.Select(ir.IrValue(type_), condition, left, right))

    def cast(self, operand: ir.IrValue, dtype: str) -> ir.IrValue:
        """Convert to a dtype."""
        if operand.type.dtype == dtype:
            return operand
        if operand.type.dtype == "float64" and dtype == "float16":
            operand = self.cast(operand, "float32")  # CPUs have no instruction for both at once
        return self._append(ir.Cast(ir.IrValue(operand.type.with_dtype(dtype)), operand))

    def bitcast(self, operand: ir.IrValue, dtype: str) -> ir.IrValue:
        """Take the bits as another dtype of the same width."""
        return self._append(ir.Bitcast(ir.IrValue(operand.type.with_dtype(dtype)), operand))

    def splat(self, operand: ir.IrValue, lanes: int) -> ir.IrValue:
        """Put a scalar into every lane; a vector stays."""
        if operand.type.lanes == lanes:
            return operand
        assert operand.type.lanes == 1, f"{operand.type} has lanes already"
        return self._append(ir.Splat(ir.IrValue(operand.type.with_lanes(lanes)), operand))

    def shuffle(self, left: ir.IrValue, right: ir.IrValue, lanes: Sequence[int]) -> ir.IrValue:
        """Pick lanes of two vectors."""
        result = ir.IrValue(left.type.with_lanes(len(lanes)))
        return self._append(ir.Shuffle(result, left, right, tuple(lanes)))

    def extract(self, operand: ir.IrValue, lane: int) -> ir.IrValue:
        """Take one lane."""
        return self._append(ir.Extract(ir.IrValue(operand.type.with_lanes(1)), operand, lane))

    def reduce(self, name: str, operand: ir.IrValue) -> ir.IrValue:
        """Combine all lanes by one of `ir.REDUCTIONS`; a scalar stays."""
        assert name in ir.REDUCTIONS, name
        if operand.type.lanes == 1:
            return operand
        return self._append(ir.Reduce(ir.IrValue(operand.type.with_lanes(1)), name, operand))

    def _match(self, left: Operand, right: Operand) -> tuple[ir.IrValue, ir.IrValue]:
        """Return both with one type: the vector's, if there is one."""
        models = [item for item in (left, right) if isinstance(item, ir.IrValue)]
        model = max(models, key=lambda item: item.type.lanes)
        return self._as(left, model.type), self._as(right, model.type)

    def _as(self, item: Operand, type_: ir.Type) -> ir.IrValue:
        if isinstance(item, Expression):
            item = self.cast(self.index(item), type_.dtype)
        if not isinstance(item, ir.IrValue):
            return self.constant(item, type_)
        assert item.type.dtype == type_.dtype, f"{item.type} meets {type_}"
        return self.splat(item, type_.lanes)

    def _append(self, operation: ir.Operation) -> ir.IrValue:
        self._blocks[-1].append(operation)
        return operation.result  # type: ignore[union-attr] # only what yields one comes here

    def interleave(self, parts: Iterable[Callable[[], None]]) -> None:
        """Append what independent parts append, by turns an operation of each.

        A CPU sees some hundreds of operations ahead: so it finds more to do at the same time.
        """
        blocks = []
        for part in parts:
            self._blocks.append([])
            part()
            blocks.append(self._blocks.pop())
        for turn in zip_longest(*blocks):
            self._blocks[-1] += [operation for operation in turn if operation is not None]

    # Loops

    @contextmanager
    def serial(self, lower: ir.Subscript, upper: ir.Subscript, step: int = 1) -> Iterator[ir.Index]:
        """Open a loop that carries nothing; gives the variable."""
        with self._open(ir.LoopKind.SERIAL, lower, upper, step) as index:
            yield index

    @contextmanager
    def parallel(self, extent: ir.Subscript) -> Iterator[ir.Index]:
        """Open the kernel's one parallel loop; its turns are independent."""
        assert len(self._blocks) == 1, "the parallel loop is the outermost"
        if isinstance(extent, Expression):
            self._turns = extent
        with self._open(ir.LoopKind.PARALLEL, 0, extent, 1) as index:
            yield index

    @contextmanager
    def grid(self, blocks: ir.Subscript) -> Iterator[ir.Index]:
        """Open the loop over the blocks of a kernel for a GPU; a block loop is to follow."""
        assert len(self._blocks) == 1, "the grid loop is the outermost"
        if isinstance(blocks, Expression):
            self._turns = blocks
        with self._open(ir.LoopKind.GRID, 0, blocks, 1) as index:
            yield index

    @contextmanager
    def block(self, extent: int) -> Iterator[ir.Index]:
        """Open the loop over a block's work-items, or over its warps if a lane loop follows."""
        with self._open(ir.LoopKind.BLOCK, 0, extent, 1) as index:
            yield index

    @contextmanager
    def lane(self, lanes: int) -> Iterator[ir.Index]:
        """Open the loop over the work-items of a warp."""
        with self._open(ir.LoopKind.LANE, 0, lanes, 1) as index:
            yield index

    @contextmanager
    def _open(
        self, kind: ir.LoopKind, lower: ir.Subscript, upper: ir.Subscript, step: int
    ) -> Iterator[ir.Index]:
        variable = ir.IrValue(ir.INT64)
        lower, upper = self._valued(lower), self._valued(upper)
        self._blocks.append([])
        yield ir.Index.of(variable)
        body = tuple(self._blocks.pop())
        self._blocks[-1].append(ir.Loop(variable, lower, upper, step, kind, body=body))

    def loop(
        self,
        lower: ir.Subscript,
        upper: ir.Subscript,
        initial: Sequence[ir.IrValue],
        body: Body,
        *,
        step: int = 1,
    ) -> list[ir.IrValue]:
        """Append a loop that carries values, and return what they are after it.

        Args:
            lower: First value of the variable.
            upper: Its end, exclusive.
            initial: The carried values before the first turn.
            body: From the variable (a subscript) and the carried values to the next ones.
            step: At least 1.
        """
        variable = ir.IrValue(ir.INT64)
        lower, upper = self._valued(lower), self._valued(upper)
        carried = tuple(ir.IrValue(value.type) for value in initial)
        self._blocks.append([])
        yielded = tuple(body(ir.Index.of(variable), *carried) or ())
        inside = tuple(self._blocks.pop())
        types = [value.type for value in initial]
        assert [value.type for value in yielded] == types, "a loop yields what it carries"
        results = tuple(ir.IrValue(value.type) for value in initial)
        initial = tuple(initial)
        kind = ir.LoopKind.SERIAL
        self._blocks[-1].append(
            ir.Loop(variable, lower, upper, step, kind, initial, carried, inside, yielded, results)
        )
        return list(results)

    @contextmanager
    def where(self, condition: ir.IrValue) -> Iterator[None]:
        """Open a block that runs if a scalar condition holds: a loop of one turn or none."""
        upper = ir.Index.of(self.cast(condition, "int64"))
        with self.serial(0, upper):
            yield


def check_lanes(stride: Size) -> None:
    """Check that the lanes of a vector lie a known number of elements apart.

    Raises:
        UndecidedError: They do not.
    """
    if isinstance(stride, Expression):
        raise UndecidedError(f"the lanes of a vector would lie {stride} elements apart")
