# SPDX-License-Identifier: Apache-2.0
"""Makes kernels of the loop-level IR.

Methods append to the innermost open block. Numbers and scalars become constants and splats of what
they meet, so that kernel code reads like arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from intarsia.codegen.ir import (
    BINARY,
    INT64,
    PREDICATES,
    REDUCTIONS,
    UNARY,
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Compare,
    Constant,
    Extract,
    Fma,
    Function,
    Index,
    IndexValue,
    IrValue,
    Load,
    Loop,
    LoopKind,
    Operation,
    Prefetch,
    Reduce,
    Scope,
    Select,
    Shuffle,
    Splat,
    Store,
    Subscript,
    Type,
    Unary,
    row_major,
)

Number: TypeAlias = "float | int | bool"
Operand: TypeAlias = "IrValue | float | int | bool"
Position: TypeAlias = "Subscript | Sequence[Subscript]"
Body: TypeAlias = "Callable[..., Sequence[IrValue] | None]"


class Builder:
    """Makes one kernel.

    Args:
        name: Of the kernel, a C identifier.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._buffers: list[Buffer] = []
        self._locals: list[Buffer] = []
        self._sizes: list[IrValue] = []
        self._blocks: list[list[Operation]] = [[]]
        self._notes: list[str] = []

    def finish(self) -> Function:
        """Return the kernel."""
        (body,) = self._blocks
        return Function(
            self.name,
            tuple(self._buffers),
            tuple(self._locals),
            tuple(self._sizes),
            tuple(body),
            tuple(self._notes),
        )

    def note(self, text: str) -> None:
        """Add a comment that stands above the printed kernel."""
        self._notes.append(text)

    # Memory

    def argument(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        *,
        is_written: bool = False,
        align: int | None = None,
    ) -> Buffer:
        """Declare the next argument; strides are in elements, row-major unless given.

        It is aligned to one element unless `align` (bytes) says more.
        """
        strides = tuple(strides) if strides is not None else row_major(tuple(shape))
        buffer = Buffer(name, dtype, tuple(shape), strides, is_written=is_written)
        buffer.align = align or buffer.item_bytes
        self._buffers.append(buffer)
        return buffer

    def local(self, name: str, dtype: str, shape: Sequence[int], align: int = 64) -> Buffer:
        """Declare a dense buffer of the kernel's own, of at most some tens of kilobytes."""
        shape = tuple(shape)
        buffer = Buffer(name, dtype, shape, row_major(shape), Scope.LOCAL, align, is_written=True)
        self._locals.append(buffer)
        return buffer

    def size(self, name: str) -> Index:
        """Declare the next extent that is known only when the kernel runs."""
        value = IrValue(INT64, name)
        self._sizes.append(value)
        return Index.of(value)

    def load(
        self,
        buffer: Buffer,
        position: Position,
        lanes: int = 1,
        *,
        stride: int = 1,
        count: int | None = None,
    ) -> IrValue:
        """Read a scalar, or `lanes` lanes `stride` elements of memory apart, the first `count`."""
        result = IrValue(Type(buffer.dtype, lanes))
        count = lanes if count is None else count
        return self._append(Load(result, buffer, self._position(buffer, position), stride, count))

    def store(
        self,
        value: IrValue,
        buffer: Buffer,
        position: Position,
        *,
        stride: int = 1,
        count: int | None = None,
    ) -> None:
        """Write a scalar, or the first `count` lanes, `stride` elements of memory apart."""
        assert buffer.is_written, f"{buffer.name} is only read"
        assert value.type.dtype == buffer.dtype, f"{value.type} into {buffer.dtype} {buffer.name}"
        count = value.type.lanes if count is None else count
        place = self._position(buffer, position)
        self._blocks[-1].append(Store(value, buffer, place, stride, count))

    def prefetch(self, buffer: Buffer, position: Position, *, is_far: bool = False) -> None:
        """Ask for the cache line of an entry, which may lie outside the buffer.

        Args:
            buffer: Where the entry is in.
            position: Of the entry.
            is_far: Whether it is for later, and only as near as the second cache.
        """
        self._blocks[-1].append(Prefetch(buffer, self._position(buffer, position), is_far))

    def _position(self, buffer: Buffer, position: Position) -> tuple[Index, ...]:
        items = position if isinstance(position, Sequence) else (position,)
        subscripts = tuple(Index.of(item) for item in items)
        assert len(subscripts) == len(buffer.shape), f"{buffer.name} has rank {len(buffer.shape)}"
        return subscripts

    # Values

    def constant(self, value: Number, type_: Type) -> IrValue:
        """Return a number in every lane."""
        number = bool(value) if type_.dtype == "bool" else value
        number = float(number) if type_.is_float else number
        return self._append(Constant(IrValue(type_), number))

    def index(self, index: Subscript) -> IrValue:
        """Return an int64 value of a subscript."""
        index = Index.of(index)
        if not index.terms:
            return self.constant(index.const, INT64)
        if index.const == 0 and len(index.terms) == 1 and index.terms[0][1] == 1:
            return index.terms[0][0]
        return self._append(IndexValue(IrValue(INT64), index))

    def split(self, index: Subscript, divisor: int) -> tuple[Index, Index]:
        """Return quotient and remainder of a subscript that is not negative."""
        index = Index.of(index)
        if not index.terms:
            return Index(index.const // divisor), Index(index.const % divisor)
        if divisor == 1:
            return index, Index()
        value = self.index(index)
        number = self.constant(divisor, INT64)
        quotient = self._append(Binary(IrValue(INT64), "div", value, number))
        return Index.of(quotient), index - Index.of(quotient) * divisor

    def unravel(self, index: Subscript, shape: Sequence[int]) -> list[Index]:
        """Return the subscripts of an entry of a row-major box by its number."""
        subscripts = []
        rest = Index.of(index)
        for extent in reversed(list(shape)[1:]):
            rest, last = self.split(rest, extent)
            subscripts.append(last)
        return [rest, *reversed(subscripts)]

    def smaller(self, left: Subscript, right: Subscript) -> Index:
        """Return the smaller subscript."""
        return self._either("min", left, right)

    def larger(self, left: Subscript, right: Subscript) -> Index:
        """Return the larger subscript."""
        return self._either("max", left, right)

    def _either(self, name: str, left: Subscript, right: Subscript) -> Index:
        left, right = Index.of(left), Index.of(right)
        if not left.terms and not right.terms:
            pick = min if name == "min" else max
            return Index(pick(left.const, right.const))
        return Index.of(self.binary(name, self.index(left), self.index(right)))

    def unary(self, name: str, operand: IrValue) -> IrValue:
        """Apply one of `ir.UNARY`."""
        assert name in UNARY, name
        dtype = "bool" if name == "isnan" else operand.type.dtype
        return self._append(Unary(IrValue(operand.type.with_dtype(dtype)), name, operand))

    def binary(self, name: str, left: Operand, right: Operand) -> IrValue:
        """Apply one of `ir.BINARY`; a number or scalar becomes what the other operand is."""
        assert name in BINARY, name
        left, right = self._match(left, right)
        return self._append(Binary(IrValue(left.type), name, left, right))

    def add(self, left: Operand, right: Operand) -> IrValue:
        """Return the sum."""
        return self.binary("add", left, right)

    def sub(self, left: Operand, right: Operand) -> IrValue:
        """Return the difference."""
        return self.binary("sub", left, right)

    def mul(self, left: Operand, right: Operand) -> IrValue:
        """Return the product."""
        return self.binary("mul", left, right)

    def div(self, left: Operand, right: Operand) -> IrValue:
        """Return the quotient."""
        return self.binary("div", left, right)

    def minimum(self, left: Operand, right: Operand) -> IrValue:
        """Return the smaller one; see `ir.BINARY` for NaN."""
        return self.binary("min", left, right)

    def maximum(self, left: Operand, right: Operand) -> IrValue:
        """Return the larger one; see `ir.BINARY` for NaN."""
        return self.binary("max", left, right)

    def fma(self, left: Operand, right: Operand, addend: Operand) -> IrValue:
        """Return `left * right + addend`."""
        model = next(item for item in (left, right, addend) if isinstance(item, IrValue))
        for item in (left, right, addend):
            if isinstance(item, IrValue) and item.type.lanes > 1:
                model = item
        left, right, addend = (self._as(item, model.type) for item in (left, right, addend))
        return self._append(Fma(IrValue(model.type), left, right, addend))

    def compare(self, predicate: str, left: Operand, right: Operand) -> IrValue:
        """Compare by one of `ir.PREDICATES`."""
        assert predicate in PREDICATES, predicate
        left, right = self._match(left, right)
        return self._append(Compare(IrValue(left.type.with_dtype("bool")), predicate, left, right))

    def select(self, condition: IrValue, left: Operand, right: Operand) -> IrValue:
        """Return `left` where the condition holds, else `right`."""
        if not isinstance(left, IrValue) and not isinstance(right, IrValue):
            raise TypeError("select needs a value")
        left, right = self._match(left, right)
        lanes = max(condition.type.lanes, left.type.lanes)
        type_ = left.type.with_lanes(lanes)
        condition = self._as(condition, Type("bool", lanes))
        left, right = self._as(left, type_), self._as(right, type_)
        return self._append(Select(IrValue(type_), condition, left, right))

    def cast(self, operand: IrValue, dtype: str) -> IrValue:
        """Convert to a dtype."""
        if operand.type.dtype == dtype:
            return operand
        if operand.type.dtype == "float64" and dtype == "float16":
            operand = self.cast(operand, "float32")  # CPUs have no instruction for both at once
        return self._append(Cast(IrValue(operand.type.with_dtype(dtype)), operand))

    def bitcast(self, operand: IrValue, dtype: str) -> IrValue:
        """Take the bits as another dtype of the same width."""
        return self._append(Bitcast(IrValue(operand.type.with_dtype(dtype)), operand))

    def splat(self, operand: IrValue, lanes: int) -> IrValue:
        """Put a scalar into every lane; a vector stays."""
        if operand.type.lanes == lanes:
            return operand
        assert operand.type.lanes == 1, f"{operand.type} has lanes already"
        return self._append(Splat(IrValue(operand.type.with_lanes(lanes)), operand))

    def shuffle(self, left: IrValue, right: IrValue, lanes: Sequence[int]) -> IrValue:
        """Pick lanes of two vectors."""
        result = IrValue(left.type.with_lanes(len(lanes)))
        return self._append(Shuffle(result, left, right, tuple(lanes)))

    def extract(self, operand: IrValue, lane: int) -> IrValue:
        """Take one lane."""
        return self._append(Extract(IrValue(operand.type.with_lanes(1)), operand, lane))

    def reduce(self, name: str, operand: IrValue) -> IrValue:
        """Combine all lanes by one of `ir.REDUCTIONS`; a scalar stays."""
        assert name in REDUCTIONS, name
        if operand.type.lanes == 1:
            return operand
        return self._append(Reduce(IrValue(operand.type.with_lanes(1)), name, operand))

    def _match(self, left: Operand, right: Operand) -> tuple[IrValue, IrValue]:
        """Return both with one type: the vector's, if there is one."""
        models = [item for item in (left, right) if isinstance(item, IrValue)]
        model = max(models, key=lambda item: item.type.lanes)
        return self._as(left, model.type), self._as(right, model.type)

    def _as(self, item: Operand, type_: Type) -> IrValue:
        if not isinstance(item, IrValue):
            return self.constant(item, type_)
        assert item.type.dtype == type_.dtype, f"{item.type} meets {type_}"
        return self.splat(item, type_.lanes)

    def _append(self, operation: Operation) -> IrValue:
        self._blocks[-1].append(operation)
        return operation.result  # type: ignore[union-attr] # only what yields one comes here

    # Loops

    @contextmanager
    def serial(self, lower: Subscript, upper: Subscript, step: int = 1) -> Iterator[Index]:
        """Open a loop that carries nothing; gives the variable."""
        with self._open(LoopKind.SERIAL, lower, upper, step) as index:
            yield index

    @contextmanager
    def parallel(self, extent: Subscript) -> Iterator[Index]:
        """Open the kernel's one parallel loop; its turns are independent."""
        assert len(self._blocks) == 1, "the parallel loop is the outermost"
        with self._open(LoopKind.PARALLEL, 0, extent, 1) as index:
            yield index

    @contextmanager
    def _open(
        self, kind: LoopKind, lower: Subscript, upper: Subscript, step: int
    ) -> Iterator[Index]:
        variable = IrValue(INT64)
        self._blocks.append([])
        yield Index.of(variable)
        body = self._blocks.pop()
        loop = Loop(
            variable, Index.of(lower), Index.of(upper), step, kind, (), (), tuple(body), (), ()
        )
        self._blocks[-1].append(loop)

    def loop(
        self,
        lower: Subscript,
        upper: Subscript,
        initial: Sequence[IrValue],
        body: Body,
        *,
        step: int = 1,
        kind: LoopKind = LoopKind.SERIAL,
    ) -> list[IrValue]:
        """Append a loop that carries values, and return what they are after it.

        Args:
            lower: First value of the variable.
            upper: Its end, exclusive.
            initial: The carried values before the first turn.
            body: From the variable (a subscript) and the carried values to the next ones.
            step: At least 1.
            kind: How the turns are run.
        """
        variable = IrValue(INT64)
        carried = tuple(IrValue(value.type) for value in initial)
        self._blocks.append([])
        yielded = tuple(body(Index.of(variable), *carried) or ())
        operations = tuple(self._blocks.pop())
        types = [value.type for value in initial]
        assert [value.type for value in yielded] == types, "a loop yields what it carries"
        results = tuple(IrValue(value.type) for value in initial)
        self._blocks[-1].append(
            Loop(
                variable,
                Index.of(lower),
                Index.of(upper),
                step,
                kind,
                tuple(initial),
                carried,
                operations,
                yielded,
                results,
            )
        )
        return list(results)

    @contextmanager
    def where(self, condition: IrValue) -> Iterator[None]:
        """Open a block that runs if a scalar condition holds: a loop of one turn or none."""
        upper = Index.of(self.cast(condition, "int64"))
        with self.serial(0, upper):
            yield
