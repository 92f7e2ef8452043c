# SPDX-License-Identifier: Apache-2.0
"""The `Backend` interface of ONNX holds; its tests pass through us if they pass without."""

import logging
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import intarsia.onnx_backend
from intarsia.errors import InputError, ModelError, TargetError
from intarsia.onnx_backend import claims, conformance
from intarsia.onnx_backend.__main__ import main
from intarsia.onnx_backend.claims import STATED, check_claims, check_isolated, node_cases
from intarsia.process.workers import Limits

SAMPLE, SEED = 150, 0


@pytest.fixture(autouse=True)
def same_log_level():
    """What the command sets for its process does not outlive a test."""
    logger = logging.getLogger("intarsia")
    level = logger.level
    yield
    logger.setLevel(level)


def test_a_prepared_model_takes_inputs_by_position_by_name_or_alone(chain_model, evaluate):
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    expected = evaluate(chain_model, {"x": x})
    prepared = intarsia.onnx_backend.prepare(chain_model, target="reference")
    for inputs in ([x], {"x": x}, x):
        outputs = prepared.run(inputs)
        assert outputs._fields == ("y", "mid")
        np.testing.assert_allclose(outputs[0], expected["y"], rtol=1e-6)
        np.testing.assert_allclose(outputs["mid"], expected["mid"], rtol=1e-6)


def test_too_few_inputs_are_an_error(chain_model):
    with pytest.raises(InputError, match="takes 1 inputs, 2"):
        intarsia.onnx_backend.run_model(chain_model, [1, 2], target="reference")


def test_free_dimensions_are_those_of_the_inputs(parse_model):
    model = parse_model("free (float[N,3] x) => (float[N,3] y) { y = Neg(x) }")
    prepared = intarsia.onnx_backend.prepare(model, target="reference")
    for size in (2, 5, 2):
        assert prepared.run([np.ones((size, 3), np.float32)])[0].shape == (size, 3)


def test_one_node_runs_with_outputs_that_are_inferred_or_given():
    node = helper.make_node("Split", ["x"], ["a", "b"], num_outputs=2)
    x = np.arange(6, dtype=np.float32)
    info = [(np.dtype(np.float32), (3,))] * 2
    for outputs_info in (None, info):
        first, second = intarsia.onnx_backend.run_node(
            node, [x], outputs_info=outputs_info, target="reference"
        )
        assert (first.tolist(), second.tolist()) == ([0, 1, 2], [3, 4, 5])


def test_an_older_operator_set_can_be_asked_for():
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    x = np.ones((1, 2), np.float32)
    (y,) = intarsia.onnx_backend.run_node(node, [x], opset_version=11, target="reference")
    assert y.shape == (2,)


def test_a_node_that_does_not_exist_is_an_error():
    with pytest.raises(ModelError, match="Nope"):
        intarsia.onnx_backend.run_node(helper.make_node("Nope", ["x"], ["y"]), [np.ones(1)])


def test_devices_are_those_that_backends_find(chain_model):
    assert intarsia.onnx_backend.supports_device("CPU")
    assert not intarsia.onnx_backend.supports_device("HEXAGON:0")
    assert not intarsia.onnx_backend.supports_device("TOASTER")
    with pytest.raises(TargetError, match="TOASTER"):
        intarsia.onnx_backend.prepare(chain_model, "TOASTER")


RUNNER = """
import sys, unittest
import onnx.backend.test
import intarsia.onnx_backend
suite = onnx.backend.test.BackendTest(intarsia.onnx_backend, __name__)
suite.include("test_relu_cpu").include("test_nonzero_example_cpu")
cases = suite.enable_report().test_cases["OnnxBackendNodeModelTest"]
result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase(cases).run(result)
print(result.testsRun - len(result.skipped), result.failures + result.errors)
sys.exit(not result.wasSuccessful())
"""


@pytest.mark.exhaustive
def test_the_runner_of_onnx_takes_the_module():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUNNER],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("2 ")


def make_case(model, x, y, name="test_case"):
    return conformance.OnnxCase(name, "Op", model, [([x], [y])], 1e-3, 1e-7)


def test_results_tell_passed_from_failed_from_refused(parse_model):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    strange = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    strange.opset_import.add(domain="strange", version=1)
    strange.graph.node[0].domain = "strange"
    x = np.ones(2, np.float32)
    cases = [make_case(model, x, -x), make_case(model, x, x), make_case(strange, x, x)]
    found = conformance.run_cases(cases, {"ours": conformance.prepare_ours("reference")})
    assert [result.outcome for result in found.results["ours"]] == ["passed", "failed", "refused"]
    assert found.by_operator()["Op"]["ours"].total() == 3


def test_what_passes_on_the_peer_alone_is_missing(parse_model):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    x = np.ones(2, np.float32)

    def wrong(model):
        return lambda inputs: [inputs[0]]

    def right(model):
        return lambda inputs: [-inputs[0]]

    found = conformance.run_cases([make_case(model, x, -x)], {"ours": wrong, "peer": right})
    (result,) = found.missing("ours", "peer")
    assert result.test == "test_case"
    assert "Not equal" in result.why


@pytest.mark.exhaustive
def test_a_sample_passes_wherever_onnxruntime_does():
    pytest.importorskip("onnxruntime")
    cases = list(conformance.load_cases(["node"]))
    cases = random.Random(SEED).sample(cases, SAMPLE) + list(conformance.load_cases(["simple"]))
    found = conformance.run_cases(
        cases,
        {
            "ours": conformance.prepare_ours(None, num_threads=1),
            "peer": conformance.prepare_onnxruntime(),
        },
    )
    assert found.counts("peer")[conformance.Outcome.PASSED] > SAMPLE / 2
    assert found.missing("ours", "peer") == []


def test_the_command_prints_counts_and_tells_by_its_exit_code(capsys):
    pytest.importorskip("onnxruntime")
    assert main(["--kind", "simple", "--filter", "shrink|sign", "--table"]) == 0
    assert "| intarsia | 2 | 0 | 0 |" in capsys.readouterr().out


CLAIMED = "test_(abs|mod_uint8|softmax_axis_0|dropout_default|training_dropout_default)$"


@pytest.mark.exhaustive
def test_claims_are_tried_in_a_process_of_their_own():
    """Taken, refused with a reason, and other numbers by a rule that the backend states."""
    pytest.importorskip("onnxruntime")
    cases = [case for case in node_cases(several=True) if re.match(CLAIMED, case.name)]
    assert len(cases) == 5
    found = {claim.test: claim for claim in check_isolated(cases, "onnxruntime")}
    assert found["test_abs"].outcome is conformance.Outcome.PASSED
    assert found["test_training_dropout_default"].code == STATED
    partial = {claim.test: claim for claim in check_isolated(cases, "dnnl")}
    assert partial["test_softmax_axis_0"].outcome is conformance.Outcome.PASSED
    assert partial["test_mod_uint8"].outcome is conformance.Outcome.REFUSED
    assert partial["test_mod_uint8"].why


def test_halves_that_float64_gives_are_right_whatever_was_rounded_before(parse_model, monkeypatch):
    def claim_of(kind, dtype, factor):
        model = parse_model(f"g ({kind}[9] x) => ({kind}[9] y) {{ a = Mul(x, x) y = Neg(a) }}")
        x = np.linspace(0.5, 1, 9, dtype=dtype)
        wanted = (-(x.astype("f8") ** 2) * factor).astype(dtype)
        (claim,) = check_claims([make_case(model, x, wanted)], "llvm")
        return claim

    assert claim_of("float16", "f2", 1).outcome is conformance.Outcome.PASSED
    claim = claim_of("float16", "f2", 1.003)
    assert claim.code == STATED
    assert "float64" in claim.why
    assert not claim_of("float", "f4", 1.003).code
    monkeypatch.setattr(claims, "evaluate", lambda model, feeds: [feeds["x"].astype("f8")])
    claim = claim_of("float16", "f2", 1.003)
    assert claim.outcome is conformance.Outcome.FAILED
    assert not claim.code


def test_what_a_process_cannot_do_is_a_claim_that_is_not_kept(parse_model, monkeypatch):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    x = np.ones(2, np.float32)
    case = make_case(model, x, -x)
    (claim,) = check_isolated([case], "reference")
    assert claim.outcome is conformance.Outcome.PASSED
    monkeypatch.setattr(claims, "_LIMITS", Limits(seconds=0.01))
    (claim,) = check_isolated([case], "reference")
    assert claim.outcome is conformance.Outcome.FAILED
    assert "0.01 s" in claim.why


@pytest.mark.exhaustive
def test_the_page_counts_by_target_and_operator(tmp_path):
    pytest.importorskip("onnxruntime")
    script = Path(__file__).parents[1] / "scripts" / "make_conformance.py"
    page = tmp_path / "page.md"
    names = "^test_(abs|training_dropout_default|mod_uint8)$"
    kept = tmp_path / "claims.jsonl"
    given = ["--target", "onnxruntime", "--target", "dnnl", "--filter", names, str(page)]

    def write():
        ran = subprocess.run(
            [sys.executable, str(script), "--keep", str(kept), *given],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return page.read_text(encoding="utf-8")

    text = write()
    assert "| `onnxruntime` | 2 | 1 | 0 | 0 | 3 |" in text
    assert "| `dnnl` | 1 | 0 | 0 | 2 | 3 |" in text
    assert "| Dropout | stated | 1 | it draws other random numbers (1) |" in text
    assert "| Abs | 1 | all | all |" in text
    assert "| Mod | 1 | all |  |" in text
    *first, last = kept.read_text().splitlines(keepends=True)
    assert len(first) == 5
    kept.write_text("".join([*first, last[:20]]))  # as if it had been stopped in a line
    assert write() == text
    assert kept.read_text() == "".join([*first, last])
