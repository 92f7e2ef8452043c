# SPDX-License-Identifier: Apache-2.0
"""The rows of the target system's contract, each a test or several, found by its number.

Any module of this package may hold rows::

    from rows import row

    @row(57)
    def cortex_m55_has_mve():
        assert Target("llvm -mcpu=cortex-m55").features.has_mve

`pytest -k row-057` runs them. A function may ask for fixtures by name, as any test.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REQUIRED = tuple(range(1, 135))
"""The rows that need a function."""

Test = Callable[..., None]


@dataclass(frozen=True)
class Row:
    """A test of a row.

    Attributes:
        number: The row's.
        test: Fails if the row does not hold.
        note: How and why we deviate from what the row says; docs/target_rows.md lists it.
    """

    number: int
    test: Test
    note: str = ""

    @property
    def id(self) -> str:
        """As in `row-057-cortex_m55_has_mve`."""
        return f"row-{self.number:03}-{self.test.__name__}"


_ROWS: list[Row] = []


def row(number: int, note: str = "") -> Callable[[Test], Test]:
    """Register a function as a test of a row; a row may have several, a function several rows."""

    def register(test: Test) -> Test:
        _ROWS.append(Row(number, test, note))
        return test

    return register


def load_rows() -> tuple[Row, ...]:
    """Import every module of this package, and return all rows by number."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return tuple(sorted(_ROWS, key=lambda item: item.number))


def refused(call: Callable[..., Any], *args: object, **options: object) -> str:
    """Return what a `TargetError` says; fail unless the call raises one."""
    from intarsia.errors import TargetError

    try:
        value = call(*args, **options)
    except TargetError as error:
        return str(error)
    raise AssertionError(f"{args} {options} is not refused: {value!r}")
