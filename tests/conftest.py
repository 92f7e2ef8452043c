# SPDX-License-Identifier: Apache-2.0
"""What many tests share: models from text, arrays for them, and numbers to compare with."""

import concurrent.futures.thread
import gc
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import hypothesis
import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from tests.c_compiler import CACHE
from tests.ssh_server import by_ssh, ssh_server  # noqa: F401 - fixtures

from intarsia.backends.registry import load_backends
from intarsia.cache import make_cache_folder
from intarsia.graph.graph import Graph, Node, Value
from intarsia.process import selftest
from intarsia.settings import Settings

# OpenVINO's telemetry takes us for a job of CI, also where tests import it themselves: it would
# send from a child of fork of this process, which holds open what tests wait to be closed.
os.environ.setdefault("TF_BUILD", "intarsia")

# The same examples in every run, however fast the machine is; `--hypothesis-profile=random` draws
# others. What a property needs beside these it says itself.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("random", _PATIENT)
hypothesis.settings.register_profile("exact", _PATIENT, derandomize=True, database=None)
hypothesis.settings.load_profile("exact")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave of each sweep that is marked `sample(n)` one in n to `make test`, drawn by its name.

    The draw depends on nothing but the names of the parameters. Every sweep keeps one at least.
    """
    sweeps = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark is not None:
            sweeps[item.parent.nodeid, item.originalname, mark.args[0]].append(item)
    for (_, _, one_in), sweep in sweeps.items():
        drawn = sorted(sweep, key=lambda item: zlib.crc32(item.name.encode()))
        for item in drawn[math.ceil(len(sweep) / one_in) :]:
            item.add_marker("exhaustive")


def pytest_collection_finish():
    """Leave what was collected out of all searches for garbage, of which tests ask for many."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Say why tests were skipped: each reason once, with how many tests it holds for.

    What backends refuse in the conformance kit is counted by the refusal's code.
    """
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(_reason(report.longrepr[2]) for report in reports)
    if reasons:
        terminalreporter.section("skipped, and why")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} {reason}")


def _reason(text):
    reason = text.removeprefix("Skipped: ")
    return ": ".join(reason.split(": ")[:2]) if reason.startswith("refused: ") else reason


_HEADER = '<ir_version: 9, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>\n'


@pytest.fixture(scope="session", autouse=True)
def own_costs(tmp_path_factory):
    """A cost database of the tests' own: what a user has measured must not place their models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTARSIA_COSTS", str(tmp_path_factory.mktemp("costs") / "costs.sqlite"))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_schedules(tmp_path_factory):
    """Tuned schedules of the tests' own: what a user has tuned must not change their kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTARSIA_SCHEDULES", str(tmp_path_factory.mktemp("schedules")))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory):
    """Keys of the tests' own, which no user finds among theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTARSIA_KEYS_DIR", str(tmp_path_factory.mktemp("keys")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_kept_programs():
    """Nothing that was compiled before: tests are of compiling, unless they say otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTARSIA_PROGRAMS", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def no_probe():
    """Nothing is timed while compiling, unless a test says otherwise: times differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTARSIA_PROBE", "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_zig_cache():
    """One cache for all tests that link by zig: it builds what a target needs once, for minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZIG_GLOBAL_CACHE_DIR", os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(CACHE)))
        yield


class _Mistakes(logging.Handler):
    """Collects warnings of mistakes in our own code, which demote a region and go on."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        if record.getMessage().startswith("internal error"):
            self.messages.append(record.getMessage())


@pytest.fixture(scope="session")
def told_mistakes():
    """Listens for as long as tests run: programs are made by fixtures of modules too."""
    handler = _Mistakes()
    logging.getLogger("intarsia").addHandler(handler)
    yield handler.messages
    logging.getLogger("intarsia").removeHandler(handler)


@pytest.fixture(autouse=True)
def no_mistakes(told_mistakes, request):
    """No test passes because another target took what our own code fails on."""
    yield
    messages = [*told_mistakes]
    told_mistakes.clear()
    if request.node.get_closest_marker("mistakes") is None:
        assert not messages, messages


_SIGNALS = [one for one in signal.Signals if one not in (signal.SIGKILL, signal.SIGSTOP)]
_OURS = (b"INTARSIA", b"OCL_")
_PATIENCE = 180.0
"""Seconds for threads to end and for what they have changed to be put back; CI may be busy."""


def _own_state():
    """What a test finds in its process and has to leave as it was."""
    environment = os.environ._data.copy()  # without decoding all of it, twice for every test
    environment.pop(b"PYTEST_CURRENT_TEST", None)
    return {
        "environment": environment,
        "folder": Path.cwd(),
        "signals": [signal.getsignal(one) for one in _SIGNALS],
        "clocks": [time.sleep, time.time, time.monotonic, time.perf_counter, time.process_time],
        "interpreter": [gc.isenabled(), sys.getswitchinterval(), threading.stack_size()],
    }


def _changes(before, after):
    """Say what differs; other new variables may come with the import of a library."""
    for what, found in after.items():
        if what == "environment":
            old = before[what]
            added = [name for name in found.keys() - old.keys() if name.startswith(_OURS)]
            if added := [*added, *(name for name in old if found.get(name) != old[name])]:
                yield f"environment: {b', '.join(sorted(added)).decode()}"
        elif found != before[what]:
            yield f"{what}: {before[what]} became {found}"


_COMPILING = ("intarsia-sizes", "intarsia-serve-load")


def _is_at_work(thread):
    """Whether a thread has not ended; one of a pool that waits for work is no harm."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code is not _POOLED


_POOLED = concurrent.futures.thread._worker.__code__


def _wait_for_threads(before):
    """Give the threads that a test has started time to end; return those that do not.

    They would run in the middle of other tests, under what these have patched. Daemons may hang,
    but for those that compile, which change the process's state for a while.
    """
    started = [
        one
        for one in threading.enumerate()
        if one not in before and (not one.daemon or one.name.startswith(_COMPILING))
    ]
    end = time.monotonic() + _PATIENCE
    while at_work := [one for one in started if _is_at_work(one)]:
        if time.monotonic() > end:
            return at_work
        time.sleep(0.005)
    return []


@pytest.fixture(autouse=True)
def nothing_left():
    """No test changes its process for the next one, or leaves a thread at work in it."""
    end = time.monotonic() + _PATIENCE
    while not gc.isenabled() and time.monotonic() < end:
        time.sleep(0.005)  # a daemon of an earlier test has stopped it for a moment
    state, threads = _own_state(), set(threading.enumerate())
    yield
    left = [f"threads: {one}" for one in _wait_for_threads(threads)]
    end = time.monotonic() + _PATIENCE
    while changed := [*_changes(state, _own_state())]:
        # A daemon of an earlier test may have stopped the collector for a moment.
        if time.monotonic() > end or not all(one.startswith("interpreter") for one in changed):
            break
        time.sleep(0.005)
    left += changed
    assert not left, left


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, with nothing but what is known of self-tests."""
    known = Settings.from_environment().cache_folder() / selftest.KIND
    folder = make_cache_folder(tmp_path / "cache")
    if known.exists():
        shutil.copytree(known, folder / known.name)
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def backends():
    """The installed backends; looking them up once saves time."""
    return load_backends(Settings.from_environment())


@pytest.fixture(scope="session")
def parse_model():
    """A function from the text of a graph to a checked model."""

    def parse(text, opset=20):
        model = onnx.parser.parse_model(_HEADER.format(opset=opset) + text)
        onnx.checker.check_model(model, full_check=True)
        return model

    return parse


@pytest.fixture(scope="session")
def random_feeds():
    """A function from a model to an array for each of its inputs."""

    def draw(model, seed=0):
        rng = np.random.default_rng(seed)
        constants = {tensor.name for tensor in model.graph.initializer}
        feeds = {}
        for value in model.graph.input:
            if value.name in constants:
                continue
            tensor = value.type.tensor_type
            shape = [dim.dim_value for dim in tensor.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if dtype.kind == "f":
                feeds[value.name] = rng.standard_normal(shape).astype(dtype)
            else:
                feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
        return feeds

    return draw


@pytest.fixture(scope="session")
def evaluate():
    """A function that runs a model, as it is, with the ONNX reference evaluator."""

    def run(model, feeds):
        session = onnx.reference.ReferenceEvaluator(model)
        names = [output.name for output in model.graph.output]
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run


@pytest.fixture(scope="session")
def assert_same():
    """A function that compares two dictionaries of arrays."""

    def compare(actual, expected, rtol=1e-5, atol=1e-6):
        assert list(actual) == list(expected)
        for name, array in expected.items():
            assert actual[name].dtype == array.dtype, name
            assert actual[name].shape == array.shape, name
            if array.dtype.kind in "OUS":
                assert actual[name].tolist() == array.tolist()
            else:
                np.testing.assert_allclose(actual[name], array, rtol=rtol, atol=atol, err_msg=name)

    return compare


@pytest.fixture(scope="session")
def chain_model(parse_model):
    """A small network: two branches, a weight matrix, an output that is consumed inside."""
    weights = ", ".join(str(((7 * i) % 11 - 5) / 8) for i in range(16))
    return parse_model(
        f"""
        chain (float[2,4] x) => (float[2,4] y, float[2,4] mid)
        <float[4,4] w = {{{weights}}}> {{
            [first] a = MatMul(x, w)
            [second] mid = Relu(a)
            [third] b = Sigmoid(mid)
            [fourth] c = Tanh(a)
            [fifth] y = Add(b, c)
        }}
        """
    )


@pytest.fixture(scope="session")
def make_graph():
    """A function from a number of nodes and edges to a `Graph` with nothing else in it."""

    def make(count, edges):
        before = [sorted({i for i, j in edges if j == node}) for node in range(count)]
        after = [sorted({j for i, j in edges if i == node}) for node in range(count)]
        typed = ir.Value(type=ir.TensorType(ir.DataType.FLOAT))
        nodes = [
            Node(node, f"n{node}", "Op", "", tuple(before[node]), (), (node,), (), None, None)
            for node in range(count)
        ]
        values = [
            Value(node, f"v{node}", "float32", (1,), node, tuple(after[node]), None, True, typed)
            for node in range(count)
        ]
        outputs = tuple(node for node in range(count) if not after[node])
        return Graph(
            "dag",
            tuple(nodes),
            tuple(values),
            (),
            outputs,
            None,
            tuple(map(tuple, before)),
            tuple(map(tuple, after)),
        )

    return make


@pytest.fixture
def fixed_cpu(monkeypatch):
    """Makes this machine a certain one, so that a plain `llvm` means the same everywhere."""
    from intarsia.target import cpu

    here = cpu.LlvmCpu("skylake", ("-clflushopt",), frozenset(), "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(cpu, "host_cpu", lambda: here)
    monkeypatch.setattr(cpu, "has_llvm", lambda: True)
    return "llvm -mattr=-clflushopt -mcpu=skylake"
