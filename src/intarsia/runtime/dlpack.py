# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries as arrays of numpy over the same memory: DLPack, or a buffer."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from intarsia.arrays import Array, np_dtype

_CODES = {
    (4, 16): "bfloat16",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
"""By DLPack's code and bits, the dtypes of ml_dtypes, which numpy reads no capsule of.

Source:
    DLPack 1.1, `DLDataTypeCode`.
"""

_UNSIGNED = 1

_CAPSULES = ((b"dltensor_versioned", 32), (b"dltensor", 0))
"""Names of capsules, and how many bytes of each come before its `DLTensor`."""

_DTYPE = 20
"""Bytes of a `DLTensor` before its `DLDataType`: a pointer, the device, and the rank."""


class _DataType(ctypes.Structure):
    """DLPack's `DLDataType`."""

    _fields_ = (
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _AsBits:
    """The exporter of an array as numpy can read it, of what it cannot read itself.

    Elements that numpy does not know are given as unsigned integers of their size.

    Args:
        value: What exports the array.

    Attributes:
        name: What the elements are, once it was asked for them; empty if numpy knows them.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self.name = ""

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self._value.__dlpack__(**options)
        except TypeError:  # before DLPack 1.0 there are no options, and no copies
            capsule = self._value.__dlpack__()
        for name, before in _CAPSULES:
            if _is_named(capsule, name):
                # The struct was made for this call, so that it is ours to write to.
                dtype = _DataType.from_address(_address(capsule, name) + before + _DTYPE)
                self.name = _CODES.get((dtype.code, dtype.bits), "")
                if self.name:
                    dtype.code = _UNSIGNED
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._value.__dlpack_device__()


def share(value: Any, *, copies: bool = True) -> Array:
    """Return an array over the memory of a value.

    Args:
        value: Anything with the DLPack or buffer protocol.
        copies: Whether a copy will do for what has no memory to share, as a list.

    Raises:
        Exception: What numpy, or the library that made the value, says of why that cannot be.
    """
    copy = None if copies else False
    if not hasattr(value, "__dlpack__"):
        return np.asarray(value, copy=copy)
    try:
        return np.from_dlpack(value, copy=copy)
    except Exception:  # foreign `__dlpack__` may raise anything
        bits = _AsBits(value)
        array = np.from_dlpack(bits, copy=copy)
        return array.view(np_dtype(bits.name)) if bits.name else array
