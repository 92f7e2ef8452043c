# SPDX-License-Identifier: Apache-2.0
"""The protocol's datatypes, and tensors of them as bytes and as JSON.

Open Inference Protocol, version 2, "Tensor Data Types" and "Binary Tensor Data Extension": numbers
are little-endian and row-major; an element of BYTES is its length in four bytes, then its bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.decoding import decode_json
from intarsia.errors import ServingError

DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
}
"""Our names by the protocol's."""

DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}
"""The protocol's names by ours."""

MOST_DIMENSIONS = 32
"""Dimensions of a tensor: hashing a type of lists much deeper ends the process, and numpy has no
more than 64."""

_MOST_SIZE = 2**40
"""Of one dimension: where another is 0, numpy still multiplies them."""

_LENGTH = struct.Struct("<I")


def dtype_of(datatype: str, name: str) -> str:
    """Return our name of a datatype.

    Args:
        datatype: The protocol's.
        name: Of the tensor, for the error.

    Raises:
        ServingError: There is no such datatype.
    """
    try:
        return DTYPES[datatype]
    except KeyError:
        raise ServingError(
            f"input {name!r} has datatype {datatype!r}, which the protocol has not",
            hint=f"it has {', '.join(DTYPES)}",
        ) from None


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Refuse a shape that no array can have.

    Args:
        name: Of the tensor, for the error.
        shape: Its dimensions.

    Raises:
        ServingError: It has too many dimensions, one below 0, or one that no memory holds.
    """
    if len(shape) > MOST_DIMENSIONS:
        raise ServingError(f"input {name!r} has {len(shape)} dimensions: {MOST_DIMENSIONS} at most")
    # Of another size there is never as much data.
    if any(size < 0 or (size > _MOST_SIZE and 0 in shape) for size in shape):
        raise ServingError(f"input {name!r} has shape {list(shape)}")


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Array:
    """Return a tensor from its bytes, over the same memory where it is aligned there.

    Args:
        name: Of the tensor, for errors.
        datatype: The protocol's.
        shape: Its dimensions.
        data: Its bytes.

    Raises:
        ServingError: There are too many or too few, or text is not UTF-8.
    """
    check_shape(name, shape)
    dtype, count = dtype_of(datatype, name), math.prod(shape)
    if dtype == "string":
        return _from_text_bytes(name, count, data).reshape(shape)
    kind = np_dtype(dtype)
    if len(data) != count * kind.itemsize:
        raise ServingError(
            f"input {name!r} has {len(data)} bytes, and {datatype} of shape {list(shape)} has "
            f"{count * kind.itemsize}"
        )
    array: Array = np.frombuffer(data, np.uint8)
    if kind == np.bool_ and array.size and array.max() > 1:
        raise ServingError(f"input {name!r} has bytes that are neither 0 nor 1, as BOOL must be")
    if array.ctypes.data % kind.alignment:
        array = array.copy()
    return array.view(kind).reshape(shape)


def _from_text_bytes(name: str, count: int, data: memoryview) -> Array:
    texts: list[str] = []
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ServingError(f"input {name!r} ends inside the length of an element")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length > len(data) - at:
            raise ServingError(
                f"input {name!r} has an element of {length} bytes, and {len(data) - at} are left"
            )
        texts.append(as_text(name, bytes(data[at : at + length])))
        at += length
    return text_array(name, texts, count)


def text_array(name: str, texts: list[str], count: int) -> Array:
    """Return texts as an array of one dimension.

    Raises:
        ServingError: There are not as many as its shape says.
    """
    if len(texts) != count:
        raise ServingError(f"input {name!r} has {len(texts)} elements, and its shape says {count}")
    array = np.empty(count, object)
    array[:] = texts
    return array


def as_text(name: str, data: bytes) -> str:
    """Return an element of BYTES as text: ONNX's strings are UTF-8.

    Raises:
        ServingError: It is not.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ServingError(
            f"input {name!r} has an element that is not UTF-8, as strings of ONNX are"
        ) from None


def to_bytes(array: Array) -> bytes:
    """Return the bytes of a tensor."""
    if array.dtype.kind not in "OUST":
        return array.tobytes()
    parts = []
    for text in array.ravel().tolist():
        data = text if isinstance(text, bytes) else str(text).encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def from_json(name: str, datatype: str, shape: Sequence[int], text: memoryview) -> Array:
    """Return a tensor from JSON: nested lists, or a flat one.

    Args:
        name: Of the tensor, for errors.
        datatype: The protocol's.
        shape: Its dimensions.
        text: A JSON array.

    Raises:
        ServingError: It is another value, of another number of elements, or one is no such number.
    """
    check_shape(name, shape)
    dtype, count = dtype_of(datatype, name), math.prod(shape)
    # Elements take tens of bytes each once they are read: a lie is refused before.
    if dtype != "string" and bytes(text).count(b",") >= max(count, 1):
        raise ServingError(f"input {name!r} has more than the {count} elements of its shape")
    try:
        values = _decode(dtype, len(shape), text)
        if dtype == "string":
            array = _from_texts(name, shape, values)
        else:
            with np.errstate(over="ignore"):
                array = np.array(values, np_dtype(dtype))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise ServingError(f"input {name!r} is no tensor of {datatype}: {error}") from None
    if "float" in dtype and not np.isfinite(array).all():
        raise ServingError(f"input {name!r} has a number that is too large for {datatype}")
    if array.size != count:
        raise ServingError(f"input {name!r} has {array.size} elements, and its shape says {count}")
    if array.ndim != 1 and dtype != "string" and array.shape != tuple(shape):
        raise ServingError(
            f"input {name!r} is nested as {list(array.shape)}, and its shape says {list(shape)}"
        )
    return array.reshape(shape)


def _from_texts(name: str, shape: Sequence[int], values: list[Any]) -> Array:
    nested = np.array(values, object)
    if nested.ndim != 1 and nested.shape != tuple(shape):
        raise ValueError(f"it is nested as {list(nested.shape)}, and its shape says {list(shape)}")
    return text_array(name, list(_flatten(values)), math.prod(shape))


def _decode(dtype: str, rank: int, text: memoryview) -> Any:
    """Return a flat list; or nested ones, if that is what the text has."""
    if bytes(text[:64]).lstrip()[:1] != b"[":
        raise ValueError("it is not an array")
    is_nested = bytes(text[:64]).lstrip()[1:].lstrip()[:1] == b"["
    return decode_json(text, _form(dtype, max(rank, 1) if is_nested else 1))


@cache
def _form(dtype: str, depth: int) -> Any:
    form: Any = str if dtype == "string" else bool if dtype == "bool" else int
    if "float" in dtype:
        form = float
    for _ in range(depth):
        form = list[form]
    return form


def _flatten(values: list[Any]) -> Any:
    for value in values:
        if isinstance(value, list):
            yield from _flatten(value)
        else:
            yield value


def to_json(name: str, array: Array) -> list[Any]:
    """Return a tensor as a flat list for JSON.

    Args:
        name: Of the output, for the error.
        array: It.

    Raises:
        ServingError: JSON has no such number.
    """
    if array.dtype.kind in "OUST":
        return [one.decode() if isinstance(one, bytes) else str(one) for one in array.flat]
    if array.dtype.kind not in "biu":
        array = array.astype(np.float64) if array.dtype.kind != "f" else array
        if not np.isfinite(array).all():
            raise ServingError(
                f"output {name!r} has NaN or infinity, which JSON has no numbers for",
                hint="ask for it with binary_data",
            )
    values: list[Any] = array.ravel().tolist()
    return values
