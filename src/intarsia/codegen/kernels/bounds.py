# SPDX-License-Identifier: Apache-2.0
"""Whether indices that come when it runs lie within the data: their smallest and their largest."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.body import Layout, load_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Function, Index, IrValue, Type
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Expression, Size, typical

_TURN_ENTRIES = 1 << 16
"""Indices of a turn of the parallel loop."""


@dataclass(frozen=True, slots=True)
class IndexBounds:
    """`fault[t]` is 0 if all indices of turn t are in `[-extent, extent)`, else one that is not.

    Counts are in `[0, extent)`.

    Attributes:
        count: Indices; at least 1.
        extent: Of the dimension that they index; at least 1, so that 0 is never outside.
        indices: Over (count,); int32 or int64.
        unit: What it is shaped for.
        are_counts: Whether a negative one is outside.
    """

    count: Size
    extent: Size
    indices: Layout
    unit: CpuModel = AVX512
    are_counts: bool = False

    @property
    def turns(self) -> Size:
        """Entries of `fault`."""
        return -(-self.count // _TURN_ENTRIES)


SPECS = (IndexBounds,)


def build(spec: IndexBounds) -> Function:
    """Return the kernel; its arguments are indices and fault."""
    b = Builder("check_indices")
    indices = spec.indices.declare(b, "indices", (spec.count,))
    fault = b.argument("fault", INT64.dtype, (spec.turns,), is_written=True)
    least = 0 if spec.are_counts else -spec.extent
    b.note(f"{spec.count} in [{least}, {spec.extent})")
    dtype = indices.dtype
    lanes = min(spec.unit.lanes(dtype), 1 << (typical(spec.count).bit_length() - 1))
    rest = spec.count % lanes

    def join(at: Index, low: IrValue, high: IrValue, count: int | None = None) -> list[IrValue]:
        value = load_lanes(b, indices, (at,), lanes, count)  # lanes beyond count are 0
        return [b.minimum(low, value), b.maximum(high, value)]

    with b.parallel(spec.turns) as turn:
        start = turn * _TURN_ENTRIES
        end = b.smaller(start + _TURN_ENTRIES, spec.count - rest)
        zero = b.constant(0, Type(dtype, lanes))
        extremes = b.loop(start, end, [zero, zero], join, step=lanes)
        if isinstance(rest, Expression):
            extremes = b.loop(
                spec.count - rest,
                spec.count,
                extremes,
                lambda at, low, high: join(at, low, high, 1),
            )
        elif rest:  # every turn looks at them
            low, high = extremes
            extremes = join(Index(spec.count - rest), low, high, rest)
        low, high = (
            b.cast(b.reduce(name, value), INT64.dtype)
            for name, value in zip(("min", "max"), extremes, strict=True)
        )
        above = b.select(b.compare("ge", high, spec.extent), high, 0)
        b.store(b.select(b.compare("lt", low, least), low, above), fault, turn)
    return b.finish()
