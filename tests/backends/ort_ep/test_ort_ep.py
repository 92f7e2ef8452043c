# SPDX-License-Identifier: Apache-2.0
"""Execution providers of ONNX Runtime: asked what they take, and never silently left for the CPU.

The provider is a plug-in of our own, `plugin_ep.c`: Add and Mul of float32.
"""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from tests.c_compiler import STRICT, compile_c

import intarsia
from intarsia.backends.ort_ep.backend import BACKEND
from intarsia.backends.ort_ep.providers import PROVIDERS, library_of, options_of
from intarsia.errors import IntarsiaError, TargetError
from intarsia.report.targets import availability
from intarsia.target import Target, get_kind
from intarsia.testing import examine
from intarsia.testing.cases import CASES

pytest.importorskip("onnxruntime")
SOURCE = Path(__file__).with_name("plugin_ep.c")
MODEL = """<ir_version: 8, opset_import: ["": 17]>
    g (float[4, 4] x, float[4, 4] z) => (float[4, 4] y) {
        [sum] a = Add (x, x) [product] b = Mul (a, z) [rest] c = Sub (b, x) [last] y = Add (c, z)
    }"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    file = tmp_path_factory.mktemp("provider") / "libsums.so"
    compile_c(*STRICT, "-shared", "-fPIC", "-O1", "-o", file, SOURCE)
    return file


@pytest.fixture(scope="module")
def feeds():
    x, z = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    return {"x": x, "z": z}


def run(target, feeds, tmp_path=None):
    """Compile and run the model; return where its nodes are, and the program."""
    model = onnx.parser.parse_model(MODEL)
    program = intarsia.compile(model, target, cache=False)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]
    programs = [program]
    if tmp_path is not None:
        program.save(tmp_path / "saved.intarsia")
        programs.append(intarsia.load(tmp_path / "saved.intarsia", trust=True))
    for one in programs:
        np.testing.assert_allclose(one.run(feeds)["y"], expected, rtol=1e-5, atol=1e-6)
    where = {n.name: region.backend for region in program.placement.regions for n in region.nodes}
    return where, program


def test_a_provider_has_what_it_says_that_it_takes(library, feeds, tmp_path):
    where, program = run(f"ort-ep -library={library}, onnxruntime", feeds, tmp_path)
    taken = {name for name, backend in where.items() if backend == "ort-ep"}
    assert taken == {"sum", "product", "last"}
    (refusal,) = program.placement.refusals
    assert refusal.reason == (
        "the provider of libsums.so does not take one node, which ONNX Runtime put on the CPU: Sub"
    )


def test_what_a_provider_leaves_of_a_region_goes_elsewhere(library, feeds):
    where, program = run(f"ort-ep -library={library} -options=most=1, onnxruntime", feeds)
    assert {name for name, backend in where.items() if backend == "ort-ep"} == {"sum", "last"}
    reasons = " ".join(refusal.reason for refusal in program.placement.refusals)
    assert (
        "has not all of a region: the provider of libsums.so does not take one node, "
        "which ONNX Runtime put on the CPU: Mul"
    ) in reasons


@pytest.mark.exhaustive
def test_the_kit_finds_nothing_wrong(library):
    cases = [case for case in CASES if case.op_type in ("Add", "Mul", "Sub")]
    checks = ["contract", "numbers", "oddities", "artifacts", "threads", "processes"]
    report = examine(BACKEND, f"ort-ep -library={library}, onnxruntime", checks=checks, cases=cases)
    assert not report.failures, str(report)
    assert "numbers" in str(report)


@pytest.mark.parametrize("kind", [kind for kind, one in PROVIDERS.items() if one.options])
def test_an_unknown_option_is_refused_with_the_nearest(kind):
    known = sorted(PROVIDERS[kind].options)[0]
    assert get_kind(kind).help
    assert options_of(Target({"kind": kind, "options": [f"{known}=1"]}))[known] == "1"
    with pytest.raises(TargetError, match=f"has no option '{known}x'") as caught:
        options_of(Target({"kind": kind, "options": [f"{known}x=1"]}))
    assert f"did you mean '{known}'" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("ort-ep", "the kind ort-ep needs the file of a provider"),
        ("ort-ep -library=/no/such.so", "there is no file '/no/such.so'"),
        ("rknpu", "is no part of the ONNX Runtime that is installed"),
        ("qnn -options=soc_model", "'soc_model' has no value"),
        ("qnn -options=soc_model=1,soc_model=2", "soc_model stands there twice"),
    ],
)
def test_what_cannot_be_done_is_said(target, problem):
    with pytest.raises(IntarsiaError) as caught:
        intarsia.compile(onnx.parser.parse_model(MODEL), f"{target}, onnxruntime", cache=False)
    assert problem in caught.value.message


@pytest.mark.exhaustive
def test_only_kinds_whose_provider_is_here_are_usable(backends):
    built_in = onnxruntime.get_available_providers()
    for kind, provider in PROVIDERS.items():
        found = availability(kind, backends)
        if not provider.name:
            assert "-library=PATH" in found.hint
        elif provider.name not in built_in and not library_of(Target(kind)):
            assert f"{provider.title} is no part of the ONNX Runtime" in found.reason
        assert bool(found.version) is not bool(found.reason)


def test_a_library_that_is_no_provider_is_refused(tmp_path, feeds):
    source, file = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("int nothing;\n")
    compile_c("-shared", "-fPIC", "-o", file, source)
    with pytest.raises(IntarsiaError) as caught:
        run(f"ort-ep -library={file}, onnxruntime", feeds)
    assert "does not pass its self-test: ONNX Runtime cannot load the library" in (
        caught.value.message
    )


@pytest.mark.exhaustive
def test_a_device_that_it_has_not_is_refused(library, feeds):
    with pytest.raises(IntarsiaError) as caught:
        run(f"ort-ep -library={library} -ep_device=npu, onnxruntime", feeds)
    assert "finds no device of type npu on this machine" in caught.value.message


OWN = f"""
import sys
import numpy as np
import onnx.parser
import onnx.reference
import intarsia

model = onnx.parser.parse_model('''{MODEL}''')
target = f"ort-ep -library={{intarsia.onnxruntime_library()}} -options=target=llvm, onnxruntime"
x, z = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
program = intarsia.compile(model, target, cache=False)
program.save(sys.argv[1])
expected = onnx.reference.ReferenceEvaluator(model).run(None, {{"x": x, "z": z}})[0]
for one in (program, intarsia.load(sys.argv[1], trust=True)):
    np.testing.assert_allclose(one.run({{"x": x, "z": z}})["y"], expected, rtol=1e-5, atol=1e-6)
regions = program.placement.regions
print({{node.name: region.backend for region in regions for node in region.nodes}})
"""
"""In a process of its own: a library that is registered stays, and others count its devices."""


@pytest.mark.exhaustive
def test_our_own_provider_is_a_plug_in_as_others_are(tmp_path):
    """Its library is made without a compiler; each way through ONNX Runtime's ABI is ours."""
    pytest.importorskip("onnxruntime", minversion="1.24")
    done = subprocess.run(
        [sys.executable, "-c", OWN, str(tmp_path / "own.intarsia")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    where = ast.literal_eval(done.stdout)
    assert where == dict.fromkeys(("sum", "product", "rest", "last"), "ort-ep")
