# SPDX-License-Identifier: Apache-2.0
"""How calls of kernels are cut into chunks for threads."""

from __future__ import annotations

import numpy as np

from intarsia.arrays import Array

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
    return int(call_works(np.array([count]), np.array([flop]), np.array([nbytes]))[0])


def call_works(counts: Array, flop: Array, nbytes: Array) -> Array:
    """Return the work of each call, see `call_work`."""
    estimates = flop // _VECTOR_FLOP + nbytes * _VECTOR_WORK // _VECTOR_BYTES
    held = np.maximum(estimates, np.minimum(counts, _MOST_TIMES * estimates))
    works: Array = np.where(estimates > 0, held, counts)
    return works


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
    return int(chunk_counts(np.array([extent]), np.array([work]), threads)[0])


def chunk_counts(extents: Array, works: Array, threads: int) -> Array:
    """Return into how many chunks each call is cut, see `chunk_count`."""
    if threads == 1:
        return np.ones_like(extents)
    most = np.minimum(extents, threads * _CHUNKS_OF_A_THREAD)
    counts = np.maximum(1, np.minimum(most, works // _CHUNK_WORK))
    is_even = (counts == extents) | (counts < threads)
    # As many for each thread.
    chunks: Array = np.where(is_even, counts, counts // threads * threads)
    return chunks
