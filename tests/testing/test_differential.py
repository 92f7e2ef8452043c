# SPDX-License-Identifier: Apache-2.0
"""Random graphs against judges: what agrees, what does not, what is kept, and what is seen."""

import json
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import pytest

import intarsia
from intarsia.arrays import np_dtype
from intarsia.backends.defects import forgotten
from intarsia.backends.openvino_defects import DEFECTS
from intarsia.errors import BackendError
from intarsia.testing.differential import (
    BAD,
    GraphVerdict,
    Judged,
    Results,
    compare,
    judge_seed,
    run,
)
from intarsia.testing.differential.campaign import SOMEWHERE, SPARSE, TARGETS, groups_of, plan_of
from intarsia.testing.differential.joining import (
    JoinedGraphs,
    join_models,
    judge_together,
    keys_of,
)
from intarsia.testing.differential.mended import MENDED
from intarsia.testing.differential.rounding import RUNS, Evaluation
from intarsia.testing.differential.rounds import (
    keep_rounds,
    read_rounds,
    total_verdicts,
)
from intarsia.testing.differential.shrinking import describe, shrink
from intarsia.testing.differential.sight import find, switches
from intarsia.testing.differential.unrolling import body_name, unroll
from intarsia.testing.graphs import OPERATORS, GraphFamily

NAN, INF = float("nan"), float("inf")


def array(*numbers):
    return np.array(numbers, np.float32)


def differs(found, *judges, moved=(), is_signed=False):
    differences = compare(
        {"y": found}, [{"y": one} for one in judges], lambda: moved, is_signed=is_signed
    )
    return differences[0].effect if differences else ""


@pytest.mark.parametrize(
    ("found", "wanted", "effect"),
    [
        (1.0, 1.0, ""),
        (1.0 + 2**-22, 1.0, ""),  # two units
        (1.0 + 2**-20, 1.0, "value"),
        (NAN, NAN, ""),
        (0.0, NAN, "nan"),
        (NAN, 0.0, "nan"),
        (INF, INF, ""),
        (-INF, INF, "infinity"),
        (3e38, INF, "infinity"),
        (-0.0, 0.0, ""),
        (1e-45, 0.0, ""),  # two of the smallest numbers
        (1e-40, 0.0, "value"),
    ],
)
def test_special_numbers_and_units_have_a_rule(found, wanted, effect):
    same = [{"y": array(wanted)}] * 2
    assert differs(array(found), array(wanted), moved=same) == effect


def test_the_sign_of_a_zero_counts_where_elements_are_only_moved():
    assert differs(array(-0.0), array(0.0), moved=[{"y": array(0.0)}], is_signed=True) == "sign"


def test_each_element_may_agree_with_either_judge():
    same = [{"y": array(1.0, 2.0)}]
    assert differs(array(1.0, 5.0), array(1.0, 2.0), array(3.0, 5.0), moved=same) == ""
    assert differs(array(1.0, 4.0), array(1.0, 2.0), array(3.0, 5.0), moved=same) == "value"


def test_shape_and_type_count():
    assert differs(array(1.0), array(1.0, 1.0), moved=[{"y": array(1.0, 1.0)}]) == "shape"
    assert differs(np.ones(1), array(1.0)) == "type"


def parsed(text):
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    onnx.checker.check_model(model, full_check=True)
    return model


def test_rounding_explains_cancellation_and_no_more():
    """A sum of large numbers that cancel may be off by what they are rounded by."""
    model = parsed("g (float[2,64] x, float[64,3] w) => (float[2,3] y) { y = MatMul(x, w) }")
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.standard_normal(shape).astype(np.float32) * 100
        for name, shape in (("x", (2, 64)), ("w", (64, 3)))
    }
    judged = Judged(model, (feeds,))
    backwards = feeds["x"][:, ::-1] @ feeds["w"][::-1]
    assert judged.differences(0, {"y": backwards}) == []
    assert judged.differences(0, {"y": backwards + np.float32(2)})


def test_rounding_turns_over_a_comparison_only_at_its_edge():
    model = parsed("""g (float[2] x) => (bool[2] y)
        <float one = {1.0}> { e = Exp(x) y = Greater(e, one) }""")
    judged = Judged(model, ({"x": array(0.0, 1.0)},))
    wanted = judged.evaluations[0].values["y"]
    assert judged.differences(0, {"y": np.array([not wanted[0], wanted[1]])}) == []
    assert judged.differences(0, {"y": np.array([wanted[0], not wanted[1]])})


def test_a_run_in_which_rounding_decides_about_a_shape_is_left_out():
    model = parsed("""g (float[3] x, float[2] z) => (float[1,2] y) <float one = {1.0}>
        { e = Exp(x) m = Greater(e, one) i = NonZero(m) f = Cast<to = 1>(i) y = Add(f, z) }""")
    runs = Evaluation(model, {"x": array(0.0, 1.0, 1.0), "z": array(1.0, 1.0)}).all_moved()
    assert 0 < len(runs) < RUNS  # where exp(0) is above 1, three do not fit two
    assert {run["y"].shape for run in runs} == {(1, 2)}


def test_scales_are_not_moved_because_they_decide_about_a_shape():
    """So rounding explains coordinates that are rounded, and no more."""
    model = parsed("""g (float[1,1,6] x) => (float[1,1,9] y) <float[3] scales = {1.0, 1.0, 1.5}>
        { y = Resize<mode = "linear">(x, , scales) }""")
    x = array(1.0, -1.0, 3.0, 0.5, 2.0, -4.0)[None, None]
    judged = Judged(model, ({"x": x},))
    assert len(judged.evaluations[0].all_moved()) == RUNS
    wanted = judged.evaluations[0].values["y"]
    assert judged.differences(0, {"y": wanted + np.float32(2e-6)}) == []
    assert judged.differences(0, {"y": wanted + np.float32(2e-4)})


def test_what_a_peer_refuses_is_computed_from_what_it_makes_of_the_rest():
    model = parsed("g (float[2] x) => (float[2] z) { y = Abs(x) z = Neg(y) }")
    evaluation = Evaluation(model, {"x": array(-1.0, 2.0)})

    def peer(part, feeds):
        if part.graph.node[0].op_type == "Neg":
            raise NotImplementedError
        return {"y": np.asarray(feeds["x"]) + 10}

    np.testing.assert_array_equal(evaluation.by_nodes(peer)["z"], array(-9.0, -12.0))


@pytest.mark.parametrize("is_loose", [False, True])
def test_a_peer_is_not_asked_for_what_it_would_die_of(is_loose):
    """Whether the graph says that it is empty, or only the numbers do."""
    text = """g (float[1,2,N] x) => (float[1,2,N] z) <float[2] s = {1.0, 1.0}>
        { a = Abs(x) y = InstanceNormalization(a, s, s) z = Neg(y) }"""
    model = parsed(text if is_loose else text.replace("N]", "0]"))
    judged = Judged(model, ({"x": np.zeros((1, 2, 0), np.float32)},))
    assert judged.peers[0]["z"].shape == (1, 2, 0)
    assert judged.peer_error.startswith("InstanceNormalization")
    full = Judged(model, ({"x": np.ones((1, 2, 3), np.float32)},)) if is_loose else None
    assert full is None or (full.peers[0]["z"].shape, full.peer_error) == ((1, 2, 3), "")


def test_what_a_peer_makes_in_another_shape_does_not_count():
    """Else the nodes behind it do not fit, and the graph is never judged."""
    model = parsed("""g (float[2] x) => (float[2] z) <int64[1] two = {2}>
        { y = Abs(x) r = Reshape(y, two) z = Neg(r) }""")
    evaluation = Evaluation(model, {"x": array(-1.0, 2.0)})

    def peer(part, feeds):
        match part.graph.node[0].op_type:
            case "Abs":
                return {"y": array(1.0)}
            case "Neg":
                return {"z": feeds["r"] + 10}
        raise NotImplementedError

    np.testing.assert_array_equal(evaluation.by_nodes(peer)["z"], array(11.0, 12.0))


def test_what_a_peer_makes_of_a_sequence_in_other_shapes_does_not_count():
    model = parsed("""g (float[4] x) => (float[4] z)
        { s = SplitToSequence(x) z = ConcatFromSequence<axis = 0>(s) }""")
    evaluation = Evaluation(model, {"x": array(1.0, 2.0, 3.0, 4.0)})
    for wrong in ([array(1.0)], [array(1.0, 1.0)] * 4, array(1.0)):
        values = evaluation.by_nodes(lambda part, feeds, wrong=wrong: {"s": wrong})
        np.testing.assert_array_equal(values["z"], array(1.0, 2.0, 3.0, 4.0))


def test_a_peer_whose_rounding_decides_about_a_shape_leaves_the_judging_to_the_reference():
    model = parsed("""g (float[3] x, float[3] w) => (float[1,3] y) <float one = {1.0}>
        { e = Exp(x) m = Greater(e, one) i = NonZero(m) f = Cast<to = 1>(i) y = Add(f, w) }""")
    evaluation = Evaluation(model, {"x": array(1.0, 1.0, 1.0), "w": array(1.0, 1.0, 1.0)})

    def peer(part, feeds):
        (name,) = part.graph.node[0].output
        return {"e": {"e": array(2.0, 2.0, 0.5)}}[name]

    assert evaluation.by_nodes(peer).keys() == evaluation.values.keys()
    np.testing.assert_array_equal(evaluation.by_nodes(peer)["y"], evaluation.values["y"])


def test_nothing_is_moved_where_nothing_is_rounded():
    model = parsed("g (float[3] x) => (float[3] y) { v = Relu(x) y = Neg(v) }")
    evaluation = Evaluation(model, {"x": array(1.0, -2.0, NAN)})
    np.testing.assert_array_equal(evaluation.moved(0)["y"], evaluation.values["y"])


def test_a_peer_that_refuses_is_asked_node_by_node():
    model = parsed("g (double[3] x) => (double[3] y) { e = Erf(x) y = Neg(e) }")
    judged = Judged(model, ({"x": np.array([0.1, 1.0, -3.0])},))
    assert "NOT_IMPLEMENTED" in judged.peers[0]["y"].dtype.name or judged.peer_error
    np.testing.assert_array_equal(judged.peers[0]["y"], judged.evaluations[0].values["y"])


def test_a_target_that_is_not_here_refuses_and_is_no_error(monkeypatch):
    driver = pytest.importorskip("intarsia.backends.opencl.driver")
    monkeypatch.setattr(driver, "_all_devices", lambda caches: ())
    monkeypatch.setattr(driver, "_devices", lambda setting, caches: ())
    model = parsed("g (float[3] x) => (float[3] y) { y = Neg(x) }")
    finding = Judged(model, ({"x": array(1.0, -2.0, 3.0)},)).judge("opencl", 1)
    assert finding.verdict == GraphVerdict.REFUSED
    assert "OpenCL" in finding.text


def test_a_forgotten_defect_disagrees_and_shrinks_to_its_node():
    """OpenVINO pads with 0, whatever is fed; the graph around it is left away."""
    (defect,) = (rule for rule in DEFECTS if rule.operators == {"Pad"})
    model = parsed("""g (float[1,2] x, float v) => (float[1,4] y)
        <int64[4] pads = {0, 1, 0, 1}> { a = Abs(x) p = Pad(a, pads, v) y = Neg(p) }""")
    judged = Judged(model, ({"x": array(1.0, 2.0)[None], "v": np.float32(7)},))
    target = "openvino, onnxruntime"
    assert judged.judge(target, 1).verdict == GraphVerdict.AGREES
    with forgotten(defect):
        finding = judged.judge(target, 1)
        assert finding.verdict == GraphVerdict.DISAGREES
        small, feeds, found = shrink(judged, finding)
    assert found.verdict == GraphVerdict.DISAGREES
    assert [node.op_type for node in small.graph.node] == ["Pad"]
    assert describe(small, feeds).endswith("Pad(float32[1, 2], c:int64[4], float32[])")


def test_what_a_rule_states_is_explained_by_it():
    model = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    finding = Judged(model, ({"x": array(NAN, 1.0)},)).judge("openvino, onnxruntime", 1)
    assert finding.verdict == GraphVerdict.EXPLAINED
    assert "NaN" in finding.rule
    rules = [rule for rule in DEFECTS if "Relu" in rule.operators]
    with forgotten(rules[0]):
        again = Judged(model, ({"x": array(NAN, 1.0)},)).judge("openvino, onnxruntime", 1)
    assert again.verdict == GraphVerdict.DISAGREES


@pytest.mark.parametrize(
    ("target", "text", "step", "is_stated"),
    [
        ("openvino", "g (float[2] x) => (float[2] y) { y = Erf(x) }", 2e-7, True),
        ("openvino", "g (float[2] x) => (float[2] y) { y = Erf(x) }", 2e-5, False),
        ("openvino", "g (float[2] x) => (float[2] y) { y = Tanh(x) }", 2e-5, False),
        ("openvino", "g (float[2] x) => (float[2] y) { v = Erf(x) y = Neg(v) }", 3e-7, True),
        *(
            (target, f"g (float[2] x) => (float[2] y) {{ y = {op}(x) }}", step, is_stated)
            for target in ("dnnl", "openvino")
            for op, bound in (("Softplus", 7e-6), ("Elu", 2e-7), ("Elu<alpha = 2.0>", 2e-7))
            for step, is_stated in ((bound, True), (40 * bound, False))
        ),
        ("dnnl", "g (float[2] x) => (int8[2] y) { y = QuantizeLinear(x, s, z) }", 100, False),
    ],
)
def test_a_stated_bound_explains_nothing_larger(target, text, step, is_stated):
    text = text.replace(") {", ") <float s = {0.5}, int8 z = {3}> {")
    judged = Judged(parsed(text), ({"x": array(1e-6, -1e-3)},))
    program = intarsia.compile(judged.model, f"{target}, onnxruntime", num_threads=1)
    wanted = judged.evaluations[0].values["y"]
    found = {"y": wanted + np.array([0, step], wanted.dtype)}
    assert judged.differences(0, found)
    verdict = judged.explained(target, 1, program, 0, found).verdict
    assert verdict == (GraphVerdict.EXPLAINED if is_stated else GraphVerdict.DISAGREES)


@pytest.mark.parametrize(
    ("target", "text", "is_stated"),
    [
        ("openvino", "y = Max(x, c)", True),
        ("openvino", "v = Max(x, c) y = Mul(v, huge)", True),
        ("openvino", "y = Max(x, x)", False),
        ("llvm", "y = Max(x, c)", False),
    ],
)
def test_flushed_constants_explain_what_follows_from_zeros_and_no_more(target, text, is_stated):
    least = 1e-39
    body = f"{{ {text} }}".replace("Max(x, x)", "Max(x)")
    model = parsed(f"""g (float[3] x) => (float[3] y)
        <float[3] c = {{{least}, {least}, 1.0}}, float huge = {{1e38}}> {body}""")
    judged = Judged(model, ({"x": array(0.0, least if "c" not in text else -1.0, 0.5)},))
    program = intarsia.compile(model, f"{target}, onnxruntime", num_threads=1)
    wanted = judged.evaluations[0].values["y"]
    flushed = np.where(wanted < 0.1 if "huge" not in text else wanted < 1, 0, wanted)
    found = {"y": flushed.astype(np.float32)}
    assert judged.differences(0, found)
    verdict = judged.explained(target, 1, program, 0, found).verdict
    assert verdict == (GraphVerdict.EXPLAINED if is_stated else GraphVerdict.DISAGREES)
    worse = {"y": found["y"] * array(1, 1, 1.5)}
    assert judged.explained(target, 1, program, 0, worse).verdict == GraphVerdict.DISAGREES


BODIES = {
    "Scan": "y, z = Scan<num_scan_inputs = 1, body = b "
    "(float[3] s, float[3] r) => (float[3] t, float[3] u) { t = Add(s, r) u = Tanh(t) }>(x, rows)",
    "Loop": "y, z = Loop<body = b (int64 i, bool g, float[3] s) => (bool h, float[3] t, float[3] u)"
    " { h = Identity(g) t = Add(s, x) u = Tanh(t) }>(two, yes, x)",
    "If": "z = Neg(rows) y = If<then_branch = a () => (float[3] t) { t = Add(x, x) },"
    " else_branch = b () => (float[3] e) { e = Neg(x) }>(yes)",
}


@pytest.mark.parametrize("op_type", BODIES)
@pytest.mark.parametrize("opset", [12, 17])
def test_bodies_are_written_out_with_the_same_numbers(op_type, opset):
    text = f"""g (float[3] x, float[2, 3] rows) => (float[3] y, float[2, 3] z)
        <int64 two = {{2}}, bool yes = {{1}}> {{ {BODIES[op_type]} }}"""
    model = parsed(text)
    model.opset_import[0].version = opset
    feeds = {"x": array(0.5, -1, 2), "rows": array(0.25, 3, -0.5, 1, -2, 4).reshape(2, 3)}
    wanted = Evaluation(model, feeds).values
    plain = unroll(model, wanted)
    onnx.checker.check_model(plain)
    assert op_type not in {node.op_type for node in plain.graph.node}
    found = Evaluation(plain, feeds).values
    for name in ("y", "z"):
        np.testing.assert_array_equal(found[name], wanted[name], strict=True)
    assert unroll(plain, found) is None
    added = [node for node in plain.graph.node if node.op_type == "Add"]
    assert {body_name(node.name) for node in added} == {"t"}


def test_a_scan_that_goes_backwards_is_written_out_backwards():
    """The reference evaluator does not take one."""
    text = """g (float[3] x, float[2, 3] rows) => (float[3] y, float[2, 3] z) {{ y, z = Scan<{}
        num_scan_inputs = 1, body = b (float[3] s, float[3] r) => (float[3] t, float[3] u)
        {{ t = Sub(s, r) u = Tanh(t) }}>(x, rows) }}"""
    backward = "scan_input_directions = [1], scan_output_directions = [1],"
    feeds = {"x": array(0.5, -1, 2), "rows": array(0.25, 3, -0.5, 1, -2, 4).reshape(2, 3)}
    wanted = Evaluation(parsed(text.format("")), {**feeds, "rows": feeds["rows"][::-1]}).values
    plain = unroll(parsed(text.format(backward)), {**wanted, **feeds})
    found = Evaluation(plain, feeds).values
    np.testing.assert_array_equal(found["y"], wanted["y"])
    np.testing.assert_array_equal(found["z"], wanted["z"][::-1])


@pytest.mark.parametrize(("backend", "is_stated"), [("xnnpack", True), ("llvm", False)])
def test_what_a_backend_does_in_a_body_explains_what_follows(backend, is_stated):
    """A fed number that is subnormal is zero on XNNPACK, also inside a body."""
    text = f"""g (float[3] x, float[2, 3] rows) => (float[3] y, float[2, 3] z)
        {{ {BODIES["Scan"]} }}"""
    feeds = {"x": array(-1e-38, 1e-37, 0), "rows": array(-1e-37, 0, 0, 0, 0, 0).reshape(2, 3)}
    judged = Judged(parsed(text), (feeds,))
    body = program_of([("t", backend), ("u", "llvm")])
    region = SimpleNamespace(backend="plan", nodes=())
    plan = SimpleNamespace(
        placement=SimpleNamespace(regions=[region]), bodies=[SimpleNamespace(plan=body)]
    )
    found = {"y": array(-1e-37, 1e-37, 0), "z": judged.evaluations[0].values["z"]}
    assert judged.differences(0, found)
    program = SimpleNamespace(latest=SimpleNamespace(plan=plan))
    finding = judged.explained(backend, 1, program, 0, found)
    assert finding.verdict == (GraphVerdict.EXPLAINED if is_stated else GraphVerdict.DISAGREES)
    assert finding.rule == (
        "xnnpack Add: subnormal numbers are taken for zeros" if is_stated else ""
    )


def program_of(placed):
    """A plan as far as explanations look at it: which backend has which node."""
    regions = [
        SimpleNamespace(backend=backend, nodes=[SimpleNamespace(name=name, origins=())])
        for name, backend in placed
    ]
    return SimpleNamespace(placement=SimpleNamespace(regions=regions), bodies=[])


def test_windows_are_moved_like_their_terms():
    """Of one element it is 0.42 - 0.5 + 0.08, which is 0 but for what these are rounded by."""
    model = parsed("g () => (float[1] y) <int64 one = {1}> { y = BlackmanWindow(one) }")
    judged = Judged(model, ({},))
    for step, is_near in ((1.5e-8, True), (1e-5, False)):
        found = {"y": judged.evaluations[0].values["y"] + np.float32(step)}
        assert bool(judged.differences(0, found)) is not is_near


@pytest.mark.parametrize(
    ("target", "says", "text", "x"),
    [
        (
            *("openvino", "behind a reduction, with alpha of 0, NaN becomes 0"),
            """g (float[2,4] x) => (float y)
            { r = ReduceL1<keepdims = 0>(x) y = LeakyRelu<alpha = 0.0>(r) }""",
            array(NAN, 1, -1, 2, 3, 4, 5, 6).reshape(2, 4),
        ),
        (
            *("openvino", "a bound that is left out is the largest finite number"),
            """g (float[1,1,1,7] x) => (float[1,1,1,7] y) <float low = {-1}>
            { p = AveragePool<auto_pad = "SAME_LOWER", dilations = [1, 2], kernel_shape = [1, 3]>(x)
            y = Clip(p, low) }""",
            array(INF, 1, 2, 3, 4, 5, 6).reshape(1, 1, 1, 7),
        ),
        (
            *("openvino", "of halves it rounds its attributes to halves"),
            """g (float16[400] x) => (float16[400] y)
            { y = HardSigmoid<alpha = 0.5, beta = 0.3>(x) }""",
            np.linspace(-0.62, -0.58, 400, dtype=np.float16),
        ),
        (
            *("openvino", "NaN stays in its place of the row, where ONNX spreads it"),
            """g (float[2,3] x) => (float y) <int64[2] l = {0, 1}>
            { y = SoftmaxCrossEntropyLoss<reduction = "sum">(x, l) }""",
            array(1, INF, 2, 3, 4, 5).reshape(2, 3),
        ),
        *(
            (
                *(target, "an exponential below 2**-125.5 is 0"),
                "g (float[2,2] x) => (float[2,2] y) { y = Softmax(x) }",
                array(0, -87.1, 0, -1).reshape(2, 2),
            )
            for target in ("openvino", "dnnl")
        ),
        (
            *("onnxruntime", "the mean of nothing is 0 and not NaN"),
            """g (float[33,0,1,5] x) => (float[33,1,1,5] y) <int64[2] axes = {-3, 2}>
            { r = ReduceMean<keepdims = 1>(x, axes) y = HardSigmoid(r) }""",
            np.zeros((33, 0, 1, 5), np.float32),
        ),
    ],
)
def test_a_rule_explains_what_its_library_still_does(target, says, text, x, backends):
    (rule,) = (r for r in backends.named(target).defects if says in r.says)
    target = target if target == "onnxruntime" else f"{target}, onnxruntime"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 19]> {text}')
    judged = Judged(model, ({"x": x},))
    assert judged.judge(target, 1).verdict == GraphVerdict.EXPLAINED
    with forgotten(rule):
        assert judged.judge(target, 1).verdict == GraphVerdict.DISAGREES


def test_sizes_are_not_moved():
    model = parsed("""g (float[1,1,3,3] x) => (float[1,1,7,5] y)
        <float[4] k = {1.0, 1.0, 2.34, 1.67}> { y = Resize <mode = "linear"> (x, , k) }""")
    evaluation = Evaluation(model, {"x": np.ones((1, 1, 3, 3), np.float32)})
    assert {run["y"].shape for run in evaluation.all_moved()} == {(1, 1, 7, 5)}


def record(seed, *verdicts):
    findings = [{"target": t, "threads": 1, "verdict": v, "text": ""} for t, v in verdicts]
    return {"seed": seed, "heart": "Add", "findings": findings}


def test_results_add_up_over_runs_and_the_last_verdict_counts(tmp_path):
    Results(tmp_path).add(record(0, ("llvm", "agrees"), ("", "disagrees")))
    Results(tmp_path).add(record(2, ("llvm", "agrees")))
    results = Results(tmp_path)
    assert results.todo(2, (GraphFamily.PLAIN,)) == [1, 3]
    assert results.seeds_with([GraphVerdict.DISAGREES]) == [0]
    results.add(record(0, ("", "agrees")))
    counts = Results(tmp_path).counts()
    assert counts == {"llvm": {"agrees": 2}, "default": {"agrees": 1}}


def test_a_line_that_was_cut_off_is_done_again(tmp_path):
    Results(tmp_path).add(record(0, ("llvm", "agrees")))
    path = tmp_path / "results.jsonl"
    path.write_text(path.read_text() + '{"seed": 1, "findi')
    results = Results(tmp_path)
    assert results.todo(1, (GraphFamily.PLAIN,)) == [1]
    results.add(record(1, ("llvm", "agrees")))
    assert Results(tmp_path).todo(1, (GraphFamily.PLAIN,)) == [2]


def test_graphs_of_another_generator_do_not_count(tmp_path):
    Results(tmp_path).add(record(0, ("llvm", "agrees")))
    path = tmp_path / "results.jsonl"
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "generation": "another"}) + "\n")
    results = Results(tmp_path)
    assert (results.outdated, results.todo(1)) == (1, [0])


def test_a_campaign_writes_what_becomes_of_each_seed(tmp_path):
    results = Results(tmp_path)
    run(results, [0, 1], targets=("llvm", "onnxruntime"))
    assert Results(tmp_path).records.keys() == {0, 1}
    assert not any(finding["verdict"] in BAD for finding in results.findings())
    first = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])
    assert first["run"]["versions"]["onnxruntime"]


def test_a_worker_that_dies_is_a_finding_and_the_next_seed_goes_on(tmp_path, monkeypatch):
    parts = __name__.split(".")
    root = Path(__file__).parents[len(parts) - 1]
    monkeypatch.syspath_prepend(root)  # workers import nothing of the current folder
    monkeypatch.setattr("intarsia.testing.differential.campaign.JUDGE", f"{__name__}:_dies")
    results = Results(tmp_path)
    run(results, [0, 1], targets=("llvm", "onnxruntime"))
    found = {(f["seed"], f["target"]): f["verdict"] for f in results.findings()}
    assert found == {
        (0, "llvm"): "crashed",
        (0, "onnxruntime"): "agrees",
        (1, "llvm"): "agrees",
        (1, "onnxruntime"): "agrees",
    }


def _dies(seed, plan):
    """Judge in a worker; llvm kills the process at seed 0."""
    import os

    if seed == 0 and any(target == "llvm" for target, _ in plan):
        os.abort()
    findings = [
        {"target": target, "threads": threads, "verdict": "agrees"} for target, threads in plan
    ]
    return {"seed": seed, "heart": "Abs", "findings": findings}


def test_every_target_and_both_thread_counts_come_to_every_operator():
    turns = max(SPARSE.values())
    for heart in range(len(OPERATORS)):
        pairs = {pair for i in range(turns) for pair in plan_of(heart + i * len(OPERATORS))}
        assert {target for target, _ in pairs} == set(TARGETS)
        assert len(pairs) >= 2 * len(TARGETS) - len(SPARSE)


def test_a_seed_is_judged_on_every_target():
    record = judge_seed(0, [("llvm", 1), ("onnxruntime", 2)])
    assert [finding["target"] for finding in record["findings"]] == ["llvm", "onnxruntime"]
    assert {finding["verdict"] for finding in record["findings"]} <= {"agrees", "refused"}


@pytest.mark.parametrize("family", [GraphFamily.NARROW, GraphFamily.FREE])
def test_seeds_of_every_family_are_judged(family):
    start = family.seeds[0]
    for seed in range(start, start + 8):
        for finding in judge_seed(seed, [("llvm", 1)])["findings"]:
            assert finding["verdict"] not in BAD, (seed, finding)


def test_a_program_that_is_wrong_at_some_sizes_is_found(monkeypatch):
    """Where it is right at the sizes that it was drawn with."""
    model = parsed("g (float[n] x) => (float[m] y) { y = Neg(x) }")
    judged = Judged(model, [{"x": np.ones(n, np.float32)} for n in (4, 7)])
    assert judged.judge("llvm", 1).verdict == GraphVerdict.AGREES
    compiled = intarsia.compile(model, "llvm", num_threads=1)

    class Wrong:
        latest = compiled.latest

        def run(self, feeds):
            return {"y": -feeds["x"] + (len(feeds["x"]) == 7)}

    monkeypatch.setattr(
        "intarsia.testing.differential.judging.compile_graph", lambda *arguments: (Wrong(), True)
    )
    assert judged.judge("llvm", 1).verdict == GraphVerdict.DISAGREES


def test_a_rule_explains_what_differs_at_free_sizes_too():
    model = parsed("g (float[n,2] x) => (float[m,2] y) { y = Softmax(x) }")
    odd = np.array([[0, -88.5]], np.float32)  # the quotient is subnormal
    judged = Judged(model, [{"x": np.zeros((n, 2), np.float32) + odd * (n - 1)} for n in (1, 2)])
    assert judged.judge("llvm", 1).verdict == GraphVerdict.EXPLAINED


def test_seeds_are_taken_from_families_by_turns(tmp_path):
    results = Results(tmp_path)
    starts = [family.seeds[0] for family in GraphFamily]
    assert results.todo(4) == [*starts, starts[0] + 1]
    assert results.todo(2, (GraphFamily.FREE,)) == [starts[2], starts[2] + 1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_agree_within_their_own_units(dtype):
    one = np.ones(3, np_dtype(dtype))
    unit = float(ml_dtypes.finfo(one.dtype).eps)
    assert not differs((one * (1 + unit)).astype(one.dtype), one)
    assert differs((one * (1 + 8 * unit)).astype(one.dtype), one)


@pytest.mark.parametrize("name", ["openvino LSTM", "openvino PRelu", "folding LpNormalization"])
def test_random_graphs_find_a_defect_that_is_put_back(name):
    (index,) = (i for i, switch in enumerate(switches()) if switch.name.startswith(f"{name}:"))
    assert find(index, tries=10)["seed"] is not None


@pytest.mark.parametrize("defect", MENDED, ids=lambda defect: defect.name)
def test_what_an_old_computation_replaces_is_there(defect):
    with defect.back():
        pass


@pytest.mark.exhaustive
def test_twenty_defects_with_reproducers_are_found():
    """Not all, because libraries choose other instructions on other CPUs."""
    path = Path(__file__).parents[2] / "benchmarks" / "defect_seeds.json"
    seeds = json.loads(path.read_text())["seeds"]
    named = [(i, switch) for i, switch in enumerate(switches()) if switch.reproducers]
    named.sort(key=lambda item: item[1].name not in seeds)  # stable: seconds where one is known
    rows = (find(index, 20, seeds.get(switch.name)) for index, switch in named)
    assert len(list(islice((row for row in rows if row["seed"] is not None), 20))) == 20


def write_lines(folder, *lines):
    folder.mkdir(exist_ok=True)
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(
            line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines
        )


def verdict_line(seed, verdict, target="llvm", generation="g"):
    found = {"target": target, "threads": 1, "verdict": verdict}
    return {"seed": seed, "generation": generation, "dtype": "float32", "findings": [found]}


def run_line(commit, date):
    versions = {"llvm": "1"}
    return {"run": {"commit": commit, "date": date, "machine": "m", "versions": versions}}


def test_rounds_add_up_by_commit_and_the_last_verdict_on_a_seed_counts(tmp_path):
    folder, file = tmp_path / "results", tmp_path / "rounds" / "m.jsonl"
    write_lines(
        folder,
        run_line("a", "2026-01-01"),
        *(verdict_line(seed, "agrees") for seed in (0, 1, 2, 1_000_000)),
        verdict_line(7, "disagrees"),
        verdict_line(7, "agrees", target=""),
        '{"seed": 8, "findings": [{"tar',  # cut off when it was killed
    )
    (first,) = keep_rounds(file, folder)
    assert (first.commit, first.seeds, first.graphs) == ("a", "0:3,7:8,1000000:1000001", 5)
    assert first.families == {"plain": 4, "narrow": 1}
    assert [each["seed"] for each in first.bad] == [7]
    assert total_verdicts([first])["llvm"]["plain"] == {"agrees": 3, "disagrees": 1}
    assert total_verdicts([first])["default"]["plain"] == {"agrees": 1}

    write_lines(folder, "\n", run_line("b", "2026-01-02"), verdict_line(7, "agrees"))
    write_lines(folder, verdict_line(0, "agrees", generation="other"))  # another graph
    keep_rounds(file, folder)
    kept = keep_rounds(file, folder)  # once more changes nothing
    assert kept == read_rounds(file)
    assert [(r.commit, r.generation, r.graphs, len(r.bad)) for r in kept] == [
        ("a", "g", 4, 0),
        ("b", "g", 1, 0),
        ("b", "other", 1, 0),
    ]
    assert sum(r.graphs for r in kept) == 6

    write_lines(folder, verdict_line(1, "crashed", target=SOMEWHERE))
    assert [each["seed"] for r in keep_rounds(file, folder) for each in r.bad] == [1]
    write_lines(folder, verdict_line(1, "agrees"))  # judged again, it is blamed no more
    assert not [each for r in keep_rounds(file, folder) for each in r.bad]

    other = tmp_path / "other"
    write_lines(other, run_line("a", "2026-01-03"), verdict_line(50, "agrees"))
    assert len(keep_rounds(file, other)) == 4
    write_lines(other, run_line("c", "2026-01-04"), verdict_line(50, "agrees"))
    assert [r.commit for r in keep_rounds(file, other)] == [
        "a",
        "b",
        "b",
        "c",
    ]  # none is left of 50


def test_graphs_that_fit_are_judged_together_and_the_others_alone():
    keys = {0: [13], 1: [9], 2: None, 3: [13], 4: [13], 5: [9]}
    groups = list(groups_of(keys, 2, lambda pool: [keys[seed] for seed in pool]))
    assert groups == [[2], [0, 3], [1, 5], [4]]
    assert list(groups_of([5, 6], 1, lambda pool: pytest.fail("asked"))) == [[5], [6]]
    narrow, free = keys_of([1_000_000, 2_000_000])
    assert narrow is not None
    assert free is None


def test_graphs_together_have_the_verdicts_that_they_have_alone():
    seeds = next(groups_of(range(60_000, 60_060), 3, keys_of))
    assert len(seeds) == 3
    records = judge_together(seeds, [("reference", 1)])
    alone = [judge_seed(seed, [("reference", 1)]) for seed in seeds]
    assert [record.pop("together") for record in records] == [seeds] * 3
    assert records == alone


def two_graphs():
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)'
    models = [onnx.parser.parse_model(f"{head} {{ y = {op}(x) }}") for op in ("Neg", "Abs")]
    feeds = [{"x": array(-1.0, 2.0, -3.0, 4.0)}]
    return [Judged(model, feeds) for model in models]


def test_names_of_joined_graphs_are_apart_in_bodies_too():
    body = (
        "z = If (c) <then_branch = t () => (float[4] u) { u = Neg(x) }, "
        "else_branch = e () => (float[4] w) { w = Add(x, k) }>"
    )
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[4] x, bool c) => (float[4] z) '
        f"<float[4] k = {{1, 1, 1, 1}}> {{ {body} }}"
    )
    joined = join_models([onnx.parser.parse_model(text)] * 2)
    onnx.checker.check_model(joined, full_check=True)
    x = array(1.0, 2.0, 3.0, 4.0)
    feeds = {"g0_x": x, "g0_c": np.array(True), "g1_x": x, "g1_c": np.array(False)}
    values = Evaluation(joined, feeds).values
    np.testing.assert_array_equal(values["g0_z"], -x)
    np.testing.assert_array_equal(values["g1_z"], x + 1)


def test_what_differs_together_is_judged_alone_and_is_a_finding_if_it_agrees_there(monkeypatch):
    real = intarsia.testing.differential.joining.compile_graph

    class Wrong:
        def __init__(self, program):
            self.program = program

        def __getattr__(self, name):
            return getattr(self.program, name)

        def run(self, feeds):
            results = self.program.run(feeds)
            return results | {"g1_y": results["g1_y"] + 1}

    def compiled(model, target, threads):
        program, is_whole = real(model, target, threads)
        return Wrong(program) if len(model.graph.node) > 1 else program, is_whole

    graphs = JoinedGraphs(two_graphs())
    assert [f.verdict for f in graphs.judge("reference", 1)] == ["agrees", "agrees"]
    for module in ("joining", "judging"):
        monkeypatch.setattr(f"intarsia.testing.differential.{module}.compile_graph", compiled)
    first, second = graphs.judge("reference", 1)
    assert (first.verdict, second.verdict) == ("agrees", "disagrees")
    assert second.text.startswith("only together: g1_y: value")


def test_a_graph_that_differs_alone_keeps_that_beside_one_that_differs_only_together(monkeypatch):
    real = intarsia.testing.differential.joining.compile_graph

    class Wrong:
        def __init__(self, program):
            self.program = program

        def __getattr__(self, name):
            return getattr(self.program, name)

        def run(self, feeds):
            return {name: array + 1 for name, array in self.program.run(feeds).items()}

    def compiled(model, target, threads):
        program, is_whole = real(model, target, threads)
        is_second = [node.op_type for node in model.graph.node] == ["Abs"]
        return program if is_second else Wrong(program), is_whole

    for module in ("joining", "judging"):
        monkeypatch.setattr(f"intarsia.testing.differential.{module}.compile_graph", compiled)
    first, second = JoinedGraphs(two_graphs()).judge("reference", 1)
    assert (first.verdict, second.verdict) == ("disagrees", "disagrees")
    assert "only together" not in first.text
    assert "only together" in second.text


def test_an_error_that_graphs_have_only_together_is_a_finding(monkeypatch):
    real = intarsia.testing.differential.joining.compile_graph

    def refuse(model, target, threads):
        if len(model.graph.node) > 1:
            raise BackendError("too many", backend="fake")
        return real(model, target, threads)

    for module in ("joining", "judging"):
        monkeypatch.setattr(f"intarsia.testing.differential.{module}.compile_graph", refuse)
    first, second = JoinedGraphs(two_graphs()).judge("reference", 1)
    assert (first.verdict, second.verdict) == ("error", "agrees")
    assert "only together: BackendError" in first.text
