# SPDX-License-Identifier: Apache-2.0
"""Cut a region out of its graph as an ONNX model of its own.

The model is built as protobuf from the nodes; the graph's own `onnx_ir` model stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
import onnx_ir as ir

from intarsia.arrays import Array
from intarsia.errors import ModelError
from intarsia.graph.arena import align_array
from intarsia.graph.per_graph import per_graph
from intarsia.graph.snapshot import node_bodies
from intarsia.graph.tensors import CONSTANTS_LOCATION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from intarsia.graph.graph import Graph, Value
    from intarsia.graph.region import Region

SUB_BYTE = frozenset(("int2", "uint2", "int4", "uint4", "float4_e2m1fn"))
"""Types of which files and runtimes pack several elements into a byte, and numpy does not."""
# Shapes, axes and indices: runtimes infer shapes from those that they can see.
# Up to so many elements such constants stay inline, and up to so many all others.
_STEERING_ELEMENTS, _SMALL_ELEMENTS = 1024, 64
# Nothing is read there: runtimes get the memory itself, but want tensors not to overlap.
_OFFSET_STEP = 4096
# protobuf has no message of 2 GiB; 16 MiB are left for nodes and names.
_PROTOBUF_LIMIT = 2**31 - 2**24
# IR version 10 brought `value_info` of functions (onnx.proto, FunctionProto).
_FUNCTION_VALUE_INFO_IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class Extracted:
    """A region as a model.

    Attributes:
        model: A serialized `ModelProto`.
        inputs: The value ids of the region's inputs, in the order of the model's inputs.
        outputs: The value ids of the model's outputs, in order.
        constants: The value ids of the constants left out of the bytes, in order: of the external
            tensors, or of the inputs after `inputs`.
    """

    model: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    constants: tuple[int, ...]


def extract(
    region: Region,
    *,
    constants: Literal["embed", "external", "inputs"] = "embed",
) -> Extracted:
    """Return the region as an ONNX model whose inputs and outputs bear the values' names.

    Operator sets and IR version are the model's; called functions come along; captured values
    become inputs. A value whose rank is unknown is declared without a shape, which runtimes
    accept and `onnx.checker` does not.

    Args:
        region: The nodes; not empty.
        constants: "embed" keeps every initializer inline. "external" leaves the data of the big
            ones out, as external tensors at the location "constants" with offsets 0, 4096, ...;
            "inputs" makes the big ones inputs after the region's own.

    Raises:
        ModelError: A value at the border has no known type, or the inline constants exceed what a
            protobuf file can hold.
    """
    graph = region.graph
    model = onnx.ModelProto()
    model.ir_version = graph.model.ir_version
    model.producer_name = "intarsia"
    for domain, version in graph.model.opset_imports.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = graph.name or "graph"
    for value in region.inputs:
        _declare(model.graph.input.add(), graph.values[value])
    left_out = _add_constants(model.graph, region, constants)
    outputs = region.outputs
    _add_nodes(model.graph, region, frozenset(outputs))
    for value in outputs:
        _declare(model.graph.output.add(), graph.values[value])
    _add_functions(model, graph.model, [graph.nodes[node].ir for node in region.nodes])
    return Extracted(model.SerializeToString(), region.inputs, outputs, left_out)


def region_model(region: Region) -> ir.Model:
    """Return the region as an `onnx_ir` model to rewrite; it shares the constants' data.

    Raises:
        ModelError: As `extract`.
    """
    extracted = extract(region, constants="external")
    model = ir.from_proto(onnx.load_from_string(extracted.model))
    for position in extracted.constants:
        value = region.graph.values[position]
        model.graph.initializers[value.name].const_value = value.constant
    return model


def constant_array(value: Value) -> Array:
    """Return the data of a constant, C-contiguous, without a copy where possible.

    Types that numpy lacks come as ml_dtypes, strings as an object array of `str`. Where the value
    is seen as wider than the tensor, as halves are by native code, numbers are converted.
    """
    if value.constant is None:
        raise ModelError(f"value {value.name!r} is not a constant")
    array = value.constant.numpy()
    if value.dtype == "float32" and array.dtype != np.float32:
        array = array.astype(np.float32)
    if value.dtype != "string":
        # runtimes are handed the address: a transposed or misaligned view would be misread
        return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")
    texts = [text.decode() if isinstance(text, bytes) else str(text) for text in array.flat]
    strings = np.empty(array.shape, dtype=object)
    strings.flat[:] = texts
    return strings


def aligned_constant(graph: Graph, value: int) -> Array:
    """Return the data of a constant at a multiple of `ALIGNMENT`; not to be changed.

    A protobuf hands out a copy at each reading: one array serves all regions of a graph.
    """
    arrays = _aligned_constants(graph.viewed or graph)
    if value not in arrays:
        arrays[value] = align_array(constant_array(graph.values[value]))
    return arrays[value]


@per_graph
def _aligned_constants(_graph: Graph) -> dict[int, Array]:
    return {}


def _is_big(value: Value) -> bool:
    """Whether a constant is left out of the bytes: it has many elements of a whole number of bytes.

    Of the types that hold shapes and indices, many means more.
    """
    if value.dtype == "string" or value.dtype in SUB_BYTE:
        return False
    steers = value.dtype in ("bool", "int32", "int64")
    return prod(value.shape or ()) > (_STEERING_ELEMENTS if steers else _SMALL_ELEMENTS)


def _add_constants(target: onnx.GraphProto, region: Region, mode: str) -> tuple[int, ...]:
    left_out: list[int] = []
    total = 0
    for position in region.constants:
        value = region.graph.values[position]
        if mode == "embed" or not _is_big(value):
            total += value.nbytes
            _check_size(total, len(region))
            _embed(target.initializer.add(), value)
        elif mode == "inputs":
            left_out.append(position)
            _declare(target.input.add(), value)
        else:
            _leave_out(target.initializer.add(), value, len(left_out))
            left_out.append(position)
    return tuple(left_out)


def _check_size(total: int, nodes: int) -> None:
    if total > _PROTOBUF_LIMIT:
        raise ModelError(
            f"the constants of a region of {nodes} nodes exceed the 2 GiB that one ONNX file holds",
            hint='extract it with constants="external"',
        )


def _embed(target: onnx.TensorProto, value: Value) -> None:
    tensor = value.constant
    if isinstance(tensor, ir.ExternalTensor):
        _head(target, value)
        target.raw_data = tensor.tobytes()
    elif tensor is not None:
        ir.serde.serialize_tensor_into(target, tensor)
        target.ClearField("doc_string")
        del target.metadata_props[:]
        target.name = value.name


def _leave_out(target: onnx.TensorProto, value: Value, index: int) -> None:
    _head(target, value)
    target.data_location = onnx.TensorProto.EXTERNAL
    entries = (
        ("location", CONSTANTS_LOCATION),
        ("offset", str(_OFFSET_STEP * index)),
        ("length", str(value.constant.nbytes if value.constant is not None else 0)),
    )
    for key, text in entries:
        target.external_data.add(key=key, value=text)


def _head(target: onnx.TensorProto, value: Value) -> None:
    target.name = value.name
    target.dims.extend(value.shape or ())
    if value.constant is not None:
        target.data_type = value.constant.dtype.value


def _declare(target: onnx.ValueInfoProto, value: Value) -> None:
    target.name = value.name
    if value.constant is not None:
        target.type.tensor_type.elem_type = value.constant.dtype.value
        target.type.tensor_type.shape.SetInParent()
        for dim in value.shape or ():
            target.type.tensor_type.shape.dim.add(dim_value=dim)
        return
    if value.ir.type is None:
        raise ModelError(
            f"value {value.name!r} has no known type, so that no region can begin or end at it",
            hint="declare it in the model's value_info",
        )
    ir.serde.serialize_value_into(target, value.ir, name=value.name)
    if value.extents is not None:
        # Equal extents have equal texts, and runtimes take equal names for equal sizes.
        shape = target.type.tensor_type.shape
        del shape.dim[:]
        for extent in value.extents:
            if isinstance(extent, int):
                shape.dim.add(dim_value=extent)
            else:
                shape.dim.add(dim_param=str(extent))
    target.ClearField("doc_string")
    del target.metadata_props[:]


def _add_nodes(target: onnx.GraphProto, region: Region, outputs: frozenset[int]) -> None:
    graph = region.graph
    for position in region.nodes:
        node = graph.nodes[position]
        proto = target.node.add()
        ir.serde.serialize_node_into(proto, node.ir)
        proto.ClearField("doc_string")
        del proto.metadata_props[:]
        del proto.device_configurations[:]
        for output in node.outputs:
            if output >= 0 and output not in outputs and graph.values[output].ir.type is not None:
                _declare(target.value_info.add(), graph.values[output])


def _add_functions(target: onnx.ModelProto, model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    called: dict[ir.OperatorIdentifier, None] = {}
    stack = list(nodes) if model.functions else []
    while stack:
        node = stack.pop()
        for body in node_bodies(node):
            stack += body
        key = node.op_identifier()
        if key in model.functions and key not in called:
            called[key] = None
            stack += model.functions[key]
    for key, function in model.functions.items():
        if key in called:
            ir.serde.serialize_function_into(
                target.functions.add(),
                function,
                create_value_info=model.ir_version >= _FUNCTION_VALUE_INFO_IR_VERSION,
            )
