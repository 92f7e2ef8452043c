# SPDX-License-Identifier: Apache-2.0
"""ScatterElements and ScatterND: updates put at indices that come when the kernel runs.

The result holds the data already; only the updates are applied, in order where they may meet. A
negative index counts from the end, one outside the data is clamped to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from intarsia.codegen.body import Layout, load_lanes, store_lanes
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, IrValue
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.kernels.gather import read_index, vectors
from intarsia.codegen.unit import AVX512, CpuModel

_REDUCTIONS = {"add": "add", "mul": "mul", "min": "min", "max": "max"}
REDUCTIONS = frozenset(("none", *_REDUCTIONS))
"""What becomes of an entry and its update: ONNX's `reduction`."""


@dataclass(frozen=True, slots=True)
class ScatterElements:
    """`y[i, indices[i, j, k], k] = updates[i, j, k]`, the axis anywhere.

    Attributes:
        extents: Of y.
        shape: Of indices and updates; at most the extents beside the axis.
        axis: The dimension of the indices.
        indices: Over the shape; int32 or int64.
        updates: Over the shape.
        y: Over the extents.
        reduction: One of `REDUCTIONS`.
    """

    extents: tuple[int, ...]
    shape: tuple[int, ...]
    axis: int
    indices: Layout
    updates: Layout
    y: Layout
    reduction: str = "none"


@dataclass(frozen=True, slots=True)
class ScatterND:
    """`y[*indices[m], i] = updates[m, i]`.

    Attributes:
        count: Tuples of indices.
        extents: Of the dimensions that they index.
        inner: Entries after those.
        indices: Over (count, number of indexed dimensions); int32 or int64.
        updates: Over (count, inner).
        y: Over (*extents, inner).
        reduction: One of `REDUCTIONS`.
        unit: What it is shaped for.
    """

    count: int
    extents: tuple[int, ...]
    inner: int
    indices: Layout
    updates: Layout
    y: Layout
    reduction: str = "none"
    unit: CpuModel = AVX512


SPECS = (ScatterElements, ScatterND)


def build(spec: ScatterElements | ScatterND) -> Function:
    """Return the kernel; its arguments are indices, updates, y, which holds the data."""
    return _elements(spec) if isinstance(spec, ScatterElements) else _tuples(spec)


def _elements(spec: ScatterElements) -> Function:
    """Return a kernel whose turns are the entries of one other dimension: they never meet."""
    b = Builder("scatter_elements")
    indices = spec.indices.declare(b, "indices", spec.shape)
    updates = spec.updates.declare(b, "updates", spec.shape)
    y = spec.y.declare(b, "y", spec.extents, is_written=True)
    b.note(f"{spec.shape} into {spec.extents} along {spec.axis}, {spec.reduction}")
    # Updates of one entry then all belong to one turn, which applies them in the order of ONNX.
    others = [dim for dim in range(len(spec.shape)) if dim != spec.axis]
    shape = [spec.shape[dim] for dim in others]
    for place in each_turn(b, shape, prod(spec.shape) * prod(spec.extents)):
        with b.serial(0, spec.shape[spec.axis]) as number:
            at = [*place[: spec.axis], number, *place[spec.axis :]]
            entry = list(at)
            entry[spec.axis] = read_index(b, indices, at, spec.extents[spec.axis])
            _update(b, spec.reduction, b.load(updates, at), y, entry, None)
    return b.finish()


def _tuples(spec: ScatterND) -> Function:
    """Return a kernel of one turn: any two tuples may be equal."""
    b = Builder("scatter_nd")
    indices = spec.indices.declare(b, "indices", (spec.count, len(spec.extents)))
    updates = spec.updates.declare(b, "updates", (spec.count, spec.inner))
    y = spec.y.declare(b, "y", (*spec.extents, spec.inner), is_written=True)
    b.note(f"{spec.count} rows of {spec.inner} into {spec.extents}, {spec.reduction}")
    is_something = spec.count * spec.inner * prod(spec.extents) > 0
    with b.parallel(1 if is_something else 0), b.serial(0, spec.count) as number:
        entry = [
            read_index(b, indices, (number, dim), extent) for dim, extent in enumerate(spec.extents)
        ]
        for first, lanes, count in vectors(b, spec.unit, updates.dtype, spec.inner):
            value = load_lanes(b, updates, (number, first), lanes, count)
            _update(b, spec.reduction, value, y, [*entry, first], count)
    return b.finish()


def _update(
    b: Builder, reduction: str, value: IrValue, y: Buffer, at: Sequence[Index], count: int | None
) -> None:
    if reduction != "none":
        old = load_lanes(b, y, at, value.type.lanes, count)
        value = b.binary(_REDUCTIONS[reduction], value, old)
    store_lanes(b, value, y, at, count)
