# SPDX-License-Identifier: Apache-2.0
"""Save a compiled network into one file, and open it without the compiler."""

import tempfile
from pathlib import Path

import numpy as np

import intarsia
from intarsia.zoo import build

image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "squeezenet.intarsia"
    executable = intarsia.compile(build("squeezenet"), "openvino, onnxruntime")
    executable.save(path)
    loaded = intarsia.load(path)
    print(f"{path.stat().st_size / 1e6:.1f} MB, {loaded!r}")
    assert np.array_equal(loaded(image), executable(image))
