# SPDX-License-Identifier: Apache-2.0
"""The code of functions of Python's C API that work on a table, as the walk over a list of calls.

Only writing it needs this: what is in the cache is loaded by `callpath`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_uint64, c_void_p
from functools import partial
from pathlib import Path

from intarsia.native.callpath import PYTHON_SYMBOLS, MethodDef, load_method
from intarsia.native.routine import (
    KERNEL,
    PARALLEL_FOR,
    ParallelCall,
    Record,
    Routine,
    declare,
    new_module,
)


class _CallList(ctypes.Structure):  # the calls follow
    _fields_ = (
        ("count", c_uint64),
        ("threads", c_void_p),
        ("parallel_for", c_void_p),
    )


def write_calls(code: Routine) -> None:
    """Write the function that walks over a list of calls, see `callpath`."""
    table = find_table(code, _CallList)
    with unlocked(code):
        threads, parallel_for = table["threads"].load(), table["parallel_for"].load()
        with code.count(table["count"].load()) as number:
            call = table.behind(ParallelCall).item(number)
            kernel, arguments, extent, chunks = call.load()
            with code.choose(chunks, ">", 1) as (several, alone):
                with several:
                    run = parallel_for.function(*PARALLEL_FOR)
                    code.call(run, threads, kernel, arguments, extent, chunks)
                with alone:
                    code.call(kernel.function(*KERNEL), arguments, 0, extent)
    return_none(code)


def find_table(code: Routine, layout: type[ctypes.Structure]) -> Record:
    """Return the table that a function of Python was made with, see `make_function`."""
    get_pointer = declare(code.module, "PyCapsule_GetPointer", c_void_p, c_void_p, c_void_p)
    return Record(code.call(get_pointer, code.parameters[0], None), layout)


@contextmanager
def unlocked(code: Routine) -> Iterator[None]:
    """Run what is written inside without the interpreter's lock."""
    state = code.call(declare(code.module, "PyEval_SaveThread", c_void_p))
    yield
    code.call(declare(code.module, "PyEval_RestoreThread", None, c_void_p), state)


def return_none(code: Routine) -> None:
    """End a function of Python with `None`."""
    none = code.data("_Py_NoneStruct")  # counted: it is not immortal before Python 3.12
    code.call(declare(code.module, "Py_IncRef", None, c_void_p), none)
    code.give_back(none)


def define_method(
    name: str,
    write: Callable[[Routine], None],
    symbols: Sequence[str] = PYTHON_SYMBOLS,
    *,
    caches: Path | None,
) -> MethodDef:
    """Load a function of Python's C API without arguments, from the cache or compiled now.

    Args:
        name: The function.
        write: Writes it, with `find_table`, `unlocked` and `return_none`.
        symbols: What of Python's C API it refers to.
        caches: The folder of all caches, where its code is kept; None keeps it nowhere.

    Raises:
        BackendError: There is no code generator.
    """
    text = partial(method_text, name, write)
    return load_method(name, text, (__name__, write.__module__), symbols, caches=caches)


def method_text(name: str, write: Callable[[Routine], None]) -> str:
    """Return the module of a function of Python's C API."""
    module = new_module()
    write(Routine(module, name, c_void_p, c_void_p, c_void_p, is_exported=True))
    return str(module)
