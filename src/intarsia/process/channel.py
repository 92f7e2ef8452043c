# SPDX-License-Identifier: Apache-2.0
"""Messages between a process and its workers: values as msgpack, arrays in shared memory.

Nothing that is received is executed. Each array is an anonymous file whose descriptor travels
over the socket; sender and receiver map the same pages, and nothing is left behind by a crash.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.decoding import decode_msgpack
from intarsia.errors import InputError

_HEADER = struct.Struct("<QI")
# Linux passes at most 253 in one message (SCM_MAX_FD).
_DESCRIPTORS_AT_ONCE = 64
_MESSAGE = TypeVar("_MESSAGE")


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """A function to call, as `module:function`, and its arguments."""

    function: str
    arguments: list[Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call gave: a value, or a message that says why there is none."""

    value: Any = None
    message: str = ""
    error_type: str = ""
    hint: str = ""
    reason: str = ""
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _ArrayHead:
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Envelope:
    message: Any
    heads: list[_ArrayHead] = field(default_factory=list)
    files: int = 0


class Received(NamedTuple, Generic[_MESSAGE]):
    """What came: a message, arrays by name, which view shared memory, and descriptors of files."""

    message: _MESSAGE
    arrays: dict[str, Array]
    files: list[int]


def send(
    channel: socket.socket,
    message: WorkerCall | Reply,
    arrays: Mapping[str, Array],
    given: Sequence[int] = (),
) -> None:
    """Send a message with arrays, and with files of the caller, which stay open.

    Raises:
        InputError: It has a text that is none, as the name of a file may be.
        OSError: The other side is gone.
        TypeError: The message holds what msgpack cannot.
    """
    heads = [_ArrayHead(name, data.dtype.name, data.shape) for name, data in arrays.items()]
    try:
        body = msgspec.msgpack.encode(_Envelope(message, heads, len(given)))
    except UnicodeEncodeError as error:
        raise InputError(
            f"{error.object!a} is not Unicode text, and cannot be handed to another process",
            hint="rename that file in UTF-8; where the locale is not UTF-8, set PYTHONUTF8=1",
        ) from error
    own = [_share(data) for data in arrays.values()]
    files = [*own, *given]
    try:
        channel.sendall(_HEADER.pack(len(body), len(files)) + body)
        for start in range(0, len(files), _DESCRIPTORS_AT_ONCE):
            batch = files[start : start + _DESCRIPTORS_AT_ONCE]
            socket.send_fds(channel, [b"."], batch)
            if channel.recv(1) != b".":  # so that batches are never joined into one
                raise EOFError
    finally:
        for file in own:
            os.close(file)


def receive(channel: socket.socket, kind: type[_MESSAGE]) -> Received[_MESSAGE]:
    """Receive a message of a kind with its arrays and files.

    Raises:
        EOFError: The other side is gone.
        OSError: Likewise.
    """
    nbytes, file_count = _HEADER.unpack(_exactly(channel, _HEADER.size))
    body = _exactly(channel, nbytes)
    files: list[int] = []
    while len(files) < file_count:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS_AT_ONCE)
        if not descriptors:
            raise EOFError
        files += descriptors
        channel.sendall(b".")
    envelope = decode_msgpack(body, _Envelope)
    message = msgspec.convert(envelope.message, kind)
    count = len(envelope.heads)
    pairs = zip(envelope.heads, files[:count], strict=True)
    return Received(message, {head.name: _view(file, head) for head, file in pairs}, files[count:])


def _exactly(channel: socket.socket, nbytes: int) -> bytes:
    received = bytearray(nbytes)
    view = memoryview(received)
    while view:
        count = channel.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(received)


def _share(data: Array) -> int:
    if data.dtype == object:
        raise TypeError("text cannot be put into shared memory")
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    size = max(1, flat.nbytes)  # mmap has no length of 0
    file = new_file(size)
    with mmap.mmap(file, size) as pages:
        pages[: flat.nbytes] = flat.data
    return file


def new_file(nbytes: int) -> int:
    """Return the descriptor of a file without a name, of so many bytes, to be mapped and shared."""
    # No folder: Docker gives /dev/shm 64 MiB, and what a crash leaves there stays.
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("intarsia")
    else:
        with tempfile.TemporaryFile() as unlinked:
            file = os.dup(unlinked.fileno())
    os.ftruncate(file, nbytes)
    return file


def _view(file: int, head: _ArrayHead) -> Array:
    dtype = np_dtype(head.dtype)
    count = int(np.prod(head.shape, dtype=np.int64))
    try:
        pages = mmap.mmap(file, max(1, count * dtype.itemsize))
    finally:
        os.close(file)
    view: Array = np.frombuffer(pages, dtype, count).reshape(head.shape)
    return view
