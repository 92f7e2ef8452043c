# SPDX-License-Identifier: Apache-2.0
"""Targets with a runner: programs run on other machines, with the numbers that they have here."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.errors import InputError, LinkError, TargetError

EMULATOR = "qemu-aarch64-static"
ARM = f'llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -runner="{EMULATOR}"'

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[N, 3, 8, 8] x, int64[2] rows) => (float[2, M] y, int64[1, K] places)
<float[4, 3, 3, 3] w> {
    h = Conv<pads = [1, 1, 1, 1]>(x, w)
    r = Relu(h)
    f = Flatten<axis = 0>(r)
    t = Transpose<perm = [1, 0]>(f)
    s = Softmax<axis = 0>(t)
    c = Constant<value = int64[2] {2, -1}>()
    v = Reshape(s, c)
    y = Gather<axis = 0>(v, rows)
    z = Constant<value = int64[1] {-1}>()
    q = Reshape(y, z)
    p = NonZero(q)
    places = Identity(p)
}"""


def net():
    model = onnx.parser.parse_model(NET)
    weights = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def feeds(batch):
    rng = np.random.default_rng(batch)
    x = rng.standard_normal((batch, 3, 8, 8)).astype(np.float32)
    return {"x": x, "rows": np.int64([1, 0])}


def check_net(target):
    exe = intarsia.compile(net(), target, strict=True)
    here = intarsia.compile(net(), "onnxruntime")
    for batch in (1, 2, 1):
        for name, expected in here.run(feeds(batch)).items():
            np.testing.assert_allclose(exe.run(feeds(batch))[name], expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match="rows"):
        exe.run({**feeds(1), "rows": np.int64([0, 2])})
    for name, expected in here.run(feeds(1)).items():  # after the fault as before
        np.testing.assert_allclose(exe.run(feeds(1))[name], expected, rtol=1e-4, atol=1e-6)
    return exe


@pytest.mark.exhaustive
def test_a_program_of_free_sizes_runs_by_ssh_and_is_one_connection(by_ssh, ssh_server, tmp_path):
    exe = check_net(f"llvm -runner={ssh_server.text}")
    assert "-runner=" in str(exe.placement)
    ssh_server.cut()
    with pytest.raises(LinkError, match=r"127\.0\.0\.1"):
        exe.run(feeds(1))
    assert set(exe.run(feeds(1))) == {"y", "places"}


@pytest.mark.exhaustive
def test_a_program_for_another_cpu_runs_under_an_emulator(tmp_path):
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed")
    pytest.importorskip("ziglang")
    exe = check_net(ARM)
    exe.save(tmp_path / "net.intarsia")
    again = intarsia.load(tmp_path / "net.intarsia")
    np.testing.assert_array_equal(again.run(feeds(2))["y"], exe.run(feeds(2))["y"])


def test_regions_of_the_host_run_here_and_the_others_there():
    target = "llvm -runner=here, onnxruntime"
    exe = intarsia.compile(net(), target, pins={"s": "onnxruntime"}, strict=True)
    here = intarsia.compile(net(), "onnxruntime")
    for name, expected in here.run(feeds(2)).items():
        np.testing.assert_allclose(exe.run(feeds(2))[name], expected, rtol=1e-4, atol=1e-6)


def test_what_regions_there_hand_to_one_another_stays_there():
    """Regions `a` and `c` are there, `b` and `d` here; `c` reads `a`, which `b` needs here too."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[64, 64] x) => (float[64, 64] y) {
            a = MatMul(x, x)  b = Softmax(a)  c = MatMul(a, b)  y = Softmax(c) }"""
    )
    target, pins = "llvm -runner=here, onnxruntime", {"b": "onnxruntime", "d": "onnxruntime"}
    for node, name in zip(model.graph.node, "abcd", strict=True):
        node.name = name
    exe = intarsia.compile(model, target, pins=pins, strict=True)
    assert [region.backend for region in exe.placement.regions] == ["llvm", "onnxruntime"] * 2
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32) / 8
    here = intarsia.compile(model, "onnxruntime")
    for count in (1, 2):
        np.testing.assert_allclose(exe(x), here(x), rtol=1e-4, atol=1e-6)
        # Each program's own words of faults and sizes come back too: x, a, and these two; b, c.
        first, second = (exe.executables[i].carried_tensors for i in (0, 2))
        assert (first, second) == (4 * count, 4 * count)


def test_a_program_there_has_as_many_threads_as_its_target_has_cores(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[128, 256] x) => (float[128, 256] y) { t = Transpose(x)  z = MatMul(x, t)
        y = MatMul(z, x) }"""
    )
    x = np.random.default_rng(0).standard_normal((128, 256)).astype(np.float32)
    alone = intarsia.compile(model, "llvm -runner=here", strict=True)
    shared = intarsia.compile(model, "llvm -num-cores=3 -runner=here", num_threads=1, strict=True)
    np.testing.assert_allclose(alone(x), x @ x.T @ x, rtol=1e-4, atol=1e-2)
    for _ in range(3):
        np.testing.assert_array_equal(shared(x), alone(x))
    assert sorted(threads_of(tmp_path)) == [1, 3]


def threads_of(folder):
    """Return the numbers of threads of the programs in a folder that run."""
    counts = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str((process / "exe").readlink()).startswith(str(folder)):
                counts.append(len(list((process / "task").iterdir())))
    return counts


def test_the_host_is_never_elsewhere():
    from intarsia.target import CompilationConfig

    config = CompilationConfig.resolve("llvm -mcpu=cortex-a76 -runner=ssh://board")
    assert "runner" not in config.host.attrs
    with pytest.raises(TargetError, match="the host is here"):
        CompilationConfig.resolve("llvm", host="llvm -runner=ssh://board")
