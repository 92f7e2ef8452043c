# SPDX-License-Identifier: Apache-2.0
"""Borders between calls: which are asked for, what is kept of them, on real backends too."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.backends.dnnl.library import driver
from intarsia.cost.database import CostDatabase
from intarsia.cost.key import new_session
from intarsia.errors import BackendError
from intarsia.settings import Settings
from intarsia.tuning.costing.boundaries import (
    MOST_CONVERSION_BYTE_SECONDS,
    Boundaries,
    MeasuredBoundary,
    in_sequence,
    measure_boundary,
)
from intarsia.tuning.costing.cost_table import CostTable, KeyMaker
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import Probe, Race

LINKS = " ".join(f"x{i + 1} = {'Tanh' if i % 3 else 'Relu'}(x{i})" for i in range(9))
CHAIN = f"net (float[4] x0) => (float[4] x9) {{ {LINKS} }}"


@pytest.fixture(scope="module")
def chain(parse_model, setting_of):
    return setting_of(parse_model(CHAIN), "fake:0 -cost=*:1e-3, fake:1 -cost=*:2e-3")


@pytest.fixture
def make(chain, tmp_path):
    """A function that makes what knows nothing but one database."""
    opened = []

    def of(setting=chain):
        opened.append(CostDatabase.open(str(tmp_path / "costs.sqlite")))
        table = CostTable(KeyMaker(setting), opened[-1], new_session())
        return Boundaries(table, lambda units: units, lambda pair: 1e-6)

    yield of
    for database in opened:
        database.close()


@pytest.fixture(scope="module")
def untouched(chain, tmp_path_factory):
    """Knows nothing, and is told nothing."""
    path = tmp_path_factory.mktemp("costs") / "costs.sqlite"
    with CostDatabase.open(str(path)) as database:
        table = CostTable(KeyMaker(chain), database, new_session())
        yield Boundaries(table, lambda units: units, lambda pair: 0.0)


def _boundary(seconds, rounds=5):
    before, after = Probe.region(0, [0]), Probe.region(1, [1])
    race = Race({}, "", (0.0,) * rounds, (1.0,) * rounds)
    return MeasuredBoundary(before, after, (seconds,) * rounds, race)


PLAN = [(0, (0,)), (1, (1, 2)), (0, (3,)), (1, (4, 5)), (1, (6,)), (0, (7, 8))]


def test_one_shape_is_one_border_and_one_target_has_none(make):
    pairs = make().pairs_of(PLAN)
    assert [(one[0], other[0]) for one, other in pairs] == [(0, 1), (1, 0), (1, 0)]
    assert ((1, (4, 5)), (1, (6,))) not in pairs


def test_what_decides_is_wanted_once_for_each_pair_of_targets(make):
    boundaries = make()
    every = boundaries.wanted(PLAN, 1e-9, lambda side: 1e-3, 1e-5)
    assert [(one[0], other[0]) for one, other in every] == [(0, 1), (1, 0)]
    assert boundaries.wanted(PLAN, 1.0, lambda side: 1e-3, 1e-5) == []
    assert boundaries.wanted(PLAN, -1.0, lambda side: 1e-3, 1e-5) == []


def test_what_was_measured_stands_for_its_like_and_is_kept(make):
    boundaries = make()
    to, back, last = boundaries.pairs_of(PLAN)
    boundaries.enter(back, _boundary(2.1e-5))
    assert boundaries.seconds(back) == pytest.approx(2e-5)  # less its copies
    assert boundaries.seconds(last) == pytest.approx(2e-5)
    assert boundaries.seconds(to) == 0.0
    assert boundaries.of_plan(PLAN) == pytest.approx(4e-5)
    assert boundaries.call_penalty(0) == pytest.approx(2e-5)
    assert boundaries.call_penalty(1) == 0.0
    (report,) = boundaries.found.values()
    assert (report.last, report.first, report.rounds) == ("x3", "x4", 5)
    assert report.assumed_seconds == pytest.approx(1e-6)
    fresh = make()
    fresh.look_up(fresh.pairs_of(PLAN))
    assert fresh.seconds(back) == pytest.approx(2e-5)
    assert [item.is_known for item in fresh.found.values()] == [True]
    assert back not in fresh.wanted(PLAN, 0.0, lambda side: 1e-3, 1e-5)


def test_a_gain_is_shown_but_not_counted(make):
    boundaries = make()
    to, *_ = boundaries.pairs_of(PLAN)
    boundaries.enter(to, _boundary(-5e-5))
    assert boundaries.of_plan(PLAN) == 0.0
    (report,) = boundaries.found.values()
    assert report.seconds == pytest.approx(-5e-5)
    assert boundaries.call_penalty(1) == 0.0


@pytest.fixture(scope="module")
def blocked(parse_model, setting_of):
    """Two convolutions that `dnnl` and `llvm` exchange in blocks, and what follows."""
    try:
        driver(Settings.from_environment())
    except BackendError as error:
        pytest.skip(error.message)
    weights = ",".join(["0.01"] * 1024)
    return setting_of(
        parse_model(f"""net (float[1,32,6,6] x) => (float[1,32,6,6] y)
        <float[32,32,1,1] w = {{{weights}}}>
        {{ a = Conv(x, w) b = Conv(a, w) c = Relu(a) d = Add(b, c) y = Conv(d, w) }}"""),
        "dnnl, llvm, onnxruntime",
    )


def test_what_a_blocked_border_saves_counts_up_to_what_conversions_cost(make, blocked):
    boundaries = make(blocked)
    most = 2 * 32 * 36 * 4 * MOST_CONVERSION_BYTE_SECONDS
    plan = [(2, (0, 1, 2)), (0, (3,)), (1, (4,))]
    first, second = boundaries.pairs_of(plan)
    assert boundaries.most_saved(first) == 0.0
    assert boundaries.most_saved(second) == pytest.approx(most)
    assert boundaries.key_of(second).next_region.split()[1:] == [
        f"nchw{driver(Settings.from_environment()).block}c"
    ]
    assert boundaries.key_of(first).next_region.split()[1:] == []
    for pair in (first, second):
        boundaries.enter(pair, _boundary(-most / 2))
    assert boundaries.seconds(first) == 0.0
    assert boundaries.seconds(second) == pytest.approx(-most / 2 - 1e-6)
    assert boundaries.of_plan(plan) == boundaries.seconds(second)
    assert [item.layout for item in boundaries.found.values()] == [
        "",
        f"nchw{driver(Settings.from_environment()).block}c",
    ]
    assert boundaries.call_penalty(0) == boundaries.call_penalty(1) == 0.0
    other = make(blocked)
    other.enter(second, _boundary(-1.0))
    assert other.seconds(second) == pytest.approx(-most)
    other.enter(second, _boundary(2e-3))
    assert other.seconds(second) == pytest.approx(2e-3, rel=1e-2)


def test_what_blocks_save_goes_by_bytes_and_is_told_to_the_search(make, blocked):
    boundaries = make(blocked)
    first, second = ((0, (0, 1, 2)), (1, (3, 4))), ((0, (0, 1, 2, 3)), (1, (4,)))
    assert (
        boundaries.blocked_bytes(first) == 2 * boundaries.blocked_bytes(second) == 2 * 32 * 36 * 4
    )
    hoped = boundaries.most_saved
    assert boundaries.saved_share(hoped) == 1.0
    boundaries.enter(first, _boundary(1e-6 - boundaries.most_saved(first) / 2))
    assert boundaries.seconds(second) == pytest.approx(-boundaries.most_saved(second) / 2)
    assert boundaries.saved_share(hoped) == pytest.approx(0.5)
    assert boundaries.saved_share(lambda pair: boundaries.most_saved(pair) / 4) == 1.0
    worse = make(blocked)
    worse.enter(first, _boundary(1e-4))
    assert worse.seconds(second) == worse.seconds(first) > 9e-5
    assert worse.saved_share(hoped) == 0.0


def test_a_blocked_border_is_measured_in_place_and_right(make, blocked):
    pair = ((0, (0, 1, 2, 3)), (1, (4,)))
    boundaries = make(blocked)
    with Laboratory(blocked) as laboratory:
        both = (Probe((pair[0],)), Probe((pair[1],)))
        together = in_sequence(*both)
        assert laboratory.prepare([together])[together].refusal is None  # compared with all values
        boundaries.enter(pair, measure_boundary(laboratory, *both, rounds=3))
    (report,) = boundaries.found.values()
    assert report.layout == f"nchw{driver(Settings.from_environment()).block}c"


def test_a_plan_with_blocks_is_filed_apart(blocked, monkeypatch):
    calls = ((1, (0, 1)), (0, (2, 3)), (1, (4,)))
    own = KeyMaker(blocked).key(calls)
    monkeypatch.setattr("intarsia.tuning.costing.cost_table.choose_layouts", lambda regions: {})
    assert KeyMaker(blocked).key(calls) != own


def test_a_saving_is_worth_asking_about(make, blocked):
    boundaries = make(blocked)
    plan = [(0, (0, 1, 2, 3)), (1, (4,))]
    (pair,) = boundaries.pairs_of(plan)
    gap = 0.9 * boundaries.most_saved(pair)
    assert boundaries.wanted(plan, -gap, lambda side: 0.0, 0.0) == [pair]
    assert boundaries.wanted(plan, -2 * gap, lambda side: 0.0, 0.0) == []


def test_what_fails_is_not_asked_for_again(make):
    boundaries = make()
    to, *_ = boundaries.pairs_of(PLAN)
    boundaries.enter(to, _boundary(math.nan))
    assert boundaries.found == {}
    assert to not in boundaries.wanted(PLAN, 0.0, lambda side: 1e-3, 1e-5)
    assert make().table.boundaries([boundaries.key_of(to)]) == {}


@settings(max_examples=40, deadline=None)
@given(
    sides=st.lists(st.integers(0, 1), min_size=1, max_size=9),
    gap=st.floats(-1e-3, 1e-3),
    call=st.floats(1e-7, 1e-4),
)
def test_nothing_is_wanted_that_cannot_decide(untouched, sides, gap, call):
    plan = [(position, (node,)) for node, position in enumerate(sides)]
    wanted = untouched.wanted(plan, gap, lambda side: 1e-4, call)
    changes = sum(one != other for one, other in pairwise(sides))
    assert bool(wanted) == (changes * (call + 1e-5) > abs(gap))
    ends = [(one[0], other[0]) for one, other in wanted]
    assert len(set(ends)) == len(ends)


def test_real_backends_are_measured_in_place_and_remembered(parse_model, setting_of, make):
    model = parse_model(
        """net (float[1,64] x, float[64,64] w) => (float[1,64] y)
        { a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) y = Relu(c) }"""
    )
    setting = setting_of(model, "openvino, llvm, onnxruntime")
    plan = [(2, (0, 1)), (1, (2, 3))]
    boundaries = make(setting)
    (pair,) = boundaries.pairs_of(plan)
    with Laboratory(setting) as laboratory:
        both = (Probe((pair[0],)), Probe((pair[1],)))
        boundaries.enter(pair, measure_boundary(laboratory, *both, rounds=5))
    assert abs(boundaries.seconds(pair)) < 1
    fresh = make(setting)
    fresh.look_up([pair])
    assert fresh.seconds(pair) == pytest.approx(boundaries.seconds(pair))
