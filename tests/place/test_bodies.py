# SPDX-License-Identifier: Apache-2.0
"""The bodies of If, Loop and Scan are placed as graphs of their own."""

import logging

import msgspec
import numpy as np
import onnx
import pytest

import intarsia
from intarsia.compiler import read_setting
from intarsia.errors import LockError, PlacementError
from intarsia.place.request import Request
from intarsia.place.setting import check_setting
from intarsia.plan.checking import CheckVerdict
from intarsia.plan.lock import decode_lock, lock_plan

MACHINE = "llvm, onnxruntime"
MODEL = """g (bool c, float[4] x) => (float[4] y) {
    [first] p = Neg(x)
    [cond] q = If(c) <
        then_branch = t () => (float[4] a) { [one] a0 = Mul(p, x) [two] a = Abs(a0) },
        else_branch = e () => (float[4] b) { [three] b = Exp(p) }>
    [last] y = Tanh(q) }"""
FEEDS = {"c": np.array(True), "x": np.linspace(-1, 1, 4, dtype=np.float32)}


@pytest.fixture(scope="module")
def model(parse_model):
    return parse_model(MODEL)


def bodies_of(exe):
    return {
        body.name: {node.name: r.runs_on.split()[0] for r in regions for node in r.nodes}
        for body in exe.plan.bodies
        for regions in [body.plan.placement.regions]
    }


def test_each_body_has_targets_of_its_own(model, evaluate, backends):
    exe = intarsia.compile(model, MACHINE, pins={"two": "onnxruntime"}, backends=backends)
    assert bodies_of(exe) == {
        "then_branch": {"one": "llvm", "two": "onnxruntime"},
        "else_branch": {"three": "llvm"},
    }
    assert [region.runs_on.split()[0] for region in exe.placement.regions] == [
        "llvm",
        "the",
        "llvm",
    ]
    for condition in (True, False):
        feeds = {**FEEDS, "c": np.array(condition)}
        np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(model, feeds)["y"], rtol=1e-6)


def test_an_annotation_in_a_body_reaches_its_node(model, backends):
    annotated = intarsia.on_device(model, {"three": "onnxruntime"})
    exe = intarsia.compile(annotated, MACHINE, backends=backends)
    assert bodies_of(exe)["else_branch"] == {"three": "onnxruntime"}


def test_an_exclusion_reaches_a_body(model, backends):
    exe = intarsia.compile(model, MACHINE, exclude="llvm:Exp", backends=backends)
    assert bodies_of(exe)["else_branch"] == {"three": "onnxruntime"}


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("onnxruntime, llvm", {}),
        (MACHINE, {"pins": {"cond": "onnxruntime"}}),
        (MACHINE, {"placement": "manual"}),
    ],
)
def test_the_first_target_that_takes_all_has_it_whole(target, options, model, backends):
    exe = intarsia.compile(model, target, backends=backends, **options)
    assert exe.plan.bodies == ()
    placed = {n.name: r.runs_on for r in exe.placement.regions for n in r.nodes}
    assert placed["cond"] == "onnxruntime"


def test_a_pin_of_the_operator_and_another_one_inside_contradict(model, backends):
    pins = {"cond": "onnxruntime", "one": "llvm"}
    with pytest.raises(PlacementError, match="contradicts"):
        intarsia.compile(model, MACHINE, pins=pins, backends=backends)


SEQUENCE = """g (bool c, float[4] x) => (float[n] y) {
    q = If(c) <
        then_branch = t () => (seq(float[4]) a) { a = SequenceConstruct(x, x) },
        else_branch = e () => (seq(float[4]) b) { h = Exp(x) b = SequenceConstruct(h) }>
    y = ConcatFromSequence<axis = 0>(q) }"""


def test_what_the_plan_cannot_run_goes_whole(parse_model, evaluate, backends, caplog):
    model = parse_model(SEQUENCE)
    with caplog.at_level(logging.INFO, "intarsia"):
        exe = intarsia.compile(model, MACHINE, backends=backends)
    assert exe.plan.bodies == ()
    assert any("is not a step of the plan: 'q' is " in text for text in caplog.messages)
    for condition in (True, False):
        feeds = {**FEEDS, "c": np.array(condition)}
        np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(model, feeds)["y"], rtol=1e-6)


def test_a_body_that_cannot_be_built_sends_its_operator_elsewhere(model, evaluate, backends):
    machine = "fake -fault=compile -ops=Mul, onnxruntime"
    exe = intarsia.compile(model, machine, backends=backends)
    np.testing.assert_allclose(exe.run(FEEDS)["y"], evaluate(model, FEEDS)["y"], rtol=1e-6)


def test_explain_shows_the_bodies(model, backends):
    explanation = intarsia.compile(model, MACHINE, backends=backends).explain()
    assert {body.name for body in explanation.bodies} == {"then_branch", "else_branch"}
    assert "then_branch of region 1:\n  2 nodes in 1 region" in str(explanation)
    assert set(explanation.versions) == {"llvm"}


def test_a_lock_holds_the_bodies(model, backends):
    pins = {"two": "onnxruntime"}
    exe = intarsia.compile(model, MACHINE, pins=pins, backends=backends)
    lock = decode_lock(str(lock_plan(exe.plan)), "text")
    assert {path: [r.nodes for r in regions] for path, regions in lock.bodies.items()} == {
        "cond/else_branch": [("three",)],
        "cond/then_branch": [("one",), ("two",)],
    }
    again = intarsia.compile(model, pins=pins, frozen=lock, backends=backends)
    assert lock_plan(again.plan) == lock
    with pytest.raises(LockError, match="environment"):  # a pin inside is a part of it
        intarsia.compile(model, frozen=lock, backends=backends)
    edited = {**lock.bodies, "cond/else_branch": lock.bodies["cond/then_branch"]}
    changed = msgspec.structs.replace(lock, bodies=edited)
    with pytest.raises(LockError, match="the body 'cond/else_branch'"):
        intarsia.compile(model, pins=pins, frozen=changed, backends=backends)


def test_a_lock_without_bodies_is_as_before(chain_model, backends):
    exe = intarsia.compile(chain_model, "llvm", backends=backends)
    assert '"bodies"' not in str(lock_plan(exe.plan))


def test_check_says_what_targets_take_of_the_bodies(model, backends, tmp_path):
    onnx.save(model, tmp_path / "m.onnx")
    request = Request(model=tmp_path / "m.onnx", target="llvm", backends=backends)
    report = check_setting("m.onnx", read_setting(request))
    assert report.verdict is CheckVerdict.OK
    said = {finding.subject.split(" -")[0]: finding.message for finding in report.findings}
    assert said["llvm"] == "takes 2 of 3 nodes: unsupported-op 1"
    assert said["cond/then_branch: llvm"] == "takes 2 of 2 nodes"
    assert said["cond/else_branch: llvm"] == "takes 1 of 1 nodes"


def test_entries_that_runtimes_cannot_exchange_stay_inside(parse_model, backends):
    model = parse_model("""g (int64 m, bfloat16[2] x) => (bfloat16[n,2] y) {
        z, y = Loop(m, , x) <
            body = b (int64 i, bool on, bfloat16[2] v) => (bool on, bfloat16[2] u, bfloat16[2] t) {
                u = Abs(v) t = Neg(v) }> }""")
    exe = intarsia.compile(model, MACHINE, backends=backends)
    assert exe.plan.bodies == ()


def test_a_branch_that_cannot_be_leaves_its_node_whole(backends):
    """Sizes that are known may show that a branch is never taken: nothing is planned inside."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,2,2] x, bool c) => (float[a,b,d,e] y) {
            y = If(c) <
                then_branch = then () => (float[a,b,d,e] p) {
                    p = MaxPool<kernel_shape = [4, 4]>(x)
                },
                else_branch = other () => (float[a,b,d,e] q) { q = Abs(x) }
            >
        }""")
    exe = intarsia.compile(model, "reference", backends=backends)
    x = np.array([[[[-1, 2], [3, -4]]]], np.float32)
    np.testing.assert_array_equal(exe.run({"x": x, "c": np.array(False)})["y"], np.abs(x))
