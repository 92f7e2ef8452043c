# SPDX-License-Identifier: Apache-2.0
"""The `openvino` kind: OpenVINO's CPU plug-in, a partial backend.

A region is one compiled model; its constants share our memory, its tensors are bound once.
Precision is f32 unless `-precision=` says otherwise. Attributes: `precision`, `num_threads`.

The plug-in computes 64-bit integers in 32 bits (2**33 passes through Identity as 0), and float64
as float32: such nodes are refused, except where an int64 is an index, which fits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.api import (
    Array,
    Artifact,
    Buffer,
    Detection,
    Device,
    HostDevice,
    ReasonCode,
    Refusal,
    Rule,
    RunOptions,
    Step,
)
from intarsia.backends.artifact import first_line, onnx_artifact, probe_nodes, refuse
from intarsia.backends.candidate import Candidate
from intarsia.errors import BackendError
from intarsia.target import Target

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.backends.candidate import BuildContext
    from intarsia.cost.cost import Cost
    from intarsia.graph.graph import Graph, Node, Value
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice

DTYPES = frozenset(("float32", "float16", "bool", "int8", "uint8", "int32"))
"""Element types that the CPU plug-in keeps exact."""

PRECISIONS = ("f32", "bf16", "f16")
"""Values of `-precision`."""

INDEX_INPUTS: Mapping[str, tuple[int, ...]] = {
    "Expand": (1,),
    "Gather": (1,),
    "GatherElements": (1,),
    "GatherND": (1,),
    "OneHot": (0,),
    "Pad": (1, 3),
    "Reshape": (1,),
    "Resize": (3,),
    "ScatterElements": (1,),
    "ScatterND": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
"""By operator, the inputs that hold indices or sizes, so that their int64 fits into 32 bits."""

INDEX_OUTPUTS: Mapping[str, tuple[int, ...]] = {
    "ArgMax": (0,),
    "ArgMin": (0,),
    "Shape": (0,),
    "Size": (0,),
    "TopK": (1,),
}
"""By operator, the outputs that hold indices or sizes."""


@cache
def driver() -> Any:
    """Import OpenVINO.

    Raises:
        BackendError: It is not installed, or does not load.
    """
    try:
        import openvino
    except ImportError as error:
        raise BackendError(
            f"OpenVINO is not available: {error}",
            backend="openvino",
            hint="pip install 'intarsia[openvino]'",
        ) from error
    return openvino


@cache
def core() -> Any:
    """Return the process's one OpenVINO core."""
    return driver().Core()


def read_model(artifact: Artifact) -> Any:
    """Return an OpenVINO model whose large constants view the artifact's memory.

    Raises:
        BackendError: OpenVINO cannot convert an operator, or gives an output another shape.
    """
    driver()
    from openvino import opset13

    try:
        model = core().read_model(artifact.payload)
        parameters = {node.get_friendly_name(): node for node in model.get_parameters()}
        for constant in artifact.constants:
            parameter = parameters[constant.name]
            value = opset13.constant(_as_writable(constant.data), shared_memory=True)
            for consumer in list(parameter.output(0).get_target_inputs()):
                consumer.replace_source_output(value.output(0))
            model.remove_parameter(parameter)
        model.validate_nodes_and_infer_types()
    except Exception as error:
        raise BackendError(
            f"OpenVINO cannot convert a region: {_telling_line(error)}",
            backend=f"openvino {artifact.version}",
            target=artifact.target,
        ) from error
    _check_shapes(model, artifact)
    return model


def _check_shapes(model: Any, artifact: Artifact) -> None:
    """Refuse what OpenVINO's own inference of shapes does not agree with.

    It writes as many elements as it computes into the buffers that it is given, whatever their
    size: `keep_aspect_ratio_policy` of Resize, which it ignores, corrupted memory.
    """
    for spec, port in zip(artifact.outputs, model.outputs, strict=True):
        shape = port.get_partial_shape()
        if spec.shape is not None and not (
            shape.is_static and tuple(shape.to_shape()) == spec.shape
        ):
            raise BackendError(
                f"OpenVINO takes the shape of {spec.name!r} to be {shape}, not {list(spec.shape)}",
                backend=f"openvino {artifact.version}",
                target=artifact.target,
            )


def _as_writable(array: Array) -> Array:
    """Return the same memory as an array that says it is writable.

    OpenVINO shares no other; it does not write to constants.
    """
    data = memoryview((ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data))
    writable: Array = np.frombuffer(data, array.dtype).reshape(array.shape)
    return writable


def compile_model(artifact: Artifact, num_threads: int) -> Any:
    """Return an OpenVINO compiled model.

    Raises:
        BackendError: OpenVINO refused the region.
    """
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": artifact.metadata["precision"],
        "INFERENCE_NUM_THREADS": num_threads,
        "NUM_STREAMS": "1",
    }
    model = read_model(artifact)
    try:
        return core().compile_model(model, "CPU", settings)
    except Exception as error:
        raise BackendError(
            f"OpenVINO failed to compile a region: {_telling_line(error)}",
            backend=f"openvino {artifact.version}",
            target=artifact.target,
        ) from error


def _telling_line(error: Exception) -> str:
    lines = [line.strip(" -\t") for line in str(error).splitlines()]
    for line in lines:
        if line.startswith("No conversion rule"):
            return line
    telling = [line for line in lines if line and not line.startswith(("Exception from", "Check"))]
    return telling[0] if telling else first_line(error)


class OpenVinoExecutable:
    """One compiled model; bindings and threads share it."""

    scratch_bytes = 0

    def __init__(self, artifact: Artifact, compiled: Any) -> None:
        self._artifact = artifact  # the compiled model may refer to its constants
        self._compiled = compiled

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that infers on these arrays, which it shares."""
        del scratch
        request = self._compiled.create_infer_request()
        names = [port.get_names() for port in self._compiled.inputs]
        for spec, array in zip(self._artifact.inputs, inputs, strict=True):
            index = next(i for i, aliases in enumerate(names) if spec.name in aliases)
            request.set_input_tensor(index, _shared(array))
        for index, array in enumerate(outputs):
            request.set_output_tensor(index, _shared(array))
        return _BoundInference(request, self, (*inputs, *outputs))


class _BoundInference:
    """A request; keeps the memory alive that OpenVINO only points to: constants and tensors."""

    __slots__ = ("_infer", "_kept")

    def __init__(self, request: Any, *kept: Any) -> None:
        self._infer = request.infer
        self._kept = kept

    def __call__(self) -> None:
        self._infer()


def _shared(array: Array) -> Any:
    return driver().Tensor(array, shared_memory=True)


class OpenVinoBackend:
    """Serves the kind `openvino`."""

    name = "openvino"
    kinds = ("openvino",)

    def version(self) -> str:
        """Return OpenVINO's version.

        Raises:
            BackendError: It is not installed.
        """
        return str(driver().__version__).split("-", maxsplit=1)[0]

    def detect(self) -> Detection:
        """Return the CPU, or why OpenVINO cannot be used."""
        try:
            if "CPU" not in core().available_devices:
                return Detection(reason="OpenVINO finds no CPU plug-in")
        except BackendError as error:
            return Detection(reason=error.message, hint=error.hint or "")
        return Detection((Target("openvino"),))

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: what OpenVINO's own query takes."""
        del context
        return (Rule("query", refuse_by_query),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: whether a whole region compiles is known when it is loaded."""
        del candidate, context
        return None

    def estimate(self, candidate: Candidate, context: BuildContext) -> Cost | None:
        """Return nothing: it has to be measured."""
        del candidate, context
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX with its large constants referred to.

        OpenVINO compiles when it loads: its own blobs would hold a copy of the weights, fit one
        version and one instruction set only, and save a fraction of a second.

        Raises:
            BackendError: An attribute of the target has no such value.
        """
        assert context.target.target is not None
        attrs = context.target.target.attrs
        precision = str(attrs.get("precision") or "f32")
        if precision not in PRECISIONS:
            raise BackendError(
                f"-precision={precision} is unknown to OpenVINO",
                backend=self.name,
                target=str(context.target),
                hint=f"use one of {', '.join(PRECISIONS)}",
            )
        metadata = {"precision": precision, "num_threads": str(attrs.get("num_threads") or 0)}
        return onnx_artifact(
            self.name, self.version(), candidate, constants="inputs", metadata=metadata
        )

    def open(self, placed: VirtualDevice, options: RunOptions) -> Device:
        """Return host memory."""
        del placed
        return HostDevice(options)

    def load(self, artifact: Artifact, device: Device) -> OpenVinoExecutable:
        """Return a compiled model.

        Raises:
            BackendError: OpenVINO refused the region.
        """
        own_threads = int(artifact.metadata["num_threads"])
        num_threads = own_threads or device.options.num_threads
        return OpenVinoExecutable(artifact, compile_model(artifact, num_threads))

    def baseline(
        self, model: bytes | str, feeds: Mapping[str, Array], num_threads: int
    ) -> OpenVinoBaseline:
        """Return the untouched model in OpenVINO's own API, with shared tensors.

        It has the precision and the hint that regions of ours have.

        Raises:
            BackendError: OpenVINO is not installed, or refused the model.
        """
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": num_threads,
        }
        try:
            compiled = core().compile_model(core().read_model(model), "CPU", settings)
            return OpenVinoBaseline(compiled, feeds)
        except RuntimeError as error:
            raise BackendError(
                f"OpenVINO refused the model: {_telling_line(error)}",
                backend=f"openvino {self.version()}",
            ) from error


class OpenVinoBaseline:
    """A request bound to its inputs; outputs stay in the request's own memory."""

    def __init__(self, compiled: Any, feeds: Mapping[str, Array]) -> None:
        self._feeds = {name: np.array(array) for name, array in feeds.items()}
        self._request = compiled.create_infer_request()
        self._count = len(compiled.outputs)
        for name, array in self._feeds.items():
            self._request.set_tensor(name, _shared(array))

    def run(self) -> None:
        """Run once."""
        self._request.infer()

    def outputs(self) -> list[Array]:
        """Return fresh arrays with the outputs of the last run."""
        return [np.array(self._request.get_output_tensor(i).data) for i in range(self._count)]


def refuse_by_query(graph: Graph, context: BuildContext) -> Mapping[int, Refusal]:
    """Refuse what the plug-in's query does not take, and what it would not compute exactly."""
    refusals = refuse_values(graph, context)

    def attempt(region: Region) -> tuple[ReasonCode, str] | None:
        (node_id,) = region.nodes
        if node_id in refusals:
            return None
        artifact = BACKEND.compile(Candidate.plain(region, context.target), context)
        try:
            model = read_model(artifact)
            taken = core().query_model(model, "CPU")
        except BackendError as error:
            return ReasonCode.UNSUPPORTED_OP, error.message
        missing = [op for op in model.get_ordered_ops() if op.get_friendly_name() not in taken]
        if missing:
            kinds = sorted({op.get_type_name() for op in missing})
            return ReasonCode.UNSUPPORTED_OP, f"the CPU plug-in does not take {', '.join(kinds)}"
        return None

    return {**probe_nodes(graph, context, attempt), **refusals}


def refuse_values(graph: Graph, context: BuildContext) -> dict[int, Refusal]:
    """Refuse nodes with loose shapes, or dtypes that the plug-in would narrow."""
    refusals: dict[int, Refusal] = {}
    for node in graph.nodes:
        verdict = _value_verdict(graph, node)
        if verdict is not None:
            refusals[node.id] = refuse(node, context, *verdict)
    return refusals


def _value_verdict(graph: Graph, node: Node) -> tuple[ReasonCode, str] | None:
    index_ports = {
        *(node.inputs[i] for i in INDEX_INPUTS.get(node.op_type, ()) if i < len(node.inputs)),
        *(node.outputs[i] for i in INDEX_OUTPUTS.get(node.op_type, ()) if i < len(node.outputs)),
    }
    for value_id in (*node.inputs, *node.captured, *node.outputs):
        if value_id < 0:
            continue
        value = graph.values[value_id]
        if not value.is_static:
            return ReasonCode.DYNAMIC_SHAPE, f"{value.name!r} has no static shape"
        if value.dtype in DTYPES:
            continue
        if value.dtype == "int64" and (value_id in index_ports or _is_narrow(value)):
            continue
        return ReasonCode.UNSUPPORTED_DTYPE, f"{value.name!r} is {value.dtype}"
    return _body_verdict(node.ir)


def _is_narrow(value: Value) -> bool:
    """Whether an int64 constant keeps its values in 32 bits: axes, sizes, small numbers."""
    if value.constant is None:
        return False
    numbers = value.constant.numpy()
    bounds = np.iinfo(np.int32)
    return bool(((numbers >= bounds.min) & (numbers <= bounds.max)).all())


def _body_verdict(node: ir.Node) -> tuple[ReasonCode, str] | None:
    """Return why a node's bodies would not be computed exactly, or None."""
    from intarsia.graph.snapshot import dtype_name, node_bodies

    for inner in (inner for body in node_bodies(node) for inner in body):
        indices = INDEX_OUTPUTS.get(inner.op_type, ())
        for position, value in enumerate(inner.outputs):
            dtype = dtype_name(value.dtype) if value.dtype is not None else "of unknown type"
            if dtype not in DTYPES and not (dtype == "int64" and position in indices):
                return ReasonCode.UNSUPPORTED_DTYPE, f"{value.name!r} in its body is {dtype}"
        verdict = _body_verdict(inner)
        if verdict is not None:
            return verdict
    return None


BACKEND = OpenVinoBackend()
