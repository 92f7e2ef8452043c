# SPDX-License-Identifier: Apache-2.0
"""Move a program over from ONNX Runtime: the same class, with targets instead of providers."""

import numpy as np

from intarsia import InferenceSession
from intarsia.zoo import build

session = InferenceSession(build("squeezenet").SerializeToString(), targets="onnxruntime")
(argument,) = session.get_inputs()
print(argument.name, argument.shape, argument.type, session.get_providers())

image = np.zeros(argument.shape, np.float32)
(probabilities,) = session.run(None, {argument.name: image})
print(probabilities.shape)
