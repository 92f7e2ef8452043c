# SPDX-License-Identifier: Apache-2.0
"""Encoders whose batch and length are free, as PyTorch's TorchScript exporter writes them.

With `dynamic_axes`, `torch.onnx.export` computes each shape while the model runs: Shape, Gather,
Unsqueeze and Concat before every Reshape, a Slice of the buffer of positions, and a mask made of
what is fed. Source of the network: Devlin et al., "BERT", 2018; Wang et al., "MiniLM", 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from intarsia.zoo.draft import Array
    from intarsia.zoo.transformers import Encoder

_OPSET = 17
_IR_VERSION = 8
_POSITIONS = 512
_EPSILON = 1e-12
_SHARPNESS = 2.0  # spread of scores: some positions weigh more than the mean of all
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(slots=True)
class FreeSheet:
    """A network that is being written; values are known by their names, shapes not at all."""

    rng: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def op(self, op_type: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Write a node with one output, which has its name."""
        return self.ops(op_type, name, (name,), *inputs, **attributes)

    def ops(
        self, op_type: str, name: str, outputs: Sequence[str], *inputs: str, **attributes: Any
    ) -> str:
        """Write a node with several outputs, and return the first one."""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name, **attributes))
        return outputs[0]

    def keep(self, name: str, array: Array) -> str:
        """Keep an array as a weight, and return its name."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, name: str, shape: tuple[int, ...], spread: float, centre: float = 0) -> str:
        """Draw a float32 weight."""
        drawn = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
        return self.keep(name, drawn + np.float32(centre))

    def integers(self, name: str, *numbers: int) -> str:
        """Write an int64 vector."""
        return self.op("Constant", name, value=numpy_helper.from_array(np.array(numbers, np.int64)))

    def number(self, name: str, number: int) -> str:
        """Write an int64 of no axes."""
        return self.op("Constant", name, value=numpy_helper.from_array(np.array(number, np.int64)))

    def scalar(self, name: str, number: float) -> str:
        """Write a float32 of no axes."""
        return self.op(
            "Constant", name, value=numpy_helper.from_array(np.array(number, np.float32))
        )

    def extent(self, name: str, x: str, axis: int) -> str:
        """Return one extent of a value, as a vector of one entry."""
        shape = self.op("Shape", f"{name}.shape", x)
        index = self.op(
            "Constant", f"{name}.index", value=numpy_helper.from_array(np.array(axis, np.int64))
        )
        scalar = self.op("Gather", f"{name}.extent", shape, index, axis=0)
        return self.op("Unsqueeze", name, scalar, self.integers(f"{name}.axes", 0))

    def norm(self, name: str, x: str, width: int) -> str:
        """Write a layer normalisation of rows."""
        scale = self.normal(f"{name}.scale", (width,), 0.1, 1.0)
        bias = self.normal(f"{name}.bias", (width,), 0.1)
        return self.op("LayerNormalization", name, x, scale, bias, axis=-1, epsilon=_EPSILON)

    def linear(self, name: str, x: str, fan_in: int, width: int, gain: float = 1.0) -> str:
        """Write a linear layer of rows."""
        weight = self.normal(f"{name}.weight", (fan_in, width), gain / math.sqrt(fan_in))
        product = self.op("MatMul", f"{name}.matmul", x, weight)
        return self.op("Add", name, self.normal(f"{name}.bias", (width,), 0.1 * gain), product)


def bert(size: Encoder, rng: np.random.Generator) -> ModelProto:
    """Build a BERT with inputs int64[batch, seq] and the outputs of its static counterpart."""
    sheet = FreeSheet(rng)
    x = _embeddings(sheet, size)
    mask = _mask(sheet)
    for i in range(size.layers):
        name = f"encoder.{i}"
        branch = _attention(sheet, f"{name}.attention", x, size, mask)
        x = sheet.norm(f"{name}.norm1", sheet.op("Add", f"{name}.add1", branch, x), size.width)
        branch = _mlp(sheet, f"{name}.mlp", x, size.width)
        last = i == size.layers - 1
        total = sheet.op("Add", f"{name}.add2", branch, x)
        x = sheet.norm("last_hidden_state" if last else f"{name}.norm2", total, size.width)
    first = numpy_helper.from_array(np.array(0, np.int64))
    token = sheet.op(
        "Gather", "pooler.first", x, sheet.op("Constant", "pooler.index", value=first), axis=1
    )
    weight = sheet.normal("pooler.weight", (size.width, size.width), 1 / math.sqrt(size.width))
    bias = sheet.normal("pooler.bias", (size.width,), 0.1)
    pooled = sheet.op("Gemm", "pooler.fc", token, weight, bias, transB=1)
    sheet.op("Tanh", "pooler_output", pooled)
    dims: dict[str, list[str | int]] = {
        "last_hidden_state": ["batch", "seq", size.width],
        "pooler_output": ["batch", size.width],
    }
    graph = helper.make_graph(
        sheet.nodes,
        f"{size.name}_free",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in _INPUTS],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in dims.items()],
        sheet.weights,
    )
    opset = helper.make_opsetid("", _OPSET)
    return helper.make_model(
        graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="intarsia.zoo"
    )


def _embeddings(sheet: FreeSheet, size: Encoder) -> str:
    width = size.width
    length = sheet.extent("embeddings.length", _INPUTS[0], 1)
    ids = sheet.keep("embeddings.position_ids", np.arange(_POSITIONS)[None])
    start, axes, step = (
        sheet.integers(f"embeddings.slice.{name}", number)
        for name, number in (("starts", 0), ("axes", 1), ("steps", 1))
    )
    positions = sheet.op("Slice", "embeddings.positions", ids, start, length, axes, step)
    tables = {
        "word": ((size.words, width), 1.0, _INPUTS[0]),
        "kind": ((2, width), 0.5, _INPUTS[2]),
        "position": ((_POSITIONS, width), 0.5, positions),
    }
    word, kind, position = (
        sheet.op("Gather", f"embeddings.{name}", sheet.normal(f"{name}.table", shape, spread), ids)
        for name, (shape, spread, ids) in tables.items()
    )
    total = sheet.op(
        "Add", "embeddings.add2", sheet.op("Add", "embeddings.add1", word, kind), position
    )
    return sheet.norm("embeddings.norm", total, width)


def _mask(sheet: FreeSheet) -> str:
    """Return what is added to the scores: float32[batch, 1, 1, seq]."""
    rows = sheet.op("Unsqueeze", "mask.rows", _INPUTS[1], sheet.integers("mask.axis1", 1))
    rows = sheet.op("Unsqueeze", "mask.heads", rows, sheet.integers("mask.axis2", 2))
    closed = sheet.op(
        "Sub", "mask.sub", sheet.scalar("mask.one", 1.0), sheet.op("Cast", "mask.cast", rows, to=1)
    )
    return sheet.op(
        "Mul", "mask", closed, sheet.scalar("mask.low", float(np.finfo(np.float32).min))
    )


def _attention(sheet: FreeSheet, name: str, x: str, size: Encoder, mask: str) -> str:
    width, heads = size.width, size.heads

    def split(part: str, perm: tuple[int, ...], gain: float) -> str:
        full = f"{name}.{part}"
        rows = sheet.linear(f"{full}.linear", x, width, width, gain)
        shape = sheet.op(
            "Concat",
            f"{full}.shape",
            sheet.extent(f"{full}.batch", rows, 0),
            sheet.extent(f"{full}.length", rows, 1),
            sheet.integers(f"{full}.heads", heads),
            sheet.integers(f"{full}.size", width // heads),
            axis=0,
        )
        parts = sheet.op("Reshape", f"{full}.split", rows, shape)
        return sheet.op("Transpose", full, parts, perm=perm)

    query = split("query", (0, 2, 1, 3), _SHARPNESS)
    key = split("key", (0, 2, 3, 1), 1.0)
    value = split("value", (0, 2, 1, 3), 1.0)
    scores = sheet.op("MatMul", f"{name}.scores", query, key)
    scale = sheet.scalar(f"{name}.scale", math.sqrt(width // heads))
    scores = sheet.op("Div", f"{name}.scaled", scores, scale)
    scores = sheet.op("Add", f"{name}.masked", scores, mask)
    weights = sheet.op("Softmax", f"{name}.softmax", scores, axis=-1)
    context = sheet.op("MatMul", f"{name}.context", weights, value)
    context = sheet.op("Transpose", f"{name}.transpose", context, perm=(0, 2, 1, 3))
    shape = sheet.op(
        "Concat",
        f"{name}.shape",
        sheet.extent(f"{name}.batch", context, 0),
        sheet.extent(f"{name}.length", context, 1),
        sheet.integers(f"{name}.width", width),
        axis=0,
    )
    joined = sheet.op("Reshape", f"{name}.join", context, shape)
    return sheet.linear(f"{name}.output", joined, width, width, size.gain)


def _mlp(sheet: FreeSheet, name: str, x: str, width: int) -> str:
    y = sheet.linear(f"{name}.up", x, width, 4 * width)
    root = sheet.scalar(f"{name}.root", math.sqrt(2))
    erf = sheet.op("Erf", f"{name}.erf", sheet.op("Div", f"{name}.div", y, root))
    one = sheet.op("Add", f"{name}.add", erf, sheet.scalar(f"{name}.one", 1.0))
    y = sheet.op("Mul", f"{name}.mul", y, one)
    y = sheet.op("Mul", f"{name}.half", y, sheet.scalar(f"{name}.half.scalar", 0.5))
    return sheet.linear(f"{name}.down", y, 4 * width, width)
