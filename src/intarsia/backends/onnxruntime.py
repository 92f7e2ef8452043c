# SPDX-License-Identifier: Apache-2.0
"""The `onnxruntime` kind: ONNX Runtime's CPU execution provider, a complete backend.

A region is one session over our memory: constants are handed over by reference, inputs and
outputs by IO binding. Attributes: `num_threads`, `graph_optimization`, `custom_ops`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import (
    Verdict,
    check_payload,
    combine,
    fact_of,
    first_line,
    onnx_artifact,
    probe_nodes,
    refuse,
    whole_fact_of,
)
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.defects import refuse_defects
from intarsia.backends.device import Device, HostDevice, ThreadOptions
from intarsia.backends.onnxruntime_axes import count_axes_from_the_front
from intarsia.backends.onnxruntime_defects import DEFECTS
from intarsia.backends.onnxruntime_rewrites import (
    NEWEST_OPSET,
    REWRITES,
    UNSIGNED_FACTORS,
    newest_opset,
)
from intarsia.backends.onnxruntime_sessions import (
    ELEMENT_TYPES,
    FATAL,
    LIBRARIES,
    RUNTIME,
    OrtExecutable,
    make_session,
    ort_value,
    session_settings,
)
from intarsia.backends.onnxruntime_types import libraries_text, read_type
from intarsia.backends.rewriting import has_definition, is_rewritten, rewrite_artifact
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

_FUSING_LEVELS = ("extended", "all")
"""Those at which it makes constant factors unsigned by itself."""


_IS_NEWER = re.compile("Unsupported model IR version|Opset [0-9]+ is under development")
"""What it says of a model that is newer than it is."""
_NEWER_HINT = (
    "the model is newer than this release: write it in an older form (ir_version of the file, "
    "onnx.version_converter for operator sets), or compare with another (--against openvino)"
)

_COMMON = frozenset(("bool", "float32", "int32", "int64"))


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
        settings = session_settings(1, "none", _library_metadata(context).get(LIBRARIES, ""))
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
        return not artifact.metadata.get(LIBRARIES)

    def load(self, artifact: Artifact, device: Device) -> OrtExecutable:
        """Return a session.

        Raises:
            BackendError: ONNX Runtime refused the region.
        """
        self._require()
        check_payload(artifact)
        own_threads = whole_fact_of(artifact, "num_threads")
        options = ThreadOptions(own_threads or device.options.num_threads, device.options.is_shared)
        level = fact_of(artifact, "graph_optimization")

        def open_session(profile: str = "") -> Any:
            return make_session(artifact, options, level, profile=profile)

        return OrtExecutable(
            artifact,
            open_session(),
            has_threads=options.num_threads > 1,
            reopen=open_session,
        )

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
        settings.log_severity_level = FATAL
        try:
            session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
            return OrtBaseline(session, feeds)
        except Exception as error:
            text = first_line(error)
            raise BackendError(
                f"ONNX Runtime refused the model: {text}",
                backend=f"onnxruntime {self.version()}",
                hint=_NEWER_HINT if _IS_NEWER.search(text) else None,
            ) from error


class OrtBaseline:
    """A session bound to its inputs and, where their shapes are fixed, to its outputs."""

    def __init__(self, session: Any, feeds: Mapping[str, Array]) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._feeds = {name: np.asarray(array, order="C") for name, array in feeds.items()}
        for name, array in self._feeds.items():
            self._binding.bind_ortvalue_input(name, ort_value(array))
        for output in session.get_outputs():
            dtype = ELEMENT_TYPES.get(output.type)
            if dtype is not None and all(isinstance(dim, int) for dim in output.shape):
                array = np.empty(output.shape, dtype)
                self._binding.bind_ortvalue_output(output.name, ort_value(array))
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
    return {LIBRARIES: text} if text else {}


def refuse_without_kernel(
    backend: OnnxRuntimeBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    """Refuse nodes for which ONNX Runtime has no kernel, each tried as a session of its own."""
    from intarsia.graph.extract import SUB_BYTE

    version = backend.version()
    options = ThreadOptions(num_threads=1)
    libraries = _library_metadata(context)
    if libraries:
        session_settings(
            1, "none", libraries[LIBRARIES]
        )  # one that is wrong is nobody's node's fault

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
