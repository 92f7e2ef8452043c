# SPDX-License-Identifier: Apache-2.0
"""The `onnxruntime` kind: ONNX Runtime's CPU execution provider, a complete backend.

A region is one session over our memory: constants are handed over by reference, inputs and
outputs by IO binding. Attributes: `num_threads`, `graph_optimization`, `custom_ops`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.artifact import (
    Verdict,
    check_payload,
    combine,
    fill,
    first_line,
    onnx_artifact,
    probe_nodes,
    refuse,
)
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.defects import refuse_defects
from intarsia.backends.device import Buffer, Device, HostDevice, Step, ThreadOptions, ValueSlot
from intarsia.backends.index_checks import with_checks
from intarsia.backends.onnxruntime_axes import count_axes_from_the_front
from intarsia.backends.onnxruntime_defects import DEFECTS
from intarsia.backends.onnxruntime_rewrites import (
    NEWEST_OPSET,
    REWRITES,
    UNSIGNED_FACTORS,
    newest_opset,
)
from intarsia.backends.onnxruntime_types import check_libraries, libraries_text, read_type
from intarsia.backends.rewriting import has_definition, is_rewritten, rewrite_artifact
from intarsia.backends.runtimes import PythonRuntime
from intarsia.backends.values import Artifact, Candidate, Detection, Refusal, Rule
from intarsia.errors import BackendError, ReasonCode
from intarsia.process.selftest import is_inside
from intarsia.target import Target

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph, Value
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
"""Values of `-graph_optimization`, and what ONNX Runtime calls them."""
_FUSING_LEVELS = ("extended", "all")
"""Those at which it makes constant factors unsigned by itself."""


_LIBRARIES = "custom_ops"
"""Key of an artifact's metadata: `libraries_text` of what it needs."""

_FATAL = 4
"""ONNX Runtime's severity of messages that end the process."""
_USER_DEFINED = 2
"""What numpy says of dtypes that are not its own, as those of ml_dtypes (`dtype.isbuiltin`)."""


RUNTIME = PythonRuntime("ONNX Runtime", "onnxruntime", "capi/*.so*")


def make_session(artifact: Artifact, options: ThreadOptions, level: str = "all") -> Any:
    """Return a session over an artifact's payload and constants.

    Raises:
        BackendError: ONNX Runtime refused the region.
    """
    ort = RUNTIME.module()
    settings = _settings(options.num_threads, level, artifact.metadata.get(_LIBRARIES, ""))
    if options.is_shared:
        # Idle threads spin for 34 ms, on busy CPUs for up to 100 (docs/measuring.md), and so hold
        # the cores on which the next region's backend computes.
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        if artifact.constants:
            settings.add_external_initializers(
                [constant.name for constant in artifact.constants],
                [_ort_value(constant.data) for constant in artifact.constants],
            )
        return ort.InferenceSession(artifact.payload, settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RUNTIME.error(f"refused a region: {first_line(error)}", artifact) from error


def _settings(num_threads: int, level: str, libraries: str) -> Any:
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
    settings.log_severity_level = _FATAL  # what it says comes as an exception
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    settings.add_session_config_entry("session.disable_double_qdq_remover", "1")  # drops a rounding
    # Constant int8 factors become uint8 where the CPU has no VNNI: their sums saturate there.
    settings.add_session_config_entry("session.x64quantprecision", "1")
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


def _ort_value(array: Array) -> Any:
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

_COMMON = frozenset(("bool", "float32", "int32", "int64"))


class OrtExecutable:
    """One session; bindings and threads share it."""

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, options: ThreadOptions) -> None:
        self._artifact = artifact  # the session refers to its constants
        self._session = make_session(artifact, options, artifact.metadata["graph_optimization"])

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that runs the session on these buffers.

        Dense tensors are bound in place; where a slot or text is among them, the session makes
        its own outputs, which are then copied or put into the slots.
        """
        step = self._bound(inputs, outputs)
        return with_checks(step, self._artifact, inputs, afterwards=True)

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


@dataclass(frozen=True)
class OnnxRuntimeBackend(ConfiguredBackend):
    """Serves the kind `onnxruntime`. Settings say where verdicts on self-tests are kept."""

    name = "onnxruntime"
    kinds = ("onnxruntime",)
    takes_free = True
    defects = DEFECTS

    def _require(self) -> tuple[str, ...]:
        return RUNTIME.require(self.settings.cache_folder())

    def version(self) -> str:
        """Return ONNX Runtime's version.

        Raises:
            BackendError: It is not installed.
        """
        installed = RUNTIME.installed_version(self.settings.cache_folder())
        return installed or str(RUNTIME.module().__version__)

    def detect(self) -> Detection:
        """Return the CPU, or why ONNX Runtime cannot be used.

        What passed its self-test is not loaded: another target may take the whole model.
        """
        try:
            if is_inside() or not self._require():
                RUNTIME.module()
        except BackendError as error:
            return Detection.failed(error)
        return Detection((Target("onnxruntime"),), rank=3)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: every node for which a session can be made."""
        return (Rule("session", partial(refuse_without_kernel, self)),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: every node has been tried by the rule, the region is by `compile`."""
        return None

    def infer_types(self, model: ir.Model, context: BuildContext) -> Mapping[str, onnx.TypeProto]:
        """Return the types of values that have none, from a session that has them as outputs.

        Raises:
            BackendError: ONNX Runtime does not take the model.
        """
        from intarsia.graph.infer import skeleton

        self._require()
        proto = skeleton(model)
        outputs = {value.name for value in proto.graph.output}
        is_open = {
            value.name
            for node in model.graph
            for value in node.outputs
            if value.name and (value.type is None or value.shape is None)
        }
        for name in is_open - outputs:
            proto.graph.output.add(name=name)
        settings = _settings(1, "none", _library_metadata(context).get(_LIBRARIES, ""))
        try:
            session = RUNTIME.module().InferenceSession(
                proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime refused the model: {first_line(error)}",
                backend=f"onnxruntime {self.version()}",
                target=str(context.target),
            ) from error
        types = {
            output.name: read_type(output.type, output.shape)
            for output in session.get_outputs()
            if output.name in is_open
        }
        return {name: kind for name, kind in types.items() if kind is not None}

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX with its large constants referred to."""
        attrs = context.attrs
        level = str(attrs.get("graph_optimization") or "all")
        metadata = {
            "graph_optimization": level,
            "num_threads": str(attrs.get("num_threads") or 0),
            **_library_metadata(context),
        }
        return _artifact(candidate, self.version(), metadata)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def is_data(self, artifact: Artifact) -> bool:
        """Tell whether a session loads no library of custom operators."""
        return not artifact.metadata.get(_LIBRARIES)

    def load(self, artifact: Artifact, device: Device) -> OrtExecutable:
        """Return a session.

        Raises:
            BackendError: ONNX Runtime refused the region.
        """
        self._require()
        check_payload(artifact)
        own_threads = int(artifact.metadata["num_threads"])
        options = ThreadOptions(own_threads or device.options.num_threads, device.options.is_shared)
        return OrtExecutable(artifact, options)

    def baseline(
        self, model: bytes | str, feeds: Mapping[str, Array], num_threads: int
    ) -> OrtBaseline:
        """Return the untouched model in ONNX Runtime's own API, with IO binding.

        Raises:
            BackendError: ONNX Runtime is not installed, or refused the model.
        """
        self._require()
        ort = RUNTIME.module()
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = num_threads
        settings.log_severity_level = _FATAL
        try:
            session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
            return OrtBaseline(session, feeds)
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime refused the model: {first_line(error)}",
                backend=f"onnxruntime {self.version()}",
            ) from error


class OrtBaseline:
    """A session bound to its inputs and, where their shapes are fixed, to its outputs."""

    def __init__(self, session: Any, feeds: Mapping[str, Array]) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._feeds = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        for name, array in self._feeds.items():
            self._binding.bind_ortvalue_input(name, _ort_value(array))
        for output in session.get_outputs():
            dtype = ELEMENT_TYPES.get(output.type)
            if dtype is not None and all(isinstance(dim, int) for dim in output.shape):
                array = np.empty(output.shape, dtype)
                self._binding.bind_ortvalue_output(output.name, _ort_value(array))
            else:
                self._binding.bind_output(output.name)

    def run(self) -> None:
        """Run once."""
        self._session.run_with_iobinding(self._binding)

    def outputs(self) -> list[Array]:
        """Return fresh arrays with the outputs of the last run."""
        return [np.array(array) for array in self._binding.copy_outputs_to_cpu()]


def _artifact(candidate: Candidate, version: str, metadata: Mapping[str, str]) -> Artifact:
    """Return a region as ONNX Runtime gets it."""
    region = candidate.region
    artifact = onnx_artifact(
        "onnxruntime", version, candidate, constants="external", metadata=metadata
    )
    artifact = count_axes_from_the_front(artifact, region)
    does_fuse = metadata.get("graph_optimization", "all") in _FUSING_LEVELS
    rewrites = REWRITES if does_fuse else (UNSIGNED_FACTORS, *REWRITES)
    return rewrite_artifact(artifact, region, rewrites, newest_opset(region))


def _library_metadata(context: BuildContext) -> dict[str, str]:
    text = libraries_text(context.attrs.get("custom_ops") or ())
    return {_LIBRARIES: text} if text else {}


def refuse_without_kernel(
    backend: OnnxRuntimeBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    """Refuse nodes for which ONNX Runtime has no kernel, each tried as a session of its own."""
    from intarsia.graph.extract import SUB_BYTE

    version = backend.version()
    options = ThreadOptions(num_threads=1)
    libraries = _library_metadata(context)
    if libraries:
        _settings(1, "none", libraries[_LIBRARIES])  # one that is wrong is nobody's node's fault

    refusals = {
        **_refuse_unknown_definitions(graph, context, version),
        **refuse_defects(graph, context, DEFECTS, version),
    }

    def artifact_of(region: Region) -> Artifact:
        return _artifact(Candidate.plain(region, context.target), version, libraries)

    def joins(region: Region) -> bool:
        if not region.inputs or region.nodes[0] in refusals:
            return False  # with nothing to feed, it may be taken among others and refused alone
        return all(value.dtype and value.dtype not in SUB_BYTE for value in _border(region))

    def attempt(region: Region) -> Verdict:
        if region.nodes[0] in refusals:
            return None
        packed = [value.name for value in _border(region) if value.dtype in SUB_BYTE]
        # Our buffers hold an element in a byte (ml_dtypes), ONNX Runtime's two or four.
        if packed:
            return ReasonCode.UNSUPPORTED_DTYPE, f"{packed[0]!r} packs several elements in a byte"
        if not all(value.dtype for value in _border(region) if value.is_tensor):
            return None  # an operator without type inference cannot be tried apart from the rest
        artifact = artifact_of(region)
        try:
            # Asked is whether there is a kernel for the node as it is, not for what it may be fused
            # into.
            make_session(artifact, options, "none")
        except BackendError as error:
            return _code(error.message, artifact), error.message
        return None

    def together(regions: Sequence[Region]) -> Sequence[Verdict] | None:
        try:
            make_session(combine([artifact_of(region) for region in regions])[0], options, "none")
        except BackendError:
            return None  # one of them is why
        return [None] * len(regions)

    return {**probe_nodes(graph, context, attempt, together, joins), **refusals}


def _border(region: Region) -> list[Value]:
    return [region.graph.values[i] for i in (*region.inputs, *region.outputs)]


def _refuse_unknown_definitions(
    graph: Graph, context: BuildContext, version: str
) -> dict[int, Refusal]:
    """Refuse nodes of which ONNX Runtime knows no definition, in any operator set."""
    if graph.model.opset_imports.get("", 0) <= NEWEST_OPSET:
        return {}
    reason = (
        f"release {version} knows operator sets up to {NEWEST_OPSET}, "
        "which do not have the operator in this form"
    )
    return {
        node.id: refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
        for node in graph.nodes
        if not is_rewritten(REWRITES, version)(graph, node)
        and not has_definition(graph, node, NEWEST_OPSET)
    }


def _code(message: str, artifact: Artifact) -> ReasonCode:
    """Return the reason of a refusal; a kernel that lacks common dtypes is not there at all."""
    is_common = all(spec.dtype in _COMMON for spec in (*artifact.inputs, *artifact.outputs))
    if "Type Error" in message or ("NOT_IMPLEMENTED" in message and not is_common):
        return ReasonCode.UNSUPPORTED_DTYPE
    return ReasonCode.UNSUPPORTED_OP


BACKEND = OnnxRuntimeBackend()
