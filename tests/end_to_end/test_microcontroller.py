# SPDX-License-Identifier: Apache-2.0
"""The template of a microcontroller's program: built, run by an emulator, its memory measured."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from intarsia.export import export_c

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "microcontroller"
BOARDS = {"mps2-an386": "cortex-m4", "mps3-an547": "cortex-m55"}
_NEEDED = ("arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm", "make")
_MISSING = [tool for tool in _NEEDED if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")


def module_at(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """The networks of the example, as ONNX files."""
    folder = tmp_path_factory.mktemp("networks")
    module_at(EXAMPLE / "make_networks.py").main(folder)
    return folder


def make(board, network, folder, *goals, optimise="-O2", more=()):
    command = ["make", "-s", "-f", EXAMPLE / "Makefile", f"BOARD={board}", f"NETWORK={network}"]
    command += [f"BUILD={folder / 'build'}", f"OPTIMISE={optimise}", *more, *goals]
    words = list(map(str, command))
    done = subprocess.run(words, check=False, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"[-3000:]
    return done.stdout + done.stderr  # the emulator writes to the latter


def macro(header, name):
    return int(re.search(rf"#define \w+_{name} (\d+)u", header.read_text())[1])


@pytest.mark.parametrize(
    ("name", "board"), [("mlp", "mps2-an386"), ("convnet", "mps3-an547"), ("convnet", "mps2-an386")]
)
def test_a_board_computes_what_onnxruntime_does(networks, tmp_path, name, board):
    model = networks / f"{name}.onnx"
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    x = np.random.default_rng(7).standard_normal(shape, np.float32)
    (want,) = session.run(None, {"x": x})
    _, header = export_c(model, tmp_path, f"c -mcpu={BOARDS[board]}")
    (tmp_path / "input.raw").write_bytes(x.tobytes())
    printed = make(board, tmp_path / name, tmp_path, "all", "run")
    got = np.fromfile(tmp_path / "output.raw", np.float32).reshape(want.shape)
    # Of codes, as far as a step of the last tensor: onnxruntime multiplies scales as it likes.
    step = 0.02 if name == "convnet" else 1e-6
    np.testing.assert_allclose(got, want, atol=step)
    assert np.abs(want).max() > 0.2
    sizes = printed.splitlines()[1].split()
    arena, stack = macro(header, "SCRATCH_BYTES"), macro(header, "STACK_BYTES")
    assert int(sizes[2]) >= arena  # the static block is all there is
    assert f"arena: {arena} bytes" in printed
    used = int(re.search(r"stack: (\d+) bytes of at most", printed)[1])
    assert 0 < used <= stack
    assert int(re.search(r"instructions: (\d+)", printed)[1]) > 1000


@pytest.mark.exhaustive
def test_one_program_has_regions_on_an_npu_a_library_and_plain_c(tmp_path, capsys):
    """An Ethos-U, CMSIS-NN and C from one model; stand-ins answer for the first two."""
    pytest.importorskip("ethosu.regor", reason="ethos-u-vela is not installed")
    example = module_at(EXAMPLE / "three_targets.py")
    assert example.main(["--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"region \d on (\S+):", printed) == [
        *("c", "ethos-u", "cmsis-nn", "ethos-u", "c")
    ]
    text = (tmp_path / "three.c").read_text()
    for called in ("ethosu_invoke_v3(", "arm_convolve_wrapper_s8(", "l_DequantizeLinear + y */"):
        assert called in text
    used = int(re.search(r"stack: (\d+) bytes of at most", printed)[1])
    assert 0 < used <= macro(tmp_path / "three.h", "STACK_BYTES")
    said = re.findall(r"at most (\S+) from .* codes is (\S+)", printed)
    (from_ours, step), (from_runtime, _) = [tuple(map(float, pair)) for pair in said]
    # The library rounds sums of fully connected layers twice, LiteRT and our kernels once.
    assert from_ours <= 1.2 * step
    assert from_runtime <= 3.5 * step
    output = np.fromfile(tmp_path / "output.raw", np.float32)
    assert np.abs(output).max() > 0.5


@pytest.mark.parametrize("optimise", ["-O0", "-Os", "-O3"])
def test_the_stack_that_gcc_needs_is_within_the_bound(networks, tmp_path, optimise):
    for name in ("mlp", "convnet"):
        _, header = export_c(networks / f"{name}.onnx", tmp_path, "c -mcpu=cortex-m4")
        make(
            "mps2-an386", tmp_path / name, tmp_path, f"{tmp_path}/build/{name}.o", optimise=optimise
        )
        lines = (tmp_path / "build" / f"{name}.su").read_text().splitlines()
        frames = {line.split()[0].rpartition(":")[2]: int(line.split()[1]) for line in lines}
        ours = frames.pop(f"{name}_run_in") + frames.pop(f"{name}_run")
        assert len(frames) >= 3  # kernels are functions of their own
        assert ours + max(frames.values()) <= macro(header, "STACK_BYTES")


def test_weights_in_int8_stay_bytes_and_nothing_is_called(networks, tmp_path):
    _, header = export_c(networks / "convnet.onnx", tmp_path, "c -mcpu=cortex-m4")
    # 3968 weights; a scale and a bias for each of 66 channels, and few numbers for tensors.
    assert 3968 <= macro(header, "WEIGHT_BYTES") <= 3968 + 66 * 8 + 200
    make("mps2-an386", tmp_path / "convnet", tmp_path, f"{tmp_path}/build/convnet.o")
    command = ["arm-none-eabi-nm", "-u", tmp_path / "build" / "convnet.o"]
    needed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(needed) - {"U"} <= {"memcpy", "memset", "memmove"}
    sections = subprocess.run(
        ["arm-none-eabi-objdump", "-h", tmp_path / "build" / "convnet.o"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert ".rodata.convnet_weights" in sections
