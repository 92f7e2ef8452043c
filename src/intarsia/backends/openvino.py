# SPDX-License-Identifier: Apache-2.0
"""The `openvino` kind: OpenVINO's CPU plug-in, a partial backend.

A region is one compiled model; its constants share our memory, its tensors are bound once.
Precision is f32 unless `-precision=` says otherwise. Attributes: `precision`, `num_threads`,
`special_values`.

What it would not compute as ONNX says is refused: see `openvino_limits`, `openvino_defects`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
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
    read_free_border,
    whole_fact_of,
)
from intarsia.backends.backend import ConfiguredBackend
from intarsia.backends.device import Buffer, Device, HostDevice, Step, ThreadOptions
from intarsia.backends.index_checks import with_checks
from intarsia.backends.onednn_isa import keep_off_broken_tiles, sums_bytes_exactly, tile_notes
from intarsia.backends.openvino_defects import DEFECTS
from intarsia.backends.openvino_limits import refuse_values
from intarsia.backends.openvino_rewrites import NEWEST_OPSET, REWRITES
from intarsia.backends.openvino_windows import FreeWindows
from intarsia.backends.rewriting import rewrite_artifact
from intarsia.backends.runtimes import PythonRuntime
from intarsia.backends.values import Artifact, Candidate, Detection, Refusal, Rule
from intarsia.errors import BackendError, ExecutionError, ReasonCode
from intarsia.process.selftest import is_inside
from intarsia.target import Target

if TYPE_CHECKING:
    from intarsia.backends.openvino_tracing import CountedInference
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region
    from intarsia.target import VirtualDevice


# Importing it tells Google's servers so (openvino-telemetry), unless that was declined or a job of
# CI imports it: from a child of fork of this process, which shares its open files for up to 3 s.
_TELEMETRY_OFF = (("TF_BUILD", "intarsia"),)
RUNTIME = PythonRuntime("OpenVINO", "openvino", "libs/*.so*", variables=_TELEMETRY_OFF)
_TILES = ("OpenVINO", "openvino -precision=bf16")


@cache
def core() -> Any:
    """Return the process's one OpenVINO core."""
    return RUNTIME.module().Core()


def read_model(artifact: Artifact) -> Any:
    """Return an OpenVINO model whose large constants view the artifact's memory.

    Raises:
        BackendError: OpenVINO cannot convert an operator, or makes something else of it.
    """
    model = _convert(artifact)
    _raise_if(_find_difference(artifact, _input_names(model), model.outputs), artifact)
    return model


def _convert(artifact: Artifact) -> Any:
    """Return what OpenVINO makes of a region.

    Raises:
        BackendError: It cannot convert an operator.
    """
    RUNTIME.module()
    from openvino import opset13

    try:
        model = core().read_model(artifact.payload)
        parameters = {node.get_friendly_name(): node for node in model.get_parameters()}
        # An initializer inside the payload would be copied; a parameter can be replaced by a
        # constant that views our memory.
        for constant in artifact.constants:
            parameter = parameters[constant.name]
            value = opset13.constant(_as_writable(constant.data), shared_memory=True)
            for consumer in list(parameter.output(0).get_target_inputs()):
                consumer.replace_source_output(value.output(0))
            model.remove_parameter(parameter)
        model.validate_nodes_and_infer_types()
    except Exception as error:
        raise RUNTIME.error(f"cannot convert a region: {_telling_line(error)}", artifact) from error
    return model


def _input_names(model: Any) -> frozenset[str]:
    return frozenset(name for port in model.inputs for name in port.get_names())


def _find_difference(artifact: Artifact, names: Set[str], outputs: Sequence[Any]) -> str | None:
    """Return how the borders of a model differ from those of the region that it was read from.

    OpenVINO writes as many elements as it computes into the buffers that it is given, whatever
    their size: `keep_aspect_ratio_policy` of Resize, which it ignores, corrupted memory. And it
    leaves a caller's output as it is where that is nothing but an input.

    Args:
        artifact: The region.
        names: Of all inputs of the model.
        outputs: Its outputs that are the region's.
    """
    for spec in artifact.inputs:
        if spec.name not in names:
            return f"does not read {spec.name!r}"
    free = read_free_border(artifact)
    for spec, port in zip(artifact.outputs, outputs, strict=True):
        shape = port.get_partial_shape()
        is_same = shape.is_static and tuple(shape.to_shape()) == spec.shape
        if spec.name in free:  # what is known only while running is compared then
            is_same = _is_possible(shape, free[spec.name])
        if spec.shape is not None and not is_same:
            return f"takes the shape of {spec.name!r} to be {shape}, not {list(spec.shape)}"
        if _is_parameter(port.get_node().input_value(0).get_node()):
            return f"drops what makes {spec.name!r}, and would not write it"
    return None


def _find_change(compiled: Any, artifact: Artifact) -> str | None:
    """Return what compiling did to an output: it is nothing but an input, or has another shape.

    So it does of an Einsum that moves nothing, and of sums with the last state of a GRU; see
    `_find_difference`.
    """
    results = compiled.get_runtime_model().get_results()
    if any(_is_parameter(result.input_value(0).get_node()) for result in results):
        outputs = ", ".join(repr(spec.name) for spec in artifact.outputs)
        return f"leaves out what makes an output of {outputs}, and would not write it"
    free = read_free_border(artifact)
    for spec, port in zip(artifact.outputs, compiled.outputs, strict=True):
        shape = port.get_partial_shape()
        is_same = not shape.is_static or tuple(shape.to_shape()) == spec.shape
        if spec.name in free:
            is_same = _is_possible(shape, free[spec.name])
        if spec.shape is not None and not is_same:
            return f"makes {spec.name!r} of shape {shape}, not {list(spec.shape)}"
    return None


def _is_possible(shape: Any, extents: Sequence[int]) -> bool:
    """Tell whether what OpenVINO knows of a shape contradicts nothing; -1 is a free dimension."""
    if shape.rank.is_dynamic:
        return True
    return len(shape) == len(extents) and all(
        dimension.is_dynamic or extent == dimension.get_length()
        for dimension, extent in zip(shape, extents, strict=True)
    )


def _as_writable(array: Array) -> Array:
    """Return the same memory as an array that says it is writable.

    OpenVINO shares no other; it does not write to constants.
    """
    assert array.flags.c_contiguous
    # Pages of a mapped package are read-only, and numpy gives no writable view of them.
    data = memoryview((ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data))
    writable: Array = np.frombuffer(data, array.dtype).reshape(array.shape)
    return writable


_AS_FLOATS = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
"""Behind weights in blocks, activations would become int8: 2 % of a result's root mean square."""
_WITHOUT_INTEGERS = {"LP_TRANSFORMS_MODE": False}
"""For CPUs on which sums of bytes saturate: between Q and DQ nodes it computes in float32."""


def compile_model(artifact: Artifact, num_threads: int, *, is_counting: bool = False) -> Any:
    """Return an OpenVINO compiled model.

    Args:
        artifact: The region.
        num_threads: Threads of one run.
        is_counting: Whether it counts how long each operator takes.

    Raises:
        BackendError: OpenVINO refused the region.
    """
    settings = {
        # One request runs at a time: more streams would share the threads out among requests that
        # never come.
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": fact_of(artifact, "precision"),
        "INFERENCE_NUM_THREADS": num_threads,
        **_AS_FLOATS,
        **({} if sums_bytes_exactly() else _WITHOUT_INTEGERS),
        "NUM_STREAMS": "1",
        **({"PERF_COUNT": True} if is_counting else {}),
    }
    model = read_model(artifact)
    try:
        compiled = core().compile_model(model, "CPU", settings)
    except Exception as error:
        raise RUNTIME.error(
            f"failed to compile a region: {_telling_line(error)}", artifact
        ) from error
    _raise_if(_find_change(compiled, artifact), artifact)
    return compiled


def _raise_if(problem: str | None, artifact: Artifact) -> None:
    """Raise what was found to be wrong with a region, if anything was."""
    if problem is not None:
        raise RUNTIME.error(problem, artifact)


def _telling_line(error: Exception) -> str:
    lines = [line.strip(" -\t") for line in str(error).splitlines()]
    for line in lines:
        # OpenVINO's messages are stacks of C++ positions, with the one sentence somewhere among
        # them.
        if line.startswith("No conversion rule"):
            return line
    telling = [line for line in lines if line and not line.startswith(("Exception from", "Check"))]
    return telling[0] if telling else first_line(error)


def _are_static(ports: Iterable[Any]) -> bool:
    return all(port.get_partial_shape().is_static for port in ports)


class OpenVinoExecutable:
    """One compiled model; bindings and threads share it.

    Args:
        artifact: The region.
        compiled: It.
        recompile: Returns the same model once more, but one that counts what operators take.
    """

    scratch_bytes = 0

    def __init__(
        self, artifact: Artifact, compiled: Any, recompile: Callable[[], Any] | None = None
    ) -> None:
        self._recompile = recompile
        self._artifact = artifact  # the compiled model may refer to its constants
        self._compiled = compiled
        # Shapes that OpenVINO finds while running may be too large for the buffers.
        self._is_free = not _are_static(compiled.outputs)
        self._windows = (
            None if _are_static(compiled.inputs) else FreeWindows(partial(read_model, artifact))
        )

    def bind(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> Step:
        """Return the call that infers on these arrays, which it shares."""
        return self._bind(self._compiled.create_infer_request(), inputs, outputs)

    def trace_step(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> CountedInference | None:
        """Return the call of the region compiled once more, which counts what operators take.

        Raises:
            BackendError: OpenVINO refused the region this time.
        """
        if self._recompile is None:
            return None
        from intarsia.backends.openvino_tracing import CountedInference

        compiled = self._recompile()
        request = compiled.create_infer_request()
        counting = OpenVinoExecutable(self._artifact, compiled)
        step = counting._bind(request, inputs, outputs)
        return CountedInference(step, request, compiled, self._artifact)

    def _bind(self, request: Any, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Step:
        names = [port.get_names() for port in self._compiled.inputs]
        for spec, array in zip(self._artifact.inputs, inputs, strict=True):
            index = next(i for i, aliases in enumerate(names) if spec.name in aliases)
            request.set_input_tensor(index, _shared(array))
        is_empty = not any(map(np.size, outputs))
        if self._windows is not None:
            specs = zip(self._artifact.inputs, inputs, strict=True)
            shapes = {spec.name: np.shape(array) for spec, array in specs}
            if is_empty:  # of an empty batch the windows are asked about all the same
                shapes = {name: tuple(max(n, 1) for n in shape) for name, shape in shapes.items()}
            self._windows.check(shapes)
        if is_empty:
            # A pool of an empty batch ends the process in a later call of some model (2026.4).
            return with_checks(_infer_nothing, self._artifact, inputs)
        owned = (self, *inputs, *outputs)
        if self._is_free:
            return with_checks(_FreeInference(request, outputs, owned), self._artifact, inputs)
        for index, array in enumerate(outputs):
            request.set_output_tensor(index, _shared(array))
        return with_checks(_BoundInference(request, *owned), self._artifact, inputs)


def _infer_nothing() -> None:
    """Write results that have no entries."""


class _BoundInference:
    """A request; keeps the memory alive that OpenVINO only points to: constants and tensors."""

    __slots__ = ("_infer", "_owned")

    def __init__(self, request: Any, *owned: Any) -> None:
        self._infer = request.infer
        self._owned = owned

    def __call__(self) -> None:
        self._infer()


class _FreeInference:
    """A request of a model whose shapes are found while running; its first run looks at them.

    What OpenVINO finds too large for a buffer it does not write, and with one thread it does not
    say so (2026.4). So the first run is into memory of its own.

    Args:
        request: With the inputs set.
        outputs: Buffers of the outputs, of the shapes that they have for these sizes.
        owned: What is kept alive.
    """

    __slots__ = ("_is_seen", "_outputs", "_owned", "_request")

    def __init__(self, request: Any, outputs: Sequence[Array], owned: object) -> None:
        self._request = request
        self._outputs = outputs
        self._owned = owned
        self._is_seen = False

    def __call__(self) -> None:
        self._request.infer()
        if self._is_seen:
            return
        for index, array in enumerate(self._outputs):
            made = self._request.get_output_tensor(index).data
            if made.shape != array.shape:
                raise ExecutionError(
                    f"output {index} came out as {list(made.shape)}, not as {list(array.shape)}",
                    backend="openvino",
                    hint="fix the free dimensions with --shape, or leave openvino out",
                )
            np.copyto(array, made)
            self._request.set_output_tensor(index, _shared(array))
        self._is_seen = True


def _shared(array: Array) -> Any:
    shared = array if array.flags.writeable else _as_writable(array)
    return RUNTIME.module().Tensor(shared, shared_memory=True)


_CAPABILITIES = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}
"""What OpenVINO calls the precisions that a CPU has instructions for."""


def _check_plugin() -> None:
    """Raise unless OpenVINO is there with what runs models on CPUs.

    Raises:
        BackendError: It is not.
    """
    # The wheel's plug-ins are files of their own, which distributions package apart.
    if "CPU" not in core().available_devices:
        raise BackendError("OpenVINO finds no CPU plug-in", backend="openvino")


@dataclass(frozen=True)
class OpenVinoBackend(ConfiguredBackend):
    """Serves the kind `openvino`. Settings say where verdicts on self-tests are kept."""

    name = "openvino"
    kinds = ("openvino",)
    takes_free = True
    defects = DEFECTS

    def ready(self) -> str:
        """Try OpenVINO before it is loaded, and turn AMX off if it fails.

        Returns:
            Why AMX is left out; empty if it is not.

        Raises:
            BackendError: It has not passed its self-test.
        """
        caches = self.settings.cache_folder()
        return keep_off_broken_tiles(*_TILES, RUNTIME.require(caches), caches)

    def version(self) -> str:
        """Return OpenVINO's version.

        Raises:
            BackendError: It is not installed.
        """
        installed = RUNTIME.installed_version(self.settings.cache_folder())
        if installed:
            return installed
        self.ready()
        return str(RUNTIME.module().__version__).split("-", maxsplit=1)[0]

    def detect(self) -> Detection:
        """Return the CPU, or why OpenVINO cannot be used.

        What passed its self-test is not loaded: another target may take the whole model.
        """
        if is_inside():
            self.ready()
            _check_plugin()  # else nothing would be tried
        try:
            if not RUNTIME.require(self.settings.cache_folder()):
                _check_plugin()
        except BackendError as error:
            return Detection.failed(error)
        return Detection((Target("openvino"),), rank=2)

    def notes(self) -> Sequence[str]:
        """Return a line if AMX is left out, and one if products of bytes are."""
        problem = self.ready()
        RUNTIME.module()
        lines = list(tile_notes(_TILES[0], problem))
        if not sums_bytes_exactly():
            lines.append("quantised layers run in float32: without VNNI its sums of bytes saturate")
        return lines

    def check_target(self, target: Target) -> Sequence[str]:
        """Return the precision if this CPU lacks it: OpenVINO then computes in float32."""
        wanted = str(target.attrs.get("precision") or "f32")
        if wanted == "f32":
            return ()
        self.ready()
        capabilities = core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        return () if _CAPABILITIES[wanted] in capabilities else ("precision",)

    def rules(self, context: BuildContext) -> Sequence[Rule]:
        """Return one rule: what OpenVINO's own query takes."""
        return (Rule("query", partial(refuse_by_query, self)),)

    def check(self, candidate: Candidate, context: BuildContext) -> Refusal | None:
        """Return nothing: whether a whole region compiles is known when it is loaded."""
        return None

    def compile(self, candidate: Candidate, context: BuildContext) -> Artifact:
        """Return the region as ONNX with its large constants referred to.

        OpenVINO compiles when it loads: its own blobs would hold a copy of the weights, fit one
        version and one instruction set only, and save a fraction of a second.
        """
        attrs = context.attrs
        precision = str(attrs.get("precision") or "f32")
        metadata = {"precision": precision, "num_threads": str(attrs.get("num_threads") or 0)}
        artifact = onnx_artifact(
            self.name, self.version(), candidate, constants="inputs", metadata=metadata
        )
        return rewrite_artifact(artifact, candidate.region, REWRITES, NEWEST_OPSET)

    def open(self, placed: VirtualDevice, options: ThreadOptions) -> Device:
        """Return host memory."""
        return HostDevice(options)

    def is_data(self, artifact: Artifact) -> bool:
        """Return that every artifact is: ONNX."""
        return True

    def load(self, artifact: Artifact, device: Device) -> OpenVinoExecutable:
        """Return a compiled model.

        Raises:
            BackendError: OpenVINO refused the region.
        """
        self.ready()
        check_payload(artifact)
        own_threads = whole_fact_of(artifact, "num_threads")
        num_threads = own_threads or device.options.num_threads
        recompile = partial(compile_model, artifact, num_threads, is_counting=True)
        return OpenVinoExecutable(artifact, compile_model(artifact, num_threads), recompile)

    def baseline(
        self, model: bytes | str, feeds: Mapping[str, Array], num_threads: int
    ) -> OpenVinoBaseline:
        """Return the untouched model in OpenVINO's own API, with shared tensors.

        It has the precision and the hint that regions of ours have; behind weights in blocks it
        makes activations int8, as it does for its own users.

        Raises:
            BackendError: OpenVINO is not installed, or refused the model.
        """
        self.ready()
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


def refuse_by_query(
    backend: OpenVinoBackend, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    """Refuse what the plug-in's query does not take, and what it would not compute exactly."""
    backend.ready()
    refusals = refuse_values(graph, context, backend.version())

    def joins(region: Region) -> bool:
        return region.nodes[0] not in refusals

    def attempt(region: Region) -> Verdict:
        if not joins(region):
            return None
        artifact = backend.compile(Candidate.plain(region, context.target), context)
        try:
            return _verdicts([artifact])[0]
        except BackendError as error:
            return ReasonCode.UNSUPPORTED_OP, error.message

    def together(regions: Sequence[Region]) -> Sequence[Verdict] | None:
        candidates = [Candidate.plain(region, context.target) for region in regions]
        try:
            verdicts = _verdicts([backend.compile(candidate, context) for candidate in candidates])
        except BackendError:
            return None  # one of them cannot be converted
        # What is refused among others is asked again by itself: equal answers on the whole zoo
        # and on 1880 of ONNX's node models (docs/decisions.md).
        return [
            verdict and attempt(region) for verdict, region in zip(verdicts, regions, strict=True)
        ]

    return {**probe_nodes(graph, context, attempt, together, joins), **refusals}


def _verdicts(artifacts: Sequence[Artifact]) -> list[Verdict]:
    """Return what one query says of regions that are asked side by side.

    Raises:
        BackendError: One cannot be converted.
    """
    whole, parts = combine(artifacts) if len(artifacts) > 1 else (artifacts[0], tuple(artifacts))
    model = _convert(whole)
    try:
        taken = core().query_model(model, "CPU")
    except RuntimeError as error:
        raise BackendError(
            f"OpenVINO's query failed: {_telling_line(error)}",
            backend=f"openvino {whole.version}",
            target=whole.target,
        ) from error
    names, ports = _input_names(model), iter(model.outputs)
    parameters = {node.get_friendly_name(): node for node in model.get_parameters()}
    verdicts: list[Verdict] = []
    for part in parts:
        outputs = [next(ports) for _ in part.outputs]
        inputs = [parameters[spec.name] for spec in part.inputs if spec.name in parameters]
        problem = _find_difference(part, names, outputs)
        kinds = _kinds_left([*inputs, *(port.get_node() for port in outputs)], taken)
        if problem is not None:
            verdicts.append((ReasonCode.UNSUPPORTED_OP, f"OpenVINO {problem}"))
        elif kinds:
            reason = f"the CPU plug-in does not take {', '.join(kinds)}"
            verdicts.append((ReasonCode.UNSUPPORTED_OP, reason))
        else:
            verdicts.append(None)
    return verdicts


def _kinds_left(ends: Sequence[Any], taken: Mapping[str, str]) -> list[str]:
    """Return the types of what a query does not take of some nodes and all before them."""
    seen = {node.get_name(): node for node in ends}
    waiting = list(ends)
    while waiting:
        for source in waiting.pop().input_values():
            node = source.get_node()
            if node.get_name() not in seen:
                seen[node.get_name()] = node
                waiting.append(node)
    return sorted(
        {node.get_type_name() for node in seen.values() if node.get_friendly_name() not in taken}
    )


def _is_parameter(node: Any) -> bool:
    return str(node.get_type_name()) == "Parameter"


BACKEND = OpenVinoBackend()
