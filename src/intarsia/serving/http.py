# SPDX-License-Identifier: Apache-2.0
"""The protocol over HTTP: JSON, and tensors as bytes behind it.

Open Inference Protocol, version 2, "HTTP/REST", with the extensions for binary tensors and the
model repository.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from intarsia.arrays import Array
from intarsia.decoding import decode_json
from intarsia.errors import ServingError, with_hint
from intarsia.serving.compressed import CODINGS, Unpacker
from intarsia.serving.datatypes import (
    DATATYPES,
    MOST_DIMENSIONS,
    from_bytes,
    from_json,
    to_bytes,
    to_json,
)
from intarsia.serving.service import (
    LARGE_BYTES,
    InferenceService,
    check_parameters,
    read_timeout,
    refusal,
)
from intarsia.serving.values import VERSION, InferenceRequest, ModelState, is_loopback

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")

HEADER = "Inference-Header-Content-Length"
"""How many bytes of a body are JSON; the rest are tensors."""

_JSON = "application/json"
_GONE = 499
"""The status, which nobody receives, of a request whose client has gone."""

_BODY_SECONDS = 120.0
"""In which a body must have come."""


class _Input(msgspec.Struct, frozen=True):
    name: str
    shape: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=MOST_DIMENSIONS)
    ]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct, frozen=True):
    name: str
    parameters: dict[str, Any] = {}


class _InferBody(msgspec.Struct, frozen=True):
    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, Any] = {}


class _IndexBody(msgspec.Struct, frozen=True):
    ready: bool = False


class _LoadBody(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class _Read:
    """A body that was read.

    Attributes:
        request: What is asked.
        id: What the client calls it.
        binary: Whether an output is answered as bytes if nothing is said of it alone.
        each: What is said of outputs alone, by name.
    """

    request: InferenceRequest
    id: str
    binary: bool
    each: Mapping[str, bool]


def make_app(service: InferenceService, *, is_local: bool) -> Starlette:
    """Return the application.

    Args:
        service: What answers.
        is_local: Whether it listens on the loopback interface alone: then requests that were sent
            to another host's name are refused, by which web pages could reach it.
    """

    def route(path: str, method: str, work: Callable[[Request], Awaitable[Response]]) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                _check_sender(request, is_local=is_local)
                return await work(request)
            except Exception as error:  # what goes out is always the protocol's form
                return _tell(refusal(error))

        return Route(path, endpoint, methods=[method])

    ends = _Endpoints(service)
    base = "/v2/models/{name}"
    routes = [
        route("/v2/health/live", "GET", ends.live),
        route("/v2/health/ready", "GET", ends.ready),
        route("/v2", "GET", ends.server),
        *(
            route(f"{start}{end}", method, work)
            for start in (base, f"{base}/versions/{{version}}")
            for end, method, work in (
                ("", "GET", ends.model),
                ("/ready", "GET", ends.model_ready),
                ("/infer", "POST", ends.infer),
            )
        ),
        route("/v2/repository/index", "POST", ends.index),
        route("/v2/repository/models/{name}/load", "POST", ends.load),
        route("/v2/repository/models/{name}/unload", "POST", ends.unload),
        route("/metrics", "GET", ends.metrics),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _tell_other})


def _answer(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type=_JSON)


def _tell(error: ServingError) -> Response:
    """Return an error in the protocol's form."""
    return Response(
        msgspec.json.encode({"error": with_hint(error)}), error.status, media_type=_JSON
    )


async def _tell_other(_: Request, error: Exception) -> Response:
    """Return what starlette refuses, in the protocol's form."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "there is nothing at this address", 405: "this address has other methods"}
    return _tell(ServingError(words.get(status, "this cannot be answered"), status=status))


class _Endpoints:
    """What is at each address.

    Args:
        service: What answers.
    """

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def live(self, _: Request) -> Response:
        """Say that the server is there."""
        return _answer({"live": True})

    async def ready(self, _: Request) -> Response:
        """Say whether requests are taken."""
        if not self._service.is_ready:
            raise ServingError("the server stops", status=503)
        return _answer({"ready": True})

    async def server(self, _: Request) -> Response:
        """Say what the server is."""
        return _answer(self._service.server_metadata())

    async def model(self, request: Request) -> Response:
        """Say what a model takes and returns."""
        return _answer(self._service.model_metadata(*_named(request)))

    async def model_ready(self, request: Request) -> Response:
        """Say whether a model answers."""
        name, version = _named(request)
        self._service.check_model(name, version)
        return _answer({"name": name, "ready": True})

    async def infer(self, request: Request) -> Response:
        """Run a model."""
        with self._service.holding() as hold:
            work = _infer(self._service, request, hold)
            return await self._service.counted(_named(request)[0], "http", work)

    async def index(self, request: Request) -> Response:
        """List the models that there are."""
        wanted = await _read_small(self._service, request, _IndexBody)
        entries = self._service.index()
        if wanted.ready:
            entries = [one for one in entries if one.state is ModelState.READY]
        return _answer(entries)

    async def load(self, request: Request) -> Response:
        """Load a model, or load it again."""
        self._service.check_control()
        body = await _read_small(self._service, request, _LoadBody)
        await self._service.load(_named(request)[0], body.parameters)
        return _answer({})

    async def unload(self, request: Request) -> Response:
        """Let a model end what it was asked for, and forget it."""
        self._service.check_control()
        await _read_small(self._service, request, _LoadBody)
        await self._service.unload(_named(request)[0])
        return _answer({})

    async def metrics(self, _: Request) -> Response:
        """Return what was counted."""
        text, media_type = self._service.metrics.text()
        return Response(text, headers={"content-type": media_type})


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("version", "")


def _check_sender(request: Request, *, is_local: bool) -> None:
    """Refuse what a web page has sent: it may be a stranger's, in a browser on this machine.

    Raises:
        ServingError: It has.
    """
    if "origin" in request.headers:
        raise ServingError("requests of web pages are not answered", status=403)
    host = request.headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if is_local and not is_loopback(name.strip("[]").lower()):
        raise ServingError(f"this server answers to localhost, not to {name[:80]!r}", status=403)


async def _read_body(
    service: InferenceService, request: Request, hold: Callable[[int], None]
) -> bytes:
    """Return the body of a request, unpacked.

    Raises:
        ServingError: It is too large, damaged, or does not come in time.
    """
    unpacker = _unpacker(request.headers.get("content-encoding", "identity"))
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > service.limits.body_bytes:
        hold(int(length))  # which refuses it
    parts: list[bytes] = []

    async def keep(some: Iterable[bytes]) -> None:
        for part in some:
            hold(len(part))
            parts.append(part)
            await asyncio.sleep(0)  # unpacking takes time, which others need too

    packed = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                packed += len(part)
                if packed > service.limits.body_bytes:
                    hold(packed)  # likewise
                await keep([part] if unpacker is None else unpacker.parts(part))
            if unpacker is not None:
                await keep(unpacker.end())
    except ClientDisconnect:
        raise ServingError("the client has gone", status=_GONE) from None
    except TimeoutError:
        raise ServingError(f"the body has not come in {_BODY_SECONDS:g} s", status=408) from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpacker(coding: str) -> Unpacker | None:
    """Return what unpacks a body; None if it comes as it is.

    Raises:
        ServingError: Nothing here does.
    """
    coding = coding.strip().lower().removeprefix("x-")  # RFC 9110, section 8.4.1
    if coding in ("", "identity"):
        return None
    if coding not in CODINGS:
        raise ServingError(
            f"bodies in {coding[:20]!r} are not taken",
            status=415,
            hint=f"{' and '.join(CODINGS)} are, or send it as it is",
        )
    return Unpacker(coding)


async def _read_small(service: InferenceService, request: Request, form: type[Any]) -> Any:
    """Return the body of a request that has no tensors; none is the same as an empty one.

    Raises:
        ServingError: It is too large, or another value.
    """
    with service.holding(LARGE_BYTES) as hold:
        body = await _read_body(service, request, hold)
        return _decode(body, form) if body.strip() else form()


def _decode(body: bytes | memoryview, form: type[Any]) -> Any:
    try:
        return decode_json(body, form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServingError(f"the request is not what is taken here: {error}") from None


async def _infer(
    service: InferenceService, request: Request, hold: Callable[[int], None]
) -> Response:
    name, version = _named(request)
    body = await _read_body(service, request, hold)
    header = request.headers.get(HEADER)
    arguments = (name, version, body, header, service.limits.json_bytes)
    if len(body) > LARGE_BYTES:
        read = await asyncio.to_thread(_read, *arguments)
    else:
        read = _read(*arguments)
    outputs = await _unless_gone(request, service.infer(read.request))
    if sum(array.nbytes for array in outputs.values()) > LARGE_BYTES:
        return await asyncio.to_thread(_respond, read, outputs)
    return _respond(read, outputs)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do what a client waits for, as long as it does: nothing else tells that it has gone.

    Raises:
        ServingError: It has.
    """
    # The body is here: all that may come now is the end of the connection.
    job, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((job, gone), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            raise ServingError("the client has gone", status=_GONE)
        return job.result()
    finally:
        gone.cancel()
        if job.cancel():
            with suppress(asyncio.CancelledError):
                await job  # it leaves its queue


def _read(name: str, version: str, body: bytes, header: str | None, most_json: int) -> _Read:
    """Return what a body asks for.

    Args:
        name: Of the model.
        version: That of the model.
        body: JSON, and bytes of tensors behind it.
        header: The text of `HEADER`, if there is one.
        most_json: Most bytes of JSON.

    Raises:
        ServingError: It is not as the protocol says.
    """
    whole = memoryview(body)
    size = len(body)
    if header is not None:
        # No more digits than lengths have: `int` takes long for thousands of them.
        if not header.isascii() or not header.isdecimal() or len(header) > 18:  # noqa: PLR2004
            raise ServingError(f"{HEADER} is {header[:40]!r}, and no length")
        if int(header) > size:
            raise ServingError(f"{HEADER} says {header}, and the body has {size} bytes")
        size = int(header)
    if size > most_json:
        raise ServingError(
            f"the JSON of the request is larger than {most_json} bytes",
            status=413,
            hint="send large tensors as bytes",
        )
    asked: _InferBody = _decode(whole[:size], _InferBody)
    check_parameters(asked.parameters)
    inputs: dict[str, Array] = {}
    rest = whole[size:]
    for one in asked.inputs:
        if one.name in inputs:
            raise ServingError(f"input {one.name!r} is given twice")
        inputs[one.name], rest = _read_input(one, rest)
    if rest:
        raise ServingError(f"the body has {len(rest)} bytes more than its inputs")
    for output in asked.outputs:
        check_parameters(output.parameters)
    wanted = tuple(output.name for output in asked.outputs) or None
    each = {
        output.name: _flag(output.parameters, "binary_data")
        for output in asked.outputs
        if "binary_data" in output.parameters
    }
    timeout = read_timeout(asked.parameters)
    return _Read(
        InferenceRequest(name, version, inputs, wanted, timeout),
        asked.id,
        _flag(asked.parameters, "binary_data_output"),
        each,
    )


def _read_input(one: _Input, rest: memoryview) -> tuple[Array, memoryview]:
    """Return a tensor, and the bytes that are left."""
    check_parameters(one.parameters)
    size = one.parameters.get("binary_data_size")
    data = memoryview(one.data)
    if size is None:
        if not data:
            raise ServingError(f"input {one.name!r} has neither data nor binary_data_size")
        return from_json(one.name, one.datatype, one.shape, data), rest
    if data:
        raise ServingError(f"input {one.name!r} has both data and binary_data_size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(rest):
        raise ServingError(
            f"input {one.name!r} has binary_data_size {size!r}, and {len(rest)} bytes are left"
        )
    return from_bytes(one.name, one.datatype, one.shape, rest[:size]), rest[size:]


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise ServingError(f"parameter {name!r} is {value!r}, and neither true nor false")
    return value


def _respond(read: _Read, outputs: Mapping[str, Array]) -> Response:
    """Return the answer: JSON, and bytes behind it where they are asked for."""
    described, blobs = [], []
    for name, array in outputs.items():
        given = "string" if array.dtype.kind in "OUST" else array.dtype.name
        value: dict[str, Any] = {
            "name": name,
            "datatype": DATATYPES[given],
            "shape": list(array.shape),
        }
        if read.each.get(name, read.binary):
            blob = to_bytes(array)
            value["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            value["data"] = to_json(name, array)
        described.append(value)
    request = read.request
    head: dict[str, Any] = {"model_name": request.model, "model_version": VERSION}
    if read.id:
        head["id"] = read.id
    head["outputs"] = described
    text = msgspec.json.encode(head)
    if not blobs:
        return Response(text, media_type=_JSON)
    headers = {HEADER: str(len(text))}
    body = b"".join((text, *blobs))
    return Response(body, headers=headers, media_type="application/octet-stream")
