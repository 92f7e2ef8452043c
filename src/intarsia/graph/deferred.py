# SPDX-License-Identifier: Apache-2.0
"""A module that is imported when something of it is used.

`onnx_ir` imports sympy for dimensions that are formulas; that takes longer than opening many a
model in another runtime, and most models have no such dimension.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module until somebody looks at it."""

    def __getattr__(self, name: str) -> Any:
        real_name = self.__name__
        if sys.modules.get(real_name) is self:
            del sys.modules[real_name]
        return getattr(import_module(real_name), name)


def defer(name: str) -> None:
    """Have a module imported when it is used, if it is not there yet.

    Args:
        name: Of a module; one that does not exist is an error when it is imported, as ever.
    """
    spec = None if name in sys.modules else _find_spec(name)
    if spec is not None:
        module = _Deferred(name)
        module.__spec__ = spec  # others ask `importlib.util.find_spec` whether it is installed
        sys.modules.setdefault(name, module)


def _find_spec(name: str) -> ModuleSpec | None:
    """Return where a module is, without importing what it is in."""
    outer = name.rpartition(".")[0]
    if not outer:
        return PathFinder.find_spec(name)
    outer_spec = _find_spec(outer)
    return outer_spec and PathFinder.find_spec(name, outer_spec.submodule_search_locations)
