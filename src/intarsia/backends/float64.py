# SPDX-License-Identifier: Apache-2.0
"""A model's outputs computed in float64, to tell whose rounding is whose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from intarsia.arrays import Array
from intarsia.backends.evaluator import make_evaluator

_NARROW = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of the ONNX reference evaluator with float64 in place of narrower floats.

    Args:
        model: Stays as it is.
        feeds: An array per input, by name.
    """
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    for graph in _graphs(wider.graph):
        for tensor in graph.initializer:
            _widen(tensor)
        for node in graph.node:
            _widen_node(node)
    wide = {name: _wide(array) for name, array in feeds.items()}
    with np.errstate(all="ignore"):
        outputs = make_evaluator(wider).run(None, wide)
    return [np.asarray(output) for output in outputs]


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                stack += [attribute.g] if attribute.HasField("g") else []
                stack += attribute.graphs


def _widen_node(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen(attribute.t)
        if attribute.name in ("to", "dtype") and attribute.i in _NARROW:
            attribute.i = onnx.TensorProto.DOUBLE
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            single = attribute.name == "value_float"
            values = np.array(attribute.f if single else list(attribute.floats), np.float64)
            node.attribute[0].CopyFrom(
                onnx.helper.make_attribute("value", numpy_helper.from_array(values))
            )


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        wide = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array
