# SPDX-License-Identifier: Apache-2.0
"""Objectives other than latency: memory and throughput."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.cost.database import CostDatabase
from intarsia.cost.selection import read_entries
from intarsia.errors import SettingError
from intarsia.place.request import Request
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe
from intarsia.tuning.objectives.latency import Latency
from intarsia.tuning.objectives.memory import Memory, compare_bytes
from intarsia.tuning.objectives.objective import OBJECTIVES, SLOWDOWN, parse_objective
from intarsia.tuning.objectives.packages import Packages
from intarsia.tuning.objectives.throughput import Throughput
from intarsia.tuning.proposals.space import PlanCandidate

MEGABYTE = 1 << 20

TEXT = """
g (float[2,8] x) => (float[2,8] y) {
    a = Relu(x)
    b = Abs(a)
    y = Tanh(b)
}
"""


@pytest.fixture
def model(parse_model):
    return parse_model(TEXT)


@pytest.fixture
def costs(tmp_path):
    """A cost database of the test's own."""
    return str(tmp_path / "costs.sqlite")


@pytest.fixture
def one_process():
    """A function that opens packages of one process, which ends after the test."""
    opened = []

    def make(laboratory, in_flight=1):
        opened.append(Packages(laboratory, in_flight))
        return opened[-1]

    yield make
    for packages in opened:
        packages.close()


def _whole(*positions):
    return Probe(tuple((position, (node,)) for node, position in enumerate(positions)))


@pytest.mark.exhaustive
def test_a_process_grows_by_what_regions_keep(model, open_laboratory, one_process):
    laboratory = open_laboratory(model, "fake:0 -kept=*:16e6, fake:1 -kept=Relu:64e6,*:0")
    packages = one_process(laboratory)
    lean, mixed = _whole(0, 0, 0), _whole(1, 0, 1)
    grown = {probe: packages.added_bytes(probe) for probe in (lean, mixed)}
    assert all(len(found) == 2 for found in grown.values())
    difference = min(grown[mixed]) - min(grown[lean])  # 80 instead of 48 million bytes
    assert difference == pytest.approx(32e6, abs=3 * MEGABYTE)
    laboratory.left = lambda: 0.0
    with pytest.raises(OutOfTimeError):
        packages.added_bytes(lean)


@pytest.mark.exhaustive
def test_a_region_weighs_what_it_keeps_once(model, open_laboratory):
    laboratory = open_laboratory(model, "fake -kept=Relu:64e6,Abs:8e6,*:0")
    for node, nbytes in ((0, 64e6), (1, 8e6), (2, 0)):
        weight = laboratory.weigh(Probe.region(0, [node]))
        assert weight == pytest.approx(nbytes, abs=MEGABYTE)
    assert laboratory.weigh(Probe.region(0, [0, 1])) == pytest.approx(72e6, abs=MEGABYTE)


@pytest.mark.exhaustive
def test_constants_count_once_wherever_they_are(open_laboratory):
    weights = np.ones((1024, 2048), np.float32)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name, size in (("x", 1024), ("y", 2048))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    constants = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    laboratory = open_laboratory(model, "onnxruntime")
    weight = laboratory.weigh(Probe.region(0, [0]))
    assert weights.nbytes <= weight <= 3 * weights.nbytes  # and perhaps a packed copy


@pytest.mark.exhaustive
def test_throughput_is_that_of_all_processes(model, open_laboratory, one_process):
    laboratory = open_laboratory(model, "fake:0 -cost=*:1e-3, fake:1 -cost=*:2e-3")
    packages = one_process(laboratory, in_flight=2)
    found = packages.time_rounds([_whole(0, 0, 0), _whole(0, 1, 0)], 2)
    assert found[_whole(0, 0, 0)] == pytest.approx([3e-3 / 2] * 2)
    assert found[_whole(0, 1, 0)] == pytest.approx([4e-3 / 2] * 2)


@pytest.mark.parametrize("fault", ["segfault", "later-segfault"])
def test_a_plan_that_ends_its_process_has_crashed(model, open_laboratory, one_process, fault):
    laboratory = open_laboratory(model, f"fake:0 -fault={fault}")
    packages = one_process(laboratory)
    assert all(map(math.isnan, packages.time_rounds([_whole(0, 0, 0)], 1)[_whole(0, 0, 0)]))
    assert packages.failures == {_whole(0, 0, 0): "crashed"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, OutOfTimeError("out of time")])
def test_throughput_that_was_not_compared_to_the_end_is_not_accepted(
    model, costs, monkeypatch, stopped_by
):
    target = "fake:0 -cost=*:1e-3, fake:1 -cost=*:2e-3"
    options = {"costs": costs, "num_threads": 1, "objective": "throughput"}

    def stop(self, probes, rounds):
        raise stopped_by

    with monkeypatch.context() as patched:
        patched.setattr(Packages, "time_rounds", stop)
        exe = intarsia.tune(model, target, **options)
    report = exe.explain().tuning
    assert report.winner == report.single == "fake -cost=*:1e-3 alone"  # what is best so far
    assert report.is_interrupted == (stopped_by is KeyboardInterrupt)
    assert "tune again to go on" in " ".join(report.notes)
    again = intarsia.tune(model, target, **options).explain().tuning  # goes on: no --resume
    assert not again.is_reused
    assert again.measured == 0  # what was timed is known
    assert max(row.runs_per_second for row in again.finalists) > 0
    warm = intarsia.tune(model, target, **options).explain().tuning
    assert warm.is_reused
    assert warm.summary == again.summary


def test_an_interruption_waits_for_no_process(monkeypatch):
    def together(self, threads, probe, file, feeds):
        for worker in self._workers:
            threads.submit(worker.call, "time:sleep", 600)
        while any(worker.pid is None for worker in self._workers):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(Packages, "_time_together", together)
    monkeypatch.setattr(Packages, "_file", lambda self, probe: Path("plan"))
    monkeypatch.setattr(Packages, "_feeds", lambda self: None)
    packages = Packages(None, 2)
    with pytest.raises(KeyboardInterrupt):
        packages.time_rounds([_whole(0, 0, 0)], 1)
    assert [worker.pid for worker in packages._workers] == [None, None]


@pytest.mark.exhaustive
def test_what_fails_as_a_package_has_no_rounds(model, open_laboratory, one_process):
    laboratory = open_laboratory(model, "fake:0, fake:1 -fault=later-segfault")
    packages = one_process(laboratory)
    found = packages.time_rounds([_whole(0, 0, 0), _whole(0, 1, 0)], 1)
    assert math.isfinite(found[_whole(0, 0, 0)][0])
    assert math.isnan(found[_whole(0, 1, 0)][0])


@pytest.mark.exhaustive
def test_the_leanest_mix_ships_and_is_remembered(
    model, costs, random_feeds, evaluate, assert_same, monkeypatch
):
    target = "fake:0 -kept=Abs:4e6,*:64e6, fake:1 -kept=Abs:64e6,*:4e6"
    options = {"costs": costs, "num_threads": 1, "objective": "memory"}
    exe = intarsia.tune(model, target, **options)
    report = exe.explain().tuning
    assert report.winner.startswith("mix")
    sizes = {finalist.name: finalist.nbytes for finalist in report.finalists}
    singles = [nbytes for name, nbytes in sizes.items() if name.endswith("alone")]
    assert min(singles) - sizes[report.winner] == pytest.approx(60e6, rel=0.1)  # 72 less 12
    assert "grows a process by" in report.summary
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))
    again = intarsia.tune(model, target, **options).explain().tuning
    assert again.is_reused
    assert again.summary == report.summary
    with CostDatabase.open(costs) as database:
        entries = [entry for entry in read_entries(database) if entry.weights]
    assert {4, 64} <= {round(entry.nbytes / 1e6) for entry in entries}
    weighed = []
    monkeypatch.setattr(Laboratory, "weigh", lambda self, probe: weighed.append(probe))
    warm = intarsia.tune(model, target, resume=True, **options).explain().tuning
    assert weighed == []  # what a region weighs is known
    assert (warm.winner, warm.is_reused) == (report.winner, False)


QUICK, LEAN = "fake:0 -cost=*:1e-3 -kept=*:64e6", "fake:1 -cost=*:1e-2,Abs:1e-3 -kept=*:4e6"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("slowdown", "fate"),
    [(None, "ships"), (2.0, "7.00 times the time of the fastest: more than 2")],
)
def test_a_lean_plan_is_not_slower_than_the_user_allows(model, costs, slowdown, fate):
    options = {"costs": costs, "num_threads": 1, "objective": "memory", "slowdown": slowdown}
    report = intarsia.tune(model, f"{QUICK}, {LEAN}", **options).explain().tuning
    plans = {tuple(each.nodes.values()): each for each in report.finalists if not each.is_single}
    lean = next(each for each in report.finalists if each.is_single and LEAN in each.nodes)
    assert lean.fate == fate
    assert report.winner == (lean.name if slowdown is None else plans[2, 1].name)
    assert report.slowdown == slowdown
    assert intarsia.tune(model, f"{QUICK}, {LEAN}", **options).explain().tuning.is_reused


@pytest.mark.parametrize("text", ["fast", "0.5", "nan", "-2", ""])
def test_a_slowdown_is_a_factor_of_at_least_one(text):
    with pytest.raises(SettingError, match="not a factor of at least 1"):
        parse_objective("memory", text)


def test_a_slowdown_is_for_memory():
    assert parse_objective("memory", "none") == parse_objective("memory", math.inf) == Memory(None)
    assert parse_objective("memory", "1.5").slowdown == 1.5
    assert parse_objective("latency", SLOWDOWN) == Latency()
    with pytest.raises(SettingError, match="has no effect on latency"):
        parse_objective("latency", 1.5)


def test_plans_are_filed_under_their_limit():
    assert parse_objective("memory").describe() == "memory 2x"
    assert parse_objective("memory", None).describe() == "memory"
    assert parse_objective("latency").describe() == "latency"


def _plan(name, single, calls=1):
    return PlanCandidate(name, tuple((max(single, 0), (i,)) for i in range(calls)), single)


FIRST, SECOND, MIX = _plan("first", 0), _plan("second", 1), _plan("mix", -1, 3)


@pytest.mark.parametrize(
    ("sizes", "winner", "fate"),
    [
        ({FIRST: [90, 91], SECOND: [80, 81], MIX: [60, 61]}, MIX, "ships"),
        ({FIRST: [90, 91], SECOND: [80, 81], MIX: [79, 82]}, SECOND, "needs more memory"),
        ({FIRST: [90, 91], SECOND: [80, 84], MIX: [60, 80]}, SECOND, "not shown"),
        ({FIRST: [80.4, 80.4], SECOND: [80, 80], MIX: [80, 80]}, FIRST, "needs more memory"),
        ({FIRST: [90, 91], SECOND: [], MIX: []}, FIRST, "could not be run"),
        ({FIRST: [], SECOND: [], MIX: [80]}, MIX, "ships"),
    ],
)
def test_a_mix_needs_less_memory_than_every_single_backend_or_does_not_ship(sizes, winner, fate):
    found = compare_bytes(list(sizes), sizes)
    assert found.winner == winner
    assert found.fates[MIX].startswith(fate)
    assert found.fates[winner] == "ships"


def test_without_any_plan_that_runs_there_is_no_comparison():
    assert compare_bytes([FIRST, MIX], {FIRST: [], MIX: []}) is None


def test_an_unknown_objective_is_an_error():
    assert [parse_objective(name).name for name in OBJECTIVES] == list(OBJECTIVES)
    with pytest.raises(SettingError, match="beauty"):
        parse_objective("beauty")


def test_runs_in_flight_have_one_thread_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("INTARSIA_NUM_THREADS", raising=False)
    default = Throughput().default_threads
    assert Request(model=b"", default_threads=default).threads == 1
    assert Request(model=b"", default_threads=default, num_threads=2).threads == 2
