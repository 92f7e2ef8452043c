# SPDX-License-Identifier: Apache-2.0
"""`intarsia target`."""

import pytest

from intarsia.target import CompilationConfig, Target


def test_show_prints_the_canonical_text(call):
    answer = call("target", "show", "llvm  -mattr=+neon,-fp16 -mcpu=cortex-a72")
    assert answer.code == 0
    assert str(Target("llvm -mattr=+neon,-fp16 -mcpu=cortex-a72")) in answer.out


def test_show_as_json_makes_the_target_again(call):
    text = "openvino:1 -precision=bf16"
    view = call("target", "show", text, "--json").json["target"]
    assert view["text"] == text
    assert view["ordinal"] == 1
    assert not view["is_complete"]
    assert view["pipeline"]
    attributes = {item["name"]: item["value"] for item in view["attributes"]}
    assert attributes == {"precision": "bf16", "num_threads": None}


@pytest.mark.parametrize("text", ["openvino, onnxruntime", "acl", '["openvino", "onnxruntime"]'])
def test_show_of_several_targets_is_the_machine(call, text):
    view = call("target", "show", text, "--json").json["config"]
    config = CompilationConfig.resolve(text)
    assert view["text"] == str(config)
    assert view["fallback"] == str(config.fallback)
    assert CompilationConfig.from_json(view["json"]) == config
    assert view["default_device"] == "cpu:0"
    assert call("target", "show", text).code == 0


def test_show_tells_which_backend_serves_a_target(call):
    answer = call("target", "show", "onnxruntime, cuda", "--json")
    first, second = (row["availability"] for row in answer.json["config"]["targets"])
    assert first["backend"] == "onnxruntime"
    assert first["version"]
    assert second["version"] is None
    assert "no backend" in second["reason"]


def test_show_of_an_unknown_target_suggests_one(call):
    answer = call("target", "show", "onnxrutime", "--json")
    assert answer.code == 2
    assert "did you mean 'onnxruntime'?" in answer.err
    error = answer.json["error"]
    assert error["type"] == "TargetError"
    assert error["target"] == "onnxrutime"


def test_show_of_an_unknown_attribute_names_it(call):
    answer = call("target", "show", "onnxruntime -threads=2")
    assert answer.code == 2
    assert "no attribute 'threads'" in answer.err


def test_list_hides_what_is_for_tests(call):
    shown = {kind["name"]: kind for kind in call("target", "list", "--json").json["kinds"]}
    every = [kind["name"] for kind in call("target", "list", "--all", "--json").json["kinds"]]
    assert shown["onnxruntime"]["is_complete"]
    assert shown["openvino"]["is_complete"] is False
    assert "fake" not in shown
    assert {"fake", "reference", *shown} == set(every)


def test_list_shows_tags(call):
    answer = call("target", "list")
    assert answer.code == 0
    assert "raspberry-pi/4b-aarch64" in answer.out
    assert "…" not in answer.out


def test_detect_finds_what_compiling_uses(call):
    answer = call("target", "detect", "--json")
    assert answer.code == 0
    assert answer.json["config"]["text"] == "openvino, onnxruntime"
    assert answer.json["missing"] == []
    assert "openvino, onnxruntime" in call("target", "detect").out
