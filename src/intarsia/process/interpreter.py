# SPDX-License-Identifier: Apache-2.0
"""A fresh Python that imports what this one would, and nothing that lies in the current folder.

`python -c` and `python -m` look there first: a user's `platform.py` would be imported in the place
of Python's own, in a process that no user sees.
"""

from __future__ import annotations

import sys

_CALL = (
    "import sys; here = {path}; "
    "sys.path[:] = here + [entry for entry in sys.path[1:] if entry not in here]; "
    "from {module} import {name}; {name}(*sys.argv[1:])"
)


def fresh_python(function: str, *arguments: str) -> list[str]:
    """Return the command of a process that calls a function.

    Its `sys.path` is that of this process; what its environment adds comes after.

    Args:
        function: `module:name`.
        arguments: What it is called with.
    """
    module, _, name = function.partition(":")
    path = [entry for entry in sys.path if isinstance(entry, str)]
    call = _CALL.format(path=ascii(path), module=module, name=name)
    return [sys.executable, "-c", call, *arguments]
