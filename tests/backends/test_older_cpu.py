# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's numbers hold on a CPU without AVX-512, which oneDNN can be made to believe in."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

NUMBERS = Path(__file__).with_name("test_numbers.py")
QUANTISED = Path(__file__).with_name("test_quantize_fused.py")
LIMIT = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
KERNELS = """
import numpy as np
import openvino
from openvino import opset13
x = opset13.parameter([1, 64, 56, 56], np.float32)
w = opset13.constant(np.ones((64, 64, 3, 3), np.float32))
y = opset13.convolution(x, w, [1, 1], [1, 1], [1, 1], [1, 1])
compiled = openvino.Core().compile_model(
    openvino.Model([y], [x]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
)
for op in compiled.get_runtime_model().get_ops():
    print(op.get_rt_info()["primitiveType"].astype(str))
"""

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the limit is one of x86-64"),
]


def run(*arguments):
    """Run Python under the limit."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **LIMIT},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_limit_takes_effect():
    pytest.importorskip("openvino")
    ran = run("-c", KERNELS)
    assert ran.returncode == 0, ran.stderr
    assert "avx512" not in ran.stdout
    assert "avx2" in ran.stdout


def test_the_numbers_are_those_of_the_reference():
    pytest.importorskip("openvino")
    ran = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "openvino", str(NUMBERS))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


def test_sums_of_bytes_do_not_saturate():
    pytest.importorskip("openvino")
    ran = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "saturate", str(QUANTISED))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
