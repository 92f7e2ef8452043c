# SPDX-License-Identifier: Apache-2.0
"""`intarsia demo`."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jsonschema.exceptions import best_match
from tests.cli.test_schemas import ELSEWHERE, validator

import intarsia
from intarsia.__main__ import main
from intarsia.backends.values import Detection
from intarsia.bench.demo import find_second_device, hold_contest, load_in_peers
from intarsia.cli import demo
from intarsia.target import Target


@pytest.mark.exhaustive
def test_the_demo_agrees_with_onnx_runtime(tmp_path, monkeypatch, capsys):
    """All of its stages, on a smaller network and with less time to tune than it has."""
    monkeypatch.setattr(demo, "NETWORK", "squeezenet")
    monkeypatch.setattr(demo, "PINNED", "fire3/*")
    monkeypatch.setattr(demo, "TUNE_SECONDS", 1.0)
    monkeypatch.setattr(demo, "SIZES", ({"batch": 1, "seq": 5}, {"batch": 2, "seq": 3}))
    out = tmp_path / "demo"
    assert main(["demo", "--json", "--threads", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert "demo" in ELSEWHERE  # here
    wrong = best_match(validator("demo").iter_errors(figures))
    assert wrong is None, f"{wrong.json_path}: {wrong.message[:500]}"
    assert figures["agrees"]
    assert [one["network"] for one in figures["contests"]] == ["squeezenet", *["minilm:free"] * 2]
    for contest in (*figures["contests"], figures["mixed"]):
        assert {"intarsia", "ONNX Runtime", "OpenVINO"} <= contest["timing"].keys()
        assert contest["ratios"].keys() == contest["timing"].keys()
        assert contest["agreement"].keys() == contest["timing"].keys() - {"ONNX Runtime"}
    (whole,) = figures["contests"][0]["placement"]["intarsia"]["regions"]
    assert whole["target"] == figures["targets"][0]
    assert whole["backend"] == "llvm"  # native code leads where no target is given
    mixed = figures["mixed"]["placement"][demo.MIXED]["regions"]
    assert {figures["second"].split()[0], "llvm"} == {region["backend"] for region in mixed}
    pinned = [node["name"] for one in mixed for node in one["nodes"] if one["backend"] != "llvm"]
    assert pinned
    assert all(name.startswith("fire3/") for name in pinned)
    assert (figures["copies"] > 0) == figures["is_device"]
    assert figures["package"]["nbytes"] > 0
    assert figures["package_agreement"]["agrees"]
    assert [line[:5] for line in printed.err.splitlines() if line[0] == "["][-1] == "[6/6]"
    trace, mix, report = map(Path, figures["files"])
    assert {one.parent for one in (trace, mix, report)} == {out}
    assert json.loads(trace.read_text())["traceEvents"]
    assert f"wrote {report}" in printed.err
    assert "fire3/" in mix.read_text(encoding="utf-8")
    assert "<html" in report.read_text(encoding="utf-8")


def test_numbers_that_are_wrong_are_seen(chain_model, backends, random_feeds):
    feeds = random_feeds(chain_model)
    model = chain_model.SerializeToString()
    subject = load_in_peers(model, feeds, {"judge": "onnxruntime"}, backends, 1)
    right, wrong = (
        intarsia.compile(chain_model, target, cache=False)
        for target in ("reference", "fake -fault=wrong, reference")
    )
    contest = hold_contest("chain", subject, {"right": right})
    assert contest.agrees
    assert contest.ratios["right"] == 1
    assert contest.timing.keys() == {"right", "judge"}
    contest = hold_contest("chain", subject, {"right": right, "wrong": wrong})
    assert not contest.agrees
    assert contest.agreement["right"].agrees


def test_a_program_of_free_sizes_is_compared_at_its_sizes(parse_model, backends):
    model = parse_model("free (float[n,3] x) => (float[n,3] y) { y = Relu(x) }")
    program = intarsia.compile(model, "reference", cache=False)
    for size in (2, 5):
        feeds = program.sample_feeds(0, {"n": size})
        assert feeds["x"].shape == (size, 3)
        subject = load_in_peers(
            model.SerializeToString(), feeds, {"judge": "onnxruntime"}, backends, 1
        )
        np.testing.assert_array_equal(subject.expected[0], np.maximum(feeds["x"], 0))
        assert hold_contest("free", subject, {"ours": program}, {"n": size}).agrees


def test_the_second_device_is_the_first_that_is_found():
    def backend(*targets):
        return SimpleNamespace(detect=lambda: Detection(targets))

    by_name = {"webgpu": backend(Target("webgpu")), "opencl": backend()}
    here = SimpleNamespace(by_name=by_name)
    assert find_second_device(here, ("cuda", "opencl", "webgpu")) == "webgpu"
    assert find_second_device(here, ("cuda", "opencl")) is None


def test_a_folder_that_cannot_be_made_stops_it_at_once(folder, call):
    (folder / "file").write_text("x")
    answer = call("demo", "--out", "file/demo")
    assert answer.code == 2
    assert "cannot write" in answer.err
    assert "[1/6]" not in answer.err
