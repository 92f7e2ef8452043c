# SPDX-License-Identifier: Apache-2.0
"""What a backend cannot run it refuses, with the code that says why, and never takes."""

import numpy as np
import pytest

import intarsia
from intarsia.backends.registry import collect
from intarsia.compiler import read_setting
from intarsia.errors import ReasonCode, TargetError, UnsupportedError
from intarsia.place.request import Request

REFUSED = [
    (
        "openvino, onnxruntime",
        "g (double[2] x) => (double[2] y) { y = Neg(x) }",
        "Neg",
        ReasonCode.UNSUPPORTED_DTYPE,
    ),
    (
        "openvino, onnxruntime",
        "g (int64[2] x) => (int64[2] y) { y = Add(x, x) }",
        "Add",
        ReasonCode.UNSUPPORTED_DTYPE,
    ),
    (
        "openvino, onnxruntime",
        "g (float[2,3,3] x) => (float[2] y) { y = Det(x) }",
        "Det",
        ReasonCode.UNSUPPORTED_OP,
    ),
    (
        "openvino, onnxruntime",
        "g (float[4] x) => (int64[1,n] y) { y = NonZero(x) }",
        "NonZero",
        ReasonCode.DYNAMIC_SHAPE,
    ),
    (
        "openvino, onnxruntime",
        "g (string[2] x) => (string[4] y) { y = Concat<axis = 0>(x, x) }",
        "Concat",
        ReasonCode.UNSUPPORTED_DTYPE,
    ),
    (
        "onnxruntime, reference",
        "g (bfloat16[2] x) => (bfloat16[2] y) { y = Neg(x) }",
        "Neg",
        ReasonCode.UNSUPPORTED_DTYPE,
    ),
    (
        "openvino, reference",
        "g (float[2,3,3] x) => (float[2] y) { y = Det(x) }",
        "Det",
        ReasonCode.UNSUPPORTED_OP,
    ),
    (
        "fake -ops=Add, reference",
        "g (float[2] x) => (float[2] y) { y = Neg(x) }",
        "Neg",
        ReasonCode.UNSUPPORTED_OP,
    ),
    (
        "fake, reference",
        "g (float[4] x) => (int64[1,n] y) { y = NonZero(x) }",
        "NonZero",
        ReasonCode.DYNAMIC_SHAPE,
    ),
]


@pytest.mark.parametrize(("target", "text", "op_type", "code"), REFUSED)
def test_a_refusal_has_the_right_reason(target, text, op_type, code, parse_model, backends):
    model = parse_model(text, opset=22)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    (refusal,) = exe.placement.refusals
    assert (refusal.op_type, refusal.code) == (op_type, code)
    assert refusal.target == target.split(", ", maxsplit=1)[0]
    assert refusal.reason
    assert exe.placement.coverage()[refusal.target] == 0
    assert str(code) in exe.placement.shortfall


def test_openvino_refuses_an_if_whose_body_it_would_narrow(parse_model, backends):
    model = parse_model("""g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a)
                       { i = Cast<to = 7>(x) j = Mul(i, i) a = Cast<to = 1>(j) },
                   else_branch = e () => (float[2] b) { b = Neg(x) }>
    }""")
    request = Request(model=model, target="openvino, onnxruntime", backends=backends)
    openvino, _ = read_setting(request).capabilities
    (refusal,) = openvino.refusals.values()
    assert (refusal.op_type, refusal.code) == ("If", ReasonCode.UNSUPPORTED_OP)


def test_a_node_that_nobody_takes_is_an_error_with_every_refusal(parse_model, backends):
    model = parse_model("g (double[2,3,3] x) => (double[2] y) { d = Neg(x) y = Det(d) }")
    known = collect([backends.named("fake")])  # nothing to run what they refuse on the host
    with pytest.raises(UnsupportedError, match="Det") as caught:
        intarsia.compile(model, "fake:0 -ops=Neg, fake:1 -ops=Add", backends=known)
    assert [(r.target, r.code) for r in caught.value.refusals] == [
        ("fake -ops=Neg", ReasonCode.UNSUPPORTED_OP),
        ("fake:1 -ops=Add", ReasonCode.UNSUPPORTED_OP),
    ]
    assert caught.value.node == "y"
    assert caught.value.hint


@pytest.mark.parametrize(
    "target",
    [
        "onnxruntime -graph_optimization=fastest",
        "openvino -precision=f8, onnxruntime",
        "fake -fault=sulk, reference",
    ],
)
def test_an_unknown_value_of_an_attribute_is_an_error(target, chain_model, backends):
    with pytest.raises(TargetError, match="is not one of its values") as caught:
        intarsia.compile(chain_model, target, backends=backends)
    assert caught.value.hint.startswith("values: ")


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
def test_every_level_of_onnxruntime_works(
    level, chain_model, random_feeds, evaluate, assert_same, backends
):
    target = f"onnxruntime -graph_optimization={level} -num_threads=1"
    exe = intarsia.compile(chain_model, target, backends=backends)
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))


def test_a_lower_precision_of_openvino_is_asked_for_and_close(
    chain_model, random_feeds, evaluate, backends
):
    exe = intarsia.compile(chain_model, "openvino -precision=bf16, onnxruntime", backends=backends)
    feeds = random_feeds(chain_model)
    np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(chain_model, feeds)["y"], atol=0.1)
    assert exe.artifacts[0].metadata["precision"] == "bf16"
