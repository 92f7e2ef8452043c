# SPDX-License-Identifier: Apache-2.0
"""Fills a box with a number, or only what lies around an inner box: the border of a padded tensor.

The other modes of `Pad` are copies by tables (`kernels.remap`), which `pad_table` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Function, Index, Type
from intarsia.codegen.kernels.domain import each_turn
from intarsia.codegen.unit import AVX512, CpuModel

Box = tuple[tuple[int, int], ...]
"""The first entry and the end of each dimension."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A number for every entry outside an inner box.

    Attributes:
        extents: Of the whole box.
        inner: The entries of each dimension that stay; (0, 0) in any of them fills everything.
        y: Over the extents.
        value: Of the filled entries.
        unit: What it is shaped for.
    """

    extents: tuple[int, ...]
    inner: Box
    y: Layout
    value: float = 0.0
    unit: CpuModel = AVX512


def pad_table(mode: str, extent: int, before: int, after: int) -> Array:
    """Return for each entry of a padded dimension the entry that it copies.

    Args:
        mode: ONNX's: edge, reflect or wrap.
        extent: Of the dimension without padding; at least 1.
        before: Entries in front; negative ones are cut off.
        after: Entries behind.
    """
    at = np.arange(-before, extent + after)
    if mode == "edge":
        return np.clip(at, 0, extent - 1)
    if mode == "wrap":
        return at % extent
    # Reflection does not repeat the edge: entries come back after 2 (extent - 1).
    period = max(1, 2 * (extent - 1))
    at = at % period
    return np.where(at < extent, at, period - at)


SPECS = (Fill,)


def build(spec: Fill) -> Function:
    """Return the kernel; its argument is y."""
    b = Builder("fill")
    y = spec.y.declare(b, "y", spec.extents, is_written=True)
    pairs = list(zip(spec.extents, spec.inner, strict=True))
    shared = 0  # leading dimensions that stay whole: their entries are turns
    while shared < len(pairs) - 1 and pairs[shared][1] == (0, pairs[shared][0]):
        shared += 1
    boxes = _around(spec.extents[shared:], spec.inner[shared:])
    b.note(f"{len(boxes)} boxes around {spec.inner} of {spec.extents}")
    for place in each_turn(b, spec.extents[:shared], len(boxes)):
        for box in boxes:
            _fill(b, spec, y, place, box)
    return b.finish()


def _around(extents: Sequence[int], inner: Box) -> list[Box]:
    """Return disjoint boxes that together are all but the inner one."""
    boxes = []
    for dim, (extent, (first, end)) in enumerate(zip(extents, inner, strict=True)):
        rest = tuple((0, extent) for extent in extents[dim + 1 :])
        sides = ((0, first), (end, extent)) if first < end else ((0, extent),)
        for side in sides:
            box = (*inner[:dim], side, *rest)
            if all(lower < upper for lower, upper in box):
                boxes.append(box)
        if first >= end:
            break
    return boxes


def _fill(b: Builder, spec: Fill, y: Buffer, place: list[Index], box: Box) -> None:
    """Append loops over a box, vectors along its last dimension."""
    *outer, (first, end) = box
    lanes = min(spec.unit.lanes(y.dtype), 1 << ((end - first).bit_length() - 1))
    number = b.constant(spec.value, Type(y.dtype, lanes))
    whole = (end - first) // lanes * lanes
    stride = y.strides[-1]

    def nest(at: list[Index]) -> None:
        if len(at) < len(place) + len(outer):
            with b.serial(*outer[len(at) - len(place)]) as index:
                nest([*at, index])
            return
        with b.serial(first, first + whole, lanes) as index:
            b.store(number, y, [*at, index], stride=stride)
        if first + whole < end:
            b.store(number, y, [*at, first + whole], stride=stride, count=end - first - whole)

    nest(place)
