# SPDX-License-Identifier: Apache-2.0
"""The call of a bound region: arguments, references, the lock, lives."""

import gc
import sys
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from intarsia.codegen.callpath import make_step
from intarsia.codegen.machine import Library, compile_object, host_machine

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
# counts to `end`, which no pass can foresee
SPIN = """
define void @spin(ptr %table, i64 %begin, i64 %end) {
entry:
  %data = load ptr, ptr %table
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %i, 1
  store volatile i64 %next, ptr %data
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@pytest.fixture(scope="module")
def library():
    host = host_machine()
    return Library({"k": compile_object(KERNEL, host), "spin": compile_object(SPIN, host)})


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
    spin = library.addresses["spin"]
    assert make_step([(spin, [data.ctypes.data], 3)], (library, data))() is None
    assert data[0] == 3


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


def test_a_hundred_thousand_calls_leave_nothing(library, data):
    step = kernel_step(library, data)
    step()
    counts = [sys.getrefcount(item) for item in (None, data, step, library)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(100_000):
            step()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    after = [sys.getrefcount(item) for item in (None, data, step, library)]
    assert abs(after[0] - counts[0]) < 1000  # None is everybody's
    assert after[1:] == counts[1:]
    assert grown < 4096
    assert data[1] == 5 * 100_001


def test_making_steps_leaves_nothing(library, data):
    kernel_step(library, data)
    gc.collect()
    count = sys.getrefcount(data)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            kernel_step(library, data)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sys.getrefcount(data) == count
    assert grown < 64 * 1024


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
    step = make_step([(library.addresses["spin"], [data.ctypes.data], 1 << 28)], (library, data))
    counted, running = [0], threading.Event()

    def count():
        running.wait()
        while running.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    running.set()
    while not counted[0]:
        time.sleep(0.001)
    before, start = counted[0], time.perf_counter()
    step()
    took = time.perf_counter() - start
    grown = counted[0] - before
    running.clear()
    thread.join()
    assert data[0] == 1 << 28
    assert took > 0.02
    assert grown > 5, f"{grown} turns of another thread in {took:.3f} s"


def test_many_threads_make_and_call(library):
    def work(number):
        data = np.zeros(3, np.int64)
        for _ in range(200):
            kernel_step(library, data, size=number)()
        return data[2]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(16))) == [200 * number for number in range(16)]


def test_a_call_costs_next_to_nothing(library, data):
    step = kernel_step(library, data)
    best = min(_seconds_of(step) for _ in range(20))
    assert best < 2e-6, f"{best * 1e9:.0f} ns"


def _seconds_of(step, count=2000):
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count
