# SPDX-License-Identifier: Apache-2.0
"""A program that the driver dies of takes one process; those after it refuse it, and go on."""

import subprocess
import sys

import onnx
import pytest

from intarsia.backends.opencl import first_use
from intarsia.backends.opencl.first_use import KIND
from intarsia.process import selftest

TEXT = """<ir_version: 9, opset_import: ["" : 20]>
g (float[4,5] x, int64[2] i) => (float[2,5] y) { a = Tanh(x) y = Gather(a, i) }"""

SCRIPT = """
import logging, os, sys
import numpy as np
import intarsia
from intarsia.process import selftest
from intarsia.backends.opencl import binaries, device, driver, first_use

how = sys.argv[2]

def die(*arguments, **options):
    os.abort()

if how == "building":
    binaries.build_program = die
if how == "running":
    driver.driver().enqueue_nd_range_kernel = die
if how == "refused":
    judge = selftest.judge
    died = selftest.SelfTestVerdict("it aborted (SIGABRT)")
    selftest.judge = lambda test, caches: (
        died if "try_program" in test.function else judge(test, caches)
    )
logging.basicConfig(level=logging.INFO)
exe = intarsia.compile(sys.argv[1], "opencl, onnxruntime", num_threads=1, cache=False)
y = exe.run({"x": np.ones((4, 5), np.float32), "i": np.array([3, 0])})["y"]
assert np.allclose(y, np.tanh(1)), y
print(sorted({region.target for region in exe.placement.regions}))
"""


@pytest.fixture
def run(own_cache, opencl, tmp_path):
    """A function that compiles and runs a model in a process in which something happens."""
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")

    def run_(how=""):
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "m.onnx"), how],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    return run_


@pytest.fixture
def notes(own_cache):
    return lambda: list((own_cache / KIND).glob("*"))


def test_a_run_that_goes_well_leaves_no_note(run, notes, own_cache):
    done = run()
    assert done.stdout == "['opencl']\n", done.stderr
    assert notes() == []
    assert (own_cache / KIND).is_dir()


@pytest.mark.parametrize("where", ["building", "running"])
def test_a_process_that_was_ended_leaves_a_suspicion_that_a_trial_clears(run, notes, where):
    assert run(where).returncode < 0
    (note,) = notes()
    done = run()
    assert done.stdout == "['opencl']\n", done.stderr
    assert not note.exists()
    assert notes() == []


def test_what_the_driver_dies_of_goes_to_the_next_target(run, notes):
    assert run("running").returncode < 0
    done = run("refused")
    assert done.stdout == "['onnxruntime']\n", done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "does not survive" in line)
    assert "the driver of opencl:0 does not survive these kernels: it aborted (SIGABRT)" in line


def test_the_note_of_a_process_that_is_there_is_no_suspicion(run, notes, own_cache):
    assert run("running").returncode < 0
    (note,) = notes()
    digest = note.name.partition(".")[0]
    note.rename(note.with_name(f"{digest}.1"))  # the first process is always there
    assert run("refused").stdout == "['opencl']\n"


def test_the_trial_runs_every_kernel_on_zeros(program, open_device, monkeypatch):
    from intarsia.backends.device_payload import decode, source_of

    (artifact,) = program.artifacts
    payload = decode(artifact)
    sizes, launches = first_use._calls_of(payload)
    launched = []
    cl = first_use.driver()
    enqueue = cl.enqueue_nd_range_kernel
    monkeypatch.setattr(
        cl,
        "enqueue_nd_range_kernel",
        lambda *arguments: (launched.append(arguments[1].function_name), enqueue(*arguments)),
    )
    first_use.try_program(open_device().name, source_of(artifact, payload), [], sizes, launches)
    assert launched == [payload.kernels[call.kernel].name for call in payload.calls]
    launched.clear()
    first_use.try_program("no such device", "", [], sizes, launches)
    assert launched == []


def test_inside_a_trial_there_are_no_notes(program, open_device, own_cache, monkeypatch):
    from intarsia.backends.device_payload import decode, source_of

    monkeypatch.setitem(selftest._state, "is_inside", True)
    (artifact,) = program.artifacts
    payload = decode(artifact)
    first = first_use.FirstUse(
        source_of(artifact, payload), [], payload, open_device(), "1", own_cache
    )
    first.begin()
    assert not (own_cache / KIND).exists()
