# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN: all steps of a sequence in one kernel.

The products of the inputs with their weights are made before, of all steps at once. What is left
for each step is a product of the last state with the recurrent weights, in register tiles whose
columns are the gates of the same hidden entries: so that a tile's sums are all that its cells
need. A turn of the parallel loop takes some rows of the batch through all steps.

Source:
    ONNX operators LSTM, GRU and RNN. What they leave open is done as in ONNX Runtime: values are
    clipped before a gate's activation, with its bias and peephole; the last states of a sequence
    without steps are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from intarsia.codegen import maths
from intarsia.codegen.body import Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.window import Split
from intarsia.codegen.scalar_ops import apply_scalar
from intarsia.codegen.tile import mma_step, tile_rows
from intarsia.codegen.unit import AVX512, CpuModel

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Gates of each operator, in ONNX's order: i, o, f, c; z, r, h; i."""

_CHAINS = 8
"""Sums that a row alone has in registers: fewer wait for themselves."""


@dataclass(frozen=True, slots=True)
class GateFunction:
    """A function of a gate.

    Attributes:
        name: An operator of ONNX that works element by element, `Affine` or `ScaledTanh`.
        numbers: Its attributes by name, sorted.
    """

    name: str
    numbers: tuple[tuple[str, float], ...] = ()

    def emit(self, b: Builder, x: IrValue) -> IrValue:
        """Append it to a kernel."""
        numbers = dict(self.numbers)
        if self.name == "Affine":
            return b.add(b.mul(x, numbers["alpha"]), numbers["beta"])
        if self.name == "ScaledTanh":
            return b.mul(maths.tanh(b, b.mul(x, numbers["beta"])), numbers["alpha"])
        return apply_scalar(b, self.name, [x], numbers, x.type.dtype)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The steps of an LSTM, GRU or RNN.

    Attributes:
        op_type: Of `GATES`.
        directions: 1 or 2.
        steps: Of the sequence.
        batch: Sequences.
        hidden: Entries of a state.
        tensors: Its arguments in order, by name; `domains` says what they are.
        activations: Of the gates (f), of the candidate (g), and for LSTM of the cell (h).
        is_reversed: Whether the only direction goes from the last step to the first; of two the
            second one does.
        is_linear_first: GRU's `linear_before_reset`.
        is_coupled: LSTM's `input_forget`.
        clip: What activations are given is in `[-clip, clip]`; None for no limit.
        shares: Turns of the parallel loop that each direction is wanted to have.
        unit: What it is shaped for.
    """

    op_type: str
    directions: int
    steps: int
    batch: int
    hidden: int
    tensors: tuple[tuple[str, Layout], ...]
    activations: tuple[GateFunction, ...]
    is_reversed: bool = False
    is_linear_first: bool = False
    is_coupled: bool = False
    clip: float | None = None
    shares: int = 1
    unit: CpuModel = AVX512


SPECS = (Recurrence,)


def columns(unit: CpuModel, dtype: str, hidden: int) -> int:
    """Return how many hidden entries a block of the recurrent weights has."""
    return min(unit.lanes(dtype), 1 << max(0, hidden - 1).bit_length())


def products(op_type: str, *, is_linear_first: bool) -> tuple[range, ...]:
    """Return the gates of each product of a state with recurrent weights: two for most GRUs."""
    if op_type == "GRU" and not is_linear_first:
        return range(2), range(2, 3)
    return (range(GATES[op_type]),)


WRITTEN = frozenset(("y", "y_h", "y_c", "h", "c", "z", "reset"))


def domains(spec: Recurrence, dtype: str) -> dict[str, tuple[int, ...]]:
    """Return what each argument is over, by name.

    `x` is the product of inputs and weights with the biases, `r0` and `r1` the recurrent weights of
    each of `products`, in blocks of columns; `bias` GRU's for the candidate's product where that
    is linear before the reset. Of `initial_h`, `initial_c`, `peepholes`, `bias`, `lengths` (int32),
    `y`, `y_h` and `y_c` those are there that the operator has. `h` (two states), `c` of LSTM, `z`
    and `reset` of a GRU with two products are the kernel's own memory.
    """
    whole = (spec.directions, spec.batch, spec.hidden)
    width = columns(spec.unit, dtype, spec.hidden)
    blocks = -(-spec.hidden // width)
    weights = {
        f"r{number}": (spec.directions, blocks, spec.hidden, len(gates), width)
        for number, gates in enumerate(products(spec.op_type, is_linear_first=spec.is_linear_first))
    }
    return {
        "x": (spec.directions, spec.steps, spec.batch, GATES[spec.op_type], spec.hidden),
        **weights,
        **dict.fromkeys(("initial_h", "initial_c", "y_h", "y_c", "c", "z", "reset"), whole),
        "peepholes": (spec.directions, 3, spec.hidden),
        "bias": (spec.directions, spec.hidden),
        "lengths": (spec.batch,),
        "y": (spec.directions, spec.steps, spec.batch, spec.hidden),
        "h": (spec.directions, 2, spec.batch, spec.hidden),
    }


def build(spec: Recurrence) -> Function:
    """Return the kernel; its arguments are the tensors."""
    return _RecurrenceKernel(spec).function()


@dataclass(frozen=True, slots=True)
class _Cells:
    """A block of hidden entries for the rows of a tile, at one step.

    Attributes:
        direction: Which one.
        time: Which step of the sequence.
        row: The first one.
        rows: How many.
        block: Of entries.
        entry: The block's first one.
        count: Entries that count; None means all.
        before: Which half of `h` the last state is in.
    """

    direction: Index
    time: Index
    row: Index
    rows: int
    block: Index
    entry: Index
    count: int | None
    before: Index


_Place: TypeAlias = tuple[Index, ...]
_Tiles: TypeAlias = Callable[[], Iterator[tuple[Index, int]]]
"""Opens a loop over the tiles of a turn; gives the first row of each, and how many there are."""


class _RecurrenceKernel:
    def __init__(self, spec: Recurrence) -> None:
        self.spec = spec
        self.b = b = Builder(spec.op_type.lower())
        self.dtype = dict(spec.tensors)["x"].dtype
        extents = domains(spec, self.dtype)
        self.tensors = {
            name: layout.declare(b, name, extents[name], is_written=name in WRITTEN)
            for name, layout in spec.tensors
        }
        self.lanes = columns(spec.unit, self.dtype, spec.hidden)
        # Rounding must not depend on how rows are shared: so chains only where there is one row.
        self.is_alone = spec.batch == 1
        most = 1 if self.is_alone else tile_rows(GATES[spec.op_type], spec.unit)
        self.tiles = Split.of(spec.batch, max(1, min(most, -(-spec.batch // spec.shares))))

    def function(self) -> Function:
        b, spec = self.b, self.spec
        b.note(f"{spec.steps} steps of {spec.batch} x {spec.hidden}, {spec.directions} directions")
        chunks = Split.of(self.tiles.count, -(-self.tiles.count // spec.shares))
        entries = spec.directions * spec.batch * spec.hidden
        for direction, chunk in each_turn(b, (spec.directions, chunks.count), entries):
            begin, end = Index(0), Index(self.tiles.count)
            if chunks.count > 1:
                begin, end = chunks.begin(b, chunk), chunks.begin(b, chunk + 1)

            def each_tile(begin: Index = begin, end: Index = end) -> Iterator[tuple[Index, int]]:
                for rows, row in self.tiles.each(b, begin, end):
                    yield row, rows

            self._start(direction, each_tile)
            with b.serial(0, spec.steps) as step:
                before = b.split(step, 2)[1]
                time = self._time(direction, step)
                self._step(direction, time, before, each_tile)
            self._finish(direction, each_tile)
        return b.finish()

    def _time(self, direction: Index, step: Index) -> Index:
        """Return which step of the sequence comes next."""
        b, spec = self.b, self.spec
        from_end = spec.steps - 1 - step
        if spec.directions == 1:
            return from_end if spec.is_reversed else step
        is_second = b.compare("eq", b.index(direction), 1)
        return Index.of(b.select(is_second, b.index(from_end), b.index(step)))

    # States

    def _start(self, direction: Index, each_tile: _Tiles) -> None:
        """Write the initial states."""
        for row, rows in each_tile():
            for entry, lanes, count in self._vectors():
                for r in range(rows):
                    at = (direction, row + r, entry)
                    for name, place in (("h", (direction, Index(), row + r, entry)), ("c", at)):
                        if name in self.tensors:
                            value = self._read_or_zero(f"initial_{name}", at, lanes, count)
                            store_lanes(self.b, value, self.tensors[name], place, count)

    def _finish(self, direction: Index, each_tile: _Tiles) -> None:
        """Write the last states to where they are wanted."""
        last = Index(self.spec.steps % 2)
        for row, rows in each_tile():
            for entry, lanes, count in self._vectors():
                for r in range(rows):
                    at = (direction, row + r, entry)
                    for name, place in (("h", (direction, last, row + r, entry)), ("c", at)):
                        if f"y_{name}" in self.tensors:
                            value = load_lanes(self.b, self.tensors[name], place, lanes, count)
                            is_any = self._is_inside(Index(), row + r)
                            if is_any is not None:
                                value = self.b.select(is_any, value, 0.0)
                            store_lanes(self.b, value, self.tensors[f"y_{name}"], at, count)

    def _vectors(self) -> Iterator[tuple[Index, int, int | None]]:
        """Give the first entry of each block of a state, its lanes, and how many count."""
        for _, entry, count in self._blocks():
            yield entry, self.lanes, count

    def _blocks(self) -> Iterator[tuple[Index, Index, int | None]]:
        """Open a loop over blocks of hidden entries; gives its number, first entry, and count."""
        whole, rest = divmod(self.spec.hidden, self.lanes)
        if whole:
            with self.b.serial(0, whole) as block:
                yield block, block * self.lanes, None
        if rest:
            yield Index(whole), Index(whole * self.lanes), rest

    def _read_or_zero(self, name: str, at: _Place, lanes: int, count: int | None) -> IrValue:
        if name in self.tensors:
            return load_lanes(self.b, self.tensors[name], at, lanes, count)
        return self.b.constant(0, Type(self.dtype, lanes))

    # Steps

    def _step(self, direction: Index, time: Index, before: Index, each_tile: _Tiles) -> None:
        """Append a step: all rows for each block, while its weights are near."""
        for number in range(len(products(self.spec.op_type, is_linear_first=self.is_linear))):
            for block, entry, count in self._blocks():
                for row, rows in each_tile():
                    cells = _Cells(direction, time, row, rows, block, entry, count, before)
                    sums = self._sums(cells, number)
                    gates = len(sums) // rows
                    for r in range(rows):
                        self._cell(cells, row + r, sums[r * gates : (r + 1) * gates], number)

    @property
    def is_linear(self) -> bool:
        return self.spec.is_linear_first

    def _sums(self, cells: _Cells, number: int) -> list[IrValue]:
        """Return the products of a state with recurrent weights, for each row and gate."""
        b, hidden = self.b, self.spec.hidden
        weights = self.tensors[f"r{number}"]
        gates = weights.shape[-2]
        size = cells.rows * gates
        chains = max(1, _CHAINS // gates) if self.is_alone else 1

        def products_at(k: Index, sums: Sequence[IrValue]) -> list[IrValue]:
            def scalar(r: int) -> IrValue:
                row = cells.row + r
                if number:
                    return b.load(self.tensors["reset"], (cells.direction, row, k))
                return b.load(self.tensors["h"], (cells.direction, cells.before, row, k))

            def vector(gate: int) -> IrValue:
                at = (cells.direction, cells.block, k, Index(gate), Index())
                return load_lanes(b, weights, at, self.lanes, cells.count)

            return mma_step(b, sums, cells.rows, gates, scalar, vector)

        def step(k: Index, *sums: IrValue) -> list[IrValue]:
            following: list[IrValue] = []
            for chain in range(len(sums) // size):
                following += products_at(k + chain, sums[chain * size : (chain + 1) * size])
            return following

        zero = b.constant(0, Type(self.dtype, self.lanes))
        whole = hidden // chains * chains
        sums = b.loop(0, whole, [zero] * (size * chains), step, step=chains)
        while len(sums) > size:  # by halves: the order is the same for every row
            half = len(sums) // size // 2 * size
            pairs = zip(sums[:half], sums[half : 2 * half], strict=True)
            sums = [b.add(left, right) for left, right in pairs] + sums[2 * half :]
        return b.loop(whole, hidden, sums, step) if whole < hidden else sums

    def _cell(self, cells: _Cells, row: Index, sums: list[IrValue], number: int) -> None:
        """Append what becomes of one row's sums."""
        if self.spec.op_type == "LSTM":
            self._lstm(cells, row, sums)
        elif self.spec.op_type == "RNN":
            (candidate,) = self._with_inputs(cells, row, sums, 0)
            self._write(cells, row, self._activate(0, candidate))
        elif number or self.is_linear:
            self._gru(cells, row, sums)
        else:
            z, r = (self._activate(0, x) for x in self._with_inputs(cells, row, sums, 0))
            at = (cells.direction, row, cells.entry)
            reset = self.b.mul(r, self._last(cells, row))
            store_lanes(self.b, z, self.tensors["z"], at, cells.count)
            store_lanes(self.b, reset, self.tensors["reset"], at, cells.count)

    def _gru(self, cells: _Cells, row: Index, sums: list[IrValue]) -> None:
        b = self.b
        if self.is_linear:
            z, r = (self._activate(0, x) for x in self._with_inputs(cells, row, sums[:2], 0))
            place = (cells.direction, cells.entry)
            bias = self._read_or_zero("bias", place, self.lanes, cells.count)
            product = b.mul(r, b.add(sums[2], bias))
        else:
            at = (cells.direction, row, cells.entry)
            z = load_lanes(b, self.tensors["z"], at, self.lanes, cells.count)
            (product,) = sums
        (candidate,) = self._with_inputs(cells, row, [product], 2)
        candidate = self._activate(1, candidate)
        old = self._last(cells, row)
        self._write(cells, row, b.fma(z, old, b.mul(b.sub(1.0, z), candidate)))

    def _lstm(self, cells: _Cells, row: Index, sums: list[IrValue]) -> None:
        b, at = self.b, (cells.direction, row, cells.entry)
        i, o, f, candidate = self._with_inputs(cells, row, sums, 0)
        old = load_lanes(b, self.tensors["c"], at, self.lanes, cells.count)
        i = self._activate(0, self._peep(cells, 0, i, old))
        if self.spec.is_coupled:
            f = b.sub(1.0, i)
        else:
            f = self._activate(0, self._peep(cells, 2, f, old))
        c = b.fma(f, old, b.mul(i, self._activate(1, candidate)))
        o = self._activate(0, self._peep(cells, 1, o, c))
        h = b.mul(o, self.spec.activations[2].emit(b, c))
        is_inside = self._is_inside(cells.time, row)
        if is_inside is not None:
            c = b.select(is_inside, c, old)
        store_lanes(b, c, self.tensors["c"], at, cells.count)
        self._write(cells, row, h)

    def _peep(self, cells: _Cells, gate: int, x: IrValue, c: IrValue) -> IrValue:
        """Add what a gate sees of the cell."""
        if "peepholes" not in self.tensors:
            return x
        at = (cells.direction, Index(gate), cells.entry)
        return self.b.fma(
            load_lanes(self.b, self.tensors["peepholes"], at, self.lanes, cells.count), c, x
        )

    def _with_inputs(
        self, cells: _Cells, row: Index, sums: list[IrValue], first: int
    ) -> list[IrValue]:
        """Add the products of the inputs to those of the state, from a gate on."""
        places = [
            (cells.direction, cells.time, row, Index(first + gate), cells.entry)
            for gate in range(len(sums))
        ]
        inputs = [
            load_lanes(self.b, self.tensors["x"], at, self.lanes, cells.count) for at in places
        ]
        return [self.b.add(x, total) for x, total in zip(inputs, sums, strict=True)]

    def _activate(self, number: int, x: IrValue) -> IrValue:
        clip = self.spec.clip
        if clip is not None:
            x = self.b.minimum(clip, self.b.maximum(-clip, x))
        return self.spec.activations[number].emit(self.b, x)

    def _last(self, cells: _Cells, row: Index) -> IrValue:
        at = (cells.direction, cells.before, row, cells.entry)
        return load_lanes(self.b, self.tensors["h"], at, self.lanes, cells.count)

    def _is_inside(self, time: Index, row: Index) -> IrValue | None:
        """Tell whether a sequence has a step; None where all have."""
        if "lengths" not in self.tensors:
            return None
        b = self.b
        length = b.cast(b.load(self.tensors["lengths"], (row,)), "int64")
        return b.compare("lt", b.index(time), length)

    def _write(self, cells: _Cells, row: Index, h: IrValue) -> None:
        """Write a state, and the result of the step: beyond a sequence 0, and the state stays."""
        b, result = self.b, h
        is_inside = self._is_inside(cells.time, row)
        if is_inside is not None:
            h, result = b.select(is_inside, h, self._last(cells, row)), b.select(is_inside, h, 0.0)
        place = (cells.direction, 1 - cells.before, row, cells.entry)
        store_lanes(b, h, self.tensors["h"], place, cells.count)
        if "y" in self.tensors:
            at = (cells.direction, cells.time, row, cells.entry)
            store_lanes(b, result, self.tensors["y"], at, cells.count)
