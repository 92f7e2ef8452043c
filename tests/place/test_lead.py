# SPDX-License-Identifier: Apache-2.0
"""Without a target, the order is ours: the first one that cuts the model into few pieces."""

import logging

import numpy as np
import pytest

import intarsia
from intarsia.backends.artifact import refuse as refuse_node
from intarsia.backends.reference import ReferenceBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Detection, Rule
from intarsia.errors import BackendError, ReasonCode
from intarsia.place.machine import resolve_targets
from intarsia.target import CompilationConfig, Target

BLOCKS = 6
LISTED = "llvm, openvino, onnxruntime"
HEADER = "g (float[8,8] x) => (float[8,8] y)"
NOISE = "RandomUniformLike<low = 0.0, high = 1e-9>"  # native code leaves what is random to others


@pytest.fixture(scope="module")
def interleaved(parse_model):
    """A model of blocks; each has an operator that native code refuses."""
    lines = ["[start] v0 = Relu(x)"]
    for i in range(BLOCKS):
        lines.append(f"[noise{i}] t{i} = {NOISE}(v{i})")
        lines.append(f"[act{i}] v{i + 1} = Sub(v{i}, t{i})")
    lines.append(f"[end] y = Neg(v{BLOCKS})")
    return parse_model(HEADER + " { " + " ".join(lines) + " }")


@pytest.fixture(scope="module")
def with_tail(parse_model):
    """A model that native code takes but for what stands between its last nodes."""
    lines = ["v0 = Relu(x)", *(f"v{i + 1} = Tanh(v{i})" for i in range(40))]
    for i in range(3):
        lines.append(f"t{i} = {NOISE}(v{40 + i})")
        lines.append(f"v{41 + i} = Sub(v{40 + i}, t{i})")
    lines.append("y = Neg(v43)")
    return parse_model(HEADER + " { " + " ".join(lines) + " }")


def kinds(exe):
    return [region.target.split()[0] for region in exe.placement.regions]


def test_a_target_that_cuts_the_model_into_many_pieces_does_not_lead(interleaved, backends):
    pytest.importorskip("openvino")
    exe = intarsia.compile(interleaved, backends=backends)
    assert kinds(exe) == ["openvino"]
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    expected = intarsia.compile(interleaved, "reference", backends=backends)(x)
    np.testing.assert_allclose(exe(x), expected, rtol=1e-5, atol=1e-6)


def test_an_order_that_was_given_is_obeyed(interleaved, backends):
    exe = intarsia.compile(interleaved, LISTED, backends=backends)
    assert len(kinds(exe)) == 2 * BLOCKS + 1
    assert kinds(exe)[0] == "llvm"


def test_pieces_at_the_end_do_not_count_if_most_of_the_model_is_whole(with_tail, backends):
    exe = intarsia.compile(with_tail, backends=backends)
    assert len(kinds(exe)) > 4
    assert kinds(exe)[0] == "llvm"


@pytest.mark.parametrize(("length", "leads"), [(128, "llvm"), (1500, "openvino")])
def test_native_code_leaves_large_attention_to_others(length, leads, parse_model, backends):
    pytest.importorskip("openvino")
    model = parse_model(
        f"""g (float[6,{length},8] q, float[6,8,{length}] k)
        => (float[6,{length},8] y, float[6,{length},{length}] p)
        {{ s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, q) }}"""
    )
    assert kinds(intarsia.compile(model, backends=backends)) == [leads]
    assert kinds(intarsia.compile(model, LISTED, backends=backends)) == ["llvm"]


def test_explain_says_who_does_not_go_first_and_why(interleaved, backends, tmp_path):
    pytest.importorskip("openvino")
    exe = intarsia.compile(interleaved, backends=backends)
    (line,) = exe.placement.passed_over
    assert line.startswith("llvm ")
    assert line.endswith(f" does not go first: there would be {2 * BLOCKS + 1} regions")
    assert line in str(exe.explain())
    exe.save(tmp_path / "m.intarsia")
    assert intarsia.load(tmp_path / "m.intarsia").placement == exe.placement
    assert intarsia.compile(interleaved, LISTED, backends=backends).placement.passed_over == ()


@pytest.mark.parametrize("failure", [ValueError("no"), BackendError("no")])
def test_a_backend_that_fails_when_asked_whether_it_yields_does_not(
    parse_model, backends, caplog, failure
):
    class Failing(ReferenceBackend):
        name = "failing"
        kinds = ("bnns",)

        def detect(self):
            return Detection((Target("bnns"),))

        def yields(self, graph):
            raise failure

    model = parse_model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    exe = intarsia.compile(model, backends=collect([*backends.by_name.values(), Failing()]))
    assert kinds(exe) == ["bnns"]
    assert [r.message for r in caplog.records if "bnns may go first" in r.message]


def test_what_nobody_asked_for_is_no_warning(with_tail, backends, caplog):
    with caplog.at_level(logging.INFO, "intarsia"):
        exe = intarsia.compile(with_tail, backends=backends)
        intarsia.compile(with_tail, LISTED, backends=backends)
    assert exe.placement.shortfall
    lines = [record.levelno for record in caplog.records if "nodes on llvm" in record.message]
    assert lines == [logging.INFO, logging.WARNING]


def test_pins_are_obeyed_whoever_leads(interleaved, backends):
    exe = intarsia.compile(interleaved, pins={"act2": "onnxruntime"}, backends=backends)
    owners = {
        node.name: region.target.split()[0]
        for region in exe.placement.regions
        for node in region.nodes
    }
    assert owners["act2"] == "onnxruntime"


@pytest.mark.parametrize("target", ["dnnl", "onnxruntime"])
def test_pins_move_their_own_nodes_and_no_others(target, parse_model, backends):
    if target == "dnnl" and backends.named("dnnl").detect().reason:
        pytest.skip("needs oneDNN")
    lines = " ".join(f"[n{i}] v{i + 1} = Relu(v{i})" for i in range(20))
    model = parse_model(f"g (float[1,16,4,4] v0) => (float[1,16,4,4] v20) {{ {lines} }}")
    pins = {f"n{i}": target for i in (4, 8, 12, 16)}
    exe = intarsia.compile(model, pins=pins, backends=backends)
    assert exe.placement.coverage()[target] == 4
    assert kinds(exe)[0] == "llvm"
    assert exe.placement.passed_over == ()


def test_a_pin_that_leaves_the_choice_open_changes_nothing(interleaved, backends):
    free = intarsia.compile(interleaved, backends=backends)
    pinned = intarsia.compile(interleaved, pins={"*": "cpu"}, backends=backends)
    assert kinds(pinned) == kinds(free)
    assert pinned.placement.passed_over == free.placement.passed_over


def test_if_all_cut_it_into_many_the_fewest_regions_win(interleaved, backends):
    few = collect([backends.named("llvm"), backends.named("reference"), Alternating()])
    exe = intarsia.compile(interleaved, backends=few)
    by_order = intarsia.compile(interleaved, "bnns, llvm", backends=few)
    assert len(kinds(exe)) <= len(kinds(by_order))


def test_a_backend_that_nobody_needs_is_not_asked(parse_model, backends):
    model = parse_model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    late = Alternating()
    known = [found for found in backends.by_name.values() if found.name != late.name]
    exe = intarsia.compile(model, "llvm, bnns, onnxruntime", backends=collect([*known, late]))
    assert kinds(exe) == ["llvm"]
    assert late.asked == 0
    intarsia.compile(model, "bnns, llvm, onnxruntime", backends=collect([*known, late]))
    assert late.asked == 1


def test_a_config_remembers_that_its_order_is_nobodys(backends):
    found = resolve_targets(None, None, backends)
    assert found.reasons.is_detected
    assert CompilationConfig.resolve(found).reasons.is_detected
    assert CompilationConfig.resolve(found, host="llvm").reasons.is_detected
    given = CompilationConfig.resolve(found.text)
    assert given == found
    assert not given.reasons.is_detected


class Alternating(ReferenceBackend):
    """Takes what native code refuses here; counts how often it was asked."""

    name = "alternating"
    kinds = ("bnns",)

    def __init__(self):
        self.asked = 0

    def detect(self):
        return Detection((Target("bnns"),))

    def rules(self, context):
        self.asked += 1

        def refuse(graph, context):

            return {
                node.id: refuse_node(node, context, ReasonCode.UNSUPPORTED_OP, "not this one")
                for node in graph.nodes
                if node.op_type not in ("RandomUniformLike", "Relu")
            }

        return (Rule("alternating", refuse),)
