# SPDX-License-Identifier: Apache-2.0
"""Where blocks lie in memory: those with known lives in one arena, and all on whole cache lines."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from intarsia.arrays import Array, address_of

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector register of the CPUs that we know."""


def assign_offsets(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Return an offset for each block and the bytes that all need together.

    Walks through time and puts each block into the smallest gap that holds it.

    Args:
        lives: Per block, the first and the last step that need it, and its bytes; in the order
            of first steps.
    """
    gaps: list[tuple[int, int]] = []  # (offset, bytes), disjoint, ascending
    live: list[tuple[int, int, int]] = []  # (last, offset, bytes)
    offsets: list[int] = []
    end = 0
    for first, last, nbytes in lives:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        ended = [block for block in live if block[0] < first]
        if ended:
            live = [block for block in live if block[0] >= first]
            gaps = _merge_gaps([*gaps, *((offset, freed) for _, offset, freed in ended)])
        fitting = [gap for gap in gaps if gap[1] >= size]
        if fitting:
            # Best fit: large gaps stay for large blocks.
            offset, width = min(fitting, key=lambda gap: (gap[1], gap[0]))
            gaps.remove((offset, width))
            if width > size:
                gaps = _merge_gaps([*gaps, (offset + size, width - size)])
        elif gaps and sum(gaps[-1]) == end:  # stretch the last gap to the size
            offset, _ = gaps.pop()
            end = offset + size
        else:
            offset = end
            end += size
        offsets.append(offset)
        live.append((last, offset, size))
    return offsets, end


def pack_offsets(lives: Sequence[tuple[int, int, int]], alignment: int) -> tuple[list[int], int]:
    """Return an offset for each block and the bytes that all need together, as few as we can.

    Places the largest blocks first, each at the lowest offset that is free while it lives
    (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020: greedy
    by size). It takes quadratic time.

    Args:
        lives: As of `assign_offsets`.
        alignment: Bytes to which blocks are aligned.
    """
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    for number in sorted(range(len(lives)), key=lambda item: (-lives[item][2], item)):
        first, last, nbytes = lives[number]
        size, offset = -(-nbytes // alignment) * alignment, 0
        for start, end, other_first, other_last in placed:
            if other_last < first or last < other_first:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[number] = offset
        placed.append((offset, offset + size, first, last))
        placed.sort()
    return offsets, max((end for _, end, _, _ in placed), default=0)


def _merge_gaps(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return gaps in order, those that touch as one."""
    merged: list[tuple[int, int]] = []
    end = -1
    for start, width in sorted(gaps):
        if start == end:
            merged[-1] = (merged[-1][0], merged[-1][1] + width)
        elif width:
            merged.append((start, width))
        else:
            continue
        end = start + width
    return merged


_LARGE_PAGE_BYTES = 2 << 20
"""Of a large page: of x86-64, and of Arm CPUs with ordinary pages of 4 KiB."""
LARGE_ARRAY_BYTES = 4 << 20
"""Arrays from here on lie on large pages for the most part: numpy asks for that itself."""


def on_large_pages(arrays: Sequence[Array]) -> list[Array]:
    """Return read-only copies that lie side by side on large pages, where the system has any.

    With ordinary pages, a run of few rows of MiniLM, which reads 42 MB of weights and computes
    little, took up to a fifth longer (Zen 3). Each array must be contiguous and hold numbers.

    Returns:
        The arrays themselves where there are no large pages, or if they do not fill one.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    begins, total = assign_offsets([(0, 0, array.nbytes) for array in arrays])
    if advice is None or total < _LARGE_PAGE_BYTES:
        return list(arrays)
    try:
        pages = mmap.mmap(-1, total + _LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        pages.madvise(advice)
    except OSError:  # no such pages, or not so much memory
        return list(arrays)
    block = np.frombuffer(pages, np.uint8)
    block = block[-block.ctypes.data % _LARGE_PAGE_BYTES :]
    copies = []
    for array, begin in zip(arrays, begins, strict=True):
        copy: Array = block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        copy.flags.writeable = False
        copies.append(copy)
    return copies


def aligned_bytes(nbytes: int) -> Array:
    """Return zeroed `u8[nbytes]` whose address is a multiple of `ALIGNMENT`.

    Raises:
        MemoryError: There is not so much memory.
    """
    try:
        block = np.zeros(nbytes + ALIGNMENT, np.uint8)
    except ValueError:  # numpy's word for more than it can address
        raise MemoryError(nbytes) from None
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + nbytes]


def aligned_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array whose address is a multiple of `ALIGNMENT`, and whose contents are anything.

    Raises:
        MemoryError: There is not so much memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    block = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -address_of(block) % ALIGNMENT
    return block[start : start + nbytes].view(dtype).reshape(shape)


def align_array(array: Array) -> Array:
    """Return an array at a multiple of `ALIGNMENT`: kernels lose up to an eighth on others."""
    if array.dtype == object or array.ctypes.data % ALIGNMENT == 0:
        return array
    block = aligned_bytes(array.nbytes)
    copy: Array = block.view(array.dtype).reshape(array.shape)
    copy[...] = array
    copy.flags.writeable = False
    return copy
