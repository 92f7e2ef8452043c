# SPDX-License-Identifier: Apache-2.0
"""The layout in blocks that two targets share, as a state of the search."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.brute import SETTINGS, Brute

from intarsia.backends.dnnl.library import driver
from intarsia.errors import BackendError
from intarsia.search.solve import solve
from intarsia.settings import Settings
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import LEAST_BYTE_SECONDS, TYPICAL_BYTE_SECONDS, TargetModel
from intarsia.tuning.proposals.space import MOST_STATES, make_space

NETWORK = """net (float[1,32,6,6] x) => (float[1,32,6,6] y)
    <float[32,32,3,3] w, float[32,32,1,1] v> {
    [one] a = Conv<pads=[1,1,1,1]>(x, w)
    [two] b = Conv(a, v)
    [three] c = Conv<pads=[1,1,1,1]>(b, w)
    [four] d = Add(c, a)
    [five] y = Conv(d, v) }"""


@pytest.fixture(scope="module")
def setting(parse_model, backends):
    """A small network on two targets that know blocks, and one that does not."""
    try:
        driver(Settings.from_environment())
    except BackendError as error:
        pytest.skip(error.message)
    return lambda target: make(parse_model, backends, target)


def make(parse_model, backends, target):
    from intarsia.place.machine import Machine
    from intarsia.place.request import Request
    from intarsia.place.setting import make_setting
    from intarsia.target import CompilationConfig

    config = CompilationConfig.resolve(target)
    model = parse_model(_with_weights())
    return make_setting(Request(model=model, num_threads=1), Machine(config, backends))


def _with_weights():
    rng = np.random.default_rng(0)

    def numbers(count):
        return "{" + ",".join(f"{value:.3f}" for value in rng.standard_normal(count) / 17) + "}"

    weights = f"float[32,32,3,3] w = {numbers(9216)}, float[32,32,1,1] v = {numbers(1024)}"
    return NETWORK.replace("float[32,32,3,3] w, float[32,32,1,1] v", weights)


@pytest.fixture(scope="module")
def space(setting):
    return make_space(setting("dnnl, llvm, onnxruntime"))


def formulated(space, costs, byte_seconds=1e-9, call=1e-9, saved_share=1.0):
    """Return the problem in which each target needs so long for each unit."""
    units = range(len(space.units.units))
    models = {
        position: TargetModel(
            call, byte_seconds, dict(zip(units, row, strict=True)), frozenset(units)
        )
        for position, row in enumerate(costs)
    }
    facts = Facts(models, {}, frozenset(), lambda at, nbytes: 0.0, lambda unit: 0)
    return formulate(space, replace(facts, saved_share=saved_share))


def test_two_targets_may_exchange_what_no_caller_sees(space):
    values = space.units.graph.values
    assert space.caps == ()
    by_name = {values[value].name: value for value in space.blocked.makers}
    assert {"a", "b"} <= by_name.keys() <= {"a", "b", "c", "d"}
    for value in by_name.values():
        assert space.blocked.makers[value] == space.blocked.readers[value] == {0, 1}
    problem = formulated(space, np.full((3, len(space.units.units)), 1e-6))
    assert problem.states == 5
    assert problem.private == {1, 2, 3}
    nbytes = 32 * 36 * 4
    tensors = {tensor.producer: tensor for tensor in problem.tensors}
    inner = problem.transitions[tensors[0].transition]
    assert inner[1, 4] == inner[2, 4] == inner[4, 1] == pytest.approx(LEAST_BYTE_SECONDS * nbytes)
    assert inner[0, 4] == inner[4, 0] == pytest.approx(TYPICAL_BYTE_SECONDS * nbytes)
    assert np.isinf([inner[3, 4], inner[4, 3]]).all()
    for end in (tensors[-1], next(tensor for tensor in problem.tensors if tensor.is_output)):
        matrix = problem.transitions[end.transition]
        assert np.isinf([*matrix[4, :4], *matrix[:4, 4]]).all()
        assert matrix[4, 4] == 0


def test_what_was_measured_of_blocks_is_their_price(space):
    nbytes = 32 * 36 * 4
    costs = np.full((3, len(space.units.units)), 1e-6)
    for share, price in ((1.0, LEAST_BYTE_SECONDS), (0.0, 1e-9), (0.5, 0.51e-9)):
        problem = formulated(space, costs, saved_share=share)
        inner = problem.transitions[problem.tensors[1].transition]
        assert inner[1, 4] == inner[4, 2] == pytest.approx(price * nbytes)


@settings(max_examples=40, **SETTINGS)
@given(seed=st.integers(0, 10**6), byte_seconds=st.sampled_from((1e-11, 1e-10, 1e-9)))
def test_the_optimum_is_that_of_all_plans(space, seed, byte_seconds):
    count = len(space.units.units)
    costs = np.random.default_rng(seed).uniform(1e-7, 5e-6, (3, count))
    problem = formulated(space, costs, byte_seconds)
    found = solve(problem)
    assert found.statistics["label bound"] == pytest.approx(Brute(problem).best())
    without = formulated(replace(space, blocked=None), costs, byte_seconds)
    assert found.statistics["label bound"] <= solve(without).statistics["label bound"] + 1e-15


def test_targets_take_turns_where_only_plain_tensors_are_dear(space):
    count = len(space.units.units)
    assert count == 5
    costs = np.full((3, count), 1e-5)
    costs[0, ::2] = costs[1, 1::2] = 1e-6  # each is better at every other one
    assert len(solve(formulated(space, costs, 1e-9)).calls) > 1
    plain = solve(formulated(replace(space, blocked=None), costs, 1e-9))
    assert len(plain.calls) < len(solve(formulated(space, costs, 1e-9)).calls)


@pytest.mark.parametrize("target", ["llvm, onnxruntime", "dnnl, openvino, onnxruntime"])
def test_one_target_that_knows_blocks_changes_nothing(setting, target):
    space = make_space(setting(target))
    assert space.blocked is None
    assert space.caps == ()
    count = len(setting(target).config.targets)
    problem = formulated(space, np.full((count, len(space.units.units)), 1e-6))
    assert problem.states == 1 + count


def test_states_that_would_be_too_many_are_reported(setting):
    target = "dnnl, llvm, dnnl -num-cores=1, llvm -num-cores=1, onnxruntime"
    space = make_space(setting(target))
    assert space.blocked is None
    (cap,) = space.caps
    assert cap.startswith(f"the search tells {MOST_STATES} states of tensors apart: with 5 targets")
    problem = formulated(space, np.full((5, len(space.units.units)), 1e-6))
    assert problem.states == MOST_STATES


def test_a_problem_of_one_of_them_has_no_such_state(space):
    units = range(len(space.units.units))
    model = TargetModel(1e-9, 1e-9, dict.fromkeys(units, 1e-6), frozenset(units))
    facts = Facts({0: model, 2: model}, {}, frozenset(), lambda at, nbytes: 0.0, lambda unit: 0)
    assert formulate(space, facts).states == 3
