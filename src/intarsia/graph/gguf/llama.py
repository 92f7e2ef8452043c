# SPDX-License-Identifier: Apache-2.0
"""A Llama in a GGUF file as an ONNX model in the layout of ONNX Runtime GenAI.

Products with narrow weights are MatMulNBits, with the file's own codes; attention with its cache
is GroupQueryAttention. llama.cpp turns pairs of neighbours in a head, for which its converter moved
the rows of queries and keys; they are moved back, so that halves turn, as in all other exports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import tape

from intarsia.graph.gguf.blocks import DECODERS
from intarsia.graph.gguf.container import Container, GgufTensor

_ARCHITECTURE = "llama"
_MICROSOFT = "com.microsoft"
_OPSETS = {"": 21, _MICROSOFT: 1}
_IR_VERSION = 10
_FLOAT = ir.DataType.FLOAT
_BASE = 10000.0
_INT8_ACTIVATIONS = 4  # `accuracy_level`: rows may be rounded to int8 by block, as llama.cpp does
_KNOWN = frozenset(
    f"{_ARCHITECTURE}.{key}"
    for key in (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "expert_count",
        "expert_used_count",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "tensor_data_layout",
        "vocab_size",
    )
)
"""What is read of a Llama, or changes nothing; another key may mean another function."""


_MOST_TURNS = 1 << 27
"""Positions times the elements of a head: a million positions of heads of 128."""


def _float_of(file: Container, key: str, default: float | None = None) -> float:
    """Return a number that is finite and above 0.

    Raises:
        ModelError: What the file says there is none.
    """
    found = file.setting(key, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < math.inf:
        raise file.error(f"says {found!r} under {key!r}", "a number above 0 is read")
    return float(found)


@dataclass(frozen=True, slots=True)
class _Size:
    """The sizes of a Llama."""

    layers: int
    width: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    positions: int
    epsilon: float

    @classmethod
    def read(cls, file: Container) -> _Size:
        """Read them, and refuse what is another network.

        Raises:
            ModelError: It is no Llama, or one with parts that are not written here.
        """
        found = file.setting("general.architecture")
        if found != _ARCHITECTURE:
            raise file.error(f"has a {found}, which is not read", f"{_ARCHITECTURE} is")

        def said(key: str, default: Any = None) -> Any:
            return file.setting(f"{_ARCHITECTURE}.{key}", default)

        for key in file.settings:
            if key.startswith(f"{_ARCHITECTURE}.") and key not in _KNOWN:
                raise file.error(f"has a setting {key!r}, which is not read", "use another model")

        def count(key: str, default: Any = None) -> int:
            found = said(key, default)
            if not isinstance(found, int) or isinstance(found, bool) or found < 1:
                raise file.error(
                    f"says {found!r} under '{_ARCHITECTURE}.{key}'", "a number from 1 on is read"
                )
            return found

        width, heads = count("embedding_length"), said("attention.head_count")
        key_heads = said("attention.head_count_kv", heads)
        if not all(isinstance(count, int) and count > 0 for count in (heads, key_heads)):
            raise file.error(f"has {heads} heads, {key_heads} of keys", "one number each is read")
        head = count("attention.key_length", width // heads)
        same = (said("attention.value_length", head), said("rope.dimension_count", head))
        if same != (head, head):
            raise file.error(
                f"has heads of {head}, values of {same[0]}, and turns {same[1]} of a head",
                "these must be the same",
            )
        if said("expert_count", 0):
            raise file.error("has a mixture of experts, which is not read", "use a dense model")
        layers, positions = count("block_count"), count("context_length")
        if layers > len(file.tensors):
            raise file.error(
                f"has {layers} layers and {len(file.tensors)} tensors", "convert the model again"
            )
        if positions * head > _MOST_TURNS:
            raise file.error(
                f"has {positions} positions for heads of {head}: tables of their angles have no"
                " room in memory",
                "convert the model with a shorter context",
            )
        hidden = count("feed_forward_length")
        epsilon = _float_of(file, f"{_ARCHITECTURE}.attention.layer_norm_rms_epsilon")
        return cls(layers, width, hidden, heads, key_heads, head, positions, epsilon)


@dataclass(frozen=True, slots=True)
class _ModelSheet:
    """A model that is being written, of the tensors of a file."""

    file: Container
    size: _Size
    tape: tape.Tape = field(default_factory=tape.Tape)
    used: set[str] = field(default_factory=set)

    def op(self, op_type: str, name: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node with one output, which has its name."""
        return self.ops(op_type, name, (name,), *inputs, **attributes)[0]

    def ops(
        self,
        op_type: str,
        name: str,
        outputs: Sequence[str],
        *inputs: ir.Value | None,
        domain: str = "",
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """Write a node."""
        values = [ir.Value(name=output) for output in outputs]
        return self.tape.op_multi_out(
            op_type, inputs, attributes, outputs=values, domain=domain, name=name
        )

    def keep(self, name: str, array: Any) -> ir.Value:
        """Keep an array as a constant."""
        return self.tape.initializer(ir.tensor(np.ascontiguousarray(array), name=name))

    def take(self, name: str, *shape: int) -> GgufTensor:
        """Return a tensor of the file."""
        self.used.add(name)
        return self.file.tensor(name, *shape)

    def linear(self, name: str, x: ir.Value, fan_in: int, width: int, heads: int = 0) -> ir.Value:
        """Multiply rows by a weight of the file.

        Args:
            name: Of the weight, and of the result.
            x: float32[..., fan_in].
            fan_in: Terms of a sum.
            width: Numbers of a row of the result.
            heads: In how many heads neighbours become halves; 0 in none.
        """
        tensor = self.take(f"{name}.weight", width, fan_in)
        return self.product(name, x, tensor, _rows_of_halves(heads, width))

    def product(
        self, name: str, x: ir.Value, tensor: GgufTensor, order: Any = slice(None)
    ) -> ir.Value:
        """Multiply rows by a tensor, whose rows are taken in an order."""
        weight = f"{name}.weight"
        if not tensor.is_narrow:
            return self.op("MatMul", name, x, self.keep(weight, tensor.numbers()[order].T))
        blocks = DECODERS[tensor.kind](tensor.raw[order])
        rows, count, _ = blocks.codes.shape
        operands = [self.keep(weight, blocks.codes), self.keep(f"{name}.scales", blocks.scales)]
        if blocks.zero_points is not None:
            operands.append(self.keep(f"{name}.zero_points", blocks.zero_points))
        return self.op(
            "MatMulNBits",
            name,
            x,
            *operands,
            domain=_MICROSOFT,
            K=count * blocks.size,
            N=rows,
            bits=blocks.bits,
            block_size=blocks.size,
            accuracy_level=_INT8_ACTIVATIONS,
        )

    def skip_norm(
        self, name: str, x: ir.Value, branch: ir.Value, scale: str
    ) -> tuple[ir.Value, ir.Value]:
        """Add a branch to what it started from; return the sum, and that normalised."""
        y, _, _, total = self.ops(
            "SkipSimplifiedLayerNormalization",
            name,
            (name, "", "", f"{name}.sum"),
            x,
            branch,
            self.scale(scale),
            domain=_MICROSOFT,
            epsilon=self.size.epsilon,
        )
        return total, y

    def scale(self, name: str) -> ir.Value:
        """Return the weights of a normalisation."""
        return self.keep(name, self.take(name, self.size.width).numbers())


def read_gguf(path: str | os.PathLike[str]) -> ir.Model:
    """Read a Llama.

    Its inputs are `input_ids` int64[batch, new], `attention_mask` int64[batch, total], and
    `past_key_values.N.key` and `.value` float32[batch, heads, past, head]; its outputs `logits`
    float32[batch, new, words], and `present.N.key` and `.value`.

    Args:
        path: Of a GGUF file. It has to stay as it is for as long as the model is used.

    Raises:
        ModelError: The file is damaged, or holds what is not read: another architecture, type of
            tensor or setting.
    """
    file = Container.open(path)
    size = _Size.read(file)
    sheet = _ModelSheet(file, size)
    inputs = _inputs(size)
    table = file.tensors.get("token_embd.weight")
    words = 0 if table is None else table.shape[0]
    table = sheet.take("token_embd.weight", words, size.width)
    ids, mask, *pasts = inputs
    last, total = _counts(sheet, mask)
    angles = _tables(sheet)
    x = _embed(sheet, table, ids)
    y = sheet.op(
        "SimplifiedLayerNormalization",
        "blk.0.attn_norm",
        x,
        sheet.scale("blk.0.attn_norm.weight"),
        axis=-1,
        epsilon=size.epsilon,
        stash_type=1,
    )
    presents: list[ir.Value] = []
    for i in range(size.layers):
        layer = f"blk.{i}"
        branch, *both = _attend(sheet, i, y, pasts[2 * i : 2 * i + 2], [last, total, *angles])
        presents += both
        name = f"{layer}.ffn_norm"
        x, y = sheet.skip_norm(name, x, branch, f"{name}.weight")
        name = f"blk.{i + 1}.attn_norm" if i + 1 < size.layers else "output_norm"
        x, y = sheet.skip_norm(name, x, _feed_forward(sheet, layer, y), f"{name}.weight")
    if "output.weight" in file.tensors:
        table = sheet.take("output.weight", words, size.width)
    logits = sheet.product("logits", y, table)
    unread = file.tensors.keys() - sheet.used
    if unread:
        raise file.error(
            f"has a tensor {min(unread)!r}, which this reader of Llamas does not know",
            "use another model",
        )
    return _finish(sheet, inputs, [logits, *presents], words)


def _embed(sheet: _ModelSheet, table: GgufTensor, ids: ir.Value) -> ir.Value:
    """Gather rows of the table of words; narrow ones become float32 when they are gathered."""
    name = "token_embd"

    def rows(part: str, array: Any) -> ir.Value:
        return sheet.op("Gather", f"{name}.{part}.rows", sheet.keep(f"{name}.{part}", array), ids)

    if not table.is_narrow:
        return rows("table", table.numbers())
    blocks = DECODERS[table.kind](table.raw)
    codes = sheet.op("Cast", f"{name}.cast", rows("codes", blocks.unpacked()), to=_FLOAT)
    points = blocks.zero_points
    if points is None:
        point = sheet.keep(f"{name}.zero_point", np.array(blocks.middle))
    else:
        point = rows("zero_points", points[..., None])
    codes = sheet.op("Sub", f"{name}.sub", codes, point)
    product = sheet.op("Mul", f"{name}.product", codes, rows("scales", blocks.scales[..., None]))
    shape = sheet.keep(f"{name}.shape", np.array([0, 0, sheet.size.width]))
    return sheet.op("Reshape", name, product, shape)


def _attend(
    sheet: _ModelSheet,
    number: int,
    x: ir.Value,
    pasts: Sequence[ir.Value],
    rest: Sequence[ir.Value],
) -> Sequence[ir.Value]:
    """Write attention; return its branch and both presents.

    Args:
        sheet: The model.
        number: Of the layer.
        x: float32[batch, new, width].
        pasts: Keys and values.
        rest: What else GroupQueryAttention reads: counts of tokens, cosines and sines.
    """
    size, layer = sheet.size, f"blk.{number}"
    wide, narrow = size.heads * size.head, size.key_heads * size.head
    context, *presents = sheet.ops(
        "GroupQueryAttention",
        f"{layer}.attn",
        (f"{layer}.attn", f"present.{number}.key", f"present.{number}.value"),
        sheet.linear(f"{layer}.attn_q", x, size.width, wide, size.heads),
        sheet.linear(f"{layer}.attn_k", x, size.width, narrow, size.key_heads),
        sheet.linear(f"{layer}.attn_v", x, size.width, narrow),
        *pasts,
        *rest,
        domain=_MICROSOFT,
        num_heads=size.heads,
        kv_num_heads=size.key_heads,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return [sheet.linear(f"{layer}.attn_output", context, wide, size.width), *presents]


def _feed_forward(sheet: _ModelSheet, layer: str, x: ir.Value) -> ir.Value:
    """Write the gated layers."""
    size = sheet.size
    gate = sheet.linear(f"{layer}.ffn_gate", x, size.width, size.hidden)
    silu = sheet.op("Sigmoid", f"{layer}.ffn_sigmoid", gate)
    silu = sheet.op("Mul", f"{layer}.ffn_silu", gate, silu)
    up = sheet.linear(f"{layer}.ffn_up", x, size.width, size.hidden)
    product = sheet.op("Mul", f"{layer}.ffn_product", silu, up)
    return sheet.linear(f"{layer}.ffn_down", product, size.hidden, size.width)


def _rows_of_halves(heads: int, width: int) -> Any:
    """Return in which order rows are taken so that neighbours in a head lie half a head apart."""
    if not heads:
        return slice(None)
    return np.arange(width).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _counts(sheet: _ModelSheet, mask: ir.Value) -> list[ir.Value]:
    """Return the position of each text's last token, and the length of the longest."""
    one, axis = sheet.keep("mask.one", np.array([1])), sheet.keep("mask.axis", np.array(1))
    count = sheet.op("ReduceSum", "mask.sum", mask, one, keepdims=1)
    last = sheet.op("Sub", "mask.last", count, one)
    total = sheet.op("Gather", "mask.total", sheet.op("Shape", "mask.shape", mask), axis)
    named = (("seqlens_k", last), ("total_seq_len", total))
    return [sheet.op("Cast", name, value, to=ir.DataType.INT32) for name, value in named]


def _tables(sheet: _ModelSheet) -> list[ir.Value]:
    """Return cosines and sines by position: float32[positions, head / 2]."""
    size, file = sheet.size, sheet.file
    base = _float_of(file, f"{_ARCHITECTURE}.rope.freq_base", _BASE)
    rates = base ** -(np.arange(0, size.head, 2) / size.head)
    if "rope_freqs.weight" in file.tensors:
        rates /= sheet.take("rope_freqs.weight", size.head // 2).numbers()
    scaling = file.setting(f"{_ARCHITECTURE}.rope.scaling.type", "none")
    if scaling == "linear":
        rates /= _float_of(file, f"{_ARCHITECTURE}.rope.scaling.factor")
    elif scaling != "none":
        raise file.error(f"scales positions by {scaling!r}", "none and linear are read")
    angles = np.outer(np.arange(size.positions), rates)
    return [
        sheet.keep(name, table(angles).astype(np.float32))
        for name, table in (("cos_cache", np.cos), ("sin_cache", np.sin))
    ]


def _inputs(size: _Size) -> list[ir.Value]:
    """Return the inputs: ids, mask, and keys and values of each layer."""
    pairs = [f"{i}.{kind}" for i in range(size.layers) for kind in ("key", "value")]
    past = ("batch_size", size.key_heads, "past_sequence_length", size.head)
    return [
        _declared(ir.Value(name="input_ids"), "INT64", "batch_size", "sequence_length"),
        _declared(ir.Value(name="attention_mask"), "INT64", "batch_size", "total_sequence_length"),
        *(_declared(ir.Value(name=f"past_key_values.{one}"), "FLOAT", *past) for one in pairs),
    ]


def _declared(value: ir.Value, dtype: str, *shape: int | str) -> ir.Value:
    """Declare the type and shape of a value, in place."""
    value.type = ir.TensorType(ir.DataType[dtype])
    value.shape = ir.Shape(shape)
    return value


def _finish(
    sheet: _ModelSheet, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], words: int
) -> ir.Model:
    """Return the model."""
    size = sheet.size
    present = ("batch_size", size.key_heads, "total_sequence_length", size.head)
    _declared(outputs[0], "FLOAT", "batch_size", "sequence_length", words)
    for value in outputs[1:]:
        _declared(value, "FLOAT", *present)
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=sheet.tape.nodes,
        initializers=sheet.tape.initializers,
        opset_imports=_OPSETS,
        name=_ARCHITECTURE,
    )
    return ir.Model(graph, ir_version=_IR_VERSION, producer_name="intarsia")
