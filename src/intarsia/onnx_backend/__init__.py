# SPDX-License-Identifier: Apache-2.0
"""The entry point for what speaks ONNX's `Backend` interface, ONNX's own backend tests among it.

`intarsia.onnx_backend.prepare(model, target="openvino, onnxruntime").run([x])`. The module itself
has the interface's functions, as the modules of other backends have.
"""

from __future__ import annotations

from intarsia.onnx_backend.backend import IntarsiaBackend, IntarsiaRep

__all__ = [
    "IntarsiaBackend",
    "IntarsiaRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

is_compatible = IntarsiaBackend.is_compatible
prepare = IntarsiaBackend.prepare
run_model = IntarsiaBackend.run_model
run_node = IntarsiaBackend.run_node
supports_device = IntarsiaBackend.supports_device
