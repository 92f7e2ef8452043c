# SPDX-License-Identifier: Apache-2.0
"""Reads a graph of ONNX Runtime, and makes models of parts of it."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Mapping, Sequence
from ctypes import byref, c_char_p, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from intarsia.errors import InternalError, ModelError
from intarsia.provider.abi import TENSOR, OrtApi, OrtError

if TYPE_CHECKING:
    from collections.abc import Iterator

_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _GRAPH, _TENSOR = range(1, 9)
"""Types of attributes: OrtOpAttrType."""

_STRING_TYPE = 8
_LAST_TYPE = 22
"""The last type of elements that has the same number in ONNX: int4."""

_LAST_WHOLE = 20
"""The last one that has its elements in bytes of their own; two of the others share one."""

_CONTEXT = ("com.microsoft", "EPContext")

_TAKEN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


@dataclass(frozen=True, slots=True)
class GraphValue:
    """A value of a graph.

    Attributes:
        address: Of its OrtValueInfo.
        name: Of it.
        dtype: ONNX's number of its type; 0 for what is no tensor, or one that we do not read.
        shape: Each dimension a size, a name, or None; None if not even their number is known.
        is_constant: Whether it is an initializer that nobody may override.
    """

    address: int
    name: str
    dtype: int
    shape: tuple[int | str | None, ...] | None
    is_constant: bool


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of a graph.

    Attributes:
        address: Of its OrtNode.
        number: ONNX Runtime's number of it.
        name: Of it, unlike all others of the graph.
        domain: Of its operator.
        op_type: Its operator.
        inputs: Names of what it reads; an empty one is left out.
        outputs: Names of what it writes, likewise.
        implicit: Names of what graphs inside it read.
        attributes: Addresses of its attributes.
        has_bodies: Whether there are graphs inside it.
    """

    address: int
    number: int
    name: str
    domain: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    implicit: tuple[str, ...]
    attributes: tuple[int, ...]
    has_bodies: bool

    @property
    def is_context(self) -> bool:
        """Whether it holds what a provider compiled before."""
        return (self.domain, self.op_type) == _CONTEXT


@dataclass(frozen=True, slots=True)
class OrtGraph:
    """A graph, as it is while ONNX Runtime shows it.

    Attributes:
        api: ONNX Runtime's functions.
        address: Of the graph.
        nodes: In an order in which they can run.
        values: All that nodes read and write, by name.
        outputs: Names of the graph's outputs.
        owner: The operator of the node that it is inside; empty for a model's own graph.
    """

    api: OrtApi
    address: int
    nodes: tuple[GraphNode, ...]
    values: Mapping[str, GraphValue]
    outputs: tuple[str, ...]
    owner: str

    @classmethod
    def read(cls, api: OrtApi, address: int) -> OrtGraph:
        """Return a graph that ONNX Runtime shows.

        Raises:
            OrtError: It cannot be read.
        """
        reader = _NodeReader(api)
        nodes = tuple(reader.nodes(address))
        outputs = tuple(reader.value(one) for one in api.list("Graph_Outputs", address))
        parent = api.pointer("Graph_GetParentNode", address)
        owner = api.text("Node_GetOperatorType", parent) if parent else ""
        return cls(api, address, nodes, reader.values, outputs, owner)

    def takes(self, node: GraphNode) -> bool:
        """Tell whether a model can be made of a node: its tensors are numbers of a known rank."""
        if node.has_bodies or node.domain not in _TAKEN_DOMAINS or node.is_context:
            return False
        values = [self.values[name] for name in (*node.inputs, *node.outputs) if name]
        return all(value.dtype and value.shape is not None for value in values) and all(
            1 <= self.api.small("OpAttr_GetType", one) <= _TENSOR
            and self.api.small("OpAttr_GetType", one) != _GRAPH
            for one in node.attributes
        )

    def results(self, numbers: Collection[int]) -> list[str]:
        """Return what others read of some nodes, and the graph's outputs among what they write."""
        read = set(self.outputs)
        for node in self.nodes:
            if node.number not in numbers:
                read.update(node.inputs)
            read.update(node.implicit)
        inside = (node for node in self.nodes if node.number in numbers)
        return [name for node in inside for name in node.outputs if name and name in read]

    def model(self, nodes: Sequence[GraphNode], outputs: Iterable[str]) -> ir.Model:
        """Return a model of some nodes, with constants of its own.

        Args:
            nodes: In an order in which they can run.
            outputs: Names of what is wanted of them.
        """
        values: dict[str, ir.Value] = {}

        def value(name: str) -> ir.Value | None:
            if not name:
                return None
            if name not in values:
                values[name] = _make_value(self.values[name])
            return values[name]

        opsets = self.opsets()
        made = [
            ir.Node(
                node.domain,
                node.op_type,
                [value(name) for name in node.inputs],
                [self._attribute(one) for one in node.attributes],
                outputs=[value(name) or ir.Value() for name in node.outputs],
                name=node.name,
            )
            for node in nodes
        ]
        written = {name for node in nodes for name in node.outputs}
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
        open_names = [name for name in read if name not in written]
        constants = [name for name in open_names if self.values[name].is_constant]
        for name in constants:
            values[name].const_value = self._constant(self.values[name])
        graph = ir.Graph(
            [values[name] for name in open_names if not self.values[name].is_constant],
            [values[name] for name in outputs],
            nodes=made,
            initializers=[values[name] for name in constants],
            opset_imports={name: opsets[name] for name in opsets},
            name="region",
        )
        version = self.api.number("Graph_GetOnnxIRVersion", self.address)
        return ir.Model(graph, ir_version=max(version, 8))

    def opsets(self) -> dict[str, int]:
        """Return the version of each domain."""
        count = self.api.number("Graph_GetNumOperatorSets", self.address)
        names, versions = (c_char_p * count)(), (c_int64 * count)()
        self.api.call("Graph_GetOperatorSets", self.address, names, versions, count)
        pairs = zip(names, versions, strict=True)
        return {(name or b"").decode(): version for name, version in pairs}

    def path(self) -> str:
        """Return the model's file; empty if it came as bytes."""
        return self.api.text("Graph_GetModelPath", self.address)

    def attributes(self, node: GraphNode) -> dict[str, Any]:
        """Return the attributes of a node that are numbers or texts (bytes), by name."""
        return {
            self.api.text("OpAttr_GetName", one): self._plain(one)[1] for one in node.attributes
        }

    def _attribute(self, address: int) -> ir.Attr:
        name = self.api.text("OpAttr_GetName", address)
        if self.api.small("OpAttr_GetType", address) == _TENSOR:
            value = self.api.pointer("OpAttr_GetTensorAttributeAsOrtValue", address)
            with self.api.released("ReleaseValue", value):
                return ir.AttrTensor(name, _tensor_of(self.api, value, name))
        make, data = self._plain(address)
        try:
            if isinstance(data, bytes):
                data = data.decode()
            elif isinstance(data, list) and data and isinstance(data[0], bytes):
                data = [one.decode() for one in data]
        except UnicodeDecodeError:
            raise ModelError(
                f"attribute {name!r} is not UTF-8, as texts of ONNX are",
                hint="leave its node to ONNX Runtime",
            ) from None
        made: ir.Attr = make(name, data)
        return made

    def _plain(self, address: int) -> tuple[Any, Any]:
        """Return what makes an attribute, and its value."""
        kind = self.api.small("OpAttr_GetType", address)
        data = self._data(address, kind)
        if kind == _STRING:
            return ir.AttrString, data
        if kind == _STRINGS:
            return ir.AttrStrings, data.split(b"\0")[:-1]
        numeric: dict[int, tuple[Any, Any]] = {
            _INT: (ir.AttrInt64, ctypes.c_int64),
            _INTS: (ir.AttrInt64s, ctypes.c_int64),
            _FLOAT: (ir.AttrFloat32, ctypes.c_float),
            _FLOATS: (ir.AttrFloat32s, ctypes.c_float),
        }
        make, ctype = numeric[kind]
        numbers = list((ctype * (len(data) // ctypes.sizeof(ctype))).from_buffer_copy(data))
        return make, numbers[0] if kind in (_INT, _FLOAT) else numbers

    def _data(self, address: int, kind: int) -> bytes:
        size = c_size_t()
        try:  # the size is told together with the error that there is no room
            self.api.call("ReadOpAttr", address, kind, None, 0, byref(size))
        except OrtError:
            if not size.value:
                raise
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        if size.value:
            self.api.call("ReadOpAttr", address, kind, buffer, size.value, byref(size))
        return buffer.raw[: size.value]

    def _constant(self, value: GraphValue) -> ir.TensorProtocol:
        address = self.api.pointer("ValueInfo_GetInitializerValue", value.address)
        if not address:
            raise InternalError(f"ONNX Runtime has no value of the constant {value.name!r}")
        return _tensor_of(self.api, address, value.name)


class _NodeReader:
    """Reads nodes, and each value once.

    Args:
        api: ONNX Runtime's functions.
    """

    def __init__(self, api: OrtApi) -> None:
        self.values: dict[str, GraphValue] = {}
        self._api = api
        self._names: dict[int, str] = {}

    def nodes(self, graph: int) -> Iterator[GraphNode]:
        """Yield the nodes of a graph, with names."""
        api, used = self._api, set[str]()
        for address in api.list("Graph_Nodes", graph):
            number = api.number("Node_GetId", address)
            name = api.text("Node_GetName", address)
            op_type = api.text("Node_GetOperatorType", address)
            if not name or name in used:
                name = f"{name or op_type}#{number}"
            used.add(name)
            inputs, outputs, implicit = (
                tuple(self.value(one) for one in api.list(what, address))
                for what in ("Node_Inputs", "Node_Outputs", "Node_ImplicitInputs")
            )
            yield GraphNode(
                address,
                number,
                name,
                api.text("Node_GetDomain", address),
                op_type,
                inputs,
                outputs,
                implicit,
                tuple(api.list("Node_Attributes", address)),
                bool(api.number("Node_GetNumSubgraphs", address)),
            )

    def value(self, address: int) -> str:
        """Return the name of a value; empty for none."""
        if not address:
            return ""
        name = self._names.get(address)
        if name is None:
            name = self._names[address] = self._api.text("GetValueInfoName", address)
            if name not in self.values:
                self.values[name] = self._value(address, name)
        return name

    def _value(self, address: int, name: str) -> GraphValue:
        api = self._api
        info = api.pointer("GetValueInfoTypeInfo", address)
        is_constant = bool(api.small("ValueInfo_IsConstantInitializer", address))
        tensor = 0
        if info and api.small("GetOnnxTypeFromTypeInfo", info) == TENSOR:
            tensor = api.pointer("CastTypeInfoToTensorInfo", info)
        if not tensor:
            return GraphValue(address, name, 0, None, is_constant)
        dtype = api.small("GetTensorElementType", tensor)
        if dtype == _STRING_TYPE or dtype > (_LAST_TYPE if is_constant else _LAST_WHOLE):
            dtype = 0
        return GraphValue(address, name, dtype, _shape_of(api, tensor), is_constant)


def _shape_of(api: OrtApi, tensor: int) -> tuple[int | str | None, ...] | None:
    if not api.call("TensorTypeAndShape_HasShape", tensor):
        return None
    rank = api.number("GetDimensionsCount", tensor)
    if not rank:
        return ()
    sizes, names = (c_int64 * rank)(), (c_char_p * rank)()
    api.call("GetDimensions", tensor, sizes, rank)
    api.call("GetSymbolicDimensions", tensor, names, rank)
    pairs = zip(sizes, names, strict=True)
    return tuple(size if size >= 0 else (name or b"").decode() or None for size, name in pairs)


def _make_value(value: GraphValue) -> ir.Value:
    shape = None if value.shape is None else ir.Shape(value.shape)
    return ir.Value(name=value.name, shape=shape, type=ir.TensorType(ir.DataType(value.dtype or 0)))


def _tensor_of(api: OrtApi, value: int, name: str) -> ir.TensorProtocol:
    """Return a copy of a tensor of numbers."""
    dtype, dims, rank = ctypes.c_int(), c_void_p(), c_size_t()
    api.call(
        "GetTensorElementTypeAndShapeDataReference", value, byref(dtype), byref(dims), byref(rank)
    )
    count = api.number("GetTensorSizeInBytes", value)
    data = ctypes.string_at(api.pointer("GetTensorData", value), count) if count else b""
    shape = list((c_int64 * rank.value).from_address(dims.value)) if rank.value else []  # type: ignore[arg-type]
    proto = onnx.TensorProto(name=name, data_type=dtype.value, dims=shape, raw_data=data)
    return ir.serde.deserialize_tensor(proto)
