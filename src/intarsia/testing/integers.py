# SPDX-License-Identifier: Apache-2.0
"""Random layers of integer networks, as models: each operator, in the ways in which it is written.

A layer is drawn from its name and a seed. Scales are such that results use the range of their type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import ge
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array

if TYPE_CHECKING:
    import onnx

_OPSET = 17


@dataclass(eq=False)
class _LayerDraft:
    """A layer that is being drawn, between Q and DQ nodes."""

    rng: np.random.Generator
    dtype: str
    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def number(self, low: int, high: int) -> int:
        """Draw an integer; both ends may come."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: Any) -> Any:
        """Draw one of some choices."""
        return choices[self.number(0, len(choices) - 1)]

    def scale(self, name: str, scale: float | Array, zero: int | None = None) -> tuple[str, str]:
        """Add a scale and a zero point."""
        dtype = np.dtype(self.dtype)
        limits = np.iinfo(dtype)
        if zero is None:
            zero = self.number(limits.min // 3, limits.max // 3)
        self.constants[f"{name}_s"] = np.asarray(scale, np.float32)
        self.constants[f"{name}_z"] = np.asarray(zero, dtype)
        return f"{name}_s", f"{name}_z"

    def operand(self, name: str, shape: tuple[int, ...], parameters: tuple[str, str]) -> str:
        """Add an input of codes, and what dequantises it."""
        from onnx import TensorProto, helper

        kind = TensorProto.UINT8 if self.dtype == "uint8" else TensorProto.INT8
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        self.node("DequantizeLinear", [name, *parameters], f"{name}_f")
        return f"{name}_f"

    def weights(self, name: str, codes: Array, scale: Array, axis: int) -> str:
        """Add constant codes of int8, and what dequantises them."""
        self.constants[name] = codes
        self.constants[f"{name}_s"] = scale.astype(np.float32)
        self.constants[f"{name}_z"] = np.zeros(scale.shape, codes.dtype)
        attributes = {"axis": axis} if scale.ndim else {}
        self.node("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], f"{name}_f", **attributes)
        return f"{name}_f"

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node."""
        from onnx import helper

        self.nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output


def _image(draft: _LayerDraft, channels: int | None = None) -> tuple[int, ...]:
    return (1, channels or draft.number(1, 9), draft.number(3, 9), draft.number(3, 9))


def _activation(draft: _LayerDraft, value: str) -> str:
    kind = draft.pick("", "Relu", "Clip")
    if kind == "Clip":
        draft.constants["low"] = np.asarray(0, np.float32)
        draft.constants["high"] = np.asarray(6, np.float32)
        return draft.node("Clip", [value, "low", "high"], "limited")
    return draft.node("Relu", [value], "limited") if kind else value


def _weighted(
    draft: _LayerDraft, count: int, axis: int, shape: tuple[int, ...], x_scale: float
) -> Any:
    """Add weights and a bias; return their names and about how large sums become."""
    rng = draft.rng
    codes = rng.integers(-127, 128, shape).astype(np.int8)
    by_channel = draft.pick(True, False)
    scale = rng.uniform(0.002, 0.02, (count,) if by_channel else ())
    weights = draft.weights("w", codes, np.asarray(scale), axis)
    terms = math.prod(shape) // count
    size = 70 * 70 * x_scale * float(np.mean(scale)) * math.sqrt(terms)
    if draft.pick(True, False):
        return weights, None, size
    units = np.float32(x_scale) * np.float32(scale)
    bias = np.rint(rng.normal(0, size / 2, count) / units).astype(np.int32)
    return weights, draft.weights("b", bias, np.asarray(units), 0), size


def _convolution(draft: _LayerDraft, is_depthwise: bool) -> str:
    channels = draft.number(2 if is_depthwise else 1, 9)
    shape = _image(draft, channels)
    count = channels * draft.number(1, 2) if is_depthwise else draft.number(1, 9)
    kernel = (draft.number(1, 3), draft.number(1, 3))
    x_scale = float(draft.rng.uniform(0.01, 0.1))
    x = draft.operand("x", shape, draft.scale("x", x_scale))
    inner = 1 if is_depthwise else channels
    weights, bias, size = _weighted(draft, count, 0, (count, inner, *kernel), x_scale)
    attributes: dict[str, Any] = {"strides": [draft.number(1, 2), draft.number(1, 2)]}
    if draft.pick(True, False):
        attributes["auto_pad"] = "SAME_UPPER"
    else:
        pads = [draft.number(0, extent - 1) for extent in kernel]
        attributes["pads"] = [*pads, *(draft.number(0, pad) for pad in pads)]
    if is_depthwise:
        attributes["group"] = channels
    inputs = [x, weights] if bias is None else [x, weights, bias]
    made = draft.node("Conv", inputs, "c", **attributes)
    return _quantised(draft, _activation(draft, made), size / 40)


def _quantised(
    draft: _LayerDraft, value: str, scale: float, parameters: tuple[str, str] | None = None
) -> str:
    return draft.node(
        "QuantizeLinear", [value, *(parameters or draft.scale("y", max(scale, 1e-6)))], "y"
    )


def _product(draft: _LayerDraft) -> str:
    rows, inner, count = draft.number(1, 4), draft.number(1, 40), draft.number(1, 20)
    x_scale = float(draft.rng.uniform(0.01, 0.1))
    x = draft.operand("x", (rows, inner), draft.scale("x", x_scale))
    if draft.pick(True, False):
        weights, bias, size = _weighted(draft, count, 0, (count, inner), x_scale)
        inputs = [x, weights] if bias is None else [x, weights, bias]
        made = draft.node("Gemm", inputs, "c", transB=1)
    else:
        weights, _, size = _weighted(draft, count, 1, (inner, count), x_scale)
        if draft.nodes[-1].output[0] == "b_f":
            draft.nodes.pop()
            for name in ("b", "b_s", "b_z"):
                del draft.constants[name]
        made = draft.node("MatMul", [x, weights], "c")
    return _quantised(draft, _activation(draft, made), size / 40)


def _pool(draft: _LayerDraft, op_type: str) -> str:
    shape, scale = _image(draft), float(draft.rng.uniform(0.01, 0.1))
    parameters = draft.scale("x", scale)
    x = draft.operand("x", shape, parameters)
    attributes: dict[str, Any] = {}
    has_same = op_type == "MaxPool" or draft.pick(True, False)
    if not op_type.startswith(("Global", "Reduce")):
        kernel = [draft.number(1, 3), draft.number(1, 3)]
        attributes = {"kernel_shape": kernel, "strides": [draft.number(1, 2), draft.number(1, 2)]}
        is_covered = all(map(ge, kernel, attributes["strides"]))  # ONNX Runtime takes no other
        if has_same and is_covered and draft.pick(True, False):
            attributes["auto_pad"] = "SAME_UPPER"
        elif draft.pick(True, False):
            pads = [draft.number(0, extent - 1) for extent in kernel]
            attributes["pads"] = [*pads, *pads]
            if op_type == "AveragePool":
                attributes["count_include_pad"] = 1
    elif op_type == "ReduceMean":
        attributes = {"axes": [2, 3], "keepdims": draft.number(0, 1)}
    made = draft.node(op_type, [x], "c", **attributes)
    same = parameters if has_same else draft.scale("y", scale * 0.6)
    return _quantised(draft, made, scale, same)


def _elementwise(draft: _LayerDraft, op_type: str) -> str:
    shape = draft.pick(_image(draft), (draft.number(1, 3), draft.number(1, 30)))
    scales = draft.rng.uniform(0.01, 0.1, 2)
    one = draft.operand("x", shape, draft.scale("x", float(scales[0])))
    if draft.pick(True, False):
        other = draft.operand("v", shape, draft.scale("v", float(scales[1])))
    else:
        codes = draft.rng.integers(-127, 128, (shape[1], 1, 1) if len(shape) == 4 else (1,))  # noqa: PLR2004
        other = draft.weights("v", codes.astype(np.int8), np.asarray(scales[1]), 0)
    made = draft.node(op_type, [one, other], "c")
    size = float(np.hypot(*scales)) if op_type != "Mul" else float(scales.prod()) * 40
    return _quantised(draft, _activation(draft, made), size)


def _concatenation(draft: _LayerDraft) -> str:
    shape, parts = list(_image(draft)), []
    axis = draft.number(1, 3)
    for name in ("x", "v", "u")[: draft.number(2, 3)]:
        shape[axis] = draft.number(1, 5)
        scale = draft.scale(name, float(draft.rng.uniform(0.01, 0.03)))
        parts.append(draft.operand(name, tuple(shape), scale))
    return _quantised(draft, draft.node("Concat", parts, "c", axis=axis), 0.03)


def _moved(draft: _LayerDraft, op_type: str) -> str:
    shape = _image(draft)
    parameters = draft.scale("x", 0.05)
    x = draft.operand("x", shape, parameters)
    inputs, attributes = [x], {}
    if op_type == "Reshape":
        draft.constants["to"] = np.asarray(draft.pick((1, -1), (shape[1], -1)), np.int64)
        inputs.append("to")
    elif op_type == "Transpose":
        attributes["perm"] = [0, *(1 + draft.rng.permutation(3)).tolist()]
    elif op_type == "Pad":
        draft.constants["to"] = np.asarray(
            [0, *(draft.number(0, 2) for _ in range(3)), 0, 0, 1, 2], np.int64
        )
        inputs.append("to")
    elif op_type == "Slice":
        draft.constants["starts"] = np.asarray([0, 1], np.int64)
        draft.constants["ends"] = np.asarray([shape[1], -1], np.int64)
        draft.constants["axes"] = np.asarray([1, 2], np.int64)
        inputs += ["starts", "ends", "axes"]
    elif op_type == "Resize":
        factor = draft.pick(2, 4)
        draft.constants["sizes"] = np.asarray(
            [*shape[:2], shape[2] * factor, shape[3] * factor], np.int64
        )
        inputs += ["", "", "sizes"]
        attributes = draft.pick(
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
             "nearest_mode": "floor"},
            {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"},
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
            {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
        )  # fmt: skip
    made = draft.node(op_type, inputs, "c", **attributes)
    same = parameters if draft.pick(True, False) else draft.scale("y", 0.07)
    return _quantised(draft, made, 0.05, same)


def _function(draft: _LayerDraft, op_type: str) -> str:
    shape = (draft.number(1, 3), draft.number(2, 12))
    x = draft.operand("x", shape, draft.scale("x", float(draft.rng.uniform(0.02, 0.08))))
    inputs, attributes = [x], {}
    if op_type == "Clip":
        draft.constants["low"] = np.asarray(0, np.float32)
        draft.constants["high"] = np.asarray(6, np.float32)
        inputs += ["low", "high"]
    elif op_type == "LeakyRelu":
        attributes["alpha"] = 0.1
    made = draft.node(op_type, inputs, "c", **attributes)
    low = np.iinfo(np.dtype(draft.dtype)).min
    if op_type in ("Softmax", "Sigmoid"):
        return _quantised(draft, made, 0, draft.scale("y", 1 / 256, low))
    if op_type == "Tanh":
        return _quantised(draft, made, 0, draft.scale("y", 1 / 128, low + 128))
    return _quantised(draft, made, 0.06)


_LAYERS: Mapping[str, Callable[[_LayerDraft], str]] = {
    "add": lambda draft: _elementwise(draft, "Add"),
    "average pool": lambda draft: _pool(draft, "AveragePool"),
    "clip": lambda draft: _function(draft, "Clip"),
    "concat": _concatenation,
    "conv": lambda draft: _convolution(draft, is_depthwise=False),
    "depthwise conv": lambda draft: _convolution(draft, is_depthwise=True),
    "fully connected": _product,
    "global average pool": lambda draft: _pool(draft, "GlobalAveragePool"),
    "global max pool": lambda draft: _pool(draft, "GlobalMaxPool"),
    "leaky relu": lambda draft: _function(draft, "LeakyRelu"),
    "max pool": lambda draft: _pool(draft, "MaxPool"),
    "mean": lambda draft: _pool(draft, "ReduceMean"),
    "mul": lambda draft: _elementwise(draft, "Mul"),
    "pad": lambda draft: _moved(draft, "Pad"),
    "relu": lambda draft: _function(draft, "Relu"),
    "reshape": lambda draft: _moved(draft, "Reshape"),
    "resize": lambda draft: _moved(draft, "Resize"),
    "sigmoid": lambda draft: _function(draft, "Sigmoid"),
    "slice": lambda draft: _moved(draft, "Slice"),
    "softmax": lambda draft: _function(draft, "Softmax"),
    "sub": lambda draft: _elementwise(draft, "Sub"),
    "tanh": lambda draft: _function(draft, "Tanh"),
    "transpose": lambda draft: _moved(draft, "Transpose"),
}

LAYERS = tuple(_LAYERS)
"""Names of the layers that can be drawn."""


def draw_layer(name: str, seed: int, dtype: str = "int8") -> onnx.ModelProto:
    """Return a model of one layer between DequantizeLinear and QuantizeLinear.

    Args:
        name: One of `LAYERS`.
        seed: Of sizes, attributes, scales and weights.
        dtype: Of the codes at its border; `int8` or `uint8`. Weights are int8.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draft = _LayerDraft(np.random.default_rng((LAYERS.index(name), seed)), dtype)
    output = _LAYERS[name](draft)
    kind = TensorProto.UINT8 if dtype == "uint8" else TensorProto.INT8
    graph = helper.make_graph(
        draft.nodes,
        name.replace(" ", "_"),
        draft.inputs,
        [helper.make_tensor_value_info(output, kind, None)],
        [numpy_helper.from_array(array, name) for name, array in draft.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


_WITH_SCALES = {
    "Add": "QLinearAdd",
    "AveragePool": "QLinearAveragePool",
    "Concat": "QLinearConcat",
    "Conv": "QLinearConv",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
    "LeakyRelu": "QLinearLeakyRelu",
    "MatMul": "QLinearMatMul",
    "Mul": "QLinearMul",
    "Sigmoid": "QLinearSigmoid",
    "Softmax": "QLinearSoftmax",
}
"""By operator, the one that has scales as inputs; all but two are ONNX Runtime's."""


def with_scales(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a layer as one node that has the scales as inputs; None if there is no such operator.

    An activation is left out.

    Args:
        model: What `draw_layer` drew.
    """
    from onnx import helper

    nodes = {node.output[0]: node for node in model.graph.node}
    main, last = nodes["c"], nodes["y"]
    op_type = _WITH_SCALES.get(main.op_type)
    if op_type is None:
        return None
    triples = [list(nodes[name].input) for name in main.input if name in nodes]
    result = list(last.input[1:])
    if main.op_type == "Concat":
        inputs = [*result, *(name for triple in triples for name in triple)]
    elif main.op_type == "Conv":
        bias = [triples[2][0]] if len(triples) > 2 else []  # noqa: PLR2004
        inputs = [*triples[0], *triples[1], *result, *bias]
    else:
        inputs = [*(name for triple in triples for name in triple), *result]
    is_onnx = op_type in ("QLinearConv", "QLinearMatMul")
    attributes = {item.name: helper.get_attribute_value(item) for item in main.attribute}
    if main.op_type == "Softmax":
        attributes |= {"axis": -1, "opset": _OPSET}
    domain = "" if is_onnx else "com.microsoft"
    node = helper.make_node(op_type, inputs, ["y"], name="y", domain=domain, **attributes)
    other = type(model)()
    other.CopyFrom(model)
    del other.graph.node[:], other.graph.value_info[:]
    other.graph.node.append(node)
    other.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    kept = [item for item in other.graph.initializer if item.name in inputs]
    del other.graph.initializer[:]
    other.graph.initializer.extend(kept)
    return other


def draw_codes(model: onnx.ModelProto, seed: int) -> dict[str, Array]:
    """Return codes for the inputs of a model, by name."""
    from onnx import helper

    rng, codes = np.random.default_rng(seed), {}
    for value in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        limits, shape = np.iinfo(dtype), [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        codes[value.name] = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    return codes
