# SPDX-License-Identifier: Apache-2.0
"""Sessions with a provider: its library, its devices, and which nodes it really has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from intarsia.backends.artifact import first_line
from intarsia.backends.onnxruntime_sessions import RUNTIME
from intarsia.errors import BackendError

CPU = "CPUExecutionProvider"
_ASSIGNMENTS = "get_provider_graph_assignment_info"


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """A provider as a session is to have it.

    Attributes:
        name: Of the provider; empty for the one that the library has.
        title: For people.
        library: The file of its plug-in; empty if it is a part of ONNX Runtime.
        device: `cpu`, `gpu` or `npu`, if one is asked for.
        options: Its options, sorted.
    """

    name: str
    title: str
    library: str
    device: str
    options: tuple[tuple[str, str], ...]

    def provide(self, settings: Any) -> Mapping[str, Any]:
        """Add the provider to a session's options; return what else the session takes.

        Raises:
            BackendError: It is not here, or has no such device.
        """
        # A session of Python's package falls back to the CPU by itself where a provider fails.
        fallback = {"enable_fallback": False}
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not self.library:
            return {"providers": [(self.name, dict(self.options)), CPU], **fallback}
        settings.add_provider_for_devices(self.devices(), dict(self.options))
        return fallback

    def devices(self) -> list[Any]:
        """Return the devices that the library's provider is for; one, where it has several.

        Raises:
            BackendError: It has none.
        """
        found = [
            device
            for device in register(self.library, self.name or Path(self.library).stem)
            if not self.device or device.device.type.name.lower() == self.device
        ]
        if not found:
            kind = f" of type {self.device}" if self.device else ""
            raise self.error(f"finds no device{kind} on this machine")
        return found[:1]

    def error(self, problem: str) -> BackendError:
        """Return what to raise: the rest of a sentence of which the provider is the subject."""
        return BackendError(f"{self.title} {problem}", backend="ort-ep")


@cache
def register(library: str, name: str) -> tuple[Any, ...]:
    """Load a plug-in and return the devices that it offers; once in a process.

    Raises:
        BackendError: It is none, or ONNX Runtime is too old.
    """
    ort = RUNTIME.module()
    if not hasattr(ort.InferenceSession, _ASSIGNMENTS):
        raise BackendError(
            f"ONNX Runtime {ort.__version__} does not say which provider has a node",
            backend="ort-ep",
            hint="pip install --upgrade onnxruntime",
        )
    try:
        ort.register_execution_provider_library(name, library)
        devices = ort.get_ep_devices()
    except Exception as error:
        raise BackendError(
            f"ONNX Runtime cannot load the library {library!r}: {first_line(error)}",
            backend="ort-ep",
            hint="it has to be a plug-in of ONNX Runtime, with the function CreateEpFactories",
        ) from error
    return tuple(one for one in devices if one.ep_metadata.get("library_path") == library)


def names_on_cpu(session: Any) -> list[tuple[str, str]]:
    """Return name and operator of each node that a session left to ONNX Runtime's own kernels."""
    return [
        (node.name, node.op_type)
        for part in getattr(session, _ASSIGNMENTS)()
        if part.ep_name == CPU
        for node in part.get_nodes()
    ]


def say_left(title: str, left: Sequence[tuple[str, str]]) -> str:
    """Return one sentence that says which nodes a provider put on the CPU."""
    shown = ", ".join(sorted({op_type for _, op_type in left}))
    count = "one node" if len(left) == 1 else f"{len(left)} nodes"
    return f"{title} does not take {count}, which ONNX Runtime put on the CPU: {shown}"


def try_provider(
    name: str, title: str, library: str, device: str, options: list[list[str]]
) -> None:
    """Make a session with a provider and run it: in the process of a self-test.

    Raises:
        BackendError: It fails, or computes nonsense.
    """
    from onnx import parser

    ort = RUNTIME.module()
    choice = ProviderChoice(
        name, title, library, device, tuple((key, value) for key, value in options)
    )
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4, 4] x) => (float[4, 4] y)'
        " { y = Add (x, x) }"
    )
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    chosen = choice.provide(settings)
    session = ort.InferenceSession(model.SerializeToString(), settings, **chosen)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    (y,) = session.run(None, {"x": x})
    if not np.allclose(y, x + x, rtol=1e-2, atol=1e-2):
        raise choice.error("computes nonsense: the sum of two matrices is wrong")
