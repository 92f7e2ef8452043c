# SPDX-License-Identifier: Apache-2.0
"""Models from a few lines of text, with random weights, and inputs for them."""

import numpy as np
import onnx
from onnx import numpy_helper


def small_model(outputs, body, inputs=None, weights=None, opset=17):
    """Return a model of the nodes in `body`.

    Args:
        outputs: Names of the outputs, with commas; types and shapes follow from the nodes.
        body: Nodes in ONNX's text form, also of ONNX Runtime's domain.
        inputs: A shape, or an array of that dtype and shape, by name.
        weights: An array, or the shape of random weights, by name.
        opset: Of ONNX's main domain.
    """
    inputs = {"x": (1, 32, 5, 5)} if inputs is None else inputs
    rng = np.random.default_rng(7)
    arrays = {}
    for name, given in (weights or {}).items():
        is_shape = isinstance(given, tuple)
        arrays[name] = rng.standard_normal(given).astype(np.float32) if is_shape else given
    is_plain = "com.microsoft." not in body
    others = "" if is_plain else ', "com.microsoft": 1'
    header = f'<ir_version: 8, opset_import: ["": {opset}{others}]>'
    model = onnx.parser.parse_model(f"{header} g () => () {{ {body} }}")
    model.graph.input.extend(_declare(name, given) for name, given in inputs.items())
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"n{number}"
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for name in outputs.split(", "):
        # What ONNX Runtime's operators make has to be stated.
        empty = onnx.helper.make_empty_tensor_value_info(name)
        number = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        model.graph.output.append(empty if is_plain else number)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=is_plain, data_prop=True)
    if is_plain:  # else the shapes of outputs are not known
        onnx.checker.check_model(model)
    return model


def _declare(name, given):
    is_shape = isinstance(given, tuple)
    dtype, shape = (np.dtype(np.float32), given) if is_shape else (given.dtype, given.shape)
    element = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    return onnx.helper.make_tensor_value_info(name, element, shape)


def feeds_of(model, seed=0):
    """Return random arrays for a model's inputs."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        numbers = rng.standard_normal(shape) * 2
        feeds[value.name] = np.asarray(numbers > 0 if dtype.kind == "b" else numbers, dtype)
    return feeds
