# SPDX-License-Identifier: Apache-2.0
"""Vectors of free extents, as Shape and what exporters compute of it make them."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Function, Index
from intarsia.extents import Size


@dataclass(frozen=True, slots=True)
class Sizes:
    """`y[i] = entries[i]`.

    Attributes:
        entries: Known ones, and such as are known only when it runs.
        y: Over (number of entries,); int32 or int64.
    """

    entries: tuple[Size, ...]
    y: Layout


SPECS = (Sizes,)


def build(spec: Sizes) -> Function:
    """Return the kernel; its argument is y."""
    b = Builder("sizes")
    y = spec.y.declare(b, "y", (len(spec.entries),), is_written=True)
    with b.parallel(1):
        for number, entry in enumerate(spec.entries):
            b.store(b.cast(b.index(Index.of(entry)), y.dtype), y, number)
    return b.finish()
