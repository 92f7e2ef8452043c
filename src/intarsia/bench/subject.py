# SPDX-License-Identifier: Apache-2.0
"""What a worker process of a benchmark runs: one model in one runtime, kept between calls.

Functions here are called by name through `process.workers`; they take and return plain values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.measure.timing import measure_streams

if TYPE_CHECKING:
    from intarsia.place.request import Request
    from intarsia.runtime.free import Program


@dataclass(frozen=True, slots=True)
class _Subject:
    """The one thing that this process measures."""

    run: Callable[[], object]
    outputs: Callable[[], list[Array]]
    another: Callable[[], Callable[[], object]]
    """Makes a run that can execute in another thread at the same time."""
    clock: Callable[[], float] = time.perf_counter
    """Where regions run on other machines, that which leaves out the way to them."""


_subjects: list[_Subject] = []
"""The subject of this process, once it is set up: a process has one."""
_streams: list[Callable[[], object]] = []
"""Its concurrent runs, as many as were requested so far."""


def set_up_ours(
    path: str, target: str | None, threads: int, options: Mapping[str, Any], arrays: Any = None
) -> dict[str, Any]:
    """Compile a model and bind its inputs; return the facts of the plan.

    Args:
        path: The model.
        target: The machine, in text.
        threads: Threads of one run.
        options: `pins`, `exclude`, `placement` of `intarsia.compile`, and `buckets` with
            `pad_values` if inputs are padded; `is_detected` if nobody gave the order of the target.
        arrays: Every input, by name.
    """
    from intarsia.compiler import compile as compile_model
    from intarsia.place.machine import as_detected
    from intarsia.target import CompilationConfig

    start = time.perf_counter()
    wanted = {key: value for key, value in options.items() if key != "is_detected"}
    machine: Any = target
    if target is not None and options.get("is_detected"):
        machine = as_detected(CompilationConfig.resolve(target))
    given = {name: np.asarray(array, order="C") for name, array in (arrays or {}).items()}
    is_padded = bool(wanted.get("buckets"))
    if is_padded:  # the program for what they are padded to is made, and not one for their sizes
        wanted.pop("sizes", None)
    executable = compile_model(path, machine, num_threads=threads, **wanted)
    if is_padded:
        executable.run(given)
    seconds = time.perf_counter() - start
    if is_padded:

        def run_padded() -> object:
            return executable.run(given)

        def padded_outputs() -> list[Array]:
            return [*executable.run(given).values()]

        _set(_Subject(run_padded, padded_outputs, lambda: run_padded, _clock(executable)))
        return _facts(executable, seconds)
    context = executable.context(inputs=given)
    names = [spec.name for spec in executable.outputs]

    def outputs() -> list[Array]:
        results = context.read_outputs()
        return [results[name] for name in names]

    def another() -> Callable[[], object]:
        return executable.context(inputs=given).run

    _set(_Subject(context.run, outputs, another, _clock(executable)))
    return _facts(executable, seconds)


def _clock(executable: Program) -> Callable[[], float]:
    """Return the clock of a program: this machine's, without the way to others."""
    from intarsia.backends.remote import RemoteClock

    return RemoteClock(executable.latest.executables) or time.perf_counter


def _facts(executable: Program, seconds: float) -> dict[str, Any]:
    """Return the facts of a plan that took so long to make."""
    return {
        "set_up_seconds": seconds,
        "summary": executable.explain().summary,
        "shortfall": executable.placement.shortfall,
        "coverage": executable.placement.coverage(),
        "steps": len(executable.plan.steps),
        "is_away": _clock(executable) is not time.perf_counter,
    }


def plain_options(
    request: Request, *, knows_target: bool = True
) -> tuple[str | None, dict[str, Any]]:
    """Return the machine of a request in text, and the `options`, for `set_up_ours`.

    Args:
        request: What is asked for; its model and shapes are left aside.
        knows_target: Whether another process knows the names in the target's text.

    Raises:
        TargetError: The machine is described wrongly, or a pin names another one.
    """
    target, pins, is_detected = request.target, dict(request.pins or {}), False
    if request.host or request.attributes or not (target is None or knows_target):
        config = request.find_machine().config
        target, is_detected = config.text, config.reasons.is_detected
        pins = {pattern: str(config.find(name)) for pattern, name in pins.items()}
    return target, {
        "pins": pins,
        "exclude": request.exclude,
        "placement": request.placement,
        "is_detected": is_detected,
        "buckets": dict(request.buckets),
        "pad_values": dict(request.pad_values),
        **({} if request.max_memory is None else {"max_memory": request.max_memory}),
    }


def set_up_peer(name: str, path: str, threads: int, arrays: Any = None) -> dict[str, Any]:
    """Load the untouched model into a peer and bind its inputs.

    Args:
        name: The backend whose runtime it is.
        path: The model.
        threads: Threads of one run.
        arrays: Every input, by name.
    """
    from intarsia.backends.registry import load_backends
    from intarsia.settings import Settings

    backends = load_backends(Settings.from_environment())
    make_baseline = backends.baseline_of(name)
    start = time.perf_counter()
    baseline = make_baseline(path, arrays or {}, threads)
    seconds = time.perf_counter() - start

    def another() -> Callable[[], object]:
        run: Callable[[], object] = make_baseline(path, arrays or {}, threads).run
        return run

    _set(_Subject(baseline.run, baseline.outputs, another))
    return {"set_up_seconds": seconds, "version": backends.named(name).version()}


def run_block(lead_seconds: float, least_runs: int, least_seconds: float) -> list[float]:
    """Run for a while and return the seconds of each run that counts.

    Args:
        lead_seconds: How long to run before; one run at least.
        least_runs: Runs that count, at least.
        least_seconds: Wall-clock time of these, at least.
    """
    (subject,) = _subjects
    begin = time.perf_counter()
    subject.run()
    while time.perf_counter() - begin < lead_seconds:
        subject.run()
    seconds: list[float] = []
    begin = time.perf_counter()
    while len(seconds) < least_runs or time.perf_counter() - begin < least_seconds:
        start = subject.clock()
        subject.run()
        seconds.append(subject.clock() - start)
    return seconds


def run_streams(streams: int, seconds: float) -> float:
    """Run in several threads at once and return the runs per second of all together.

    Args:
        streams: How many; each has buffers of its own, those of a peer a session of its own.
        seconds: Wall-clock time.
    """
    (subject,) = _subjects
    while len(_streams) < streams:
        _streams.append(subject.another() if _streams else subject.run)
    return measure_streams(_streams[:streams], seconds).runs_per_second


def read_outputs() -> tuple[int, dict[str, Array]]:
    """Run once and return how many outputs there are, and the outputs by position."""
    (subject,) = _subjects
    subject.run()
    outputs = subject.outputs()
    return len(outputs), {str(i): np.asarray(output) for i, output in enumerate(outputs)}


def evaluate_float64(path: str, arrays: Any = None) -> tuple[int, dict[str, Array]]:
    """Return the outputs of the ONNX reference evaluator computing in float64."""
    import onnx

    from intarsia.backends.float64 import evaluate

    outputs = evaluate(onnx.load(path), arrays or {})
    return len(outputs), {str(i): output for i, output in enumerate(outputs)}


def _set(subject: _Subject) -> None:
    _subjects[:] = [subject]
    _streams.clear()
