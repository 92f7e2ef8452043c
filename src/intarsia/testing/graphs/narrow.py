# SPDX-License-Identifier: Apache-2.0
"""Whole graphs of narrow types: codes of 4, 8 and 16 bits as exporters write them, and halves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from onnx import TensorProto

from intarsia.testing.graphs.draft import DTYPES, Draft, Unfit
from intarsia.testing.graphs.growing import grow
from intarsia.testing.graphs.quantised import scale, zero_point
from intarsia.testing.graphs.windows import window

_BYTES = ("int8", "uint8")
_WIDE_CODES, BLOCKS = 21, 21
"""The operator set that brought codes of 4 and 16 bits, and the one that brought blocks."""

_HALF_SCALES = 19
"""The operator set that brought scales of float16."""

_RANGES = MappingProxyType({"int4": (-8, 7), "uint4": (0, 15), "int8": (-127, 127)})


def network(d: Draft) -> None:
    """Draw a network in which every tensor is quantised and dequantised, weights by channel too."""
    floats = "float16" if d.opset >= _HALF_SCALES and d.chance(0.15) else "float32"
    codes = d.pick(("int8", "uint8", "uint8", "int16", "uint16"))
    if d.opset < _WIDE_CODES and codes.endswith("16"):
        codes = "uint8"
    shape = (d.pick((1, 1, 2)), d.pick((3, 4, 8, 16, 17)), d.between(2, 8), d.between(2, 8))
    x = _around(d, d.new(floats, shape, constant=0), codes, floats)
    for _ in range(d.between(1, 5)):
        x = _around(d, d.pick(_LAYERS)(d, x, floats, codes), codes, floats)


def _around(d: Draft, x: str, codes: str, floats: str) -> str:
    """Quantise a value as wide as it is, and dequantise it."""
    span = float(np.max(np.abs(d.array(x).astype(np.float64)), initial=0)) or 1.0
    steps = np.iinfo(codes).max - (0 if codes.startswith("i") else np.iinfo(codes).max // 2)
    step = d.constant(span / steps * d.rng.uniform(0.6, 1.3), floats)
    middle = 0 if codes.startswith("i") else (np.iinfo(codes).max + 1) // 2
    if codes in _BYTES and d.chance(0.4):
        middle += d.between(-9, 9)
    pair = [step, d.constant(middle, codes)]
    quantised = d.op("QuantizeLinear", [x, *pair])[0]
    return d.op("DequantizeLinear", [quantised, *pair])[0]


def _weights(d: Draft, shape: Sequence[int], axis: int, floats: str) -> str:
    """Return weights of int8, with one scale or one for each entry of an axis."""
    codes = d.constant(d.rng.integers(-127, 128, shape), "int8")
    count = shape[axis] if d.chance(0.6) else None
    fan = np.prod(shape) / max(1, shape[axis])
    scales = d.constant(d.rng.uniform(0.5, 1, count) / 100 / fan**0.5, floats)
    zero = [d.constant(np.zeros(() if count is None else count), "int8")] if d.chance(0.6) else []
    by_axis = {} if count is None else {"axis": axis}
    return d.op("DequantizeLinear", [codes, scales, *zero], **by_axis)[0]


def _bias(d: Draft, count: int, floats: str) -> list[str]:
    """Return no bias, one of floats, or one of int32 that is dequantised."""
    if d.chance(0.4):
        return []
    if d.chance(0.5):
        return [d.weight(floats, (count,))]
    codes = d.constant(d.rng.integers(-900, 900, count), "int32")
    return [d.op("DequantizeLinear", [codes, d.constant(d.rng.uniform(1e-4, 1e-3), floats)])[0]]


def _conv(d: Draft, x: str, floats: str, codes: str) -> str:
    shape = d.array(x).shape
    if len(shape) != 4:  # noqa: PLR2004 - images
        return _product(d, x, floats, codes)
    channels = shape[1]
    attributes = window(d, shape[2:])
    group = d.pick((1, 1, channels))
    outputs = channels if group > 1 else d.pick((1, 4, 8, 16, 17))
    weights = _weights(d, (outputs, channels // group, *attributes["kernel_shape"]), 0, floats)
    inputs = [x, weights, *_bias(d, outputs, floats)]
    return d.op("Conv", inputs, **attributes, **({"group": group} if group > 1 else {}))[0]


def _product(d: Draft, x: str, floats: str, codes: str) -> str:
    shape, columns = d.array(x).shape, d.pick((1, 4, 8, 16, 17, 33))
    if len(shape) == 2 and d.chance(0.6):  # noqa: PLR2004 - matrices
        turned = d.between(0, 1)
        size = (columns, shape[1]) if turned else (shape[1], columns)
        inputs = [x, _weights(d, size, 1 - turned, floats), *_bias(d, columns, floats)]
        return d.op("Gemm", inputs, transB=turned)[0]
    if d.chance(0.3):  # of two computed operands, as in attention
        last = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        other = _around(d, d.op("Transpose", [x], perm=last)[0], codes, floats)
        return d.op("MatMul", [x, other])[0]
    product = d.op("MatMul", [x, _weights(d, (shape[-1], columns), 1, floats)])[0]
    bias = _bias(d, columns, floats)
    return d.op("Add", [product, *bias])[0] if bias else product


def _residual(d: Draft, x: str, floats: str, codes: str) -> str:
    other = _around(d, d.new(floats, d.array(x).shape, constant=0.1), codes, floats)
    operands = [x, other] if d.chance(0.7) else [other, x]
    return d.op(d.pick(("Add", "Mul", "Sub")), operands)[0]


def _pool(d: Draft, x: str, floats: str, codes: str) -> str:
    shape = d.array(x).shape
    if len(shape) != 4:  # noqa: PLR2004 - images
        return d.op("Relu", [x])[0]
    kind = d.pick(("MaxPool", "AveragePool", "GlobalAveragePool"))
    if kind == "GlobalAveragePool":
        return d.op(kind, [x])[0]
    return d.op(kind, [x], **window(d, shape[2:], dilated=False))[0]


def _function(d: Draft, x: str, floats: str, codes: str) -> str:
    kinds = ["Relu", "Sigmoid", "LeakyRelu", "Tanh", "Softmax", "HardSigmoid", "Clip"]
    kind = d.pick(kinds)
    if kind == "Clip":
        return d.op(kind, [x, d.constant(0, floats), d.constant(d.pick((1, 6)), floats)])[0]
    return d.op(kind, [x], **({"axis": -1} if kind == "Softmax" else {}))[0]


def _join(d: Draft, x: str, floats: str, codes: str) -> str:
    other = _around(d, d.new(floats, d.array(x).shape, constant=0.1), codes, floats)
    return d.op("Concat", [x, other], axis=d.pick((0, 1, -1)))[0]


def _move(d: Draft, x: str, floats: str, codes: str) -> str:
    shape = d.array(x).shape
    if d.chance(0.5):
        return d.op("Transpose", [x], perm=d.rng.permutation(len(shape)).tolist())[0]
    if len(shape) > 2 and d.chance(0.6):  # noqa: PLR2004 - matrices stay
        return d.op("Flatten", [x], axis=1)[0]
    return d.op("Reshape", [x, d.constant([shape[0], -1, shape[-1]], "int64")])[0]


_LAYERS: tuple[Callable[[Draft, str, str, str], str], ...] = (
    *(_conv, _conv, _conv, _product, _product, _product),
    *(_residual, _pool, _function, _function, _join, _move),
)


def operators(d: Draft) -> None:
    """Draw a chain of operators that compute with codes: QLinearConv and QLinearMatMul."""
    codes, weights = d.pick(_BYTES), d.pick(_BYTES)
    shape = (1, d.pick((3, 4, 8, 16)), d.between(3, 8), d.between(3, 8))
    step, zero = scale(d), zero_point(d, codes)
    x = d.op("QuantizeLinear", [d.new("float32", shape, constant=0), step, zero])[0]
    for _ in range(d.between(1, 3)):
        shape = d.array(x).shape
        ends = [d.constant(d.rng.uniform(0.01, 0.1), "float32"), zero_point(d, codes)]
        if d.chance(0.6):
            attributes = window(d, shape[2:])
            group = d.pick((1, 1, shape[1]))
            outputs = shape[1] if group > 1 else d.pick((1, 4, 8, 16, 17))
            size = (outputs, shape[1] // group, *attributes["kernel_shape"])
            count = outputs if d.chance(0.4) else None
            own = [d.new(weights, size, constant=1, kind="huge"), _small(d, count)]
            own.append(
                zero_point(d, weights) if count is None else d.constant([0] * count, weights)
            )
            bias = [d.constant(d.rng.integers(-90, 90, outputs), "int32")] if d.chance(0.5) else []
            more = {"group": group} if group > 1 else {}
            x = d.op("QLinearConv", [x, step, zero, *own, *ends, *bias], **attributes, **more)[0]
        else:
            size = (shape[-1], d.pick((1, 4, 8, 17)))
            own = [d.new(weights, size, constant=1, kind="huge"), _small(d), zero_point(d, weights)]
            x = d.op("QLinearMatMul", [x, step, zero, *own, *ends])[0]
        step, zero = ends
    d.op("DequantizeLinear", [x, step, zero])


def _small(d: Draft, count: int | None = None) -> str:
    return d.constant(d.rng.uniform(0.002, 0.01, count), "float32")


def dynamic(d: Draft) -> None:
    """Draw products whose operand is quantised while running, as quantisers without samples do."""
    rows, inner, columns = d.between(1, 9), d.pick((4, 16, 17, 64)), d.pick((1, 4, 8, 17))
    lead = (d.between(1, 3),) * d.between(0, 1)
    x = d.new("float32", (*lead, rows, inner), constant=0, kind="plain")
    for _ in range(d.between(1, 2)):
        codes, step, zero = d.op("DynamicQuantizeLinear", [x], 3)
        dtype = d.pick(_BYTES)
        weights = d.new(dtype, (inner, columns), constant=1, kind="huge")
        zeros = [zero_point(d, dtype)] if d.chance(0.7) else []
        whole = d.op("MatMulInteger", [codes, weights, zero, *zeros])[0]
        wide = d.op("Cast", [whole], to=TensorProto.FLOAT)[0]
        count = columns if d.chance(0.4) else None
        x = d.op("Mul", [wide, d.op("Mul", [step, _small(d, count)])[0]])[0]
        if d.chance(0.5):
            x = d.op("Add", [x, d.weight("float32", (columns,))])[0]
        if d.chance(0.4):
            x = d.op("Relu", [x])[0]
        inner = columns


def blocks(d: Draft) -> None:
    """Draw products with weights of 4 or 8 bits that have a scale for each block."""
    if d.opset < BLOCKS:
        raise Unfit("no blocks before operator set 21")
    floats = "float16" if d.chance(0.25) else "float32"
    block = d.pick((16, 16, 32))
    inner = block * d.between(1, 4)
    lead = (d.between(1, 3),) * d.between(0, 1)
    x = d.new(floats, (*lead, d.pick((1, 1, 2, 5, 9)), inner), constant=0, kind="plain")
    for _ in range(d.between(1, 2)):
        columns = d.pick((1, 4, 8, 16, 17, 32, 48))
        x = d.op("MatMul", [x, _blocked(d, (inner, columns), block, floats)])[0]
        if d.chance(0.4):
            x = d.op("Add", [x, d.weight(floats, (columns,))])[0]
        if d.chance(0.4):
            x = d.op(d.pick(("Relu", "Sigmoid", "Tanh")), [x])[0]
        inner, block = columns, 16 if columns % 32 else d.pick((16, 32))
        if inner % block:
            break


def _blocked(d: Draft, shape: tuple[int, int], block: int, floats: str) -> str:
    """Return weights in blocks along the rows, by column, or with one scale."""
    dtype = d.pick(("int4", "int4", "uint4", "int8"))
    low, high = _RANGES[dtype]
    codes = d.constant(d.rng.integers(low, high + 1, shape), dtype)
    form = d.pick(("blocks", "blocks", "blocks", "columns", "one"))
    size: tuple[int, ...] = {
        "blocks": (shape[0] // block, shape[1]),
        "columns": shape[1:],
        "one": (),
    }[form]
    span = (high - low) / 2 * shape[0] ** 0.5
    scales = d.constant(d.rng.uniform(0.5, 2, size) / span, floats)
    zeros = []
    if dtype == "uint4" or d.chance(0.3):
        middle = d.rng.integers(5, 11, size) if dtype == "uint4" else d.rng.integers(-2, 3, size)
        zeros = [d.constant(middle, dtype)]
    attributes = {"blocks": {"axis": 0, "block_size": block}, "columns": {"axis": 1}, "one": {}}
    return d.op("DequantizeLinear", [codes, scales, *zeros], **attributes[form])[0]


_OF_HALVES = (
    *("MatMul", "MatMul", "Gemm", "Conv", "Add", "Mul", "Sub", "Div", "Relu", "Sigmoid", "Tanh"),
    *("Softmax", "LayerNormalization", "ReduceMean", "ReduceSum", "Erf", "Exp", "Sqrt", "Where"),
    *("Transpose", "Reshape", "Slice", "Concat", "Cast", "MaxPool", "AveragePool", "Clip", "Max"),
    *("HardSigmoid", "Gelu", "HardSwish", "Pow", "Unsqueeze", "Squeeze", "Split", "Pad"),
)
"""Operators that networks of halves are made of."""


def halves(dtype: str) -> Callable[[Draft], None]:
    """Return what draws a graph in which all that is float is of one type of halves."""

    def draw(d: Draft) -> None:
        d.dtype = dtype
        known = [name for name in DTYPES if not name.startswith("float")]
        d.dtypes = (dtype, *known)
        d.kind = "plain" if d.chance(0.7) else d.kind
        grow(d, _OF_HALVES, d.between(2, 9))

    return draw


_OF_INTEGERS = (
    *("Add", "Sub", "Mul", "Max", "Min", "Div", "Mod", "Relu", "Clip", "Where", "Equal", "Abs"),
    *("Greater", "Cast", "ReduceMax", "ReduceMin", "MaxPool", "Concat", "Transpose", "Pad"),
    *("Slice", "Gather", "MatMulInteger", "ConvInteger", "Sign", "BitShift", "BitwiseAnd"),
    *("ReduceSum", "TopK", "ArgMax", "Reshape", "Tile", "Expand"),
)
"""Operators on integers that images and masks are worked on with."""


def integers(d: Draft) -> None:
    """Draw a graph of 8-bit integers, as images and masks are worked on."""
    d.dtype = d.pick(_BYTES)
    d.kind = d.pick(("plain", "huge"))
    grow(d, _OF_INTEGERS, d.between(2, 8))


FORMS: Mapping[str, Callable[[Draft], None]] = MappingProxyType(
    {
        "network": network,
        "operators": operators,
        "dynamic": dynamic,
        "blocks": blocks,
        "float16": halves("float16"),
        "bfloat16": halves("bfloat16"),
        "integers": integers,
    }
)
"""By name, how a graph of narrow types is drawn."""
