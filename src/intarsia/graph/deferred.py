# SPDX-License-Identifier: Apache-2.0
"""A module that is imported when something of it is used.

`onnx_ir` imports sympy for dimensions that are formulas; that takes longer than opening many a
model in another runtime, and most models have no such dimension.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module until somebody looks at it."""

    def __getattr__(self, name: str) -> Any:
        own = self.__name__
        if sys.modules.get(own) is self:
            del sys.modules[own]
        return getattr(import_module(own), name)


def defer(name: str) -> None:
    """Have a module imported when it is used, if it is not there yet.

    Args:
        name: Of a module; one that does not exist is an error when it is used, as ever.
    """
    sys.modules.setdefault(name, _Deferred(name))
