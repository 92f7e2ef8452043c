# SPDX-License-Identifier: Apache-2.0
"""A door for programs written for ONNX Runtime: its class, with targets instead of providers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intarsia.backends.api import TensorSpec
from intarsia.compiler import compile as compile_model
from intarsia.errors import InputError, SettingError
from intarsia.runtime.loading import load
from intarsia.runtime.package import is_package

ORT_TYPES = {
    "bool": "tensor(bool)",
    "float16": "tensor(float16)",
    "float32": "tensor(float)",
    "float64": "tensor(double)",
    "string": "tensor(string)",
}
"""ONNX Runtime's names of types that are not `tensor(NUMPY-NAME)`."""


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes one."""

    name: str
    shape: list[int | None]
    type: str

    @classmethod
    def of(cls, spec: TensorSpec) -> NodeArg:
        """Return the description of a tensor."""
        type_text = ORT_TYPES.get(spec.dtype, f"tensor({spec.dtype})")
        return cls(spec.name, list(spec.shape or ()), type_text)


class InferenceSession:
    """A compiled model with the shape of `onnxruntime.InferenceSession`.

    Args:
        path_or_bytes: A model in any form that `intarsia.compile` takes, or a package's path.
        targets: Targets in order of priority; None means what is found on this machine.
        options: Passed on to `intarsia.compile`: `host` (also as `target_host`), `shapes`, ...

    Raises:
        IntarsiaError: As `intarsia.compile` and `intarsia.load`.
    """

    def __init__(self, path_or_bytes: Any, targets: Any = None, **options: Any) -> None:
        for name in ("providers", "provider_options", "sess_options"):
            if name in options:
                raise SettingError(
                    f"{name}= is ONNX Runtime's; here targets say where a model runs",
                    hint='write targets=["openvino", "onnxruntime"], and num_threads=',
                )
        if isinstance(path_or_bytes, str | Path) and is_package(path_or_bytes):
            compiling = [name for name in options if name not in ("num_threads", "backends")]
            if targets is not None or compiling:
                raise SettingError(
                    f"{str(path_or_bytes)!r} is compiled already",
                    hint=f"leave {', '.join(compiling) or 'targets'} out, or give the .onnx file",
                )
            self.executable = load(path_or_bytes, **options)
        else:
            self.executable = compile_model(path_or_bytes, targets, **options)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: None = None,
    ) -> list[Any]:
        """Run the model once.

        Args:
            output_names: The outputs that are wanted, in order; None means all.
            input_feed: An array per input, by name.
            run_options: Accepted for the signature's sake; there are none.

        Raises:
            InputError: A name, dtype or shape is wrong.
            ExecutionError: A backend failed.
        """
        del run_options
        known = [spec.name for spec in self.executable.outputs]
        wanted = known if output_names is None else list(output_names)
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise InputError(
                f"the model has no output {unknown[0]!r}", hint=f"it has {', '.join(known)}"
            )
        outputs = self.executable.run(input_feed)
        return [outputs[name] for name in wanted]

    def get_inputs(self) -> list[NodeArg]:
        """Return the model's inputs."""
        return [NodeArg.of(spec) for spec in self.executable.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the model's outputs."""
        return [NodeArg.of(spec) for spec in self.executable.outputs]

    def get_providers(self) -> list[str]:
        """Return the targets in order of priority."""
        return list(self.executable.placement.targets)
