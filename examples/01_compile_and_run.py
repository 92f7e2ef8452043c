# SPDX-License-Identifier: Apache-2.0
"""Compile a network for this machine, run it, and see what ran where."""

import numpy as np

import intarsia
from intarsia.zoo import build

model = build("squeezenet")
executable = intarsia.compile(model, target="openvino, onnxruntime")

image = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
outputs = executable.run({"data": image})

print(executable.placement)
print({name: array.shape for name, array in outputs.items()})
assert np.isclose(outputs["prob"].sum(), 1.0, atol=1e-3)
