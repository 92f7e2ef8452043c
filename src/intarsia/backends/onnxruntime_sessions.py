# SPDX-License-Identifier: Apache-2.0
"""Sessions of ONNX Runtime over our memory, for every backend that has its regions run by them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import fill, first_line
from intarsia.backends.device import Buffer, Step, ThreadOptions, ValueSlot
from intarsia.backends.index_checks import with_checks
from intarsia.backends.onnxruntime_types import check_libraries
from intarsia.backends.runtimes import PythonRuntime
from intarsia.backends.values import Artifact
from intarsia.errors import BackendError

if TYPE_CHECKING:
    from intarsia.backends.onnxruntime_tracing import ProfiledRun

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""Values of `-graph_optimization`, and what ONNX Runtime calls them."""

LIBRARIES = "custom_ops"
"""Key of an artifact's metadata: `libraries_text` of what it needs."""

FATAL = 4
"""ONNX Runtime's severity of messages that end the process."""
_USER_DEFINED = 2
"""What numpy says of dtypes that are not its own, as those of ml_dtypes (`dtype.isbuiltin`)."""


RUNTIME = PythonRuntime("ONNX Runtime", "onnxruntime", "capi/*.so*")


Provide: TypeAlias = Callable[[Any], Mapping[str, Any]]


def _on_cpu(settings: Any) -> Mapping[str, Any]:
    return {"providers": ["CPUExecutionProvider"]}


def make_session(
    artifact: Artifact,
    options: ThreadOptions,
    level: str = "all",
    provide: Provide | None = None,
    profile: str = "",
) -> Any:
    """Return a session over an artifact's payload and constants.

    Args:
        artifact: The region.
        options: Threads.
        level: One of `LEVELS`.
        provide: Adds a provider to a session's options, and returns what the session takes beside
            them; None means the CPU's.
        profile: How the name of the file begins into which it writes a profile; empty writes none.

    Raises:
        BackendError: ONNX Runtime refused the region.
    """
    ort = RUNTIME.module()
    settings = session_settings(options.num_threads, level, artifact.metadata.get(LIBRARIES, ""))
    if options.is_shared:
        # Idle threads spin for 34 ms, on busy CPUs for up to 100 (docs/measuring.md), and so hold
        # the cores on which the next region's backend computes.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if profile:
        settings.enable_profiling, settings.profile_file_prefix = True, profile
    try:
        if artifact.constants:
            settings.add_external_initializers(
                [constant.name for constant in artifact.constants],
                [ort_value(constant.data) for constant in artifact.constants],
            )
        chosen = _on_cpu(settings) if provide is None else provide(settings)
        return ort.InferenceSession(artifact.payload, settings, **chosen)
    except Exception as error:
        raise RUNTIME.error(f"refused a region: {first_line(error)}", artifact) from error


AS_FLOATS = "1"
"""The `accuracy_level` of products that is float32."""


def session_settings(num_threads: int, level: str, libraries: str) -> Any:
    """Return options of a session.

    Args:
        num_threads: Threads that one run may use.
        level: One of `LEVELS`.
        libraries: What `libraries_text` made.

    Raises:
        BackendError: A library of custom operators is another, or ONNX Runtime refused it.
    """
    ort = RUNTIME.module()
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = num_threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = FATAL  # what it says comes as an exception
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    settings.add_session_config_entry("session.disable_double_qdq_remover", "1")  # drops a rounding
    # Constant int8 factors become uint8 where the CPU has no VNNI: their sums saturate there.
    settings.add_session_config_entry("session.x64quantprecision", "1")
    # Behind weights in blocks, activations would become int8: 2 % of a result's root mean square.
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", AS_FLOATS)
    for path in check_libraries(libraries):
        try:
            settings.register_custom_ops_library(path)
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime refused the library of custom operators {path!r}: "
                f"{first_line(error)}",
                backend="onnxruntime",
                hint="it has to be a shared library with the function RegisterCustomOps",
            ) from error
    return settings


def ort_value(array: Array) -> Any:
    """Return an array as a value of ONNX Runtime's, without a copy."""
    ort = RUNTIME.module()
    if array.dtype.kind == "V" or array.dtype.name not in _NATIVE:
        element_type = _element_type(array.dtype.name)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element_type)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _element_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np_dtype(dtype)))


_NATIVE = (
    *("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)


ELEMENT_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    **{f"tensor({dtype})": dtype for dtype in _NATIVE},
}
"""numpy's names of ONNX Runtime's types."""


class OrtExecutable:
    """One session; bindings and threads share it.

    Args:
        artifact: The region.
        session: It.
        has_threads: Whether the session has threads of its own.
        reopen: Returns the same session once more, but one that writes a profile to a file whose
            name begins so; None where there is no other.
    """

    scratch_bytes = 0

    def __init__(
        self,
        artifact: Artifact,
        session: Any,
        *,
        has_threads: bool = True,
        reopen: Callable[[str], Any] | None = None,
    ) -> None:
        self._artifact = artifact  # the session refers to its constants
        self._session = session
        self._reopen = reopen
        self.survives_fork = not has_threads  # else it waits for threads that are gone

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the session on these buffers.

        Dense tensors are bound in place; where a slot or text is among them, the session makes
        its own outputs, which are then copied or put into the slots.
        """
        step = self._bound(inputs, outputs)
        return with_checks(step, self._artifact, inputs, afterwards=True)

    def trace_step(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> ProfiledRun | None:
        """Return the call of another session of the region, which notes each of its kernels.

        Raises:
            BackendError: ONNX Runtime refused the region this time.
        """
        if self._reopen is None:
            return None
        from intarsia.backends.onnxruntime_tracing import ProfiledRun, ProfiledSession

        profiled = ProfiledSession(self._artifact, self._reopen)
        return ProfiledRun(
            OrtExecutable(self._artifact, profiled.session).bind(inputs, outputs, scratch), profiled
        )

    def _bound(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Step:
        specs = (*self._artifact.inputs, *self._artifact.outputs)
        if any(spec.shape is None or spec.dtype == "string" for spec in specs):
            return partial(self._run_loose, tuple(inputs), tuple(outputs))
        binding = self._session.io_binding()
        for spec, array in zip(self._artifact.inputs, inputs, strict=True):
            binding.bind_input(
                spec.name, "cpu", 0, _bound_type(spec.dtype), array.shape, array.ctypes.data
            )
        for spec, array in zip(self._artifact.outputs, outputs, strict=True):
            binding.bind_output(
                spec.name, "cpu", 0, _bound_type(spec.dtype), array.shape, array.ctypes.data
            )
        return _BoundRun(self._session, binding, self, (*inputs, *outputs))

    def _run_loose(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> None:
        feeds = {
            spec.name: buffer.value if isinstance(buffer, ValueSlot) else buffer
            for spec, buffer in zip(self._artifact.inputs, inputs, strict=True)
        }
        specs = self._artifact.outputs
        results: Sequence[Any] = outputs
        arrays = [one for one in (*feeds.values(), *outputs) if isinstance(one, np.ndarray)]
        is_odd = any(one.dtype.isbuiltin == _USER_DEFINED for one in arrays)
        is_plain = all(
            isinstance(one, np.ndarray) and not one.dtype.hasobject for one in feeds.values()
        )
        if is_odd and is_plain:  # the session neither takes nor makes arrays of such types
            self._run_bound(feeds, outputs)
        else:
            results = self._session.run([spec.name for spec in specs], feeds)
        for buffer, result, spec in zip(outputs, results, specs, strict=True):
            if buffer is not result:
                fill(buffer, result, spec, "onnxruntime")

    def _run_bound(self, feeds: Mapping[str, Any], outputs: tuple[Buffer, ...]) -> None:
        """Run on outputs whose memory is there; others go into their slots."""
        binding = self._session.io_binding()
        arrays = {name: np.asarray(value, order="C") for name, value in feeds.items()}
        for spec in self._artifact.inputs:
            array = arrays[spec.name]
            kind = _bound_type(spec.dtype)
            binding.bind_input(spec.name, "cpu", 0, kind, array.shape, array.ctypes.data)
        slots = []
        for spec, buffer in zip(self._artifact.outputs, outputs, strict=True):
            if isinstance(buffer, ValueSlot):
                binding.bind_output(spec.name, "cpu")
                slots.append((spec, buffer))
            else:
                kind = _bound_type(spec.dtype)
                binding.bind_output(spec.name, "cpu", 0, kind, buffer.shape, buffer.ctypes.data)
        self._session.run_with_iobinding(binding)
        made = binding.get_outputs() if slots else ()
        for spec, slot in slots:
            position = self._artifact.outputs.index(spec)
            slot.value = _array_of(made[position], spec.dtype)


def _array_of(value: Any, dtype: str) -> Array:
    """Return what a session made as an array of our own, of types without a numpy name too."""
    if dtype in _NATIVE:
        array: Array = value.numpy()
        return array
    kind, shape = np_dtype(dtype), tuple(value.shape())
    memory = (ctypes.c_uint8 * (prod(shape) * kind.itemsize)).from_address(value.data_ptr())
    return np.frombuffer(memory, kind).reshape(shape).copy()


class _BoundRun:
    """A session with its binding; keeps the memory alive that ONNX Runtime only points to."""

    __slots__ = ("_binding", "_owned", "_run")

    def __init__(self, session: Any, binding: Any, *owned: Any) -> None:
        self._run = session.run_with_iobinding
        self._binding = binding
        self._owned = owned

    def __call__(self) -> None:
        self._run(self._binding)


def _bound_type(dtype: str) -> Any:
    return np_dtype(dtype) if dtype in _NATIVE else _element_type(dtype)
