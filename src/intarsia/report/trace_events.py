# SPDX-License-Identifier: Apache-2.0
"""A trace of runs in the Trace Event Format, which Perfetto and chrome://tracing open.

One process has a track for the whole runs, one for each target, with its regions and their kernels
below them, and one for the copies; the other has a track for each thread that native code ran on.

Source:
    "Trace Event Format" (Google, 2016): complete events (`X`), metadata events (`M`), the JSON
    object format. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from intarsia.backends.tracing import WorkSpan
from intarsia.errors import SettingError
from intarsia.files import whole_file, writing_hint
from intarsia.plan.placement import PlacedRegion
from intarsia.plan.plan import CopyStep
from intarsia.runtime.tracing import RunTrace, TracedCall

_PLAN, _THREADS = 1, 2
"""Our numbers of the two processes."""

_RUNS, _COPIES = "runs", "copies"
"""Tracks beside those of targets."""


def trace_events(trace: RunTrace, name: str) -> dict[str, Any]:
    """Return a trace as a value of JSON.

    Args:
        trace: What ran when.
        name: What the program is called.
    """
    tracks: dict[str, int] = {_RUNS: 1}
    threads: dict[int, int] = {trace.thread: 1}
    events = [
        _event(f"run {number}", "run", (start, seconds), (_PLAN, 1), {})
        for number, (start, seconds) in enumerate(trace.runs, 1)
    ]
    for call in trace.calls:
        events += _call_events(call, tracks, threads)
    told = any(span.thread for call in trace.calls for span in call.spans)
    heads = [
        _metadata("process_name", name, _PLAN),
        *_track_names(_PLAN, {number: title for title, number in tracks.items()}),
    ]
    if told:
        titles = {
            number: "thread of the caller" if number == 1 else f"thread {number}"
            for number in threads.values()
        }
        heads += [
            _metadata("process_name", "threads of native code", _THREADS),
            *_track_names(_THREADS, titles),
        ]
    return {
        "traceEvents": [*heads, *events],
        "displayTimeUnit": "ms",
        "otherData": {
            "made by": "intarsia",
            "program": name,
            "order": "each region and copy is waited for before the next one starts",
        },
    }


def write_trace(trace: RunTrace, name: str, file: Path) -> None:
    """Write a trace, whole or not at all.

    Args:
        trace: What ran when.
        name: What the program is called.
        file: Its name.

    Raises:
        SettingError: The file cannot be written.
    """
    try:
        with whole_file(file) as draft:
            draft.write_text(dumps(trace_events(trace, name)), encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"cannot write {str(file)!r}: {error.strerror or error}",
            hint=writing_hint(error),
        ) from error


def _call_events(
    call: TracedCall, tracks: dict[str, int], threads: dict[int, int]
) -> Iterator[dict[str, Any]]:
    """Yield the events of a call and of what its backend tells of it; tracks get numbers."""
    plan, position = call.call.plan, call.call.position
    span = (call.start, call.seconds)
    if position is None:
        track = tracks.setdefault("bodies", len(tracks) + 1)
        yield _event(str(call.path[-1]), "body", span, (_PLAN, track), {})
        return
    step = plan.steps[position]
    if isinstance(step, CopyStep):
        source, destination = plan.tensors[step.source], plan.tensors[step.destination]
        facts = {
            "tensor": source.name,
            "from": plan.devices[source.device],
            "to": plan.devices[destination.device],
            "bytes": step.nbytes,
        }
        track = tracks.setdefault(_COPIES, len(tracks) + 1)
        yield _event(f"copy {source.name}", "copy", span, (_PLAN, track), facts)
        return
    region = plan.placement.regions[step.region]
    track = tracks.setdefault(region.runs_on, len(tracks) + 1)
    title = f"region {step.region}: {region.operators}"
    yield _event(title, "region", span, (_PLAN, track), _region_facts(region))
    origins = {node.name: node.origins for node in region.nodes}
    for one in call.spans:
        place = (_PLAN, track)
        if one.thread:
            place = (_THREADS, threads.setdefault(one.thread, len(threads) + 1))
        kind = "chunk" if one.thread else "kernel"
        facts = {**_onnx_names(one, origins), **one.facts}
        yield _event(one.name, kind, (one.start, one.seconds), place, facts)


def _region_facts(region: PlacedRegion) -> dict[str, Any]:
    origins = dict.fromkeys(name for node in region.nodes for name in node.origins)
    return {
        "target": region.target,
        "backend": region.backend,
        "device": region.device,
        "nodes": len(region.nodes),
        "ONNX nodes": list(origins),
    }


def _onnx_names(span: WorkSpan, origins: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the nodes of the user's model that a piece of work computes, if any is known."""
    names = dict.fromkeys(name for node in span.nodes for name in origins.get(node, (node,)))
    return {"ONNX nodes": list(names)} if names else {}


def _event(
    name: str,
    kind: str,
    span: tuple[float, float],
    place: tuple[int, int],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a complete event.

    Args:
        name: In print.
        kind: Its category.
        span: When it starts, and how long it takes, in seconds.
        place: Its process and track.
        facts: What is shown of it when it is chosen.
    """
    start, seconds = span
    process, track = place
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "pid": process,
        "tid": track,
        "args": dict(facts),
    }


def _track_names(process: int, titles: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for number, title in titles.items():
        yield _metadata("thread_name", title, process, number)
        yield {
            **_metadata("thread_sort_index", "", process, number),
            "args": {"sort_index": number},
        }


def _metadata(kind: str, text: str, process: int, track: int = 0) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": text}}
