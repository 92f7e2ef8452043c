# SPDX-License-Identifier: Apache-2.0
"""`intarsia demo`."""

import json
import subprocess
import sys

import pytest


@pytest.mark.exhaustive
def test_the_demo_agrees_with_onnx_runtime():
    command = [sys.executable, "-m", "intarsia", "demo", "--json", "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["agrees"]
    assert len(figures["agreement"]) == 3
    (whole,) = figures["placement"]["regions"]
    assert whole["target"] == figures["targets"][0]
    assert whole["backend"] == "llvm"  # native code leads where no target is given
    mixed = [region["backend"] for region in figures["mixed_placement"]["regions"]]
    assert mixed == ["llvm", "onnxruntime", "llvm"]
    assert set(figures["ratios"]) == set(figures["timing"])
    assert figures["package"]["nbytes"] > 0
    assert [line[:5] for line in done.stderr.splitlines()][-1] == "[6/6]"
