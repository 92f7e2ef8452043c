# SPDX-License-Identifier: Apache-2.0
"""Races of fake devices, whose clocks say exactly what their targets invented."""

import time

import pytest

from intarsia.measure import racing
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.reference import make_feeds
from intarsia.tuning.laboratory.values import Probe

COSTS = "-cost=MatMul:5e-3,Relu:1e-3,Sigmoid:2e-3,Tanh:3e-3,Add:4e-3 -call-cost=1e-4"
ALL = range(5)


@pytest.fixture(scope="module")
def laboratory(chain_model, setting_of):
    target = f"fake:0 {COSTS} -fusion=0.5 -copy-cost=1e-5,1e-7, fake:1 {COSTS} -copy-cost=1e-5,1e-7"
    with Laboratory(setting_of(chain_model, target)) as made:
        yield made


def seconds_of(laboratory, probe):
    race = laboratory.race([probe], rounds=2)
    assert not race.refusals
    first, second = race.seconds[probe]
    assert first == pytest.approx(second, rel=1e-9)
    return first


@pytest.mark.parametrize(("node", "price"), [(0, 5e-3), (1, 1e-3), (4, 4e-3)])
def test_a_node_costs_its_price_and_one_call(laboratory, node, price):
    assert seconds_of(laboratory, Probe.region(0, [node])) == pytest.approx(price + 1e-4)


def test_a_region_is_measured_as_one_and_is_not_the_sum_of_its_parts(laboratory):
    whole = seconds_of(laboratory, Probe.region(0, [0, 1]))
    assert whole == pytest.approx(5e-3 + 0.5 * 1e-3 + 1e-4)


def test_calls_in_sequence_cost_their_sum_and_the_copies_between_them(laboratory):
    apart = Probe(((0, (0,)), (1, (1,))))
    copies = 2 * (1e-5 + 1e-7 * 32)  # to the host, and on
    assert seconds_of(laboratory, apart) == pytest.approx(6e-3 + 2e-4 + copies)


def test_a_whole_plan_pays_for_its_ends_too(laboratory):
    plan = Probe.region(1, ALL)
    copies = 3 * (1e-5 + 1e-7 * 32)  # one input, two outputs
    assert seconds_of(laboratory, plan) == pytest.approx(15e-3 + 1e-4 + copies)


def measure_in(laboratory):
    return lambda probes, rounds: laboratory.race(probes, rounds=rounds).seconds


def test_a_race_finds_the_cheapest_and_drops_the_others_early(laboratory):
    mixed = Probe(((0, (0,)), (1, (1, 2, 3, 4))))
    contenders = [Probe.region(1, ALL), Probe.region(0, ALL), mixed]
    result = racing.halve(contenders, measure_in(laboratory))
    assert result.winner == contenders[1]
    assert len(result.samples[contenders[0]]) == racing.LOOKS[0]


def test_two_equal_plans_tie_and_the_first_wins(laboratory):
    one, other = Probe.region(0, [0]), Probe.region(1, [0])
    result = racing.halve([other, one], measure_in(laboratory))
    assert (result.winner, result.is_decided) == (other, True)
    assert not racing.confirm(one, [other], measure_in(laboratory)).is_accepted


def test_samples_of_a_device_with_a_clock_need_no_anchor(laboratory):
    probe = Probe.region(0, [1])
    race = laboratory.race([probe], rounds=3)
    assert len(race.anchor_seconds) == 3
    samples = race.samples(probe, "session 1")
    assert len(samples) == 3
    assert {(sample.anchor, sample.anchor_seconds) for sample in samples} == {("", 0.0)}
    assert samples[0].seconds == pytest.approx(1.1e-3)
    assert samples[0].taken_at == pytest.approx(time.time(), abs=60)
    assert samples[0].session == "session 1"


def test_alike_regions_have_one_name(laboratory):
    name = laboratory.name_of(Probe.region(0, [1]))
    assert name == laboratory.name_of(Probe.region(0, [1]))
    assert name != laboratory.name_of(Probe.region(1, [1]))
    assert name != laboratory.name_of(Probe.region(0, [2]))


def test_what_comes_out_is_what_the_model_says(laboratory, chain_model, evaluate, assert_same):
    feeds = make_feeds(laboratory.setting.graph, {}, 0)
    expected = evaluate(chain_model, feeds)
    outputs = laboratory.outputs(Probe(((0, (0, 1)), (1, (2, 3)), (0, (4,)))))
    assert_same(outputs, expected, rtol=1e-4)


def test_a_dropped_probe_is_compiled_again_when_it_is_raced(laboratory):
    probe = Probe.region(0, [3])
    laboratory.prepare([probe])
    before = laboratory.repeated
    laboratory.drop([probe, probe])  # the borders of a plan share its regions
    assert seconds_of(laboratory, probe) == pytest.approx(3.1e-3)
    assert laboratory.repeated == before + 1


def test_nothing_is_prepared_twice(laboratory):
    probe = Probe.region(0, [2])
    laboratory.prepare([probe])
    before = laboratory.prepared
    laboratory.prepare([probe, probe])
    assert laboratory.prepared == before


def test_rounds_are_handed_out_while_the_race_goes_on(laboratory):
    probe, parts = Probe.region(0, ALL), []
    race = laboratory.race([probe], rounds=60, note=parts.append)
    assert len(parts) > 1
    assert race.seconds[probe] == sum((part.seconds[probe] for part in parts), ())
    assert race.anchor_seconds == sum((part.anchor_seconds for part in parts), ())
    assert race.taken_at == sum((part.taken_at for part in parts), ())


def test_a_race_that_is_stopped_has_handed_out_what_was_done(laboratory):
    probe, parts = Probe.region(0, ALL), []

    def note(part):
        parts.append(part)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        laboratory.race([probe], rounds=60, note=note)
    assert 0 < len(parts[0].samples(probe)) < 60
