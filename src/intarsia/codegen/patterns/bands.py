# SPDX-License-Identifier: Apache-2.0
"""Convolutions that follow each other, computed together: a band of rows of an image at a time.

What lies between a pointwise and a depthwise convolution is often larger than a cache. Computed in
bands it never leaves it: the bands of a chain share one small buffer. Rows that two bands need are
moved from its end to its begin. The kernels are those of each convolution alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.kernels.convolution import ConvKind
from intarsia.codegen.kernels.window import Split, Window
from intarsia.codegen.kernels.winograd.schedules import choose_winograd
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.convolution import (
    ConvProblem,
    append_conv,
    conv_kind,
    conv_problem,
    conv_window,
    read_conv,
)
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.recipes import over
from intarsia.codegen.lower.views import Pads, View, outer
from intarsia.codegen.lower.windows import read_conv_window
from intarsia.codegen.patterns.shape import FusedShape, GroupChain
from intarsia.codegen.unit import CpuModel
from intarsia.extents import is_free

_SPATIAL = 2
"""The first spatial dimension, and how many there are in a chain."""
_FAR_CACHES = 1
"""What lies between convolutions and takes so many second caches is read from beyond them.

On Sapphire Rapids MobileNetV2 got 1.04 to 1.11 times as fast with one image, and 1.3 with eight."""
_LEAST_ROWS = 7
"""Fewest rows of a band: with fewer, too many are computed twice."""


def _is_conv(operation: Operation, kind: ConvKind, unit: CpuModel) -> bool:
    """Tell whether it is a convolution of images, not empty, for a kernel of a kind."""
    if operation.op_type != "Conv":
        return False
    groups = 1 if kind is ConvKind.DIRECT else operation.shape()[1]
    return (
        len(operation.output_shape) == _SPATIAL + 2
        and 0 not in operation.output_shape
        and conv_kind(operation, unit) is kind
        and operation.attribute("group", 1) == groups
    )


def _is_first(operation: Operation, unit: CpuModel) -> bool:
    """Tell whether bands pay for what a direct convolution makes.

    Its result is far larger than caches, its weights are not, and Winograd's transforms are not a
    choice.
    """
    # Bands of all images are calls of their own, so that their number has to be known.
    if is_free(operation.output_shape) or not _is_conv(operation, ConvKind.DIRECT, unit):
        return False
    batch, inputs = operation.shape()[:2]
    outputs = operation.output_shape[1]
    weight_bytes = 4 * math.prod(operation.shape(1))
    result_bytes = 4 * math.prod(operation.output_shape)
    return (
        result_bytes >= _FAR_CACHES * unit.l2_bytes
        # Every band reads all weights again: they should stay in half of the second cache.
        and 2 * weight_bytes <= unit.l2_bytes
        and choose_winograd(conv_window(operation), batch, 1, inputs, outputs, unit) is None
    )


def _is_depthwise(operation: Operation, unit: CpuModel) -> bool:
    """Tell whether it is a depthwise convolution whose windows all meet a row of its input."""
    if not _is_conv(operation, ConvKind.DEPTHWISE, unit):
        return False
    attributes = read_conv_window(operation)
    reach = (attributes.kernel[0] - 1) * attributes.dilations[0]
    return max(attributes.pads[0]) <= reach


def _is_pointwise(operation: Operation, unit: CpuModel) -> bool:
    is_direct = _is_conv(operation, ConvKind.DIRECT, unit)
    return is_direct and conv_window(operation).kernel == (1, 1)


@dataclass(frozen=True, slots=True)
class _RowRange:
    """Rows `first` to `end` of a tensor; those below 0 or beyond it are padding."""

    first: int
    end: int

    def inside(self, extent: int) -> _RowRange:
        return _RowRange(max(self.first, 0), min(self.end, extent))


def _read_rows(window: Window, before: int, rows: _RowRange) -> _RowRange:
    """Return which rows some rows of a result are made of."""
    first = rows.first * window.strides[0] - before
    taps = (window.kernel[0] - 1) * window.dilations[0] + 1
    return _RowRange(first, first + (rows.end - rows.first - 1) * window.strides[0] + taps)


def _lower(assembler: Assembler, chain: GroupChain) -> None:
    """Append the calls of a chain, band by band."""
    operations = [group.anchor for group in chain]
    x, y = read_conv(assembler, operations[0]), assembler.target(chain[-1].result)
    batch = y.shape[0]
    bands = _bands(chain, assembler.unit)
    plans = [_needs(operations, _RowRange(first, end)) for first, end in bands]
    views = [x]
    for number, operation in enumerate(operations[1:], start=1):
        depth = max(plan[number].end - plan[number].first for plan in plans)
        shape = (1, operation.shape()[1], depth, operation.shape()[3])
        views.append(_buffer(assembler, shape, _columns(operation)))
    full = [conv_problem(assembler, group, views[number], y) for number, group in enumerate(chain)]
    for image in range(batch):
        for before, plan in zip([None, *plans], plans, strict=False):
            # With one band the zeros of the image before are still there.
            is_new = image == 0 or len(bands) > 1
            _append_band(assembler, chain, full, image, plan, before, is_new=is_new)


def _bands(chain: GroupChain, unit: CpuModel) -> list[tuple[int, int]]:
    """Return rows of the last result, in bands whose buffers fit the second cache."""
    height = chain[-1].anchor.output_shape[_SPATIAL]
    image_bytes = sum(4 * math.prod(group.anchor.output_shape[1:]) for group in chain[:-1])
    wanted = min(-(-image_bytes // unit.l2_bytes), max(1, height // _LEAST_ROWS))
    # Equal bands need one kernel for each convolution, others two.
    count = next((n for n in range(wanted, wanted + 3) if height % n == 0), wanted)
    return [(begin, begin + run.size) for run in Split(height, count).runs for begin in run.begins]


def _needs(operations: Sequence[Operation], rows: _RowRange) -> list[_RowRange]:
    """Return the rows that each convolution reads for rows of the last result, and these."""
    needed = [rows]
    for operation in reversed(operations):
        pads = read_conv_window(operation).pads
        inside = needed[0].inside(operation.output_shape[_SPATIAL])
        needed.insert(0, _read_rows(conv_window(operation), pads[0][0], inside))
    return needed


def _columns(operation: Operation) -> Pads:
    """Return the border of a band: only columns, as rows of padding differ from band to band."""
    return ((0, 0), read_conv_window(operation).pads[1])


def _buffer(assembler: Assembler, shape: tuple[int, ...], pads: Pads) -> View:
    """Return memory for a band, its border included."""
    view = assembler.scratch("float32", shape, assembler.lanes, pads)
    return outer(view, pads)


def _append_band(
    assembler: Assembler,
    chain: GroupChain,
    full: Sequence[ConvProblem],
    image: int,
    plan: Sequence[_RowRange],
    before: Sequence[_RowRange] | None,
    *,
    is_new: bool,
) -> None:
    """Append the calls for one band of one image; a plan is what `_needs` returns."""
    last = len(chain) - 1
    for number, (group, problem) in enumerate(zip(chain, full, strict=True)):
        height = group.anchor.output_shape[_SPATIAL]
        results = plan[number + 1].inside(height)
        if number == 0 and before is not None:  # what the others make is read by one band each
            kept = _RowRange(results.first, before[1].inside(height).end)
            moved = plan[1].first - before[1].first
            if 0 < kept.end - kept.first <= moved and kept.end < results.end:
                _keep_rows(assembler, full[1].x, kept, before[1], plan[1])
                results = replace(results, first=kept.end)
        window = replace(problem.window, out=(results.end - results.first, problem.window.out[1]))
        reach = (1, problem.x.shape[1], *window.reach)
        if number == 0:
            first = results.first * window.strides[0]
            x = replace(_at(problem.x, image, first), shape=reach)
        else:
            x = replace(problem.x, shape=reach)
        if number == last:
            y = _rows(_at(problem.y, image, results.first), window)
        else:
            buffer, needs = full[number + 1].x, plan[number + 1]
            ((_, _), (left, _)) = _columns(chain[number + 1].anchor)
            y = _rows(buffer.at((0, 0, results.first - needs.first, left, 0)), window)
            if is_new:
                _clear_rows(assembler, buffer, needs, plan[number + 1].inside(height))
        operands = tuple(
            _rows(_at(view, image, results.first), window) for view in problem.operands
        )
        fused = over(problem.epilogue, operands)
        banded = replace(problem, x=x, y=y, window=window, epilogue=fused, operands=operands)
        append_conv(assembler, group, banded)


def _at(view: View, image: int, row: int) -> View:
    """Return what begins at a row of an image."""
    return view.at((image, 0, row, 0, *[0] * bool(view.block)))


def _rows(view: View, window: Window) -> View:
    """Return the rows from the first one on that a window yields."""
    return replace(view, shape=(1, view.shape[1], *window.out))


def _keep_rows(
    assembler: Assembler, x: View, kept: _RowRange, before: _RowRange, now: _RowRange
) -> None:
    """Move rows of a buffer to where the next band has them.

    Computed anew, they were a quarter of SegFormer's first convolutions: on Zen 3 the network takes
    1 to 4 per cent longer so, and MobileNetV2 up to 1.
    """
    source, place = (x.at((0, 0, kept.first - band.first, 0, 0)) for band in (before, now))
    shape = (*x.shape[:_SPATIAL], kept.end - kept.first, x.shape[3])
    assembler.copy(replace(source, shape=shape), replace(place, shape=shape), (), "kept rows")


def _clear_rows(assembler: Assembler, x: View, needs: _RowRange, results: _RowRange) -> None:
    """Write zeros to the rows of a buffer that are padding."""
    for first, end in ((needs.first, results.first), (results.end, needs.end)):
        if first < end:
            rows = x.at((0, 0, first - needs.first, 0, 0))
            shape = (*x.shape[:_SPATIAL], end - first, x.shape[3])
            assembler.clear(replace(rows, shape=shape))


BANDS = FusedShape(
    name="convolutions in bands of rows",
    links=(_is_first, _is_depthwise, _is_pointwise),
    least=2,
    lower=_lower,
)
