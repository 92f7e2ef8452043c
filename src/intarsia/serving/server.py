# SPDX-License-Identifier: Apache-2.0
"""The server as a process: ports, signals, and an end that lets go of nothing in flight."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from intarsia.errors import SettingError
from intarsia.serving.connections import bounded_protocol
from intarsia.serving.http import make_app
from intarsia.serving.service import in_thread
from intarsia.serving.values import is_loopback

if TYPE_CHECKING:
    from intarsia.serving.service import InferenceService
    from intarsia.serving.tls import ServerCertificate

logger = logging.getLogger("intarsia")

_IDLE_SECONDS = 60
"""After which a connection that has asked something, and asks nothing more, is closed."""


def take_port(host: str, port: int) -> socket.socket:
    """Return a socket that has a port, and does not listen yet.

    Args:
        host: Name or address of the interface.
        port: The port; 0 for any that is free.

    Raises:
        SettingError: It cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingError(
            f"there is no interface {host!r} here: {error.strerror}", hint="give its address"
        ) from None
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise SettingError(
            f"port {port} of {host!r} cannot be had: {error.strerror}",
            hint="give another port, or 0 for any that is free",
        ) from None
    return taken


@dataclass(frozen=True, slots=True)
class ServerEnd:
    """How a server ended.

    Attributes:
        is_interrupted: Whether the signal was that of Ctrl-C.
        is_whole: Whether all requests that were in flight are answered.
    """

    is_interrupted: bool
    is_whole: bool


class _HttpServer(uvicorn.Server):
    """One whose process has signal handlers of its own."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone."""
        yield


def serve(
    service: InferenceService,
    http: socket.socket,
    *,
    host: str,
    grpc: socket.socket | None,
    certificate: ServerCertificate | None = None,
    on_ready: Callable[[int, int | None], None],
) -> ServerEnd:
    """Answer requests until a signal says that it is enough; what is in flight is finished then.

    Args:
        service: What answers.
        http: Has the port of HTTP.
        host: Name or address of the interface.
        grpc: Has the port of gRPC; None serves HTTP alone. It is closed.
        certificate: For TLS; None answers without.
        on_ready: Told the ports of HTTP and of gRPC when requests are taken.

    Returns:
        How it ended.

    Raises:
        SettingError: A port cannot be had.
    """
    # What uvicorn says is for whoever asks for it; errors are ours to tell.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        make_app(service, is_local=is_loopback(host)),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=bounded_protocol(  # type: ignore[arg-type]  # what makes one is all that is needed
            service.limits.connections,
            service.metrics.closed,
            tls=None if certificate is None else certificate.context,
        ),
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=round(service.limits.grace),
        ws="none",
    )
    config.load()
    return asyncio.run(_run(service, _HttpServer(config), http, host, grpc, certificate, on_ready))


async def _run(
    service: InferenceService,
    server: _HttpServer,
    http: socket.socket,
    host: str,
    grpc: socket.socket | None,
    certificate: ServerCertificate | None,
    on_ready: Callable[[int, int | None], None],
) -> ServerEnd:
    loop = asyncio.get_running_loop()
    asked: list[int] = []
    stop, now = asyncio.Event(), asyncio.Event()

    def on_signal(number: int) -> None:
        (now if asked else stop).set()
        asked.append(number)

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, on_signal, number)
    rpc = None
    tasks: list[asyncio.Task[None]] = []
    try:
        if grpc is not None:
            from intarsia.serving.rpc import start_rpc

            rpc = await start_rpc(service, host, grpc, certificate)
        try:
            http.listen(server.config.backlog)
        except OSError as error:
            if rpc is not None:
                await rpc.stop(0)
            raise SettingError(
                f"port {http.getsockname()[1]} of {host!r} cannot be had: {error.strerror}",
                hint="give another port, or 0 for any that is free",
            ) from None
        tasks.append(asyncio.create_task(server.serve([http])))
        on_ready(http.getsockname()[1], None if rpc is None else rpc.port)
        asked_to_stop = asyncio.create_task(stop.wait())
        await asyncio.wait([asked_to_stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        service.stop_taking()
        server.should_exit = True
        if rpc is not None:
            tasks.append(asyncio.create_task(rpc.stop(service.limits.grace)))
        last = time.monotonic() + service.limits.grace
        end = asyncio.create_task(_end(service, tasks, last))
        at_once = asyncio.create_task(now.wait())
        either: list[asyncio.Task[Any]] = [end, at_once]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if now.is_set():
            server.force_exit = True
            end.cancel()
        is_whole = False
        with suppress(asyncio.CancelledError):
            is_whole = await end and time.monotonic() < last
        for task in (asked_to_stop, at_once):
            task.cancel()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
    return ServerEnd(signal.SIGINT in asked, is_whole)


async def _end(service: InferenceService, tasks: list[asyncio.Task[None]], last: float) -> bool:
    """Wait for what is in flight, and tell whether all of it has ended."""
    await asyncio.gather(*tasks)
    return await in_thread(lambda: service.repository.close(last))
