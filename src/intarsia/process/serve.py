# SPDX-License-Identifier: Apache-2.0
"""What a worker process runs.

Reads calls until its socket is closed, so that it ends when its owner does, however that ends.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from intarsia.arrays import Array
from intarsia.errors import IntarsiaError
from intarsia.process.channel import Reply, WorkerCall, receive, send
from intarsia.process.workers import peak_bytes


def main(descriptor: str) -> None:
    """Answer calls until the other side is gone.

    Args:
        descriptor: The number of the file descriptor of the worker's socket.
    """
    channel = socket.socket(fileno=int(descriptor))
    channel.set_inheritable(False)  # what is started here must not answer, nor keep it open
    serve(channel)


def serve(channel: socket.socket) -> None:
    """Answer calls until the other side is gone."""
    while True:
        try:
            call, arrays, files = receive(channel, WorkerCall)
        except (EOFError, OSError):
            return
        reply, returned = answer(call, arrays, files)
        try:
            send(channel, reply, returned)
        except TypeError as error:
            send(channel, _failure(error), {})


def answer(
    call: WorkerCall, arrays: Mapping[str, Array], files: Sequence[int]
) -> tuple[Reply, Mapping[str, Array]]:
    """Make one call; what it raises becomes the reply."""
    try:
        module, _, name = call.function.partition(":")
        function = getattr(import_module(module), name)
        given = {"arrays": arrays, "files": files}
        result = function(*call.arguments, **{name: one for name, one in given.items() if one})
    except Exception as error:
        return _failure(error), {}
    value, returned = result if _has_arrays(result) else (result, {})
    return Reply(value, peak_bytes=peak_bytes()), returned


def _has_arrays(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)  # noqa: PLR2004


def _failure(error: Exception) -> Reply:
    is_ours = isinstance(error, IntarsiaError)
    message = error.message if isinstance(error, IntarsiaError) else str(error)
    return Reply(
        message=message or type(error).__name__,
        error_type=type(error).__name__,
        hint=(getattr(error, "hint", None) or "") if is_ours else "",
        peak_bytes=peak_bytes(),
    )
