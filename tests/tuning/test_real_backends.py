# SPDX-License-Identifier: Apache-2.0
"""Probes on real backends: compiled, bound and run as in a plan, and compared."""

import math

import pytest

from intarsia.place.decide import decide_in_order
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import Probe
from intarsia.zoo import build

TARGETS = "openvino, llvm, onnxruntime"


@pytest.fixture(scope="module")
def small_net():
    return build("random:3")


@pytest.fixture(scope="module")
def laboratory(small_net, setting_of):
    with Laboratory(setting_of(small_net, TARGETS)) as made:
        yield made


def test_every_node_that_a_target_takes_computes_what_the_reference_does(laboratory):
    setting = laboratory.setting
    probes = [
        Probe.region(position, [node.id])
        for position, capability in enumerate(setting.capabilities)
        for node in setting.graph.nodes[::3]
        if node.id not in capability.refusals
    ]
    found = laboratory.prepare(probes)
    assert len(found) > len(setting.graph.nodes) // 3
    assert {one.refusal for one in found.values()} == {None}
    assert max(one.error for one in found.values()) < 1


def test_a_race_has_a_sample_of_each_in_every_round(laboratory):
    whole = range(len(laboratory.setting.graph.nodes))
    last = len(laboratory.setting.config.targets) - 1
    plan, node = Probe.region(last, whole), Probe.region(last, [0])
    race = laboratory.race([plan, node], rounds=4)
    assert not race.refusals
    assert all(0 < one < math.inf for row in race.seconds.values() for one in row)
    samples = race.samples(node)
    assert {sample.anchor for sample in samples} == {race.anchor} == {"fixed kernel 1"}
    assert [sample.anchor_seconds for sample in samples] == list(race.anchor_seconds)


def test_a_mixed_plan_runs_and_agrees(laboratory):
    calls = decide_in_order(laboratory.setting, order=(1, 2, 0)).calls(laboratory.setting.targets)
    probe = Probe(calls)
    assert laboratory.prepare([probe])[probe].refusal is None
