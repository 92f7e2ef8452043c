# SPDX-License-Identifier: Apache-2.0
"""`intarsia run`."""

import subprocess
import sys

import numpy as np
import onnx
import pytest


def test_a_package_runs_on_given_inputs(call, package, array, chain_model, evaluate):
    answer = call("run", package, "--input", "x=x.npy", "--json")
    assert answer.code == 0
    assert answer.err == ""
    expected = evaluate(chain_model, {"x": array})
    for summary in answer.json["outputs"]:
        values = expected[summary["name"]]
        assert summary["dtype"] == "float32"
        assert summary["shape"] == [2, 4]
        assert summary["mean"] == pytest.approx(values.mean(), abs=1e-5)
        assert summary["first"] == pytest.approx(values.ravel()[:5].tolist(), abs=1e-5)
    assert answer.json["load_seconds"] > 0
    assert answer.json["timing"] is None


def test_made_up_inputs_are_announced_and_repeatable(call, package):
    first, again = (call("run", package, "--seed", "7") for _ in range(2))
    assert first.code == 0
    assert "seed 7 for x: float32[2,4]" in first.err
    assert first.out == again.out
    assert call("run", package, "--seed", "8").out != first.out


def test_a_model_runs_without_a_package(call, model):
    answer = call("run", model, "-t", "reference")
    assert answer.code == 0
    assert "mid" in answer.out


def test_outputs_are_written_where_asked(call, folder, package, array, chain_model, evaluate):
    answer = call(
        "run", package, "-i", "x=x.npy", "--output-dir", "out", "--output", "y=elsewhere.npy"
    )
    assert answer.code == 0
    assert "wrote y to elsewhere.npy" in answer.out
    expected = evaluate(chain_model, {"x": array})
    np.testing.assert_allclose(np.load("elsewhere.npy"), expected["y"], rtol=1e-5)
    np.testing.assert_allclose(np.load("out/mid.npy"), expected["mid"], rtol=1e-5)
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["mid.npy"]


def test_names_of_outputs_do_not_leave_the_folder(call, folder, parse_model):
    model = parse_model("paths (float[2] x) => (float[2] y, float[2] z) { y = Relu(x) z = Abs(x) }")
    for output, name in zip(model.graph.output, ("../up", ".._up"), strict=True):
        for node in model.graph.node:
            node.output[:] = [name if out == output.name else out for out in node.output]
        output.name = name
    onnx.save(model, "paths.onnx")
    assert call("run", "paths.onnx", "-t", "reference", "--output-dir", "out").code == 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["_up-0.npy", "_up-1.npy"]


def test_repeating_tells_how_many_runs_count(call, package, array):
    answer = call("run", package, "-i", "x=x.npy", "--repeat", "3", "--json")
    assert answer.json["timing"]["runs"] == 3
    assert "3 runs: median" in call("run", package, "-i", "x=x.npy", "--repeat", "3").out


def test_a_missing_input_is_named(call, folder, parse_model):
    onnx.save(
        parse_model("two (float[2] a, float[2] b) => (float[2] c) { c = Add(a, b) }"), "t.onnx"
    )
    np.save("a.npy", np.ones(2, np.float32))
    answer = call("run", "t.onnx", "-t", "reference", "--input", "a=a.npy")
    assert answer.code == 2
    assert "error: input 'b' is missing" in answer.err
    assert "b: float32[2]" in answer.err


def test_a_wrong_shape_is_named(call, folder, package):
    np.save("wide.npy", np.ones((2, 5), np.float32))
    answer = call("run", package, "--input", "x=wide.npy")
    assert answer.code == 2
    assert "'x' has shape [2, 5], the model wants [2, 4]" in answer.err


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "there is no file"), (b"hello", "is not a .npy file")]
)
def test_a_wrong_file_is_named(call, folder, package, content, reason):
    if content is not None:
        (folder / "odd.npy").write_bytes(content)
    answer = call("run", package, "--input", "x=odd.npy")
    assert answer.code == 2
    assert "'odd.npy'" in answer.err
    assert reason in answer.err


def test_an_array_of_objects_is_never_unpickled(call, folder, package):
    np.save("object.npy", np.array([{}], object))
    answer = call("run", package, "--input", "x=object.npy")
    assert answer.code == 2
    assert "Object arrays cannot be loaded" in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "x"], "--input 'x' is not NAME=FILE.npy"),
        (["--input", "x=x.npy", "--input", "x=x.npy"], "gives 'x' twice"),
        (["--output", "q=q.npy"], "the model has no output 'q'"),
        (["--seed", "-1"], "seed -1 is negative"),
        (["--repeat", "0"], "--repeat"),
        (["-t", "llvm"], "--target is for compiling"),
    ],
)
def test_wrong_options_are_refused(call, package, array, options, message):
    answer = call("run", package, *options)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert message in answer.err


def test_a_damaged_package_is_named(call, folder, package):
    content = bytearray((folder / package).read_bytes())
    content[4096 + 10] ^= 0xFF
    (folder / package).write_bytes(content)
    answer = call("run", package)
    assert answer.code == 2
    assert "chain.intarsia" in answer.err


def test_a_text_that_is_named_like_a_package_is_refused(call, folder):
    (folder / "text.intarsia").write_text("hello")
    answer = call("run", "text.intarsia")
    assert answer.code == 2
    assert "is not a package" in answer.err


def test_running_a_package_imports_no_front_end(package):
    code = (
        "import sys; from intarsia.__main__ import main; "
        f"code = main(['run', {package!r}]); "
        "heavy = [name for name in ('onnx_ir', 'onnxscript') if name in sys.modules]; "
        "sys.exit(code or str(heavy) if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_free_dimensions_have_nominal_sizes_or_those_that_are_given(call, free_model):
    answer = call("run", free_model, "-t", "onnxruntime", "--json")
    assert answer.json["inputs"][0]["shape"] == [1, 3]
    answer = call("run", free_model, "-t", "onnxruntime", "--shape", "N=4", "--json")
    assert answer.json["inputs"][0]["shape"] == [4, 3]
    explained = call("explain", free_model, "-t", "onnxruntime", "--shape", "N=2..8")
    assert "this is for N=2" in explained.out


def test_a_package_runs_on_inputs_of_the_sizes_that_are_given(call, free_model):
    call("compile", free_model, "-t", "onnxruntime", "-o", "free.intarsia")
    for options in ((), ("--frozen",)):
        answer = call("run", "free.intarsia", "--sizes", "N=5", *options, "--json")
        assert answer.json["inputs"][0]["shape"] == [5, 3]
    explained = call("explain", "free.intarsia", "--sizes", "N=6", "--profile", "1")
    assert "this is for N=6" in explained.out
    for sizes, told in (("N=5,6", "--sizes is for compiling"), ("M=5", "no free dimension 'M'")):
        answer = call("run", "free.intarsia", "--sizes", sizes)
        assert answer.code == 2
        assert told in answer.err


def test_inputs_are_padded_up_to_a_bucket(call, free_model, folder):
    np.save(folder / "x.npy", np.arange(9, dtype=np.float32).reshape(3, 3))
    options = ("--bucket", "N=2,4", "--pad-value", "x=-1", "--input", "x=x.npy")
    answer = call("run", free_model, "-t", "onnxruntime", *options, "--output-dir", ".")
    assert answer.code == 0, answer.err
    whole = call("run", free_model, "-t", "onnxruntime", "--input", "x=x.npy", "--json")
    assert whole.json["outputs"][0]["shape"][0] == 3
    call("compile", free_model, "-t", "onnxruntime", "--bucket", "N=2,4", "-o", "free.intarsia")
    assert "padded to N=2,4" in call("check", "free.intarsia").out
    assert "padded to N=2,4" in call("explain", "free.intarsia").out
    padded = call("run", "free.intarsia", "--input", "x=x.npy", "--json")
    assert padded.json["outputs"] == whole.json["outputs"]
    np.save(folder / "x.npy", np.zeros((5, 3), np.float32))
    answer = call("run", "free.intarsia", "--input", "x=x.npy")
    assert answer.code == 2
    assert "'N' is 5, and its largest bucket is 4" in answer.err


def test_a_fault_that_comes_once_is_named_in_its_run(call, model):
    call_with = ("run", model, "-t", "fake -ops=Relu -fault=later-nan, onnxruntime", "--verify")
    assert call(*call_with).code == 0
    answer = call(*call_with, "--repeat", "4")
    assert answer.code == 1
    assert "on fake -fault=later-nan -ops=Relu, run 2: " in answer.err
    (fault,) = call(*call_with, "--repeat", "4", "--json").json["faults"]
    assert (fault["run"], fault["fault"]["symptom"]) == (2, "nan")
