# SPDX-License-Identifier: Apache-2.0
"""Which arrays of a caller lie in the same memory: a region must not write what another reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from intarsia.arrays import Array
from intarsia.runtime.device_array import DeviceArray

Key = TypeVar("Key")


def find_overlaps(arrays: Mapping[Key, Array | DeviceArray]) -> Iterator[tuple[Key, Key]]:
    """Yield pairs of contiguous arrays that share memory, each in the order of the arrays."""
    keys = list(arrays)
    spans = sorted((*_span(array), number) for number, array in enumerate(arrays.values()))
    live: list[tuple[int, int, int, int]] = []
    for block, start, end, number in spans:
        live = [other for other in live if other[0] == block and other[2] > start]
        if end > start:
            for *_, other in live:
                yield keys[min(number, other)], keys[max(number, other)]
            live.append((block, start, end, number))


def _span(array: Array | DeviceArray) -> tuple[int, int, int]:
    """Return which memory it is in, and between which bytes of that."""
    if isinstance(array, DeviceArray):
        return id(array.block), 0, 1
    start = array.ctypes.data
    return 0, start, start + array.nbytes


def is_same_memory(one: Array | DeviceArray, other: Array | DeviceArray) -> bool:
    """Tell whether contiguous arrays of the host are the same memory, in the same form."""
    if isinstance(one, DeviceArray) or isinstance(other, DeviceArray):
        return False
    return one.shape == other.shape and one.ctypes.data == other.ctypes.data
