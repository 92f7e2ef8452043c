# SPDX-License-Identifier: Apache-2.0
"""Models of float32 as models of halves: weights, inputs, outputs and casts."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from intarsia.arrays import np_dtype

ELEMENTS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How far rounding moves a number, relative to it."""


def in_halves(model, dtype):
    """Return a model with halves in the place of float32."""
    result, element = onnx.ModelProto(), ELEMENTS[dtype]
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            name, array = tensor.name, numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np_dtype(dtype)), name))
    for value in (*result.graph.input, *result.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = element
    del result.graph.value_info[:]
    if dtype == "bfloat16":  # convolutions and poolings of which ONNX has since then
        result.opset_import[0].version = max(22, result.opset_import[0].version)
    for node in result.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = element
    return result


def feeds_in_halves(feeds, dtype):
    """Return arrays with halves in the place of float32."""
    return {
        name: array.astype(np_dtype(dtype)) if array.dtype == np.float32 else array
        for name, array in feeds.items()
    }


def relative_error(got, want):
    """Return the root of the mean square of the differences over that of what is wanted."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.sqrt(np.sum((got - want) ** 2) / np.sum(want**2)))
