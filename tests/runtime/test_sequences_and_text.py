# SPDX-License-Identifier: Apache-2.0
"""Sequences, optionals and text go to what takes them; all else around them stays where it was."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.errors import UnsupportedError
from intarsia.runtime.free import FreeExecutable

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
WORDS = np.array(["a", "b-", "Cd", "e"], object)

CASES = {
    "text is normalised": (
        """(string[4] s, float[4,8] x) => (string[k] t, float[4,8] y) {
        t = StringNormalizer<case_change_action = "UPPER", stopwords = ["b-"]>(s)
        a = Exp(x) y = Tanh(a) }""",
        {"s": WORDS, "x": X},
        {"Exp", "Tanh"},
    ),
    "text is joined and split": (
        """(string[4] s, float[4,8] x) => (string[4] t, float[4,8] y, string[a,b] u, int64[c] n) {
        t = StringConcat(s, s) u, n = StringSplit<delimiter = "-">(t)
        a = Exp(x) y = Tanh(a) }""",
        {"s": WORDS, "x": X},
        {"Exp", "Tanh"},
    ),
    "labels pick rows": (
        """(string[4] s, float[4,8] x) => (float[4,8] y) {
        k = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b-", "c"], values_int64s = [0, 1, 2],
                                    default_int64 = 3>(s)
        e = Gather(x, k) b = Exp(e) y = Mul(b, x) }""",
        {"s": WORDS, "x": X},
        {"Gather", "Exp", "Mul"},
    ),
    "numbers are read and written": (
        """(string[2] s, float[2] x) => (float[2] y, string[2] t) {
        f = Cast<to = 1>(s) e = Exp(x) y = Mul(e, f) r = Neg(f) t = Cast<to = 8>(r) }""",
        {"s": np.array(["1.5", "-2"], object), "x": X[0, :2]},
        {"Exp", "Mul", "Neg"},
    ),
    "a sequence is made and joined": (
        """(float[4,8] x, int64 i) => (float[4,8] y, float[a,b] all) {
        a = Exp(x) b = Neg(x) s = SequenceConstruct(a, b)
        d = Tanh(x) r = SequenceInsert(s, d) e = SequenceAt(r, i)
        all = ConcatFromSequence<axis = 0>(r) y = Add(e, x) }""",
        {"x": X, "i": np.array(1)},
        {"Exp", "Neg", "Tanh", "Add"},
    ),
    "a sequence comes and goes": (
        """(seq(float[4,8]) q, float[4,8] x) => (float[4,8] y, seq(float[4,8]) r) {
        one = Constant<value_int = 1>() e = SequenceAt(q, one)
        f = Exp(e) y = Add(f, x) r = SequenceInsert(q, y) }""",
        {"q": [X, -X, X], "x": X},
        {"Exp", "Add"},
    ),
    "parts of a tensor": (
        """(float[4,8] x) => (float[2,8] y, int64 n) {
        two = Constant<value_int = 2>() one = Constant<value_int = 1>()
        a = Exp(x) s = SplitToSequence<axis = 0>(a, two) e = SequenceAt(s, one)
        n = SequenceLength(s) y = Tanh(e) }""",
        {"x": X},
        {"Exp", "Tanh"},
    ),
    "an optional": (
        """(float[4,8] x) => (float[4,8] y, bool h) {
        a = Exp(x) o = Optional(a) h = OptionalHasElement(o)
        g = OptionalGetElement(o) y = Tanh(g) }""",
        {"x": X},
        {"Exp", "Tanh"},
    ),
    "labels of a free size": (
        """(string[N] s, float[N,8] x) => (float[N,8] y) {
        k = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "e"], values_floats = [0.5, 2.0]>(s)
        one = Constant<value_ints = [1]>() u = Unsqueeze(k, one)
        e = Exp(x) b = Mul(e, u) y = Tanh(b) }""",
        {"s": WORDS, "x": X},
        {"Unsqueeze", "Exp", "Mul", "Tanh"},
    ),
    "a sequence of a free size": (
        """(float[N,8] x, int64 i) => (float[N,8] y, float[a,b] all) {
        a = Exp(x) b = Neg(x) s = SequenceConstruct(a, b) e = SequenceAt(s, i)
        all = ConcatFromSequence<axis = 0>(s) q = Add(e, x) y = Tanh(q) }""",
        {"x": X, "i": np.array(1)},
        {"Exp", "Neg", "Add", "Tanh"},
    ),
}


def build(text):
    header = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]> g '
    return onnx.parser.parse_model(header + text)


def evaluate(name, model, feeds):
    """Return what ONNX Runtime makes of a model; to normalise text it would need a locale."""
    if name == "text is normalised":
        return ReferenceEvaluator(model).run(None, feeds)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


def assert_alike(actual, expected):
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_alike(one, other)
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    if expected.dtype.kind in "OUS":
        assert actual.tolist() == expected.tolist()
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("machine", ["llvm, onnxruntime", "openvino, llvm, onnxruntime"])
@pytest.mark.parametrize("name", CASES)
def test_only_what_reads_or_makes_them_is_elsewhere(name, machine, backends):
    text, feeds, wanted = CASES[name]
    model = build(text)
    exe = intarsia.compile(model, machine, backends=backends)
    expected = evaluate(name, model, feeds)
    for _ in range(2):
        outputs = exe.run(feeds)
    for output, value in zip(model.graph.output, expected, strict=True):
        assert_alike(outputs[output.name], value)
    if isinstance(exe, FreeExecutable):  # for all sizes, that of an entry is known only in a run
        exe = exe.specialise({"N": len(feeds["x"])})
        for output, value in zip(model.graph.output, expected, strict=True):
            assert_alike(exe.run(feeds)[output.name], value)
    first = machine.split(",")[0]
    placed = {
        node.op_type
        for region in exe.placement.regions
        if region.target.startswith(first)
        for node in region.nodes
    }
    assert placed == wanted


def test_what_no_target_takes_is_told_with_its_reason(backends):
    model = build(CASES["a sequence is made and joined"][0])
    exclude = ["onnxruntime:SequenceInsert", "llvm:SequenceInsert"]
    with pytest.raises(UnsupportedError, match=r"SequenceInsert.*SequenceInsert") as caught:
        intarsia.compile(model, "llvm, onnxruntime", exclude=exclude, backends=backends)
    assert caught.value.hint
