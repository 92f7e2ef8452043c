# SPDX-License-Identifier: Apache-2.0
"""The call of a bound region: arguments, references, the lock, lives."""

import gc
import sys
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from intarsia.native.callpath import make_step
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import compile_object, host_machine

# adds begin to the first number, end to the second, and the third to the fourth
KERNEL = """
define void @k(ptr %table, i64 %begin, i64 %end) {
  %data = load ptr, ptr %table
  %size.at = getelementptr i8, ptr %table, i64 8
  %size = load i64, ptr %size.at
  %a = load i64, ptr %data
  %a2 = add i64 %a, %begin
  store i64 %a2, ptr %data
  %b.at = getelementptr i8, ptr %data, i64 8
  %b = load i64, ptr %b.at
  %b2 = add i64 %b, %end
  store i64 %b2, ptr %b.at
  %c.at = getelementptr i8, ptr %data, i64 16
  %c = load i64, ptr %c.at
  %c2 = add i64 %c, %size
  store i64 %c2, ptr %c.at
  ret void
}
"""
# says in the first number that it runs, and waits until the second is set: `end` milliseconds at
# most
WAIT = """
declare i32 @usleep(i32)

define void @wait(ptr %table, i64 %begin, i64 %end) {
entry:
  %data = load ptr, ptr %table
  %answer.at = getelementptr i8, ptr %data, i64 8
  store volatile i64 1, ptr %data
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %pause ]
  %answer = load volatile i64, ptr %answer.at
  %is.there = icmp ne i64 %answer, 0
  br i1 %is.there, label %done, label %look
look:
  %more = icmp slt i64 %i, %end
  br i1 %more, label %pause, label %done
pause:
  %next = add i64 %i, 1
  call i32 @usleep(i32 1000)
  br label %loop
done:
  ret void
}
"""


@pytest.fixture(scope="module")
def library():
    host = host_machine()
    return LoadedCode({"k": compile_object(KERNEL, host), "wait": compile_object(WAIT, host)})


@pytest.fixture
def data():
    return np.zeros(3, np.int64)


def kernel_step(library, data, *, extents=(5,), size=7):
    address = library.addresses["k"]
    return make_step(
        [(address, [data.ctypes.data, size], extent) for extent in extents], (library, data)
    )


def test_every_kernel_runs_with_its_arguments(library, data):
    step = kernel_step(library, data, extents=(5, 0, 11))
    assert step() is None
    np.testing.assert_array_equal(data, [0, 16, 21])
    step()
    np.testing.assert_array_equal(data, [0, 32, 42])


def test_no_calls_are_no_work(library):
    assert make_step([], library)() is None


def test_a_kernel_without_arguments_is_called(library, data):
    wait = library.addresses["wait"]
    assert make_step([(wait, [data.ctypes.data], 0)], (library, data))() is None
    assert data[0] == 1


def test_sizes_of_64_bits_pass(library, data):
    kernel_step(library, data, size=2**63 + 5, extents=(2**62,))()
    assert data.view(np.uint64)[2] == 2**63 + 5
    assert data[1] == 2**62


def test_it_takes_no_arguments(library, data):
    step = kernel_step(library, data)
    with pytest.raises(TypeError, match="takes no arguments"):
        step(1)
    with pytest.raises(TypeError, match="takes no"):
        step(x=1)
    np.testing.assert_array_equal(data, 0)


def least_growth(work, rounds):
    """The fewest bytes that memory of Python grows by in one of several rounds.

    What leaks does so in each; another thread, such as that of pytest-xdist, need not.
    """
    grown = []
    tracemalloc.start()
    try:
        for _ in range(rounds):
            before = tracemalloc.get_traced_memory()[0]
            work()
            grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    return min(grown)


def test_a_hundred_thousand_calls_leave_nothing(library, data):
    step = kernel_step(library, data)
    step()
    counts = [sys.getrefcount(item) for item in (None, data, step, library)]

    def call():
        for _ in range(20_000):
            step()

    grown = least_growth(call, 5)
    after = [sys.getrefcount(item) for item in (None, data, step, library)]
    assert abs(after[0] - counts[0]) < 1000  # None is everybody's
    assert after[1:] == counts[1:]
    assert grown < 4096
    assert data[1] == 5 * 100_001


def test_making_steps_leaves_nothing(library, data):
    kernel_step(library, data)
    gc.collect()
    count = sys.getrefcount(data)

    def make():
        for _ in range(500):
            kernel_step(library, data)
        gc.collect()

    grown = least_growth(make, 4)
    assert sys.getrefcount(data) == count
    assert grown < 16 * 1024


def test_what_is_kept_lives_as_long_as_the_step(library):
    class Kept:
        pass

    kept, array = Kept(), np.zeros(3, np.int64)
    kept.array = array
    alive = weakref.ref(kept)
    step = make_step([(library.addresses["k"], [array.ctypes.data, 1], 1)], (kept, library))
    del kept, array
    gc.collect()
    assert alive() is not None
    step()
    np.testing.assert_array_equal(alive().array, [0, 1, 1])
    del step
    gc.collect()
    assert alive() is None


def test_other_threads_run_meanwhile(library, data):
    """The kernel waits for what another thread does, which waits for the kernel."""
    step = make_step([(library.addresses["wait"], [data.ctypes.data], 60_000)], (library, data))
    answered, is_over = [], threading.Event()

    def answer():
        while not data[0]:
            if is_over.wait(0.001):
                return
        answered.append(not is_over.is_set())
        data[1] = 1

    thread = threading.Thread(target=answer)
    thread.start()
    step()
    is_over.set()
    thread.join()
    assert answered == [True], "no other thread ran during the call"


def test_many_threads_make_and_call(library):
    def work(number):
        data = np.zeros(3, np.int64)
        for _ in range(200):
            kernel_step(library, data, size=number)()
        return data[2]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [200 * number for number in range(16)]


def test_a_call_runs_nothing_in_python(library, data):
    step = kernel_step(library, data)
    seen = []
    sys.setprofile(lambda frame, event, argument: seen.append((event, argument)))
    try:
        step()
    finally:
        sys.setprofile(None)
    of_step = [event for event, argument in seen if argument is step]
    assert [event for event, _ in seen if event in ("call", "return")] == []
    assert len(of_step) <= 2, "at most the call itself and its return"
    assert data[1] == 5
