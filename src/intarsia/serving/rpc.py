# SPDX-License-Identifier: Apache-2.0
"""The protocol over gRPC. Open Inference Protocol, version 2, "gRPC"."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.errors import ServingError, SettingError, with_hint
from intarsia.serving.datatypes import (
    DATATYPES,
    as_text,
    check_shape,
    dtype_of,
    from_bytes,
    text_array,
    to_bytes,
)
from intarsia.serving.messages import METHODS, SERVICE, message
from intarsia.serving.service import (
    LARGE_BYTES,
    InferenceService,
    check_parameters,
    read_timeout,
    refusal,
)
from intarsia.serving.values import VERSION, InferenceRequest, ModelState, TensorMetadata

if TYPE_CHECKING:
    import socket

    from intarsia.serving.tls import ServerCertificate

_CODES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""gRPC's status for HTTP's; any other is INTERNAL."""

_MOST_CALLS = 256
"""Calls at once: their messages are read before their sizes can be added up."""

_IDLE_MILLISECONDS = 300_000
"""After which a connection without calls is closed; clients open another one by themselves."""

_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where a message has the elements of a datatype; FP16 and BF16 travel as bytes alone."""


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A server of gRPC that runs.

    Attributes:
        server: gRPC's own.
        port: Where it listens.
    """

    server: Any
    port: int

    async def stop(self, grace: float) -> None:
        """Take no more calls, and wait for those that are there.

        Args:
            grace: Seconds to wait at most.
        """
        await self.server.stop(grace)


async def start_rpc(
    service: InferenceService,
    host: str,
    taken: socket.socket,
    certificate: ServerCertificate | None = None,
) -> RpcServer:
    """Start to answer calls.

    Args:
        service: What answers.
        host: Name or address of the interface.
        taken: Has the port; it is closed, as gRPC opens ports itself.
        certificate: For TLS; None answers without.

    Raises:
        SettingError: Another process has taken the port.
    """
    port = taken.getsockname()[1]
    taken.close()
    answers: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "ServerLive": partial(_live, service),
        "ServerReady": partial(_ready, service),
        "ModelReady": partial(_model_ready, service),
        "ServerMetadata": partial(_server_metadata, service),
        "ModelMetadata": partial(_model_metadata, service),
        "ModelInfer": partial(_infer, service),
        "RepositoryIndex": partial(_index, service),
        "RepositoryModelLoad": partial(_load, service),
        "RepositoryModelUnload": partial(_unload, service),
    }
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            partial(_call, answers[name]),
            request_deserializer=message(f"{name}Request").FromString,
            response_serializer=message(f"{name}Response").SerializeToString,
        )
        for name in METHODS
    }
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", service.limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.max_connection_idle_ms", _IDLE_MILLISECONDS),
        ),
        maximum_concurrent_rpcs=_MOST_CALLS,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    name = f"[{host}]" if ":" in host else host
    try:
        if certificate is None:
            found = server.add_insecure_port(f"{name}:{port}")
        else:
            secret = grpc.ssl_server_credentials([(certificate.key, certificate.chain)])
            found = server.add_secure_port(f"{name}:{port}", secret)
    except RuntimeError:
        found = 0
    if not found:
        raise SettingError(
            f"port {port} of {host!r} cannot be had", hint="give another --grpc-port"
        )
    await server.start()
    return RpcServer(server, found)


async def _call(answer: Callable[[Any], Awaitable[Any]], request: Any, context: Any) -> Any:
    try:
        return await answer(request)
    except Exception as error:  # what goes out is always a status
        told = refusal(error)
        code = getattr(grpc.StatusCode, _CODES.get(told.status, "INTERNAL"))
        await context.abort(code, with_hint(told))
        raise  # abort raises; this is for whoever reads


async def _live(_: InferenceService, __: Any) -> Any:
    return message("ServerLiveResponse")(live=True)


async def _ready(service: InferenceService, _: Any) -> Any:
    return message("ServerReadyResponse")(ready=service.is_ready)


async def _model_ready(service: InferenceService, request: Any) -> Any:
    is_ready = service.is_model_ready(request.name, request.version)
    return message("ModelReadyResponse")(ready=is_ready)


async def _server_metadata(service: InferenceService, _: Any) -> Any:
    found = service.server_metadata()
    return message("ServerMetadataResponse")(
        name=found.name, version=found.version, extensions=found.extensions
    )


async def _model_metadata(service: InferenceService, request: Any) -> Any:
    found = service.model_metadata(request.name, request.version)
    tensor = message("ModelMetadataResponse.TensorMetadata")

    def described(specs: tuple[TensorMetadata, ...]) -> list[Any]:
        return [tensor(name=one.name, datatype=one.datatype, shape=one.shape) for one in specs]

    return message("ModelMetadataResponse")(
        name=found.name,
        versions=found.versions,
        platform=found.platform,
        inputs=described(found.inputs),
        outputs=described(found.outputs),
    )


async def _index(service: InferenceService, request: Any) -> Any:
    entry = message("RepositoryIndexResponse.ModelIndex")
    found = [
        entry(name=one.name, version=one.version, state=one.state.value, reason=one.reason)
        for one in service.index()
        if one.state is ModelState.READY or not request.ready
    ]
    return message("RepositoryIndexResponse")(models=found)


async def _load(service: InferenceService, request: Any) -> Any:
    await service.load(request.model_name, dict(request.parameters))
    return message("RepositoryModelLoadResponse")()


async def _unload(service: InferenceService, request: Any) -> Any:
    await service.unload(request.model_name)
    return message("RepositoryModelUnloadResponse")()


async def _infer(service: InferenceService, request: Any) -> Any:
    with service.holding() as hold:
        work = _answer(service, request, hold)
        return await service.counted(request.model_name, "grpc", work)


async def _answer(service: InferenceService, request: Any, hold: Callable[[int], None]) -> Any:
    size = request.ByteSize()
    hold(size)
    # What takes long would keep others from being answered.
    is_large = size > LARGE_BYTES
    asked, is_raw = await asyncio.to_thread(_read, request) if is_large else _read(request)
    outputs = await service.infer(asked)
    if sum(array.nbytes for array in outputs.values()) > LARGE_BYTES:
        return await asyncio.to_thread(_respond, request, outputs, is_raw=is_raw)
    return _respond(request, outputs, is_raw=is_raw)


def _read(request: Any) -> tuple[InferenceRequest, bool]:
    """Return what a message asks for, and whether its tensors are bytes."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise ServingError(
            f"the request has {len(request.inputs)} inputs, and {len(raw)} raw_input_contents"
        )
    parameters = _plain(request.parameters)
    check_parameters(parameters)
    inputs: dict[str, Array] = {}
    for i, one in enumerate(request.inputs):
        if one.name in inputs:
            raise ServingError(f"input {one.name!r} is given twice")
        check_parameters(_plain(one.parameters))
        shape = tuple(one.shape)
        check_shape(one.name, shape)
        if raw:
            data = memoryview(raw[i])
            inputs[one.name] = from_bytes(one.name, one.datatype, shape, data)
        else:
            inputs[one.name] = _from_contents(one.name, one.datatype, shape, one.contents)
    for output in request.outputs:
        check_parameters(_plain(output.parameters))
    wanted = tuple(output.name for output in request.outputs) or None
    asked = InferenceRequest(
        request.model_name, request.model_version, inputs, wanted, read_timeout(parameters)
    )
    return asked, bool(raw)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as values."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
        for name, value in parameters.items()
    }


def _from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> Array:
    """Return a tensor whose elements are in a message's fields.

    Raises:
        ServingError: They are in another field, or are not as many as the shape says.
    """
    dtype = dtype_of(datatype, name)
    field = _FIELDS.get(datatype)
    if field is None:
        raise ServingError(f"input {name!r} is {datatype}: give it in raw_input_contents")
    values = getattr(contents, field)
    count = math.prod(shape)
    if len(values) != count:
        raise ServingError(
            f"input {name!r} has {len(values)} elements in {field}, and its shape says {count}"
        )
    if dtype == "string":
        texts = [as_text(name, value) for value in values]
        return text_array(name, texts, count).reshape(shape)
    try:
        return np.array(values, np_dtype(dtype)).reshape(shape)
    except OverflowError as error:
        raise ServingError(f"input {name!r} is no tensor of {datatype}: {error}") from None


def _respond(request: Any, outputs: Mapping[str, Array], *, is_raw: bool) -> Any:
    """Return the answer: as bytes if the request was, or if a message has no field for it."""
    response = message("ModelInferResponse")(
        model_name=request.model_name, model_version=VERSION, id=request.id
    )
    datatypes = [
        DATATYPES["string" if array.dtype.kind in "OUST" else array.dtype.name]
        for array in outputs.values()
    ]
    is_raw = is_raw or any(datatype not in _FIELDS for datatype in datatypes)
    for (name, array), datatype in zip(outputs.items(), datatypes, strict=True):
        tensor = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if is_raw:
            response.raw_output_contents.append(to_bytes(array))
            continue
        values = array.ravel().tolist()
        if datatype == "BYTES":
            values = [one if isinstance(one, bytes) else str(one).encode() for one in values]
        getattr(tensor.contents, _FIELDS[datatype]).extend(values)
    return response
