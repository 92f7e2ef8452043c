# SPDX-License-Identifier: Apache-2.0
"""How nodes are drawn that sum, compare or order along axes: products, reductions, recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from intarsia.testing.graphs.draft import FLOATS, Draft

REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
)


def matmul(d: Draft, op_type: str) -> None:
    """Draw MatMul of matrices, batches and vectors."""
    x = d.take(op_type, rank=(1, 4), dtypes=(*FLOATS, "int32", "int64"))
    shape, dtype = d.array(x).shape, d.dtype_of(x)
    if d.chance(0.1):
        d.op(op_type, [x, d.new(dtype, shape[-1:])])
        return
    columns = d.extent()
    batch = [d.pick((e, e, 1)) for e in shape[:-2]] if d.chance(0.35) else []
    d.op(op_type, [x, d.weight(dtype, (*batch, shape[-1], columns), shape[-1])])


def gemm(d: Draft, op_type: str) -> None:
    """Draw Gemm: transposed operands, factors, every form of C."""
    x = d.take(op_type, rank=(2, 2), dtypes=FLOATS)
    shape, dtype = d.array(x).shape, d.dtype_of(x)
    across, turned = d.between(0, 1), d.between(0, 1)
    rows, inner = shape[::-1] if across else shape
    columns = d.extent()
    inputs = [x, d.weight(dtype, (columns, inner) if turned else (inner, columns), inner)]
    if d.chance(0.7) or d.opset < 11:  # noqa: PLR2004 - since then C is optional
        options = ((columns,), (1, columns), (rows, columns), (rows, 1), (1,), ())
        inputs.append(d.weight(dtype, d.pick(options)))
    factors = d.some(alpha=d.pick((1.0, 0.5, 2.0)), beta=d.pick((1.0, 0.5, 0.0)))
    factors = factors if d.chance(0.4) else {}
    d.op(op_type, inputs, transA=across, transB=turned, **factors)


def matmul_integer(d: Draft, op_type: str) -> None:
    """Draw MatMulInteger, with zero points of each or all rows and columns."""
    x = d.take(op_type, rank=(2, 3))
    shape = d.array(x).shape
    columns = d.extent()
    y = d.new(d.pick(("int8", "uint8")), (shape[-1], columns), constant=0.7)
    inputs = [x, y]
    if d.chance(0.6):
        inputs.append(d.constant(np.array(d.between(0, 9)), d.dtype_of(x)))
        if d.chance(0.6):
            inputs.append(d.constant(np.array(d.between(0, 9)), d.dtype_of(y)))
    d.op(op_type, inputs)


def einsum(d: Draft, op_type: str) -> None:
    """Draw Einsum."""
    equation = d.pick(
        ("ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij->i", "i,j->ij", "bhid,bhjd->bhij")
    )
    sizes = {letter: d.between(1, 5) for letter in "bhijkd"}
    terms = equation.split("->")[0].split(",")
    dtype = d.pick(("float32", "float32", "float64", "int32"))
    inputs = [d.new(dtype, [sizes[letter] for letter in term]) for term in terms]
    d.op(op_type, inputs, equation=equation)


def reduction(d: Draft, op_type: str) -> None:
    """Draw a reduction of some axes, all or none; the axes are an attribute or an input."""
    x = d.take(op_type)
    rank = d.array(x).ndim
    axes = d.axes(rank, 1) if rank and d.chance(0.8) else None
    flags: dict[str, Any] = d.some(keepdims=d.between(0, 1))
    if d.has(op_type, "axes"):
        if d.opset < 11 and axes is not None:  # noqa: PLR2004 - since then axes count from behind
            axes = [axis % rank for axis in axes]
        d.op(op_type, [x], axes=axes, **flags)
        return
    if axes is None and d.chance(0.7):
        flags["noop_with_empty_axes"] = d.between(0, 1)
        inputs = [x, d.constant([], "int64")] if d.chance(0.5) else [x]
    else:
        inputs = [x] if axes is None else [x, d.fixed(axes)]
    d.op(op_type, inputs, **flags)


def arg(d: Draft, op_type: str) -> None:
    """Draw ArgMax or ArgMin, with ties."""
    x = d.take(op_type, rank=(1, 4))
    axis = d.axis(d.array(x).ndim)
    if d.opset < 11:  # noqa: PLR2004 - since then axes count from behind
        axis %= d.array(x).ndim
    flags = d.some(keepdims=d.between(0, 1), select_last_index=d.between(0, 1))
    d.op(op_type, [x], axis=axis, **flags)


def top_k(d: Draft, op_type: str) -> None:
    """Draw TopK."""
    x = d.take(op_type, rank=(1, 4))
    axis = d.axis(d.array(x).ndim)
    if d.opset < 11:  # noqa: PLR2004
        axis %= d.array(x).ndim
    count = d.fixed([d.between(0 if d.chance(0.05) else 1, d.array(x).shape[axis])], constant=0.9)
    d.op(op_type, [x, count], 2, axis=axis, **d.some(largest=d.between(0, 1), sorted=1))


def cum_sum(d: Draft, op_type: str) -> None:
    """Draw CumSum."""
    x = d.take(op_type, rank=(1, 4))
    axis = d.fixed(np.array(d.axis(d.array(x).ndim)), d.pick(("int64", "int32")))
    d.op(op_type, [x, axis], **d.some(reverse=d.between(0, 1), exclusive=d.between(0, 1)))


def det(d: Draft, op_type: str) -> None:
    """Draw Det."""
    n = d.between(1, 4)
    d.op(op_type, [d.new(d.pick(("float32", "float64")), (*d.shape(0, 2), n, n))])


def recurrent(d: Draft, op_type: str) -> None:
    """Draw RNN, GRU or LSTM: directions, optional inputs, layouts."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type]
    length, batch = d.between(1, 4), d.between(1, 3)
    inputs_, hidden = d.pick((1, 3, 8)), d.pick((1, 2, 5, 8))
    direction = d.pick(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    first = d.between(0, 1) if d.has(op_type, "layout") and d.chance(0.2) else 0
    x = d.new(
        "float32", (batch, length, inputs_) if first else (length, batch, inputs_), constant=0
    )
    w = d.weight("float32", (ways, gates * hidden, inputs_), inputs_)
    inputs = [x, w, d.weight("float32", (ways, gates * hidden, hidden), hidden)]
    bias = d.weight("float32", (ways, 2 * gates * hidden)) if d.chance(0.7) else ""
    lengths = d.rng.integers(1, length + 1, batch)
    state = (batch, ways, hidden) if first else (ways, batch, hidden)
    inputs += [bias, d.fixed(lengths, "int32", 0.5) if d.chance(0.25) else ""]
    inputs.append(d.new("float32", state) if d.chance(0.4) else "")
    flags: dict[str, Any] = {"hidden_size": hidden, "layout": first or None}
    if op_type == "LSTM":
        inputs.append(d.new("float32", state) if d.chance(0.4) else "")
        inputs.append(d.weight("float32", (ways, 3 * hidden)) if d.chance(0.2) else "")
        flags |= d.some(input_forget=0)
    if op_type == "GRU":
        flags |= d.some(linear_before_reset=d.between(0, 1))
    if d.chance(0.15):
        flags["clip"] = 0.5
    if ways == 2 or direction != "forward" or d.chance(0.5):  # noqa: PLR2004
        flags["direction"] = direction
    if op_type == "RNN" and d.chance(0.3):
        flags["activations"] = [d.pick(("Relu", "Tanh", "Sigmoid"))] * ways
    d.op(op_type, inputs, 3 if op_type == "LSTM" else 2, **flags)


def loss(d: Draft, op_type: str) -> None:
    """Draw NegativeLogLikelihoodLoss or SoftmaxCrossEntropyLoss."""
    n, c = d.between(1, 4), d.between(2, 5)
    extra = (d.between(1, 3),) * d.between(0, 1)
    inputs = [d.new("float32", (n, c, *extra)), d.fixed(d.rng.integers(0, c, (n, *extra)), "int64")]
    if d.chance(0.4):
        inputs.append(d.new("float32", (c,), low=0.1, high=2))
    reduction_ = d.pick(("mean", "sum", "none"))
    outputs = d.between(1, 2) if op_type.startswith("Softmax") else 1
    ignored = {"ignore_index": d.between(0, c - 1)} if d.chance(0.3) else {}
    d.op(op_type, inputs, outputs, **d.some(reduction=reduction_), **ignored)


def dft(d: Draft, op_type: str) -> None:
    """Draw DFT of real or complex numbers along the second dimension."""
    n, parts = d.between(2, 8), d.between(1, 2)
    x = d.new("float32", (d.between(1, 2), n, parts))
    onesided = d.between(0, 1) if parts == 1 else 0
    flags: dict[str, Any] = {"onesided": onesided, "inverse": 0 if onesided else d.between(0, 1)}
    length = d.fixed(np.array(n + d.between(-1, 2))) if d.chance(0.4) else ""
    if d.has(op_type, "axis"):
        d.op(op_type, [x, length], axis=1, **flags)
    else:
        d.op(op_type, [x, length, d.constant(np.array(1))], **flags)


def stft(d: Draft, op_type: str) -> None:
    """Draw STFT."""
    frame = d.pick((4, 8))
    x = d.new("float32", (d.between(1, 2), d.between(12, 24), 1))
    window = d.new("float32", (frame,), low=0, high=1)
    inputs = [x, d.constant(np.array(d.pick((2, 4)))), window, d.constant(np.array(frame))]
    d.op(op_type, inputs, onesided=d.between(0, 1))


def window(d: Draft, op_type: str) -> None:
    """Draw a window function."""
    size = d.fixed(np.array(d.between(1, 12)), "int64", 0.7)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(d.pick(("float32", "float64"))))
    d.op(op_type, [size], **d.some(periodic=d.between(0, 1), output_datatype=element))


def mel(d: Draft, op_type: str) -> None:
    """Draw MelWeightMatrix."""
    numbers: list[tuple[float, str]] = [(d.between(2, 6), "int64"), (d.pick((8, 16)), "int64")]
    numbers += [(8000, "int64"), (0.0, "float32"), (4000.0, "float32")]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(d.pick(("float32", "float64"))))
    inputs = [d.constant(np.array(number), dtype) for number, dtype in numbers]
    d.op(op_type, inputs, **d.some(output_datatype=element))


def suppression(d: Draft, op_type: str) -> None:
    """Draw NonMaxSuppression."""
    count, classes = d.between(2, 6), d.between(1, 2)
    corners = d.rng.uniform(0, 1, (1, count, 2))
    boxes = np.concatenate([corners, corners + d.rng.uniform(0.1, 1, (1, count, 2))], 2)
    scores = d.new("float32", (1, classes, count), low=0, high=1, constant=0)
    bounds = [d.constant([d.between(1, count)], "int64")]
    bounds += [d.constant([0.4], "float32"), d.constant([d.pick((0.0, 0.3))], "float32")]
    centred = d.some(center_point_box=d.between(0, 1))
    d.op(op_type, [d.fixed(boxes, "float32", 0.2), scores, *bounds], **centred)


RECIPES = {
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), recurrent),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), loss),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), window),
    "MatMul": matmul,
    "Gemm": gemm,
    "MatMulInteger": matmul_integer,
    "Einsum": einsum,
    "TopK": top_k,
    "CumSum": cum_sum,
    "Det": det,
    "DFT": dft,
    "STFT": stft,
    "MelWeightMatrix": mel,
    "NonMaxSuppression": suppression,
}
"""By operator, how it is drawn."""
