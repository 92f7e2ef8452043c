# SPDX-License-Identifier: Apache-2.0
"""Checks: a thousand loads leave nothing behind, limits are kept, damage is an error."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.values import Artifact, ArtifactConstant
from intarsia.errors import BackendError, IntarsiaError
from intarsia.garbage import give_memory_back
from intarsia.measure.timing import wait_until_idle
from intarsia.process.workers import Limits, Worker, resident_bytes
from intarsia.settings import Settings
from intarsia.testing.case import OperatorCase, case, fed, problem_of, weight
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.programs import BOUND, CODES, codes_product, first_taken
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial
from intarsia.tuning.laboratory.plug_ins import PlugIns, describe_plug_ins, load_all

LOADS = 1000
_WARM_LOADS = 20
MOST_LEFT: Mapping[str, int] = {"open files": 8, "threads": 4, "maps of memory": 100}
"""By what a process has, by how many a thousand loads may leave it with more."""

SMALL: tuple[OperatorCase, ...] = (
    case("Relu", "small", fed(4, 4)),
    case("Add", "small", fed(4, 4), fed(4, 4)),
    case("MatMul", "small", fed(4, 4), weight(4, 4)),
    case("Conv", "small", fed(1, 1, 4, 4), weight(1, 1, 1, 1)),
    *CODES,
)


def load_trials() -> Iterator[Trial]:
    """Yield the one trial."""
    yield Trial("loads", f"{LOADS}_loads", load_very_often)


def load_very_often(subject: Subject) -> str:
    """Load, run and drop one artifact, a thousand times; return what that left."""
    problem, region = first_taken(subject, SMALL)
    artifact = subject.compile(region, problem.title)

    def cycle(times: int) -> None:
        for _ in range(times):
            bound = subject.bind(subject.load(region, artifact, problem.title), problem.title)
            bound.write(problem.values[0])
            bound.step()
            del bound
        gc.collect()

    cycle(_WARM_LOADS)
    give_memory_back()  # what a compiler freed in the heap and the C library keeps is no leak
    before, held = resident_bytes(), _held()
    cycle(LOADS)
    give_memory_back()
    grown = resident_bytes() - before
    title = f"{problem.title}: {LOADS} times loading and unloading"
    if grown >= BOUND:
        raise ConformanceError(
            f"{title} grow resident memory by {grown / 2**20:.1f} MiB; the bound is "
            f"{BOUND >> 20} MiB"
        )
    left = {what: count - held[what] for what, count in _held().items()}
    for what, count in left.items():
        if count > MOST_LEFT[what]:
            raise ConformanceError(f"{title} leave {count} more {what}")
    more = ", ".join(f"{what} {count:+d}" for what, count in left.items())
    return f"memory {grown / 2**20:+.1f} MiB, {more}"


def _held() -> dict[str, int]:
    """Return how much this process has of what a load may forget to give back."""
    own = Path("/proc/self")
    return {
        "open files": len(os.listdir(own / "fd")),  # noqa: PTH208 - counted, not walked
        "threads": len(os.listdir(own / "task")),  # noqa: PTH208 - likewise
        "maps of memory": (own / "maps").read_bytes().count(b"\n"),
    }


ROWS = 70_000
"""More than 16 bits count: GPUs have limits there."""

OPERANDS = 130
LIMIT_CASES: tuple[OperatorCase, ...] = (
    case("Add", "rows", fed(ROWS, 1), fed(ROWS, 1)),
    case("Relu", "columns", fed(1, ROWS)),
    case("MatMul", "rows", fed(ROWS, 2), weight(2, 3)),
    case("ReduceMax", "rows", fed(ROWS, 3), keepdims=1),
    case("Transpose", "rows", fed(ROWS, 3), perm=(1, 0)),
    case("Concat", "operands", *(fed(2, 3) for _ in range(OPERANDS)), axis=0),
    case("Sum", "operands", *(fed(2, 3) for _ in range(OPERANDS))),
    case("Relu", "batch", fed(ROWS, 1, 1, 1)),
)
_WORK = (
    case("MatMul", "work", fed(256, 256), weight(256, 256)),
    case("Conv", "work", fed(1, 32, 32, 32), weight(32, 32, 3, 3)),
    case("Tanh", "work", fed(512, 512)),
    case("Add", "work", fed(1024, 1024), fed(1024, 1024)),
    codes_product("work", 256, 256, 256),
)
_WORK_RUNS, _WORK_LOOKS = 40, 3
_OTHERS_SHARE, _LEAST_WORK = 0.5, 0.01


def limit_trials() -> Iterator[Trial]:
    """Yield one trial per case, and one for threads."""
    for number, large in enumerate(LIMIT_CASES):
        name = f"{large.op_type}-{large.name}-{number}"
        yield Trial("limits", name, partial(take_or_refuse, large=large))
    yield Trial("limits", "one_thread", use_one_thread)


def take_or_refuse(subject: Subject, large: OperatorCase) -> None:
    """Compute an operator of an awkward size, or refuse it."""
    problem = problem_of(large, "float32")
    region = subject.take(subject.graph(problem.model), problem.title)
    subject.verify_region(region, problem.values, problem.title)


def use_one_thread(subject: Subject) -> None:
    """Require that a device of one thread computes in the thread that calls."""
    if not subject.is_host:
        raise NotApplicable("the device has threads of its own")
    if subject.registered.own_threads:
        raise NotApplicable(subject.registered.own_threads)
    problem, region = first_taken(subject, _WORK)
    bound = subject.bind(subject.build(region, problem.title), problem.title)
    bound.write(problem.values[0])
    caller = threading.get_native_id()
    bound.step()
    own = others = 0.0
    for _ in range(_WORK_LOOKS):  # a thread of something else computes in one of them perhaps
        wait_until_idle()
        before = _thread_seconds()
        for _ in range(_WORK_RUNS):
            bound.step()
        spent = {
            thread: seconds - before.get(thread, 0.0)
            for thread, seconds in _thread_seconds().items()
        }
        own, others = spent.pop(caller, 0.0), max(spent.values(), default=0.0)
        if others <= max(_LEAST_WORK, _OTHERS_SHARE * own):
            return
    raise ConformanceError(
        f"{problem.title}: with one thread, another one computes for {others:.3f} s where the "
        f"caller does for {own:.3f} s"
    )


def _thread_seconds() -> dict[int, float]:
    """Return the CPU time of each thread of this process, by its number.

    Raises:
        NotApplicable: The system does not tell.
    """
    found = {}
    try:
        for entry in Path("/proc/self/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                found[int(entry.name)] = int((entry / "schedstat").read_text().split()[0]) * 1e-9
    except (OSError, ValueError, IndexError) as error:
        raise NotApplicable(f"this system does not tell the time of threads: {error}") from error
    if not found:
        raise NotApplicable("this system does not tell the time of threads")
    return found


DAMAGES = ("empty", "half", "cut", "zeros", "noise", "no_metadata", "no_constants")
_LIMITS = Limits(seconds=300)


def fault_trials() -> Iterator[Trial]:
    """Yield the one trial: what loads it has to be started once."""
    yield Trial("faults", "damaged_artifacts", load_damaged)


def load_damaged(subject: Subject) -> None:
    """Load damaged artifacts in a process of their own."""
    problem, region = first_taken(subject, SMALL[2:] + SMALL[:2])
    artifact = subject.compile(region, problem.title)
    is_data = subject.registered.is_data
    if is_data is None or not is_data(artifact):
        raise NotApplicable("its artifacts are code, which is loaded only where it is trusted")
    if not subject.is_host:
        raise NotApplicable("only what lies in the host's memory is tried")
    try:
        plug_ins = describe_plug_ins(subject.backends)
    except BackendError as error:
        raise NotApplicable(f"{error.message}; {error.hint}") from None
    arrays = {str(i): one.data for i, one in enumerate(artifact.constants)}
    arrays["payload"] = np.frombuffer(artifact.payload, np.uint8)
    names = [one.name for one in artifact.constants]
    record = msgspec.to_builtins(replace(artifact, constants=(), payload=b""))
    with Worker() as worker:
        for damage in DAMAGES:
            if not damaged(artifact, damage, seed=0):
                continue
            outcome = worker.call(
                f"{__name__}:try_damaged",
                *(subject.backend.name, msgspec.to_builtins(plug_ins), [record, names], damage),
                arrays=arrays,
                limits=_LIMITS,
            )
            if not outcome.is_ok:
                raise ConformanceError(
                    f"{problem.title}: loading a damaged artifact ({damage}) took the process: "
                    f"{outcome.message}"
                )
            if outcome.value:
                raise ConformanceError(
                    f"{problem.title}: load of a damaged artifact ({damage}) raised "
                    f"{outcome.value}; raise a BackendError"
                )


def damaged(artifact: Artifact, damage: str, seed: int) -> Artifact | None:
    """Return an artifact with something wrong with it; None if it has none of that."""
    payload = artifact.payload
    if damage == "no_metadata":
        return replace(artifact, metadata={}) if artifact.metadata else None
    if damage == "no_constants":
        return replace(artifact, constants=()) if artifact.constants else None
    if not payload:
        return None
    rng = np.random.default_rng(seed)
    noise = bytearray(payload)
    for position in rng.integers(0, len(payload), max(1, len(payload) // 16)):
        noise[position] = int(rng.integers(0, 256))
    changed = {
        "empty": b"",
        "half": payload[: len(payload) // 2],
        "cut": payload[:-1],
        "zeros": bytes(len(payload)),
        "noise": bytes(noise),
    }
    return replace(artifact, payload=changed[damage])


_SEEDS = 8


def try_damaged(
    backend: str,
    plug_ins: Mapping[str, Any],
    record: Sequence[Any],
    damage: str,
    arrays: Mapping[str, Array],
) -> str:
    """Load a damaged artifact; return what is wrong with how that fails. Run in a worker.

    Args:
        backend: The backend's name.
        plug_ins: `PlugIns` as a dictionary.
        record: The artifact without payload and constants, and the names of these.
        damage: One of `DAMAGES`.
        arrays: The payload and the constants.
    """
    fields, names = record
    constants = tuple(
        ArtifactConstant(name, np.array(arrays[str(i)])) for i, name in enumerate(names)
    )
    artifact = msgspec.convert(fields, Artifact)
    artifact = replace(artifact, payload=arrays["payload"].tobytes(), constants=constants)
    used = load_all(msgspec.convert(plug_ins, PlugIns), Settings.from_environment())
    device = HostDevice(ThreadOptions(num_threads=1))
    for seed in range(_SEEDS if damage == "noise" else 1):
        changed = damaged(artifact, damage, seed)
        assert changed is not None
        try:
            used.named(backend).load(changed, device)
        except IntarsiaError:  # as it should be
            continue
        except Exception as error:  # a plug-in may raise anything
            return f"{type(error).__name__}: {str(error)[:200]}"
    return ""
