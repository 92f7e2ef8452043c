# SPDX-License-Identifier: Apache-2.0
"""`python -m intarsia`: the command line.

Nothing is imported before `main` runs, so that Ctrl-C is answered from the start.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `intarsia`: nothing is imported that was not there
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: The arguments after the program's name; None means those of the process.
    """
    _open_streams()
    try:
        from intarsia.cli.program import run_program

        code = run_program(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer's own answer is this code alone
        sys.stderr.write("interrupted\n")
    return code


def _open_streams() -> None:
    """Lead streams that the program was started without (`>&-`) to nowhere.

    A file that is opened later would get their numbers, and what a library prints to them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


if __name__ == "__main__":
    sys.exit(main())
