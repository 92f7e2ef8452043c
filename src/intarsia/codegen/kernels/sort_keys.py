# SPDX-License-Identifier: Apache-2.0
"""Keys that are ordered as numbers are, and sorting by counting their digits.

A key is unsigned. NaN is larger than every number, as in numpy, and all NaN are one; so are both
zeros. Digits are counted from the lowest on, and what has equal ones stays in order (Knuth, "The
Art of Computer Programming" 3, 5.2.5).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Index, IrValue, Subscript
from intarsia.extents import Size

DIGIT = 8
"""Bits of a key that are counted at once."""
DIGITS = 1 << DIGIT
_CLEARED = 8
"""Counts that are cleared at once."""
_INFINITIES = {"float16": 0x7C00, "float32": 0x7F800000, "float64": 0x7FF0000000000000}


def key_dtype(dtype: str) -> str:
    """Return the dtype of keys."""
    return "uint64" if np.dtype(dtype).itemsize == np.dtype("uint64").itemsize else "uint32"


def largest_key(dtype: str) -> int:
    """Return the largest key; of floats that of NaN."""
    return (1 << 8 * np.dtype(dtype).itemsize) - 1


def sort_key(b: Builder, value: IrValue, *, is_falling: bool = False) -> IrValue:
    """Return an unsigned number that is the smaller the earlier an entry comes.

    Args:
        b: The kernel.
        value: The entry.
        is_falling: Whether larger ones come before.
    """
    dtype = value.type.dtype
    mask = largest_key(dtype)
    bits = mask.bit_length()
    unsigned, sign = f"uint{bits}", 1 << (bits - 1)
    key = value if dtype in (unsigned, "bool") else b.bitcast(value, unsigned)
    key = b.cast(key, key_dtype(dtype))
    if value.type.is_float:
        size = b.binary("and", key, sign - 1)
        is_negative = b.compare("ge", key, sign)
        key = b.select(is_negative, b.sub(sign, size), b.add(size, sign))  # -0 is as 0
        key = b.select(b.compare("gt", size, _INFINITIES[dtype]), mask, key)
    elif value.type.is_signed:
        key = b.binary("xor", key, sign)
    return b.sub(mask, key) if is_falling else key


def clear_counts(b: Builder, counts: Buffer) -> None:
    """Append what sets the counts of all digits to 0."""
    with b.serial(0, DIGITS, _CLEARED) as number:
        b.store(b.constant(0, INT64.with_lanes(_CLEARED)), counts, number)


def digit_of(b: Builder, key: IrValue, shift: int) -> Index:
    """Return the digit of a key that begins at a bit."""
    shifted = b.binary("shr", key, shift) if shift else key
    return Index.of(b.cast(b.binary("and", shifted, DIGITS - 1), INT64.dtype))


def sort_by_digits(
    b: Builder,
    counts: Buffer,
    count: Size,
    bits: int,
    key: Callable[[Index], IrValue],
    memories: tuple[Buffer, Buffer],
    at: Callable[[Subscript], object] = Index.of,
) -> Buffer:
    """Append what sorts numbers of entries by the entries' keys; return where they are then.

    Args:
        b: The kernel.
        counts: Local memory, int64, for each digit.
        count: Of the numbers.
        bits: Of a key.
        key: From the number of an entry to its key.
        memories: Where the numbers are, int64, and memory for as many.
        at: From a position to its subscripts in these.
    """
    source, target = memories

    def accumulate(number: Index, place: IrValue) -> list[IrValue]:
        following = b.add(place, b.load(counts, number))
        b.store(place, counts, number)
        return [following]

    for shift in range(0, bits, DIGIT):
        clear_counts(b, counts)
        with b.serial(0, count) as number:
            digit = digit_of(b, key(Index.of(b.load(source, at(number)))), shift)
            b.store(b.add(b.load(counts, digit), 1), counts, digit)
        b.loop(0, DIGITS, [b.constant(0, INT64)], accumulate)
        with b.serial(0, count) as number:
            entry = b.load(source, at(number))
            digit = digit_of(b, key(Index.of(entry)), shift)
            place = b.load(counts, digit)
            b.store(b.add(place, 1), counts, digit)
            b.store(entry, target, at(Index.of(place)))
        source, target = target, source
    return source
