# SPDX-License-Identifier: Apache-2.0
"""Runs a program and notes when each region, copy and body ran, and what backends tell of inside.

Each call is waited for before the next one starts: devices that work side by side in other runs
take turns here.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from intarsia.backends.tracing import WorkSpan
from intarsia.errors import InputError
from intarsia.plan.profile import CallPath
from intarsia.runtime.executor import PlanExecutable
from intarsia.runtime.feeds import check_feeds
from intarsia.runtime.recorder import RecordedCall, RunRecorder


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call of a region, a copy or a body.

    Attributes:
        path: The way to it, as of `CallPath`.
        call: What it is.
        start: When it began, in seconds since the trace did.
        seconds: How long it took, with all inside of it.
        spans: What its backend tells of the work inside, in the order of their starts, likewise
            from the start of the trace; none of them ends outside of the call.
    """

    path: CallPath
    call: RecordedCall
    start: float
    seconds: float
    spans: tuple[WorkSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class RunTrace:
    """When what ran.

    Attributes:
        runs: For each run its start, in seconds since the trace began, and its length.
        calls: Of all runs, in the order of their starts.
        thread: The caller's, as `threading.get_ident` numbers them.
    """

    runs: tuple[tuple[float, float], ...]
    calls: tuple[TracedCall, ...]
    thread: int


def trace_runs(executable: PlanExecutable, feeds: Mapping[str, Any], runs: int = 1) -> RunTrace:
    """Run a program and note when what ran; one run before that is not noted.

    Args:
        executable: The program.
        feeds: An array per input, by name.
        runs: How many.

    Raises:
        InputError: A name, dtype or shape is wrong, or `runs` is below 1.
        ExecutionError: A backend failed.
        BackendError: A backend cannot load a region once more, so that it tells.
    """
    if runs < 1:
        raise InputError(f"{runs} runs cannot be traced", hint="trace at least 1")
    context = executable.context()
    context.write_inputs(check_feeds(executable.inputs, feeds))
    context.run()  # sizes that the data decides are known then
    recorder = RunRecorder(context, is_traced=True)
    recorder.run()  # of calls that are bound anew, the first takes longer
    began: list[float] = []
    calls: list[TracedCall] = []
    ends: list[float] = []
    for _ in range(runs):
        timed = recorder.run()
        shift = recorder.began
        began.append(shift)
        calls += [
            TracedCall(one.path, recorder.calls[one.path], one.start + shift, one.seconds)
            for one in timed
        ]
        ends.append(max((one.start + one.seconds for one in timed), default=0.0))
    zero = began[0]
    told = {
        path: sorted(
            (span for step in steps for span in step.spans()),
            key=lambda span: (span.start, -span.seconds),
        )
        for path, steps in recorder.traced.items()
    }
    found = (_with_spans(call, told.get(call.path, ()), zero) for call in calls)
    return RunTrace(
        runs=tuple((start - zero, length) for start, length in zip(began, ends, strict=True)),
        calls=tuple(sorted(found, key=lambda call: (call.start, -call.seconds))),
        thread=threading.get_ident(),
    )


def _with_spans(call: TracedCall, spans: Sequence[WorkSpan], zero: float) -> TracedCall:
    """Return a call with those spans that are its own, counted from the start of the trace.

    Args:
        call: By the clock.
        spans: Of all calls of its path, by the clock, in the order in which they began.
        zero: When the trace began.
    """
    end = call.start + call.seconds
    first = bisect_left(spans, call.start - _CLOCKS_APART, key=lambda span: span.start)
    own = []
    for span in islice(spans, first, None):
        if span.start >= end:
            break
        if span.start + span.seconds <= call.start:
            continue  # of the call before
        start = max(span.start, call.start)
        seconds = min(span.start + span.seconds, end) - start
        own.append(WorkSpan(span.name, span.nodes, start - zero, seconds, span.facts, span.thread))
    return TracedCall(call.path, call.call, call.start - zero, call.seconds, tuple(own))


_CLOCKS_APART = 1e-3
"""Seconds by which a backend's clock may be off; what it tells is cut to the call."""
