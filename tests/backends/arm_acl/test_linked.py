# SPDX-License-Identifier: Apache-2.0
"""Regions of the library and of `llvm` in one program, whose tensors lie in one arena."""

import shutil
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.backends.arm_acl.conftest import ROOT
from tests.codegen.lower.small_models import small_model

from intarsia.codegen.emit.c_main import seeded_input
from intarsia.codegen.emit.c_program import Tensor
from intarsia.errors import BackendError
from intarsia.export import export_executable, export_shared

TARGET = f'arm_acl -acl_root="{ROOT}", llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76'
SHAPE = (1, 3, 9, 9)


@pytest.fixture
def saved(tmp_path):
    """Two regions of the library, and what it does not compute between and behind them."""
    body = """
        h = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(h)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) e = Erf(p)
        f = Flatten(e) g = Gemm<transB = 1>(f, v) s = Softmax(g) z = Erf(s)"""
    model = small_model("z, r", body, {"x": SHAPE}, {"w": (8, 3, 3, 3), "v": (10, 128)})
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.exhaustive
@pytest.mark.usefixtures("acl_target")
def test_one_program_holds_the_library_and_our_kernels(saved, tmp_path):
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64-static is not here")
    program, header = export_executable(saved, tmp_path / "out", TARGET)
    command = [emulator, "-L", "/usr/aarch64-linux-gnu", program]
    for seed in (0, 5):
        subprocess.run([*command, "-s", f"{seed}", "-n", "2", "-o", tmp_path], check=True)
        x = seeded_input(Tensor("x", "float32", SHAPE), 0, seed)
        wanted = onnxruntime.InferenceSession(saved).run(None, {"x": x})
        for name, want in zip("zr", wanted, strict=True):
            got = np.load(tmp_path / f"{name}.npy")
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    text = header.read_text()
    assert "one call at a time: a library keeps memory of its own" in text
    arena = int(text.split("NET_SCRATCH_BYTES ")[1].split("u")[0])
    assert 2 * 4 * 128 <= arena < 4096  # what passes between regions, reused
    with pytest.raises(BackendError, match="aarch64-linux-musl has not the C library"):
        export_shared(saved, tmp_path, TARGET.replace("-gnu", "-musl"))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("acl_target")
def test_with_free_sizes_our_kernels_take_all_and_a_warning_says_so(tmp_path, caplog):
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64-static is not here")
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[n, 3, 9, 9] x) => (float[n, 4, 9, 9] y) {
            c = Conv<pads = [1, 1, 1, 1]>(x, w)  e = Erf(c)  y = Relu(e) }"""
    )
    w = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    program, _ = export_executable(path, tmp_path / "out", TARGET, shapes={"n": "1..4"})
    (warning,) = [text for text in caplog.messages if "nothing of the program is on" in text]
    assert "arm_acl" in warning
    assert "--shape" in warning
    session = onnxruntime.InferenceSession(path)
    for size in (1, 3):
        command = [emulator, "-L", "/usr/aarch64-linux-gnu", program, "-d", f"{size}"]
        subprocess.run([*command, "-o", tmp_path], check=True)
        x = seeded_input(Tensor("x", "float32", (size, 3, 9, 9)), 0, 0)
        got = np.load(tmp_path / "y.npy")
        np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
