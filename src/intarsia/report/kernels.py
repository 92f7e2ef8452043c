# SPDX-License-Identifier: Apache-2.0
"""The profile of a program's kernels, and what tuning found of them, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.bench.profile import KernelProfile, Row, slowest
from intarsia.report.tables import make_table
from intarsia.tuning.kernels.tuning import KernelResult

_COLUMNS = (
    *("ms>", "share>", "left ms>", "calls>", "kernel", "shape", "GFLOP/s>", "GB/s>", "of peak>"),
    *("bound", "nodes", "schedule", "note"),
)


def kernels_view(profile: KernelProfile) -> RenderableType:
    """Return the calls, those first that take most; kernels in sum; and what they are held to."""
    total = sum(row.own_seconds for row in profile.rows)
    by_kernel: dict[str, list[Row]] = {}
    for row in profile.rows:
        kernel = "control flow" if row.kernel == "body" else row.kernel
        by_kernel.setdefault(kernel, []).append(row)
    families = sorted(by_kernel.items(), key=lambda item: -_sum(item[1]))
    text = (
        f"a run takes {profile.seconds * 1e3:.3f} ms, its calls one by one {total * 1e3:.3f} ms; "
        f"medians of {profile.rounds} runs on {profile.threads} threads\n"
        f"peak: {profile.peak_flop_per_second / 1e9:.1f} GFLOP/s of multiply-adds, "
        f"{profile.bytes_per_second / 1e9:.1f} GB/s from memory, "
        f"{profile.cache_bytes_per_second / 1e9:.1f} GB/s from caches; all measured here\n"
        f"left: beyond what these allow, {sum(r.left_seconds for r in profile.rows) * 1e3:.3f} ms"
    )
    return Group(
        make_table("kernels", _COLUMNS, map(_cells, slowest(profile))),
        make_table(
            "in sum",
            ("ms>", "share>", "left ms>", "kernel", "calls>", "GFLOP/s>", "GB/s>"),
            (_family(kernel, rows, total) for kernel, rows in families),
        ),
        Text(text),
    )


def _cells(row: Row) -> Sequence[str]:
    part = max(row.of_compute, row.of_memory)
    return (
        f"{row.seconds * 1e3:.3f}",
        f"{row.share:.1%}",
        f"{row.left_seconds * 1e3:.3f}" if part else "-",
        str(row.count),
        "  " * (len(row.path) - 1) + row.kernel,
        row.shape,
        _rate(row.flop, row.seconds),
        _rate(row.nbytes, row.seconds),
        f"{part:.0%}" if part else "-",
        row.bound if part else "-",
        " + ".join(row.nodes) if row.kernel != "region" else "",
        row.schedule or "-",
        row.note,
    )


def _family(kernel: str, rows: Sequence[Row], total: float) -> Sequence[str]:
    seconds = _sum(rows)
    return (
        f"{seconds * 1e3:.3f}",
        f"{seconds / total if total else 0:.1%}",
        f"{sum(row.left_seconds for row in rows) * 1e3:.3f}",
        kernel,
        str(sum(row.count for row in rows)),
        _rate(sum(row.flop for row in rows), seconds),
        _rate(sum(row.nbytes for row in rows), seconds),
    )


def _sum(rows: Sequence[Row]) -> float:
    return sum(row.own_seconds for row in rows)


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds / 1e9:.1f}" if count and seconds else "-"


_SCHEDULE_COLUMNS = ("calls>", "heuristic us>", "times as fast>", "interval", "schedule", "kernel")


def schedules_view(results: Sequence[KernelResult]) -> RenderableType:
    """Return a row for each shape, those first whose tuning saves most, and a sentence."""
    ordered = sorted(results, key=lambda result: -result.saved_microseconds)
    measured = [result for result in results if result.entry is not None]
    tuned = [result for result in measured if result.entry is not None and result.entry.choice]
    is_changed = any(result.is_new for result in tuned)
    new = sum(result.is_new for result in results)
    saved = sum(result.saved_microseconds for result in results)
    text = (
        f"{len(results)} kernels: {new} measured now, {len(measured) - new} known before, "
        f"{len(results) - len(measured)} left; {len(tuned)} have tuned schedules, "
        f"which save about {saved / 1e3:.2f} ms of a run"
    )
    if len(measured) < len(results):
        text += "; run it again to go on"
    if is_changed:
        text += "; costs of native code, and the plans that rest on them, were measured without "
        text += "these schedules: run `intarsia tune` for new ones"
    return Group(
        make_table("schedules", _SCHEDULE_COLUMNS, map(_schedule_cells, ordered)), Text(text)
    )


def _schedule_cells(result: KernelResult) -> Sequence[str]:
    entry = result.entry
    if entry is None:
        return (str(result.calls), "-", "-", "-", "not measured", result.kernel)
    if entry.choice is None:
        cells = ("-", "-", "heuristic")
    else:
        fields = ", ".join(f"{name} {value}" for name, value in entry.choice.schedule.items())
        interval = f"{entry.low:.2f} to {entry.high:.2f}"
        cells = (f"{entry.ratio:.2f}", interval, f"tuned: {entry.choice.algorithm}, {fields}")
    return (str(result.calls), f"{entry.microseconds:.1f}", *cells, result.kernel)
