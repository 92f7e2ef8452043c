# SPDX-License-Identifier: Apache-2.0
"""Caches of keys and values: new rows are put behind those before."""

from __future__ import annotations

from intarsia.codegen.kernels.cache import Append, Carry
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.views import View


def put_rows(
    assembler: Assembler,
    group: KernelGroup,
    past: View | None,
    new: View,
    lengths: View,
    whole: View,
    *,
    keeps: bool = False,
) -> None:
    """Append the kernels that put new rows into a cache, behind those that were before.

    Where both caches are one array when the program runs, the first kernel has nothing to do.

    Args:
        assembler: Of the program.
        group: Of the node.
        past: The cache before, over (batch, heads, rows, size); None if there is none.
        new: The rows, over (batch, heads, rows, size).
        lengths: Rows that count for each item, the new ones among them, over (batch,).
        whole: The cache behind it, over (batch, heads, rows, size).
        keeps: Whether rows behind the new ones stay as they were; else they are zeros.
    """
    batch, heads, capacity, size = whole.shape
    rows = new.shape[2]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    if past is not None or capacity != rows:
        before = 0 if past is None else past.shape[2]
        layouts = None if past is None else past.layout, whole.layout, lengths.layout
        carry = Carry(batch, heads, before, rows, capacity, size, *layouts, assembler.unit, keeps)
        views = [view for view in (past, lengths, whole) if view is not None]
        assembler.call(carry, views, group.names, "what was before", is_kept=past is not None)
    forms = new.layout, whole.layout, lengths.layout
    append = Append(batch, heads, rows, capacity, size, *forms, assembler.unit, keeps)
    assembler.call(append, (new, lengths, whole), group.names, "present")
