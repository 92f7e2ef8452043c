# SPDX-License-Identifier: Apache-2.0
"""How calls of kernels are cut into chunks for threads."""

from __future__ import annotations

# A thread that is taken off its CPU holds a quarter of its share at most; others take the rest.
_CHUNKS_OF_A_THREAD = 4
_CHUNK_WORK = 1 << 14
"""Least operations of a chunk, see `call_work`: about three microseconds."""


def call_work(count: int, flop: int, nbytes: int) -> int:
    """Return the work of one call of a kernel: its count, held to what the call is known to do.

    A count misses turns of loops whose bounds are known only when they run, and has turns of both
    ways that a branch may take.

    Args:
        count: What `work.count_work` says of the kernel.
        flop: Operations of the call's nodes; 0 if it only moves data.
        nbytes: What it reads and writes.
    """
    estimate = flop // _VECTOR_FLOP + nbytes * _VECTOR_WORK // _VECTOR_BYTES
    return max(estimate, min(count, _MOST_TIMES * estimate)) if estimate else count


# 16 lanes of float32, a product and a sum each.
_VECTOR_FLOP = 32
_VECTOR_BYTES = 64
_VECTOR_WORK = 6
"""What moving a vector costs in multiply-adds of vectors: data come from beyond the first cache."""
_MOST_TIMES = 8
"""How much more than a multiply-add per operation a kernel may do, such as exponentials."""


def chunk_count(extent: int, work: int, threads: int) -> int:
    """Return into how many chunks a call is cut; 1 keeps it on the caller's thread.

    Args:
        extent: Turns of the kernel's parallel loop.
        work: Operations of the whole call, see `call_work`.
        threads: That share it.
    """
    if threads == 1:
        return 1
    count = max(1, min(extent, threads * _CHUNKS_OF_A_THREAD, work // _CHUNK_WORK))
    is_even = count == extent or count < threads
    return count if is_even else count // threads * threads  # as many for each thread
