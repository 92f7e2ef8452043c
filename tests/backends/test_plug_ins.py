# SPDX-License-Identifier: Apache-2.0
"""A backend that misbehaves costs its own regions, and is named; it never crashes the rest."""

import logging

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.fake import FakeBackend
from intarsia.backends.reference import ReferenceBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Detection, Refusal, Rule
from intarsia.errors import BackendError, ReasonCode, TargetError, UnsupportedError
from intarsia.target import DeviceType, Target, TargetKind


class PlugIn(ReferenceBackend):
    """Computes as the reference does, under a kind that the catalogue describes."""

    name = "plug-in"
    kinds = ("bnns",)

    def detect(self):
        return Detection((Target("bnns"),))

    def rules(self, context):
        return (Rule("all", lambda graph, context: {}),)


@pytest.fixture
def compile_with(backends, parse_model):
    model = parse_model("g (float[4] x) => (float[4] y) { [one] a = Relu(x) [two] y = Neg(a) }")

    def run(backend, target="bnns, onnxruntime", **options):
        known = [found for name, found in backends.by_name.items() if name != backend.name]
        return intarsia.compile(model, target, backends=collect([*known, backend]), **options)

    return run


def test_a_rule_that_raises_is_an_error_of_ours(compile_with):
    class Bad(PlugIn):
        def rules(self, context):
            def refuse(graph, context):
                raise ZeroDivisionError("oops")

            return (Rule("bad", refuse),)

    with pytest.raises(BackendError, match=r"'plug-in' failed when asked.*ZeroDivisionError: oops"):
        compile_with(Bad())


def test_a_rule_that_answers_nothing_is_an_error_of_ours(compile_with):
    class Bad(PlugIn):
        def rules(self, context):
            return (Rule("bad", lambda graph, context: None),)

    with pytest.raises(BackendError, match=r"'plug-in' failed when asked.*TypeError"):
        compile_with(Bad())


def test_a_backend_without_rules_takes_nothing(compile_with):
    class Empty(PlugIn):
        def rules(self, context):
            return ()

    exe = compile_with(Empty())
    assert exe.placement.coverage() == {"bnns": 0, "onnxruntime": 2}


def test_detection_that_raises_is_a_warning(compile_with, caplog):
    class Bad(PlugIn):
        def detect(self):
            raise OSError("no driver")

    with caplog.at_level(logging.WARNING, "intarsia"):
        exe = compile_with(Bad(), target=None)
    assert exe.placement.fallback == "onnxruntime"
    assert "'plug-in' failed to detect its targets: no driver" in caplog.text


@pytest.mark.parametrize("error", [ValueError("odd"), UnsupportedError("not this one")])
def test_whatever_compile_raises_demotes_the_region(compile_with, error):
    class Bad(PlugIn):
        def compile(self, candidate, context):
            raise error

    exe = compile_with(Bad())
    assert exe.placement.coverage() == {"bnns": 0, "onnxruntime": 2}
    assert {refusal.code for refusal in exe.placement.refusals} == {ReasonCode.COMPILE_FAILED}


def test_a_refusal_by_check_keeps_its_code_and_its_node(compile_with):
    class Picky(PlugIn):
        def check(self, candidate, context):
            names = [candidate.region.graph.nodes[i].name for i in candidate.region.nodes]
            if "two" not in names:
                return None
            return Refusal("two", "Neg", "bnns", ReasonCode.MIN_SIZE, "too little to do", "none")

    exe = compile_with(Picky())
    (refusal,) = exe.placement.refusals
    assert (refusal.node, refusal.code) == ("two", ReasonCode.MIN_SIZE)
    assert refusal.reason == "too little to do"
    assert exe.placement.coverage() == {"bnns": 1, "onnxruntime": 1}
    with pytest.raises(UnsupportedError, match="min-size"):
        compile_with(Picky(), strict=True)


def test_accelerators_of_two_vendors_have_two_memories(backends, parse_model):
    class Accelerator(FakeBackend):
        name = "vendor"
        kinds = (TargetKind("vendor-npu", DeviceType.EXT_DEV),)

    model = parse_model("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Exp(b) }")
    known = collect([*backends.by_name.values(), Accelerator()])
    exe = intarsia.compile(
        model,
        "fake -ops=Relu, vendor-npu, onnxruntime",
        backends=known,
        pins={"y": "onnxruntime"},
    )
    assert exe.plan.devices == ("cpu:0", "ext_dev:0/fake", "ext_dev:0/vendor")
    assert [(row.source, row.destination) for row in exe.explain().copies] == [
        ("cpu:0", "ext_dev:0/fake"),
        ("ext_dev:0/fake", "ext_dev:0/vendor"),
        ("ext_dev:0/vendor", "cpu:0"),
    ]
    x = np.array([-1.0, 0.0, 1.0, 2.0], np.float32)
    np.testing.assert_allclose(exe(x), np.exp(-np.maximum(x, 0)), rtol=1e-6)


def test_there_is_one_cpu(compile_with):
    with pytest.raises(TargetError, match=r"'onnxruntime:1'.*one CPU"):
        compile_with(PlugIn(), target="onnxruntime, onnxruntime:1")


def test_a_result_of_another_shape_than_declared_is_an_error(backends, parse_model):
    model = parse_model("g (float[4] x, int64[1] n) => (float[8] y) { y = Tile(x, n) }")
    exe = intarsia.compile(model, "reference", backends=backends)
    with pytest.raises(intarsia.IntarsiaError, match=r"'y' came out as float32\[12\]"):
        exe.run({"x": np.ones(4, np.float32), "n": np.array([3])})


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, onnxruntime", "reference"])
def test_a_folded_constant_that_was_a_view_is_read_in_order(target, backends, parse_model):
    model = parse_model(
        """g (float[2,16] x, float[12,16] w) => (float[2,12] y)
        { t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t) }"""
    )
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((12, 16), dtype=np.float32)
    del model.graph.input[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = rng.standard_normal((2, 16), dtype=np.float32)
    exe = intarsia.compile(model, target, backends=backends)
    np.testing.assert_allclose(exe(x), x @ weights.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        ("y = Equal(a, b)", ("int32", [2**24 + 1], [2**24]), [False]),
        ("y = Add(a, b)", ("uint8", [200], [100]), [44]),
        ("y = Max(a, b)", ("int32", [2**24 + 1], [2**24]), [2**24 + 1]),
        ("y = Mul(a, b)", ("int64", [2**33], [3]), [3 * 2**33]),
    ],
)
def test_integers_are_exact_whoever_computes(body, inputs, expected, backends, parse_model):
    dtype, a, b = inputs
    result = "bool" if "Equal" in body else dtype
    model = parse_model(f"g ({dtype}[1] a, {dtype}[1] b) => ({result}[1] y) {{ {body} }}")
    exe = intarsia.compile(model, "openvino, reference", backends=backends)
    found = exe.run({"a": np.array(a, dtype), "b": np.array(b, dtype)})["y"]
    assert found.tolist() == expected


def test_types_below_a_byte_go_where_they_can_be_tried_alone(backends, parse_model, evaluate):
    model = parse_model(
        "g (float[5] x) => (float[5] y) { a = Cast<to = 22>(x) y = Cast<to = 1>(a) }", opset=21
    )
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    assert "packs several elements in a byte" in str(exe.placement.refusals[0])
    assert exe.placement.stand_ins == ("reference",)
    feeds = {"x": np.array([-9, -3.4, 0, 2.5, 7], np.float32)}
    np.testing.assert_array_equal(exe.run(feeds)["y"], evaluate(model, feeds)["y"])
