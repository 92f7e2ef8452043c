# SPDX-License-Identifier: Apache-2.0
"""Every tensor that a serialized model holds, wherever it stands; imports nothing of ONNX.

Importing `onnx` takes longer than opening many a region that was compiled before, so which tensors
refer to files is read off the bytes (`read_references`).

Source:
    Protocol Buffers, "Encoding"; the field numbers are those of `onnx.proto`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx


CONSTANTS_LOCATION = "constants"
"""The `location` of the tensors that `extract(..., constants="external")` leaves out."""


def all_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: of bodies, functions, sparse values and training too."""
    graphs = [proto.graph]
    for info in proto.training_info:
        graphs += [info.initialization, info.algorithm]
    attributes = [a for function in proto.functions for a in function.attribute_proto]
    attributes += [a for f in proto.functions for node in f.node for a in node.attribute]
    while graphs or attributes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            yield from _dense_parts(graph.sparse_initializer)
            attributes += [a for node in graph.node for a in node.attribute]
            continue
        attribute = attributes.pop()
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from _dense_parts([attribute.sparse_tensor])
        yield from _dense_parts(attribute.sparse_tensors)
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs += attribute.graphs


def _dense_parts(tensors: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices


_Fields: TypeAlias = "dict[int, str]"

_TENSOR = "tensor"
_MESSAGES: dict[str, _Fields] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
}
"""The fields of each message that may contain tensors."""

_SINGULAR: dict[str, frozenset[int]] = {
    "model": frozenset((7,)),
    "training": frozenset((1, 2)),
    "attribute": frozenset((5, 6, 22)),
    "sparse": frozenset((1, 2)),
}
"""Fields that occur once: readers would merge several into one that was not checked."""

_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14
"""Fields of a tensor."""

_KEY, _VALUE = 1, 2
# Wire types, and below ten bytes of seven bits for a number of 64 (protobuf.dev, Encoding).
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_BITS = 70


def read_references(model: bytes) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the locations of each tensor whose data are said to be elsewhere.

    Args:
        model: A serialized `ModelProto`.

    Raises:
        ValueError: It is none.
    """
    waiting = [("model", memoryview(model))]
    while waiting:
        kind, content = waiting.pop()
        if kind == _TENSOR:
            reference = _reference(content)
            if reference is not None:
                yield reference
            continue
        inner, seen = _MESSAGES[kind], set[int]()
        for number, value in _fields(content):
            if number not in inner:
                continue
            if number in seen and number in _SINGULAR.get(kind, ()):
                raise ValueError(f"a {kind} has field {number} twice")
            seen.add(number)
            waiting.append((inner[number], _content(value)))


def _reference(tensor: memoryview) -> tuple[str, list[str]] | None:
    name, locations, is_outside = "", [], False
    for number, value in _fields(tensor):
        if number == _NAME:
            name = _text(value)
        elif number == _EXTERNAL_DATA:
            entry = {key: _text(item) for key, item in _fields(_content(value))}
            if entry.get(_KEY) == "location":
                locations.append(entry.get(_VALUE, ""))
        elif number == _DATA_LOCATION:
            is_outside = value == 1
    return (name, locations) if locations or is_outside else None


def _text(value: int | memoryview) -> str:
    return str(_content(value), "utf-8")


def _content(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number stands where a message should be")  # noqa: TRY004 - it is data
    return value


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field: a number, or bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(content, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field has wire type {kind}")
        if at + size > len(content):
            raise ValueError("a field is cut off")
        yield tag >> 3, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MOST_BITS:
        if at >= len(content):
            raise ValueError("a number is cut off")
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            return value, at
    raise ValueError("a number is too long")
