# SPDX-License-Identifier: Apache-2.0
"""Asks the library's functions what they take: a program on their machine that goes on answering.

It is started once for a library and a machine, and each question is asked once.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from functools import cache

from intarsia.backends.arm_acl.program import AclProgram
from intarsia.backends.arm_acl.toolchain import Toolchain
from intarsia.errors import BackendError
from intarsia.process.runner import Conversation, parse_runner, start_program

_NAME = "validate"
_SECONDS = 120.0


class Helper:
    """Answers whether the library takes a program's calls.

    Args:
        toolchain: Builds the helper program.
        runner: The text of the way to the machine.
    """

    def __init__(self, toolchain: Toolchain, runner: str) -> None:
        self._toolchain = toolchain
        self._runner = runner
        self._lock = threading.Lock()
        self._answers: dict[str, str] = {}
        self._conversation: Conversation | None = None

    def validate(self, program: AclProgram) -> str:
        """Return nothing, or why the library refuses a call.

        Raises:
            BackendError: The machine cannot be asked.
        """
        return self.validate_all((program,))[0]

    def validate_all(self, programs: Sequence[AclProgram]) -> list[str]:
        """Return for each of some programs what `validate` does.

        Raises:
            BackendError: The machine cannot be asked.
        """
        texts = [program.describe() for program in programs]
        with self._lock:
            for text in dict.fromkeys(texts):
                if text not in self._answers:
                    self._answers[text] = self._ask(text)
            return [self._answers[text] for text in texts]

    def _ask(self, text: str) -> str:
        if self._conversation is None:
            program = self._toolchain.helper()
            self._conversation = start_program(parse_runner(self._runner), _NAME, program)
            atexit.register(self._conversation.close)
        try:
            self._conversation.send(text.encode(), seconds=_SECONDS)
            line = bytearray()
            while not line.endswith(b"\n"):
                line += self._conversation.receive(1, _SECONDS)
        except BackendError:
            self._conversation.close()
            atexit.unregister(self._conversation.close)
            self._conversation = None
            raise
        return line.decode(errors="replace").strip()


@cache
def helper_of(toolchain: Toolchain, runner: str) -> Helper:
    """Return the helper for a library and a machine."""
    return Helper(toolchain, runner)
