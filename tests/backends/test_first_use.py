# SPDX-License-Identifier: Apache-2.0
"""A program that the driver dies of takes one process; those after it refuse it, and go on."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from tests import opencl, webgpu

from intarsia.backends.first_use import _is_alive, notes_folder

TEXT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[4,5] x, int64[2] i) => (float[2,5] y) { a = Tanh(x) y = Gather(a, i) }"""

SCRIPT = """
import importlib, logging, os, sys
import numpy as np
import intarsia
from intarsia.process import selftest

model, how, kind, builder = sys.argv[1:]
module, _, function = builder.partition(":")

def die(*arguments, **options):
    os.abort()

if how == "building":
    setattr(importlib.import_module(module), function, die)
if how == "running":
    execution = importlib.import_module(f"intarsia.backends.{kind}.execution")
    execution._make_step = lambda *arguments: die
if how == "refused":
    judge = selftest.judge
    died = selftest.SelfTestVerdict("it aborted (SIGABRT)")
    selftest.judge = lambda test, caches: (
        died if "try_program" in test.function else judge(test, caches)
    )
logging.basicConfig(level=logging.INFO)
exe = intarsia.compile(model, f"{kind}, onnxruntime", num_threads=1, cache=False)
y = exe.run({"x": np.ones((4, 5), np.float32), "i": np.array([3, 0])})["y"]
assert np.allclose(y, np.tanh(1)), y
print(sorted({region.target for region in exe.placement.regions}))
"""

BUILDERS = {
    "opencl": "intarsia.backends.opencl.binaries:build_program",
    "webgpu": "intarsia.backends.webgpu.execution:make_pipeline",
}
KINDS = [
    "opencl",
    pytest.param("webgpu", marks=pytest.mark.exhaustive),  # its device is tried for each test
]


@pytest.fixture(params=KINDS)
def kind(request):
    {"opencl": opencl, "webgpu": webgpu}[request.param].first_device()
    return request.param


@pytest.fixture
def run(kind, own_cache, tmp_path):
    """A function that compiles and runs a model in a process in which something happens."""
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")

    def run_(how=""):
        words = [str(tmp_path / "m.onnx"), how, kind, BUILDERS[kind]]
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    return run_


@pytest.fixture
def notes(kind, own_cache):
    return lambda: list(notes_folder(kind, own_cache).glob("*"))


def test_a_run_that_goes_well_leaves_no_note(run, notes, own_cache, kind):
    done = run()
    assert done.stdout == f"['{kind}']\n", done.stderr
    assert notes() == []
    assert notes_folder(kind, own_cache).is_dir()


@pytest.mark.parametrize("where", ["building", "running"])
def test_a_process_that_was_ended_leaves_a_suspicion_that_a_trial_clears(run, notes, kind, where):
    assert run(where).returncode < 0
    (note,) = notes()
    done = run()
    assert done.stdout == f"['{kind}']\n", done.stderr
    assert not note.exists()
    assert notes() == []


def test_what_the_driver_dies_of_goes_to_the_next_target(run, notes, kind):
    assert run("running").returncode < 0
    done = run("refused")
    assert done.stdout == "['onnxruntime']\n", done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "does not survive" in line)
    assert f"the driver of {kind}:0 does not survive these kernels: it aborted (SIGABRT)" in line


def test_the_note_of_a_process_that_is_there_is_no_suspicion(run, notes, own_cache, kind):
    assert run("running").returncode < 0
    (note,) = notes()
    digest = note.name.partition(".")[0]
    note.rename(note.with_name(f"{digest}.1"))  # the first process is always there
    assert run("refused").stdout == f"['{kind}']\n"


def test_a_number_that_another_process_has_by_now(tmp_path):
    """A note that is older than the process of its number was another one's."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("the system does not say when a process began")
    note = tmp_path / f"digest.{os.getpid()}"
    note.touch()
    assert _is_alive(note)
    os.utime(note, (1, 1))
    assert not _is_alive(note)
    assert _is_alive(tmp_path / "digest.word")
