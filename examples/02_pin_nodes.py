# SPDX-License-Identifier: Apache-2.0
"""Say where nodes run, by pins, exclusions and annotations, and see what an error says."""

import intarsia
from intarsia.zoo import build

model = build("squeezenet")

pinned = intarsia.compile(
    model,
    "openvino, onnxruntime",
    pins={"fire5/*": "onnxruntime"},
    exclude={"openvino": "Softmax"},
)
print(pinned.placement)

annotated = intarsia.on_device(model, {"fire[23]/*": "openvino"})
manual = intarsia.compile(annotated, "openvino, onnxruntime", placement="manual")
print(manual.explain().summary)

try:
    intarsia.compile(model, "openvino, onnxruntime", pins={"layer4/*": "onnxruntime"})
except intarsia.IntarsiaError as error:
    print(f"{type(error).__name__}: {error}")
