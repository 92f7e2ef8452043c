# SPDX-License-Identifier: Apache-2.0
"""Pooling of whole images: a reduction over all spatial dimensions.

On blocks of channels a result is a vector; on plain memory vectors go along the image, and their
lanes are combined at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from intarsia.codegen.body import store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import DOT_GROUPS, Function, Index, IrValue, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.images import ImageKernel
from intarsia.codegen.kernels.pool.combination import Combination, PoolKind
from intarsia.codegen.kernels.reduce_kinds import merge
from intarsia.codegen.kernels.window import over_taps


@dataclass(frozen=True, slots=True)
class GlobalPool(ImageKernel):
    """Max, average or Lp pooling of whole images.

    Attributes:
        y: Over (batch, blocks, *ones, block).
        kind: What becomes of an image.
        p: The exponent of `PoolKind.LP`.
        sums: Accumulators that are combined at the end.
        zero: The zero point of codes whose averages are float32; None where x is what it is.
    """

    kind: PoolKind
    p: int = 2
    sums: int = 8
    zero: int | None = None


SPECS = (GlobalPool,)


def build(spec: GlobalPool) -> Function:
    """Return the kernel; its arguments are x, y, fused operands."""
    return _GlobalPoolKernel(spec).function()


class _GlobalPoolKernel:
    """Makes one kernel."""

    def __init__(self, spec: GlobalPool) -> None:
        self.spec = spec
        self.extents, self.steps = _merged(spec.extents, spec.x.strides[2:-1])
        self.is_blocked = spec.is_blocked
        is_dense = self.steps[-1] == 1
        self.b = b = Builder(f"global_{spec.kind}_pool")
        self.math = Combination(b, spec.kind, spec.p, spec.zero)
        self.sum_dtype = self.math.sum_dtype(spec.x.dtype)
        plain = spec.unit.lanes(self.sum_dtype) if is_dense else 1
        self.lanes = spec.block if self.is_blocked else plain
        # Codes that lie side by side are summed by fours, as a product with ones.
        is_summed = spec.zero is not None and not self.is_blocked and is_dense
        self.group = DOT_GROUPS[spec.x.dtype] if is_summed else 1
        self.sums = spec.sums
        outer = (spec.batch, spec.blocks)
        x = replace(spec.x, strides=(*spec.x.strides[:2], *self.steps, spec.x.strides[-1]))
        self.x = x.declare(b, "x", (*outer, *self.extents, spec.block))
        self.domain = (*outer, *(1 for _ in spec.extents), spec.block)
        self.y = spec.y.declare(b, "y", self.domain, is_written=True)
        self.epilogue = spec.epilogue.bind(b, self.domain)

    def function(self) -> Function:
        b, spec = self.b, self.spec
        b.note(f"{spec.channels} channels of {spec.extents} by {spec.block}")
        for place in each_turn(b, (spec.batch, spec.blocks)):
            total = self._total(place)
            if self.group > 1 and spec.zero:
                total = b.sub(total, spec.zero * math.prod(spec.extents))
            total = self.math.close(total, Index(math.prod(spec.extents)))
            at = [*place, *(Index() for _ in spec.extents), Index()]
            store_lanes(b, self.epilogue(total, at, None), self.y, at)
        return b.finish()

    def _total(self, place: list[Index]) -> IrValue:
        """Return the combination of an image."""
        b, lanes = self.b, self.lanes
        span = 1 if self.is_blocked else lanes * self.group
        vectors, rest = divmod(self.extents[-1], span)
        sums = max(1, min(self.sums, vectors))
        read = lanes * self.group
        start = self.math.start(Type(self.sum_dtype, lanes))

        def row(outer: list[Index], totals: Sequence[IrValue]) -> Sequence[IrValue]:
            def step(number: Index, *totals: IrValue) -> list[IrValue]:
                return self._added(totals, [*place, *outer], number * (sums * span), read)

            totals = b.loop(0, vectors // sums, totals, step)
            left = vectors % sums
            done = Index((vectors - left) * span)
            totals = [*self._added(totals[:left], [*place, *outer], done, read), *totals[left:]]
            if not rest:
                return totals
            at = [*place, *outer]
            # The IR reads 0 in lanes beyond a count, which is not neutral for maxima of negative
            # numbers.
            if self.spec.kind is not PoolKind.MAX:  # lanes that are not read add nothing
                tail = self._added(totals[:1], at, Index(vectors * span), rest)
            elif vectors:  # what is taken twice changes nothing
                tail = self._added(totals[:1], at, Index(self.extents[-1] - span), lanes)
            else:
                tail = [self._widened(totals[0], at, rest)]
            return [*tail, *totals[1:]]

        loops = [(0, extent, 1) for extent in self.extents[:-1]]
        totals = over_taps(b, loops, [start] * sums, row)
        total = merge(totals, self.math.combine)
        if self.is_blocked:
            return total
        return b.reduce("max" if self.spec.kind is PoolKind.MAX else "add", total)

    def _added(
        self, totals: Sequence[IrValue], at: list[Index], first: Index, count: int
    ) -> list[IrValue]:
        """Combine each accumulator with the next vector of a row."""
        out = []
        for number, total in enumerate(totals):
            lanes = self.lanes * self.group
            step = 1 if self.is_blocked else lanes
            entry = [*at, first + number * step, Index()]
            stride = self.x.strides[-1] if self.is_blocked else 1
            item = self.b.load(self.x, entry, lanes, stride=stride, count=count)
            if self.group > 1:
                ones = self.b.constant(1, Type("int8", lanes))
                out.append(self.b.dot(item, ones, total))
            else:
                out.append(self.math.combine(total, self.math.map(item)))
        return out

    def _widened(self, total: IrValue, at: list[Index], count: int) -> IrValue:
        """Combine with the few entries of a row that fill no vector."""
        items = [self.b.load(self.x, [*at, entry, 0]) for entry in range(count)]
        whole = functools.reduce(self.math.combine, items)
        return self.math.combine(total, self.b.splat(whole, self.lanes))


def _merged(
    extents: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the same box with neighbouring dimensions made one where they are dense."""
    out = [(extents[-1], strides[-1])]
    for extent, stride in zip(extents[-2::-1], strides[-2::-1], strict=True):
        inner, step = out[0]
        if extent == 1 or inner == 1 or stride == inner * step:
            out[0] = (extent * inner, step if inner != 1 else stride)
        else:
            out.insert(0, (extent, stride))
    merged, steps = zip(*out, strict=True)
    return merged, steps
