# SPDX-License-Identifier: Apache-2.0
"""The kind `cuda` without a GPU: on a stand-in of NVIDIA's driver, and refused without a driver."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.c_compiler import compile_c

import intarsia
from intarsia.backends.cuda import libraries
from intarsia.backends.cuda.backend import BACKEND
from intarsia.backends.cuda.driver import CudaError
from intarsia.errors import BackendError

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a library of Linux")
def test_programs_run_on_a_stand_in_of_the_driver(tmp_path):
    """Numbers, order, copies, memory: the stand-in runs nothing before it is waited for."""
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-O1", "-shared", "-fPIC")
    library = tmp_path / "libcuda.so.1"
    compile_c(*flags, FOLDER / "libcuda_stand_in.c", "-o", library, "-lpthread", "-ldl")
    paths = {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    paths["INTARSIA_CACHE_DIR"] = str(tmp_path / "caches")  # kernels are compiled anew
    command = [sys.executable, str(FOLDER / "worker.py"), str(tmp_path)]
    environment = {**os.environ, **paths, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    command = [sys.executable, "-m", "intarsia", "explain", "p.intarsia", "--kernels"]
    for more in ([], ["--json"]):  # no driver is needed for that
        said = subprocess.run(
            [*command, *more], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, said.stderr
    counted = json.loads(said.stdout)["regions"]
    kernels = [kernel for region in counted for kernel in region["kernels"]]
    assert len({region["region"] for region in counted}) == len(counted) > 1
    assert all(kernel["registers"] >= 8 for kernel in kernels)
    assert all(kernel["name"] and kernel["spilled_bytes"] == 0 for kernel in kernels)


def test_an_event_is_given_back_if_there_is_no_second_one(monkeypatch):
    given_back = []

    def call(name, *arguments):
        if name == "cuEventDestroy":
            given_back.extend(arguments)
            return None
        if events:
            raise CudaError(f"{name}: no room", is_memory=True)
        events.append("an event")
        return events[0]

    events = []
    monkeypatch.setattr(libraries, "call", call)
    with pytest.raises(CudaError, match="no room"):
        libraries._median_time(None, None)
    assert given_back == events


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is here")
def test_without_a_driver_the_reason_is_said(tmp_path):
    model = tmp_path / "none.onnx"
    detection = BACKEND.detect()
    assert detection.targets == ()
    assert "driver is not installed" in detection.reason
    assert "toolkit is not needed" in detection.hint
    with pytest.raises(BackendError, match="driver is not installed"):
        intarsia.compile(model, "cuda -arch=sm_80, llvm")
