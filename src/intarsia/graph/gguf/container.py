# SPDX-License-Identifier: Apache-2.0
"""A GGUF file: what it says about its model, and its tensors, mapped into memory.

Words of the vocabulary are passed over, of which there may be hundreds of thousands. Source of the
format: `docs/gguf.md` of ggml, versions 2 and 3.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from intarsia.errors import ModelError
from intarsia.graph.gguf.blocks import BLOCKS, DECODERS, Bytes, Floats

GGUF_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)
"""By number of a type, what `struct` calls it."""
_STRING, _ARRAY = 8, 9
_MOST_AXES = 4
_FLOATS: Mapping[str, int] = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
"""Bytes of a number."""
KINDS: Mapping[int, str] = MappingProxyType(
    dict(enumerate(("F32", "F16", "Q4_0", "Q4_1")))
    | dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1"), 6))
    | dict(enumerate(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), 10))
    | dict(enumerate(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S"), 16))
    | dict(enumerate(("IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"), 22))
    | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"}
)
"""The types of tensors by their numbers: those that are read, and others that have a name."""


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file begins as GGUF files do; a file that cannot be read does not."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        name: Its name.
        kind: GGUF's name of its type.
        shape: Rows first.
        raw: Its bytes: uint8[rows, bytes].
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    raw: Bytes

    @property
    def is_narrow(self) -> bool:
        """Whether it is in blocks of narrow numbers."""
        return self.kind in DECODERS

    def numbers(self) -> Floats:
        """Return what it holds, as float32."""
        if self.is_narrow:
            return DECODERS[self.kind](self.raw).numbers().reshape(self.shape)
        if self.kind == "BF16":
            wide = self.raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
            return wide.view(np.float32).reshape(self.shape)
        dtype = np.float16 if self.kind == "F16" else np.float32
        return self.raw.view(dtype).astype(np.float32, copy=False).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Container:
    """A GGUF file.

    Attributes:
        path: Where it is.
        settings: What it says about its model, by key; None for a list.
        tensors: By name.
    """

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Container:
        """Open a file.

        Raises:
            ModelError: It is damaged, or a tensor has a type that is not read.
        """
        try:
            return _read(Path(path))
        except (ValueError, KeyError, IndexError, OverflowError, OSError, struct.error) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(
                f"GGUF file {os.fspath(path)!r} is damaged: {error}",
                hint="copy or convert the model again",
            ) from error

    def setting(self, key: str, default: Any = None) -> Any:
        """Return what the file says under a key.

        Raises:
            ModelError: It says nothing, or a list, and there is no default.
        """
        found = self.settings.get(key, default)
        if found is None:
            raise self.error(f"says no number under {key!r}", "convert the model again")
        return found

    def tensor(self, name: str, *shape: int) -> GgufTensor:
        """Return a tensor of a shape, rows first.

        Raises:
            ModelError: There is none of the name, or it has another shape.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise self.error(f"has no tensor {name!r}", "convert the model again")
        if tensor.shape != shape:
            sizes = ["x".join(map(str, one)) for one in (tensor.shape, shape)]
            raise self.error(
                f"has a tensor {name!r} of {sizes[0]}, which should be {sizes[1]}",
                "convert the model again",
            )
        return tensor

    def error(self, complaint: str, hint: str) -> ModelError:
        """Return an error about the file."""
        return ModelError(f"GGUF file {str(self.path)!r} {complaint}", hint=hint)


@dataclass(slots=True)
class _Cursor:
    """A place in a file that moves on by what is read."""

    data: Any
    at: int = 0

    def number(self, code: str) -> Any:
        """Read a number, by its code in `struct`."""
        (found,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return found

    def text(self) -> str:
        """Read a string."""
        size = self.number("Q")
        found = bytes(self.data[self.at : self.at + size])
        self.at += size
        return found.decode()

    def value(self, kind: int) -> Any:
        """Read a value; a list is passed over, and None returned."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._skip(self.number("I"), self.number("Q"))
        return self.number(_SCALARS[kind])

    def _skip(self, kind: int, count: int) -> None:
        if kind in _SCALARS:
            self.at += count * struct.calcsize(f"<{_SCALARS[kind]}")
            return
        if kind != _STRING:
            for _ in range(count):
                self.value(kind)
            return
        at, data, length = self.at, self.data, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length(data, at)[0]
        self.at = at


def _read(path: Path) -> Container:
    """Read what stands before the tensors, and map these."""
    data: Any = np.memmap(path, np.uint8, "r")
    cursor = _Cursor(memoryview(data), len(GGUF_MAGIC))
    version = cursor.number("I")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is not read, or its bytes are in another order")
    tensors, count = cursor.number("Q"), cursor.number("Q")
    settings = {}
    for _ in range(count):
        key = cursor.text()
        settings[key] = cursor.value(cursor.number("I"))
    places = [_place(cursor) for _ in range(tensors)]
    alignment = settings.get("general.alignment", _ALIGNMENT)
    start = -(-cursor.at // alignment) * alignment
    found = {}
    for name, kind, shape, offset in places:
        rows = math.prod(shape[:-1])
        size = rows * _row_bytes(name, kind, shape[-1])
        raw = data[start + offset : start + offset + size]
        if raw.nbytes < size:
            raise ValueError(f"tensor {name!r} ends {size - raw.nbytes} bytes behind it")
        found[name] = GgufTensor(name, kind, shape, raw.view(np.ndarray).reshape(rows, -1))
    return Container(path, settings, found)


def _place(cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int]:
    """Read a tensor's name, type, shape and offset."""
    name, axes = cursor.text(), cursor.number("I")
    if not 0 < axes <= _MOST_AXES:
        raise ValueError(f"tensor {name!r} has {axes} axes")
    shape = tuple(cursor.number("Q") for _ in range(axes))[::-1]
    number = cursor.number("I")
    return name, KINDS.get(number, f"number {number}"), shape, cursor.number("Q")


def _row_bytes(name: str, kind: str, columns: int) -> int:
    """Return how many bytes a row has.

    Raises:
        ModelError: The type is not read.
    """
    if kind in _FLOATS:
        return columns * _FLOATS[kind]
    if kind not in DECODERS:
        read = ", ".join((*_FLOATS, *DECODERS))
        raise ModelError(
            f"tensor {name!r} is of GGUF's type {kind}, which is not read",
            hint=f"give a file of {read}, for example one that llama-quantize made as Q4_0 or"
            " Q4_K_M",
        )
    size, nbytes = BLOCKS[kind]
    if columns % size:
        raise ValueError(f"tensor {name!r} has rows of {columns}, which are no blocks of {size}")
    return columns // size * nbytes
