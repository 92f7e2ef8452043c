# SPDX-License-Identifier: Apache-2.0
"""`python -m intarsia`: the command line."""

from __future__ import annotations

import sys

from intarsia.cli.program import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
