# SPDX-License-Identifier: Apache-2.0
"""How quantised nodes are drawn: alone, and around an operator as exporters write them."""

from __future__ import annotations

import numpy as np

from intarsia.testing.graphs.draft import Draft
from intarsia.testing.graphs.windows import CHANNELS, window

_QUANTISED = ("int8", "uint8")


def scale(d: Draft, count: int | None = None, dtype: str = "float32") -> str:
    """Add the scale of a tensor, or one for each entry of an axis."""
    numbers = d.rng.uniform(0.01, 0.1, count)
    return d.constant(numbers, dtype) if d.chance(0.9) else d.fed(np.asarray(numbers, dtype))


def zero_point(d: Draft, dtype: str, count: int | None = None) -> str:
    """Add a zero point."""
    low, high = (-20, 20) if dtype.startswith("int") else (0, 200)
    if dtype == "int32" or d.chance(0.3):
        low = high = 0
    return d.constant(d.rng.integers(low, high + 1, count), dtype)


def quantize(d: Draft, op_type: str) -> None:
    """Draw QuantizeLinear: of a tensor, of each entry of an axis, or in blocks."""
    x = d.take(op_type, rank=(0, 4), dtypes=("float32", "float16"))
    array, dtype = d.array(x), d.pick(_QUANTISED)
    if d.opset < 19:  # noqa: PLR2004 - since then halves too
        x = x if array.dtype == np.float32 else d.new("float32", array.shape)
    _quantised(d, op_type, x, d.dtype_of(x), dtype)


def dequantize(d: Draft, op_type: str) -> None:
    """Draw DequantizeLinear, likewise."""
    x = d.take(op_type, rank=(0, 4), dtypes=(*_QUANTISED, "int32"))
    scales = "float16" if d.opset >= 19 and d.chance(0.15) else "float32"  # noqa: PLR2004
    _quantised(d, op_type, x, scales, d.dtype_of(x))


def _quantised(d: Draft, op_type: str, x: str, scales: str, dtype: str) -> None:
    shape = d.array(x).shape
    if shape and d.opset >= 13 and d.chance(0.3):  # noqa: PLR2004 - since then with an axis
        axis = d.axis(len(shape))
        count = shape[axis]
        pair = [scale(d, count, scales), zero_point(d, dtype, count)]
        d.op(op_type, [x, *pair], axis=axis)
        return
    inputs = [x, scale(d, None, scales)]
    if dtype != "uint8" or op_type == "DequantizeLinear" or d.chance(0.8):
        inputs.append(zero_point(d, dtype))
    d.op(op_type, inputs)


def dynamic(d: Draft, op_type: str) -> None:
    """Draw DynamicQuantizeLinear; its scale of zeros alone is 0 / 0."""
    d.op(op_type, [d.new("float32", d.shape(1, 4), low=-3, high=5)], 3)


def qlinear_matmul(d: Draft, op_type: str) -> None:
    """Draw QLinearMatMul."""
    rows, inner, columns = (d.between(1, 9) for _ in range(3))
    dtype, weights = d.pick(_QUANTISED), d.pick(_QUANTISED)
    inputs = [d.new(dtype, (rows, inner), kind="huge"), scale(d), zero_point(d, dtype)]
    inputs += [d.new(weights, (inner, columns)), scale(d), zero_point(d, weights)]
    d.op(op_type, [*inputs, scale(d), zero_point(d, dtype)])


def qlinear_conv(d: Draft, op_type: str) -> None:
    """Draw QLinearConv."""
    channels, outputs = d.pick((1, 3, 4, 8)), d.pick(CHANNELS)
    spatial = (d.between(3, 8), d.between(3, 8))
    attributes = window(d, spatial)
    dtype, weights = d.pick(_QUANTISED), d.pick(_QUANTISED)
    kernel = attributes["kernel_shape"]
    inputs = [d.new(dtype, (1, channels, *spatial), kind="huge"), scale(d), zero_point(d, dtype)]
    group = d.pick((1, 1, channels))
    outputs = channels if group > 1 else outputs
    inputs += [d.new(weights, (outputs, channels // group, *kernel), constant=1)]
    inputs += [scale(d), zero_point(d, weights), scale(d), zero_point(d, dtype)]
    if d.chance(0.4):
        inputs.append(d.constant(d.rng.integers(-90, 90, outputs), "int32"))
    d.op(op_type, inputs, **attributes, **({"group": group} if group > 1 else {}))


def around(d: Draft, x: str) -> str:
    """Quantise a value and dequantise it, as exporters do before and behind an operator."""
    dtype = d.pick(_QUANTISED)
    pair = [scale(d), zero_point(d, dtype)]
    quantised = d.op("QuantizeLinear", [x, *pair])[0]
    return d.op("DequantizeLinear", [quantised, *pair])[0]


def network(d: Draft) -> None:
    """Draw a few operators with quantised inputs, weights and outputs."""
    shape = (d.pick((1, 2)), d.pick((1, 3, 4, 8)), d.between(1, 6), d.between(1, 6))
    x = around(d, d.new("float32", shape, constant=0))
    for _ in range(d.between(1, 3)):
        kind = d.pick(("Conv", "Conv", "MatMul", "Add", "Relu", "MaxPool", "GlobalAveragePool"))
        channels, last = d.array(x).shape[1], d.array(x).shape[-1]
        if kind == "Conv":
            attributes = window(d, d.array(x).shape[2:])
            weights = _weights(d, (d.pick((1, 4, 8)), channels, *attributes["kernel_shape"]))
            bias = [d.weight("float32", (d.array(weights).shape[0],))] if d.chance(0.5) else []
            x = d.op("Conv", [x, weights, *bias], **attributes)[0]
        elif kind == "MatMul":
            x = d.op("MatMul", [x, _weights(d, (last, d.pick((1, 4, 8))))])[0]
        elif kind == "Add":
            x = d.op("Add", [x, around(d, d.new("float32", d.array(x).shape, constant=0.2))])[0]
        elif kind == "MaxPool":
            x = d.op("MaxPool", [x], **window(d, d.array(x).shape[2:], dilated=False))[0]
        else:
            x = d.op(kind, [x])[0]
        x = around(d, x)


def _weights(d: Draft, shape: tuple[int, ...]) -> str:
    whole = d.constant(d.rng.integers(-127, 128, shape), "int8")
    return d.op("DequantizeLinear", [whole, scale(d), d.constant(0, "int8")])[0]


RECIPES = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
}
"""By operator, how it is drawn."""
