# SPDX-License-Identifier: Apache-2.0
"""Bodies in the place of their operators compute what these computed."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import intarsia
from intarsia.graph.load import load
from intarsia.passes.prepare import prepare

IF = """g (float[2,3] x) => (float[3] y, float[3] z)
        <int64[1] axis = {0}, bool c2 = {1}, bool c = {CONDITION}, float[3] w = {1, 2, 3}> {
    [first] s = ReduceSum<keepdims = 0>(x, axis)
    [cond] y, q = If(c) <
        then_branch = t () => (float[3] a, float[3] b) <float[3] k = {3, 2, 1}> {
            [one] a = Mul(s, k) [two] b = Add(a, w) },
        else_branch = e () => (float[3] d, float[3] f) {
            [three] d = Neg(s)
            [four] f = If(c2) <
                then_branch = tt () => (float[3] j) { j = Identity(s) },
                else_branch = te () => (float[3] h) { h = Sub(d, w) }> }>
    [last] z = Exp(q) }"""
LOOP = """g (float[3] x) => (float[3] y, float[n,3] all, float[n] counts)
        <int64 m = {COUNT}, bool yes = {1}, float[3] w = {1, 2, 3}> {
    p = Neg(x)
    s, all, counts = Loop(m, yes, x) <body = b
            (int64 i, bool on, float[3] v) => (bool go, float[3] u, float[3] row, float t)
            <float two = {2}> {
        go = Identity(on) f = Cast<to = 1>(i) t = Mul(f, two) h = Add(v, p) r = Mul(h, w)
        row = Identity(v)
        u = If(on) <then_branch = yes_ () => (float[3] o) { o = Tanh(r) },
                    else_branch = no_ () => (float[3] o2) { o2 = Add(r, t) }> }>
    y = Abs(s) }"""
GROWING = """g (float[3] x) => (float[24] y) <int64 m = {3}> {
    y = Loop(m, , x) <body = f (int64 i, bool on, float[k] v) => (bool on, float[j] u) {
        u = Concat<axis = 0>(v, v) }> }"""
SHAPES = """g (float[1,3] x) => (float[k] y)
        <int64 one = {1}, int64 zero = {0}, int64[1] at = {0}> {
    s = Shape(x) n = Gather(s, zero) c = Equal(n, one)
    r = If(c) <then_branch = t () => (float[3] a) { a = Squeeze(x, at) },
               else_branch = e () => (float[1,3] b) { b = Identity(x) }>
    y = Exp(r) }"""
CASES = {
    "then": (IF.replace("CONDITION", "1"), {"If"}),
    "else": (IF.replace("CONDITION", "0"), {"If"}),
    "loop": (LOOP.replace("COUNT", "4"), {"If", "Loop"}),
    "grows": (GROWING, {"Loop"}),
    "shapes": (SHAPES, {"If"}),
}


def expected_of(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("name", CASES)
def test_what_is_inlined_computes_the_same(
    name, opset, parse_model, random_feeds, assert_same, backends
):
    text, gone = CASES[name]
    model = parse_model(text, opset)
    prepared = prepare(load(model))
    assert gone.isdisjoint(node.op_type for node in prepared.graph.nodes)
    assert all(value.is_static for value in prepared.graph.values)
    onnx.checker.check_model(ir.to_proto(prepared.model), full_check=True)
    feeds = random_feeds(model)
    expected = expected_of(model, feeds)
    for machine in ("llvm", "onnxruntime"):
        exe = intarsia.compile(model, machine, backends=backends)
        assert_same(exe.run(feeds), expected)
        assert exe.plan.bodies == ()


def test_inlined_nodes_stand_for_their_operator(parse_model, backends):
    model = parse_model(CASES["then"][0])
    exe = intarsia.compile(model, "llvm, onnxruntime", backends=backends)
    origins = {n.name: n.origins for r in exe.placement.regions for n in r.nodes}
    assert origins["one"] == ("cond",)
    pinned = intarsia.compile(
        model, "llvm, onnxruntime", pins={"two": "onnxruntime"}, backends=backends
    )
    targets = {n.name: r.backend for r in pinned.placement.regions for n in r.nodes}
    assert (targets["one"], targets["two"]) == ("llvm", "onnxruntime")
    assert any(text.startswith("inline-bodies") for text in exe.explain().rewrites)


@pytest.mark.parametrize(
    "text",
    [
        LOOP.replace("COUNT", "40"),  # too many nodes
        LOOP.replace("COUNT", "0"),  # nothing to stack
        LOOP.replace("COUNT", "2").replace("go = Identity(on)", "go = Not(on)"),
    ],
)
def test_other_loops_stay(text, parse_model, random_feeds, evaluate, backends):
    model = parse_model(text)
    assert "Loop" in {node.op_type for node in prepare(load(model)).graph.nodes}
    feeds = random_feeds(model)
    exe = intarsia.compile(model, "llvm, onnxruntime", backends=backends)
    outputs = exe.run(feeds)
    if "{0}" in text.split("bool")[0]:
        np.testing.assert_array_equal(outputs["y"], np.abs(feeds["x"]))
        assert outputs["all"].shape == (0, 3)
        return
    for name, expected in expected_of(model, feeds).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)


def test_a_loop_of_no_iterations_hands_its_values_on(parse_model, backends):
    model = parse_model("""g (float[3] x) => (float[3] y) <int64 m = {0}> {
        y = Loop(m, , x) <body = b (int64 i, bool on, float[3] v) => (bool on, float[3] u) {
            u = Exp(v) }> }""")
    exe = intarsia.compile(model, "llvm", backends=backends)
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(exe.run({"x": x})["y"], x)
    assert {n.op_type for r in exe.placement.regions for n in r.nodes} <= {"Identity"}
