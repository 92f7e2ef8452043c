# SPDX-License-Identifier: Apache-2.0
"""What backends that take ONNX share: a region as an artifact, and probing node by node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from intarsia.backends.device import Buffer, ValueSlot
from intarsia.backends.index_checks import border_checks
from intarsia.backends.values import Artifact, ArtifactConstant, Refusal, TensorSpec
from intarsia.decoding import decode_json, decode_msgpack
from intarsia.errors import BackendError, ExecutionError, ModelError, PackageError, ReasonCode

if TYPE_CHECKING:
    import onnx

    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.graph.graph import Graph, Node, Value
    from intarsia.graph.region import Region


Form = TypeVar("Form")

_DIGEST_BYTES = 32
_FREE = "free"
"""Key of an artifact's metadata: what `read_free_border` returns."""


def onnx_artifact(
    backend: str,
    version: str,
    candidate: Candidate,
    *,
    constants: Literal["external", "inputs"],
    metadata: Mapping[str, str] | None = None,
) -> Artifact:
    """Return a region as an artifact whose payload is a serialized `ModelProto`.

    Args:
        backend: Name of the backend.
        version: Its version.
        candidate: What to extract.
        constants: How large constants appear in the payload: as initializers with external data,
            or as inputs after the region's own.
        metadata: Small facts that `load` needs.
    """
    from intarsia.graph.extract import aligned_constant, extract

    graph = candidate.region.graph
    extracted = extract(candidate.region, constants=constants)

    return Artifact(
        backend=backend,
        version=version,
        target=str(candidate.target),
        payload=extracted.model,
        inputs=tuple(tensor_spec(graph.values[i]) for i in extracted.inputs),
        outputs=tuple(tensor_spec(graph.values[i]) for i in extracted.outputs),
        constants=tuple(
            ArtifactConstant(graph.values[i].name, aligned_constant(graph, i))
            for i in extracted.constants
        ),
        metadata={
            **(metadata or {}),
            **border_checks(candidate.region),
            **_free_border(candidate.region),
        },
    )


def _free_border(region: Region) -> Mapping[str, str]:
    """Return what metadata says of a region whose border has free dimensions."""
    import json  # reading one is msgspec's

    values = (region.graph.values[value] for value in (*region.inputs, *region.outputs))
    extents = {
        value.name: [extent if isinstance(extent, int) else -1 for extent in value.extents]
        for value in values
        if value.extents is not None
    }
    return {_FREE: json.dumps(extents)} if extents else {}


def read_free_border(artifact: Artifact) -> dict[str, list[int]]:
    """Return the dimensions of values at the border that are known only when it runs.

    Returns:
        By name, the dimensions; -1 for one that is free.

    Raises:
        PackageError: The artifact is damaged.
    """
    try:
        return decode_json(artifact.metadata.get(_FREE, "{}"), dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise PackageError(f"the shapes of a region of {artifact.target} are damaged") from error


def tensor_spec(value: Value) -> TensorSpec:
    """Return the spec of a graph's value."""
    return TensorSpec(value.name, value.dtype, value.shape if value.is_static else None)


def shared_sizes(artifacts: Iterable[Artifact]) -> list[int]:
    """Return the bytes of each constant, one that several artifacts share once."""
    sizes = {
        constant.data.ctypes.data: constant.data.nbytes
        for artifact in artifacts
        for constant in artifact.constants
    }
    return list(sizes.values())


def refuse(
    node: Node, context: BuildContext, code: ReasonCode, reason: str, hint: str | None = None
) -> Refusal:
    """Return a refusal of one node by the context's target."""
    return Refusal(node.name, node.op_type, str(context.target), code, reason, hint)


Verdict: TypeAlias = "tuple[ReasonCode, str] | None"
"""Nothing, or why a node is not taken."""


def probe_nodes(
    graph: Graph,
    context: BuildContext,
    attempt: Callable[[Region], Verdict],
    together: Callable[[Sequence[Region]], Sequence[Verdict] | None] | None = None,
    joins: Callable[[Region], bool] = lambda region: True,
) -> dict[int, Refusal]:
    """Try each distinct single node once and return a refusal for every node that failed.

    Nodes are alike if their one-node regions have one `shape_hash` and one border. With `together`
    they are asked at once, and by halves where that fails.

    Args:
        graph: Every node of it is tried.
        context: Names the target in the refusals.
        attempt: Given a region of one node, returns nothing or why it was not taken.
        together: Given several such regions, returns the same for each; None if it cannot tell.
        joins: Whether a region may be asked with others.
    """
    from intarsia.graph.hashes import shape_hash
    from intarsia.graph.region import Region
    from intarsia.graph.snapshot import node_bodies

    keys = {}
    distinct: dict[str, Region] = {}
    for node in graph.nodes:
        region = Region.of(graph, (node.id,))
        keys[node.id] = shape_hash(region) + _free_border(region).get(_FREE, "")
        distinct.setdefault(keys[node.id], region)
    waiting = [list(distinct)]
    if together is not None:
        plain = [
            key
            for key, region in distinct.items()
            if not node_bodies(graph.nodes[region.nodes[0]].ir) and joins(region)
        ]
        waiting = [plain, *([key] for key in distinct.keys() - set(plain))]
    verdicts: dict[str, Verdict] = {}
    while waiting:
        regions = waiting.pop()
        answers: Sequence[Verdict] | None = None
        if together is None or len(regions) == 1:
            answers = [_attempt(attempt, distinct[key]) for key in regions]
        elif regions:
            with suppress(ModelError):
                answers = together([distinct[key] for key in regions])
        if answers is None:
            # Bisection: of n nodes with one that fails, 2 log2(n) sessions are made and not n.
            half = len(regions) // 2
            waiting += [regions[:half], regions[half:]] if regions else []
        else:
            verdicts.update(zip(regions, answers, strict=True))
    return {
        node.id: refuse(node, context, *verdict)
        for node in graph.nodes
        if (verdict := verdicts[keys[node.id]]) is not None
    }


def _attempt(attempt: Callable[[Region], Verdict], region: Region) -> Verdict:
    try:
        return attempt(region)
    except ModelError as error:  # it cannot stand alone: a value without a type
        return ReasonCode.UNSUPPORTED_DTYPE, error.message


def combine(artifacts: Sequence[Artifact]) -> tuple[Artifact, tuple[Artifact, ...]]:
    """Return regions of one graph side by side as one, unconnected, and each as a part of that.

    Values and nodes of each get a prefix. No node may have a body.

    Args:
        artifacts: Of one backend; at least one.
    """
    import onnx

    whole = onnx.ModelProto()
    parts = []
    for number, artifact in enumerate(artifacts):
        model = onnx.load_model_from_string(artifact.payload)
        if not number:
            whole.CopyFrom(model)
            whole.ClearField("graph")
            whole.graph.name = "side by side"
        function_names = {(function.domain, function.name) for function in whole.functions}
        whole.functions.extend(
            one for one in model.functions if (one.domain, one.name) not in function_names
        )
        _append(whole.graph, model.graph, f"{number}/")
        parts.append(_prefixed(artifact, f"{number}/"))
    return (
        replace(
            artifacts[0],
            payload=whole.SerializeToString(),
            inputs=tuple(spec for part in parts for spec in part.inputs),
            outputs=tuple(spec for part in parts for spec in part.outputs),
            constants=tuple(constant for part in parts for constant in part.constants),
        ),
        tuple(parts),
    )


def _append(whole: onnx.GraphProto, part: onnx.GraphProto, prefix: str) -> None:
    for named in (*part.node, *part.initializer, *part.input, *part.output, *part.value_info):
        named.name = prefix + named.name
    for node in part.node:
        for names in (node.input, node.output):
            names[:] = [prefix + name if name else "" for name in names]
    for field in ("node", "initializer", "input", "output", "value_info"):
        getattr(whole, field).extend(getattr(part, field))


def _prefixed(artifact: Artifact, prefix: str) -> Artifact:
    def rename(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(replace(spec, name=prefix + spec.name) for spec in specs)

    return replace(
        artifact,
        inputs=rename(artifact.inputs),
        outputs=rename(artifact.outputs),
        constants=tuple(replace(one, name=prefix + one.name) for one in artifact.constants),
    )


def pack_payload(payload: msgspec.Struct) -> bytes:
    """Return a payload as MessagePack behind its own SHA-256."""
    encoded = msgspec.msgpack.encode(payload)
    return hashlib.sha256(encoded).digest() + encoded


def unpack_payload(artifact: Artifact, form: type[Form]) -> Form:
    """Return what `pack_payload` was given.

    Raises:
        PackageError: It is damaged.
    """
    digest, content = artifact.payload[:_DIGEST_BYTES], artifact.payload[_DIGEST_BYTES:]
    # The payload becomes machine code and addresses; a changed byte would be a crash, not an
    # exception.
    if hashlib.sha256(content).digest() != digest:
        raise damaged(artifact, "its digest is wrong")
    try:
        return decode_msgpack(content, form)
    except (msgspec.DecodeError, ValueError) as error:
        raise damaged(artifact, str(error)) from error


def damaged(artifact: Artifact, problem: str) -> PackageError:
    """Return the error that an artifact's payload is not what was written."""
    return PackageError(f"the native code of {artifact.target} is damaged: {problem}")


def check_payload(artifact: Artifact) -> None:
    """Check that an ONNX payload refers to no data but the artifact's own constants.

    A payload may come from a package, and a runtime would read any file that a tensor names.

    Raises:
        PackageError: It refers to something else, or is not ONNX.
    """
    if b"location" not in artifact.payload:  # the key of every reference, in any encoding
        return
    from intarsia.graph.tensors import CONSTANTS_LOCATION, read_references

    try:
        references = list(read_references(artifact.payload))
    except ValueError as error:
        raise PackageError(f"a region of {artifact.target} is not ONNX: {error}") from error
    constant_names = {constant.name for constant in artifact.constants}
    for name, locations in references:
        if locations != [CONSTANTS_LOCATION] or name not in constant_names:
            raise PackageError(
                f"tensor {name!r} of a region refers to external data: {locations}",
                hint="do not use this package; compile the model again",
            )


def fact_of(artifact: Artifact, name: str) -> str:
    """Return what an artifact says of itself under a name.

    Raises:
        BackendError: It says nothing: it is damaged.
    """
    try:
        return artifact.metadata[name]
    except KeyError:
        raise BackendError(
            f"a region of {artifact.backend} does not say its {name}: it is damaged",
            backend=artifact.backend,
            hint="compile the model again",
        ) from None


def whole_fact_of(artifact: Artifact, name: str) -> int:
    """Return a number that an artifact says of itself under a name.

    Raises:
        BackendError: It says none: it is damaged.
    """
    text = fact_of(artifact, name)
    try:
        return int(text)
    except ValueError:
        raise BackendError(
            f"a region of {artifact.backend} has {name} {text!r}: it is damaged",
            backend=artifact.backend,
            hint="compile the model again",
        ) from None


def fill(buffer: Buffer, result: Any, spec: TensorSpec, backend: str) -> None:
    """Put a result into its buffer or slot; nothing is converted or broadcast.

    Raises:
        ExecutionError: The result has another shape or dtype than the model says.
    """
    if isinstance(buffer, ValueSlot):
        buffer.value = result
        return
    array = np.asarray(result)
    if array.shape != buffer.shape or array.dtype != buffer.dtype:
        raise ExecutionError(
            f"{spec.name!r} came out as {array.dtype}{list(array.shape)}, the model says {spec}",
            backend=backend,
            hint="correct the shape that the model declares for it, or leave it out",
        )
    np.copyto(buffer, array)


def first_line(error: BaseException) -> str:
    """Return the most telling line of a runtime's error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
