# SPDX-License-Identifier: Apache-2.0
"""The loop-level IR: one kernel is a function over buffers, made of loops and vector operations.

Small and structured. A kernel is a tree: operations in order, loops with a body of operations and
with carried values. A value is assigned once. Every subscript is affine in loop variables and in
other int64 values, with integer coefficients, so that an emitter can fold constants into
displacements. Vectors have a number of logical lanes, which the emitter maps to the machine's.

`builder` makes it, `verifier` checks it, `printer` writes it, `interpreter` runs it in numpy,
and the emitters walk it. Kernels in `codegen.kernels` are written on the builder alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from intarsia.extents import Expression, Size, is_free


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value: a dtype by its numpy name, and a number of lanes (1 is a scalar)."""

    dtype: str
    lanes: int = 1

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.startswith("float")

    @property
    def is_signed(self) -> bool:
        """Whether the elements are signed numbers."""
        return not self.dtype.startswith(("uint", "bool"))

    def with_lanes(self, lanes: int) -> Type:
        """Return the type of as many lanes with the same elements."""
        return Type(self.dtype, lanes)

    def with_dtype(self, dtype: str) -> Type:
        """Return the type of other elements with the same lanes."""
        return Type(dtype, self.lanes)

    def __str__(self) -> str:
        return self.dtype if self.lanes == 1 else f"{self.dtype}x{self.lanes}"


INT64 = Type("int64")
"""The type of subscripts and loop variables."""

_DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64"
DTYPES = tuple(_DTYPES.split())
"""Element types that kernels may use."""


@dataclass(eq=False, slots=True)
class IrValue:
    """What an operation yields, a loop counts, or a kernel is given; compared by identity.

    Attributes:
        type: Its type.
        name: A hint for printing.
    """

    type: Type
    name: str = ""


class Scope(StrEnum):
    """Where a buffer's memory comes from."""

    GLOBAL = "global"  # the caller's: inputs, outputs, constants and scratch alike
    LOCAL = "local"  # the kernel's own, one for each thread that runs an iteration
    SHARED = "shared"  # one for each turn of the grid loop: all work-items of a block see it
    REGISTER = "register"  # one for each work-item; only constants are its subscripts


@dataclass(eq=False, slots=True)
class Buffer:
    """A strided block of memory that a kernel reads or writes.

    Attributes:
        name: Its role in the kernel.
        dtype: Of its elements, by numpy's name.
        shape: Its extents; what a subscript may not leave.
        strides: Elements from one entry to the next, for each dimension. Subscripts along a
            dimension whose stride is free count elements: `Builder` has multiplied them.
        scope: Where its memory comes from.
        align: Bytes to which its first element is aligned.
        is_written: Whether the kernel writes to it.
    """

    name: str
    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    scope: Scope = Scope.GLOBAL
    align: int = 64
    is_written: bool = False

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def is_free(self) -> bool:
        """Whether it has extents or strides that are known only when it runs."""
        return is_free((*self.shape, *self.strides))

    @property
    def span(self) -> Size:
        """Elements from the first entry to the last one, both included."""
        extents = zip(self.shape, self.strides, strict=True)
        return sum(((extent - 1) * stride for extent, stride in extents), 1)

    def flatten(self, subscripts: tuple[Index, ...]) -> Index:
        """Return the offset of an entry from the first one, in elements."""
        const, merged = 0, dict[IrValue, int]()
        for subscript, step in zip(subscripts, self.strides, strict=True):
            stride = 1 if isinstance(step, Expression) else step
            const += subscript.const * stride
            for value, scale in subscript.terms:
                merged[value] = merged.get(value, 0) + scale * stride
        return Index(const, tuple([item for item in merged.items() if item[1]]))


def row_major(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Return the strides, in elements, of a dense row-major block."""
    strides = []
    step: Size = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Index:
    """An affine subscript: a constant plus int64 values times constants.

    While a kernel is written, constants may be free extents, of which `Builder` makes values.
    """

    const: Size = 0
    terms: tuple[tuple[IrValue, Size], ...] = ()

    @classmethod
    def of(cls, item: Subscript) -> Index:
        """Return a number, an int64 value or a subscript as a subscript."""
        if isinstance(item, Index):
            return item
        if isinstance(item, IrValue):
            assert item.type == INT64, f"{item.type} is not a subscript"
            return cls(0, ((item, 1),))
        return cls(item if isinstance(item, Expression) else int(item))

    def __add__(self, other: Subscript) -> Index:
        if isinstance(other, int | Expression):
            return self if other == 0 else Index(self.const + other, self.terms)
        other = Index.of(other)
        if not other.terms:
            return Index(self.const + other.const, self.terms)
        merged = dict(self.terms)
        for value, scale in other.terms:
            merged[value] = merged.get(value, 0) + scale
        terms = tuple((value, scale) for value, scale in merged.items() if scale)
        return Index(self.const + other.const, terms)

    __radd__ = __add__

    def __sub__(self, other: Subscript) -> Index:
        return self + Index.of(other) * -1

    def __rsub__(self, other: Subscript) -> Index:
        return self * -1 + other

    def __mul__(self, factor: Size) -> Index:
        if factor == 0:
            return Index()
        if factor == 1:
            return self
        return Index(
            self.const * factor, tuple((value, scale * factor) for value, scale in self.terms)
        )

    __rmul__ = __mul__


Subscript: TypeAlias = "Index | IrValue | Size"


class LoopKind(StrEnum):
    """How the iterations of a loop are run.

    A kernel for a GPU is a nest of a grid loop, a block loop and perhaps a lane loop, with nothing
    beside them but what has no effects. A turn of the innermost of these is a *work-item*; all of
    one turn of the grid loop are a *block*, and wait for each other at barriers. With a lane loop,
    the turns of the block loop are *warps*: work-item `warp * lanes + lane` is one of a warp's.
    """

    SERIAL = "serial"
    PARALLEL = "parallel"  # independent; the outermost statement of a kernel, at most one
    GRID = "grid"  # independent, and each a block; in the place of a parallel loop
    BLOCK = "block"  # side by side, the only loop of a turn of the grid: work-items, or warps
    LANE = "lane"  # side by side, the only loop of a turn of the block: work-items of a warp


UNARY = frozenset(
    ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "not", "isnan", "bfloat16")
)
"""Unary operations. `rint` rounds halves to even, `not` is bitwise (logical for bool), `isnan`
yields bool. `bfloat16` yields of float32 the bits of the nearest bfloat16, as uint16: ties to even,
NaN stays one, denormals may become 0; as it is for what tiles read, C has no spelling of it."""

UNARY_RESULTS = {"isnan": "bool", "bfloat16": "uint16"}
"""The dtype of what they yield, where it is not that of the operand."""

BINARY = frozenset(
    ("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr", "copysign")
)
"""Binary operations on two values of one type. `div` and `rem` truncate for integers (C's `/` and
`%`; `rem` of floats is C's `fmod`). `max` is `left > right ? left : right`, `min` is
`left < right ? left : right`: both are the right operand if one is NaN. `shr` is arithmetic for
signed integers."""

PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""Comparisons, and how they are written, as in C; of floats they are ordered (false if one is NaN),
but `ne` is unordered (true)."""

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%"}
SYMBOLS |= {"and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
"""The binary operations that are written with an operator, as in C."""

REDUCTIONS = frozenset(("add", "mul", "min", "max", "and", "or"))
"""Horizontal reductions: lane i with lane i + lanes/2, and so on by halves."""


@dataclass(eq=False, frozen=True, slots=True)
class Computed:
    """An operation that yields one value, its `result`."""

    result: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Constant(Computed):
    """A number, in every lane."""

    value: float | int | bool


@dataclass(eq=False, frozen=True, slots=True)
class Unary(Computed):
    """`result = name(operand)`, lane by lane."""

    name: str
    operand: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Binary(Computed):
    """`result = name(left, right)`, lane by lane."""

    name: str
    left: IrValue
    right: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Fma(Computed):
    """`result = left * right + addend`, rounded once where the target has it, lane by lane."""

    left: IrValue
    right: IrValue
    addend: IrValue


DOT_GROUPS = {"int8": 4, "uint8": 4, "int16": 2, "uint16": 2}
"""How many neighbours a lane of a dot product has of each operand, by the dtype of their elements:
32 bits of them. A `uint16` holds the bits of a bfloat16."""

DOT_SUMS = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "float32"}
"""What these products are summed in."""

DOT_BLOCK = 4
"""Lanes of a block of two by two sums; see `Dot`."""


@dataclass(eq=False, frozen=True, slots=True)
class Dot(Computed):
    """`result[i] = addend[i] + sum(left[g * i + j] * right[g * i + j] for j in range(g))`.

    The group `g` is one of `DOT_GROUPS`, its sum's dtype one of `DOT_SUMS`. Bytes may be signed or
    not in each operand; 16-bit elements are of one dtype. Sums of integers wrap, and are exact
    before that. Of bfloat16 the later one of a pair is added first, rounded in between if
    a fused multiply-add does so; denormals may count as 0.

    Or pairs of bytes, one operand unsigned and the other signed, are summed in int16, all of which
    must fit there: instructions differ in what they do with others.

    Where it is blocked, each four lanes are a block of two by two sums, row by row, and an operand
    has for each block two rows, or two columns, of 2 g neighbours:
    `result[4 * n + 2 * r + c] = addend[4 * n + 2 * r + c] + sum(left[(4 * n + 2 * r) * g + j] *
    right[(4 * n + 2 * c) * g + j] for j in range(2 * g))`. Of bfloat16 that has the bits of two
    products that are not, of the first g neighbours and then of the others, as Arm defines it.

    Attributes:
        left: The left operand.
        right: The right operand.
        addend: What the sums are added to.
        fits_pairs: Whether the products of bytes 0 and 1 of each group are known to add up to an
            int16, and those of 2 and 3: then an instruction that saturates there may be used.
        is_blocked: Whether lanes are blocks; sums have 32 bits then.
    """

    left: IrValue
    right: IrValue
    addend: IrValue
    fits_pairs: bool = False
    is_blocked: bool = False

    @property
    def group(self) -> int:
        """Neighbours of a lane."""
        return self.left.type.lanes // self.result.type.lanes


@dataclass(eq=False, frozen=True, slots=True)
class Compare(Computed):
    """`result = left predicate right`, bool, lane by lane."""

    predicate: str
    left: IrValue
    right: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Select(Computed):
    """`result = condition ? left : right`, lane by lane."""

    condition: IrValue
    left: IrValue
    right: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Cast(Computed):
    """Convert to the result's dtype; floats to integers truncate, to bool is `!= 0`."""

    operand: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Bitcast(Computed):
    """Take the bits as another dtype of the same width."""

    operand: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Splat(Computed):
    """Put a scalar into every lane."""

    operand: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class Shuffle(Computed):
    """Pick lanes of two vectors of one type, those of the second counted on after the first."""

    left: IrValue
    right: IrValue
    lanes: tuple[int, ...]


@dataclass(eq=False, frozen=True, slots=True)
class Extract(Computed):
    """Take one lane."""

    operand: IrValue
    lane: int


@dataclass(eq=False, frozen=True, slots=True)
class Reduce(Computed):
    """Combine all lanes to a scalar."""

    name: str
    operand: IrValue


@dataclass(eq=False, frozen=True, slots=True)
class IndexValue(Computed):
    """Make an int64 value of a subscript."""

    index: Index


@dataclass(eq=False, frozen=True, slots=True)
class Load(Computed):
    """Read a scalar, or lanes that lie `stride` elements of memory apart.

    Attributes:
        buffer: From where.
        subscripts: Of lane 0, one for each dimension of the buffer.
        stride: Elements from one lane to the next.
        count: Lanes that are read; the others are 0 and their memory is not touched.
    """

    buffer: Buffer
    subscripts: tuple[Index, ...]
    stride: int
    count: int


@dataclass(eq=False, frozen=True, slots=True)
class Store:
    """Write a scalar, or the first `count` lanes, `stride` elements apart."""

    value: IrValue
    buffer: Buffer
    subscripts: tuple[Index, ...]
    stride: int
    count: int


@dataclass(eq=False, frozen=True, slots=True)
class Prefetch:
    """Ask for a cache line; may name an entry outside the buffer. Changes no result.

    Attributes:
        buffer: Where the line is in.
        subscripts: Of an entry of it.
        is_far: Whether it is for later, and only as near as the second cache.
    """

    buffer: Buffer
    subscripts: tuple[Index, ...]
    is_far: bool = False


TILE_ROWS, TILE_BYTES = 16, 64
"""Of a tile: rows, and bytes of a row. So a tile of sums has 16 columns."""

MOST_TILES = 8
"""Tile registers of a CPU."""


@dataclass(eq=False, frozen=True, slots=True)
class TileRegister:
    """A matrix of `TILE_ROWS` rows of `TILE_BYTES` bytes that products of matrices are made in.

    It is the kernel's own, one for each thread that runs an iteration, like a local buffer: what it
    holds is changed in place. A new turn of the parallel loop finds nothing of use in it.

    Attributes:
        name: Its role in the kernel.
        dtype: Of its elements; a `uint16` holds the bits of a bfloat16.
    """

    name: str
    dtype: str

    @property
    def columns(self) -> int:
        """Elements of a row."""
        return TILE_BYTES // np.dtype(self.dtype).itemsize


@dataclass(eq=False, frozen=True, slots=True)
class TileZero:
    """Fill a tile with zeros."""

    tile: TileRegister


@dataclass(eq=False, frozen=True, slots=True)
class TileLoad:
    """Read a tile.

    Attributes:
        tile: Where to.
        buffer: From where.
        subscripts: Of its first entry.
        stride: Elements of memory from one row to the next.
    """

    tile: TileRegister
    buffer: Buffer
    subscripts: tuple[Index, ...]
    stride: int


@dataclass(eq=False, frozen=True, slots=True)
class TileStore:
    """Write a tile; as `TileLoad`."""

    tile: TileRegister
    buffer: Buffer
    subscripts: tuple[Index, ...]
    stride: int


@dataclass(eq=False, frozen=True, slots=True)
class TileDot:
    """`total[i, j] += sum(left[i, k * g + l] * right[k, j * g + l] for k in 0..15, l in 0..g-1)`.

    The group `g` is one of `DOT_GROUPS`, the sum's dtype one of `DOT_SUMS`, as for `Dot`. A right
    tile has in its row k the neighbours l of each column j side by side. Sums of integers wrap. Of
    bfloat16 the sums over k are made for each l by itself, then added to one another and to the
    total, each step rounded; denormals count as 0.

    Attributes:
        total: What the products are added to.
        left: Rows of groups along k.
        right: Groups along k by columns.
    """

    total: TileRegister
    left: TileRegister
    right: TileRegister


TileOperation: TypeAlias = TileZero | TileLoad | TileStore | TileDot


MMA_LANES, MMA_ROWS, MMA_COLUMNS = 32, 16, 8
"""Of a matrix product of a warp: lanes, rows and columns of its result."""
MMA_DEPTHS = {"float16": 16, "float32": 8}
"""Its steps along k by the dtype of its operands."""


@dataclass(eq=False, frozen=True, slots=True)
class Mma(Computed):
    """`result = left @ right + addend`, one product of matrices for all lanes of a warp.

    The matrices lie in the warp's lanes as PTX has them (NVIDIA, "PTX ISA", "Matrix Fragments for
    mma.m16n8k16 with floating point type", "... for mma.m16n8k8"). Lane `l` has of rows and columns
    `g = l // 4`, `t = l % 4`. Of float16: of `left` (16 x 16, float16x8) row `g`, or `g + 8` for
    elements 2, 3, 6 and 7, and columns `2 * t` and `2 * t + 1`, 8 more from element 4 on; of
    `right` (16 x 8, float16x4) column `g` and rows `2 * t` and `2 * t + 1`, 8 more from element 2
    on. Of float32: of `left` (16 x 8, float32x4) row `g`, or `g + 8` for elements 1 and 3, and
    column `t`, 4 more from element 2 on; of `right` (8 x 8, float32x2) column `g` and row `t`, 4
    more for element 1. Of `addend` and the result (16 x 8, float32x4) row `g`, or `g + 8` from
    element 2 on, and columns `2 * t` and `2 * t + 1`.

    Operands of float32 are rounded to TF32 first: to ten bits behind the leading one, halves away
    from zero. Then products are exact; in which order they are summed, and how a sum is rounded
    meanwhile, is the machine's.
    """

    left: IrValue
    right: IrValue
    addend: IrValue


SHUFFLE_DTYPES = ("float32", "int32", "uint32")
"""What lanes of a warp hand to each other: numbers of 32 bits."""


@dataclass(eq=False, frozen=True, slots=True)
class WarpShuffle(Computed):
    """`result` of lane `l` is what lane `l ^ mask` of its warp has as the operand.

    So is a number handed from one work-item to another without memory that a kernel declares
    (NVIDIA, "PTX ISA", `shfl.sync.bfly`). All work-items of a block come to it, as to a barrier:
    where a device has no such instruction, they meet in shared memory.

    Attributes:
        operand: A scalar of 32 bits.
        mask: Less than the lanes of a warp, which are a power of 2.
    """

    operand: IrValue
    mask: int


@dataclass(eq=False, frozen=True, slots=True)
class Barrier:
    """Let all work-items of a block wait for each other; each sees then what others have written.

    All of them come to it, so it stands in no loop whose turns may differ between them.
    """


@dataclass(eq=False, frozen=True, slots=True)
class Loop:
    """`for variable in range(lower, upper, step)`, with values carried from turn to turn.

    Attributes:
        variable: Counts; int64.
        lower: First value.
        upper: End, exclusive; a loop whose `upper <= lower` does not turn.
        step: At least 1.
        kind: How the turns are run.
        initial: What the carried values are before the first turn.
        carried: What the body knows them as.
        body: Operations of one turn.
        yielded: What they are for the next turn.
        results: What they are after the last.
    """

    variable: IrValue
    lower: Index
    upper: Index
    step: int
    kind: LoopKind
    initial: tuple[IrValue, ...] = ()
    carried: tuple[IrValue, ...] = ()
    body: tuple[Operation, ...] = ()
    yielded: tuple[IrValue, ...] = ()
    results: tuple[IrValue, ...] = ()

    @property
    def trip_count(self) -> int | None:
        """How often it turns, or None if that is known only when it runs."""
        if self.lower.terms or self.upper.terms:
            return None
        turns: int = -(-(self.upper.const - self.lower.const) // self.step)
        return max(0, turns)


Operation: TypeAlias = (
    Constant
    | Unary
    | Binary
    | Fma
    | Dot
    | Compare
    | Select
    | Cast
    | Bitcast
    | Splat
    | Shuffle
    | Extract
    | Reduce
    | IndexValue
    | Load
    | Store
    | Prefetch
    | TileZero
    | TileLoad
    | TileStore
    | TileDot
    | Barrier
    | Mma
    | WarpShuffle
    | Loop
)


@dataclass(eq=False, frozen=True, slots=True)
class Function:
    """One kernel.

    Attributes:
        name: A C identifier.
        buffers: Its arguments in order; no two of them overlap unless neither is written.
        locals: Its own buffers.
        sizes: int64 arguments: extents that are known when it runs.
        body: Operations. Stores are inside the parallel loop, if there is one.
        free: What `sizes` are.
        turns: Of the parallel or grid loop, if they are free.
        tiles: Its tile registers; with any, it runs only where the CPU has them, see `CpuModel`.
    """

    name: str
    buffers: tuple[Buffer, ...]
    locals: tuple[Buffer, ...]
    sizes: tuple[IrValue, ...]
    body: tuple[Operation, ...]
    notes: tuple[str, ...] = field(default=())
    free: tuple[Expression, ...] = ()
    turns: Expression | None = None
    tiles: tuple[TileRegister, ...] = ()

    @property
    def parallel(self) -> Loop | None:
        """The parallel loop, if there is one."""
        return find_loop(self.body, LoopKind.PARALLEL)

    @property
    def grid(self) -> Loop | None:
        """The grid loop, if it is a kernel for a GPU."""
        return find_loop(self.body, LoopKind.GRID)

    @property
    def block(self) -> Loop | None:
        """The block loop of the grid loop, if there is one."""
        grid = self.grid
        return None if grid is None else find_loop(grid.body, LoopKind.BLOCK)

    @property
    def lane(self) -> Loop | None:
        """The lane loop of the block loop, if there is one."""
        block = self.block
        return None if block is None else find_loop(block.body, LoopKind.LANE)

    @property
    def work_items(self) -> int:
        """Work-items of a block; 0 if there is no grid loop."""
        block, lane = self.block, self.lane
        if block is None:
            return 0
        return (block.trip_count or 0) * (1 if lane is None else lane.trip_count or 0)

    @property
    def extent(self) -> Size | None:
        """Turns of the parallel or grid loop (1 without); None if known only when it runs."""
        if self.turns is not None:
            return self.turns
        loop = self.parallel or self.grid
        return 1 if loop is None else loop.trip_count


def find_loop(body: tuple[Operation, ...], kind: LoopKind) -> Loop | None:
    """Return the first loop of a kind that stands in a body itself."""
    for operation in body:
        if isinstance(operation, Loop) and operation.kind is kind:
            return operation
    return None


def operands(operation: Operation) -> tuple[IrValue, ...]:  # noqa: C901, PLR0911 - cases
    """Return the values that an operation reads itself, subscripts included, bodies not."""
    match operation:  # the most frequent first
        case Fma(left=a, right=b, addend=c) | Dot(left=a, right=b, addend=c):
            return (a, b, c)
        case Mma(left=a, right=b, addend=c):
            return (a, b, c)
        case Load(subscripts=subscripts) | Prefetch(subscripts=subscripts):
            return _values(subscripts)
        case TileLoad(subscripts=subscripts) | TileStore(subscripts=subscripts):
            return _values(subscripts)
        case TileZero() | TileDot() | Barrier():
            return ()
        case Binary(left=a, right=b) | Compare(left=a, right=b) | Shuffle(left=a, right=b):
            return (a, b)
        case Constant():
            return ()
        case Splat(operand=a) | Unary(operand=a) | Cast(operand=a) | Bitcast(operand=a):
            return (a,)
        case Store(value=value, subscripts=subscripts):
            return (value, *_values(subscripts))
        case Extract(operand=a) | Reduce(operand=a) | WarpShuffle(operand=a):
            return (a,)
        case Select(condition=a, left=b, right=c):
            return (a, b, c)
        case IndexValue(index=index):
            return _values((index,))
        case Loop(lower=lower, upper=upper, initial=initial):
            return (*_values((lower, upper)), *initial)


def _values(indices: tuple[Index, ...]) -> tuple[IrValue, ...]:
    return tuple([value for index in indices for value, _ in index.terms])


def results(operation: Operation) -> tuple[IrValue, ...]:
    """Return the values that an operation yields."""
    if isinstance(operation, Computed):
        return (operation.result,)
    return operation.results if isinstance(operation, Loop) else ()


def walk(body: tuple[Operation, ...]) -> Iterator[Operation]:
    """Yield every operation, a loop before its body."""
    for operation in body:
        yield operation
        if isinstance(operation, Loop):
            yield from walk(operation.body)
