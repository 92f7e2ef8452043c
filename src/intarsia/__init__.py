# SPDX-License-Identifier: Apache-2.0
"""Intarsia places every piece of an ONNX model on the backend that is best for it.

Names are imported when they are first used, so that `import intarsia.target` stays light; this
module imports nothing at all, as Ctrl-C is answered only behind it (`__main__`).
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing`, which has it for those who check types, imports much
if TYPE_CHECKING:
    from typing import Any

    from intarsia.compiler import compile, tune  # noqa: A004 - the name that users expect
    from intarsia.errors import IntarsiaError
    from intarsia.files import ModelFile
    from intarsia.graph.annotate import on_device
    from intarsia.opening import load
    from intarsia.place.annotated_model import annotate
    from intarsia.provider.library import onnxruntime_library
    from intarsia.quantizing.quantize import quantize
    from intarsia.runtime.device_array import DeviceArray
    from intarsia.runtime.executor import PlanExecutable as Executable
    from intarsia.runtime.limited import Cancellation
    from intarsia.session import InferenceSession
    from intarsia.session.cached_decoder import CachedDecoder
    from intarsia.target import CompilationConfig, PlacedTarget, Target, VirtualDevice
    from intarsia.torch.exported import from_torch

    __version__: str

__all__ = [
    "CachedDecoder",
    "Cancellation",
    "CompilationConfig",
    "DeviceArray",
    "Executable",
    "InferenceSession",
    "IntarsiaError",
    "ModelFile",
    "PlacedTarget",
    "Target",
    "VirtualDevice",
    "annotate",
    "compile",
    "from_torch",
    "load",
    "on_device",
    "onnxruntime_library",
    "quantize",
    "tune",
]

_HOMES = {
    "CachedDecoder": ("intarsia.session.cached_decoder", "CachedDecoder"),
    "Cancellation": ("intarsia.runtime.limited", "Cancellation"),
    "CompilationConfig": ("intarsia.target", "CompilationConfig"),
    "DeviceArray": ("intarsia.runtime.device_array", "DeviceArray"),
    "Executable": ("intarsia.runtime.executor", "PlanExecutable"),
    "InferenceSession": ("intarsia.session", "InferenceSession"),
    "IntarsiaError": ("intarsia.errors", "IntarsiaError"),
    "ModelFile": ("intarsia.files", "ModelFile"),
    "PlacedTarget": ("intarsia.target", "PlacedTarget"),
    "Target": ("intarsia.target", "Target"),
    "VirtualDevice": ("intarsia.target", "VirtualDevice"),
    "annotate": ("intarsia.place.annotated_model", "annotate"),
    "compile": ("intarsia.compiler", "compile"),
    "from_torch": ("intarsia.torch.exported", "from_torch"),
    "load": ("intarsia.opening", "load"),
    "on_device": ("intarsia.graph.annotate", "on_device"),
    "onnxruntime_library": ("intarsia.provider.library", "onnxruntime_library"),
    "quantize": ("intarsia.quantizing.quantize", "quantize"),
    "tune": ("intarsia.compiler", "tune"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("intarsia")
    elif name in _HOMES:
        from intarsia.garbage import fewer_collections

        module, attribute = _HOMES[name]
        with fewer_collections():
            value = getattr(import_module(module), attribute)
    else:
        raise AttributeError(f"module 'intarsia' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
