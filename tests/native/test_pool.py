# SPDX-License-Identifier: Apache-2.0
"""The thread pool by itself: every turn runs once, whoever waits is woken, threads come and go."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.forked import answer_of

from intarsia.cpus import available_cpus
from intarsia.native.callpath import make_step
from intarsia.native.chunks import chunk_count
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_object, host_machine
from intarsia.native.pool import ThreadPool, find_pool, has_threads

pytestmark = pytest.mark.skipif(not has_threads(), reason="no threads on this system")

# turn i adds 1 to the i-th number of the first argument, and sleeps as many microseconds as the
# second one says
KERNEL = """
declare i32 @usleep(i32)

define void @count(ptr %table, i64 %begin, i64 %end) {
entry:
  %data = load ptr, ptr %table
  %pause.at = getelementptr i8, ptr %table, i64 8
  %pause = load i64, ptr %pause.at
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %continue ]
  %at = getelementptr i64, ptr %data, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %slow = icmp ne i64 %pause, 0
  br i1 %slow, label %sleep, label %continue
sleep:
  %micros = trunc i64 %pause to i32
  call i32 @usleep(i32 %micros)
  br label %continue
continue:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
# turn i writes its thread's identity, counts itself, and waits until as many turns are counted as
# the i-th number of the third argument says, for a minute at most
WHO = """
declare i32 @usleep(i32)
declare i64 @pthread_self()

define void @who(ptr %table, i64 %begin, i64 %end) {
entry:
  %data = load ptr, ptr %table
  %at = getelementptr i64, ptr %data, i64 %begin
  %self = call i64 @pthread_self()
  store i64 %self, ptr %at
  %count.at = getelementptr i8, ptr %table, i64 8
  %count = load ptr, ptr %count.at
  %wanted.at = getelementptr i8, ptr %table, i64 16
  %all.wanted = load ptr, ptr %wanted.at
  %mine = getelementptr i64, ptr %all.wanted, i64 %begin
  %wanted = load i64, ptr %mine
  %before = atomicrmw add ptr %count, i64 1 seq_cst
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %pause ]
  %there = load atomic i64, ptr %count seq_cst, align 8
  %all = icmp sge i64 %there, %wanted
  br i1 %all, label %done, label %look
look:
  %more = icmp slt i64 %i, 60000
  br i1 %more, label %pause, label %done
pause:
  %next = add i64 %i, 1
  call i32 @usleep(i32 1000)
  br label %loop
done:
  ret void
}
"""
VARIANTS = [(True, None), (False, None), (False, False), (True, False)]
"""Whether who waits spins, and whether he sleeps on a futex (None: as this system does)."""


@pytest.fixture(scope="module")
def library():
    host = host_machine()
    return LoadedCode({"count": compile_object(KERNEL, host), "who": compile_object(WHO, host)})


@pytest.fixture(params=VARIANTS, ids=["spin", "sleep", "sleep-condition", "spin-condition"])
def make_pool(request):
    is_spinning, is_on_futex = request.param
    pools = []

    def make(threads):
        pools.append(ThreadPool(threads, is_spinning=is_spinning, is_on_futex=is_on_futex))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def counting_step(library, pool, extents, chunks, pause=0):
    """A step of calls, each of which counts its turns, and what they count in."""
    counts = [np.zeros(extent, np.int64) for extent in extents]
    address = library.addresses["count"]
    calls = [(address, [c.ctypes.data, pause], c.size) for c in counts]
    return make_step(calls, (library, counts), pool, chunks), counts


def tasks():
    """The threads of this process, as the system sees them."""
    return set(Path("/proc/self/task").iterdir())


def starts(wanted, others):
    """Whether this process has so many threads beside others, or will: they come and go late."""
    for _ in range(12_000):
        if len(tasks() - others) == wanted:
            return True
        time.sleep(0.005)
    return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_every_turn_runs_once(library, make_pool, threads):
    pool = make_pool(threads)
    extents, chunks = (1, 2, 5, 1000, 63, 64, 7), (1, 2, 5, 8, 63, 5, 2)
    step, counts = counting_step(library, pool, extents, chunks)
    for run in range(1, 300):
        step()
        for count in counts:
            np.testing.assert_array_equal(count, run)
    assert pool.workers == threads - 1


def test_no_turn_is_lost_in_many_tiny_runs(library, make_pool):
    step, counts = counting_step(library, make_pool(3), [6] * 20, [3] * 20)
    for _ in range(3000):
        step()
    for count in counts:
        np.testing.assert_array_equal(count, 3000)


def test_workers_that_sleep_are_woken(library, make_pool):
    step, (count,) = counting_step(library, make_pool(3), [9], [9], pause=200)
    for run in range(1, 40):
        step()
        np.testing.assert_array_equal(count, run)
        time.sleep(0.002)  # long enough for all to fall asleep


def test_chunks_run_on_several_threads(library, make_pool):
    """While one thread waits in a chunk, the other comes for the next one."""
    who = run_who(library, make_pool(2), [2] * 40)
    assert len(set(who)) == 2
    assert threading.get_ident() in who


def run_who(library, pool, wanted):
    """The threads that ran each turn; a turn ends when as many are counted as it wants."""
    turns = len(wanted)
    arrays = np.zeros(turns, np.uint64), np.zeros(1, np.int64), np.array(wanted, np.int64)
    arguments = [array.ctypes.data for array in arrays]
    call = (library.addresses["who"], arguments, turns)
    make_step([call], (library, arrays), pool, [turns])()
    assert arrays[1][0] == turns
    return arrays[0].tolist()


def test_nobody_waits_for_a_worker_without_a_chunk(library, make_pool):
    """With one turn's worth of chunks for five threads, the job ends with the chunks."""
    step, (count,) = counting_step(library, make_pool(5), [2], [2])
    for _ in range(2000):
        step()
    np.testing.assert_array_equal(count, 2000)


def test_several_callers_share_a_pool(library, make_pool):
    """One has the workers, the others run alone; results are the same."""
    pool = make_pool(3)

    def work(_):
        step, counts = counting_step(library, pool, [50, 8, 3] * 4, [8, 8, 3] * 4)
        for _ in range(500):
            step()
        return all((count == 500).all() for count in counts)

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(work, range(8)))


def test_threads_start_with_the_first_job(library, make_pool):
    pool = make_pool(3)
    assert pool.workers == 0
    step, _ = counting_step(library, pool, [8], [1])
    step()
    assert pool.workers == 0  # one chunk stays with its caller
    step, _ = counting_step(library, pool, [8], [4])
    step()
    assert pool.workers == 2


def test_a_closed_pool_runs_alone(library, make_pool):
    pool = make_pool(3)
    step, (count,) = counting_step(library, pool, [8], [4])
    step()
    pool.close()
    pool.close()
    step()
    np.testing.assert_array_equal(count, 2)


ORDER = """
declare i32 @usleep(i32)

define void @order(ptr %table, i64 %begin, i64 %end) {
  %counter = load ptr, ptr %table
  %mine.at = getelementptr i8, ptr %table, i64 8
  %mine = load ptr, ptr %mine.at
  %number = atomicrmw add ptr %counter, i64 1 seq_cst
  store i64 %number, ptr %mine
  call i32 @usleep(i32 500)
  ret void
}
"""


def test_callers_take_turns(make_pool):
    """Fewer than there are threads, that is: each has its kernels run while the other waits."""
    library = LoadedCode({"order": compile_object(ORDER, host_machine())})
    pool, counter, address = make_pool(3), np.zeros(1, np.int64), library.addresses["order"]
    found, meeting = [np.zeros(400, np.int64) for _ in range(2)], threading.Barrier(2)
    steps = [
        make_step(
            [(address, [counter.ctypes.data, one[i:].ctypes.data], 1) for i in range(one.size)],
            (library, counter, one),
            pool,
            [1] * one.size,
        )
        for one in found
    ]

    def call(step):
        meeting.wait()
        step()

    for _ in range(100):  # until both are at it for long enough
        counter[:] = 0
        threads = [threading.Thread(target=call, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(np.concatenate(found)) == list(range(800))
        first, last = max(one[0] for one in found), min(one[-1] for one in found)
        if last - first > 30:
            break
    else:
        pytest.fail("in none of 100 rounds were both at it at a time")
    streaks = np.diff(found[0][(found[0] >= first) & (found[0] <= last)])
    assert np.median(streaks) == 2


def test_a_pool_is_shared_by_number_of_threads():
    pool = find_pool(2, is_shared=False)
    assert find_pool(2, is_shared=False) is pool
    has_cpus = available_cpus() >= 2  # on one alone nobody spins anyway
    assert (find_pool(2, is_shared=True) is not pool) == has_cpus
    assert find_pool(3, is_shared=True).threads == 3
    assert find_pool(1, is_shared=False) is None


@linux
def test_threads_end_with_their_last_user(library):
    gc.collect()
    others = tasks()
    for _ in range(20):
        pool = find_pool(5, is_shared=True)
        step, _ = counting_step(library, pool, [8], [4])
        step()
        del pool
        assert starts(4, others)
        del step
        gc.collect()
        assert starts(0, others)


def _in_child(step, count, pool, queue):
    step()
    queue.put((count.tolist(), pool.workers))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_fork_starts_its_own_threads(library):
    pool = find_pool(3, is_shared=False)
    step, (count,) = counting_step(library, pool, [8], [8])
    step()
    context = multiprocessing.get_context("fork")
    for run in range(2, 7):
        queue = context.SimpleQueue()
        child = context.Process(target=_in_child, args=(step, count, pool, queue))
        child.start()
        assert answer_of(child, queue) == ([run] * 8, 2)
        step()  # the parent's threads are there still
        np.testing.assert_array_equal(count, run)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_another_thread_runs(library):
    pool = find_pool(2, is_shared=False)
    busy, _ = counting_step(library, pool, [40], [40], pause=500)
    step, (count,) = counting_step(library, pool, [8], [8])
    running = threading.Event()

    def work():
        while not running.is_set():
            busy()

    thread = threading.Thread(target=work)
    thread.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(5):
            queue = context.SimpleQueue()
            child = context.Process(target=_in_child, args=(step, count, pool, queue))
            child.start()
            assert answer_of(child, queue) == ([1] * 8, 1)
    finally:
        running.set()
        thread.join()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_signals_change_nothing(library, make_pool):
    """A signal interrupts sleep at any point; Python's handler runs between the runs."""
    step, (count,) = counting_step(library, make_pool(3), [12], [12], pause=100)
    seen = []

    def handle(number, frame):
        seen.append(number)
        is_running = frame is not None and frame.f_code is run_on.__code__
        if is_running and len(seen) % 5 == 0:
            raise KeyboardInterrupt

    def run_on():
        while True:
            step()

    old = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        for _ in range(10):
            with pytest.raises(KeyboardInterrupt):
                run_on()
            np.testing.assert_array_equal(count, count[0])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert count[0] > 0


@linux
def test_workers_block_signals(library):
    gc.collect()
    pool = ThreadPool(2)
    others = tasks()
    step, _ = counting_step(library, pool, [8], [4])
    step()
    (worker,) = tasks() - others
    status = (worker / "status").read_text(encoding="ascii")
    pool.close()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")]
    assert int(mask, 16) >> (signal.SIGINT - 1) & 1
    assert int(mask, 16) >> (signal.SIGTERM - 1) & 1


@pytest.mark.parametrize(
    ("extent", "work", "threads", "chunks"),
    [
        (1, 10**9, 4, 1),
        (3, 10**9, 2, 3),
        (1000, 10**9, 2, 8),
        (1000, 100, 2, 1),
        (1000, 10**9, 1, 1),
        (0, 0, 4, 1),
        (1000, 7 << 14, 3, 6),
        (7, 7 << 14, 3, 7),
    ],
)
def test_a_call_is_cut_by_its_turns_and_its_work(extent, work, threads, chunks):
    assert chunk_count(extent, work, threads) == chunks


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_each_thread_runs_its_own_share_of_the_turns(library, make_pool, threads):
    """No turn ends before all threads have one, so that none comes late for its own."""
    for _ in range(10):
        # A thread that still looks for what is left of an earlier run would begin with others'.
        pool = make_pool(threads)
        who = run_who(library, pool, [threads, 2 * threads, 3 * threads] * threads)
        shares = [set(who[first : first + 3]) for first in range(0, len(who), 3)]
        assert shares[0] == {threading.get_ident()}
        assert len(set(who)) == threads
        assert all(len(share) == 1 for share in shares)


def test_a_thread_that_stands_still_delays_one_chunk_alone(library, make_pool):
    """The first turn ends after all others, so that others have to run the rest of its share."""
    pool = make_pool(2)
    for _ in range(10):
        who = run_who(library, pool, [10] + [1] * 9)
        assert who[0] not in who[1:5]


def test_more_work_is_never_fewer_chunks():
    counts = [chunk_count(64, work, 4) for work in range(0, 1 << 20, 1 << 10)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 16
