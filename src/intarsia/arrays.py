# SPDX-License-Identifier: Apache-2.0
"""numpy arrays and the names of their dtypes, as every layer writes them."""

from __future__ import annotations

from ctypes import addressof, c_char
from functools import cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@cache
def np_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a numpy or ml_dtypes name; text is an object array."""
    if name == "string":
        return np.dtype(object)
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return dtype


def address_of(array: Array) -> int:
    """Return where the memory of an array begins.

    The way that every array has describes it in texts first, and takes three times as long as that
    of a buffer, which those have whose dtype is numpy's own. A token of a decoder asks for dozens.
    """
    flags = array.flags
    if flags.c_contiguous and flags.writeable and array.size and array.dtype.isbuiltin == 1:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    address: int = array.__array_interface__["data"][0]
    return address


def from_blocks(array: Array) -> Array:
    """Return `[N, C/block, H, W, block]` as `[N, C, H, W]`."""
    batch, outer, *image, block = array.shape
    return np.ascontiguousarray(np.moveaxis(array, -1, 2)).reshape(batch, outer * block, *image)
