# SPDX-License-Identifier: Apache-2.0
"""The types of operators of ONNX Runtime's own domain, which exporters and its optimiser write.

`onnx.shape_inference` does not know them. For each that is listed here it gets a function of ONNX's
operators in its place, whose results have the same types and shapes, though not the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx.parser
import onnx.shape_inference

from intarsia.graph.ops import NamesOperator

MICROSOFT = "com.microsoft"
_STAND_INS = "intarsia.types"
_OPSET = 17
Stated = Callable[[onnx.NodeProto], str]


def _kept(node: onnx.NodeProto, names: Sequence[str]) -> str:
    """Return some attributes of a node as ONNX's text has them, in angle brackets."""
    stated = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    pairs = []
    for name in names:
        if name in stated:
            value = stated[name]
            if isinstance(value, bytes):
                text = f'"{value.decode()}"'
            else:
                text = str(list(value)) if isinstance(value, Sequence) else str(value)
            pairs.append(f"{name} = {text}")
    return f"<{', '.join(pairs)}>" if pairs else ""


def _like(text: str) -> Stated:
    return lambda _node: text


def _product(node: onnx.NodeProto) -> str:
    flags = {item.name: item.i for item in node.attribute}
    orders = ("kr" if flags.get("transA") else "rk", "ck" if flags.get("transB") else "kc")
    texts = []
    for number, (order, wanted) in enumerate(zip(orders, ("rk", "kc"), strict=True)):
        is_split = flags.get(f"transBatch{'AB'[number]}")
        given = f"{order[0]}...{order[1]}" if is_split else f"...{order}"
        texts.append(f'm{number} = Einsum<equation = "{given}->...{wanted}">(i{number})')
    return f"{' '.join(texts)} o0 = MatMul(m0, m1)"


def _product_by_blocks(node: onnx.NodeProto) -> str:
    """Return the result of MatMulNBits, whose weights have their shape in attributes."""
    k, n = (_number(node, name) for name in "KN")
    return (
        f"s1 = Constant<value_ints = [{k}, {n}]> () w1 = ConstantOfShape(s1)"
        " w2 = CastLike(w1, i0) o0 = MatMul(i0, w2)"
    )


def _present(past: int, new: int) -> Stated:
    """Return what joins a past, if there is one, and keys or values, (batch, length, width)."""

    def stated(node: onnx.NodeProto) -> str:
        name = f"o{new}"
        joined = f"Concat<axis = 2>(i{past}, {name}t)" if _has(node, past) else f"Identity({name}t)"
        return (
            f"{name}s = Constant<value_ints = [0, 0, {_number(node, 'num_heads')}, -1]> ()"
            f" {name}r = Reshape(i{new}, {name}s)"
            f" {name}t = Transpose<perm = [0, 2, 1, 3]>({name}r)"
            f" {name} = {joined}"
        )

    return stated


def _has(node: onnx.NodeProto, position: int) -> bool:
    return position < len(node.input) and bool(node.input[position])


def _multi_head(node: onnx.NodeProto) -> str:
    """Return the result of MultiHeadAttention: as wide as all heads of its values together."""
    if not _has(node, 1):
        return (
            "o0h = ReduceMax<axes = [3], keepdims = 0>(i0)"
            " o0s = Constant<value_ints = [0, 0, -1]> () o0 = Reshape(o0h, o0s)"
        )
    if not _has(node, 2):
        return "o0 = Identity(i0)"
    # Values are (batch, length, width) or (batch, heads, length, size).
    return (
        'o0h = Einsum<equation = "b...sv->b...v">(i2) o0s = Constant<value_ints = [0, -1]> ()'
        ' o0w = Reshape(o0h, o0s) o0 = Einsum<equation = "blh,bv->blv">(i0, o0w)'
    )


def _packed(node: onnx.NodeProto) -> str:
    """Return the result of Attention: as wide as the values that its product makes."""
    widths = next((item.ints for item in node.attribute if item.name == "qkv_hidden_sizes"), ())
    if widths:
        wide = (
            "w1 = Constant<value_ints = [0]> ()"
            f" w2 = Constant<value_ints = [{widths[2]}]> () w3 = Constant<value_ints = [1]> ()"
            " w4 = Slice(i1, w1, w2, w3)"
        )
    else:
        wide = (
            "w1 = Constant<value_ints = [0, 3, -1]> () w2 = Reshape(i1, w1)"
            " w4 = ReduceMax<axes = [1], keepdims = 0>(w2)"
        )
    return f"{wide} o0 = MatMul(i0, w4)"


def _packed_present(node: onnx.NodeProto) -> str:
    """Return the present of Attention, of keys and values together."""
    return (
        f"{_packed(node).replace('o0 =', 'o1y =').replace('w', 'v')}"
        f" o1s = Constant<value_ints = [0, 0, {_number(node, 'num_heads')}, -1]> ()"
        " o1h = Reshape(o1y, o1s) o1t = Transpose<perm = [0, 2, 1, 3]>(o1h)"
        " o1z = Constant<value_ints = [0]> () o1u = Unsqueeze(o1t, o1z)"
        " o1n = Concat<axis = 0>(o1u, o1u) o1 = Concat<axis = 3>(i4, o1n)"
    )


def _first_heads(name: str, source: str, heads: int, count: int) -> str:
    """Return what makes `{name}t` of heads that lie side by side: the first ones of each token."""
    return (
        f"{name}s = Constant<value_ints = [0, 0, {heads}, -1]> ()"
        f" {name}h = Reshape({source}, {name}s)"
        f" {name}b = Constant<value_ints = [0]> () {name}e = Constant<value_ints = [{count}]> ()"
        f" {name}x = Constant<value_ints = [2]> ()"
        f" {name}t = Slice({name}h, {name}b, {name}e, {name}x)"
    )


def _group_query(node: onnx.NodeProto) -> str:
    """Return the result of GroupQueryAttention, whose queries may have keys and values behind."""
    if len(node.input) > 1 and node.input[1]:
        return "o0 = Identity(i0)"
    heads, pairs = (_number(node, name) for name in ("num_heads", "kv_num_heads"))
    taken = _first_heads("o0", "i0", heads + 2 * pairs, heads)
    return f"{taken} o0j = Constant<value_ints = [0, 0, -1]> () o0 = Reshape(o0t, o0j)"


def _cache(position: int) -> Stated:
    """Return keys or values with those before, of which a value says how many there are."""

    def stated(node: onnx.NodeProto) -> str:
        name, past = f"o{position}", position + 2
        if len(node.input) > past and node.input[past]:
            return (
                f"{name}s = Constant<value_ints = [1]> () {name}r = Reshape(i6, {name}s)"
                f" {name}c = Cast<to = 9>({name}r) {name} = Compress<axis = 2>(i{past}, {name}c)"
            )
        heads, pairs = (_number(node, name) for name in ("num_heads", "kv_num_heads"))
        is_packed = not node.input[1]
        taken = _first_heads(
            name,
            "i0" if is_packed else f"i{position}",
            heads + 2 * pairs if is_packed else pairs,
            pairs,
        )
        return f"{taken} {name} = Transpose<perm = [0, 2, 1, 3]>({name}t)"

    return stated


def _number(node: onnx.NodeProto, name: str) -> int:
    return next((int(item.i) for item in node.attribute if item.name == name), 1)


_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_FIRST = _like("o0 = Identity(i0)")
_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _pooled(pooling: str) -> str:
    """Return what pools codes, which ONNX's operators do not take."""
    return f"f = Cast<to = 1>(i0) p = {pooling}(f) o0 = CastLike(p, i0)"


def _joined(node: onnx.NodeProto) -> str:
    operands = ", ".join(f"i{place}" for place in range(2, len(node.input), 3))
    return f"o0 = Concat{_kept(node, ('axis',))}({operands})"


_SUM = _like("o3 = Identity(i0)")

CONTRIBUTED: Mapping[str, Mapping[int, Stated]] = {
    "Attention": {0: _packed, 1: _packed_present},
    "BiasAdd": {0: _FIRST},
    "BiasGelu": {0: _like("o0 = Add(i0, i1)")},
    "BiasSoftmax": {0: _FIRST},
    "DecoderMaskedMultiHeadAttention": {
        0: _multi_head,
        1: _like("o1 = Identity(i5)"),
        2: _like("o2 = Identity(i6)"),
    },
    "EmbedLayerNormalization": {
        0: _like("o0 = Gather(i2, i0)"),
        1: _like("m1 = Cast<to = 6>(i0) o1 = ReduceMax<axes = [1], keepdims = 0>(m1)"),
        2: _like("o2 = Gather(i2, i0)"),
    },
    "FastGelu": {0: _FIRST},
    "FusedConv": {0: lambda node: f"o0 = Conv{_kept(node, _WINDOW)}(i0, i1)"},
    "FusedGemm": {0: lambda node: f"o0 = Gemm{_kept(node, ('transA', 'transB'))}(i0, i1)"},
    "FusedMatMul": {0: _product},
    "GatherND": {0: _like("o0 = GatherND(i0, i1)")},
    "Gelu": {0: _FIRST},
    "GroupNorm": {0: _FIRST},
    "GroupQueryAttention": {0: _group_query, 1: _cache(1), 2: _cache(2)},
    "MatMulNBits": {0: _product_by_blocks},
    "MultiHeadAttention": {
        0: _multi_head,
        1: _present(6, 1),
        2: _present(7, 2),
    },
    "QLinearAdd": {0: _like("o0 = Add(i0, i3)")},
    "QLinearAveragePool": {0: lambda node: _pooled(f"AveragePool{_kept(node, _POOL)}")},
    "QLinearConcat": {0: _joined},
    "QLinearGlobalAveragePool": {0: _like(_pooled("GlobalAveragePool"))},
    "QLinearLeakyRelu": {0: _FIRST},
    "QLinearMul": {0: _like("o0 = Mul(i0, i3)")},
    "QLinearSigmoid": {0: _FIRST},
    "QLinearSoftmax": {0: _FIRST},
    "QLinearWhere": {0: _like("o0 = Where(i0, i1, i4)")},
    "QuickGelu": {0: _FIRST},
    "RotaryEmbedding": {0: _FIRST},
    "SkipLayerNormalization": {0: _FIRST, 3: _SUM},
    "SkipSimplifiedLayerNormalization": {0: _FIRST, 3: _SUM},
    "TransposeMatMul": {0: _product},
    "Trilu": {0: _FIRST},
}
"""By operator and output, the nodes that make what has its type: `o0`, `o1`, ... of the inputs
`i0`, `i1`, ..."""


def with_stand_ins(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a skeleton in which functions stand in for the listed operators; itself without any.

    Operators that the model has functions for are its own.

    Args:
        proto: A skeleton; stays as it is.
    """
    own = {(function.domain, function.name) for function in proto.functions}
    places = [
        place
        for place, node in enumerate(proto.graph.node)
        if is_contributed(node) and (node.domain, node.op_type) not in own
    ]
    if not places:
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.opset_import.add(domain=_STAND_INS, version=1)
    for place in places:
        node = copy.graph.node[place]
        name = f"{node.op_type}_{place}"
        copy.functions.append(_function(node, name))
        node.domain, node.op_type = _STAND_INS, name
        del node.attribute[:]
    return copy


def is_contributed(node: NamesOperator) -> bool:
    """Tell whether a node's operator is listed here."""
    return node.domain == MICROSOFT and node.op_type in CONTRIBUTED


def contributed_types(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """Return the types of the results of a node whose operator is listed, by name.

    Args:
        node: The node.
        types: Of its operands, by name; dimensions may have names, which the results then have.
    """
    inputs = [onnx.ValueInfoProto(name=name, type=kind) for name, kind in types.items() if name]
    graph = onnx.helper.make_graph([node], "one", inputs, [])
    imports = [onnx.helper.make_opsetid(MICROSOFT, 1), onnx.helper.make_opsetid("", _OPSET)]
    alone = with_stand_ins(onnx.helper.make_model(graph, opset_imports=imports))
    inferred = onnx.shape_inference.infer_shapes(alone)
    return {info.name: info.type for info in inferred.graph.value_info}


def _function(node: onnx.NodeProto, name: str) -> onnx.FunctionProto:
    """Return a function for one node, with as many inputs and outputs."""
    bodies = CONTRIBUTED[node.op_type]
    inputs = ", ".join(f"i{number}" for number in range(len(node.input)))
    outputs = ", ".join(f"o{number}" for number in range(len(node.output)))
    lines = (
        stated(node)
        for number, stated in bodies.items()
        if number < len(node.output) and node.output[number]
    )
    header = f'<domain: "{_STAND_INS}", opset_import: ["": {_OPSET}]>'
    return onnx.parser.parse_function(
        f"{header} {name} ({inputs}) => ({outputs}) {{ {' '.join(lines)} }}"
    )
