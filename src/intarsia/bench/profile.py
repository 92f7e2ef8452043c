# SPDX-License-Identifier: Apache-2.0
"""How long a program takes, and where: kernel by kernel, and how near to the machine's limits."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from intarsia.backends.remote import RemoteClock
from intarsia.cost.peak import Peak, measured_peak
from intarsia.errors import SettingError
from intarsia.measure.timing import Spread, measure_streams
from intarsia.plan.placement import CONTROL_FLOW, THE_PLAN
from intarsia.plan.plan import CopyStep
from intarsia.plan.profile import CallPath, CallTotal, TimedCall, sum_calls
from intarsia.runtime.feeds import check_feeds
from intarsia.runtime.recorder import RecordedCall, RunRecorder

if TYPE_CHECKING:
    from intarsia.backends.device import Step
    from intarsia.backends.values import KernelCall
    from intarsia.runtime.executor import PlanExecutable


AWAY_PROFILE = (
    "times of what runs on other machines are by their clocks, without the way there; the limits "
    "are this machine's"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One call; in the body of an If, Loop or Scan, all of its calls in a run.

    Attributes:
        path: The way to it: its position among the calls. Behind that of an operator with bodies,
            the attribute of a body, and so on inside of it.
        kernel: What it is called; of what shows no kernels, `region`, `copy`, `control flow` (an
            operator whose bodies follow) or `body`.
        target: Where it runs.
        nodes: Names of the nodes that it computes; none for a copy, or a conversion of a layout.
        shape: What it reads first and what it writes.
        note: Its schedule or algorithm, in words.
        count: How often it is called in a run: 1, but for what is in a body.
        seconds: The median over the rounds, of all of these.
        inner_seconds: What those inside of it take, which have rows of their own.
        share: Part of the sum over all calls.
        flop: Operations of its nodes; Winograd's transforms do fewer.
        nbytes: What it reads and writes, each byte once for each call.
        of_compute: Part of the machine's peak operations in a second; of Winograd's algorithm, by
            the products that it leaves.
        of_memory: Part of the bandwidth of what holds its bytes, caches or memory.
        schedule: Where the schedule is from: `heuristic` or `tuned`.
    """

    path: CallPath
    kernel: str
    target: str
    nodes: tuple[str, ...]
    shape: str
    note: str
    count: int
    seconds: float
    inner_seconds: float
    share: float
    flop: int
    nbytes: int
    of_compute: float
    of_memory: float
    schedule: str = ""

    @property
    def own_seconds(self) -> float:
        """What it takes without those inside of it."""
        return max(self.seconds - self.inner_seconds, 0.0)

    @property
    def left_seconds(self) -> float:
        """What it takes beyond the limit that it is nearer to; 0 where its work is not known."""
        part = max(self.of_compute, self.of_memory)
        return self.seconds * (1 - part) if part else 0.0

    @property
    def bound(self) -> str:
        """What it is nearer to: `compute` or `memory`."""
        return "compute" if self.of_compute >= self.of_memory else "memory"


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """All calls of one run.

    Attributes:
        rows: In the order in which they run; those of bodies behind their operator.
        seconds: The median of whole runs, in the same rounds.
        rounds: How many runs were timed.
        threads: Threads of one run.
        peak_flop_per_second: What multiply-adds alone, or the best of the calls, reach here.
        bytes_per_second: What copies or calls reach here, beyond the caches.
        cache_bytes_per_second: The same inside the caches.
        is_away: Whether something runs on another machine: its calls are timed by that machine's
            clock, and are held against the limits of this one.
        run: One run, of those that took the median time: its calls, in the order in which they
            began. Of a run of more than `MOST_CALLS` those in bodies are left out.
    """

    rows: tuple[Row, ...]
    seconds: float
    rounds: int
    threads: int
    peak_flop_per_second: float
    bytes_per_second: float
    cache_bytes_per_second: float
    is_away: bool = False
    run: tuple[TimedCall, ...] = ()


MOST_CALLS = 5_000
"""Calls of a run that a profile keeps one by one: a loop has a call for each of its iterations."""


def time_streams(
    executable: PlanExecutable, feeds: Mapping[str, Any], streams: int, seconds: float
) -> Spread:
    """Run a program for a while, several contexts of it at once.

    Args:
        executable: The program.
        feeds: Arrays by name; inputs that are missing are made up.
        streams: How many contexts, each in a thread of its own.
        seconds: Wall-clock time; each runs once at least.

    Raises:
        InputError: A feed has a wrong name, dtype or shape, or one cannot be made up.
        ExecutionError: A backend failed.
    """
    is_complete = all(spec.name in feeds for spec in executable.inputs)
    samples = {} if is_complete else executable.sample_feeds()
    arrays = check_feeds(executable.inputs, {**samples, **feeds})
    contexts = [executable.context() for _ in range(streams)]
    for context in contexts:
        context.write_inputs(arrays)
    return measure_streams([context.run for context in contexts], seconds)


def profile_kernels(
    executable: PlanExecutable, feeds: Mapping[str, Any], *, threads: int, rounds: int = 20
) -> KernelProfile:
    """Time every kernel of a program by itself, in the order of a run, and whole runs beside.

    Args:
        executable: The program.
        feeds: An array per input, by name.
        threads: Threads that one run uses.
        rounds: How many runs are timed.

    Raises:
        SettingError: `rounds` is below 1.
    """
    if rounds < 1:
        raise SettingError(f"{rounds} rounds cannot be timed", hint="time at least 1")
    context = executable.context()
    context.write_inputs([feeds[spec.name] for spec in executable.inputs])
    context.run()  # sizes that the data decides are known then
    remote = RemoteClock(executable.executables)
    clock = remote or perf_counter
    recorder = RunRecorder(context, by_kernel=True, clock=clock)
    recorder.run()
    whole: list[float] = []
    runs: list[list[TimedCall]] = []
    for _ in range(rounds):
        whole.append(_time(context.run, clock))
        runs.append(recorder.run())
    totals = sum_calls(runs)
    calls = [(path, call, totals[path]) for path, call in recorder.calls.items()]
    machine = measured_peak(threads)
    work = [
        (
            _products(call.kernel) if call.kernel else 0,
            _bytes_moved(call),
            total.seconds / total.count,
        )
        for _, call, total in calls
        if total.seconds
    ]
    machine, peak = raise_peaks(machine, max(_peak(threads), machine.flops("float32")), work)
    limits = (sum(total.seconds for path, _, total in calls if len(path) == 1), peak, machine)
    inner: dict[CallPath, float] = defaultdict(float)
    for path, _, total in calls:
        inner[path[:-1]] += total.seconds
    return KernelProfile(
        rows=tuple(_row(path, call, total, inner[path], limits) for path, call, total in calls),
        seconds=statistics.median(whole),
        rounds=rounds,
        threads=threads,
        peak_flop_per_second=peak,
        bytes_per_second=machine.bytes_per_second,
        cache_bytes_per_second=machine.cache_bytes_per_second,
        is_away=bool(remote),
        run=_typical_run(runs),
    )


def _typical_run(runs: Sequence[Sequence[TimedCall]]) -> tuple[TimedCall, ...]:
    """Return the calls of the run whose own calls took the median time."""
    totals = [sum(call.seconds for call in run if len(call.path) == 1) for run in runs]
    run = runs[totals.index(statistics.median_low(totals))]
    kept = run if len(run) <= MOST_CALLS else [call for call in run if len(call.path) == 1]
    return tuple(sorted(kept, key=lambda call: (call.start, len(call.path))))


def raise_peaks(
    machine: Peak, flop_per_second: float, work: Iterable[tuple[int, int, float]]
) -> tuple[Peak, float]:
    """Return peaks that nothing exceeds: what a kernel has reached, the machine can do.

    Loops that measure a peak may be slower than a kernel: other processes ran beside them, or the
    kernel's data was nearer than that of a copy.

    Args:
        machine: What was measured of memory.
        flop_per_second: What multiply-adds alone reach.
        work: Operations, bytes and seconds of each call.
    """
    for flop, nbytes, seconds in work:
        flop_per_second = max(flop_per_second, flop / seconds)
        rate = nbytes / seconds
        if nbytes <= machine.cache_bytes:
            machine = replace(
                machine, cache_bytes_per_second=max(machine.cache_bytes_per_second, rate)
            )
        else:
            machine = replace(machine, bytes_per_second=max(machine.bytes_per_second, rate))
    return machine, flop_per_second


def _products(call: KernelCall) -> int:
    """Return the operations that a call does: F(m) spares most of those of a 3x3 window."""
    found = _WINOGRAD.search(call.note)
    if found is None:
        return call.flop
    outputs = int(found[1])
    return call.flop * (outputs + 2) ** 2 // (9 * outputs**2)


_WINOGRAD = re.compile(r"Winograd F\((\d+)\)")


def _bytes_moved(call: RecordedCall) -> int:
    """Return the bytes that one call reads and writes, where that is known."""
    if call.kernel is not None:
        return call.kernel.nbytes
    step = None if call.position is None else call.plan.steps[call.position]
    return step.nbytes if isinstance(step, CopyStep) else 0


def _time(step: Step, clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


def _peak(threads: int) -> float:
    """Return what multiply-adds reach here, or 0 where no native code can be generated."""
    from intarsia.errors import BackendError
    from intarsia.native.native_target import target_cpu
    from intarsia.native.work import measure_peak
    from intarsia.target import Target

    try:
        return measure_peak(*target_cpu(Target("llvm")), threads)
    except BackendError:
        return 0.0


def _row(
    path: CallPath,
    call: RecordedCall,
    total: CallTotal,
    inner_seconds: float,
    limits: tuple[float, float, Peak],
) -> Row:
    """Return what is shown of a call.

    Args:
        path: Which one.
        call: What it is.
        total: What its calls in a run came to.
        inner_seconds: What those inside of it came to.
        limits: Seconds of all calls, operations in a second, and the machine's memory.
    """
    whole, peak, machine = limits
    nbytes, seconds = _bytes_moved(call), total.seconds
    row = Row(
        path=path,
        kernel="body",
        target=THE_PLAN,
        nodes=(),
        shape=_count(len(call.plan.placement.regions), "region"),
        note=str(path[-1]),
        count=total.count,
        seconds=seconds,
        inner_seconds=inner_seconds,
        share=seconds / whole if whole else 0.0,
        flop=0,
        nbytes=nbytes * total.count,
        of_compute=0.0,
        of_memory=(
            nbytes * total.count / seconds / machine.bandwidth(nbytes) if seconds and nbytes else 0
        ),
    )
    if call.position is None:
        return row
    plan, step = call.plan, call.plan.steps[call.position]
    if isinstance(step, CopyStep):
        tensor = plan.tensors[step.source]
        return replace(
            row,
            kernel="copy",
            target=plan.devices[plan.tensors[step.destination].device],
            shape="x".join(map(str, tensor.shape or ())),
            note=tensor.name,
        )
    region, kernel = plan.placement.regions[step.region], call.kernel
    row = replace(row, target=region.runs_on)
    if kernel is None:
        nodes = tuple(node.name for node in region.nodes)
        return replace(
            row,
            kernel="control flow" if region.backend == CONTROL_FLOW else "region",
            nodes=nodes,
            shape=_count(len(nodes), "node"),
            note=region.operators,
        )
    flop = _products(kernel) * total.count
    return replace(
        row,
        kernel=kernel.kernel,
        nodes=kernel.nodes,
        shape=kernel.shape,
        note=kernel.note,
        flop=kernel.flop * total.count,
        of_compute=flop / seconds / peak if seconds and peak else 0.0,
        schedule=kernel.schedule,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def slowest(profile: KernelProfile) -> Sequence[Row]:
    """Return the calls, those first that take most, each followed by those inside of it."""
    seconds = {row.path: row.seconds for row in profile.rows}

    def order(row: Row) -> list[tuple[float, str | int]]:
        ways = (row.path[: length + 1] for length in range(len(row.path)))
        return [(-seconds[way], way[-1]) for way in ways]

    return sorted(profile.rows, key=order)
