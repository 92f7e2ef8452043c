# SPDX-License-Identifier: Apache-2.0
"""Which arrays of a caller lie in the same memory: a region must not write what another reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from intarsia.arrays import Array, address_of
from intarsia.runtime.device_array import DeviceArray

Key = TypeVar("Key")


def find_overlaps(
    arrays: Mapping[Key, Array | DeviceArray],
) -> Iterator[tuple[Key, Key, bool]]:
    """Yield pairs of contiguous arrays that share memory, each in the order of the arrays.

    The third is whether they are the same memory of the host in the same form, or the one begins
    with the other: rows of the first dimension lie alike.
    """
    keys, values = list(arrays), list(arrays.values())
    spans = sorted((*_span(array), number) for number, array in enumerate(values))
    live: list[tuple[int, int, int, int]] = []
    for block, start, end, number in spans:
        live = [other for other in live if other[0] == block and other[2] > start]
        if end > start:
            for _, other_start, _, other in live:
                shapes = values[number].shape, values[other].shape
                is_same = start == other_start and shapes[0][1:] == shapes[1][1:]
                yield keys[min(number, other)], keys[max(number, other)], is_same and not block
            live.append((block, start, end, number))


def _span(array: Array | DeviceArray) -> tuple[int, int, int]:
    """Return which memory it is in, and between which bytes of that."""
    if isinstance(array, DeviceArray):
        return id(array.block), 0, 1
    start = address_of(array)
    return 0, start, start + array.nbytes
