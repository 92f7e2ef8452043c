# SPDX-License-Identifier: Apache-2.0
"""Check: odd models are refused or computed, and raise nothing but a `BackendError`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.parser

from intarsia.arrays import np_dtype
from intarsia.errors import BackendError, ExecutionError
from intarsia.graph.region import Region
from intarsia.place.decide import cut_regions
from intarsia.testing.case import evaluate
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph

_HEADER = '<ir_version: 10, opset_import: ["" : {opset}, "com.example" : 1, "ai.onnx.ml" : 3]>\n'


@dataclass(frozen=True, slots=True)
class Odd:
    """A graph that few backends have thought of.

    Attributes:
        text: The graph, and functions after it, in ONNX's textual form.
        feeds: Values of inputs that are not drawn.
        has_answer: Whether the reference can evaluate it, and it is not a matter of chance.
        opset: Version of the operator set.
    """

    text: str
    feeds: Mapping[str, Any] | None = None
    has_answer: bool = True
    opset: int = 20


_STRINGS = {"x": np.array(["Straße", "naïve", ""], object)}
_BRANCHES = """
    y = If(c) <then_branch = t () => (float[2] a) { a = Add(x, w) },
               else_branch = e () => (float[2] b) { b = Neg(x) }>"""

ODDITIES: Mapping[str, Odd] = {
    "unknown_domain": Odd(
        "g (float[2] x) => (float[2] y) { y = com.example.Unheard(x) }", has_answer=False
    ),
    "classical_domain": Odd("""
        g (float[2,3] x) => (float[2,3] y)
        { y = ai.onnx.ml.Scaler<offset = [1.0, 2.0, 3.0], scale = [2.0, 2.0, 0.5]>(x) }"""),
    "inner_dynamic_shape": Odd("""
        g (float[2,3] x) => (float total) <int64[1] all = {0}>
        { n = NonZero(x) f = Cast<to = 1>(n) total = ReduceSum<keepdims = 0>(f) }"""),
    "dynamic_output": Odd("g (float[2,3] x) => (int64[2,n] y) { y = NonZero(x) }"),
    "fed_target_shape": Odd(
        "g (float[2,3] x, int64[2] s) => (float[n,m] y) { y = Reshape(x, s) }",
        {"s": np.array([3, 2])},
    ),
    "strings": Odd("g (string[3] x) => (string[6] y) { y = Concat<axis = 0>(x, x) }", _STRINGS),
    "string_identity": Odd("g (string[3] x) => (string[3] y) { y = Identity(x) }", _STRINGS),
    "string_constant": Odd(
        """
        g (string[3] x) => (bool[3] y) <string[1] s = {"naive"}> { y = Equal(x, s) }""",
        _STRINGS,
    ),
    "float8": Odd("""
        g (float[4] x) => (float[4] y) { a = Cast<to = 17>(x) y = Cast<to = 1>(a) }"""),
    "float8_output": Odd("g (float[4] x) => (float8e4m3fn[4] y) { y = Cast<to = 17>(x) }"),
    "bfloat16": Odd("g (bfloat16[4] x) => (bfloat16[4] y) { a = Neg(x) y = Add(a, a) }"),
    "int4": Odd(
        """
        g (float[4] x) => (float[4] y) { a = Cast<to = 22>(x) y = Cast<to = 1>(a) }""",
        {"x": np.array([1, -2, 7, 0], np.float32)},
        opset=21,
    ),
    "int8_arithmetic": Odd("g (int8[4] x) => (int8[4] y) { y = Add(x, x) }"),
    "uint16_arithmetic": Odd("g (uint16[4] x) => (uint16[4] y) { y = Mul(x, x) }"),
    "uint64_arithmetic": Odd("g (uint64[4] x) => (uint64[4] y) { y = Mul(x, x) }"),
    "complex": Odd("g (complex64[2] x) => (complex64[2] y) { y = Identity(x) }"),
    "if_with_captured_values": Odd(
        f"g (bool c, float[2] x, float[2] w) => (float[2] y) {{ {_BRANCHES} }}"
    ),
    "if_with_captured_constants": Odd(
        f"g (bool c, float[2] x) => (float[2] y) <float[2] w = {{1.0, 2.0}}> {{ {_BRANCHES} }}"
    ),
    "if_with_captured_inner_values": Odd(
        f"g (bool c, float[2] x) => (float[2] y, float[2] w) {{ w = Exp(x) {_BRANCHES} }}"
    ),
    "if_with_unlike_branches": Odd("""
        g (bool c, float[2,3] x) => (float[n,m] y) {
            y = If(c) <then_branch = t () => (float[3,2] a) { a = Transpose(x) },
                       else_branch = e () => (float[2,3] b) { b = Neg(x) }>
        }"""),
    "loop": Odd("""
        g (float[2] x) => (float[2] y) <int64 n = {3}, bool go = {1}> {
            y = Loop(n, go, x) <body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so)
                { co = Identity(ci) so = Add(s, x) }>
        }"""),
    "scan": Odd("""
        g (float[2] s0, float[4,2] x) => (float[2] s, float[4,2] y) {
            s, y = Scan<num_scan_inputs = 1,
                        body = b (float[2] si, float[2] xi) => (float[2] so, float[2] yo)
                        { so = Add(si, xi) yo = Mul(so, si) }>(s0, x)
        }"""),
    "sequence": Odd("""
        g (float[4,2] x) => (float[2,2] y) <int64 two = {2}, int64 one = {1}>
        { s = SplitToSequence<axis = 0>(x, two) y = SequenceAt(s, one) }"""),
    "local_function": Odd("""
        g (float[2] x) => (float[2] y) { y = com.example.twice(x) }
        <domain: "com.example", opset_import: ["" : 20]> twice (a) => (b) { b = Add(a, a) }"""),
    "chance": Odd(
        "g (float[8] x) => (float[8] y) { y = Bernoulli(x) }",
        {"x": np.full(8, 0.5, np.float32)},
        has_answer=False,
    ),
    "training_mode": Odd(
        """
        g (float[8] x) => (float[8] y) <float ratio = {0.5}, bool on = {1}>
        { y = Dropout(x, ratio, on) }""",
        has_answer=False,
    ),
    "first_output_absent": Odd("""
        g (float[3,1,2] x, float[1,12,2] w, float[1,12,3] r) => (float[1,1,3] h)
        { , h = LSTM<hidden_size = 3>(x, w, r) }"""),
    "optional_outputs": Odd("""
        g (float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i)
        { y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }"""),
    "all_outputs_of_a_norm": Odd("""
        g (float[2,4] x) => (float[2,4] y, float[2,1] m, float[2,1] d)
        <float[4] s = {1.0, 2.0, 0.5, 1.0}> { y, m, d = LayerNormalization(x, s) }"""),
    "not_finite": Odd(
        "g (float[4] x) => (float[4] y) { a = Add(x, x) y = Mul(a, x) }",
        {"x": np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)},
    ),
    "empty_constant": Odd("""
        g (float[2] x) => (float[2] y) <float[0] none = {}> { y = Concat<axis = 0>(x, none) }"""),
    "constant_node": Odd("""
        g (float[2] x) => (float[2] y) { c = Constant<value_floats = [1.0, -2.0]>() y = Add(x, c) }
        """),
    "rank_8": Odd("""
        g (float[1,2,1,2,1,2,1,2] x) => (float[2,1,2,1,2,1,2,1] y)
        { y = Transpose<perm = [7, 6, 5, 4, 3, 2, 1, 0]>(x) }"""),
    "recurrent": Odd("""
        g (float[3,1,2] x, float[1,12,2] w, float[1,12,3] r) => (float[3,1,1,3] y)
        { y = LSTM<hidden_size = 3>(x, w, r) }"""),
}
"""The odd models, by name."""

AWKWARD_NAMES = ("a b/c:0", 'quote"d', "", "naïve", "-t=1, x")
"""Names of values and nodes that text forms trip over; the empty one is of a node."""


def oddity_trials() -> Iterator[Trial]:
    """Yield one trial per oddity."""
    for name, odd in ODDITIES.items():
        yield Trial("oddities", name, partial(survive, name=name, odd=odd))
    yield Trial("oddities", "awkward_names", survive_names)


def survive(subject: Subject, name: str, odd: Odd) -> None:
    """Ask for an odd graph: the answer is a refusal or numbers."""
    model = onnx.parser.parse_model(_HEADER.format(opset=odd.opset) + odd.text)
    _offer(subject, model, name, odd)


def survive_names(subject: Subject) -> None:
    """Ask for a graph whose names hold blanks, quotes and letters of other languages."""
    odd = Odd("g (float[2] x) => (float[2] y) { a = Neg(x) b = Relu(a) y = Add(b, a) }")
    model = onnx.parser.parse_model(_HEADER.format(opset=odd.opset) + odd.text)
    names = dict(zip(("x", "a", "b", "y"), (n for n in AWKWARD_NAMES if n), strict=True))
    for node, name in zip(model.graph.node, AWKWARD_NAMES[1:], strict=False):
        node.name = name
        node.input[:] = [names[value] for value in node.input]
        node.output[:] = [names[value] for value in node.output]
    for value in (*model.graph.input, *model.graph.output):
        value.name = names[value.name]
    _offer(subject, model, "awkward_names", odd)


def _offer(subject: Subject, model: onnx.ModelProto, title: str, odd: Odd) -> None:
    graph = subject.graph(model)
    feeds = {**_draw(model), **(odd.feeds or {})}
    refused = subject.refusals(graph, title)
    values = evaluate(model, feeds) if odd.has_answer else feeds
    taken = [-1 if node in refused else 0 for node in range(len(graph.nodes))]
    for side, nodes in cut_regions(graph, taken):
        region = Region.of(graph, nodes)
        if side == 0 and all(graph.values[i].name in values for i in region.inputs):
            _compute(subject, region, values, title, odd)
    if len(refused) == len(graph.nodes):
        raise NotApplicable(_told(graph, refused))


def _compute(
    subject: Subject, region: Region, values: Mapping[str, Any], title: str, odd: Odd
) -> None:
    try:
        bound = subject.bind(subject.build(region, title), title)
    except ConformanceError as error:
        cause = error.__cause__
        if isinstance(cause, BackendError) and not isinstance(cause, ExecutionError):
            raise NotApplicable(f"refused late: {cause.message}") from None
        raise
    outputs = subject.run(bound, values, title)
    if odd.has_answer:
        subject.verify(outputs, values, title, REGION_FACTOR)


def _draw(model: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    feeds = {}
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if value.name in constants or tensor.elem_type == onnx.TensorProto.STRING:
            continue
        shape = [dim.dim_value for dim in tensor.shape.dim]
        name = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        array = rng.uniform(-2, 2, shape) if "float" in name else rng.integers(0, 2, shape)
        feeds[value.name] = array.astype(np_dtype(name))
    return feeds


def _told(graph: Graph, refused: Mapping[int, Any]) -> str:
    first = refused[min(refused)]
    return f"refused: {first.code}: {first.reason} ({graph.nodes[min(refused)].op_type})"
