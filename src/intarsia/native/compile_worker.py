# SPDX-License-Identifier: Apache-2.0
"""A process that compiles modules of LLVM IR, one after another; `compile_pool` starts it.

It is run as a file by an isolated interpreter without site packages, whose arguments are folders to
import from: it imports LLVM's binding and this package's `machine`, nothing else. It reads requests
from its standard input and answers on its standard output, and leaves at the end of the input,
which is also how it notices that its parent is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from typing import IO

HEAD = struct.Struct("<II")
"""Of a request: bytes of the settings and of the module. Of an answer: whether LLVM refused, and
bytes of the object or of what LLVM says."""


def write_request(stream: IO[bytes], text: str, cpu: tuple[str, str, str]) -> None:
    """Ask for an object file."""
    settings, module = json.dumps(cpu).encode(), text.encode()
    stream.write(HEAD.pack(len(settings), len(module)) + settings + module)
    stream.flush()


def read_answer(stream: IO[bytes]) -> tuple[bool, bytes]:
    """Return whether LLVM refused, and the object file or what LLVM says.

    Raises:
        EOFError: The worker is gone.
    """
    is_refused, size = HEAD.unpack(_read(stream, HEAD.size))
    return bool(is_refused), _read(stream, size)


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("the other process is gone")
    return content


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Report readiness, then answer requests until there are no more."""
    from intarsia.errors import BackendError
    from intarsia.native.machine import NativeCpu, compile_object, driver

    driver()
    answers.write(HEAD.pack(0, 0))  # from here on, an early end is LLVM's
    answers.flush()
    while True:
        try:
            sizes = HEAD.unpack(_read(requests, HEAD.size))
            settings, module = (_read(requests, size) for size in sizes)
        except EOFError:
            return
        try:
            answer = (0, compile_object(module.decode(), NativeCpu(*json.loads(settings))))
        except BackendError as error:
            answer = (1, error.message.encode())
        answers.write(HEAD.pack(answer[0], len(answer[1])) + answer[1])
        answers.flush()


def main() -> None:
    """Serve this process's standard input and output."""
    sys.path[:0] = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is not an answer
    with contextlib.suppress(BrokenPipeError):
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
