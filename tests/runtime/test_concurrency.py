# SPDX-License-Identifier: Apache-2.0
"""One program and many callers: threads, limits in time, children, other interpreters."""

import contextlib
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.forked import answer_of

import intarsia
from intarsia.errors import (
    ExecutionError,
    InputError,
    PackageError,
    RunCancelledError,
    RunTimeoutError,
)
from intarsia.runtime.memories import MemoryPool

fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture(scope="module")
def model(parse_model):
    return parse_model(
        "g (float[64, 256] x) => (float[64, 256] y) {"
        "a = Sigmoid(x) b = Mul(a, x) c = Softmax(b) y = Add(c, x) }"
    )


@pytest.mark.parametrize(
    "target",
    [
        "llvm",
        "onnxruntime",
        pytest.param("openvino, onnxruntime", marks=pytest.mark.exhaustive),
    ],
)
def test_any_number_of_threads_gives_the_same_bits(target, model, random_feeds):
    exe = intarsia.compile(model, target, num_threads=2)
    cases = [random_feeds(model, seed) for seed in range(4)]
    expected = [exe.run(case)["y"] for case in cases]
    for callers in (1, 2, 8, 64):
        with ThreadPoolExecutor(callers) as pool:
            numbers = [i % 4 for i in range(2 * callers)]
            for number, found in zip(
                numbers, pool.map(exe.run, [cases[i] for i in numbers]), strict=True
            ):
                np.testing.assert_array_equal(found["y"], expected[number])
    # what 64 callers needed does not stay
    assert 1 <= len(exe._idle) <= exe._memories.most < 64


def test_who_finds_no_memory_waits_for_it():
    pool = MemoryPool(most=2)
    first, second = pool.take(), pool.take()
    assert first is not second
    found = []
    waiting = [threading.Thread(target=lambda: found.append(pool.take())) for _ in range(2)]
    for thread in waiting:
        thread.start()
    while pool._waiting < 2:
        time.sleep(0.001)
    assert not found
    pool.give(first)
    pool.give(second)
    for thread in waiting:
        thread.join()
    assert {id(one) for one in found} == {id(first), id(second)}


def _others_sleep(pause):
    """Whether threads beside this one compute next to nothing for a while, and sleep at its end.

    Where a machine is busy, one that looks around gets as little to compute as one that sleeps; but
    it is not asleep.
    """
    before = time.process_time()
    time.sleep(pause)
    if time.process_time() - before >= pause / 3:
        return False
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return True
    own = str(threading.get_native_id())
    states = set()
    for task in tasks.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            text = (task / "stat").read_text()
            states |= {text.rpartition(")")[2].split()[0]} if task.name != own else set()
    return states <= {"S"}


def test_idle_threads_sleep(model, random_feeds):
    programs = [
        intarsia.compile(model, target, num_threads=2)
        for target in ("llvm", "onnxruntime", "openvino, onnxruntime", "dnnl, llvm")
    ]
    for exe in programs:
        exe.run(random_feeds(model))
    # Runtimes look around before they sleep, the longer the busier the machine is. Threads that
    # never sleep leave no such pause, however many are waited for.
    assert any(_others_sleep(0.15) for _ in range(200))


def test_a_run_that_takes_too_long_is_left(model, random_feeds):
    feeds, exe = random_feeds(model), intarsia.compile(model, "llvm", num_threads=1)
    expected = exe.run(feeds, timeout=60)
    np.testing.assert_array_equal(exe.run(feeds)["y"], expected["y"])
    with pytest.raises(InputError, match="a timeout of 0 s is none"):
        exe.run(feeds, timeout=0)
    with pytest.raises(InputError, match="'x' is missing"):
        exe.run({}, timeout=60)
    hanging = intarsia.compile(model, "fake -fault=hang", num_threads=1)
    with pytest.raises(RunTimeoutError, match=r"longer than 0\.05 s") as caught:
        hanging.run(feeds, timeout=0.05)
    assert isinstance(caught.value, TimeoutError)


def test_a_run_is_cancelled_by_another_thread(model, random_feeds):
    feeds, cancellation = random_feeds(model), intarsia.Cancellation()
    exe = intarsia.compile(model, "llvm", num_threads=1)
    expected = exe.run(feeds, cancellation=cancellation)
    hanging = intarsia.compile(model, "fake -fault=hang", num_threads=1)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(hanging.run, feeds, cancellation=cancellation)
        while not cancellation._listeners:
            time.sleep(0.001)
        cancellation.cancel()
        with pytest.raises(RunCancelledError):
            run.result(60)
    with pytest.raises(RunCancelledError):
        exe.run(feeds, cancellation=cancellation)
    np.testing.assert_array_equal(exe.run(feeds)["y"], expected["y"])


def test_what_nobody_waits_for_ends_before_its_next_step(model, random_feeds):
    exe = intarsia.compile(model, "fake -ops=Sigmoid,Softmax, llvm", num_threads=1)
    steps = len(exe.plan.steps)
    assert steps > 2
    asked = []

    def is_over():
        asked.append(1)
        return len(asked) == steps

    with pytest.raises(RunCancelledError):
        exe.run_until(random_feeds(model), is_over)
    assert len(asked) == steps
    assert len(exe._idle) == 1


def _in_child(exe, feeds, queue):
    try:
        queue.put(exe.run(feeds)["y"].tobytes())
    except ExecutionError as error:
        queue.put(str(error))


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("target", "threads", "is_refused"),
    [
        ("llvm", 2, False),
        ("onnxruntime", 1, False),
        ("onnxruntime", 2, True),
        ("openvino, onnxruntime", 2, True),
    ],
)
def test_a_child_of_fork_is_right_or_refused(target, threads, is_refused, model, random_feeds):
    """With all memory in use by other threads, too."""
    feeds = random_feeds(model)
    exe = intarsia.compile(model, target, num_threads=threads)
    expected = exe.run(feeds)["y"].tobytes()
    taken = [exe._memories.take() for _ in range(exe._memories.most)]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(exe, feeds, queue))
    child.start()
    found = answer_of(child, queue)
    if is_refused:
        assert "child, made by fork" in found
        assert "spawn" in found
    else:
        assert found == expected
    for memory in taken:
        exe._memories.give(memory)
    assert exe.run(feeds)["y"].tobytes() == expected


def test_a_program_is_not_sent_to_a_child_of_spawn(model):
    with pytest.raises(PackageError, match="cannot be pickled") as caught:
        pickle.dumps(intarsia.compile(model, "llvm"))
    assert "load it there" in caught.value.hint


_INTERPRETER = """
import _xxsubinterpreters as interpreters
other = interpreters.create(isolated=False)
interpreters.run_string(other, '''
import sys, warnings
warnings.simplefilter("ignore")  # numpy says what it thinks of it
sys.path[:] = {path!r}
import numpy as np
import intarsia
exe = intarsia.load({package!r}, num_threads=2)
x = np.load({feeds!r})
for _ in range(3):
    np.save({results!r}, exe.run(dict(x=x))["y"])
''')
interpreters.destroy(other)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="numpy has one interpreter from 3.12 on")
def test_another_interpreter_of_the_process_computes_the_same(model, random_feeds, tmp_path):
    exe, feeds = intarsia.compile(model, "llvm", num_threads=2), random_feeds(model)
    exe.save(tmp_path / "model.intarsia")
    np.save(tmp_path / "x.npy", feeds["x"])
    code = _INTERPRETER.format(
        path=sys.path,
        package=str(tmp_path / "model.intarsia"),
        feeds=str(tmp_path / "x.npy"),
        results=str(tmp_path / "y.npy"),
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), exe.run(feeds)["y"])
