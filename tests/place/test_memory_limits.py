# SPDX-License-Identifier: Apache-2.0
"""Devices hold no more constants than the user allows, whoever places."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.errors import PlacementError
from intarsia.search import solve as solving

KILO = 64 * 64 * 4
"""Bytes of the weights of one layer."""

FAST = "fake -cost=*:1e-5"
ROOM = f"{FAST} -max_memory={2 * KILO}"
SLOW = "fake:1 -cost=*:1e-3"


@pytest.fixture(scope="module")
def model():
    """Four products with weights of 16 KiB each; the last one has those of the first."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.1, (64, 64)).astype(np.float32), f"w{i}")
        for i in range(3)
    ]
    values = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("MatMul", [values[i], f"w{i % 3}"], [values[i + 1]], name=f"layer{i}")
        for i in range(4)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(params=[True, False], ids=["ortools", "eliminations"])
def solver(request, monkeypatch):
    """With and without OR-Tools."""
    if request.param:
        pytest.importorskip("ortools")
    monkeypatch.setattr(solving, "cpsat_is_available", lambda: request.param)


def where(exe):
    """The text of the target of each node."""
    return {node.name: region.target for region in exe.placement.regions for node in region.nodes}


def held(exe, target):
    """The bytes of distinct weights of the nodes on a target."""
    names = [name for name, placed in where(exe).items() if placed.startswith(target)]
    return KILO * len({int(name.removeprefix("layer")) % 3 for name in names})


def test_greedy_placement_fills_a_device_and_goes_on_elsewhere(
    model, random_feeds, evaluate, assert_same
):
    exe = intarsia.compile(model, f"{ROOM}, reference", placement="greedy")
    assert held(exe, "fake") == 2 * KILO
    assert all("fake" in where(exe)[name] for name in ("layer0", "layer1"))
    refused = [item for item in exe.placement.refusals if item.node == "layer2"]
    assert refused[0].code == "user"
    assert "max_memory=32768 leaves 0 on" in refused[0].reason
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_weights_that_are_there_already_take_no_room(model):
    exe = intarsia.compile(model, f"{ROOM}, reference", placement="greedy")
    assert "fake" in where(exe)["layer3"]  # it reads the weights of layer0


def test_a_pin_beyond_the_limit_is_an_error_that_names_it(model):
    with pytest.raises(PlacementError, match="max_memory=32768 leaves 0") as caught:
        intarsia.compile(model, f"{ROOM}, reference", pins={"layer*": ROOM})
    assert caught.value.node == "layer2"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("solver")
def test_the_search_keeps_within_the_memory_of_a_device(
    model, tmp_path, random_feeds, evaluate, assert_same
):
    options = {"costs": str(tmp_path / "costs.sqlite"), "num_threads": 1}
    free = intarsia.tune(model, f"{FAST}, {SLOW}", **options)
    assert held(free, "fake -cost=*:1e-5") == 3 * KILO
    tight = intarsia.tune(model, f"{ROOM}, {SLOW}", **options)
    assert 0 < held(tight, "fake -cost=*:1e-5") <= 2 * KILO
    feeds = random_feeds(model)
    assert_same(tight.run(feeds), evaluate(model, feeds))


@pytest.mark.usefixtures("solver")
def test_plans_for_absent_machines_keep_within_it_too(model, backends):
    from intarsia.place.machine import Machine
    from intarsia.place.request import Request
    from intarsia.place.setting import make_setting
    from intarsia.target import CompilationConfig
    from intarsia.tuning.absent.absent import plan_without_measuring
    from intarsia.tuning.options import Options

    config = CompilationConfig.resolve(f"{ROOM} -estimate=1, {SLOW} -estimate=1")
    setting = make_setting(Request(model=model, num_threads=1), Machine(config, backends))
    calls, report = plan_without_measuring(setting, None, Options())
    on_first = {node for position, nodes in calls if position == 0 for node in nodes}
    assert on_first
    assert len({node % 3 for node in on_first}) <= 2
    for finalist in report.finalists:
        assert finalist.nodes.get(str(config.targets[0]), 0) < 4
