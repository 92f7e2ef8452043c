# SPDX-License-Identifier: Apache-2.0
"""How many rounds a benchmark takes, and what its intervals say, told without a clock."""

import random
from math import exp

import pytest

from intarsia.backends.registry import load_backends
from intarsia.bench import compare as compare_module
from intarsia.bench.compare import (
    ALPHA,
    BenchVerdict,
    Effort,
    Peer,
    Series,
    Timed,
    compare,
    compare_twins,
)
from intarsia.bench.models import make_bench_model
from intarsia.measure.racing import Ratio
from intarsia.process.workers import CallOutcome
from intarsia.settings import Settings

SERIES = Series(1.0, 1.0, 1.0, 0, 0.0)


def test_rounds_are_doubled_up_to_the_most():
    assert Effort(7).looks == (7,)
    assert Effort(7, 7).looks == (7,)
    assert Effort(7, 3).looks == (7,)
    assert Effort(7, 50).looks == (7, 14, 28, 50)


@pytest.mark.parametrize(
    ("low", "high", "is_open"),
    [
        (0.95, 1.05, True),
        (0.985, 0.995, False),  # narrow enough
        (1.00, 1.20, False),  # above the bar
        (0.80, 0.98, False),  # below it
        (0.0, float("inf"), True),
    ],
)
def test_more_rounds_are_needed_where_a_wide_interval_contains_the_bar(low, high, is_open):
    assert Effort(7, 56, bar=0.99).is_open(Ratio(0.99, low, high, 7)) is is_open


def test_without_a_bar_every_wide_interval_asks_for_more():
    assert Effort(7, 56).is_open(Ratio(1.1, 1.05, 1.15, 7))
    assert not Effort(7, 56).is_open(Ratio(1.1, 1.095, 1.105, 7))


def test_the_looks_share_the_error():
    generator = random.Random(0)
    ours = [1.0] * 28
    theirs = [exp(generator.gauss(0, 0.1)) for _ in ours]
    one, many = Effort(28).ratio(theirs, ours), Effort(7, 28).ratio(theirs, ours)
    assert one.value == many.value
    assert many.low <= one.low < one.high <= many.high
    assert many.high - many.low > one.high - one.low
    assert 0 < ALPHA < 1


def test_a_bar_inside_the_interval_is_not_clear():
    assert Peer(1.00, 0.98, 1.02, SERIES).against(0.99) is BenchVerdict.UNCLEAR
    assert Peer(1.00, 0.99, 1.02, SERIES).against(0.99) is BenchVerdict.MET
    assert Peer(0.97, 0.95, 0.985, SERIES).against(0.99) is BenchVerdict.BELOW


class Stopwatch:
    """Stands for the calls into processes: blocks last what a list says."""

    def __init__(self, monkeypatch, seconds):
        self.seconds = {name: iter(rows) for name, rows in seconds.items()}
        self.blocks = dict.fromkeys(seconds, 0)
        monkeypatch.setattr(compare_module, "call_worker", self.call)

    def call(self, workers, name, function, *arguments, **options):
        assert name in workers
        if function == "run_block":
            self.blocks[name] += 1
            return CallOutcome([next(self.seconds[name])])
        return CallOutcome(0 if function == "read_outputs" else {"set_up_seconds": 0.0})


def noisy(seed, spread, count=100):
    generator = random.Random(seed)
    return [exp(generator.gauss(0, spread)) for _ in range(count)]


@pytest.mark.parametrize(("spread", "rounds"), [(0.001, 7), (0.2, 28)])
def test_a_race_goes_on_only_while_it_is_unclear(monkeypatch, spread, rounds):
    watch = Stopwatch(monkeypatch, {"ours": noisy(1, spread), "peer": noisy(2, spread)})
    runners = {name: compare_module.SubjectSetup("set_up", ()) for name in watch.blocks}
    found = compare_module.time_in_turn(runners, {}, Effort(7, 28, bar=1.0), lambda *_: None)
    assert watch.blocks == dict.fromkeys(watch.blocks, rounds)
    assert [len(row) for row in found.blocks.values()] == [rounds] * 2


def test_a_peer_can_be_compared_with_itself(tmp_path, parse_model):
    model = parse_model("""net (float[1,8] x) => (float[1,8] y) { y = Relu(x) }""")
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    made = make_bench_model(path, tmp_path)
    peer = compare_twins(made, "onnxruntime", threads=1, rounds=2)
    assert 0 < peer.low <= peer.ratio <= peer.high
    assert (
        peer.series.facts["version"]
        == load_backends(Settings.from_environment()).named("onnxruntime").version()
    )
    found = compare(made, "onnxruntime", ("onnxruntime",), threads=1, rounds=1, most_rounds=2)
    assert found.rounds in (1, 2)


def test_the_interval_of_few_rounds_is_wider_than_what_was_seen():
    effort = Effort(2)
    blocks = {"intarsia": [1.0, 1.0], "other": [1.0, 1.02]}
    found = Timed(blocks, {}, {}, {}, {}, {})
    peer = compare_module._peer(found, "other", effort, SERIES)
    assert peer.low < 1.0
    assert peer.high > 1.02
    assert peer.against(0.99) is BenchVerdict.UNCLEAR
