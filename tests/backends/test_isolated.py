# SPDX-License-Identifier: Apache-2.0
"""Regions in processes of their own: the same numbers, and a death is one error."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import intarsia
from intarsia.backends.registry import load_backends
from intarsia.errors import BackendError, ExecutionError, SettingError
from intarsia.settings import Settings


@pytest.fixture(scope="module")
def model(parse_model):
    return parse_model(
        "g (float[8, 32] x) => (float[8, 32] y) {"
        "a = Sigmoid(x) b = Softmax(a) c = Mul(b, x) d = Softmax(c) y = Add(d, x) }"
    )


def host_of(exe, backend):
    """The process of a backend's regions."""
    hosts = {
        one.host
        for one, artifact in zip(exe.executables, exe.artifacts, strict=True)
        if artifact.backend == backend
    }
    (host,) = hosts
    return host


@pytest.fixture(scope="module")
def pins():
    return {"*": "onnxruntime"}


def test_a_death_is_one_error_and_the_next_run_works(model, random_feeds, evaluate, assert_same):
    exe = intarsia.compile(model, "openvino, onnxruntime", num_threads=1, isolate={"openvino"})
    feeds = random_feeds(model)
    expected = evaluate(model, feeds)
    step = exe.bind(feeds, out := {"y": np.empty((8, 32), np.float32)})
    host = host_of(exe, "openvino")
    assert host.pid != os.getpid()
    for _ in range(3):
        assert_same(exe.run(feeds), expected)
    os.kill(host.pid, signal.SIGSEGV)
    with pytest.raises(ExecutionError, match="ended by SIGSEGV") as caught:
        exe.run(feeds)
    assert isinstance(caught.value, BackendError)
    assert_same(exe.run(feeds), expected)
    step()  # bound to the process that died: that was told
    assert_same(out, expected)


@pytest.mark.exhaustive
def test_threads_survive_the_death_of_a_process(model, random_feeds):
    """Each call is right or an error, whatever dies when, and no call waits for ever."""
    exe = intarsia.compile(model, "onnxruntime", num_threads=1, isolate={"onnxruntime"})
    feeds = random_feeds(model)
    expected, host = exe.run(feeds)["y"], host_of(exe, "onnxruntime")

    def work(_):
        try:
            return np.array_equal(exe.run(feeds)["y"], expected)
        except ExecutionError:
            return None

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            runs = [pool.submit(work, i) for i in range(40)]
            runs[10].result(60)
            if host.pid is not None:
                os.kill(host.pid, signal.SIGKILL)
            found = [run.result(60) for run in runs]
            assert False not in found
            assert True in found
    assert work(0) in (True, None)
    assert work(0)


def test_free_and_late_sizes_cross_over(parse_model, tmp_path):
    model = parse_model(
        "g (float[n, 4] x) => (float[n, 4] y, int64[2, m] z)"
        "{ a = Sigmoid(x) y = Softmax(a) z = NonZero(x) }"
    )
    exe = intarsia.compile(model, "onnxruntime", num_threads=1)
    exe.save(tmp_path / "model.intarsia")
    other = intarsia.load(tmp_path / "model.intarsia", num_threads=1, isolate=["onnxruntime"])
    for rows in (3, 5, 3):
        x = np.arange(-2, 4 * rows - 2, dtype=np.float32).reshape(rows, 4)
        expected, found = exe.run({"x": x}), other.run({"x": x})
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_what_has_no_process_is_refused(model):
    with pytest.raises(SettingError, match="no backend 'openvno'"):
        intarsia.compile(model, "openvino, onnxruntime", isolate=["openvno"])
    with pytest.raises(BackendError, match="a device's own memory"):
        intarsia.compile(
            model, "fake", isolate="fake", strict=True, backends=load_backends(Settings())
        )
