# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: figures of each runtime, ratios with intervals, and errors that name who failed."""

import json
import time

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.__main__ import main
from intarsia.bench import subject
from intarsia.bench.compare import AWAY, AWAY_STREAMS, Comparison, Peer, Series, compare
from intarsia.bench.models import make_bench_model
from intarsia.bench.profile import profile_kernels
from intarsia.errors import BackendError, ModelError, SettingError
from intarsia.native.agent import Agent


@pytest.fixture
def model_file(tmp_path, parse_model):
    model = parse_model(
        """net (float[1,8] x, float[8,4] w) => (float[1,4] y)
        { h = MatMul(x, w) y = Softmax<axis = -1>(h) }"""
    )
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    return path


def test_a_comparison_has_every_figure(model_file, tmp_path):
    model = make_bench_model(model_file, tmp_path)
    found = compare(
        model, "openvino, onnxruntime", ("onnxruntime", "openvino"), threads=1, rounds=2
    )
    assert list(found.peers) == ["onnxruntime", "openvino"]
    for series in (found.ours, *(peer.series for peer in found.peers.values())):
        assert 0 < series.low_seconds <= series.median_seconds <= series.high_seconds
        assert 0 < series.p50_seconds <= series.p90_seconds <= series.p99_seconds
        assert series.runs_per_second > 0
        assert series.peak_bytes > 10 << 20
        assert series.error.agrees
        assert series.error.max_abs_error < 1e-5
    for peer in found.peers.values():
        assert 0 < peer.low <= peer.ratio <= peer.high
    assert found.ours.facts["coverage"]["openvino"] > 0
    assert found.notes == ()


def test_the_way_to_another_machine_is_left_out(model_file, tmp_path, monkeypatch):
    """A call takes 100 ms on the way, and none of it is in the times."""
    model = make_bench_model(model_file, tmp_path)
    agent_run = Agent.run

    def run(*arguments, **options):
        time.sleep(0.1)
        return agent_run(*arguments, **options)

    monkeypatch.setattr(Agent, "run", run)
    feeds = {name: np.asarray(array) for name, array in model.feeds.items()}
    facts = subject.set_up_ours(model.path, "llvm -runner=here", 1, {}, feeds)
    assert facts["is_away"]
    # With the way in it no time would be below its 100 ms, however often it is taken.
    assert any(min(subject.run_block(0.0, 3, 0.0)) < 0.1 for _ in range(20))
    executable = intarsia.compile(model.path, "llvm -runner=here")
    profiles = (profile_kernels(executable, feeds, threads=1, rounds=3) for _ in range(20))
    assert any(profile.is_away and profile.seconds < 0.1 for profile in profiles)
    monkeypatch.undo()
    found = compare(model, "llvm -runner=here", (), threads=1, rounds=1, streams=2)
    assert AWAY in found.notes
    assert AWAY_STREAMS in found.notes
    assert found.ours.error.agrees


def test_a_peer_that_is_none_is_named(model_file, tmp_path):
    model = make_bench_model(model_file, tmp_path)
    with pytest.raises(BackendError, match="reference"):
        compare(model, "reference", ("reference",), threads=1, rounds=1)
    with pytest.raises(SettingError, match="different peers"):
        compare(model, "reference", ("onnxruntime", "onnxruntime"), threads=1, rounds=1)


def test_the_batch_is_set_for_everybody(tmp_path, parse_model):
    model = parse_model(
        """net (float[1,2,3] x) => (float[1,6] y)
        <int64[2] shape = {1, 6}> { r = Relu(x) y = Reshape(r, shape) }"""
    )
    onnx.save(model, tmp_path / "net.onnx")
    made = make_bench_model(tmp_path / "net.onnx", tmp_path / ".", batch=4)
    saved = onnx.load(made.path)
    assert [d.dim_value for d in saved.graph.output[0].type.tensor_type.shape.dim] == [4, 6]
    assert made.feeds["x"].shape == (4, 2, 3)


def test_a_batch_that_does_not_fit_is_an_error(tmp_path, parse_model):
    model = parse_model(
        """net (float[1,4] x) => (float[2,4] y) <float[2,4] c = {1, 1, 1, 1, 1, 1, 1, 1}>
        { y = Add(x, c) }"""
    )
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="batch 3"):
        make_bench_model(path, tmp_path, batch=3)


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_peers_by_name(model_file, capsys):
    code, out, _ = run(
        capsys, "bench", model_file, "-t", "onnxruntime", "--against", "onnxruntime",
        "--rounds", 1, "--threads", 1, "--json",
    )  # fmt: skip
    assert code == 0
    peer = json.loads(out)["peers"]["onnxruntime"]
    assert {"ratio", "low", "high"} <= set(peer)


def test_the_command_takes_inputs_and_runs_several_streams(tmp_path, parse_model, capsys):
    model = parse_model("""net (int64[1,3] ids, float[5,2] x) => (float[1,3,2] y)
        { y = Gather(x, ids) }""")
    onnx.save(model, tmp_path / "net.onnx")
    options = ("-t", "onnxruntime", "--against", "onnxruntime", "--rounds", 1, "--threads", 1)
    for ids, wanted in (([[4, 0, -5]], 0), ([[5, 0, 0]], 2)):
        np.save(tmp_path / "ids.npy", np.array(ids))
        code, out, err = run(
            capsys, "bench", tmp_path / "net.onnx", *options, "--streams", 2, "--no-errors",
            "--input", f"ids={tmp_path / 'ids.npy'}", "--json",
        )  # fmt: skip
        assert code == wanted, err
        if wanted == 0:
            found = json.loads(out)
            assert found["streams"] == 2
            assert found["ours"]["runs_per_second"] > 0
        else:
            assert "index 5" in err


@pytest.fixture
def free_file(tmp_path, parse_model):
    model = parse_model(
        """net (float[batch,seq,8] x, float[8,4] w) => (float[batch,seq,4] y)
        { h = MatMul(x, w) y = Softmax<axis = -1>(h) }"""
    )
    onnx.save(model, tmp_path / "free.onnx")
    return tmp_path / "free.onnx"


def test_free_dimensions_stay_free_at_some_sizes(free_file, tmp_path):
    model = make_bench_model(free_file, tmp_path, sizes={"seq": 3})
    assert (model.path, model.feeds["x"].shape) == (str(free_file), (1, 3, 8))
    (tmp_path / "fixed").mkdir()
    fixed = make_bench_model(free_file, tmp_path / "fixed", shapes={"seq": 3})
    assert (fixed.path != str(free_file), fixed.sizes) == (True, None)
    with pytest.raises(ModelError, match="'sq'"):
        make_bench_model(free_file, tmp_path, sizes={"sq": 3})


@pytest.mark.exhaustive
def test_the_command_compares_at_each_of_some_sizes(free_file, capsys):
    options = ("-t", "llvm, onnxruntime", "--against", "onnxruntime,openvino", "--rounds", 2)
    options += ("--threads", 1, "--sizes", "batch=2", "--sizes", "seq=3,5")
    code, out, err = run(capsys, "bench", free_file, *options, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [one["sizes"] for one in found] == [{"batch": 2, "seq": 3}, {"batch": 2, "seq": 5}]
    for one in found:
        assert one["ours"]["error"]["agrees"]
        assert all(peer["series"]["error"]["agrees"] for peer in one["peers"].values())
    code, out, err = run(capsys, "bench", free_file, *options, "--profile", "--json")
    assert code == 0, err
    shapes = [{row["shape"] for row in one["rows"]} for one in json.loads(out)]
    assert any("2x3x8" in shape for shape in shapes[0])
    assert any("2x5x8" in shape for shape in shapes[1])
    code, _, err = run(capsys, "bench", free_file, *options, "--shape", "batch=2")
    assert code == 2
    assert "--sizes leaves dimensions free" in err


def test_the_command_says_no_below_the_bar(model_file, capsys):
    code, out, err = run(
        capsys, "bench", model_file, "-t", "onnxruntime", "--against", "onnxruntime",
        "--rounds", 1, "--threads", 1, "--no-errors", "--at-least", 1000,
    )  # fmt: skip
    assert code == 1
    assert "below 1000: onnxruntime" in err
    assert "onnxruntime" in out


def test_the_command_says_where_the_bar_is_inside_the_interval(model_file, capsys, monkeypatch):
    asked = {}

    def compare_nothing(model, target, against, **options):
        asked.update(options)
        series = Series(1.0, 1.0, 1.0, 0, 0.0, facts={"summary": "", "shortfall": ""})
        peers = {name: Peer(1.0, 0.95, 1.05, series) for name in against}
        return Comparison(model.name, target, 1, None, 7, series, peers, "")

    monkeypatch.setattr("intarsia.bench.compare.compare", compare_nothing)
    code, _, err = run(
        capsys, "bench", model_file, "-t", "onnxruntime", "--against", "onnxruntime",
        "--at-least", 0.99, "--most-rounds", 28,
    )  # fmt: skip
    assert code == 0
    assert "not clear whether below 0.99: onnxruntime" in err
    assert (asked["bar"], asked["most_rounds"]) == (0.99, 28)


def test_the_command_refuses_an_unknown_peer(model_file, capsys):
    code, _, err = run(
        capsys, "bench", model_file, "-t", "onnxruntime", "--against", "tensorflow", "--rounds", 1
    )
    assert code == 3
    assert err.startswith("error: backend 'tensorflow' is not available")
    assert "hint: " in err


def test_attributes_leave_the_order_of_a_detected_machine_open(parse_model, tmp_path, capsys):
    pytest.importorskip("openvino")
    turns = (
        f"v{2 * i + 1} = RandomUniformLike(v{2 * i}) v{2 * i + 2} = Sub(v{2 * i}, v{2 * i + 1})"
        for i in range(6)
    )
    file = tmp_path / "m.onnx"
    header = "g (float[8,8] v0) => (float[8,8] v12)"
    onnx.save(parse_model(f"{header} {{ {' '.join(turns)} }}"), file)
    code, out, _ = run(
        capsys, "bench", file, "--target-attr", "openvino:num_threads=1", "--no-errors",
        "--against", "onnxruntime", "--rounds", 1, "--threads", 1, "--json",
    )  # fmt: skip
    assert code == 0
    coverage = json.loads(out)["ours"]["facts"]["coverage"]
    assert [count for text, count in coverage.items() if text.startswith("openvino")] == [12]


def test_the_command_takes_a_host(parse_model, tmp_path, capsys):
    file = tmp_path / "m.onnx"
    text = (
        "g (float[4] x, float[4] z) => (float[8] y) { r = Relu(x) s = SequenceConstruct(r, z)"
        " y = ConcatFromSequence<axis = 0>(s) }"
    )
    onnx.save(parse_model(text), file)
    code, out, err = run(
        capsys, "bench", file, "-t", "llvm", "--host", "onnxruntime", "--no-errors",
        "--against", "onnxruntime", "--rounds", 1, "--threads", 1, "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)["ours"]["facts"]
    assert sum(facts["coverage"].values()) == 3
    assert "onnxruntime" in str(facts)
