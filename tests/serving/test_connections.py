# SPDX-License-Identifier: Apache-2.0
"""Connections of clients that say nothing, or too slowly: over sockets, with a real server."""

import asyncio
import contextlib
import socket
import threading
from collections import Counter

import pytest

uvicorn = pytest.importorskip("uvicorn")

from intarsia.serving import connections  # noqa: E402
from intarsia.serving.connections import MOST_HEAD_BYTES, bounded_protocol  # noqa: E402

LONG = 600.0
HEAD = b"POST /here HTTP/1.1\r\nhost: localhost\r\n"
LARGE = HEAD.replace(b"here", b"large") + b"connection: close\r\n\r\n"
HELD = HEAD.replace(b"here", b"held") + b"connection: close\r\n\r\n"


class Held:
    """An application whose answers wait until they may go, or are large."""

    def __init__(self, large):
        self.large = large
        self.may_go, self.begun = threading.Event(), threading.Semaphore(0)

    async def __call__(self, scope, receive, send):
        self.begun.release()
        if scope["path"] == "/held":
            await asyncio.to_thread(self.may_go.wait, LONG)
        while (await receive()).get("more_body"):
            pass
        body = b"x" * self.large if scope["path"] == "/large" else b"here"
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Ahead(asyncio.SelectorEventLoop):
    """A loop whose clock is put forward: what a server waits for comes when a test says so."""

    ahead = 0.0

    def time(self):
        return super().time() + self.ahead

    def forward(self, seconds):
        """Let time pass, as another thread asks, and return when all that was due has run."""

        async def pass_on():
            self.ahead += seconds
            for _ in range(
                3
            ):  # timers run in the next turn, and what they ask for in the one after
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(pass_on(), self).result(LONG)


@contextlib.contextmanager
def running(*, send_buffer=None, large=0, **options):
    """Yield a server's port, its application, its loop, and why it closed connections; stop it.

    It waits for no client longer than `LONG`, which passes only as its loop's clock is put forward.
    What a callback of its loop raises, which a log would be told of, fails the test.
    """
    closed, app, failed, loop = Counter(), Held(large), [], Ahead()
    protocol = bounded_protocol(
        on_close=lambda reason: closed.update([reason]), head_seconds=LONG, **options
    )
    config = uvicorn.Config(
        app,
        http=protocol,
        lifespan="off",
        log_config=None,
        ws="none",
        timeout_keep_alive=LONG,
    )
    server = uvicorn.Server(config)
    taken = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        await server.serve([taken])

    def work():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield taken.getsockname()[1], app, loop, closed
    finally:
        app.may_go.set()
        server.should_exit = True
        thread.join(LONG)
        assert not thread.is_alive()
        assert failed == []


@contextlib.contextmanager
def connected(port, *sent, receive_buffer=None):
    with socket.socket() as client:
        client.settimeout(LONG)
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.connect(("127.0.0.1", port))
        for part in sent:
            client.sendall(part)
        yield client


def answer(client):
    """Return what comes until nothing does."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def test_headers_that_do_not_come_in_time_end_a_connection_and_no_request_does():
    with (
        running(most=8) as (port, app, loop, closed),
        connected(port) as silent,
        connected(port) as slow,
        connected(port, HEAD + b"\r\n") as again,
        connected(port, HELD) as held,
    ):
        told = b""
        while not told.endswith(b"here"):
            told += again.recv(1 << 16)
        assert app.begun.acquire(timeout=LONG)
        assert app.begun.acquire(timeout=LONG)
        again.sendall(HEAD)  # a second request, whose end does not come
        with contextlib.suppress(ConnectionError):  # each byte in time, all of them not
            for byte in HEAD * 100:
                slow.sendall(bytes([byte]))
                loop.forward(LONG / 20)
        assert [answer(one) for one in (silent, slow, again)] == [b""] * 3
        assert closed == {"slow": 3}
        app.may_go.set()
        assert answer(held).endswith(b"here")  # however long it took


def test_who_has_no_request_makes_room_for_others():
    with running(most=3) as (port, app, _, closed), contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(port, HEAD)) for _ in range(3)]
        asked = []
        for _ in range(3):
            asked.append(stack.enter_context(connected(port, HELD)))
            assert app.begun.acquire(timeout=LONG)
        assert [answer(one) for one in idle] == [b""] * 3
        assert closed == {"idle": 3}
        with connected(port) as late:  # all that there are have requests
            told = answer(late)
        assert told.startswith(b"HTTP/1.1 503 ")
        assert b'{"error":"too many connections' in told
        assert closed == {"idle": 3, "full": 1}
        app.may_go.set()
        assert all(answer(one).endswith(b"here") for one in asked)
        with connected(port, HEAD + b"connection: close\r\n\r\n") as late:
            assert answer(late).endswith(b"here")


def test_headers_that_never_end_are_not_kept():
    with running(most=3) as (port, _, _, closed), connected(port, HEAD) as client:
        with contextlib.suppress(ConnectionError):
            for _ in range(MOST_HEAD_BYTES // 1000 + 2):
                client.sendall(b"x: " + b"y" * 1000 + b"\r\n")
        assert answer(client) == b""
        assert closed == {"head": 1}


def test_what_is_before_a_request_is_not_of_its_head():
    body = b"x" * (MOST_HEAD_BYTES + 1000)
    first = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    with running(most=3) as (port, app, _, closed):
        with connected(port, first + HEAD) as client:
            assert app.begun.acquire(timeout=LONG)
            client.sendall(b"connection: close\r\n\r\n")
            assert answer(client).count(b"\r\n\r\nhere") == 2
        assert not closed
        with connected(port, first + HEAD) as client, contextlib.suppress(ConnectionError):
            for _ in range(10 * MOST_HEAD_BYTES // 1000):  # its own head is bounded all the same
                client.sendall(b"x: " + b"y" * 1000 + b"\r\n")
            assert answer(client).count(b"here") <= 1
        assert closed == {"head": 1}


def test_who_says_nothing_keeps_no_server_from_ending():
    with running(most=8) as (port, _, _, closed), contextlib.ExitStack() as stack:
        for sent in ((), (HEAD,), (HEAD[:7],)):
            stack.enter_context(connected(port, *sent))
        with connected(port, HEAD + b"connection: close\r\n\r\n") as client:
            assert answer(client).endswith(b"here")
    assert not closed


def test_who_does_not_read_its_answer_keeps_its_place_for_a_time_only():
    with (
        running(most=2, large=24 << 20) as (port, app, loop, closed),
        connected(port, LARGE, receive_buffer=1 << 16) as slow,
        connected(port, LARGE, receive_buffer=1 << 16),
    ):
        assert app.begun.acquire(timeout=LONG)
        assert app.begun.acquire(timeout=LONG)
        with connected(port) as late:  # both answers are complete, and not yet sent
            assert answer(late).startswith(b"HTTP/1.1 503 ")
        nbytes = 0
        for _ in range(10):
            end = nbytes + (1 << 20)
            while nbytes < end:
                part = slow.recv(1 << 16)
                assert part, "the server closed the connection"
                nbytes += len(part)
            loop.forward(LONG / 5)
        assert closed == {"full": 1, "unread": 1}
        with connected(port, HEAD + b"connection: close\r\n\r\n") as late:
            assert answer(late).endswith(b"here")
        nbytes += len(answer(slow))  # it reads, however slowly
        assert nbytes > 24 << 20
        assert closed["unread"] == 1


def test_who_does_not_read_its_answer_keeps_no_server_from_ending(monkeypatch):
    monkeypatch.setattr(connections, "STOPPING_SECONDS", 0.5)
    with contextlib.ExitStack() as stack:
        with running(most=2, large=24 << 20) as (port, app, _, closed):
            stack.enter_context(connected(port, LARGE))
            assert app.begun.acquire(timeout=LONG)
        assert closed == {"unread": 1}
