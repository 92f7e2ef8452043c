# SPDX-License-Identifier: Apache-2.0
"""Pins and exclusions are obeyed, or an error that names both sides."""

import numpy as np
import pytest

import intarsia
from intarsia.errors import PlacementError, ReasonCode, TargetError, UnsupportedError
from intarsia.target import PlacedTarget, Target

TARGET = "fake:0, fake:1, reference"


def placed(exe):
    return {node.name: r.target for r in exe.placement.regions for node in r.nodes}


def test_nodes_go_to_the_first_target_that_takes_them(chain_model, backends):
    exe = intarsia.compile(chain_model, "fake:0 -ops=Relu, fake:1, reference", backends=backends)
    assert placed(exe) == {
        "first": "fake:1",
        "second": "fake -ops=Relu",
        "third": "fake:1",
        "fourth": "fake:1",
        "fifth": "fake:1",
    }


def test_a_pin_is_a_glob_over_node_names(chain_model, backends):
    exe = intarsia.compile(chain_model, TARGET, pins={"f*": "fake:1"}, backends=backends)
    assert [name for name, target in placed(exe).items() if target == "fake:1"] == [
        "first",
        "fourth",
        "fifth",
    ]
    reasons = {node.name: node.why for r in exe.placement.regions for node in r.nodes}
    assert reasons["first"] == "pin 'f*=fake:1'"
    assert reasons["second"] == "priority"


def test_a_pinned_model_keeps_the_callers_model_as_it_was(chain_model, backends):
    before = chain_model.SerializeToString()
    intarsia.compile(chain_model, TARGET, pins={"f*": "fake:1"}, backends=backends)
    assert chain_model.SerializeToString() == before


def test_manual_placement_moves_only_what_is_pinned(chain_model, backends):
    exe = intarsia.compile(
        chain_model, TARGET, placement="manual", pins={"third": "fake:0"}, backends=backends
    )
    coverage = {name: target for name, target in placed(exe).items() if target != "reference"}
    assert coverage == {"third": "fake"}
    assert exe.placement.shortfall is None


def test_an_annotation_pins_like_a_pin(chain_model, backends):
    annotated = intarsia.on_device(chain_model, {"second": "fake:1"})
    exe = intarsia.compile(annotated, TARGET, backends=backends)
    assert placed(exe)["second"] == "fake:1"


@pytest.mark.parametrize(
    ("said", "runs_on"),
    [
        (Target("reference"), "reference"),
        (PlacedTarget.parse("fake:1"), "fake:1"),
        (PlacedTarget.parse("fake:0"), "fake"),
    ],
)
def test_an_annotation_may_be_a_target(chain_model, backends, said, runs_on):
    annotated = intarsia.on_device(chain_model, {"second": said})
    exe = intarsia.compile(annotated, TARGET, backends=backends)
    assert placed(exe)["second"] == runs_on


def test_a_pin_that_contradicts_an_annotation_names_both(chain_model, backends):
    annotated = intarsia.on_device(chain_model, {"second": "fake:1"})
    with pytest.raises(PlacementError, match=r"pin 'sec\*=fake:0' contradicts .*'fake:1'"):
        intarsia.compile(annotated, TARGET, pins={"sec*": "fake:0"}, backends=backends)


def test_an_exclusion_that_contradicts_an_annotation_names_both(chain_model, backends):
    annotated = intarsia.on_device(chain_model, {"second": "fake:1"})
    with pytest.raises(PlacementError, match=r"'fake:1:Relu' contradicts annotation 'fake:1'"):
        intarsia.compile(annotated, TARGET, exclude=["fake:1:Relu"], backends=backends)


def test_two_pins_that_disagree_name_both(chain_model, backends):
    with pytest.raises(PlacementError, match=r"'fi\*=fake:1' contradicts pin 'first=fake:0'"):
        intarsia.compile(
            chain_model, TARGET, pins={"first": "fake:0", "fi*": "fake:1"}, backends=backends
        )


def test_a_pin_that_matches_nothing_suggests_names(chain_model, backends):
    with pytest.raises(PlacementError, match="matches no node") as caught:
        intarsia.compile(chain_model, TARGET, pins={"forth": "fake:1"}, backends=backends)
    assert "'fourth'" in caught.value.hint


def test_a_pin_reaches_a_node_in_a_body(parse_model, random_feeds, evaluate, backends):
    model = parse_model("""g (bool c, float[2] x) => (float[2] y) {
        ["if"] y = If(c)<then_branch = t () => (float[2] p) { ["in"] p = Neg(x) },
                         else_branch = e () => (float[2] q) { q = Abs(x) }>
    }""")
    exe = intarsia.compile(model, TARGET, pins={"in": "fake:1"}, backends=backends)
    then = next(body.plan for body in exe.plan.bodies if body.name == "then_branch")
    assert [(r.target, r.reason) for r in then.placement.regions] == [("fake:1", "pin 'in=fake:1'")]
    for condition in (True, False):
        feeds = {**random_feeds(model), "c": np.array(condition)}
        np.testing.assert_array_equal(exe.run(feeds)["y"], evaluate(model, feeds)["y"])


def test_a_pin_to_no_target_of_the_machine_is_an_error(chain_model, backends):
    with pytest.raises(TargetError, match="'first=cuda'"):
        intarsia.compile(chain_model, TARGET, pins={"first": "cuda"}, backends=backends)


def test_a_pin_that_the_target_refuses_is_an_error_with_the_reason(chain_model, backends):
    with pytest.raises(PlacementError, match="unsupported-op") as caught:
        intarsia.compile(
            chain_model, "fake -ops=Add, reference", pins={"first": "fake"}, backends=backends
        )
    assert (caught.value.node, caught.value.target) == ("first", "fake -ops=Add")


@pytest.mark.parametrize(
    "exclude",
    [{"fake:0": "Relu"}, {"fake:0": ["Relu"]}, ["fake:0:Relu"], "fake:0:Relu", ["fake:0:sec*"]],
)
def test_an_exclusion_keeps_a_node_off_a_target(exclude, chain_model, backends):
    exe = intarsia.compile(chain_model, TARGET, exclude=exclude, backends=backends)
    assert placed(exe)["second"] == "fake:1"
    assert placed(exe)["first"] == "fake"
    (refusal,) = exe.placement.refusals
    assert (refusal.node, refusal.code) == ("second", ReasonCode.USER)
    assert exe.placement.shortfall is None


def test_an_exclusion_that_matches_nothing_is_an_error(chain_model, backends):
    with pytest.raises(PlacementError, match="matches no operator and no node"):
        intarsia.compile(chain_model, TARGET, exclude=["fake:0:Resize"], backends=backends)


def test_an_exclusion_of_an_operator_that_was_folded_away_is_none(parse_model, backends):
    model = parse_model("""
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { a = Neg(w) y = Add(x, a) }""")
    exe = intarsia.compile(model, TARGET, exclude=["fake:0:Neg"], backends=backends)
    assert placed(exe) == {"y": "fake"}


def test_an_exclusion_that_contradicts_a_pin_names_both(chain_model, backends):
    with pytest.raises(
        PlacementError, match=r"exclude 'fake:1:Relu' contradicts pin 'second=fake:1'"
    ):
        intarsia.compile(
            chain_model,
            TARGET,
            pins={"second": "fake:1"},
            exclude=["fake:1:Relu"],
            backends=backends,
        )


@pytest.mark.parametrize("text", ["Relu", "fake:", ":Relu", "fake:0:"])
def test_a_malformed_exclusion_shows_the_form(text, chain_model, backends):
    with pytest.raises(PlacementError, match="is not TARGET:OPERATOR") as caught:
        intarsia.compile(chain_model, TARGET, exclude=[text], backends=backends)
    assert "openvino:Resize" in caught.value.hint


def test_a_node_excluded_everywhere_is_unsupported(chain_model, backends):
    everywhere = ["fake:0:Relu", "fake:1:Relu", "reference:Relu"]
    with pytest.raises(UnsupportedError, match="'second'") as caught:
        intarsia.compile(chain_model, TARGET, exclude=everywhere, backends=backends)
    assert {refusal.code for refusal in caught.value.refusals} == {ReasonCode.USER}


def test_strict_refuses_a_fallback_that_was_not_asked_for(chain_model, backends):
    with pytest.raises(UnsupportedError, match=r"strict: .*unsupported-op"):
        intarsia.compile(chain_model, "fake -ops=Relu, reference", strict=True, backends=backends)


def test_strict_accepts_what_the_user_excluded(chain_model, backends):
    exe = intarsia.compile(
        chain_model, TARGET, strict=True, exclude=["fake:0:Relu"], backends=backends
    )
    assert placed(exe)["second"] == "fake:1"


def test_an_exclusion_may_be_a_glob_over_operators(parse_model, backends):
    model = parse_model("g (float[4] x) => (float[4] y) { a = Sigmoid(x) y = Relu(a) }")
    exe = intarsia.compile(
        model, "openvino, onnxruntime", exclude=["openvino:Sigm*"], backends=backends
    )
    assert exe.placement.coverage() == {"openvino": 1, "onnxruntime": 1}


def test_an_exclusion_holds_for_what_was_fused_into_a_node(parse_model, backends):
    model = parse_model(
        """g (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {2.0}, float[1] s = {1.0}, float[1] z = {0.0}, float[1] v = {1.0}>
        { [conv] c = Conv(x, w) [norm] n = BatchNormalization(c, s, z, z, v) y = Relu(n) }"""
    )
    exe = intarsia.compile(
        model,
        "openvino, onnxruntime",
        exclude={"openvino": "BatchNormalization"},
        backends=backends,
    )
    nodes = {n.name: region.target for region in exe.placement.regions for n in region.nodes}
    assert nodes["conv"] == "onnxruntime"


def test_a_pin_may_name_a_node_with_brackets(parse_model, backends):
    model = parse_model("g (float[4] x) => (float[4] y) { [n] a = Relu(x) y = Neg(a) }")
    model.graph.node[0].name = "block[0]/relu"
    exe = intarsia.compile(
        model,
        "openvino, onnxruntime",
        pins={"block[0]/relu": "onnxruntime"},
        backends=backends,
    )
    assert exe.placement.coverage() == {"openvino": 1, "onnxruntime": 1}


def test_a_pin_of_which_nothing_is_left_is_a_visible_line(parse_model, backends, caplog):
    model = parse_model(
        """g (float[2] x) => (float[2] y) <float[2] c = {1.0, 2.0}>
        { [folded] d = Neg(c) y = Add(x, d) }"""
    )
    with caplog.at_level("WARNING", "intarsia"):
        intarsia.compile(
            model, "openvino, onnxruntime", pins={"folded": "onnxruntime"}, backends=backends
        )
    assert "pin 'folded=onnxruntime' has no effect" in caplog.text
