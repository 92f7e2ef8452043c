# SPDX-License-Identifier: Apache-2.0
"""The host: it runs shapes, control flow and what no target takes; others stand in for it."""

import logging

import numpy as np
import onnxruntime
import pytest
from tests.opencl import first_device

import intarsia
from intarsia.backends.registry import collect
from intarsia.errors import PlacementError, UnsupportedError
from intarsia.plan.lock import lock_plan

IF = """
g (float[4] x, bool c) => (float[4] y) {
    [first] r = Relu(x)
    [special] t = If (c) <
        then_branch = yes () => (float[4] p) { p = Add(r, r) },
        else_branch = no () => (float[4] q) { q = Neg(r) }>
    [last] y = Sigmoid(t)
}"""
LOOP = """
g (float[4] x) => (float[4] y) <int64 trips = {100}, bool go = {1}> {
    [first] r = Relu(x)
    [special] t = Loop (trips, go, r) <
        body = b (int64 i, bool before, float[4] v) => (bool after, float[4] w) {
            after = Identity(before) w = Add(v, r) }>
    [last] y = Sigmoid(t)
}"""
SCAN = """
g (float[3,4] x) => (float[4] y) <float[4] zero = {0, 0, 0, 0}> {
    [first] r = Relu(x)
    [special] t, u = Scan <num_scan_inputs = 1,
        body = b (float[4] s, float[4] v) => (float[4] w, float[4] o) {
            w = Add(s, v) o = Identity(w) }> (zero, r)
    [last] y = Sigmoid(t)
}"""
DET = """
g (float[1,2,2] x) => (float[1,2,2] y, float[1] at) {
    [first] r = Relu(x)
    [special] at = Det(r)
    [last] y = Sigmoid(r)
}"""
FED_WEIGHT = """
g (float[1,2,4,4] x, float[2,2,3,3] w) => (float[1,2,2,2] y) {
    [first] r = Relu(x)
    [special] t = Conv(r, w)
    [last] y = Sigmoid(t)
}"""
MODELS = {
    "If": IF,
    "Loop": LOOP,
    "Scan": SCAN,
    "Det": DET,
    "Conv": FED_WEIGHT,
}
SHAPES = """
g (float[2,6] x, int64[1] n) => (float[k,m] y) <int64[1] minus = {-1}> {
    [first] r = Relu(x)
    [shape] to = Concat<axis = 0>(n, minus)
    [special] t = Reshape(r, to)
    [last] y = Sigmoid(t)
}"""


def targets_of(exe):
    return {node.name: r.target for r in exe.placement.regions for node in r.nodes}


def whys_of(exe):
    return {node.name: node.why for r in exe.placement.regions for node in r.nodes}


def devices_of(exe):
    return {node.name: r.device for r in exe.placement.regions for node in r.nodes}


def expected_of(model, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("operator", MODELS)
def test_a_composite_with_a_host_is_complete(
    operator, parse_model, random_feeds, assert_same, backends, caplog
):
    model = parse_model(MODELS[operator])
    with caplog.at_level(logging.WARNING, "intarsia"):
        exe = intarsia.compile(model, "composite -host=llvm -devices=dnnl", backends=backends)
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), expected_of(model, feeds))
    refused = {refusal.node for refusal in exe.placement.refusals}
    if operator in ("If", "Loop", "Scan"):
        assert whys_of(exe)["special"] == "control flow"
        assert exe.placement.shortfall is None
        return
    if operator == "Conv":  # whether a fed weight is taken is up to them
        return
    assert "special" in refused
    assert targets_of(exe)["special"] == "onnxruntime"
    assert whys_of(exe)["special"] == "in the host's place"
    lines = [text for text in caplog.messages if "in place of the host" in text]
    assert len(lines) == 1
    assert operator in lines[0]
    assert exe.explain().shortfall == lines[0]


@pytest.mark.parametrize("operator", MODELS)
def test_the_host_has_what_a_device_refuses_and_copies_are_made(
    operator, parse_model, random_feeds, assert_same, backends
):
    model = parse_model(MODELS[operator])
    exe = intarsia.compile(model, "fake -ops=Relu,Sigmoid", host="onnxruntime", backends=backends)
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), expected_of(model, feeds))
    devices = devices_of(exe)
    assert devices["special"] == "cpu:0"
    assert devices["first"] == "ext_dev:0/fake"
    if operator != "Loop":  # ONNX does not know the shape of what a Loop carries
        assert devices["last"] == "ext_dev:0/fake"
    assert whys_of(exe)["special"] == "host"
    assert exe.placement.stand_ins == ()
    assert ("r", "ext_dev:0/fake", "cpu:0") in [
        (row.tensor, row.source, row.destination) for row in exe.explain().copies
    ]


def test_a_real_device_has_a_host(parse_model, random_feeds, assert_same, backends):
    first_device()
    model = parse_model(IF)
    exe = intarsia.compile(model, "opencl", host="onnxruntime", backends=backends)
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), expected_of(model, feeds))
    assert targets_of(exe) == {
        "first": "opencl",
        "special": "onnxruntime",
        "last": "opencl",
    }


@pytest.mark.parametrize("host", ["onnxruntime", "llvm", "reference"])
def test_shapes_are_computed_on_the_host(host, parse_model, assert_same, backends):
    model = parse_model(SHAPES)
    exe = intarsia.compile(model, "fake", host=host, backends=backends)
    assert targets_of(exe)["shape"].split()[0] == host
    assert whys_of(exe)["shape"] == "shape"
    assert targets_of(exe)["first"] == "fake"
    feeds = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6), "n": np.array([3])}
    assert_same(exe.run(feeds), expected_of(model, feeds))
    assert exe.run({**feeds, "n": np.array([4])})["y"].shape == (4, 3)


def test_the_host_comes_before_other_targets_in_its_memory(parse_model, backends):
    model = parse_model(SHAPES)
    machine = "fake, reference, onnxruntime"
    exe = intarsia.compile(model, machine, host="llvm", backends=backends)
    assert targets_of(exe)["shape"].startswith("llvm")
    exe = intarsia.compile(model, machine, backends=backends)
    assert targets_of(exe)["shape"] == "onnxruntime"  # the fallback is the host


@pytest.mark.parametrize("text", ["onnxruntime", "cpu", "cpu:0"])
def test_a_node_can_be_pinned_to_the_host(text, chain_model, backends):
    exe = intarsia.compile(
        chain_model, "fake", host="onnxruntime", pins={"second": text}, backends=backends
    )
    assert targets_of(exe)["second"] == "onnxruntime"
    assert whys_of(exe)["second"] == f"pin 'second={text}'"
    assert set(targets_of(exe).values()) == {"fake", "onnxruntime"}


def test_a_pin_to_a_host_that_is_not_there_is_an_error(chain_model, backends):
    known = collect([backends.named("fake")])
    with pytest.raises(PlacementError, match="no backend here serves onnxruntime"):
        intarsia.compile(chain_model, "fake", pins={"second": "cpu"}, backends=known)


def test_what_is_kept_from_the_host_has_no_stand_in(parse_model, backends):
    model = parse_model(IF)
    with pytest.raises(UnsupportedError, match="special"):
        intarsia.compile(model, "fake -ops=Relu,Sigmoid", exclude="cpu:If", backends=backends)


def test_a_pin_holds_against_the_host(parse_model, backends):
    with pytest.raises(PlacementError, match="cannot be followed"):
        intarsia.compile(parse_model(IF), "llvm", pins={"special": "llvm"}, backends=backends)


def test_without_a_runtime_the_reference_stands_in_and_says_that_it_is_slow(
    parse_model, random_feeds, assert_same, backends
):
    model = parse_model(DET)
    known = collect([backends.named("llvm"), backends.named("reference")])
    exe = intarsia.compile(model, "llvm", backends=known)
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), expected_of(model, feeds))
    assert "1 on reference (in place of the host" in exe.placement.shortfall
    assert "and slow" in exe.placement.shortfall


def test_strict_forbids_standing_in(parse_model, backends):
    with pytest.raises(UnsupportedError, match=r"strict.*in place of the host"):
        intarsia.compile(parse_model(DET), "llvm", strict=True, backends=backends)


def test_a_region_that_fails_goes_to_the_host(chain_model, random_feeds, evaluate, backends):
    exe = intarsia.compile(chain_model, "fake -fault=compile", backends=backends)
    assert set(targets_of(exe).values()) == {"onnxruntime"}
    feeds = random_feeds(chain_model)
    for name, expected in evaluate(chain_model, feeds).items():
        np.testing.assert_allclose(exe.run(feeds)[name], expected, rtol=1e-5)


def test_a_program_keeps_its_host(tmp_path, parse_model, random_feeds, assert_same, backends):
    model = parse_model(IF)
    exe = intarsia.compile(model, "fake -ops=Relu,Sigmoid", host="onnxruntime", backends=backends)
    exe.save(tmp_path / "p.intarsia")
    loaded = intarsia.load(tmp_path / "p.intarsia")
    feeds = random_feeds(model)
    assert_same(loaded.run(feeds), exe.run(feeds))
    assert loaded.placement == exe.placement
    assert loaded.placement.host == "onnxruntime"


def test_a_frozen_plan_finds_its_host_again(parse_model, backends):
    model = parse_model(IF)
    exe = intarsia.compile(model, "llvm", backends=backends)
    again = intarsia.compile(model, frozen=lock_plan(exe.plan), backends=backends)
    assert targets_of(again) == targets_of(exe)


def test_nothing_joins_a_machine_that_needs_nothing(chain_model, backends):
    exe = intarsia.compile(chain_model, "llvm", backends=backends)
    assert set(exe.explain().versions) == {"llvm"}
    assert exe.placement.shortfall is None
