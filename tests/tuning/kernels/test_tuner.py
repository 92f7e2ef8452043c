# SPDX-License-Identifier: Apache-2.0
"""Which schedule a tuner takes, by made-up times; and that every candidate computes the same."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from intarsia.codegen.body import Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import conv, conv_plain, depthwise, gemm, pool, winograd
from intarsia.codegen.kernels.families import candidates, tunable_family
from intarsia.codegen.kernels.pool.combination import PoolKind
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.lower.schedules import ScheduleChoice, Schedules, choice_of, key_of, none
from intarsia.codegen.unit import AVX2
from intarsia.errors import SettingError
from intarsia.native.chunks import chunk_count
from intarsia.native.machine import NativeCpu, host_machine
from intarsia.native.schedule_table import ScheduleTable, TunedSchedule
from intarsia.native.work import count_work
from intarsia.tuning.kernels.contest import NativeContest
from intarsia.tuning.kernels.tuner import tune_kernel, tune_kernels

LANES = 8


def blocked(channels, height, width):
    shape = (1, channels // LANES, height, width, LANES)
    return shape, Layout("float32", row_major(shape), 64)


def direct(channels=24, size=7):
    window = Window((size, size), (3, 3), (1, 1), (1, 1))
    (_, x), (_, y) = blocked(channels, size + 2, size + 2), blocked(channels, size, size)
    return conv.Conv(1, 1, channels, channels, window, x, y, x_block=LANES, unit=AVX2)


def by_winograd(outputs=2, channels=24, size=7):
    spec = direct(channels, size)
    extents = (1, 1, channels, channels, spec.window, spec.x, spec.y)
    return winograd.Winograd(*extents, outputs=outputs, unit=AVX2)


def per_channel():
    window = Window((5, 5), (3, 3), (2, 2), (1, 1))
    (_, x), (_, y) = blocked(16, 11, 11), blocked(16, 5, 5)
    return depthwise.Depthwise(1, 16, 16, 16, window, x, y, unit=AVX2)


def plain():
    window = Window((5, 9), (3, 2), (1, 1), (1, 1))
    x, y = (Layout("float32", row_major(shape)) for shape in ((1, 3, 7, 10), (1, 5, 5, 9)))
    return conv_plain.PlainConv(1, 1, 3, 5, window, x, y, unit=AVX2)


def product(is_packed=True, m=13, k=21):
    n = 37
    a, b, c = (Layout("float32", (columns, 1)) for columns in (k, n, n))
    return gemm.Gemm(m, n, k, a, gemm.Panels() if is_packed else b, c, unit=AVX2)


def pooling():
    window = Window((6, 6), (3, 3), (2, 2), (1, 1))
    (_, x), (_, y) = blocked(16, 12, 12), blocked(16, 6, 6)
    pads = ((1, 1), (1, 1))
    return pool.Pool(1, 16, (12, 12), x, y, PoolKind.MAX, window, pads, block=LANES, unit=AVX2)


SPECS = {
    "direct": (direct(), conv),
    "winograd": (by_winograd(), winograd),
    "depthwise": (per_channel(), depthwise),
    "plain": (plain(), conv_plain),
    "direct in chunks": (direct(256, 5), conv),
    "packed product": (product(), gemm),
    "deep packed product": (product(m=40, k=2100), gemm),
    "deep product": (product(False, m=40, k=2100), gemm),
    "product": (product(False), gemm),
    "pooling": (pooling(), pool),
}


@pytest.mark.parametrize("name", SPECS)
def test_candidates_change_no_bit(run_kernel, name):
    spec, module = SPECS[name]
    schedules = candidates(spec)
    assert schedules[0] == tunable_family(spec).schedule(spec)
    assert len(schedules) == len(set(schedules)) > 2
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(_weights_shape(spec)).astype(np.float32)
    values, results = {}, []
    for schedule in schedules:
        tuned = replace(spec, schedule=schedule)
        function = module.build(tuned)
        arrays = []
        for buffer in function.buffers:
            if buffer.name == "w":
                arrays.append(module.pack(tuned, weights))
            elif buffer.name == "b" and isinstance(spec.b, gemm.Panels):
                arrays.append(gemm.pack(tuned, weights))
            else:
                shape = tuple(buffer.shape)
                fresh = rng.standard_normal(shape).astype(np.float32)
                array = np.zeros(shape, np.float32) if buffer.is_written else fresh
                arrays.append(values.setdefault(buffer.name, array))
        done = run_kernel(function, arrays, interpreted=False)
        written = [b.is_written for b in function.buffers].index(True)
        results.append(done[written].reshape(-1).copy())
    assert np.any(results[0])
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))


def test_some_of_these_sum_in_parts():
    assert conv.schedule(SPECS["direct in chunks"][0]).chunk
    assert gemm.schedule(SPECS["deep packed product"][0]).depth
    assert gemm.schedule(SPECS["deep product"][0]).depth


def test_candidates_keep_no_more_than_a_thread_may():
    x = y = Layout("float32", row_major((8, 256, 16, 16, LANES)), 64)
    window = Window((14, 14), (3, 3), (1, 1), (1, 1))
    spec = winograd.Winograd(8, 1, 2048, 2048, window, x, y, outputs=4, unit=AVX2, threads=6)
    found = candidates(spec)
    assert {schedule.shares for schedule in found} >= {1, 2, 4, 6}
    for schedule in found:
        function = winograd.build(replace(spec, schedule=schedule))
        nbytes = sum(4 * np.prod(buffer.shape) for buffer in function.locals)
        assert nbytes <= winograd.SCRATCH_BYTES


def _weights_shape(spec):
    if isinstance(spec, gemm.Gemm):
        return (spec.k, spec.n)
    if isinstance(spec, pool.Pool):
        return (1,)
    if isinstance(spec, depthwise.Depthwise):
        return (spec.out_channels, 1, *spec.window.kernel)
    return (spec.out_channels, spec.in_channels, *spec.window.kernel)


class FakeContest:
    """Times by number; a number of `lucky` is fast in the first rounds only."""

    def __init__(self, times, lucky=(), noise=0.0):
        self.times, self.lucky, self.noise = times, lucky, noise
        self.calls = dict.fromkeys(range(len(times)), 0)
        self.random = Random(5)
        self.is_closed = False

    def seconds(self, candidate):
        self.calls[candidate] += 1
        is_lucky = candidate in self.lucky and self.calls[candidate] <= 7
        factor = 0.5 if is_lucky else 1 + self.noise * self.random.uniform(-1, 1)
        return self.times[candidate] * factor

    def close(self):
        self.is_closed = True


def tuned(times_of, **options):
    made = []

    def prepare(specs):
        made.append(FakeContest([times_of(n) for n in range(len(specs))], **options))
        return made[-1]

    entry = tune_kernel([direct()], prepare, Random(1))
    assert made[0].is_closed
    return entry


def test_the_fastest_replaces_the_heuristic():
    entry = tuned(lambda n: 0.8e-3 if n == 3 else 1e-3, noise=0.02)
    assert entry.choice.schedule == choice_of_number(3)
    assert entry.ratio == pytest.approx(1.25, rel=0.03)
    assert 1.2 < entry.low <= entry.ratio <= entry.high < 1.3
    assert entry.microseconds == pytest.approx(1000, rel=0.03)


def choice_of_number(number):
    spec = direct()
    return choice_of(replace(spec, schedule=candidates(spec)[number])).schedule


@pytest.mark.parametrize(
    ("times_of", "options"),
    [
        (lambda n: 1e-3, {"noise": 0.1}),
        (lambda n: 1e-3 if n == 0 else 1.1e-3, {"noise": 0.01}),
        (lambda n: 1e-3, {"lucky": (2, 4)}),
        (lambda n: 0.995e-3 if n else 1e-3, {}),
    ],
    ids=["noise", "slower", "luck", "too little"],
)
def test_the_heuristic_stays_unless_one_is_faster_for_certain(times_of, options):
    assert tuned(times_of, **options).choice is None


def test_known_results_are_kept_when_it_is_interrupted_or_out_of_time():
    kept, moments = {}, []

    def prepare(specs):
        if len(kept) == 2:
            raise KeyboardInterrupt
        return FakeContest([1e-3] * len(specs))

    def jobs(prepare):
        return {f"kernel {n}": partial(tune_kernel, [direct()], prepare) for n in range(4)}

    with pytest.raises(KeyboardInterrupt):
        tune_kernels(jobs(prepare), keep=kept.__setitem__, tell=moments.append)
    assert list(kept) == ["kernel 0", "kernel 1"]
    assert [moment.done for moment in moments] == [0, 1, 1, 2, 2]

    time = iter(range(100))
    kept.clear()
    done = tune_kernels(
        jobs(lambda specs: FakeContest([1e-3] * len(specs))),
        keep=kept.__setitem__,
        tell=moments.append,
        budget=3,
        clock=lambda: next(time),
    )
    assert done == len(kept) == 2


def test_real_candidates_run():
    for specs in ([direct(), by_winograd()], [product()], [pooling()]):
        every = [replace(spec, schedule=one) for spec in specs for one in candidates(spec)[:2]]
        contest = NativeContest(every, host_machine(), 2)
        assert all(contest.seconds(number) > 0 for number in range(len(every)))
        contest.close()


def test_candidates_are_cut_as_calls_of_a_run_are():
    """By what the call is known to do: counting misses loops at edges, or counts them too often."""
    window = Window((9, 9), (3, 3), (1, 1), (1, 1))
    shapes = [(1, 4, 9, 9, LANES), (1, 2, 58, 58, LANES), (1, 2, 56, 56, LANES)]
    small, x, y = (Layout("float32", row_major(shape), 64) for shape in shapes)
    pads = ((1, 1), (1, 1))
    specs = [
        pool.Pool(1, 32, (9, 9), small, small, PoolKind.MAX, window, pads, block=LANES, unit=AVX2),
        depthwise.Depthwise(1, 16, 16, 16, replace(window, out=(56, 56)), x, y, unit=AVX2),
    ]
    functions = [pool.build(specs[0]), depthwise.build(specs[1])]
    counts = [chunk_count(f.extent, count_work(f, AVX2), 2) for f in functions]
    assert counts == [8, 2]
    assert NativeContest(specs, host_machine(), 2).chunks == [1, 4]


def entry_of(choice):
    return TunedSchedule(choice, 1.2, 1.1, 1.3, 9, 100.0)


def test_a_table_keeps_entries_by_cpu_and_threads(tmp_path, caplog):
    table = ScheduleTable(tmp_path / "cache", NativeCpu("", "haswell", "+avx2"), 2)
    assert table.entries() == {}
    first, second = ScheduleChoice("direct", {"pixels": 6}), ScheduleChoice("F(2)", {"rows": 1})
    table.add({"a": entry_of(first), "b": entry_of(None)})
    table.add({"c": entry_of(second)})
    assert table.entries() == {"a": entry_of(first), "b": entry_of(None), "c": entry_of(second)}
    assert dict(table.schedules().choices) == {"a": first, "c": second}
    others = [(NativeCpu("", "haswell", "+avx2"), 1), (NativeCpu("", "haswell", ""), 2)]
    for cpu, threads in others:
        assert ScheduleTable(tmp_path / "cache", cpu, threads).entries() == {}
    assert not caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"",
        b'{"about": {"cpu": "\xff"}, "entries": {}}',
        b'{"about": {}, "entries": {"a": {"choice": {"algorithm": "direct", "schedule": '
        + b"[" * 100_000,
        b'{"about": {}, "entries": {"a": {"choice": null, "ratio": 0, "low": 0, "high": 0, '
        b'"candidates": 2, "microseconds": 3}}}',
    ],
    ids=["cut", "empty", "no text", "deep", "no ratio"],
)
def test_a_damaged_table_is_as_good_as_none(tmp_path, caplog, content):
    table = ScheduleTable(tmp_path / "cache", NativeCpu("", "haswell", "+avx2"), 2)
    table.add({"a": entry_of(ScheduleChoice("direct", {"pixels": 6}))})
    table.file.write_bytes(content)
    assert table.entries() == {}
    assert dict(table.schedules().choices) == {}
    assert "cannot be read" in caplog.text
    table.add({"b": entry_of(None)})
    assert table.entries() == {"b": entry_of(None)}


def test_a_damaged_table_is_told_once_until_it_is_read_again(tmp_path, caplog):
    table = ScheduleTable(tmp_path / "cache", NativeCpu("", "haswell", "+avx2"), 2)
    for _ in range(2):  # it is mended, and damaged in the same way once more
        table.add({"a": entry_of(None)})
        assert table.entries()
        table.file.write_bytes(b"{")
        caplog.clear()
        for _ in range(3):
            assert table.entries() == {}
        assert caplog.text.count("cannot be read") == 1


def test_a_table_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    table = ScheduleTable(tmp_path / "cache", NativeCpu("", "haswell", "+avx2"), 2)
    table.add({"a": entry_of(None)})

    def refuse(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(SettingError, match=r"cannot be kept in .*No space left"):
            table.add({"b": entry_of(None)})
    assert table.entries() == {"a": entry_of(None)}
    assert list(table.file.parent.iterdir()) == [table.file]


def test_a_choice_is_used_only_where_it_may_be():
    spec, other = direct(), by_winograd()
    faster = choice_of(replace(other, schedule=candidates(other)[1]))
    table = Schedules({key_of([spec, other]): faster})
    chosen = table.choose(spec, lambda: [other])
    assert isinstance(chosen, winograd.Winograd)
    assert chosen.schedule == candidates(other)[1]
    assert table.choose(spec, none) is spec  # Winograd is not allowed, so the key is another
    assert table.choose(direct(32), lambda: [by_winograd(channels=32)]).schedule is None
    strange = ScheduleChoice("direct", {"pixels": 10**9})
    assert Schedules({key_of([spec]): strange}).choose(spec, none) is spec
