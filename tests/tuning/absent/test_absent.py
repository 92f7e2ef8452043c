# SPDX-License-Identifier: Apache-2.0
"""Plans for machines that are not here."""

import pytest

from intarsia.cost.database import CostDatabase
from intarsia.cost.key import Sample, new_session
from intarsia.errors import SettingError
from intarsia.tuning.absent import absent
from intarsia.tuning.absent.absent import find_next_measurements, plan_without_measuring
from intarsia.tuning.absent.outlooks import make_planner, survey
from intarsia.tuning.objectives.objective import parse_objective
from intarsia.tuning.options import Options

TEXT = """
g (float[4,4] x) => (float[4,4] y) {
    [product] a = MatMul(x, x)
    [scale] b = Mul(a, x)
    [last] y = Relu(b)
}
"""
CHEAP = "fake:0 -cost=MatMul:1e-4,*:9e-3 -call-cost=1e-5 -estimate=1"
EVEN = "fake:1 -cost=*:1e-3 -call-cost=1e-5 -estimate=1"


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    monkeypatch.setattr(absent, "MOST_SECONDS", 600.0)


def plan(setting, objective="latency"):
    options = Options(objective=parse_objective(objective))
    calls, report = plan_without_measuring(setting, None, options)
    return {nodes: position for position, nodes in calls}, report


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("", {(0,): 0, (1, 2): 1}),
        (" -groups=MatMul+Mul", {(0,): 0, (1, 2): 1}),
        (" -groups=MatMul+Mul -is-whole", {(0, 1, 2): 1}),
    ],
)
def test_a_piece_of_what_is_only_taken_whole_is_planned_nowhere_alone(
    parse_model, setting_of, says, found
):
    placed, report = plan(setting_of(parse_model(TEXT), f"{CHEAP}{says}, {EVEN}"))
    assert placed == found
    assert report.seconds is None
    assert report.predicted_seconds == pytest.approx(2.1e-3 if (0,) in found else 3e-3, rel=0.05)


def test_memory_is_not_estimated(parse_model, setting_of):
    setting = setting_of(parse_model(TEXT), f"{CHEAP}, {EVEN}")
    with pytest.raises(SettingError, match="not estimated"):
        plan(setting, "memory")


@pytest.fixture
def open_costs(tmp_path):
    """An empty cost database."""
    with CostDatabase.open(str(tmp_path / "costs.sqlite")) as database:
        yield database


def measure(setting, database, position, unit_seconds):
    """Record a time for every unit on one target."""
    planner = make_planner(setting, None)
    session = new_session()
    for (at, _), subject in planner.subjects.items():
        if at == position:
            database.add(subject.key, [Sample(unit_seconds, 0.0, "", 1.0, session)] * 12)


def test_what_was_measured_is_not_left_for_what_might_be_faster(
    parse_model, setting_of, open_costs
):
    setting = setting_of(parse_model(TEXT), f"fake:0 -cost=*:1e-3, {EVEN.replace('1e-3', '6e-4')}")
    measure(setting, open_costs, 0, 1e-3)
    outlooks, undecided = survey(make_planner(setting, open_costs))
    assert outlooks[0].single == 0  # 1.0 ms measured; 0.6 ms estimated, but perhaps 1.2
    assert undecided == {0, 1, 2}
    measure(setting, open_costs, 1, 6e-4)
    outlooks, undecided = survey(make_planner(setting, open_costs))
    assert (outlooks[0].single, undecided) == (1, frozenset())


def test_the_report_has_all_plans_with_their_intervals(parse_model, setting_of):
    _, report = plan(setting_of(parse_model(TEXT), f"{CHEAP}, {EVEN}"))
    assert sum(row.is_single for row in report.finalists) == 2
    for row in report.finalists:
        assert row.low_seconds <= row.predicted_seconds <= row.high_seconds
    assert report.finalists[0].name == report.winner
    assert report.confidence == 0
    text = "\n".join(report.notes)
    assert "not shown to be as fast as any single backend" in text
    assert "3 estimated" in text
    assert "between" in report.summary


def test_the_measurements_that_are_named_settle_it(parse_model, setting_of, open_costs):
    setting = setting_of(parse_model(TEXT), "fake:0 -cost=*:1e-3 -estimate=1, fake:1 -estimate=1 "
                         "-cost=MatMul:5e-4,*:1.5e-3")  # fmt: skip
    planner = make_planner(setting, None)
    _, undecided = survey(planner)
    assert undecided
    queue = find_next_measurements(planner, undecided)
    assert queue.left == 0
    assert 1 <= len(queue.measurements) <= 6
    assert "would settle it" in queue.lines[0]
    named = {(each.target, each.nodes[0]) for each in queue.measurements}
    session = new_session()
    for (at, unit), subject in planner.subjects.items():  # as predicted
        name = setting.graph.nodes[planner.space.units.units[unit].nodes[0]].name
        if (str(setting.config.targets[at]), name) in named:
            seconds = planner.costs[at, unit].seconds
            open_costs.add(subject.key, [Sample(seconds, 0.0, "", 1.0, session)] * 12)
    after = make_planner(setting, open_costs)
    assert survey(after)[1] == frozenset()
