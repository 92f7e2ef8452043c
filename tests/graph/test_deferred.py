# SPDX-License-Identifier: Apache-2.0
"""A module that is imported late is to everybody else as if it were not imported yet."""

import subprocess
import sys

import pytest

HEAD = "import importlib.util, sys; from intarsia.graph.deferred import defer; defer('sympy'); "
IS_LOADED = "assert type(sys.modules['sympy']).__name__ {} '_Deferred'; "
USES = {
    "asked for": "assert importlib.util.find_spec('sympy').origin; " + IS_LOADED.format("=="),
    "imported": "import sympy; " + IS_LOADED.format("=="),
    "used": "import sympy; sympy.Symbol('x'); " + IS_LOADED.format("!="),
    "named": "from sympy import Symbol; " + IS_LOADED.format("!="),
    "looked into": "import sympy.core; " + IS_LOADED.format("!="),
    "used by two": (
        "import threading, sympy; found = []; "
        "use = lambda: found.append(sympy.Symbol); "
        "all = [threading.Thread(target=use) for _ in range(4)]; "
        "[one.start() for one in all]; [one.join() for one in all]; "
        "assert found == [sys.modules['sympy'].Symbol] * 4"
    ),
    "absent": "defer('no_such_module'); assert 'no_such_module' not in sys.modules",
}


@pytest.mark.parametrize("use", USES)
def test_what_is_imported_late_can_be(use):
    subprocess.run([sys.executable, "-c", HEAD + USES[use]], check=True)
