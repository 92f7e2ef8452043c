# SPDX-License-Identifier: Apache-2.0
"""What tuning found of the kernels of a model, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from intarsia.report.tables import make_table
from intarsia.tuning.kernels.tuning import KernelResult

_COLUMNS = ("calls>", "heuristic us>", "times as fast>", "interval", "schedule", "kernel")


def schedules_view(results: Sequence[KernelResult]) -> RenderableType:
    """Return a row for each shape, those first whose tuning saves most, and a sentence."""
    ordered = sorted(results, key=lambda result: -result.saved_microseconds)
    known = [result for result in results if result.entry is not None]
    tuned = [result for result in known if result.entry is not None and result.entry.choice]
    is_changed = any(result.is_new for result in tuned)
    new = sum(result.is_new for result in results)
    saved = sum(result.saved_microseconds for result in results)
    text = (
        f"{len(results)} kernels: {new} measured now, {len(known) - new} known before, "
        f"{len(results) - len(known)} left; {len(tuned)} have tuned schedules, "
        f"which save about {saved / 1e3:.2f} ms of a run"
    )
    if len(known) < len(results):
        text += "; run it again to go on"
    if is_changed:
        text += "; costs of native code, and the plans that rest on them, were measured without "
        text += "these schedules: run `intarsia tune` for new ones"
    return Group(make_table("schedules", _COLUMNS, map(_cells, ordered)), Text(text))


def _cells(result: KernelResult) -> Sequence[str]:
    entry = result.entry
    if entry is None:
        return (str(result.calls), "-", "-", "-", "not measured", result.kernel)
    if entry.choice is None:
        found = ("-", "-", "heuristic")
    else:
        fields = ", ".join(f"{name} {value}" for name, value in entry.choice.schedule.items())
        interval = f"{entry.low:.2f} to {entry.high:.2f}"
        found = (f"{entry.ratio:.2f}", interval, f"tuned: {entry.choice.algorithm}, {fields}")
    return (str(result.calls), f"{entry.microseconds:.1f}", *found, result.kernel)
