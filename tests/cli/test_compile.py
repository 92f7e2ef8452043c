# SPDX-License-Identifier: Apache-2.0
"""`intarsia compile`."""

import onnx
import pytest

import intarsia
from intarsia.tuning import trial


def test_compile_writes_a_package_that_loads(call, folder, model, array):
    answer = call("compile", model, "-t", "onnxruntime")
    assert answer.code == 0
    assert "onnxruntime" in answer.out
    assert "wrote chain.intarsia" in answer.out
    loaded = intarsia.load(folder / "chain.intarsia")
    assert loaded.run({"x": array})["y"].shape == (2, 4)


def test_the_shortfall_is_one_line_on_stderr(call, mixed_model):
    answer = call("compile", mixed_model, "-t", "openvino, onnxruntime")
    assert answer.code == 0
    assert answer.err.splitlines() == [
        "warning: 1 of 2 nodes on openvino; 1 on onnxruntime: unsupported-dtype 1 (Cast)"
    ]


def test_the_log_level_hides_the_shortfall(call, mixed_model, monkeypatch):
    monkeypatch.setenv("INTARSIA_LOG", "error")
    assert call("compile", mixed_model, "-t", "openvino, onnxruntime").err == ""


def test_a_pin_and_an_exclusion_are_obeyed(call, model):
    answer = call(
        "compile", model, "-t", "openvino, onnxruntime", "--json",
        "--pin", "third=onnxruntime", "--exclude", "openvino:Tanh",
    )  # fmt: skip
    assert answer.code == 0
    where = {
        node["name"]: (region["target"], node["why"])
        for region in answer.json["explanation"]["placement"]["regions"]
        for node in region["nodes"]
    }
    assert where["third"] == ("onnxruntime", "pin 'third=onnxruntime'")
    assert where["fourth"][0] == "onnxruntime"
    assert where["first"][0] == "openvino"


def test_json_names_the_file_and_its_size(call, folder, model):
    answer = call("compile", model, "-t", "onnxruntime", "-o", "other.intarsia", "--json")
    assert answer.json["file"] == "other.intarsia"
    assert answer.json["nbytes"] == (folder / "other.intarsia").stat().st_size


def test_a_shape_fixes_a_free_dimension(call, free_model):
    assert call("compile", free_model, "-t", "onnxruntime", "--shape", "x=2x3").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "N=8..1"], "the bounds 8..1 of dimension 'N' are empty"),
        (["--shape", "M=1..8"], "the model has no input 'M'"),
        (["--shape", "N=x"], "--shape 'N=x' is not NAME=SIZES"),
        (["--sizes", "N=1;2"], "--sizes 'N=1;2' is not NAME=SIZES"),
        (["--sizes", "M=2"], "there is no free dimension 'M'"),
        (["--bucket", "N=4;8"], "--bucket 'N=4;8' is not NAME=SIZES"),
        (["--bucket", "M=4,8"], "there is no free dimension 'M' to pad"),
        (["--bucket", "N=4", "--bucket", "N=8"], "--bucket gives 'N' twice"),
        (["--bucket", "N=4", "--pad-value", "x=one"], "--pad-value 'x=one' is not INPUT=VALUE"),
        (["--bucket", "N=4", "--pad-value", "z=1"], "there is no input 'z' to pad"),
        (["--pad-value", "x=1"], "no buckets to pad to"),
        (["--sizes", "N=9", "--shape", "N=1..8"], "'N' is 9 in input 'x', and was bounded to 1..8"),
    ],
)
def test_what_is_said_wrongly_of_free_dimensions_is_named(call, free_model, options, message):
    answer = call("compile", free_model, "-t", "onnxruntime", *options)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.parametrize(
    ("options", "code", "message", "hint"),
    [
        (["-t", "opnvino"], 2, "'opnvino' is not known", "did you mean 'openvino'"),
        (["-t", "hexagon9"], 2, "hexagon9", "kinds"),
        (["-t", "c"], 2, "does not say how its own is reached", "--emit c"),
        (["-t", "hexagon"], 3, "no backend generates code for target kind", "kinds with"),
        (["--pin", "zzz/*=onnxruntime"], 2, "'zzz/*=onnxruntime' matches no node", "'first'"),
        (["--pin", "first"], 2, "--pin 'first' is not PATTERN=TARGET", "layer4/*"),
        (["--exclude", "onnxruntime"], 2, "is not TARGET:OPERATOR", "openvino:Resize"),
        (["--shape", "x=2xfour"], 2, "--shape 'x=2xfour' is not NAME=SIZES", "data=1x3"),
        (["--shape", "x=3x4"], 2, "dimension 0 is 2", "2x4"),
        (["--placement", "magic"], 2, "'magic' is unknown", "auto, greedy, manual"),
        (["--threads", "0"], 2, "num_threads=0 is not a number", "leave it out for all CPUs"),
    ],
)
def test_a_wrong_option_is_one_message_with_a_hint(call, model, options, code, message, hint):
    target = [] if "-t" in options else ["-t", "onnxruntime"]
    answer = call("compile", model, *target, *options)
    assert answer.code == code
    assert answer.out == ""
    first, *_, last = answer.err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert last.startswith("hint: ")
    assert hint in last


def test_two_targets_for_one_pattern_are_refused(call, model):
    pins = ["--pin", "first=openvino", "--pin", "first=onnxruntime"]
    answer = call("compile", model, "-t", "openvino, onnxruntime", *pins)
    assert answer.code == 2
    assert "both 'openvino' and 'onnxruntime'" in answer.err


def test_a_missing_model_is_named(call, folder):
    answer = call("compile", "nowhere.onnx", "-t", "onnxruntime")
    assert answer.code == 2
    assert "'nowhere.onnx' does not exist\nhint: check the path" in answer.err


def test_a_misspelt_model_leads_to_the_one_that_is_there(call, model):
    answer = call("compile", "chian.onnx", "-t", "onnxruntime")
    assert answer.code == 2
    assert "'chian.onnx' does not exist\nhint: did you mean 'chain.onnx'?" in answer.err


def test_a_misspelt_kind_leads_to_one_and_not_through_all(call, model):
    answer = call("compile", model, "-t", "lvm")
    assert "hint: did you mean 'llvm'? kinds: " in answer.err
    assert len(answer.err) < 400
    answer = call("compile", model, "-t", "onnx")
    assert "hint: did you mean 'onnxruntime'" in answer.err


def test_a_file_that_is_no_model_is_named(call, folder):
    (folder / "text.onnx").write_text("hello")
    answer = call("compile", "text.onnx", "-t", "onnxruntime")
    assert answer.code == 2
    assert "'text.onnx' is not an ONNX model" in answer.err


def test_a_package_that_cannot_be_written_is_named(call, model):
    answer = call("compile", model, "-t", "onnxruntime", "-o", "no/such/folder.intarsia")
    assert answer.code == 2
    assert "cannot write" in answer.err


def test_strict_refuses_a_fallback(call, mixed_model):
    answer = call("compile", mixed_model, "-t", "openvino, onnxruntime", "--strict")
    assert answer.code == 2
    assert "cast" in answer.err


def test_long_work_writes_lines_where_there_is_no_terminal(call, model, monkeypatch):
    from intarsia.cli import models

    assert "place" not in call("compile", model, "-t", "reference").err
    monkeypatch.setattr(models, "QUIET_SECONDS", 0.0)
    assert "place: 0 of 1" in call("compile", model, "-t", "reference").err


@pytest.mark.parametrize("options", [(), ("--no-probe",)])
def test_no_probe_runs_nothing(options, call, folder, parse_model, monkeypatch):
    pytest.importorskip("openvino")
    model = parse_model(
        """g (float[1,1,8,8] x, float[1,5] r) => (float[1,1,2,2] y)
        { y = MaxRoiPool<pooled_shape = [2, 2]>(x, r) }"""
    )
    onnx.save(model, "pool.onnx")
    monkeypatch.setenv("INTARSIA_PROBE", "1")
    monkeypatch.setenv("INTARSIA_COSTS", str(folder / "costs.sqlite"))
    for limit in ("MOST_SECONDS", "LONG_SECONDS"):
        monkeypatch.setattr(trial, limit, 60.0)
    assert call("compile", "pool.onnx", *options).code == 0
    assert (folder / "costs.sqlite").exists() == (not options)
