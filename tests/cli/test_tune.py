# SPDX-License-Identifier: Apache-2.0
"""`intarsia tune` and what `explain` says of its plans."""

import contextlib
import re
import sqlite3

import onnx
import pytest

from intarsia.accepted import programs
from intarsia.cli.options import read_seconds
from intarsia.errors import BackendError, SettingError

RELU_FAST = "fake:0 -cost=Relu:1e-3,*:2e-3 -call-cost=1e-5"
RELU_SLOW = "fake:1 -cost=Relu:2e-3,*:1e-3 -call-cost=1e-5"
TARGET = f"{RELU_FAST}, {RELU_SLOW}"

TIMES = re.compile(
    r"^p50 (\S+) ms, p90 (\S+) ms, p99 (\S+) ms; "
    r"(\S+) runs per second of (?:2 streams|one stream)$",
    re.MULTILINE,
)

TEXT = """
g (float[2,8] x) => (float[2,8] y) {
    [one] a = Relu(x)
    [two] b = Abs(a)
    [three] y = Relu(b)
}
"""


@pytest.fixture
def small(folder, parse_model, monkeypatch):
    """`small.onnx` in the current folder, and a cost database beside it."""
    onnx.save(parse_model(TEXT), folder / "small.onnx")
    monkeypatch.setenv("INTARSIA_COSTS", str(folder / "costs.sqlite"))
    return "small.onnx"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("90s", 90.0), ("1.5min", 90.0), ("2 m", 120.0), ("1h", 3600.0)],
)
def test_times_are_read(text, seconds):
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3s", "0", "3 days"])
def test_other_texts_are_no_times(text):
    with pytest.raises(SettingError, match="is not a time"):
        read_seconds(text)


@pytest.mark.exhaustive
def test_tuning_writes_a_package_that_explains_itself(call, small, folder):
    done = call("tune", small, "-t", TARGET, "--budget", "10min", "--threads", 1)
    assert done.code == 0, done.err
    assert "whole plans, end to end" in done.out
    assert "mix" in done.out
    assert "runs per second of one stream" in done.out
    assert (folder / "small.intarsia").exists()
    again = call("tune", small, "-t", TARGET, "--threads", 1, "--frozen", "--json")
    assert again.code == 0, again.err
    assert again.json["tuning"]["winner"].startswith("mix")
    compiled = call("compile", small, "-t", TARGET, "--threads", 1, "--json")
    assert compiled.json["explanation"]["placement"]["policy"] == "collage"

    explained = call("explain", "small.intarsia")
    assert "predicted" in explained.out
    node = call("explain", "small.intarsia", "--node", "two", "--json").json
    (unit,) = node["costs"]
    assert [cost["source"] for cost in unit["costs"]] == ["measured", "measured"]
    absent = call(
        "explain", "small.intarsia", "--not-on", RELU_SLOW.replace(":1 -cost=", ":1 -cost=")
    )
    assert absent.code in (0, 2)
    cuts = call("explain", "small.intarsia", "--cuts", "--json")
    assert cuts.code == 0
    assert all(cut["saved_seconds"] > 0 for cut in cuts.json["cuts"])


def test_the_times_of_the_result_are_printed_however_its_plan_was_had(
    call, small, own_cache, monkeypatch
):
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    tune = ("tune", small, "-t", "fake -cost=*:1e-3", "--threads", 1)
    ways = {"measured": (), "kept": (), "frozen": ("--frozen",)}
    ways["frozen, not kept"] = ("--frozen", "--no-cache")
    for way, options in ways.items():
        done = call(*tune, *options, "--streams", 2)
        assert done.code == 0, done.err
        assert ("accepted before" in done.out) is (way != "measured")
        p50, p90, p99, rate = map(float, TIMES.search(done.out).groups())
        assert 0 < p50 <= p90 <= p99, way
        assert rate > 0
    timing = call(*tune, "--json").json["timing"]
    assert 0 < timing["p50_seconds"] <= timing["p99_seconds"]


def test_a_kept_program_that_cannot_be_loaded_any_more_is_made_anew(
    call, small, own_cache, monkeypatch
):
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    tune = ("tune", small, "-t", "fake -cost=*:1e-3", "--threads", 1)
    assert call(*tune).code == 0
    (program,) = (own_cache / "programs").glob("*.intarsia")
    before = program.stat().st_mtime_ns

    def refuse(*_):
        raise BackendError("the driver is gone", backend="fake")

    monkeypatch.setattr(programs, "load_regions", refuse)
    again = call(*tune)
    assert again.code == 0, again.err
    assert TIMES.search(again.out)
    assert program.stat().st_mtime_ns > before


@pytest.mark.filterwarnings("always:host:UserWarning")
@pytest.mark.parametrize("option", ["--host", "--target-host"])
def test_a_warning_about_the_machine_is_printed_once(option, call, small):
    target = "fake, reference -host=onnxruntime -model=m"
    done = call("tune", small, "-t", target, option, "reference", "--frozen")
    assert done.err.count("host 'onnxruntime' is replaced by 'reference'") == 1
    assert done.err.count("no effect on what is compiled for") == 1
    assert "no plan was accepted" in done.err


def test_frozen_without_an_accepted_plan_is_an_error(call, small):
    done = call("tune", small, "-t", TARGET, "--frozen")
    assert done.code == 2
    assert "no plan was accepted" in done.err


def test_frozen_says_that_the_database_is_damaged_and_nothing_else(call, small, folder):
    tune = ("tune", small, "-t", "fake -cost=*:1e-3", "--threads", 1)
    assert call(*tune).code == 0
    with contextlib.closing(sqlite3.connect(folder / "costs.sqlite")) as database:
        database.execute("update intarsia_verdict set regions = 'x'")
        database.commit()
    done = call(*tune, "--frozen")
    assert done.code == 2
    assert "costs.sqlite' is damaged" in done.err
    assert "greedy" not in done.err
    assert "no plan was accepted" not in done.err


def test_a_forecast_measures_nothing(call, small, folder):
    done = call("plan", "forecast", small, "-t", TARGET, "--json")
    assert done.code == 0
    assert done.json["units"] == 3
    assert [row["known"] for row in done.json["rows"]] == [0, 0]
    assert not (folder / "costs.sqlite").exists()
    assert "pieces" in call("plan", "forecast", small, "-t", TARGET).out


def test_absent_devices_are_planned_for_by_estimates(call, small):
    target = f"{RELU_FAST} -estimate=1, {RELU_SLOW} -estimate=1"
    done = call("plan", "absent", small, "-t", target, "--json")
    assert done.code == 0, done.err
    assert done.json["seconds"] is None
    assert done.json["confidence"] == 0
    assert any("3 estimated" in note for note in done.json["notes"])
    nodes = done.json["finalists"][0]["nodes"]
    assert sorted(nodes.values()) == [1, 2]
    assert "not measured" in call("plan", "absent", small, "-t", target).out


def test_options_that_contradict_are_an_error(call, small):
    done = call("tune", small, "-t", TARGET, "--frozen", "--resume")
    assert done.code == 2
    assert "contradict" in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--objective", "throughput"], "this machine, for objective throughput"),
        (["--objective", "memory"], "for objective memory and slowdown 2"),
        (["--objective", "memory", "--slowdown", "none"], "objective memory and slowdown none"),
    ],
)
def test_a_frozen_tuning_that_finds_nothing_says_for_what(options, words, call, small):
    done = call("tune", small, "-t", TARGET, "--frozen", *options)
    assert done.code == 2
    assert words in " ".join(done.err.split())
    plain = call("tune", small, "-t", TARGET, "--frozen")
    assert "objective" not in plain.err


def test_an_unknown_objective_is_an_error(call, small):
    done = call("tune", small, "-t", TARGET, "--objective", "beauty")
    assert done.code == 2
    assert "latency, memory, throughput" in done.err


def test_a_greedy_plan_has_no_costs_to_explain(call, small):
    done = call("explain", small, "-t", TARGET, "--cuts")
    assert done.code == 2
    assert "intarsia tune" in done.err


def test_kernels_are_tuned_for_later_compiles(call, folder, parse_model, monkeypatch):
    text = "g (float[4,64] x, float[64,32] b) => (float[4,32] y) { [mul] y = MatMul(x, b) }"
    onnx.save(parse_model(text), folder / "product.onnx")
    monkeypatch.setenv("INTARSIA_SCHEDULES", str(folder / "schedules"))
    arguments = ("tune-kernels", "product.onnx", "-t", "llvm", "--threads", 1)
    done = call(*arguments, "--json")
    assert done.code == 0, done.err
    (result,) = done.json
    assert result["kernel"].startswith("gemm")
    assert result["is_new"]
    assert result["entry"]["candidates"] > 2
    again = call(*arguments)
    assert "0 measured now, 1 known before, 0 left" in again.out
    assert call("run", "product.onnx", "-t", "llvm", "--threads", 1).code == 0
    for option in (["-o", "x.intarsia"], ["--database", "c.sqlite"], ["--objective", "memory"]):
        assert call(*arguments, *option).code == 2


def test_a_slowdown_is_for_plans_that_need_little_memory(call, small):
    done = call("tune", small, "-t", TARGET, "--slowdown", "1.5")
    assert done.code == 2
    assert "a slowdown has no effect on latency" in done.err
    done = call("tune", small, "-t", TARGET, "--slowdown", "half", "--objective", "memory")
    assert done.code == 2
    assert "'half' is not a factor of at least 1" in done.err


def test_planning_for_what_is_not_here_shows_every_plan_and_what_to_measure(call, small):
    target = "fake:0 -cost=*:1e-3 -estimate=1, fake:1 -cost=Relu:6e-4,*:2e-3 -estimate=1"
    done = call("plan", "absent", small, "-t", target)
    assert done.code == 0
    for text in ("whole plans, by estimates", "at worst", "would settle it", "nothing of this"):
        assert text in " ".join(done.out.split())
    found = call("plan", "absent", small, "-t", target, "--json").json
    assert found["seconds"] is None
    assert all(row["low_seconds"] <= row["high_seconds"] for row in found["finalists"])


def test_a_free_model_is_tuned_at_each_sizes(call, free_model, folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_COSTS", str(folder / "costs.sqlite"))
    (folder / "requests.jsonl").write_text('{"N": 2, "count": 3}\n{"N": 5}\n')
    tune = ("tune", free_model, "-t", "fake -cost=*:1e-3", "--threads", 1)
    done = call(*tune, "--requests", "requests.jsonl")
    assert done.code == 0, done.err
    for text in ("N=2 (1 of 2)", "N=5 (2 of 2)"):
        assert text in done.err
    for text in (
        "all sizes of 4 requests",
        "100.0% of the requests",
        "of any size",
        "timed at N=5",
    ):
        assert text in done.out, done.out
    again = call(*tune, "--frozen", "--sizes", "N=2,5", "--json").json
    assert [point["sizes"] for point in again["plans"]["points"]] == [{"N": 2}, {"N": 5}]
    assert [one["sizes"] for one in again["by_sizes"]] == [{"N": 2}, {"N": 5}]
    assert all(one["tuning"]["is_reused"] for one in again["by_sizes"])
    assert again["tuning"] == again["by_sizes"][-1]["tuning"]
    explained = call("explain", "free.intarsia", "--sizes", "N=4").out
    assert "N=4 has the plan of fake alone: measured at N=5, holds for N of any size" in explained
    assert "which plan is for which sizes" in explained
    checked = call("check", "free.intarsia")
    assert "plans by sizes" in checked.out
    assert call("explain", "free.intarsia", "--sizes", "N=4", "--pin", "y=fake").code == 2
    assert call("explain", "free.intarsia", "--sizes", "N=4,5").code == 2
    assert "no free dimension 'M'" in call("explain", "free.intarsia", "--sizes", "M=4").err


def test_requests_that_say_nothing_are_an_error(call, free_model, folder):
    (folder / "requests.jsonl").write_text("N=2\n")
    tune = ("tune", free_model, "-t", "fake", "--requests", "requests.jsonl")
    done = call(*tune)
    assert done.code == 2
    assert "line 1 of 'requests.jsonl' is no request" in done.err
    assert "exclude one another" in call(*tune, "--sizes", "N=2").err
