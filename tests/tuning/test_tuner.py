# SPDX-License-Identifier: Apache-2.0
"""The tuner as a whole, on fake devices with exact costs."""

import io
import logging
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from tests.tuning.exact import ExactLaboratory

import intarsia
from intarsia.backends.registry import collect
from intarsia.cost.database import CostDatabase
from intarsia.cost.key import CostKey
from intarsia.cost.records import Weight
from intarsia.cost.selection import read_entries
from intarsia.cost.weights import add_weights
from intarsia.errors import (
    BackendError,
    CostDatabaseError,
    PlacementError,
    UnsupportedError,
)
from intarsia.report.tuning import forecast_view, tuning_view
from intarsia.search.problem import PlannedCall
from intarsia.tuning import forecast as module
from intarsia.tuning.costing.boundaries import Boundaries, MeasuredBoundary
from intarsia.tuning.laboratory.values import OutOfTimeError, Race
from intarsia.tuning.objectives.memory import Memory
from intarsia.tuning.options import Options
from intarsia.tuning.prospector import Prospector
from intarsia.tuning.report import conclude
from intarsia.tuning.tuner import Tuner, accepted_choice, note_late_sizes
from intarsia.tuning.whole_plans import WholePlans

RELU_FAST = "fake:0 -cost=Relu:1e-3,*:2e-3 -call-cost=1e-5"
RELU_SLOW = "fake:1 -cost=Relu:2e-3,*:1e-3 -call-cost=1e-5"

EMPTY = Race({}, "", (0.0,) * 3, (1.0,) * 3)

PATCHED = "intarsia.tuning.tuner"


TEXT = """
g (float[2,8] x) => (float[2,8] y) {
    [one] a = Relu(x)
    [two] b = Abs(a)
    [three] c = Relu(b)
    [four] d = Add(a, c)
    [five] e = Tanh(d)
    [six] y = Relu(e)
}
"""


@pytest.fixture
def costs(tmp_path):
    """A cost database of the test's own."""
    return str(tmp_path / "costs.sqlite")


@pytest.fixture
def model(parse_model):
    return parse_model(TEXT)


def _where(executable):
    return {
        node.name: region.target.split(" ")[0]
        for region in executable.placement.regions
        for node in region.nodes
    }


def test_the_cheapest_mix_is_found_and_computes_the_same(
    exact, model, costs, random_feeds, evaluate, assert_same
):
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    report = exe.explain().tuning
    assert _where(exe) == {
        "one": "fake",
        "two": "fake:1",
        "three": "fake",
        "four": "fake:1",
        "five": "fake:1",
        "six": "fake",
    }
    assert report.is_mixed is False  # two devices of one backend
    assert report.winner.startswith("mix")
    assert report.seconds == pytest.approx(6.05e-3, rel=0.05)
    assert report.single_seconds == pytest.approx(9.01e-3, rel=0.05)
    assert abs(report.residual) < 0.05
    assert len(report.finalists) == 3
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_dear_calls_keep_a_model_together(exact, model, costs):
    dear = "-call-cost=3e-3"
    target = [text.replace("-call-cost=1e-5", dear) for text in (RELU_FAST, RELU_SLOW)]
    report = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert report.winner == report.single
    assert report.finalists[0].regions == 1


def test_dear_copies_keep_a_model_together(exact, model, costs):
    dear = "-call-cost=1e-5 -copy-cost=4e-3,0"
    target = [text.replace("-call-cost=1e-5", dear) for text in (RELU_FAST, RELU_SLOW)]
    report = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert report.winner == report.single


class StrainedLaboratory(ExactLaboratory):
    """Whole plans cost more for each call than their parts say."""

    call_penalty = 0.0

    def _seconds(self, probe):
        seconds = super()._seconds(probe)
        nodes = sum(len(every) for _, every in probe.calls)
        is_mixed_plan = nodes == len(self.setting.graph.nodes) and len(probe.calls) > 1
        return seconds + self.call_penalty * len(probe.calls) * is_mixed_plan


@pytest.mark.parametrize(("call_penalty", "wins"), [(2e-4, True), (2e-3, False)])
def test_what_the_prediction_missed_is_fed_back(
    call_penalty, wins, exact, model, costs, monkeypatch
):
    monkeypatch.setattr(f"{PATCHED}.Laboratory", StrainedLaboratory)
    monkeypatch.setattr(StrainedLaboratory, "call_penalty", call_penalty)
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    report = exe.explain().tuning
    assert (report.winner != report.single) is wins
    mixed = [item for item in report.finalists if not item.is_single]
    assert any(item.seconds > 1.05 * item.predicted_seconds for item in mixed)
    assert report.seconds <= report.single_seconds * 1.001


def test_each_repeated_confirmation_costs_confidence(exact, model, costs, monkeypatch):
    confidence = []
    compared = Tuner._compare

    def compare(self, plans):
        compared(self, plans)
        confidence.append(self.final.confidence)

    monkeypatch.setattr(Tuner, "_compare", compare)
    turns = iter([True, False])
    monkeypatch.setattr(Tuner, "_feed_back", lambda self: next(turns))
    search = Prospector.search

    def search_again(self, plans, best, *, is_again=False):
        found = search(self, plans, best, is_again=is_again)
        return found or [replace(plans[-1], name="mix 9", calls=((0, (0,)), (1, (1, 2, 3, 4, 5))))]

    monkeypatch.setattr(Prospector, "search", search_again)
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    report = exe.explain().tuning
    assert report.winner == "mix 1"
    assert confidence == pytest.approx([0.975, 0.95])
    assert report.confidence == pytest.approx(0.95)
    assert "95.0% sure" in report.summary


def test_without_time_for_a_rival_nothing_is_taken_for_proven(
    exact, model, costs, setting_of, monkeypatch
):
    monkeypatch.setattr(WholePlans, "sample_seconds", lambda self, plan: 1e3)
    monkeypatch.setattr(WholePlans, "affordable", lambda self, looks, *_: tuple(looks))
    target = f"{RELU_FAST}, {RELU_SLOW}"
    report = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert report.winner.startswith("mix")
    assert any("no time to run it against" in note for note in report.notes)
    with pytest.raises(CostDatabaseError):
        accepted_choice(setting_of(model, target), costs=costs)


class CrowdedLaboratory(ExactLaboratory):
    """Where one target follows another, in a plan or a part of it, that costs more."""

    crowding = 0.0

    def _seconds(self, probe):
        positions = [position for position, _ in probe.calls]
        changes = sum(one != other for one, other in pairwise(positions))
        return super()._seconds(probe) + self.crowding * changes


def _shown(view):
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


NEARLY = [
    "fake:0 -cost=Relu:1e-3,*:1.05e-3 -call-cost=1e-5 -copy-cost=1e-6,0",
    "fake:1 -cost=Relu:1.05e-3,*:1e-3 -call-cost=1e-5 -copy-cost=1e-6,0",
]


@pytest.mark.parametrize(("crowding", "wins"), [(1e-4, False), (-4e-5, True)])
def test_borders_that_decide_are_measured_in_place(
    crowding, wins, exact, model, costs, monkeypatch, setting_of
):
    monkeypatch.setattr(f"{PATCHED}.Laboratory", CrowdedLaboratory)
    monkeypatch.setattr(CrowdedLaboratory, "crowding", crowding)
    report = intarsia.tune(model, NEARLY, costs=costs, num_threads=1).explain().tuning
    assert report.junctions
    for boundary in report.junctions:
        assert boundary.seconds == pytest.approx(crowding + 2e-6, abs=1e-9)
        assert {boundary.before[:6], boundary.after[:6]} == {"fake -", "fake:1"}
        assert boundary.rounds > 0
        assert not boundary.is_known
    assert (report.winner != report.single) is wins
    mixed = [item for item in report.finalists if not item.is_single]
    for item in mixed:  # a gain is not counted
        expected = item.predicted_seconds + min(0.0, crowding) * (item.regions - 1)
        assert item.seconds == pytest.approx(expected, rel=0.01)
    raced = CrowdedLaboratory.last.raced
    again = intarsia.tune(model, NEARLY, costs=costs, num_threads=1, resume=True)
    known = again.explain().tuning.junctions
    assert known
    assert all(boundary.is_known for boundary in known)
    assert CrowdedLaboratory.last.raced < raced
    borders = module.forecast(setting_of(model, NEARLY), Options(), costs=costs).borders
    assert [border.known for border in borders] == [
        sum(boundary.before.startswith(start) for boundary in report.junctions)
        for start in ("fake -", "fake:1")
    ]
    shown = _shown(
        forecast_view(module.forecast(setting_of(model, NEARLY), Options(), costs=costs))
    )
    assert "known of any model" in shown
    assert "measured in place" in _shown(tuning_view(report))


def test_borders_that_decide_nothing_are_not_measured(exact, model, costs):
    report = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    assert report.explain().tuning.junctions == ()


def test_of_equals_the_first_ships_whole(exact, model, costs):
    same = "-cost=*:1e-3 -call-cost=1e-6"
    exe = intarsia.tune(model, f"fake:0 {same}, fake:1 {same}", costs=costs, num_threads=1)
    assert set(_where(exe).values()) == {"fake"}
    assert len(exe.placement.regions) == 1


def test_a_fused_group_is_worth_a_region(exact, parse_model, costs):
    model = parse_model(
        """
        g (float[4,4] x) => (float[4,4] y) {
            [product] a = MatMul(x, x)
            [scale] b = Mul(a, x)
            [last] y = Relu(b)
        }
        """
    )
    fuses = "fake:0 -cost=MatMul:2e-3,Mul:2e-3,Relu:2e-3,MatMul+Mul+Relu:1e-3 -call-cost=1e-5"
    parts = "fake:1 -cost=*:1e-3 -call-cost=1e-5"
    exe = intarsia.tune(model, f"{parts}, {fuses}", costs=costs, num_threads=1)
    report = exe.explain().tuning
    assert report.seconds <= 3.1e-3
    assert len(exe.placement.regions) == 1


_PRODUCT = """
g (float[4,4] x) => (float[4,4] y) {
    [product] a = MatMul(x, x)
    [scale] b = Mul(a, x)
    [last] y = Relu(b)
}
"""
_FUSES = "fake:0 -cost=MatMul:3e-3,Mul:3e-3,Relu:9e-3,MatMul+Mul:1e-3 -call-cost=1e-5"
_EVEN = "fake:1 -cost=*:2e-3 -call-cost=1e-5"


@pytest.mark.parametrize(("says", "seconds"), [(" -groups=MatMul+Mul", 3e-3), ("", 6e-3)])
def test_what_a_backend_says_that_it_fuses_is_tried(says, seconds, exact, parse_model, costs):
    exe = intarsia.tune(parse_model(_PRODUCT), f"{_FUSES}{says}, {_EVEN}", costs=costs)
    report = exe.explain().tuning
    assert report.seconds == pytest.approx(seconds, rel=0.02)
    assert abs(report.residual or 0.0) < 0.02
    if says:
        assert [len(region.nodes) for region in exe.placement.regions] == [2, 1]


def test_pieces_of_what_is_only_taken_whole_are_not_measured(exact, parse_model, costs):
    target = f"{_FUSES} -groups=MatMul+Mul -is-whole, {_EVEN}"
    exe = intarsia.tune(parse_model(_PRODUCT), target, costs=costs)
    assert exe.explain().tuning.seconds == pytest.approx(3e-3, rel=0.02)
    asked = {
        nodes for probe in ExactLaboratory.last.prepared for at, nodes in probe.calls if not at
    }
    assert asked
    assert all((0 in nodes) == (1 in nodes) for nodes in asked)
    costs_of = {unit.nodes: unit.costs for unit in exe.explain().tuning.unit_reports}
    assert costs_of["product",][0].source == "group"
    assert costs_of["product",][0].alone_seconds is None
    assert costs_of["last",][0].source != "group"


def test_one_target_is_measured_and_ships(exact, model, costs):
    report = intarsia.tune(model, RELU_FAST, costs=costs, num_threads=1).explain().tuning
    assert report.seconds == pytest.approx(9.01e-3)
    assert report.winner == report.single == "fake alone"


def test_the_throughput_of_the_only_plan_is_measured(exact, model, costs, monkeypatch):
    def time_rounds(self, probes, rounds):
        return dict.fromkeys(probes, (0.5,) * rounds)

    monkeypatch.setattr("intarsia.tuning.objectives.packages.Packages.time_rounds", time_rounds)
    options = {"costs": costs, "num_threads": 1, "objective": "throughput"}
    report = intarsia.tune(model, RELU_FAST, **options).explain().tuning
    (only,) = report.finalists
    assert (only.runs_per_second, only.rounds, only.fate) == (2.0, 6, "ships")
    assert report.summary.startswith("fake alone: 2.0 runs per second")


def test_a_model_without_nodes_has_nothing_to_tune(exact, parse_model, costs):
    model = parse_model("g (float[2] x) => (float[2] x) {}")
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    np.testing.assert_array_equal(exe.run({"x": np.ones(2, np.float32)})["x"], np.ones(2))


def test_a_plan_that_mixes_may_be_the_only_one_that_runs(exact, model, costs):
    target = [
        "fake:0 -cost=*:1e-3 -fault=compile -fault-ops=Relu",
        "fake:1 -cost=*:1e-3 -fault=compile -fault-ops=Tanh",
    ]
    where = _where(intarsia.tune(model, target, costs=costs, num_threads=1))
    assert where["one"] == where["three"] == where["six"] == "fake:1"
    assert where["five"] == "fake"


def test_nothing_that_runs_is_an_error(exact, model, costs):
    with pytest.raises(BackendError, match="no plan could be run: compile-failed"):
        intarsia.tune(model, "fake -fault=compile", costs=costs, num_threads=1)


def test_pins_and_exclusions_are_obeyed(exact, model, costs):
    exe = intarsia.tune(
        model,
        f"{RELU_FAST}, {RELU_SLOW}",
        costs=costs,
        pins={"one": "fake:1"},
        exclude=["fake:0:Relu"],
        num_threads=1,
    )
    where = _where(exe)
    assert where["one"] == where["three"] == where["six"] == "fake:1"
    with pytest.raises(PlacementError, match="contradicts"):
        intarsia.tune(
            model,
            f"{RELU_FAST}, {RELU_SLOW}",
            costs=costs,
            pins={"one": "fake:1"},
            exclude=["fake:1:Relu"],
        )


def test_a_node_without_a_target_is_named(model, costs, backends):
    known = collect([backends.named("fake")])  # nothing to run it on the host
    with pytest.raises(UnsupportedError, match="five"):
        intarsia.tune(model, "fake -ops=Relu,Abs,Add", costs=costs, backends=known)


def test_an_accepted_plan_is_used_again_and_by_compile(exact, model, costs, monkeypatch, caplog):
    target = f"{RELU_FAST}, {RELU_SLOW}"
    first = intarsia.tune(model, target, costs=costs, num_threads=1)

    def refuse(*_, **__):
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(f"{PATCHED}.Laboratory", refuse)
    again = intarsia.tune(model, target, costs=costs, num_threads=1)
    assert again.explain().tuning.is_reused
    monkeypatch.setenv("INTARSIA_COSTS", costs)
    caplog.set_level(logging.INFO, "intarsia")
    found = intarsia.compile(model, target, num_threads=1)
    assert found.placement == first.placement
    assert found.placement.policy == "collage"
    assert "collage placement" in caplog.text
    assert intarsia.compile(model, target, num_threads=2).placement.policy == "greedy"
    assert "greedy placement" in caplog.text
    assert intarsia.compile(model, target, num_threads=1, placement="greedy").placement != (
        first.placement
    )


def test_frozen_needs_an_accepted_plan(model, costs, setting_of):
    setting = setting_of(model, [RELU_FAST, RELU_SLOW])
    with pytest.raises(CostDatabaseError, match="no plan was accepted") as caught:
        accepted_choice(setting, costs=costs)
    assert "without --frozen" in caught.value.hint


@pytest.mark.exhaustive
def test_the_real_laboratory_comes_to_the_same_plan(
    model, costs, random_feeds, evaluate, assert_same
):
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    assert exe.explain().tuning.winner.startswith("mix")
    assert len(exe.placement.regions) == 5
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_without_a_database_compiling_does_not_load_sqlalchemy(model, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    code = (
        "import sys, intarsia\n"
        f"intarsia.compile({str(path)!r}, 'fake')\n"
        "assert 'sqlalchemy' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**_environment(), "INTARSIA_COSTS": str(tmp_path / "none.sqlite")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _environment():
    import os

    return dict(os.environ)


@pytest.mark.exhaustive
def test_a_backend_that_computes_wrong_numbers_costs_its_plans_only(
    model, costs, random_feeds, evaluate
):
    target = f"{RELU_SLOW.replace(':1', ':0', 1)}, fake:1 -cost=*:1e-4 -fault=wrong"
    exe = intarsia.tune(model, target, costs=costs, num_threads=1)
    report = exe.explain().tuning
    assert set(_where(exe).values()) == {"fake"}
    assert any("-fault" in failure.target for failure in report.failures)
    feeds = random_feeds(model)
    np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(model, feeds)["y"], rtol=1e-5)


def test_what_failed_before_is_not_tried_again(exact, model, costs, setting_of):
    target = [RELU_FAST, "fake:1 -cost=*:1e-4 -fault=compile"]
    intarsia.tune(model, target, costs=costs, num_threads=1)
    forecast = module.forecast(setting_of(model, target), Options(), costs=costs)
    assert forecast.is_accepted
    assert forecast.rows[1].excluded > 0
    report = intarsia.tune(model, target, costs=costs, num_threads=1, resume=True)
    assert report.explain().tuning.failures


def test_a_fault_in_one_operator_leaves_the_others(exact, model, costs):
    target = [
        "fake:0 -cost=*:2e-3 -call-cost=1e-5",
        "fake:1 -cost=*:5e-4 -call-cost=1e-5 -fault=compile -fault-ops=Tanh",
    ]
    exe = intarsia.tune(model, target, costs=costs, num_threads=1)
    where = _where(exe)
    assert where.pop("five") == "fake"
    assert set(where.values()) == {"fake:1"}


def test_an_interruption_keeps_what_was_measured(exact, model, costs):
    target = f"{RELU_FAST}, {RELU_SLOW}"

    def interrupt(moment):
        if moment.stage == "search":
            raise KeyboardInterrupt

    exe = intarsia.tune(model, target, costs=costs, num_threads=1, progress=interrupt)
    report = exe.explain().tuning
    assert report.is_interrupted
    assert report.seconds == pytest.approx(9.01e-3, rel=0.05)
    with CostDatabase.open(costs) as database:
        assert database.store is not None
    again = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert again.known >= 2
    assert again.winner.startswith("mix")


class LateLaboratory(ExactLaboratory):
    """Has no time for what runs on one target, and none at all from some race on."""

    late_position = 1
    most_races = 1000

    def prepare(self, probes):
        found = super().prepare(probes)
        for probe in probes:
            if any(position == self.late_position for position, _ in probe.calls):
                raise OutOfTimeError("out of time while compiling")
        return found

    def race(self, probes, **options):
        if self.raced >= self.most_races:
            raise OutOfTimeError("out of time while being timed")
        return super().race(probes, **options)


def test_what_there_was_no_time_to_compile_is_named_and_tried_again(
    exact, model, costs, monkeypatch
):
    target = f"{RELU_SLOW.replace(':1', ':0', 1)}, {RELU_FAST.replace(':0', ':1', 1)}"
    monkeypatch.setattr(f"{PATCHED}.Laboratory", LateLaboratory)
    report = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert "fake:1" not in report.winner
    assert report.seconds == pytest.approx(9.01e-3)
    fates = {finalist.name: finalist.fate for finalist in report.finalists}
    assert [fate for name, fate in fates.items() if "fake:1" in name] == [
        "not measured: out of time"
    ]
    assert any("out of time while compiling" in note for note in report.notes)
    assert not report.failures
    monkeypatch.setattr(f"{PATCHED}.Laboratory", ExactLaboratory)
    again = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert not again.is_reused
    assert again.winner.startswith("mix")


@pytest.mark.parametrize("error", [OutOfTimeError("no time"), BackendError("no memory")])
def test_plans_are_compared_although_copies_are_not_known(exact, model, costs, error, monkeypatch):
    def fail(lab):
        raise error

    monkeypatch.setattr("intarsia.tuning.prospector.measure_copies", fail)
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    tuning = exe.explain().tuning
    assert tuning.winner.startswith("mix")
    assert f"the cost of copies is not known: {error.message}" in tuning.notes


def test_a_border_that_was_measured_outlives_the_time_of_the_next(
    exact, model, costs, setting_of, monkeypatch
):
    measured = []

    def measure(lab, *pair):
        if measured:
            raise OutOfTimeError("out of time while being timed")
        measured.append(pair)
        return MeasuredBoundary(*pair, (1e-5,) * 3, EMPTY)

    monkeypatch.setattr("intarsia.tuning.prospector.measure_boundary", measure)
    monkeypatch.setattr(Boundaries, "wanted", lambda self, plan, *_: self.pairs_of(plan))
    setting = setting_of(model, f"{RELU_FAST}, {RELU_SLOW}")
    with CostDatabase.open(costs) as database, Tuner(setting, database, Options(60.0)) as tuner:
        prospector = tuner.prospector
        prospector.models = prospector.costing.models()
        plan = [(0, (0,)), (1, (1,)), (0, (2, 3, 4, 5))]
        assert prospector._measure_boundaries(plan, 1.0)
        pairs = prospector.costing.boundaries.pairs_of(plan)
        keys = [prospector.costing.boundaries.key_of(pair) for pair in pairs]
        assert list(tuner.table.boundaries(keys)) == keys[:1]
        assert prospector.notes == ["1 boundaries were not measured: out of time while being timed"]


@pytest.mark.parametrize("most_races", [0, 2])
def test_without_time_the_best_so_far_ships_and_is_not_taken_for_proven(
    exact, model, costs, most_races, monkeypatch
):
    target = f"{RELU_FAST}, {RELU_SLOW}"
    monkeypatch.setattr(LateLaboratory, "late_position", -1)
    monkeypatch.setattr(LateLaboratory, "most_races", most_races)
    monkeypatch.setattr(f"{PATCHED}.Laboratory", LateLaboratory)
    exe = intarsia.tune(model, target, costs=costs, num_threads=1)
    report = exe.explain().tuning
    assert len(exe.placement.regions) == 1
    assert (report.seconds is None) == (most_races == 0)
    assert any("give more with --budget" in note for note in report.notes)
    monkeypatch.setattr(f"{PATCHED}.Laboratory", ExactLaboratory)
    again = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert not again.is_reused
    assert again.winner.startswith("mix")


@pytest.mark.parametrize(("num_threads", "rounds"), [(1, 48), (2, 12)])
def test_rounds_are_planned_with_what_comes_before_a_sample(
    exact, model, costs, num_threads, rounds, setting_of
):
    setting = setting_of(model, f"{RELU_FAST}, {RELU_SLOW}", num_threads)
    with CostDatabase.open(costs) as database, Tuner(setting, database, Options(5.0)) as tuner:
        looks = tuner.whole.affordable((6, 12, 24, 48), tuner.plans, 0.4)
    assert looks[-1] == rounds  # of two plans that have not run yet, in two seconds


@pytest.mark.exhaustive
def test_the_budget_stops_a_compiler_that_takes_forever(model, costs):
    target = f"{RELU_SLOW.replace(':1', ':0', 1)}, fake:1 -fault=compile-hang"
    exe = intarsia.tune(model, target, costs=costs, num_threads=1, budget=8)
    report = exe.explain().tuning
    assert set(_where(exe).values()) == {"fake"}
    assert [f.fate for f in report.finalists if "hang" in f.name] == ["not measured: out of time"]
    assert not report.failures


@pytest.mark.exhaustive
def test_an_interruption_stops_a_compiler_that_takes_forever(model, costs):
    target = f"{RELU_SLOW.replace(':1', ':0', 1)}, fake:1 -fault=compile-hang"
    timers = []

    def interrupt(moment):
        if moment.stage == "prepare" and "hang" in moment.what:
            timers.append(threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,)))
            timers[-1].start()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exe = intarsia.tune(
            model, target, costs=costs, num_threads=1, budget=600, progress=interrupt
        )
        timers[0].join()
    finally:
        signal.signal(signal.SIGINT, before)
    report = exe.explain().tuning
    assert report.is_interrupted
    assert set(_where(exe).values()) == {"fake"}
    assert not report.failures


def test_the_forecast_says_what_is_not_known(exact, model, costs, setting_of):
    setting = setting_of(model, [RELU_FAST, RELU_SLOW])
    before = module.forecast(setting, Options(30.0), costs=costs)
    assert before.units == before.nodes == 6
    assert len(before.plans) == 2
    assert not before.known_plans
    assert [row.known for row in before.rows] == [0, 0]
    intarsia.tune(model, [RELU_FAST, RELU_SLOW], costs=costs, num_threads=1)
    after = module.forecast(setting, Options(30.0), costs=costs)
    assert set(after.known_plans) == set(before.plans)
    assert after.is_accepted
    assert all(row.known > 0 for row in after.rows)


def test_what_is_known_for_memory_is_what_was_weighed(exact, model, costs, setting_of):
    setting = setting_of(model, f"{RELU_FAST}, {RELU_SLOW}")
    intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    lean, any_speed = Options(objective=Memory()), Options(objective=Memory(None))
    timed = module.forecast(setting, Options(), costs=costs)
    assert sum(row.known for row in timed.rows) > 0
    assert timed.borders
    for options in (lean, any_speed):
        forecast = module.forecast(setting, options, costs=costs)
        assert not any(row.known for row in forecast.rows)
        assert not forecast.borders
    with CostDatabase.open(costs) as database:
        keys = [entry.key for entry in read_entries(database) if isinstance(entry.key, CostKey)]
        add_weights(database, {key: [Weight(1 << 20)] for key in keys})
    for options in (lean, any_speed):
        known = [row.known for row in module.forecast(setting, options, costs=costs).rows]
        assert known == [row.known for row in timed.rows]


BUTTERFLY = """
g (float[2,8] x, float[2,8] z) => (float[2,8] p, float[2,8] q) {
    [a1] a = Relu(x)
    [b1] b = Tanh(z)
    [a2] p = Add(a, b)
    [b2] q = Mul(a, b)
}
"""


def test_regions_that_need_one_another_are_taken_apart(
    exact, parse_model, costs, random_feeds, evaluate, assert_same
):
    model = parse_model(BUTTERFLY)
    target = [
        "fake:0 -cost=Relu:1e-4,Add:1e-4,*:1e-2 -call-cost=1e-5",
        "fake:1 -cost=Tanh:1e-4,Mul:1e-4,*:1e-2 -call-cost=1e-5",
    ]
    exe = intarsia.tune(model, target, costs=costs, num_threads=1)
    assert _where(exe) == {"a1": "fake", "a2": "fake", "b1": "fake:1", "b2": "fake:1"}
    assert len(exe.placement.regions) == 3
    assert exe.explain().tuning.seconds == pytest.approx(4.3e-4, rel=0.1)
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_every_unit_says_what_it_costs_elsewhere(exact, model, costs):
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    report = exe.explain().tuning
    by_node = {unit.nodes[0]: unit for unit in report.unit_reports}
    fast, slow = by_node["one"].costs
    assert fast.alone_seconds == pytest.approx(1.01e-3, rel=0.1)
    assert slow.inside_seconds == pytest.approx(2e-3, rel=0.1)
    assert slow.plan_seconds - fast.plan_seconds == pytest.approx(1e-3, rel=0.15)
    assert {cut.calls for cut in report.cuts} <= {1, 2}


def test_a_package_carries_the_report(exact, model, costs, tmp_path):
    exe = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    exe.save(tmp_path / "m.intarsia")
    loaded = intarsia.load(tmp_path / "m.intarsia")
    assert loaded.explain().tuning == exe.explain().tuning


class TiredLaboratory(ExactLaboratory):
    """Whole plans have noise, and there is time for so many rounds of them in one run."""

    most_rounds = 15
    began = 0

    def __init__(self, setting, **options):
        super().__init__(setting, **options)
        self.left_rounds = self.most_rounds

    def race(self, probes, *, rounds, anchor=None, note=None):
        size = len(self.setting.graph.nodes)
        if any(sum(len(nodes) for _, nodes in probe.calls) < size for probe in probes):
            return super().race(probes, rounds=rounds, note=note)
        able = min(rounds, self.left_rounds)
        self.left_rounds -= able
        began, TiredLaboratory.began = TiredLaboratory.began, TiredLaboratory.began + able
        noise = np.random.default_rng(began).normal(0, 0.1, (len(probes), able))
        seconds = {
            probe: tuple(self._seconds(probe) * np.exp(row))
            for probe, row in zip(probes, noise, strict=True)
        }
        race = Race(seconds, "", (0.0,) * able, tuple(map(float, range(began, began + able))))
        if able:
            note(race)
        if able < rounds:
            raise OutOfTimeError("out of time while being timed")
        return race


@pytest.mark.parametrize("is_reused", [True, False])
def test_a_final_that_was_stopped_goes_on_from_its_rounds(
    is_reused, exact, model, costs, monkeypatch
):
    monkeypatch.setattr(f"{PATCHED}.Laboratory", TiredLaboratory)
    monkeypatch.setattr(TiredLaboratory, "began", 0)
    if not is_reused:
        monkeypatch.setattr(
            WholePlans, "earlier_rounds", lambda self, plans: dict.fromkeys(plans, ())
        )
    options = {"costs": costs, "num_threads": 1}
    runs = []
    for _ in range(4):
        report = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", **options).explain().tuning
        runs.append(report)
        if not any("give more with --budget" in note for note in report.notes):
            break
    assert len(runs) == (2 if is_reused else 4)
    assert runs[-1].winner.startswith("mix") is is_reused
    assert not runs[0].winner.startswith("mix")  # not proven
    if is_reused:
        again = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", **options).explain().tuning
        assert again.is_reused


def test_rounds_of_the_heats_are_rounds_of_the_final(exact, model, costs):
    report = intarsia.tune(model, f"{RELU_FAST}, {RELU_SLOW}", costs=costs, num_threads=1)
    rounds = {item.name: item.rounds for item in report.explain().tuning.finalists}
    assert rounds.pop("mix 1") == 3 + 12
    assert max(rounds.values()) == 3 + 3 + 12  # the two differ by nothing


def test_a_runner_up_may_have_its_borders_measured(exact, model, costs, setting_of, monkeypatch):
    runner_up = ((0, (0,)), (1, (1, 2, 3, 4)), (0, (5,)))
    measured = []

    def measure(lab, *pair):
        measured.append(pair)
        return MeasuredBoundary(*pair, (1e-5,) * 3, EMPTY)

    def find(problem, solution, count):
        calls = [PlannedCall(position, units, ()) for position, units in runner_up]
        return [SimpleNamespace(calls=calls)]

    monkeypatch.setattr("intarsia.tuning.prospector.measure_boundary", measure)
    monkeypatch.setattr("intarsia.tuning.prospector.finalists", find)
    setting = setting_of(model, [text.replace("e-5", "e-4") for text in (RELU_FAST, RELU_SLOW)])
    for margin, is_near in ((1.3, False), (1 / 0.99, True)):
        with CostDatabase.open(costs) as database, Tuner(setting, database, Options(60.0)) as tuner:
            prospector = tuner.prospector
            prospector.measure_calls_and_copies()
            prospector.search((), 1.0)
            best = margin * prospector.costing.price(runner_up, prospector.models)
            measured.clear()
            prospector.search((), best)
        assert bool(measured) is is_near
    (before, after), *_ = measured
    assert {before.calls[0][0], after.calls[0][0]} == {0, 1}


def test_limits_that_bind_are_reported(exact, model, costs, monkeypatch):
    target = ", ".join(f"fake:{n} -cost=Relu:{1 + n % 2}e-3,*:{2 - n % 2}e-3" for n in range(7))
    monkeypatch.setattr("intarsia.tuning.prospector.MOST_TURNS", 1)
    monkeypatch.setattr(f"{PATCHED}.MOST_FINALISTS", 2)
    report = intarsia.tune(model, target, costs=costs, num_threads=1).explain().tuning
    assert report.caps == (
        "the search considers only the first 5 targets, not fake:5 -cost=*:1e-3,Relu:2e-3, "
        "fake:6 -cost=*:2e-3,Relu:1e-3",
    )
    assert "the search was repeated 1 times, and then no more" in report.notes
    assert "first 5 targets" in _shown(tuning_view(report))


def test_a_plan_that_the_final_has_no_place_for_says_so(exact, model, costs, setting_of):
    setting = setting_of(model, f"{RELU_FAST}, {RELU_SLOW}")
    with CostDatabase.open(costs) as database, Tuner(setting, database, Options(60.0)) as tuner:
        tuner.run()
        calls = ((0, (0,)), (1, (1, 2, 3)), (0, (4, 5)))
        others = [replace(tuner.plans[-1], name=f"mix {n}", calls=calls) for n in range(9, 16)]
        tuner.plans = (*tuner.plans, *others)
        kept = tuner._finalists()
        _, report = conclude(tuner)
    assert len(kept) == 5
    fates = {item.name: item.fate for item in report.finalists}
    assert fates["mix 15"] == "not run: the final has 5 plans at most"


def test_a_note_names_what_has_no_size_to_be_measured_at(setting_of, parse_model, model):
    late = parse_model(
        """g (float[4] x) => (float[n] y) {
           [first] r = Relu(x)
           [places] at = NonZero(r)
           [flat] row = Squeeze(at)
           [last] y = Gather(r, row) }"""
    )
    (line,) = note_late_sizes(setting_of(late, "llvm, onnxruntime").graph)
    assert line.startswith("the data decides sizes from 'places' (NonZero) on: 3 nodes were")
    assert note_late_sizes(setting_of(model, RELU_FAST).graph) == ()
