# SPDX-License-Identifier: Apache-2.0
"""`python -m intarsia`: the command line.

Nothing is imported before `main` runs, so that Ctrl-C is answered from the start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: The arguments after the program's name; None means those of the process.
    """
    try:
        from intarsia.cli.program import run_program

        code = run_program(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer's own answer is this code alone
        sys.stderr.write("interrupted\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
