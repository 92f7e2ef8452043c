# SPDX-License-Identifier: Apache-2.0
"""Tuned plans run If, Loop and Scan by their bodies where that is measured to be faster."""

from types import SimpleNamespace

import numpy as np
import pytest

import intarsia
from intarsia.accepted.choices import Accepted, make_verdict
from intarsia.place.assign import Policy
from intarsia.place.build import build_program
from intarsia.place.decide import PlanChoice, decide_single
from intarsia.place.machine import Machine
from intarsia.place.request import Request
from intarsia.place.setting import make_setting
from intarsia.plan.tuning import Finalist, TuningReport
from intarsia.target import CompilationConfig
from intarsia.tuning.bodies import place_bodies
from intarsia.tuning.budget import Budget
from intarsia.tuning.objectives.packages import Packages
from intarsia.tuning.options import Options

MACHINE = "llvm, onnxruntime"
MODEL = """g (int64 m, bool c, float[4] x) => (float[4] y) <bool yes = {1}> {
    h = Exp(x)
    [branch] q = If(c) <
        then_branch = t () => (float[4] a) { [inner] a = Neg(h) },
        else_branch = e () => (float[4] b) { b = Abs(h) }>
    [loop] y = Loop(m, yes, q) <body = b (int64 i, bool on, float[4] v) => (bool on, float[4] u) {
        s = Add(v, h) u = Tanh(s) }> }"""
FEEDS = {"m": np.array(4), "c": np.array(True), "x": np.linspace(-1, 1, 4, dtype=np.float32)}


@pytest.fixture(scope="module")
def model(parse_model):
    return parse_model(MODEL)


@pytest.fixture
def ship(model, backends, evaluate, monkeypatch, tmp_path):
    """A function from times of plans, by their steps, to the setting and what ships.

    Before, the plan of the last target with whole operators was the best.
    """

    def find(seconds_of, machine=MACHINE, values=None, **options):
        def time_rounds(self, probes, rounds):
            return {probe: (seconds_of(probe.steps),) * rounds for probe in probes}

        monkeypatch.setattr(Packages, "time_rounds", time_rounds)
        request = Request(model=model, num_threads=1, placement="collage", **options)
        config = CompilationConfig.resolve(machine)
        setting = make_setting(request, Machine(config, backends))
        whole = setting.whole
        position = len(config.targets) - 1
        calls = decide_single(whole, position).calls(whole.targets)
        row = Finalist("best", {}, len(calls), is_single=True, seconds=1e-3, fate="ships")
        report = TuningReport(
            ("a",), ("1",), "m", 1, "latency", (row,), "best", False, "best", 1e-3, 1e-3, None, 1.0
        )
        lab = SimpleNamespace(
            folder=tmp_path, values=lambda: {**FEEDS, **evaluate(model, FEEDS), **(values or {})}
        )
        tuner = SimpleNamespace(
            is_interrupted=False,
            budget=Budget(60.0),
            options=Options(60.0),
            whole=SimpleNamespace(runner=SimpleNamespace(lab=lab), tell=lambda *_: None),
        )
        choice = PlanChoice(Policy.COLLAGE, calls, report)
        return setting, place_bodies(setting, tuner, choice)

    return find


def steps_of(exe):
    return {exe.placement.regions[body.region].nodes[0].name for body in exe.plan.bodies}


@pytest.mark.parametrize(
    ("seconds_of", "expected"),
    [
        (lambda steps: 1e-3 / (1 + len(steps)), {"branch", "loop"}),
        (lambda steps: 1e-3 if steps == (2,) else 2e-3, {"loop"}),
        (lambda steps: 1e-3 * (1 + len(steps)), set()),
    ],
)
def test_the_fastest_of_whole_operators_and_bodies_ships(
    seconds_of, expected, model, ship, evaluate, assert_same
):
    setting, choice = ship(seconds_of)
    assert set(choice.report.steps) == expected
    rows = choice.report.finalists
    assert [row.name for row in rows if row.fate == "ships"] == [choice.report.winner]
    assert sum("bodies of" in row.name for row in rows) == 3
    assert choice.report.seconds == pytest.approx(1e-3 if not expected else rows[0].seconds)
    exe = build_program(setting, choice)
    assert steps_of(exe) == expected
    for condition in (True, False):
        feeds = {**FEEDS, "c": np.array(condition)}
        assert_same(exe.run(feeds), evaluate(model, feeds))
    verdict = make_verdict(setting.complete, choice.calls, choice.report)
    again = Accepted(verdict=verdict).choice(setting)
    assert (again.calls, again.steps) == (choice.calls, choice.steps)


def test_what_is_pinned_inside_is_a_step(ship):
    setting, choice = ship(lambda steps: 1e-3 * len(steps), pins={"inner": "onnxruntime"})
    exe = build_program(setting, choice)
    assert steps_of(exe) == {"branch"}
    then, other = (body.plan.placement.regions[0] for body in exe.plan.bodies)
    assert (then.target, other.backend) == ("onnxruntime", "llvm")
    assert choice.report.winner == choice.report.single


def test_a_target_that_nobody_gave_has_none_of_them(ship):
    setting, choice = ship(lambda steps: 1e-3, "llvm")
    exe = build_program(setting, choice)
    assert steps_of(exe) == {"branch", "loop"}
    assert {region.backend for region in exe.placement.regions} == {"llvm", "plan"}


def test_bodies_that_compute_something_else_do_not_ship(ship):
    _, choice = ship(lambda steps: 1e-3 / (1 + len(steps)), values={"y": np.ones(4, np.float32)})
    assert choice.steps == frozenset()
    assert [row.name for row in choice.report.finalists] == ["best"]


@pytest.mark.exhaustive
def test_tuning_races_whole_operators_against_their_bodies(
    model, backends, tmp_path, evaluate, assert_same
):
    exe = intarsia.tune(
        model,
        MACHINE,
        budget=60,
        feeds=FEEDS,
        num_threads=1,
        backends=backends,
        costs=str(tmp_path / "costs.sqlite"),
    )
    assert sum("bodies of" in row.name for row in exe.plan.tuning.finalists) == 3
    assert steps_of(exe) == set(exe.plan.tuning.steps)
    assert_same(exe.run(FEEDS), evaluate(model, FEEDS))
