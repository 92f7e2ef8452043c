# SPDX-License-Identifier: Apache-2.0
"""Digests of single nodes and constants: what they are, without names and without neighbours."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intarsia.graph.per_graph import per_graph
from intarsia.hashing import digest

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph

_DIGEST_BYTES = 16
_SMALL_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class NodeSignature:
    """What a node is.

    Attributes:
        digest: Operator, version, attributes, bodies and called functions.
        captured: The outer values that its bodies read, in order of first use.
    """

    digest: bytes
    captured: tuple[int, ...]


@per_graph
def node_signature(graph: Graph, node: int, *, content: bool) -> NodeSignature:
    """Return the signature of a node of a graph.

    Args:
        graph: The graph.
        node: The node's id.
        content: Whether the values of all tensors count, rather than of small and integer ones.
    """
    source = graph.nodes[node]
    writer = _SignatureWriter(graph.model, content=content)
    writer.write_node(source.ir)
    ids = {graph.values[value].ir: value for value in source.captured}
    captured = tuple(ids[value] for value in writer.outer if value in ids)
    return NodeSignature(writer.digest(), captured)


@per_graph
def constant_digest(graph: Graph, value: int, *, content: bool) -> bytes:
    """Return the digest of a constant."""
    tensor = graph.values[value].constant
    return b"" if tensor is None else tensor_digest(tensor, content=content)


def tensor_digest(tensor: ir.TensorProtocol, *, content: bool) -> bytes:
    """Return the digest of a tensor's type and shape, and of its values if they count."""
    dims = tuple(tensor.shape.numpy())
    hasher = hashlib.blake2b(f"{tensor.dtype.name}{dims}".encode(), digest_size=_DIGEST_BYTES)
    if content or tensor.dtype.is_integer() or _always_counts(tensor):
        array = tensor.numpy()
        if tensor.dtype == ir.DataType.STRING:
            for text in array.flat:
                raw = text if isinstance(text, bytes) else str(text).encode()
                hasher.update(b"%d#" % len(raw) + raw)
        else:
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.digest()


def _always_counts(tensor: ir.TensorProtocol) -> bool:
    small = tensor.size <= _SMALL_ELEMENTS
    return small or tensor.dtype in (ir.DataType.BOOL, ir.DataType.STRING)


class _SignatureWriter:
    """Writes a node and the bodies in it into one digest, with values by number."""

    def __init__(self, model: ir.Model, *, content: bool) -> None:
        self.outer: dict[ir.Value, None] = {}
        self._model = model
        self._content = content
        self._numbers: dict[ir.Value, int] = {}
        self._hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._functions: dict[ir.OperatorIdentifier, None] = {}

    def digest(self) -> bytes:
        """Return the digest, after adding the functions called."""
        for key in self._called():
            proto = ir.serde.serialize_function(self._model.functions[key])
            self._write(proto.SerializeToString(deterministic=True))
        return self._hasher.digest()

    def write_node(self, node: ir.Node) -> None:
        """Write a node of the outer graph: all but its inputs and outputs."""
        pending = self._write_operator(node)
        while pending:
            item = pending.pop()
            if isinstance(item, ir.Graph):
                pending += self._write_body(item)
            elif isinstance(item, ir.Node):
                for value in item.inputs:
                    self._write_value(value)
                following = self._write_operator(item)
                for value in item.outputs:
                    self._define(value)
                pending += following
            else:
                self._write(b"end")
                for value in item:
                    self._write_value(value)

    def _write_body(self, body: ir.Graph) -> list[ir.Graph | ir.Node | tuple[ir.Value, ...]]:
        self._write(b"body")
        for value in body.inputs:
            self._define(value)
        for value in body.initializers.values():
            self._define(value)
            if value.const_value is not None:
                self._write(tensor_digest(value.const_value, content=self._content))
        return [tuple(body.outputs), *reversed(list(body))]

    def _write_operator(self, node: ir.Node) -> list[ir.Graph | ir.Node | tuple[ir.Value, ...]]:
        version = self._model.opset_imports.get(node.domain, 0)
        self._write(f"{node.domain}:{node.op_type}:{node.overload}:{version}".encode())
        if node.op_identifier() in self._model.functions:
            self._functions[node.op_identifier()] = None
        bodies: list[ir.Graph | ir.Node | tuple[ir.Value, ...]] = []
        for name in sorted(node.attributes):
            attribute = node.attributes[name]
            self._write(f"{name}={attribute.type.name}".encode())
            if attribute.is_ref():
                self._write(f"ref {attribute.ref_attr_name}".encode())
            elif attribute.type == ir.AttributeType.GRAPH:
                bodies.append(attribute.as_graph())
            elif attribute.type == ir.AttributeType.GRAPHS:
                bodies += attribute.as_graphs()
            elif attribute.type == ir.AttributeType.TENSOR:
                self._write(tensor_digest(attribute.as_tensor(), content=self._content))
            elif attribute.type == ir.AttributeType.TENSORS:
                for tensor in attribute.as_tensors():
                    self._write(tensor_digest(tensor, content=self._content))
            else:
                self._write(repr(attribute.value).encode())
        bodies.reverse()
        return bodies

    def _write_value(self, value: ir.Value | None) -> None:
        if value is None:
            self._write(b"-")
            return
        if value not in self._numbers:
            self.outer[value] = None
            self._numbers[value] = len(self._numbers)
        self._write(b"%d" % self._numbers[value])

    def _define(self, value: ir.Value) -> None:
        self._numbers[value] = len(self._numbers)
        shape = None if value.shape is None else [str(dim) for dim in value.shape]
        self._write(f"def {value.type} {shape}".encode())

    def _called(self) -> list[ir.OperatorIdentifier]:
        stack = [node for key in self._functions for node in self._model.functions[key].all_nodes()]
        while stack:
            key = stack.pop().op_identifier()
            if key in self._model.functions and key not in self._functions:
                self._functions[key] = None
                stack += self._model.functions[key].all_nodes()
        return sorted(self._functions)

    def _write(self, part: bytes) -> None:
        self._hasher.update(b"%d#" % len(part) + part)


def structure_digest(graph: Graph) -> str:
    """Return a hash of a prepared model without its weights, as 32 hexadecimal digits.

    A model that was only trained further keeps it: of constants only dtypes and shapes count.
    """
    values = (
        f"{value.name} {value.dtype} {value.shape and (value.extents or value.shape)}"
        for value in graph.values
    )
    nodes = (
        f"{node.name} {node_signature(graph, node.id, content=False).digest.hex()} "
        f"{node.inputs} {node.captured} {node.outputs}"
        for node in graph.nodes
    )
    return digest((*values, *nodes, f"{graph.inputs} {graph.outputs}"))
