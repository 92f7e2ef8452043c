# SPDX-License-Identifier: Apache-2.0
"""`intarsia check` says whether a package or a model works here, one line for each finding."""

import dataclasses

import onnx
import pytest

from intarsia.backends import registry
from intarsia.backends.fake import FakeBackend
from intarsia.backends.onnxruntime import OnnxRuntimeBackend
from intarsia.backends.registry import collect, load_backends
from intarsia.cost import fingerprint
from intarsia.errors import BackendError
from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict
from intarsia.settings import Settings


def findings(answer):
    return {row["subject"]: row for row in answer.json["findings"]}


def test_a_package_that_was_just_made_is_ok(call, package):
    answer = call("check", package)
    assert answer.code == 0
    assert answer.out.splitlines()[-1] == f"{package}: ok"
    found = call("check", package, "--json")
    assert found.code == 0
    assert found.json["verdict"] == "ok"
    assert found.json["file"] == package
    subjects = ["format", "origin", "file", "plan", "environment", "onnxruntime"]
    assert list(findings(found)) == subjects
    assert "cpu:0" in findings(found)["onnxruntime"]["message"]


def test_a_damaged_package_is_the_answer_no(call, folder, package):
    content = bytearray((folder / package).read_bytes())
    content[4096 + 10] ^= 0xFF
    (folder / package).write_bytes(content)
    answer = call("check", package)
    assert answer.code == 1
    assert answer.out.startswith("incompatible: file: ")
    assert answer.out.splitlines()[-1] == f"{package}: does not work here"


def test_no_file_is_bad_input(call, folder):
    assert call("check", "none.intarsia").code == 2
    assert call("check", "none.onnx").code == 2


def test_what_changed_is_named_and_does_not_matter(call, package, monkeypatch):
    real = fingerprint.this_machine()
    other = dataclasses.replace(real, cpu="Some other CPU")
    monkeypatch.setattr(fingerprint, "this_machine", lambda: other)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "99.0")
    answer = call("check", package, "--threads", 7)
    assert answer.code == 0
    assert "works here, but something has changed since it was compiled" in answer.out
    for part in ("changed: intarsia: ", " -> 99.0", "Some other CPU", "changed: threads: "):
        assert part in answer.out


def test_a_package_that_was_tuned_elsewhere_should_be_tuned_here(call, model, monkeypatch, folder):
    monkeypatch.setenv("INTARSIA_COSTS", str(folder / "costs.sqlite"))
    target = "fake:0 -cost=*:1e-3"
    assert call("tune", model, "-t", target, "--threads", 1, "-o", "t.intarsia").code == 0
    assert call("check", "t.intarsia", "--threads", 1, "--json").json["verdict"] == "ok"
    assert "intarsia tune" in call("check", "t.intarsia", "--threads", 2).out


def test_a_backend_that_is_not_here_is_the_answer_no(call, package, monkeypatch):
    backends = load_backends(Settings.from_environment())
    others = [backend for name, backend in backends.by_name.items() if name != "onnxruntime"]
    monkeypatch.setattr(registry, "load_backends", lambda settings: collect(others))
    answer = call("check", package)
    assert answer.code == 1
    assert "incompatible: region 0 on onnxruntime, cpu:0: " in answer.out
    assert "'onnxruntime' is not available" in answer.out
    assert "changed: onnxruntime: " in answer.out


@pytest.mark.parametrize(("error", "why"), [(KeyError(), "KeyError"), (OSError("a\nb"), "a")])
def test_a_backend_that_cannot_say_its_version_is_a_finding(call, package, monkeypatch, error, why):
    def version(backend):
        raise error

    monkeypatch.setattr(OnnxRuntimeBackend, "version", version)
    answer = call("check", package)
    assert answer.code == 0
    assert f" -> none ({why})" in answer.out


def test_regions_that_do_not_load_are_one_finding(call, model, monkeypatch):
    target = "fake -ops=MatMul,Sigmoid, reference"
    assert call("compile", model, "-t", target, "-o", "f.intarsia").code == 0
    assert {"fake", "reference"} <= findings(call("check", "f.intarsia", "--json")).keys()
    tried = []

    def load(backend, artifact, device):
        tried.append(artifact)
        raise BackendError("the device is on fire", hint="put it out")

    monkeypatch.setattr(FakeBackend, "load", load)
    answer = call("check", "f.intarsia", "--json")
    assert answer.code == 1
    (row,) = [row for row in answer.json["findings"] if row["verdict"] == "incompatible"]
    assert row["subject"] == "region 0 on fake -ops=MatMul,Sigmoid, ext_dev:0/fake"
    assert (row["message"], row["hint"]) == ("the device is on fire", "put it out")
    assert len(tried) == 1
    assert "reference" in findings(answer)


def test_a_model_is_asked_of_its_targets(call, mixed_model):
    answer = call("check", mixed_model, "-t", "openvino, onnxruntime", "--json")
    assert answer.code == 0
    rows = findings(answer)
    assert rows["openvino"]["message"] == "takes 1 of 2 nodes: unsupported-dtype 1"
    assert rows["onnxruntime"]["message"] == "takes 2 of 2 nodes"


def test_a_node_that_nobody_takes_is_named(call, model):
    answer = call("check", model, "-t", "fake -ops=MatMul,Relu,Sigmoid,Add, llvm -x")
    assert answer.code == 2  # the target is bad input, not the model
    answer = call("check", model, "-t", "fake -ops=MatMul,Relu,Sigmoid,Add")
    assert answer.code == 0
    assert "ok: onnxruntime: takes" in answer.out  # the host has it
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[4] x) => (float[4] y) { [lost] y = own.Thrice(x) }"""
    onnx.save(onnx.parser.parse_model(text), "own.onnx")
    answer = call("check", "own.onnx", "-t", "llvm")
    assert answer.code == 1
    assert "incompatible: node lost: Thrice is not taken by any target" in answer.out


def test_a_model_with_a_free_dimension_is_checked_at_some_size(call, free_model):
    for options in ([], ["--shape", "x=2x3"], ["--shape", "N=2"], ["--sizes", "N=2"]):
        assert call("check", free_model, "-t", "reference", *options).code == 0
    answer = call("check", free_model, "-t", "reference", "--sizes", "M=2")
    assert answer.code == 2
    assert "there is no free dimension 'M'" in answer.err


def test_options_of_compiling_are_not_for_packages(call, package):
    answer = call("check", package, "-t", "llvm")
    assert answer.code == 2
    assert "--target is for compiling" in answer.err


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_verdict_is_the_worst(count):
    rows = [CheckFinding(str(verdict), verdict, "so") for verdict in list(CheckVerdict)[:count]]
    found = CheckReport.of("file", reversed(rows))
    assert found.verdict == (CheckVerdict.OK if count < 2 else CheckVerdict.INCOMPATIBLE)
    assert [row.subject for row in found.findings] == [row.subject for row in reversed(rows)]


def test_a_package_with_free_dimensions_names_its_sizes(call, free_model):
    options = ("-t", "onnxruntime", "--sizes", "N=1,4", "-o", "free.intarsia")
    assert call("compile", free_model, *options).code == 0
    answer = call("check", "free.intarsia")
    assert answer.code == 0
    assert "programs for N=4; N=1; all sizes" in answer.out
    assert "regions loaded on cpu:0: 3" in answer.out
    assert "free dimensions: N (from 0)" in call("explain", "free.intarsia").out
    assert call("run", "free.intarsia", "--frozen").code == 0


def test_machines_behind_runners_are_asked(call, model):
    compiled = call("compile", model, "-t", "llvm -runner=here", "-o", "here.intarsia")
    assert compiled.code == 0, compiled.err
    for arguments in (("here.intarsia",), (model, "-t", "llvm -runner=here")):
        row = findings(call("check", *arguments, "--json"))["runner here"]
        assert row["verdict"] == "ok"
        assert str(fingerprint.this_machine()) in row["message"]
    answer = call("check", model, "-t", "llvm -mcpu=native -runner=qemu-none")
    assert answer.code == 1
    assert "incompatible: runner qemu-none: " in answer.out
