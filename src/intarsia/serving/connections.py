# SPDX-License-Identifier: Apache-2.0
"""Connections of HTTP: how many there are, and how long one may say nothing that can be answered.

A client that sends its headers a byte at a time, or none, keeps a connection and nothing else: it
is closed after a time, and before that if another client needs the place. One that does not read
its answer is closed after a time.

TLS is begun here, on connections that are taken without: so those whose handshake is not done are
counted and timed as the others are, and what lies unsent beneath TLS can be seen.
"""

from __future__ import annotations

import asyncio
import fcntl
import ssl
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30.0
"""In which the headers of a request must have come, from the connection or their first byte on."""

MOST_HEAD_BYTES = 64 << 10
"""Of the line and the headers of one request."""

_WATCH_SECONDS = 0.5
"""Between looks at a connection with a request, an answer to send or an end to come to."""

STOPPING_SECONDS = 5.0
"""In which a client must take a part of its answer when the server ends."""

_TLS_END_SECONDS = 86400.0
"""In which TLS must have ended. By default it is half a minute, whatever is still to be sent; how
long a connection may take to end is decided by looks at it."""

_FULL = b'{"error":"too many connections have requests in flight"}'


class BoundedProtocol(HttpToolsProtocol):
    """A connection.

    Args:
        arguments: Of uvicorn's protocol.
        most: Connections at once.
        head_seconds: In which headers must have come.
        on_close: Told why a connection was closed that its client would have kept: `slow`, `head`
            (its headers are too large), `idle` (another one needed its place), `unread` (its client
            does not take its answer) or `full`.
        tls: Of a server that answers by TLS; None answers without.
        options: Of uvicorn's protocol.

    Attributes:
        idle_since: When it had a request last, or was made, by its loop's clock.
    """

    def __init__(
        self,
        *arguments: Any,
        most: int,
        head_seconds: float,
        on_close: Callable[[str], None],
        tls: ssl.SSLContext | None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._most, self._head_seconds, self._on_close = most, head_seconds, on_close
        self._tls = tls
        self._lower: asyncio.Transport  # the socket's, beneath TLS if there is any
        self._handshake: asyncio.Task[None] | None = None
        self._is_begun = self._is_stopping = False
        self._early: list[bytes] = []  # what came in one piece with the end of a handshake
        self._timer: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._unsent = (0, 0)
        self._unsent_since = 0.0
        self.idle_since = 0.0
        self._is_in_message = self._is_in_head = False
        self._heads = self._head_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight: none has come, or not yet all of its headers."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_gone(self) -> bool:
        # TLS tells of the end of a connection a moment after it.
        return self not in self.connections or _fileno(self._lower) < 0

    @property
    def _is_closing(self) -> bool:
        return self._lower.is_closing() or (self._is_begun and self.transport.is_closing())

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the kernel has not taken; 0 only if TLS holds none either."""
        # TLS holds something only while there is much of it beneath: if nothing is there, all of
        # it is sent.
        return self._lower.get_write_buffer_size()

    @property
    def has_place(self) -> bool:
        """Whether it counts: it is open, or has something to send."""
        return not self._is_gone and (not self._is_closing or self.unsent_bytes > 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; if there are too many, one without a request makes room."""
        self._lower = transport
        self.connections.add(self)
        self.idle_since = self.loop.time()
        if self._tls is None:
            self._begin(transport)
            return
        # If there is no room, whoever comes next takes the place; until then it may shake hands,
        # so that it can be told.
        self._make_room()
        self._start_timer()
        transport.pause_reading()  # until TLS reads
        self._handshake = self.loop.create_task(self._shake_hands(self._tls))

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        transport = None
        if not self._lower.is_closing():
            try:
                transport = await self.loop.start_tls(
                    self._lower,
                    self,
                    tls,
                    server_side=True,
                    ssl_handshake_timeout=self._head_seconds,
                    ssl_shutdown_timeout=_TLS_END_SECONDS,
                )
            except OSError:  # its client speaks no TLS, does not trust us, or is gone
                transport = None
        if transport is None or self._is_gone or transport.is_closing():
            self._lower.close()
            self.connection_lost(None)
            return
        self._begin(transport)
        if self._early and not transport.is_closing():
            self.data_received(b"".join(self._early))
        self._early.clear()

    def _begin(self, transport: asyncio.Transport) -> None:
        """Take requests."""
        self._is_begun = True
        super().connection_made(transport)
        if not self._make_room():
            self._stop_timer()
            self._refuse()
        elif self._timer is None:
            self._start_timer()

    def _make_room(self) -> bool:
        """Return whether there is a place for the connection, or one without a request left it."""
        others = [
            one
            for one in self.connections
            if one is not self and isinstance(one, BoundedProtocol) and one.has_place
        ]
        if len(others) < self._most:
            return True
        idle = [one for one in others if one.is_idle and one.unsent_bytes == 0]
        if not idle:
            return False
        min(idle, key=lambda one: one.idle_since).drop("idle")
        return True

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if not self._is_begun:
            self._early.append(data)
            return
        heads, was_in_message = self._heads, self._is_in_message
        super().data_received(data)
        if self.transport.is_closing():
            self._watch()
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
        self._watch()

    def on_message_complete(self) -> None:
        """End a request, so that what comes is the next one."""
        self._is_in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or let go of the connection."""
        super().on_response_complete()
        self.idle_since = self.loop.time()
        self._watch()

    def eof_received(self) -> None:
        """Let go of a connection whose client says that it asks nothing more."""
        if self._is_begun:
            super().eof_received()
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        if self._next_look is not None:
            self._next_look.cancel()
        if self._is_begun:
            super().connection_lost(exc)
        else:
            self.connections.discard(self)

    def shutdown(self) -> None:
        """End with the server: at once if no request is in flight, else after it."""
        self._is_stopping = True
        if not self._is_begun:
            self._abort()
            return
        if not self.transport.is_closing():
            super().shutdown()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that asks nothing more."""
        super().timeout_keep_alive_handler()
        self._watch()

    def drop(self, reason: str) -> None:
        """Close a connection that its client would keep.

        Args:
            reason: As `on_close` is told.
        """
        if not self._is_gone:
            self._on_close(reason)
            self._abort()

    def _abort(self) -> None:
        if self._is_begun:
            self.transport.abort()
        if not self._is_gone:  # a transport of TLS that is closed twice knows nothing beneath it
            self._lower.abort()

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
        self._watch()

    def _watch(self) -> None:
        if self._next_look is None and not self._is_gone:
            self._unsent_since = self.loop.time()
            self._next_look = self.loop.call_later(_WATCH_SECONDS, self._look)

    def _look(self) -> None:
        """End a connection that waits for nothing but its client.

        That is one which is closed and has sent all, for which TLS waits; and one whose client
        takes nothing of an answer.
        """
        self._next_look = None
        if self._is_gone:
            return
        unsent = self.unsent_bytes, _unacknowledged_bytes(self._lower)
        if self._is_closing and unsent == (0, 0):
            self._abort()
            return
        if self.is_idle and not self._is_closing and unsent[0] == 0:
            return
        now, patience = self.loop.time(), float(self.timeout_keep_alive)
        if self._is_stopping:
            patience = min(patience, STOPPING_SECONDS)
        if unsent != self._unsent or (unsent[0] == 0 and not self._is_closing):
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since >= patience:
            self.drop("unread")
            return
        self._next_look = self.loop.call_later(_WATCH_SECONDS, self._look)


def _fileno(transport: asyncio.Transport) -> int:
    """Return that of its socket; -1 if it is closed."""
    number: int = transport.get_extra_info("socket").fileno()
    return number


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Return how much the kernel has of what was sent, and the client's has not.

    Of a client that reads slowly, what lies here above the kernel moves in large steps.
    """
    if sys.platform != "linux":
        return 0
    held = fcntl.ioctl(_fileno(transport), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(held, sys.byteorder)


def bounded_protocol(
    most: int,
    on_close: Callable[[str], None],
    head_seconds: float = HEAD_SECONDS,
    tls: ssl.SSLContext | None = None,
) -> Callable[..., BoundedProtocol]:
    """Return what makes the connections of a server.

    Args:
        most: Connections at once.
        on_close: As of `BoundedProtocol`.
        head_seconds: In which the headers of a request must have come; those of the first one, and
            the handshake of TLS.
        tls: Of a server that answers by TLS, whose sockets are taken without; None answers without.
    """
    return partial(
        BoundedProtocol, most=most, head_seconds=head_seconds, on_close=on_close, tls=tls
    )
