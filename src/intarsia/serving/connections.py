# SPDX-License-Identifier: Apache-2.0
"""Connections of HTTP: how many there are, and how long one may say nothing that can be answered.

A client that sends its headers a byte at a time, or none, keeps a connection and nothing else: it
is closed after a time, and before that if another client needs the place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30.0
"""In which the headers of a request must have come, from the connection or their first byte on."""

MOST_HEAD_BYTES = 64 << 10
"""Of the line and the headers of one request."""

_LINGER_SECONDS = 0.5
"""After which a connection that is closed, and has sent all, waits no longer for its client: TLS
would for half a minute, and the end of the server with it."""

_FULL = b'{"error":"too many connections have requests in flight"}'


class BoundedProtocol(HttpToolsProtocol):
    """A connection.

    Args:
        arguments: Of uvicorn's protocol.
        most: Connections at once.
        head_seconds: In which headers must have come.
        on_close: Told why a connection was closed that its client would have kept: `slow`, `head`
            (its headers are too large), `idle` (another one needed its place) or `full`.
        options: Of uvicorn's protocol.

    Attributes:
        idle_since: When it had a request last, or was made, by `time.monotonic`.
    """

    def __init__(
        self,
        *arguments: Any,
        most: int,
        head_seconds: float,
        on_close: Callable[[str], None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._most, self._head_seconds, self._on_close = most, head_seconds, on_close
        self._timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self._is_in_message = self._is_in_head = False
        self._heads = self._head_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight: none has come, or not yet all of its headers."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; if there are too many, one without a request makes room."""
        super().connection_made(transport)
        self.idle_since = time.monotonic()
        others = [one for one in self.connections if one is not self and _is_open(one)]
        if len(others) >= self._most:
            idle = [one for one in others if isinstance(one, BoundedProtocol) and one.is_idle]
            if not idle:
                self._refuse()
                return
            min(idle, key=lambda one: one.idle_since).drop("idle")
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        heads, was_in_message = self._heads, self._is_in_message
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head:
            # Where in this part a head begins is known if nothing can be before it; behind the
            # end of another request, it is counted from the next part on.
            if heads == self._heads or (heads + 1 == self._heads and not was_in_message):
                self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.drop("head")
                return
        if not self.is_idle:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self._is_in_message = self._is_in_head = True
        self._heads, self._head_bytes = self._heads + 1, 0

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request, so that what comes is the next one."""
        self._is_in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or let go of the connection."""
        super().on_response_complete()
        self.idle_since = time.monotonic()
        if self.transport.is_closing():
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End with the server: at once if no request is in flight, else after it."""
        super().shutdown()
        if self.transport.is_closing():
            self._linger()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that asks nothing more."""
        super().timeout_keep_alive_handler()
        self._linger()

    def drop(self, reason: str) -> None:
        """Close a connection that its client would keep.

        Args:
            reason: As `on_close` is told.
        """
        self._on_close(reason)
        self.transport.abort()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._head_seconds, self.drop, "slow")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        head = (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
            f"content-length: {len(_FULL)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + _FULL)
        self.transport.close()
        self._on_close("full")
        self._linger()

    def _linger(self) -> None:
        def end() -> None:
            if self.transport.get_write_buffer_size() == 0:
                self.transport.abort()
            elif self in self.connections:
                self._linger()

        self.loop.call_later(_LINGER_SECONDS, end)


def _is_open(protocol: Any) -> bool:
    return protocol.transport is not None and not protocol.transport.is_closing()


def bounded_protocol(
    most: int, on_close: Callable[[str], None], head_seconds: float = HEAD_SECONDS
) -> Callable[..., BoundedProtocol]:
    """Return what makes the connections of a server.

    Args:
        most: Connections at once.
        on_close: As of `BoundedProtocol`.
        head_seconds: In which the headers of a request must have come.
    """
    return partial(BoundedProtocol, most=most, head_seconds=head_seconds, on_close=on_close)
