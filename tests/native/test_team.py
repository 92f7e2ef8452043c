# SPDX-License-Identifier: Apache-2.0
"""Kernels on the threads of an OpenMP runtime: every turn once, by several, safe to fork."""

import ctypes
import ctypes.util
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from intarsia.native.callpath import make_step
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_object, host_machine
from intarsia.native.pool import find_team

# turn i adds 1 to the i-th number of the first argument, notes its thread in the second one, counts
# itself before the first number, and waits until as many turns are counted as the third argument
# says, for a minute at most
KERNEL = """
declare i32 @usleep(i32)
declare i64 @pthread_self()

define void @count(ptr %table, i64 %begin, i64 %end) {
entry:
  %data = load ptr, ptr %table
  %who.at = getelementptr i8, ptr %table, i64 8
  %who = load ptr, ptr %who.at
  %self = call i64 @pthread_self()
  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %continue ]
  %at = getelementptr i64, ptr %data, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %mine = getelementptr i64, ptr %who, i64 %i
  store i64 %self, ptr %mine
  %wanted.at = getelementptr i8, ptr %table, i64 16
  %wanted = load i64, ptr %wanted.at
  %there.at = getelementptr i64, ptr %data, i64 -1
  %before = atomicrmw add ptr %there.at, i64 1 seq_cst
  br label %wait
wait:
  %pauses = phi i64 [ 0, %loop ], [ %pauses.next, %pause ]
  %there = load atomic i64, ptr %there.at seq_cst, align 8
  %all = icmp sge i64 %there, %wanted
  %late = icmp sge i64 %pauses, 60000
  %go = or i1 %all, %late
  br i1 %go, label %continue, label %pause
pause:
  %pauses.next = add i64 %pauses, 1
  call i32 @usleep(i32 1000)
  br label %wait
continue:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@pytest.fixture(scope="module")
def gomp():
    """Return the address of `GOMP_parallel`."""
    name = ctypes.util.find_library("gomp")
    if name is None:
        pytest.skip("no libgomp on this system")
    function = ctypes.CDLL(name).GOMP_parallel
    return ctypes.cast(function, ctypes.c_void_p).value


@pytest.fixture(scope="module")
def library():
    return LoadedCode({"count": compile_object(KERNEL, host_machine())})


class Count:
    """A bound call of the kernel, and what it writes."""

    def __init__(self, library, team, extent, chunks, turns_at_once=1):
        memory, self.threads = np.zeros(1 + extent, np.int64), np.zeros(extent, np.int64)
        self.numbers = memory[1:]
        arguments = [self.numbers.ctypes.data, self.threads.ctypes.data, turns_at_once]
        call = (library.addresses["count"], arguments, extent)
        self.run = make_step([call], (library, self.numbers, self.threads), team, [chunks])


@pytest.mark.parametrize(("extent", "chunks"), [(1, 2), (7, 7), (40, 8), (41, 16), (9, 100)])
def test_every_turn_runs_once(gomp, library, extent, chunks):
    count = Count(library, find_team(2, gomp), extent, chunks)
    for done in range(1, 4):
        count.run()
        assert (count.numbers == done).all()


def test_several_threads_work(gomp, library):
    count = Count(library, find_team(3, gomp), 60, 60, turns_at_once=3)
    count.run()
    assert len(set(count.threads)) == 3


def test_callers_do_not_disturb_each_other(gomp, library):
    team = find_team(2, gomp)
    counts = [Count(library, team, 30, 6) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(count.run) for count in counts for _ in range(1)]:
            future.result()
    assert all((count.numbers == 1).all() for count in counts)


def test_one_thread_needs_no_team(gomp):
    assert find_team(1, gomp) is None
    first = find_team(2, gomp)
    assert find_team(2, gomp) is first


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_fork_runs_alone(gomp, library):
    """A runtime of OpenMP waits in a child for threads that only the parent has."""
    count = Count(library, find_team(2, gomp), 40, 8)
    count.run()
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def child():
        count.run()
        writer.send((count.numbers.tolist(), len(set(count.threads))))

    process = context.Process(target=child)
    process.start()
    assert reader.poll(300), "the child hangs"
    assert reader.recv() == ([2] * 40, 1)
    process.join()
    count.run()
    assert (count.numbers == 2).all(), "the parent goes on"
