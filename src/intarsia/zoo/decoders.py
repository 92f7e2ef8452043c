# SPDX-License-Identifier: Apache-2.0
"""Llamas that keep keys and values between steps, in the two layouts that exporters write.

`optimum`: a past of any length goes in, and comes out longer by the new tokens (a Concat for each
layer); the mask, the angles and the repetition of heads are spelled out. `genai`: as the model
builder of ONNX Runtime GenAI writes it, `GroupQueryAttention` turns, appends and attends, and past
and present may be one buffer. Both compute the same function of the same weights. `int4` is `genai`
with these in blocks of 4 bits.

Source of the network: Touvron et al., "LLaMA", 2023; Ainslie et al., "GQA", 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from intarsia.zoo.free import FreeSheet
from intarsia.zoo.transformers import Llama

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from intarsia.zoo.draft import Array

_OPSET = 20
_IR_VERSION = 10
_EPSILON = 1e-6
_BASE = 10000.0
_POSITIONS = 4096
_SHARPNESS = 2.0  # spread of scores: some positions weigh more than the mean of all
_SPREAD = 2.0  # of logits
_END = np.iinfo(np.int64).max
_MICROSOFT = "com.microsoft"
_BLOCK = 32
_ZERO_POINT, _MOST_CODE = 8, 15
_INT8_ACTIVATIONS = 4  # `accuracy_level`: rows may be rounded to int8 by block
_IDS, _MASK, _PLACES = "input_ids", "attention_mask", "position_ids"

HALF_BILLION = Llama(layers=28, width=1024, hidden=4096, heads=16, key_heads=4, words=32000)
"""491 million weights: 458 million in products, and the table of words."""


@dataclass(frozen=True, slots=True)
class _LlamaWeights:
    """The weights of a Llama, drawn in an order that no layout has a part in.

    Attributes:
        sheet: Where they are kept.
        size: Of the network.
        is_narrow: Whether products have blocks of 4 bits.
        shapes: Of the weights of products, by name: terms, columns.
    """

    sheet: FreeSheet
    size: Llama
    is_narrow: bool
    shapes: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def draw(cls, sheet: FreeSheet, size: Llama, *, is_narrow: bool = False) -> _LlamaWeights:
        """Draw them."""
        weights = cls(sheet, size, is_narrow)
        width, head = size.width, size.head
        gain = 1 / math.sqrt(2 * size.layers)
        sheet.normal("embeddings.weight", (size.words, width), 1.0)
        for i in range(size.layers):
            layer = f"layers.{i}"
            for name, fan_in, fan_out, spread in (
                ("attn.query", width, size.heads * head, _SHARPNESS),
                ("attn.key", width, size.key_heads * head, 1.0),
                ("attn.value", width, size.key_heads * head, 1.0),
                ("attn.output", size.heads * head, width, gain),
                ("mlp.gate", width, size.hidden, 1.0),
                ("mlp.up", width, size.hidden, 1.0),
                ("mlp.down", size.hidden, width, gain),
            ):
                weights.normal(f"{layer}.{name}", (fan_in, fan_out), spread)
            sheet.normal(f"{layer}.norm1.scale", (width,), 0.1, 1.0)
            sheet.normal(f"{layer}.norm2.scale", (width,), 0.1, 1.0)
        sheet.normal("norm.scale", (width,), 0.1, 1.0)
        weights.normal("head", (width, size.words), _SPREAD)
        return weights

    def normal(self, name: str, shape: tuple[int, int], spread: float) -> None:
        """Draw the weights of a product, whose results spread as said."""
        self.shapes[name] = shape
        drawn = self.sheet.rng.standard_normal(shape, dtype=np.float32)
        drawn *= np.float32(spread / math.sqrt(shape[0]))
        if self.is_narrow:
            codes, scales = _narrow(drawn)
            self.sheet.keep(f"{name}.codes", codes)
            self.sheet.keep(f"{name}.scales", scales)
        else:
            self.sheet.keep(f"{name}.weight", drawn)

    def linear(self, name: str, x: str, output: str = "") -> str:
        """Multiply rows by a weight; the result has the name of the product, or `output`."""
        if not self.is_narrow:
            return self.sheet.op("MatMul", output or name, x, f"{name}.weight")
        fan_in, fan_out = self.shapes[name]
        return self.sheet.op(
            "MatMulNBits",
            output or name,
            x,
            f"{name}.codes",
            f"{name}.scales",
            domain=_MICROSOFT,
            K=fan_in,
            N=fan_out,
            bits=4,
            block_size=_BLOCK,
            accuracy_level=_INT8_ACTIVATIONS,
        )

    def gated(self, name: str, x: str) -> str:
        """Write the gated layers."""
        sheet = self.sheet
        gate = self.linear(f"{name}.gate", x)
        silu = sheet.op("Mul", f"{name}.silu", gate, sheet.op("Sigmoid", f"{name}.sigmoid", gate))
        y = sheet.op("Mul", f"{name}.product", silu, self.linear(f"{name}.up", x))
        return self.linear(f"{name}.down", y)


def optimum(size: Llama, rng: np.random.Generator) -> ModelProto:
    """Build a Llama as Optimum exports one: keys and values grow by a Concat.

    Inputs are `input_ids` and `position_ids` int64[batch, seq], `attention_mask`
    int64[batch, past + seq], and `past_key_values.N.key` and `.value`
    float32[batch, heads, past, head]; outputs `logits` and `present.N.key` and `.value`.
    """
    sheet = FreeSheet(rng)
    weights = _LlamaWeights.draw(sheet, size)
    x = sheet.op("Gather", "embeddings", "embeddings.weight", _IDS, axis=0)
    angles = _angles(sheet, size)
    mask = _mask(sheet)
    for i in range(size.layers):
        name = f"layers.{i}"
        y = _norm(sheet, f"{name}.norm1", x)
        x = sheet.op("Add", f"{name}.add1", x, _attention(weights, i, y, angles, mask))
        y = _norm(sheet, f"{name}.norm2", x)
        x = sheet.op("Add", f"{name}.add2", x, weights.gated(f"{name}.mlp", y))
    weights.linear("head", _norm(sheet, "norm", x), "logits")
    return _finish(sheet, size, "past_sequence_length + sequence_length", (_IDS, _MASK, _PLACES))


def genai(size: Llama, rng: np.random.Generator) -> ModelProto:
    """Build a Llama as ONNX Runtime GenAI's builder does: attention is one operator.

    As `optimum`, but without `position_ids`; the past may be a buffer with room for more tokens,
    and the present the same one.
    """
    return _genai(size, rng, is_narrow=False)


def int4(size: Llama, rng: np.random.Generator) -> ModelProto:
    """Build a Llama as `genai` does, of the same weights in blocks of 32 that share a scale.

    Products are MatMulNBits: codes of 4 bits around 8, and scales that float16 has too, so that a
    GGUF file of Q4_0 holds the same.
    """
    return _genai(size, rng, is_narrow=True)


def _genai(size: Llama, rng: np.random.Generator, *, is_narrow: bool) -> ModelProto:
    sheet = FreeSheet(rng)
    weights = _LlamaWeights.draw(sheet, size, is_narrow=is_narrow)
    rates = np.outer(np.arange(_POSITIONS), _rates(size))
    tables = [
        sheet.keep(name, table(rates).astype(np.float32))
        for name, table in (("cos_cache", np.cos), ("sin_cache", np.sin))
    ]
    count = sheet.op("ReduceSum", "mask.sum", _MASK, sheet.integers("mask.axes", 1), keepdims=1)
    last = sheet.op("Sub", "mask.sub", count, sheet.integers("mask.one", 1))
    last = sheet.op("Cast", "seqlens_k", last, to=TensorProto.INT32)
    index = sheet.number("mask.index", 1)
    total = sheet.op("Gather", "mask.total", sheet.op("Shape", "mask.shape", _MASK), index, axis=0)
    total = sheet.op("Cast", "total_seq_len", total, to=TensorProto.INT32)
    x = sheet.op("Gather", "embeddings", "embeddings.weight", _IDS, axis=0)
    norm = "SimplifiedLayerNormalization"
    y = sheet.op(
        norm, "layers.0.norm1", x, "layers.0.norm1.scale", axis=-1, epsilon=_EPSILON, stash_type=1
    )
    for i in range(size.layers):
        name = f"layers.{i}"
        operands = [weights.linear(f"{name}.attn.{part}", y) for part in ("query", "key", "value")]
        pasts = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
        presents = [f"present.{i}.{kind}" for kind in ("key", "value")]
        branch = sheet.ops(
            "GroupQueryAttention",
            f"{name}.attn.GroupQueryAttention",
            (f"{name}.attn", *presents),
            *operands,
            *pasts,
            last,
            total,
            *tables,
            domain=_MICROSOFT,
            num_heads=size.heads,
            kv_num_heads=size.key_heads,
            do_rotary=1,
            rotary_interleaved=0,
        )
        x, y = _skip_norm(sheet, f"{name}.norm2", x, weights.linear(f"{name}.attn.output", branch))
        following = f"layers.{i + 1}.norm1" if i + 1 < size.layers else "norm"
        x, y = _skip_norm(sheet, following, x, weights.gated(f"{name}.mlp", y))
    weights.linear("head", y, "logits")
    return _finish(sheet, size, "total_sequence_length", (_IDS, _MASK))


def _narrow(weight: Any) -> tuple[Array, Array]:
    """Round a weight of (terms, columns) to 4 bits: codes by block, a byte for two, and scales."""
    blocks = np.ascontiguousarray(weight.T).reshape(weight.shape[1], -1, _BLOCK)
    extreme = np.take_along_axis(blocks, abs(blocks).argmax(-1, keepdims=True), -1)
    scales = (extreme * np.float32(-1 / _ZERO_POINT)).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(blocks / scales) + _ZERO_POINT, 0, _MOST_CODE).astype(np.uint8)
    return codes[..., ::2] | (codes[..., 1::2] << np.uint8(4)), scales[..., 0]


def _skip_norm(sheet: FreeSheet, name: str, x: str, branch: str) -> tuple[str, str]:
    """Add a branch to what it started from; return the sum, and that normalised."""
    total = f"{name}.sum"
    y = sheet.ops(
        "SkipSimplifiedLayerNormalization",
        name,
        (name, "", "", total),
        x,
        branch,
        f"{name}.scale",
        domain=_MICROSOFT,
        epsilon=_EPSILON,
    )
    return total, y


def _norm(sheet: FreeSheet, name: str, x: str) -> str:
    """Write a root-mean-square normalisation."""
    square = sheet.op("Pow", f"{name}.square", x, sheet.scalar(f"{name}.two", 2.0))
    axes = sheet.integers(f"{name}.axes", -1)
    mean = sheet.op("ReduceMean", f"{name}.mean", square, axes, keepdims=1)
    sure = sheet.op("Add", f"{name}.add", mean, sheet.scalar(f"{name}.epsilon", _EPSILON))
    root = sheet.op("Sqrt", f"{name}.root", sure)
    unit = sheet.op("Div", f"{name}.unit", sheet.scalar(f"{name}.one", 1.0), root)
    unit = sheet.op("Mul", f"{name}.normal", x, unit)
    return sheet.op("Mul", name, f"{name}.scale", unit)


def _rates(size: Llama) -> Any:
    """Return how fast each pair of a head turns: f64[head / 2]."""
    return _BASE ** -(np.arange(0, size.head, 2) / size.head)


def _angles(sheet: FreeSheet, size: Llama) -> list[str]:
    """Return the cosines and sines of the positions: float32[batch, 1, seq, head]."""
    rates = sheet.keep("rotary.rates", _rates(size).astype(np.float32)[None, :, None])
    axis = sheet.integers("rotary.axis", 1)
    places = sheet.op("Unsqueeze", "rotary.places", _PLACES, axis)
    places = sheet.op("Cast", "rotary.cast", places, to=TensorProto.FLOAT)
    angles = sheet.op("MatMul", "rotary.product", rates, places)
    angles = sheet.op("Transpose", "rotary.transpose", angles, perm=(0, 2, 1))
    angles = sheet.op("Concat", "rotary.angles", angles, angles, axis=-1)
    return [
        sheet.op("Unsqueeze", f"rotary.{op}.heads", sheet.op(op, f"rotary.{op}", angles), axis)
        for op in ("Cos", "Sin")
    ]


def _mask(sheet: FreeSheet) -> str:
    """Return what is added to scores: later keys and padding are closed."""

    def extent(name: str, x: str, axis: int) -> str:
        shape = sheet.op("Shape", f"{name}.shape", x)
        return sheet.op("Gather", name, shape, sheet.number(f"{name}.axis", axis), axis=0)

    past = extent("mask.past", "past_key_values.0.key", 2)
    total = sheet.op("Add", "mask.total", past, extent("mask.seq", _IDS, 1))
    zero, one = sheet.number("mask.zero", 0), sheet.number("mask.one", 1)
    keys = sheet.op("Range", "mask.keys", zero, total, one)
    queries = sheet.op("Range", "mask.queries", past, total, one)
    queries = sheet.op("Unsqueeze", "mask.column", queries, sheet.integers("mask.last", 1))
    later = sheet.op("Greater", "mask.later", keys, queries)
    padding = sheet.op("Equal", "mask.padding", _MASK, zero)
    padding = sheet.op("Unsqueeze", "mask.rows", padding, sheet.integers("mask.middle", 1, 2))
    closed = sheet.op("Or", "mask.closed", later, padding)
    low = sheet.scalar("mask.low", float(np.finfo(np.float32).min))
    return sheet.op("Where", "mask", closed, low, sheet.scalar("mask.open", 0.0))


def _attention(
    weights: _LlamaWeights, number: int, x: str, angles: Sequence[str], mask: str
) -> str:
    """Write attention over the past and new keys, both of which come out."""
    sheet, size, name = weights.sheet, weights.size, f"layers.{number}.attn"
    heads = {"query": size.heads, "key": size.key_heads, "value": size.key_heads}
    split = {}
    for part, count in heads.items():
        full = f"{name}.{part}"
        shape = sheet.integers(f"{full}.shape", 0, 0, count, size.head)
        rows = sheet.op("Reshape", f"{full}.split", weights.linear(full, x), shape)
        split[part] = sheet.op("Transpose", f"{full}.heads", rows, perm=(0, 2, 1, 3))
    query, key = (
        _turned(sheet, size, f"{name}.{part}", split[part], angles)
        for part in heads
        if part != "value"
    )
    both = []
    for part, new in (("key", key), ("value", split["value"])):
        past, present = (f"{side}.{number}.{part}" for side in ("past_key_values", "present"))
        whole = sheet.op("Concat", present, past, new, axis=2)
        both.append(_repeated(sheet, size, f"{name}.{part}", whole))
    keys = sheet.op("Transpose", f"{name}.transpose", both[0], perm=(0, 1, 3, 2))
    scores = sheet.op("MatMul", f"{name}.scores", query, keys)
    scale = sheet.scalar(f"{name}.scale", size.head**-0.5)
    scores = sheet.op("Mul", f"{name}.scaled", scores, scale)
    scores = sheet.op("Add", f"{name}.masked", scores, mask)
    shares = sheet.op("Softmax", f"{name}.softmax", scores, axis=-1)
    context = sheet.op("MatMul", f"{name}.context", shares, both[1])
    context = sheet.op("Transpose", f"{name}.back", context, perm=(0, 2, 1, 3))
    shape = sheet.integers(f"{name}.join.shape", 0, 0, size.heads * size.head)
    return weights.linear(f"{name}.output", sheet.op("Reshape", f"{name}.join", context, shape))


def _turned(sheet: FreeSheet, size: Llama, name: str, x: str, angles: Sequence[str]) -> str:
    """Turn each half of heads against the other one."""
    zero, half, end, axis, step = (
        sheet.integers(f"{name}.slice.{key}", value)
        for key, value in (("0", 0), ("half", size.head // 2), ("end", _END), ("axis", 3), ("1", 1))
    )
    first = sheet.op("Slice", f"{name}.first", x, zero, half, axis, step)
    second = sheet.op("Slice", f"{name}.second", x, half, end, axis, step)
    second = sheet.op("Neg", f"{name}.neg", second)
    across = sheet.op("Concat", f"{name}.across", second, first, axis=-1)
    straight = sheet.op("Mul", f"{name}.cos", x, angles[0])
    return sheet.op(
        "Add", f"{name}.turned", straight, sheet.op("Mul", f"{name}.sin", across, angles[1])
    )


def _repeated(sheet: FreeSheet, size: Llama, name: str, x: str) -> str:
    """Repeat each head for the queries that share it."""
    if size.heads == size.key_heads:
        return x
    axis = sheet.integers(f"{name}.repeat.axis", 2)
    one = sheet.op("Unsqueeze", f"{name}.one", x, axis)
    count = sheet.integers(f"{name}.repeat.count", 1, 1, size.heads // size.key_heads, 1, 1)
    many = sheet.op("Expand", f"{name}.many", one, count)
    shape = sheet.integers(f"{name}.repeat.shape", 0, size.heads, -1, size.head)
    return sheet.op("Reshape", f"{name}.repeated", many, shape)


def _finish(sheet: FreeSheet, size: Llama, total: str, inputs: Sequence[str]) -> ModelProto:
    """Return the model.

    Args:
        sheet: Its nodes and weights.
        size: Its sizes.
        total: What the length of the present is called.
        inputs: Names of its inputs but for the past.
    """
    new: list[str | int] = ["batch_size", "sequence_length"]
    mask = "total_sequence_length" if total == "total_sequence_length" else total
    shapes = {_IDS: new, _PLACES: new, _MASK: ["batch_size", mask]}
    declared: Callable[..., Any] = helper.make_tensor_value_info
    ends = [declared(name, TensorProto.INT64, shapes[name]) for name in inputs]
    results = [declared("logits", TensorProto.FLOAT, [*new, size.words])]
    for i in range(size.layers):
        for kind in ("key", "value"):
            for side, length, group in (
                ("past_key_values", "past_sequence_length", ends),
                ("present", total, results),
            ):
                shape = ["batch_size", size.key_heads, length, size.head]
                group.append(declared(f"{side}.{i}.{kind}", TensorProto.FLOAT, shape))
    used = {name for node in sheet.nodes for name in node.input}
    weights = [weight for weight in sheet.weights if weight.name in used]
    graph = helper.make_graph(sheet.nodes, "llama", ends, results, weights)
    domains = {node.domain for node in sheet.nodes}
    opsets = [helper.make_opsetid("", _OPSET)]
    if _MICROSOFT in domains:
        opsets.append(helper.make_opsetid(_MICROSOFT, 1))
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="intarsia.zoo"
    )
