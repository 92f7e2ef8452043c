# SPDX-License-Identifier: Apache-2.0
"""Tables of functions that ONNX Runtime calls, whose work Python does.

Such a table may be called from any thread, and after Python has ended: its memory is never that of
an object of Python, and when Python ends its functions are replaced by one that does nothing.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import CFUNCTYPE, c_void_p
from typing import TYPE_CHECKING, Any

from intarsia.errors import IntarsiaError
from intarsia.provider.abi import VERSION
from intarsia.provider.library import function_address

if TYPE_CHECKING:
    from intarsia.provider.abi import OrtApi

_WORD = 8

_LATER = 16 * _WORD
"""Null behind each table: later versions look for functions there, whatever version it says."""

_tables: dict[int, tuple[Any, int]] = {}
"""By the address of each table that there is: the object that does its work, and its functions."""

_thunks: list[Any] = []
"""What ONNX Runtime calls; never given back."""


def allocate(nbytes: int) -> int:
    """Return the address of memory that is zero, and stays until `release`."""
    function = ctypes.pythonapi.PyMem_RawCalloc
    function.argtypes, function.restype = (ctypes.c_size_t, ctypes.c_size_t), c_void_p
    address: int | None = function(1, nbytes)
    if not address:
        raise MemoryError
    return address


def make_table(
    functions: Sequence[str], given: Mapping[str, int], owner: Any, more: int = 0
) -> int:
    """Return the address of a new table: a version, then functions.

    Args:
        functions: The names of all, in their order.
        given: Addresses of those that there are; others are null.
        owner: What does the work.
        more: Bytes behind the table.
    """
    address = allocate(_WORD * (1 + len(functions)) + max(more, _LATER))
    ctypes.c_uint32.from_address(address).value = VERSION
    for place, name in enumerate(functions, 1):
        c_void_p.from_address(address + _WORD * place).value = given.get(name)
    _tables[address] = owner, len(functions)
    return address


def release_table(address: int) -> None:
    """Give a table back."""
    if _tables.pop(address, None) is not None:
        function = ctypes.pythonapi.PyMem_RawFree
        function.argtypes, function.restype = (c_void_p,), None
        function(address)


def owner_of(address: int) -> Any:
    """Return what does the work of a table."""
    return _tables[address][0]


def returning_status(work: Callable[..., None], count: int) -> int:
    """Return the address of a function that does some work and returns a status.

    Args:
        work: Given the owner of the table that is the first argument, and the other arguments.
        count: Of all arguments.
    """

    def call(table: int, *arguments: int | None) -> int:
        api: OrtApi | None = None
        try:
            owner = _tables[table][0]
            api = owner.api
            work(owner, *(argument or 0 for argument in arguments))
        except BaseException as error:
            assert api is not None
            return api.status(say(error))
        return 0

    return address_of_function(call, c_void_p, *([c_void_p] * count))


def address_of_function(function: Callable[..., Any], returned: Any, *arguments: Any) -> int:
    """Return the address of a function of C that calls one of Python; it is never given back."""
    thunk = CFUNCTYPE(returned, *arguments)(function)
    _thunks.append(thunk)
    address = ctypes.cast(thunk, c_void_p).value
    assert address is not None
    return address


def say(error: BaseException) -> str:
    """Return what a status says of an error."""
    if isinstance(error, IntarsiaError):
        return f"{error.message} (hint: {error.hint})" if error.hint else error.message
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return f"{type(error).__name__}: {error} (hint: this is a bug of Intarsia; please report it)"


@atexit.register
def _disarm() -> None:
    """Replace every function that ONNX Runtime may call when there is no Python any more."""
    if not _tables:
        return
    nothing = function_address("intarsia_nothing")
    for address, (_, count) in _tables.items():
        for place in range(1, count + 1):
            function = c_void_p.from_address(address + _WORD * place)
            if function.value:
                function.value = nothing
