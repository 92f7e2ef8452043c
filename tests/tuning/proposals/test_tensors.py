# SPDX-License-Identifier: Apache-2.0
"""Copies in the search: what they cost with inputs and outputs in the memory of a device."""

import random
from itertools import product

import pytest

import intarsia
from intarsia.errors import LockError
from intarsia.place.decide import decide_as_chosen
from intarsia.place.schedule import make_draft
from intarsia.plan.lock import lock_plan, write_lock
from intarsia.search.solve import solve
from intarsia.settings import Settings
from intarsia.tuning.costing.cost_table import KeyMaker
from intarsia.tuning.costing.formulation import Facts, formulate
from intarsia.tuning.costing.model import TargetModel
from intarsia.tuning.proposals.space import make_space

FAKES = "fake:0, fake:1, reference"
GRAPH = """
g (float[2,3] a, float[2,3] b, float[2,3] c) => (float[2,3] x, float[2,3] y, float[2,3] z) {
    ["one"] x = Add(a, b) ["two"] t = Neg(x) ["three"] y = Mul(t, c) ["four"] u = Tanh(a)
    ["five"] z = Sub(u, t)
}
"""
BORDERS = ["input:a", "input:b", "input:c", "output:x", "output:y", "output:z"]
CHAIN = """
g (float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d) => (float[2,3] z) {
    ["one"] s = Add(a, b) ["two"] t = Mul(s, c) ["three"] z = Sub(t, d)
}
"""


def machines():
    """Return targets of which two have memories of their own, of each kind that works here."""
    from intarsia.backends.registry import load_backends

    opencl = load_backends(Settings.from_environment()).by_name["opencl"].detect().targets
    return [FAKES, *(["opencl, fake:0, onnxruntime"] if opencl else [])]


def copy_seconds(position, nbytes):
    """What copies cost in these tests: the third target is in the host's memory."""
    return (3.0, 5.0, 0.0)[position]


def copied_by_plan(setting, calls):
    """Return the cost of the copies that a plan really makes: the independent reference."""
    plan = make_draft(setting, decide_as_chosen(setting, calls)).plan
    places = {"cpu:0": 0.0}
    for target, seconds in zip(setting.targets, (3.0, 5.0, 0.0), strict=True):
        device_type, number, scope = setting.constraints.domains[target]
        name = f"{intarsia.target.DeviceType(device_type).name.lower()}:{number}"
        places[f"{name}/{scope}" if scope else name] = seconds
    of = {i: places[plan.devices[tensor.device]] for i, tensor in enumerate(plan.tensors)}
    return sum(of[step.source] + of[step.destination] for step in plan.copies)


def drawn(names, targets, rng):
    """Return for some names a target of the first two."""
    devices = targets.split(", ")[:2]
    return {name: rng.choice(devices) for name in names if rng.random() < 0.5}


@pytest.mark.parametrize("targets", machines())
@pytest.mark.parametrize("seed", range(30))
def test_a_plan_is_charged_for_the_copies_that_it_makes(seed, targets, parse_model, setting_of):
    rng = random.Random(seed)
    said = drawn(BORDERS, targets, rng)
    setting = setting_of(intarsia.on_device(parse_model(GRAPH), said), targets)
    space = make_space(setting)
    calls = tuple((rng.randrange(3), (node,)) for node in range(len(setting.graph.nodes)))
    plan = [(position, space.units.nodes_of(nodes)) for position, nodes in calls]
    charged = space.copied_in(plan, copy_seconds)
    assert charged == copied_by_plan(setting, calls), said


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_the_best_place_of_a_chain(seed, parse_model, setting_of):
    rng = random.Random(seed)
    said = drawn([f"input:{name}" for name in "abcd"] + ["output:z"], FAKES, rng)
    setting = setting_of(intarsia.on_device(parse_model(CHAIN), said), FAKES)
    space = make_space(setting)
    seconds = [{unit: rng.uniform(1, 9) for unit in range(3)} for _ in range(3)]
    models = {
        position: TargetModel(0.0, 0.0, own, frozenset(own)) for position, own in enumerate(seconds)
    }
    facts = Facts(models, {}, frozenset(), copy_seconds, lambda unit: 0)
    found = solve(formulate(space, facts))

    def total(places):
        plan = [(position, (unit,)) for unit, position in enumerate(places)]
        copies = space.copied_in(plan, copy_seconds)
        return copies + sum(seconds[position][unit] for unit, position in enumerate(places))

    best = min(product(range(3), repeat=3), key=total)
    assert found.seconds == pytest.approx(total(best)), (said, best)


def test_a_measured_region_pays_for_its_copies_and_for_none_at_home(parse_model, setting_of):
    names = [f"input:{name}" for name in "abcd"]
    for said, copies in [([], 5), (names, 1), ([*names, "output:z"], 0)]:
        model = intarsia.on_device(parse_model(CHAIN), dict.fromkeys(said, "fake:0"))
        space = make_space(setting_of(model, FAKES))
        own = TargetModel(0.0, 0.0, dict.fromkeys(range(3), 9.0), frozenset(range(3)))
        facts = Facts({0: own}, {(0, (0, 1, 2)): 1.0}, frozenset(), copy_seconds, lambda unit: 0)
        assert solve(formulate(space, facts)).seconds == pytest.approx(1.0 + 3.0 * copies)


@pytest.mark.parametrize("is_absent", [False, True])
def test_where_tensors_are_at_home_decides_who_runs_the_model(is_absent, parse_model):
    slow = "fake:0 -cost=*:1e-3 -copy-cost=5e-3,0 -call-cost=1e-5 -estimate=1"
    fast = "fake:1 -cost=*:5e-4 -copy-cost=5e-3,0 -call-cost=1e-5 -estimate=1"
    model = parse_model(CHAIN.replace("2,3", "512,1024"))
    names = [*(f"input:{name}" for name in "abcd"), "output:z"]
    at_home = intarsia.on_device(model, dict.fromkeys(names, slow))
    placed = []
    for one in (model, at_home):
        if is_absent:
            placed.append(planned(one, f"{slow}, {fast}"))
        else:
            exe = intarsia.tune(one, f"{slow}, {fast}")
            placed.append({region.device for region in exe.placement.regions})
    assert placed == [{"ext_dev:1/fake"}, {"ext_dev:0/fake"}]


def planned(model, targets):
    """Return the devices of a plan that is made without measuring."""
    from intarsia.backends.registry import load_backends
    from intarsia.place.machine import Machine
    from intarsia.place.request import Request
    from intarsia.place.setting import make_setting
    from intarsia.plan.devices import domain_text
    from intarsia.target import CompilationConfig
    from intarsia.tuning.absent.absent import plan_absent
    from intarsia.tuning.options import Options

    setting = make_setting(
        Request(model=model, num_threads=1, is_here=False),
        Machine(CompilationConfig.resolve(targets), load_backends(Settings.from_environment())),
    )
    calls, _ = plan_absent(setting, Options())
    domains = setting.constraints.domains
    return {domain_text(domains[setting.targets[position]]) for position, _ in calls}


def test_what_was_found_for_the_host_is_not_found_for_a_device(parse_model, setting_of, tmp_path):
    model = parse_model(CHAIN)
    at_home = intarsia.on_device(model, {"input:a": "fake:0"})
    elsewhere = intarsia.on_device(model, {"input:a": "fake:1"})
    settings = [setting_of(one, FAKES) for one in (model, at_home, elsewhere)]
    assert len({setting.constraints.digest for setting in settings}) == 3
    for calls in [((0, (0, 1, 2)),), ((0, (0, 1)), (2, (2,)))]:
        assert len({KeyMaker(setting).key(calls) for setting in settings}) == 3
    part = ((0, (0, 1)),)  # is the same wherever the model's inputs are
    assert len({KeyMaker(setting).key(part) for setting in settings}) == 1
    lock = tmp_path / "plan.lock.json"
    write_lock(lock_plan(intarsia.compile(at_home, FAKES).plan), lock)
    intarsia.compile(at_home, FAKES, frozen=lock)
    with pytest.raises(LockError, match="pins, annotations or exclusions changed"):
        intarsia.compile(model, FAKES, frozen=lock)


def test_two_targets_in_one_memory_copy_nothing_between_them(parse_model, setting_of):
    space = make_space(setting_of(parse_model(CHAIN), "llvm, onnxruntime"))
    plan = [(0, (0,)), (1, (1, 2))]
    assert space.memories == (0, 0)
    assert space.copied_in(plan, copy_seconds) == 0.0
