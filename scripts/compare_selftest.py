# SPDX-License-Identifier: Apache-2.0
"""Compares what a program of `--emit executable` wrote with ONNX Runtime.

$ squeezenet -o out && python scripts/compare_selftest.py squeezenet.onnx out
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime

from intarsia.codegen.emit.c_main import file_names, seeded_input
from intarsia.codegen.emit.c_program import Tensor

BOUND = 1e-4
"""Greatest error, as a part of an output's greatest number."""
DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(uint8)": "uint8"}


def main(model: str, folder: str) -> int:
    """Return 0 if all outputs agree."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {
        item.name: seeded_input(Tensor(item.name, DTYPES[item.type], tuple(item.shape)), number)
        for number, item in enumerate(session.get_inputs())
    }
    names = [output.name for output in session.get_outputs()]
    files = file_names([Tensor(name, "", ()) for name in names])
    worst = 0.0
    for name, file, want in zip(names, files, session.run(names, feeds), strict=True):
        got = np.load(Path(folder) / f"{file}.npy")
        error = float(np.abs(got - want).max() / np.abs(want).max())
        print(f"{name}: within {error:.1e} of ONNX Runtime")
        worst = max(worst, error)
    return int(not worst <= BOUND)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
