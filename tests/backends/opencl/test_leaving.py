# SPDX-License-Identifier: Apache-2.0
"""Leaving a process in which OpenCL has failed is not an abort."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
import intarsia
exe = intarsia.load(sys.argv[1])
try:
    exe.run({"x": np.ones((3, 5), np.float32), "w": np.ones((5, 4), np.float32)})
    print("ran")
except intarsia.IntarsiaError as error:
    print("failed:", error.message)
"""


@pytest.mark.exhaustive
def test_a_kernel_that_was_not_built_does_not_abort_at_the_end(program, open_device, tmp_path):
    if "Portable Computing" not in open_device().name:
        pytest.skip("the first OpenCL device is not PoCL's, whose cache is spoilt here")
    package, cache = tmp_path / "m.intarsia", tmp_path / "pocl"
    program.save(package)

    def run():
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, str(package)],
            env={**os.environ, "POCL_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    assert run().stdout == "ran\n"
    for built in cache.rglob("program.bc"):
        os.truncate(built, built.stat().st_size // 2)
    done = run()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("failed:")
