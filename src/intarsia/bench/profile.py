# SPDX-License-Identifier: Apache-2.0
"""How long a program takes, and where: kernel by kernel, and how near to the machine's limits."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from intarsia.cost.peak import Peak, measured_peak
from intarsia.errors import SettingError
from intarsia.measure.timing import Spread, measure_streams
from intarsia.plan.plan import CopyStep
from intarsia.runtime.feeds import check_feeds

if TYPE_CHECKING:
    from intarsia.backends.device import Step
    from intarsia.backends.values import KernelCall
    from intarsia.runtime.executor import PlanExecutable


@dataclass(frozen=True, slots=True)
class Row:
    """One call.

    Attributes:
        kernel: What it is called; of what shows no kernels, `region` or `copy`.
        target: Where it runs.
        nodes: Names of the nodes that it computes; none for a copy, or a conversion of a layout.
        shape: What it reads first and what it writes.
        note: Its schedule or algorithm, in words.
        seconds: The median over the rounds.
        share: Part of the sum over all calls.
        flop: Operations of its nodes; Winograd's transforms do fewer.
        nbytes: What it reads and writes, each byte once.
        of_compute: Part of the machine's peak operations in a second; of Winograd's algorithm, by
            the products that it leaves.
        of_memory: Part of the bandwidth of what holds its bytes, caches or memory.
        schedule: Where the schedule is from: `heuristic` or `tuned`.
    """

    kernel: str
    target: str
    nodes: tuple[str, ...]
    shape: str
    note: str
    seconds: float
    share: float
    flop: int
    nbytes: int
    of_compute: float
    of_memory: float
    schedule: str = ""

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
        rows: In the order in which they run.
        seconds: The median of whole runs, in the same rounds.
        rounds: How many runs were timed.
        threads: Threads of one run.
        peak_flop_per_second: What multiply-adds alone, or the best of the calls, reach here.
        bytes_per_second: What copies or calls reach here, beyond the caches.
        cache_bytes_per_second: The same inside the caches.
    """

    rows: tuple[Row, ...]
    seconds: float
    rounds: int
    threads: int
    peak_flop_per_second: float
    bytes_per_second: float
    cache_bytes_per_second: float


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
    context.run()
    calls = context.kernel_steps()
    whole: list[float] = []
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        whole.append(_time(context.run))
        for times, (_, _, step) in zip(seconds, calls, strict=True):
            times.append(_time(step))
    medians = [statistics.median(times) for times in seconds]
    total = sum(medians)
    machine = measured_peak(threads)
    work = [
        (_products(call) if call else 0, _bytes_moved(executable, position, call), median)
        for (position, call, _), median in zip(calls, medians, strict=True)
        if median
    ]
    machine, peak = raise_peaks(machine, max(_peak(threads), machine.flops("float32")), work)
    rows = [
        _row(executable, position, call, median, (total, peak, machine.bandwidth))
        for (position, call, _), median in zip(calls, medians, strict=True)
    ]
    return KernelProfile(
        rows=tuple(rows),
        seconds=statistics.median(whole),
        rounds=rounds,
        threads=threads,
        peak_flop_per_second=peak,
        bytes_per_second=machine.bytes_per_second,
        cache_bytes_per_second=machine.cache_bytes_per_second,
    )


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


def _bytes_moved(executable: PlanExecutable, position: int, call: KernelCall | None) -> int:
    if call is not None:
        return call.nbytes
    step = executable.plan.steps[position]
    return step.nbytes if isinstance(step, CopyStep) else 0


def _time(step: Step) -> float:
    start = perf_counter()
    step()
    return perf_counter() - start


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
    executable: PlanExecutable,
    position: int,
    call: KernelCall | None,
    seconds: float,
    limits: tuple[float, float, Any],
) -> Row:
    total, peak, bandwidth = limits
    plan, step = executable.plan, executable.plan.steps[position]
    share = seconds / total if total else 0.0
    if isinstance(step, CopyStep):
        tensor = plan.tensors[step.source]
        shape = "x".join(map(str, tensor.shape or ()))
        rate = step.nbytes / seconds / bandwidth(step.nbytes) if seconds else 0.0
        target = plan.devices[plan.tensors[step.destination].device]
        row = ("copy", target, (), shape, tensor.name, seconds, share, 0, step.nbytes, 0.0, rate)
        return Row(*row)
    region = plan.placement.regions[step.region]
    if call is None:
        nodes = tuple(node.name for node in region.nodes)
        shape = f"{len(nodes)} nodes"
        return Row(
            kernel="region",
            target=region.target,
            nodes=nodes,
            shape=shape,
            note=region.operators,
            seconds=seconds,
            share=share,
            flop=0,
            nbytes=0,
            of_compute=0,
            of_memory=0,
        )
    of_compute = _products(call) / seconds / peak if seconds and peak else 0.0
    of_memory = call.nbytes / seconds / bandwidth(call.nbytes) if seconds else 0.0
    return Row(
        kernel=call.kernel,
        target=region.target,
        nodes=call.nodes,
        shape=call.shape,
        note=call.note,
        seconds=seconds,
        share=share,
        flop=call.flop,
        nbytes=call.nbytes,
        of_compute=of_compute,
        of_memory=of_memory,
        schedule=call.schedule,
    )


def slowest(profile: KernelProfile) -> Sequence[Row]:
    """Return the calls, those first that take most."""
    return sorted(profile.rows, key=lambda row: -row.seconds)
