# SPDX-License-Identifier: Apache-2.0
"""The entry point for programs written for ONNX Runtime: its names, over our compiler.

`import intarsia.session as onnxruntime` moves a program over; docs/onnxruntime.md says what each
name means here.
"""

from intarsia.graph.model_info import ModelInfo as ModelMetadata
from intarsia.session.binding import IOBinding
from intarsia.session.options import (
    ExecutionMode,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from intarsia.session.providers import get_all_providers, get_available_providers, get_device
from intarsia.session.session import AssignedNode, AssignedSubgraph, InferenceSession
from intarsia.session.values import NodeArg, OrtValue

__all__ = [
    "AssignedNode",
    "AssignedSubgraph",
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "get_all_providers",
    "get_available_providers",
    "get_device",
]
