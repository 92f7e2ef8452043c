# SPDX-License-Identifier: Apache-2.0
"""The thread pool in LLVM IR: workers, how they claim chunks, how they sleep.

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

A waiting thread first spins, then sleeps. A lost wake-up is ruled out in the usual way: the
sleeper says that it sleeps (`sleepers`, `is_awaited`), then looks again; the waker changes the
word, then looks for sleepers. These four are sequentially consistent.
"""

from __future__ import annotations

from collections.abc import Mapping

# What different threads write lies 128 bytes apart: CPUs fetch cache lines in pairs.
FIELDS: Mapping[str, int] = {
    "kernel": 0,
    "arguments": 8,
    "extent": 16,
    "chunks": 24,
    "pending": 128,
    "is_awaited": 132,
    "generation": 256,
    "sleepers": 260,
    "is_closed": 264,
    "is_busy": 384,
    "is_started": 388,
    "workers": 392,
    "wanted": 512,
    "spins": 516,
    "mutex": 640,
    "condition": 768,
    "slots": 896,
}
"""Offsets in the state, in bytes."""

_SLOT_BYTES = 128
_SLOT_FIELDS: Mapping[str, int] = {"remaining": 0, "end": 8, "pool": 16, "handle": 24}
"""Offsets in a slot: chunks that are left, the end of its chunks, and what its thread is."""

PARALLEL_FOR, STOP = range(2)
"""Positions in the table of entry points."""


def state_bytes(workers: int) -> int:
    """Return the size of the state."""
    return FIELDS["slots"] + _SLOT_BYTES * (workers + 1)


def pool_text(name: str, architecture: str, set_mask: int, *, has_futex: bool) -> str:
    """Return the module, which defines a table of entry points.

    Args:
        name: Of the table.
        architecture: Of this machine, as `platform.machine()` says it.
        set_mask: The system's SIG_SETMASK.
        has_futex: Whether to sleep on Linux's futex, rather than on a condition variable.
    """
    sleep = _FUTEX.format(number=_FUTEX_NUMBERS[architecture]) if has_futex else _CONDITION
    pause = _PAUSES.get(architecture, "")
    module = _MODULE.format(
        name=name,
        pause=pause and f'call void asm sideeffect "{pause}", ""()',
        set_mask=set_mask,
        slot_bytes=_SLOT_BYTES,
    )
    return _fields() + sleep + module


# Of the system call: of Linux on x86-64, and of the table that newer architectures share
# (include/uapi/asm-generic/unistd.h). Operations are FUTEX_WAIT and FUTEX_WAKE, 0 and 1, with
# FUTEX_PRIVATE_FLAG, 128 (futex(2)): no other process has the word.
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}


def has_futex(system: str, architecture: str) -> bool:
    """Tell whether threads sleep on a futex here."""
    return system == "linux" and architecture in _FUTEX_NUMBERS


# Arm's own hint, `yield`, does nothing on most of its cores; `isb` waits for some tens of cycles,
# as Rust's `spin_loop` has it.
_PAUSES = {"x86_64": "pause", "aarch64": "isb", "arm64": "isb"}


def _fields() -> str:
    """Return a function for each field that gives its address in the state, or in a slot."""
    return "".join(
        f"define internal ptr @{name}(ptr %base) alwaysinline {{\n"
        f"  %at = getelementptr i8, ptr %base, i64 {offset}\n"
        "  ret ptr %at\n}\n"
        for name, offset in (*FIELDS.items(), *_SLOT_FIELDS.items())
    )


_FUTEX = """
declare i64 @syscall(i64, ...)

; sleep unless the word has changed already; may return early
define internal void @wait(ptr %pool, ptr %word, i32 %expected) {{
  call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 128, i32 %expected, ptr null)
  ret void
}}

define internal void @wake(ptr %pool, ptr %word, i32 %count) {{
  call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 129, i32 %count)
  ret void
}}

define internal void @prepare(ptr %pool) {{
  ret void
}}
"""

# The word is read under the mutex, and so is every wake: so no wake falls between look and sleep.
_CONDITION = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

; sleep unless the word has changed already; may return early
define internal void @wait(ptr %pool, ptr %word, i32 %expected) {
entry:
  %mutex = call ptr @mutex(ptr %pool)
  %condition = call ptr @condition(ptr %pool)
  call i32 @pthread_mutex_lock(ptr %mutex)
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %expected
  br i1 %same, label %sleep, label %done
sleep:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %done
done:
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

define internal void @wake(ptr %pool, ptr %word, i32 %count) {
  %mutex = call ptr @mutex(ptr %pool)
  %condition = call ptr @condition(ptr %pool)
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}

define internal void @prepare(ptr %pool) {
  %mutex = call ptr @mutex(ptr %pool)
  %condition = call ptr @condition(ptr %pool)
  call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}
"""

# Masks of signals have 128 bytes with glibc and no more elsewhere.
_MODULE = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(ptr, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)

; the slot of a thread, by its number
define internal ptr @slot(ptr %pool, i32 %thread) alwaysinline {{
  %slots = call ptr @slots(ptr %pool)
  %start = mul i32 %thread, {slot_bytes}
  %at = getelementptr i8, ptr %slots, i32 %start
  ret ptr %at
}}

; run chunks of the current job until none is left, those of a slot first
define internal void @work(ptr %pool, ptr %own) {{
entry:
  %pending = call ptr @pending(ptr %pool)
  %wanted.at = call ptr @wanted(ptr %pool)
  %wanted = load i32, ptr %wanted.at, align 4
  %first = call ptr @slots(ptr %pool)
  %last.slot = call ptr @slot(ptr %pool, i32 %wanted)
  br label %share
share:
  %slot = phi ptr [ %own, %entry ], [ %other, %next.share ]
  %remaining = call ptr @remaining(ptr %slot)
  br label %look
look:
  %left = load atomic i64, ptr %remaining monotonic, align 8
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %claim, label %next.share
claim:
  %before = atomicrmw sub ptr %remaining, i64 1 acq_rel, align 8
  %mine = icmp sgt i64 %before, 0
  br i1 %mine, label %run, label %next.share
next.share:
  %is_last = icmp eq ptr %slot, %last.slot
  %after = getelementptr i8, ptr %slot, i64 {slot_bytes}
  %other = select i1 %is_last, ptr %first, ptr %after
  %round = icmp eq ptr %other, %own
  br i1 %round, label %done, label %share
run:
  %kernel.at = call ptr @kernel(ptr %pool)
  %kernel = load ptr, ptr %kernel.at, align 8
  %arguments.at = call ptr @arguments(ptr %pool)
  %arguments = load ptr, ptr %arguments.at, align 8
  %extent.at = call ptr @extent(ptr %pool)
  %extent = load i64, ptr %extent.at, align 8
  %chunks.at = call ptr @chunks(ptr %pool)
  %chunks = load i64, ptr %chunks.at, align 8
  %share.end.at = call ptr @end(ptr %slot)
  %share.end = load i64, ptr %share.end.at, align 8
  %chunk = sub i64 %share.end, %before
  %next = add i64 %chunk, 1
  %begin.product = mul i64 %chunk, %extent
  %begin = udiv i64 %begin.product, %chunks
  %end.product = mul i64 %next, %extent
  %end = udiv i64 %end.product, %chunks
  call void %kernel(ptr %arguments, i64 %begin, i64 %end)
  %unfinished = atomicrmw sub ptr %pending, i32 1 seq_cst, align 4
  %last = icmp eq i32 %unfinished, 1
  br i1 %last, label %tell, label %look
tell:
  %is_awaited = call ptr @is_awaited(ptr %pool)
  %awaited = load atomic i32, ptr %is_awaited seq_cst, align 4
  %asleep = icmp ne i32 %awaited, 0
  br i1 %asleep, label %rouse, label %done
rouse:
  call void @wake(ptr %pool, ptr %pending, i32 1)
  br label %done
done:
  ret void
}}

; what a worker does all its life
define internal ptr @worker(ptr %own) {{
entry:
  %pool.at = call ptr @pool(ptr %own)
  %pool = load ptr, ptr %pool.at, align 8
  %generation = call ptr @generation(ptr %pool)
  %sleepers = call ptr @sleepers(ptr %pool)
  %is_closed = call ptr @is_closed(ptr %pool)
  %spins.at = call ptr @spins(ptr %pool)
  %spins = load i32, ptr %spins.at, align 4
  br label %turn
turn:
  %seen = load atomic i32, ptr %generation acquire, align 4
  %closed = load atomic i32, ptr %is_closed acquire, align 4
  %open = icmp eq i32 %closed, 0
  br i1 %open, label %job, label %done
job:
  call void @work(ptr %pool, ptr %own)
  br label %spin
spin:
  %i = phi i32 [ 0, %job ], [ %i.next, %pause ]
  %now = load atomic i32, ptr %generation monotonic, align 4
  %same = icmp eq i32 %now, %seen
  br i1 %same, label %idle, label %turn
idle:
  %patient = icmp ult i32 %i, %spins
  br i1 %patient, label %pause, label %drowsy
pause:
  {pause}
  %i.next = add i32 %i, 1
  br label %spin
drowsy:
  atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  %again = load atomic i32, ptr %generation seq_cst, align 4
  %still = icmp eq i32 %again, %seen
  br i1 %still, label %sleep, label %awake
sleep:
  call void @wait(ptr %pool, ptr %generation, i32 %seen)
  br label %awake
awake:
  atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  br label %turn
done:
  ret ptr null
}}

; create the workers, with all signals blocked: those are for Python's threads
define internal void @start(ptr %pool) {{
entry:
  %all = alloca [128 x i8], align 16
  %old = alloca [128 x i8], align 16
  call void @prepare(ptr %pool)
  %wanted.at = call ptr @wanted(ptr %pool)
  %wanted = load i32, ptr %wanted.at, align 4
  call i32 @sigfillset(ptr %all)
  call i32 @pthread_sigmask(i32 {set_mask}, ptr %all, ptr %old)
  br label %check
check:
  %i = phi i32 [ 0, %entry ], [ %next, %created ]
  %more = icmp ult i32 %i, %wanted
  br i1 %more, label %create, label %done
create:
  %next = add i32 %i, 1
  %slot = call ptr @slot(ptr %pool, i32 %next)
  %pool.at = call ptr @pool(ptr %slot)
  store ptr %pool, ptr %pool.at, align 8
  %handle = call ptr @handle(ptr %slot)
  %problem = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %slot)
  %fine = icmp eq i32 %problem, 0
  br i1 %fine, label %created, label %done
created:
  br label %check
done:
  call i32 @pthread_sigmask(i32 {set_mask}, ptr %old, ptr null)
  %workers = call ptr @workers(ptr %pool)
  store i32 %i, ptr %workers, align 4
  %is_started = call ptr @is_started(ptr %pool)
  store i32 1, ptr %is_started, align 4
  ret void
}}

; run all turns of a kernel; alone if the pool is at work for another thread, or closed
define internal void @parallel_for(
    ptr %pool, ptr %kernel, ptr %arguments, i64 %extent, i64 %chunks) {{
entry:
  %is_closed = call ptr @is_closed(ptr %pool)
  %is_busy = call ptr @is_busy(ptr %pool)
  %generation = call ptr @generation(ptr %pool)
  %pending = call ptr @pending(ptr %pool)
  %is_awaited = call ptr @is_awaited(ptr %pool)
  %spins.at = call ptr @spins(ptr %pool)
  %spins = load i32, ptr %spins.at, align 4
  %pair = cmpxchg ptr %is_busy, i32 0, i32 1 acquire monotonic, align 4
  %free = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %free, label %own, label %alone
alone:
  call void %kernel(ptr %arguments, i64 0, i64 %extent)
  ret void
own:
  %closed = load atomic i32, ptr %is_closed acquire, align 4
  %open = icmp eq i32 %closed, 0
  br i1 %open, label %usable, label %leave
leave:
  store atomic i32 0, ptr %is_busy release, align 4
  br label %alone
usable:
  %is_started = call ptr @is_started(ptr %pool)
  %started = load i32, ptr %is_started, align 4
  %runs = icmp ne i32 %started, 0
  br i1 %runs, label %publish, label %first
first:
  call void @start(ptr %pool)
  br label %publish
publish:
  %kernel.at = call ptr @kernel(ptr %pool)
  store ptr %kernel, ptr %kernel.at, align 8
  %arguments.at = call ptr @arguments(ptr %pool)
  store ptr %arguments, ptr %arguments.at, align 8
  %extent.at = call ptr @extent(ptr %pool)
  store i64 %extent, ptr %extent.at, align 8
  %chunks.at = call ptr @chunks(ptr %pool)
  store i64 %chunks, ptr %chunks.at, align 8
  %count = trunc i64 %chunks to i32
  store atomic i32 %count, ptr %pending monotonic, align 4
  %wanted.at = call ptr @wanted(ptr %pool)
  %wanted = load i32, ptr %wanted.at, align 4
  %threads.32 = add i32 %wanted, 1
  %threads = zext i32 %threads.32 to i64
  br label %deal
deal:
  %thread = phi i64 [ 0, %publish ], [ %thread.next, %deal ]
  %begin = phi i64 [ 0, %publish ], [ %end, %deal ]
  %thread.next = add i64 %thread, 1
  %product = mul i64 %thread.next, %chunks
  %end = udiv i64 %product, %threads
  %share = sub i64 %end, %begin
  %thread.32 = trunc i64 %thread to i32
  %slot = call ptr @slot(ptr %pool, i32 %thread.32)
  %end.at = call ptr @end(ptr %slot)
  store i64 %end, ptr %end.at, align 8
  %remaining = call ptr @remaining(ptr %slot)
  store atomic i64 %share, ptr %remaining release, align 8
  %dealt = icmp eq i64 %thread.next, %threads
  br i1 %dealt, label %announce, label %deal
announce:
  atomicrmw add ptr %generation, i32 1 seq_cst, align 4
  %sleepers.at = call ptr @sleepers(ptr %pool)
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %rouse, label %help
rouse:
  %others = sub i32 %count, 1
  call void @wake(ptr %pool, ptr %generation, i32 %others)
  br label %help
help:
  %own.slot = call ptr @slots(ptr %pool)
  call void @work(ptr %pool, ptr %own.slot)
  br label %spin
spin:
  %i = phi i32 [ 0, %help ], [ %i.next, %pause ]
  %left = load atomic i32, ptr %pending acquire, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %release, label %unfinished
unfinished:
  %patient = icmp ult i32 %i, %spins
  br i1 %patient, label %pause, label %drowsy
pause:
  {pause}
  %i.next = add i32 %i, 1
  br label %spin
drowsy:
  store atomic i32 1, ptr %is_awaited seq_cst, align 4
  br label %again
again:
  %last = load atomic i32, ptr %pending seq_cst, align 4
  %over = icmp eq i32 %last, 0
  br i1 %over, label %awake, label %sleep
sleep:
  call void @wait(ptr %pool, ptr %pending, i32 %last)
  br label %again
awake:
  store atomic i32 0, ptr %is_awaited monotonic, align 4
  br label %release
release:
  store atomic i32 0, ptr %is_busy release, align 4
  ret void
}}

; end the workers and wait for them; for good
define internal void @stop(ptr %pool) {{
entry:
  %is_closed = call ptr @is_closed(ptr %pool)
  store atomic i32 1, ptr %is_closed seq_cst, align 4
  %generation = call ptr @generation(ptr %pool)
  atomicrmw add ptr %generation, i32 1 seq_cst, align 4
  %is_started = call ptr @is_started(ptr %pool)
  %started = load i32, ptr %is_started, align 4
  %runs = icmp ne i32 %started, 0
  br i1 %runs, label %rouse, label %done
rouse:
  call void @wake(ptr %pool, ptr %generation, i32 2147483647)
  %workers.at = call ptr @workers(ptr %pool)
  %workers = load i32, ptr %workers.at, align 4
  br label %check
check:
  %i = phi i32 [ 0, %rouse ], [ %next, %join ]
  %more = icmp ult i32 %i, %workers
  br i1 %more, label %join, label %done
join:
  %next = add i32 %i, 1
  %slot = call ptr @slot(ptr %pool, i32 %next)
  %handle.at = call ptr @handle(ptr %slot)
  %handle = load ptr, ptr %handle.at, align 8
  call i32 @pthread_join(ptr %handle, ptr null)
  br label %check
done:
  ret void
}}

@{name} = constant [2 x ptr] [ptr @parallel_for, ptr @stop]
"""
