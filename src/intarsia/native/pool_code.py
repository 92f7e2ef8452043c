# SPDX-License-Identifier: Apache-2.0
"""The code of the thread pool: workers, how they claim chunks, how they sleep.

All state is one block of memory. A job is (kernel, arguments, extent, chunks); chunk i is the turns
from `i * extent / chunks` up to `(i + 1) * extent / chunks`.

Every thread, the caller being the first, has a *slot* with an equal share of the chunks, one after
the other. It takes those of its own slot, then what others have left. So the same turns mostly meet
the same thread in one kernel and the next, and find their data in its caches: fetching what another
CPU has just written took longer than computing it, in kernels of some tens of microseconds.

* The caller writes the job, sets `pending` to the number of chunks and then `remaining` of each
  slot to its share (release), and adds 1 to `generation`, which is what idle workers look at. Then
  it works like everyone.
* A working thread subtracts 1 from a slot's `remaining` (acquire and release). What was there
  before is positive if it got a chunk; the job is read after that, so it is the job that the chunk
  is of: the caller does not write the next one before all chunks that were claimed are done.
* A thread that is done with a chunk subtracts 1 from `pending` (release). The caller waits for 0
  (acquire). A worker that never came to claim one is not waited for.

Several callers take turns, kernel by kernel, in the order in which they come (a ticket lock: Reed
and Kanodia, "Synchronization with eventcounts and sequencers", 1979), so that each has its fair
share. If there are as many as the pool has threads, each runs alone instead: then all CPUs are at
work anyway, and nobody has to wait.

A waiting thread first spins, then sleeps. A lost wake-up is ruled out in the usual way: the
sleeper says that it sleeps (`sleepers`, `is_awaited`), then looks again; the waker changes the
word, then looks for sleepers. These four are sequentially consistent.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_byte, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from intarsia.native.routine import (
    KERNEL,
    PARALLEL_FOR,
    Cell,
    ParallelCall,
    Record,
    Register,
    Routine,
    declare,
    define_table,
    new_module,
)


class PoolState(ctypes.Structure):
    """The state that all threads share; a slot for each of them lies behind it.

    What different threads write lies 128 bytes apart: CPUs fetch cache lines in pairs.
    """

    _fields_ = (
        ("job", ParallelCall),
        ("_job_line", c_byte * 96),
        ("pending", c_uint32),
        ("is_awaited", c_uint32),
        ("_pending_line", c_byte * 120),
        ("generation", c_uint32),
        ("sleepers", c_uint32),
        ("is_closed", c_uint32),
        ("_generation_line", c_byte * 116),
        ("callers", c_uint32),
        ("tickets", c_uint32),
        ("serving", c_uint32),
        ("waiting", c_uint32),
        ("is_started", c_uint32),
        ("workers", c_uint32),
        ("_callers_line", c_byte * 104),
        ("wanted", c_uint32),
        ("spins", c_uint32),
        ("_wanted_line", c_byte * 120),
        ("mutex", c_byte * 128),
        ("condition", c_byte * 128),
    )


class PoolSlot(ctypes.Structure):
    """What a thread has: chunks that are left, the end of its chunks, and what the thread is."""

    _fields_ = (
        ("remaining", c_int64),
        ("end", c_uint64),
        ("pool", c_void_p),
        ("handle", c_void_p),
        ("_line", c_byte * 96),
    )


def pool_text(name: str, architecture: str, set_mask: int, has_futex: bool) -> str:
    """Return the module, which defines a table of two entry points: `parallel_for` and `stop`.

    Args:
        name: Of the table.
        architecture: Of this machine, as `platform.machine()` says it.
        set_mask: The system's SIG_SETMASK.
        has_futex: Whether to sleep on Linux's futex, rather than on a condition variable.
    """
    module = new_module()
    sleep = _futex(module, architecture) if has_futex else _condition(module)
    pause = _PAUSES.get(architecture, "")
    work = _define_work(module, sleep)
    worker = _define_worker(module, sleep, work, pause)
    start = _define_start(module, sleep, worker, set_mask)
    parallel_for = _define_parallel_for(module, sleep, work, start, pause)
    define_table(module, name, (parallel_for, _define_stop(module, sleep)))
    return str(module)


# Of the system call: of Linux on x86-64, and of the table that newer architectures share
# (include/uapi/asm-generic/unistd.h). Operations are FUTEX_WAIT and FUTEX_WAKE, 0 and 1, with
# FUTEX_PRIVATE_FLAG, 128 (futex(2)): no other process has the word.
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129
_ALL = 0x7FFFFFFF


def has_futex(system: str, architecture: str) -> bool:
    """Tell whether threads sleep on a futex here."""
    return system == "linux" and architecture in _FUTEX_NUMBERS


# Arm's own hint, `yield`, does nothing on most of its cores; `isb` waits for some tens of cycles,
# as Rust's `spin_loop` has it.
_PAUSES = {"x86_64": "pause", "aarch64": "isb", "arm64": "isb"}


@dataclass(frozen=True, slots=True)
class _Sleep:
    """How threads sleep.

    Attributes:
        prepare: Of (pool); called once before threads start.
        wait: Of (pool, word, expected): sleep unless the word has changed; may return early.
        wake: Of (pool, word, count): wake so many of those that sleep for the word, at least.
    """

    prepare: Routine
    wait: Routine
    wake: Routine


def _begin_sleep(module: Any) -> _Sleep:
    word = (None, c_void_p, c_void_p, c_uint32)
    return _Sleep(
        Routine(module, "prepare", None, c_void_p),
        Routine(module, "wait", *word),
        Routine(module, "wake", *word),
    )


def _futex(module: Any, architecture: str) -> _Sleep:
    syscall = declare(module, "syscall", c_int64, c_int64, is_variadic=True)
    number = _FUTEX_NUMBERS[architecture]
    sleep = _begin_sleep(module)
    _, word, expected = sleep.wait.parameters
    sleep.wait.call(syscall, number, word, _FUTEX_WAIT, expected, None)
    _, word, count = sleep.wake.parameters
    sleep.wake.call(syscall, number, word, _FUTEX_WAKE, count)
    for routine in (sleep.prepare, sleep.wait, sleep.wake):
        routine.give_back()
    return sleep


def _condition(module: Any) -> _Sleep:
    lock = declare(module, "pthread_mutex_lock", c_int32, c_void_p)
    unlock = declare(module, "pthread_mutex_unlock", c_int32, c_void_p)
    sleep = _begin_sleep(module)

    code = sleep.prepare
    pool = Record(code.parameters[0], PoolState)
    for field, name in (("mutex", "pthread_mutex_init"), ("condition", "pthread_cond_init")):
        code.call(declare(module, name, c_int32, c_void_p, c_void_p), pool[field], None)
    code.give_back()

    code = sleep.wait
    pool, word = Record(code.parameters[0], PoolState), Cell(code.parameters[1], c_uint32)
    wait = declare(module, "pthread_cond_wait", c_int32, c_void_p, c_void_p)
    # The word is read under the mutex, and so is every wake: no wake falls between look and sleep.
    code.call(lock, pool["mutex"])
    with code.when(word.load("seq_cst"), "==", code.parameters[2]):
        code.call(wait, pool["condition"], pool["mutex"])
    code.call(unlock, pool["mutex"])
    code.give_back()

    code = sleep.wake
    pool = Record(code.parameters[0], PoolState)
    code.call(lock, pool["mutex"])
    code.call(declare(module, "pthread_cond_broadcast", c_int32, c_void_p), pool["condition"])
    code.call(unlock, pool["mutex"])
    code.give_back()
    return sleep


def _run_chunk(code: Routine, job: Record, chunk: Register) -> None:
    kernel, arguments, extent, chunks = job.load()
    start = chunk * extent
    bounds = start // chunks, (start + extent) // chunks
    code.call(kernel.function(*KERNEL), arguments, *bounds)


@contextmanager
def _spin(code: Routine, spins: Register, pause: str) -> Iterator[None]:
    """Look again and again at what is written inside, as long as a waiting thread may spin."""
    looks = code.variable(c_uint32, 0)
    with code.repeat() as spin:
        yield
        spin.end_if(looks.load(), ">=", spins)
        # Without it an x86 CPU takes the load that ends the loop for a violation of memory order
        # and starts its pipeline anew (Intel SDM, PAUSE).
        if pause:
            code.instruct(pause)
        looks.store(looks.load() + 1)


def _define_work(module: Any, sleep: _Sleep) -> Routine:
    """Run chunks of the current job until none is left, those of a slot first."""
    code = Routine(module, "work", None, c_void_p, c_void_p)
    pool, own = Record(code.parameters[0], PoolState), code.parameters[1]
    job, pending = Record(pool.address, ParallelCall), pool["pending"]
    first = pool.behind(PoolSlot)
    last = first.item(pool["wanted"].load())
    current = code.variable(c_void_p, own)
    with code.repeat() as turn:
        slot = Record(current.load(), PoolSlot)
        with code.repeat() as claim:
            # looked at first: a claim takes the cache line away from other threads
            claim.end_if(slot["remaining"].load("monotonic"), "<=", 0)
            before = slot["remaining"].update("sub", 1, "acq_rel")
            claim.end_if(before, "<=", 0)
            _run_chunk(code, job, slot["end"].load() - before)
            # Who finishes the last chunk, and nobody else, wakes the caller.
            with code.when(pending.update("sub", 1, "seq_cst"), "==", 1):
                with code.when(pool["is_awaited"].load("seq_cst"), "!=", 0):
                    code.call(sleep.wake, pool, pending, 1)
                code.give_back()
        current.store(slot.item(1))
        with code.when(slot.address, "==", last):
            current.store(first)
        turn.end_if(current.load(), "==", own)
    code.give_back()
    return code


def _define_worker(module: Any, sleep: _Sleep, work: Routine, pause: str) -> Routine:
    """Do what a worker does all its life."""
    code = Routine(module, "worker", c_void_p, c_void_p)
    (own,) = code.parameters
    pool = Record(Record(own, PoolSlot)["pool"].load(), PoolState)
    generation, spins = pool["generation"], pool["spins"].load()
    with code.repeat() as life:
        seen = generation.load("acquire")
        life.end_if(pool["is_closed"].load("acquire"), "!=", 0)
        code.call(work, pool, own)
        with _spin(code, spins, pause):
            life.next_if(generation.load("monotonic"), "!=", seen)
        pool["sleepers"].update("add", 1, "seq_cst")
        with code.when(generation.load("seq_cst"), "==", seen):
            code.call(sleep.wait, pool, generation, seen)
        pool["sleepers"].update("sub", 1, "seq_cst")
    code.give_back()
    return code


def _define_start(module: Any, sleep: _Sleep, worker: Routine, set_mask: int) -> Routine:
    """Create the workers, with all signals blocked: those are for Python's threads."""
    fill = declare(module, "sigfillset", c_int32, c_void_p)
    set_signals = declare(module, "pthread_sigmask", c_int32, c_int32, c_void_p, c_void_p)
    create = declare(module, "pthread_create", c_int32, *[c_void_p] * 4)
    code = Routine(module, "start", None, c_void_p)
    pool = Record(code.parameters[0], PoolState)
    # Masks of signals have 128 bytes with glibc and no more elsewhere.
    every_signal, before = (code.local(c_byte * 128, align=16) for _ in range(2))
    code.call(sleep.prepare, pool)
    wanted = pool["wanted"].load()
    code.call(fill, every_signal)
    code.call(set_signals, set_mask, every_signal, before)
    created = code.variable(c_uint32, 0)
    with code.repeat() as turn:
        number = created.load()
        turn.end_if(number, ">=", wanted)
        slot = pool.behind(PoolSlot).item(number + 1)
        slot["pool"].store(pool)
        problem = code.call(create, slot["handle"], None, worker, slot)
        turn.end_if(problem, "!=", 0)
        created.store(number + 1)
    code.call(set_signals, set_mask, before, None)
    pool["workers"].store(created.load())
    pool["is_started"].store(1)
    code.give_back()
    return code


def _await_turn(code: Routine, pool: Record, sleep: _Sleep, pause: str) -> None:
    """Draw a ticket, and wait until it is served."""
    serving, waiting = pool["serving"], pool["waiting"]
    ticket = pool["tickets"].update("add", 1, "monotonic")
    with code.repeat() as queue:
        with _spin(code, pool["spins"].load(), pause):
            queue.end_if(serving.load("acquire"), "==", ticket)
        waiting.update("add", 1, "seq_cst")
        served = serving.load("seq_cst")
        with code.when(served, "!=", ticket):
            code.call(sleep.wait, pool, serving, served)
        waiting.update("sub", 1, "seq_cst")
        queue.end_if(serving.load("acquire"), "==", ticket)


def _end_turn(code: Routine, pool: Record, sleep: _Sleep) -> None:
    """Serve the next ticket."""
    pool["serving"].update("add", 1, "seq_cst")
    with code.when(pool["waiting"].load("seq_cst"), "!=", 0):
        code.call(sleep.wake, pool, pool["serving"], _ALL)  # of them, the next one alone goes on


def _define_parallel_for(
    module: Any, sleep: _Sleep, work: Routine, start: Routine, pause: str
) -> Routine:
    """Run all turns of a kernel; alone if there are as many callers as threads, or if closed."""
    code = Routine(module, "parallel_for", *PARALLEL_FOR)
    state, kernel, arguments, extent, chunks = code.parameters
    pool = Record(state, PoolState)
    pending, generation = pool["pending"], pool["generation"]

    callers = pool["callers"]

    def run_alone() -> None:
        code.call(kernel.function(*KERNEL), arguments, 0, extent)
        callers.update("sub", 1, "release")
        code.give_back()

    with code.when(callers.update("add", 1, "acquire"), ">=", pool["wanted"].load()):
        run_alone()
    _await_turn(code, pool, sleep, pause)
    with code.when(pool["is_closed"].load("acquire"), "!=", 0):
        _end_turn(code, pool, sleep)
        run_alone()
    with code.when(pool["is_started"].load(), "==", 0):
        code.call(start, pool)

    Record(state, ParallelCall).store(kernel, arguments, extent, chunks)
    pending.store(chunks.convert(c_uint32), "monotonic")
    threads = (pool["wanted"].load() + 1).convert(c_uint64)
    begin = code.variable(c_uint64, 0)
    with code.count(threads) as thread:
        end = (thread + 1) * chunks // threads
        slot = pool.behind(PoolSlot).item(thread)
        slot["end"].store(end)
        slot["remaining"].store(end - begin.load(), "release")
        begin.store(end)

    # After the slots: who sees the new number sees the shares, and the job behind them.
    generation.update("add", 1, "seq_cst")
    with code.when(pool["sleepers"].load("seq_cst"), "!=", 0):
        # One chunk fewer than there are: the caller takes one itself.
        code.call(sleep.wake, pool, generation, chunks.convert(c_uint32) - 1)
    code.call(work, pool, pool.behind(PoolSlot))
    with code.repeat() as done:
        with _spin(code, pool["spins"].load(), pause):
            done.end_if(pending.load("acquire"), "==", 0)
        pool["is_awaited"].store(1, "seq_cst")
        with code.repeat() as look:
            left = pending.load("seq_cst")
            look.end_if(left, "==", 0)
            code.call(sleep.wait, pool, pending, left)
        pool["is_awaited"].store(0, "monotonic")
        done.end()
    _end_turn(code, pool, sleep)
    callers.update("sub", 1, "release")
    code.give_back()
    return code


def _define_stop(module: Any, sleep: _Sleep) -> Routine:
    """End the workers and wait for them; for good."""
    join = declare(module, "pthread_join", c_int32, c_void_p, c_void_p)
    code = Routine(module, "stop", None, c_void_p)
    pool = Record(code.parameters[0], PoolState)
    pool["is_closed"].store(1, "seq_cst")
    pool["generation"].update("add", 1, "seq_cst")
    with code.when(pool["is_started"].load(), "!=", 0):
        code.call(sleep.wake, pool, pool["generation"], _ALL)
        with code.count(pool["workers"].load()) as number:
            slot = pool.behind(PoolSlot).item(number + 1)
            code.call(join, slot["handle"].load(), None)
    code.give_back()
    return code


class _TeamState(ctypes.Structure):
    _fields_ = (("gomp_parallel", c_void_p), ("threads", c_uint32))


class _TeamJob(ctypes.Structure):
    _fields_ = (("job", ParallelCall), ("next_chunk", c_int64))


def team_text(name: str) -> str:
    """Return the module, which defines what runs a kernel on the team of an OpenMP runtime.

    Args:
        name: Of the function; its state is where `GOMP_parallel` is and how many threads there are.
    """
    module = new_module()
    work = Routine(module, "work", None, c_void_p)
    shared = Record(work.parameters[0], _TeamJob)
    job = Record(shared.address, ParallelCall)
    with work.repeat() as turn:
        # Claims need no order of memory: what one thread wrote before the runtime's region every
        # thread of it sees, and the region's end is a barrier.
        chunk = shared["next_chunk"].update("add", 1, "monotonic")
        turn.end_if(chunk, ">=", job["chunks"].load())
        _run_chunk(work, job, chunk)
    work.give_back()

    code = Routine(module, name, *PARALLEL_FOR, is_exported=True)
    state, kernel, arguments, extent, chunks = code.parameters
    threads = Record(state, _TeamState)["threads"].load()
    with code.choose(threads, ">", 1) as (several, alone):
        with several:
            shared = Record(code.local(_TeamJob, align=64), _TeamJob)
            Record(shared.address, ParallelCall).store(kernel, arguments, extent, chunks)
            shared["next_chunk"].store(0)
            gomp_parallel = Record(state, _TeamState)["gomp_parallel"].load()
            prototype = (None, c_void_p, c_void_p, c_uint32, c_uint32)
            code.call(gomp_parallel.function(*prototype), work, shared, threads, 0)
        with alone:
            code.call(kernel.function(*KERNEL), arguments, 0, extent)
    code.give_back()
    return str(module)
