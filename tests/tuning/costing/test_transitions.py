# SPDX-License-Identifier: Apache-2.0
"""What lies between regions: copies by size, empty calls, and borders in place."""

import math

import pytest

from intarsia.graph.region import Region
from intarsia.tuning.costing.boundaries import measure_boundary, measure_calls, measure_copies
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import Probe

COSTS = "-cost=MatMul:5e-3,Relu:1e-3,Sigmoid:2e-3,Tanh:3e-3,Add:4e-3 -fusion=0.5"
SIZES = (1024, 65536, 1 << 20)


@pytest.fixture(scope="module")
def laboratory(chain_model, setting_of):
    target = (
        f"fake:0 {COSTS} -call-cost=1e-4 -copy-cost=1e-5,1e-9, "
        f"fake:1 {COSTS} -call-cost=3e-4 -copy-cost=2e-5,3e-9"
    )
    with Laboratory(setting_of(chain_model, target)) as made:
        yield made


def test_copies_cost_what_their_devices_say_by_size(laboratory):
    tables = measure_copies(laboratory, sizes=SIZES, rounds=2)
    host, one, other = "cpu:0", "ext_dev:0/fake", "ext_dev:1/fake"
    assert tables.keys() == {
        *((host, host), (host, one), (host, other)),
        *((one, host), (one, other), (other, host), (other, one)),
    }
    for nbytes in SIZES:
        assert tables[host, one].seconds(nbytes) == pytest.approx(1e-5 + 1e-9 * nbytes)
        assert tables[other, host].seconds(nbytes) == pytest.approx(2e-5 + 3e-9 * nbytes)
        both = 3e-5 + 4e-9 * nbytes
        assert tables[one, other].seconds(nbytes) == pytest.approx(both)
    assert 0 < tables[host, host].seconds(1 << 20) < math.inf


def test_a_call_of_nothing_costs_the_call(laboratory):
    calls = measure_calls(laboratory, rounds=2)
    assert calls == pytest.approx({0: 1.1e-3, 1: 1.3e-3})  # and the one operator


def test_a_boundary_on_one_device_costs_nothing(laboratory):
    pair = Probe.region(0, [0]), Probe.region(0, [1])
    boundary = measure_boundary(laboratory, *pair, rounds=3)
    assert boundary.change_seconds == pytest.approx([0] * 3, abs=1e-12)
    samples = boundary.samples("session")
    assert [sample.seconds for sample in samples] == pytest.approx([0] * 3, abs=1e-12)
    assert {sample.anchor for sample in samples} == {""}


def test_between_two_devices_the_border_costs_its_copies(laboratory):
    pair = Probe.region(0, [0]), Probe.region(1, [1])
    boundary = measure_boundary(laboratory, *pair, rounds=2)
    copies = 3e-5 + 4e-9 * 32
    assert boundary.seconds == pytest.approx(copies)


def test_a_border_in_the_middle_of_all_nodes_costs_no_more_copies(laboratory):
    graph, count = laboratory.setting.graph, len(laboratory.setting.graph.nodes)
    crossing = len(Region.of(graph, range(2)).outputs)
    pair = Probe.region(0, range(2)), Probe.region(1, range(2, count))
    boundary = measure_boundary(laboratory, *pair, rounds=2)
    assert boundary.seconds == pytest.approx(crossing * (3e-5 + 4e-9 * 32))
    own = Probe.region(0, range(2)), Probe.region(0, range(2, count))
    boundary = measure_boundary(laboratory, *own, rounds=2)
    assert boundary.change_seconds == pytest.approx([0] * 2, abs=1e-12)


def test_real_backends_have_empty_calls_and_boundaries(parse_model, setting_of):
    model = parse_model(
        """net (float[1,64] x, float[64,64] w) => (float[1,64] y)
        { a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) y = Relu(c) }"""
    )
    with Laboratory(setting_of(model, "openvino, llvm, onnxruntime")) as laboratory:
        calls = measure_calls(laboratory, rounds=3)
        assert calls.keys() == {0, 1, 2}
        assert all(0 < seconds < math.inf for seconds in calls.values())
        for after in (Probe.region(2, [2]), Probe.region(1, [2, 3])):
            boundary = measure_boundary(laboratory, Probe.region(2, [0, 1]), after, rounds=3)
            assert len(boundary.change_seconds) == 3
            assert not boundary.race.refusals
