# SPDX-License-Identifier: Apache-2.0
"""The kind `llvm` on several threads: the same numbers, whatever goes on around it."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.forked import answer_of

import intarsia
from intarsia.backends.native import read_payload
from intarsia.backends.native_region import NativePayload
from intarsia.native.pool import find_pool, has_threads

pytestmark = pytest.mark.skipif(not has_threads(), reason="no threads on this system")

TEXT = """
g (float[2, 3, 40, 40] x) => (float[2, 24, 20, 20] y, float[2, 50] z)
{
  a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w1, b1)
  b = Relu(a)
  c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 40>(b, w2)
  d = Sigmoid(c)
  e = Add(d, b)
  f = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(e)
  y = Conv<kernel_shape = [1, 1]>(f, w3)
  h = Flatten(y)
  i = Gemm<transB = 1>(h, w4, b4)
  z = Softmax(i)
}
"""
SHAPES = {
    "w1": (40, 3, 3, 3),
    "b1": (40,),
    "w2": (40, 1, 3, 3),
    "w3": (24, 40, 1, 1),
    "w4": (50, 9600),
    "b4": (50,),
}
fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@dataclass
class Problem:
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    exact: list[np.ndarray]

    def compile(self, threads, target="llvm"):
        return intarsia.compile(self.model, [target], num_threads=threads)

    def is_right(self, outputs):
        pairs = zip(outputs.values(), self.exact, strict=True)
        return all(np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)


@pytest.fixture(scope="module")
def problem():
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 20]>' + TEXT)
    rng = np.random.default_rng(5)
    for name, shape in SHAPES.items():
        array = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    feeds = {"x": rng.standard_normal((2, 3, 40, 40)).astype(np.float32)}
    return Problem(model, feeds, ReferenceEvaluator(model).run(None, feeds))


def as_bytes(outputs):
    return [np.asarray(output).tobytes() for output in outputs.values()]


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_results_are_the_same_to_the_bit(problem, threads):
    expected = problem.compile(1).run(problem.feeds)
    assert problem.is_right(expected)
    exe = problem.compile(threads)
    for _ in range(20):
        assert as_bytes(exe.run(problem.feeds)) == as_bytes(expected)
    pool = find_pool(threads, is_shared=False)
    assert pool.workers == threads - 1, "the pool had nothing to do"


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (2, 1), (9, 3)])
def test_a_target_limits_its_cores(problem, cores, workers):
    exe = problem.compile(4, f"llvm -num-cores={cores}")
    gc.collect()
    threads = min(cores, 4)
    assert problem.is_right(exe.run(problem.feeds))
    pool = find_pool(threads, is_shared=False)
    assert (pool.workers if pool is not None else 0) == workers


def test_large_layers_have_turns_for_the_threads_they_are_compiled_for():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[1, 256, 7, 7] x) => '
        "(float[1, 256, 7, 7] y) { y = Conv<pads = [1, 1, 1, 1]>(x, w) }"
    )
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((256, 256, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    feeds, found = {"x": rng.standard_normal((1, 256, 7, 7)).astype(np.float32)}, {}
    for cores in (1, 8, 12):
        target = f"llvm -mcpu=haswell -num-cores={cores}"
        exe = intarsia.compile(model, [target], num_threads=8)
        (artifact,) = exe.artifacts
        calls = read_payload(artifact, NativePayload).calls
        turns = next(call.extent for call in calls if "Winograd" in call.note)
        found[cores] = (turns, as_bytes(exe.run(feeds)))
    one, eight, twelve = (turns for turns, _ in found.values())
    assert one < eight == twelve == 8
    assert found[1][1] == found[8][1]


def test_executables_run_at_once_from_many_threads(problem):
    first, second = problem.compile(2), problem.compile(3)
    expected = as_bytes(first.run(problem.feeds))

    def work(number):
        exe = (first, second)[number % 2]
        return all(as_bytes(exe.run(problem.feeds)) == expected for _ in range(40))

    with ThreadPoolExecutor(5) as executor:
        assert all(executor.map(work, range(10)))


def test_thousands_of_runs():
    small = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[64, 4096] x) => (float[64, 4096] y)'
        "{ a = Sigmoid(x) y = Mul(a, x) }"
    )
    exe = intarsia.compile(small, ["llvm"], num_threads=3)
    x = np.linspace(-4, 4, 64 * 4096, dtype=np.float32).reshape(64, 4096)
    expected = as_bytes(intarsia.compile(small, ["llvm"], num_threads=1).run({"x": x}))
    for _ in range(3000):
        outputs = exe.run({"x": x})
    assert as_bytes(outputs) == expected


def test_python_runs_meanwhile(problem):
    exe = problem.compile(2)
    counted, is_over = [0], threading.Event()

    def count():
        while not is_over.is_set():
            counted[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        while counted[0] < 10:
            assert problem.is_right(exe.run(problem.feeds))
    finally:
        is_over.set()
        thread.join()


def _in_child(exe, feeds, queue):
    queue.put([as_bytes(exe.run(feeds)) for _ in range(3)])


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_of_fork_run_what_their_parent_loaded(problem):
    exe = problem.compile(2)
    expected = as_bytes(exe.run(problem.feeds))
    context = multiprocessing.get_context("fork")
    queues = [context.SimpleQueue() for _ in range(3)]
    children = [
        context.Process(target=_in_child, args=(exe, problem.feeds, queue)) for queue in queues
    ]
    for child in children:
        child.start()
    assert as_bytes(exe.run(problem.feeds)) == expected
    for child, queue in zip(children, queues, strict=True):
        assert answer_of(child, queue) == [expected] * 3


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_of_fork_compile_their_own(problem):
    exe = problem.compile(3)
    expected = as_bytes(exe.run(problem.feeds))
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def work():
        _in_child(problem.compile(3), problem.feeds, queue)

    child = context.Process(target=work)
    child.start()
    assert answer_of(child, queue) == [expected] * 3


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_an_interrupt_spoils_nothing(problem):
    exe = problem.compile(2)
    expected = as_bytes(exe.run(problem.feeds))

    def run_on():
        signal.setitimer(signal.ITIMER_REAL, 0.004)
        while True:
            exe.run(problem.feeds)

    def handle(number, frame):
        raise KeyboardInterrupt

    gc.collect()
    gc.disable()  # what is raised in a finaliser is lost
    old = signal.signal(signal.SIGALRM, handle)
    try:
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                run_on()
            assert as_bytes(exe.run(problem.feeds)) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        gc.enable()


def test_a_process_ends_with_its_pool_at_work(problem, tmp_path):
    """Threads of Python that are still running native code do not keep a process from ending."""
    path = tmp_path / "model.onnx"
    onnx.save(problem.model, path)
    code = f"""
import threading, time
import numpy as np
import intarsia
exe = intarsia.compile({str(path)!r}, ["llvm"], num_threads=3)
x = np.ones((2, 3, 40, 40), np.float32)
def work():
    while True:
        exe.run({{"x": x}})
exe.run({{"x": x}})
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=600, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
