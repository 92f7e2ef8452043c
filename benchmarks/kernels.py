# SPDX-License-Identifier: Apache-2.0
"""Our kernels against ONNX Runtime's, on one thread of one process.

Times are the thread's CPU time; both sides take turns in every round, in changing order. The ratio
of a row is the median over the rounds of the peer's time over ours, so more than 1 means that we
are faster; it is printed with the second lowest and the second highest round. The geometric mean of
an area's ratios must reach its limit. Where arithmetic is what counts, the mean that kernels at the
peak of the CPU would have is printed too: no more can be reached there. Only ratios can be compared
between machines and runs.

    python benchmarks/kernels.py [area ...] [--rounds 11] [--only TEXT] [--json]

A family of kernels is a module of `kernel_rows` with a function `areas()`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.measure.racing import take_turns

if TYPE_CHECKING:
    from kernel_rows.row import Area, Row

MODULES = ("matmul", "convolution", "winograd", "memory")
"""Modules of `kernel_rows`, in the order of the table."""

BLOCK_SECONDS = 0.02
"""What one side of a round takes, about."""


def seconds_per_call(call: Callable[[], Any], calls: int) -> float:
    """Return the mean CPU seconds of a call in one block, after one that warms the caches."""
    call()
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls


def measure(row: Row, rounds: int) -> dict[str, Any]:
    """Check that both sides agree, and return the medians of one row."""
    sides = row.build()
    calls = [sides.ours, *(call for call, _ in sides.peers)]
    for call in calls:
        call()
    ours, theirs = sides.results()
    scale = float(np.max(np.abs(theirs), initial=1e-30))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=sides.tolerance * scale)
    counts = []
    for call in calls:
        once = max(seconds_per_call(call, 3), 1e-7)
        counts.append(max(1, round(BLOCK_SECONDS / once)))

    def seconds(which: int) -> float:
        return seconds_per_call(calls[which], counts[which])

    mine, *others = take_turns(range(len(calls)), seconds, rounds).values()
    peer = [
        sum(t * weight for t, (_, weight) in zip(times, sides.peers, strict=True))
        for times in zip(*others, strict=True)
    ]
    ratios = sorted(b / a for a, b in zip(mine, peer, strict=True))
    return {
        "area": row.area,
        "name": row.name,
        "microseconds": statistics.median(mine) * 1e6,
        "peer_microseconds": statistics.median(peer) * 1e6,
        "speed": row.work / statistics.median(mine) / 1e9,
        "unit": row.unit,
        "ratio": statistics.median(ratios),
        "low": ratios[min(1, len(ratios) - 1)],
        "high": ratios[max(-2, -len(ratios))],
    }


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, values)))


def run_area(area: Area, rounds: int, only: str, *, is_quiet: bool) -> dict[str, Any] | None:
    """Measure an area's rows, print them unless quiet, and return them with their mean."""
    rows = [row for row in area.rows if only in row.name]
    if not rows:
        return None
    done = []
    for row in rows:
        measured = measure(row, rounds)
        done.append(measured)
        if not is_quiet:
            print(
                f"{row.area:12} {row.name:34} {measured['microseconds']:10.1f} "
                f"{measured['peer_microseconds']:10.1f} {measured['speed']:8.1f} {row.unit:8}"
                f"{measured['ratio']:6.2f}  [{measured['low']:.2f}, {measured['high']:.2f}]",
                flush=True,
            )
    mean = geometric_mean([measured["ratio"] for measured in done])
    peak = area.peak() if area.peak else None
    at_peak = None
    if peak:
        at_peak = geometric_mean(
            [measured["ratio"] * peak / measured["speed"] for measured in done]
        )
    passed = area.least is None or mean >= area.least
    if not is_quiet:
        limit = "" if area.least is None else f", at least {area.least:.2f}: "
        verdict = "" if area.least is None else ("passed" if passed else "FAILED")
        print(f"{area.name:12} geometric mean {mean:.3f}{limit}{verdict}")
        if peak:
            unit = done[0]["unit"]
            print(f"{'':12} at this CPU's {peak:.1f} {unit} it would be {at_peak:.3f}")
        print(flush=True)
    summary = {"area": area.name, "mean": mean, "least": area.least, "passed": passed}
    return {**summary, "peak": peak, "mean_at_peak": at_peak, "rows": done}


def main() -> int:
    """Measure, print, and return 1 if an area misses its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("area", nargs="*", help="areas to measure; all without any")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    areas: list[Area] = []
    for name in MODULES:
        areas += import_module(f"kernel_rows.{name}").areas()
    names = [area.name for area in areas]
    if unknown := set(options.area) - set(names):
        parser.error(f"no area {sorted(unknown)}; there are {names}")
    if not options.json:
        print(f"{platform.platform()}, Python {platform.python_version()}, one thread")
        print(
            f"{'area':12} {'row':34} {'ours us':>10} {'peer us':>10} {'speed':>8} {'':8}"
            f"{'ratio':>6}  [low, high]"
        )
    done = []
    for area in areas:
        if options.area and area.name not in options.area:
            continue
        area_result = run_area(area, options.rounds, options.only, is_quiet=options.json)
        done += [area_result] if area_result else []
    passed = all(area_result["passed"] for area_result in done)
    if options.json:
        print(json.dumps({"machine": platform.platform(), "areas": done, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
