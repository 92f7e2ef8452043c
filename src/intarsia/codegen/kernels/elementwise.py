# SPDX-License-Identifier: Apache-2.0
"""Kernels that compute each entry from the entries at the same place: also copies and transposes.

The vectors go along the dimension that is contiguous in the first output. An input that is
contiguous along another dimension is read in squares of lanes, transposed in registers: that is
how Transpose and conversions between layouts move memory at nearly the speed of a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from intarsia.codegen.body import Body, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.domain import (
    Axis,
    Domain,
    Entries,
    Ragged,
    boxes,
    length_of,
    plan_axes,
    simplify,
    turns,
    walk,
)
from intarsia.codegen.kernels.lane_transpose import transpose_lanes
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Expression, Size, typical


@dataclass(frozen=True, slots=True)
class Elementwise:
    """One kernel; its arguments are the inputs, then the outputs.

    Attributes:
        domain: The extents that it runs over.
        inputs: Strides may be 0 (broadcast) or negative (the argument is then the address of the
            lowest entry in memory).
        outputs: No stride is 0 where the extent is above 1.
        body: From the inputs to the outputs.
        unit: What the vectors are for.
        ragged: Two dimensions of a blocked layout whose last block is cut short.
    """

    domain: tuple[Size, ...]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    body: Body
    unit: CpuModel = AVX512
    ragged: Ragged | None = None


@dataclass(frozen=True, slots=True)
class ElementwiseSchedule:
    """How a box is walked.

    Attributes:
        lanes: Of a vector, along the last dimension.
        unroll: Vectors of a cell.
        square: The dimension along which some inputs are contiguous, and that is walked in squares
            with the last one; None without such inputs.
        budget: About how many entries one turn of the parallel loop takes.
    """

    lanes: int
    unroll: int = 1
    square: int | None = None
    budget: int = 1 << 14


SPECS = (Elementwise,)


def build(spec: Elementwise) -> Function:
    """Return the kernel."""
    b = Builder("elementwise")
    layouts = (*spec.inputs, *spec.outputs)
    domain = simplify(
        spec.domain, [layout.strides for layout in layouts], _order(spec), spec.ragged
    )
    kernel = _ElementwiseKernel(b, spec, domain)
    if 0 in spec.domain:
        return b.finish_empty()
    parts = []
    for span in boxes(domain):
        schedule = pick_schedule(spec, domain, span)
        parts.append((schedule, kernel.axes(schedule, span)))
    counts = [turns(axes) for _, axes in parts]
    with b.parallel(sum(counts)) as turn:
        first = 0
        for (schedule, axes), count in zip(parts, counts, strict=True):
            if len(parts) == 1:
                kernel.box(schedule, axes, turn)
                break
            # A loop of one turn or none: which box a turn belongs to.
            lower = b.larger(turn, first)
            with b.serial(lower, b.smaller(turn + 1, first + count)) as inside:
                kernel.box(schedule, axes, inside - first)
            first += count
    return b.finish()


def _order(spec: Elementwise) -> list[int]:
    """Return the dimensions in the order in which the first output lies in memory."""
    steps = [typical(step) for step in spec.outputs[0].strides]
    return sorted(range(len(spec.domain)), key=lambda dim: (-steps[dim], dim))


def pick_schedule(
    spec: Elementwise, domain: Domain, span: tuple[Entries, ...]
) -> ElementwiseSchedule:
    """Return how to walk a box of the simplified domain."""
    dtypes = {*spec.body.inputs, *(step.dtype for step in spec.body.steps)}
    widest = max((np.dtype(dtype).itemsize, dtype) for dtype in dtypes)[1]
    lanes = spec.unit.lanes(widest)
    lengths = [typical(length_of(entries)) for entries in span]
    last = len(lengths) - 1
    steps = len(spec.body.steps)
    budget = 1 << 14 if steps <= _SHORT_BODY else 1 << 12
    square = _square_dim(domain, len(spec.inputs), lengths, lanes)
    if any(
        isinstance(strides[last], Expression) and (square is None or strides[square] != 1)
        for strides in domain.strides
    ):  # one after the other: lanes of a vector lie a known number of entries apart
        lanes, square = 1, None
    if square is not None:
        # A square and its transpose are in registers together.
        lanes = min(lanes, spec.unit.registers // 2, _covering(min(lengths[last], lengths[square])))
        return ElementwiseSchedule(lanes, 1, square, budget)
    moved = {layout.dtype for layout in spec.outputs}
    moved |= {
        item.dtype
        for item, steps_of in zip(spec.inputs, domain.strides, strict=False)
        if steps_of[last]
    }
    if steps <= _BYTES_BODY and {np.dtype(dtype).itemsize for dtype in moved} == {1}:
        lanes = spec.unit.lanes("uint8")
    lanes = min(lanes, _covering(lengths[last]))
    # Short bodies are bound by loads and by the loop; several vectors share its counter.
    unroll = max(1, _SHORT_BODY // max(1, steps))
    return ElementwiseSchedule(lanes, min(unroll, -(-lengths[last] // lanes)), None, budget)


def _square_dim(domain: Domain, inputs: int, lengths: list[int], lanes: int) -> int | None:
    """Return the dimension along which most inputs that are strided along the last one lie."""
    last = len(lengths) - 1
    votes = [0] * last
    for strides in domain.strides[:inputs]:
        if strides[last] not in (0, 1):
            for dim in range(last):
                votes[dim] += strides[dim] == 1 and lengths[dim] > 1
    best = max(range(last), key=votes.__getitem__, default=0)
    has_area = lanes > 1 and last > 0 and lengths[best] * lengths[last] >= 2 * lanes
    return best if has_area and votes[best] else None


def _covering(length: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(0, length - 1).bit_length()


_SHORT_BODY = 4
"""Operators whose loop is worth unrolling, and whose turns of the parallel loop may be long."""

_BYTES_BODY = 32

_LINES = 4
"""Squares along each side of a block: what they touch stays in the first cache."""


class _ElementwiseKernel:
    def __init__(self, builder: Builder, spec: Elementwise, domain: Domain) -> None:
        self._b = builder
        self._spec = spec
        self._domain = domain
        self._signed = domain.strides  # the buffers' are positive
        count = len(spec.inputs)
        self._inputs = self._declare("x", spec.inputs, domain.strides[:count], is_written=False)
        self._outputs = self._declare("y", spec.outputs, domain.strides[count:], is_written=True)
        self._splats: dict[int, IrValue] = {}

    def _declare(
        self,
        name: str,
        layouts: tuple[Layout, ...],
        strides: tuple[tuple[Size, ...], ...],
        *,
        is_written: bool,
    ) -> list[Buffer]:
        buffers = []
        for number, (layout, steps) in enumerate(zip(layouts, strides, strict=True)):
            lying = replace(layout, strides=tuple(abs(step) for step in steps))
            buffers.append(
                lying.declare(
                    self._b, f"{name}{number}", self._domain.extents, is_written=is_written
                )
            )
        return buffers

    def axes(self, schedule: ElementwiseSchedule, span: tuple[Entries, ...]) -> list[Axis]:
        last = len(span) - 1
        if schedule.square is None:
            grains = {last: schedule.lanes * schedule.unroll}
            return plan_axes(span, range(len(span)), grains, schedule.budget)
        order = [dim for dim in range(last) if dim != schedule.square]
        grains = {last: schedule.lanes, schedule.square: schedule.lanes}
        limit = max(schedule.lanes, 16) * _LINES
        limits = {last: limit, schedule.square: limit}
        return plan_axes(span, (*order, schedule.square, last), grains, schedule.budget, limits)

    def box(self, schedule: ElementwiseSchedule, axes: list[Axis], turn: Index) -> None:
        """Append the loops over one box."""
        last = len(self._domain.extents) - 1

        def enter(number: int, at: dict[int, Index]) -> None:
            if number == len(axes) - 1 and schedule.square is None:
                self._load_splats({**at, last: Index(axes[-1].start)}, schedule.lanes)

        def cell(at: dict[int, Index], counts: dict[int, int]) -> None:
            if schedule.square is None:
                self._vectors(at, counts[last], schedule.lanes)
            else:
                self._squares(at, counts, schedule)

        walk(self._b, axes, turn, cell, enter)

    def _load_splats(self, at: dict[int, Index], lanes: int) -> None:
        """Read before the innermost loop what does not change inside it."""
        self._splats = {}
        for number, buffer in enumerate(self._inputs):
            if buffer.strides[-1] == 0:
                scalar = self._b.load(buffer, self._place(number, at))
                self._splats[number] = self._b.splat(scalar, lanes)

    def _place(self, number: int, at: dict[int, Index]) -> tuple[Index, ...]:
        """Return the subscripts of a tensor, counting backwards where its stride is negative."""
        return tuple(
            extent - 1 - at[dim] if self._signed[number][dim] < 0 else at[dim]
            for dim, extent in enumerate(self._domain.extents)
        )

    def _vectors(self, at: dict[int, Index], length: int, lanes: int) -> None:
        """Compute entries along the last dimension, a vector at a time."""
        last = len(self._domain.extents) - 1
        for start in range(0, length, lanes):
            here = {**at, last: at[last] + start}
            count = min(lanes, length - start)
            values = [self._load(number, here, lanes, count) for number in range(len(self._inputs))]
            self._finish(values, here, count)

    def _load(self, number: int, at: dict[int, Index], lanes: int, count: int) -> IrValue:
        if number in self._splats:
            return self._splats[number]
        b, buffer, last = self._b, self._inputs[number], len(self._domain.extents) - 1
        step = self._signed[number][last]
        if step == 0 or lanes == 1:
            return b.splat(b.load(buffer, self._place(number, at)), lanes)
        # A vector that runs backwards is read forwards from its other end and turned round.
        if step == -1:
            lowest = self._place(number, {**at, last: at[last] + (count - 1)})
            value = b.load(buffer, lowest, lanes, count=count)
            return b.shuffle(value, value, [max(count - 1 - lane, 0) for lane in range(lanes)])
        return b.load(buffer, self._place(number, at), lanes, stride=step, count=count)

    def _finish(self, values: list[IrValue], at: dict[int, Index], count: int) -> None:
        """Compute the outputs and write them."""
        first = len(self._inputs)
        for number, result in enumerate(self._spec.body.evaluate(self._b, values)):
            buffer = self._outputs[number]
            place = self._place(first + number, at)
            stride = buffer.strides[-1] if result.type.lanes > 1 else 1
            self._b.store(result, buffer, place, stride=stride or 1, count=count)

    def _squares(
        self, at: dict[int, Index], counts: dict[int, int], schedule: ElementwiseSchedule
    ) -> None:
        """Compute a square: its inputs that are contiguous across are transposed."""
        square, last = schedule.square, len(self._domain.extents) - 1
        assert square is not None
        self._splats = {}
        across = {
            number: self._across(number, at, counts, schedule)
            for number in range(len(self._inputs))
            if self._signed[number][square] == 1 and self._signed[number][last] not in (0, 1)
        }
        for row in range(counts[square]):
            here = {**at, square: at[square] + row}
            values = [
                across[number][row]
                if number in across
                else self._load(number, here, schedule.lanes, counts[last])
                for number in range(len(self._inputs))
            ]
            self._finish(values, here, counts[last])

    def _across(
        self,
        number: int,
        at: dict[int, Index],
        counts: dict[int, int],
        schedule: ElementwiseSchedule,
    ) -> list[IrValue]:
        """Read vectors across, one for each entry along the last dimension, and transpose them."""
        square, last = schedule.square, len(self._domain.extents) - 1
        assert square is not None
        b, buffer, lanes = self._b, self._inputs[number], schedule.lanes
        rows = []
        for entry in range(counts[last]):
            place = self._place(number, {**at, last: at[last] + entry})
            rows.append(self._row(buffer, place, lanes, counts[square]))
        # A square needs as many rows as lanes.
        rows += [rows[0]] * (lanes - len(rows))  # what these lanes hold is not written
        columns = transpose_lanes(b, rows)
        if buffer.dtype == "bool":
            return [b.cast(column, "bool") for column in columns]
        if buffer.dtype == "float16":
            return [b.bitcast(column, "float16") for column in columns]
        return columns

    def _row(self, buffer: Buffer, place: tuple[Index, ...], lanes: int, count: int) -> IrValue:
        """Read a vector as what shuffles well."""
        value = self._b.load(buffer, place, lanes, count=count)
        if buffer.dtype == "float16":
            return self._b.bitcast(value, "uint16")
        return self._b.cast(value, "uint8") if buffer.dtype == "bool" else value
