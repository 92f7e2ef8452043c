# SPDX-License-Identifier: Apache-2.0
"""One call from Python for a whole region: a function of the interpreter, made of machine code.

A list of calls is a table of 8-byte entries: how many calls, the pool of threads and what runs a
kernel there, then the calls (`ParallelCall`). A small function walks over it without the
interpreter's lock. Calling a builtin function of Python takes 0.16 us, a function of ctypes with
one pointer 0.32 us (Cascade Lake).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_uint64, c_void_p
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from intarsia.native.machine import LoadedCode
from intarsia.native.routine import (
    KERNEL,
    PARALLEL_FOR,
    ParallelCall,
    Record,
    Routine,
    declare,
    load_routine,
    new_module,
)

_NAME = "intarsia_step"


class _CallList(ctypes.Structure):  # the calls follow
    _fields_ = (
        ("count", c_uint64),
        ("threads", c_void_p),
        ("parallel_for", c_void_p),
    )


def _write_calls(code: Routine) -> None:
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


_NO_ARGUMENTS = 4
"""METH_NOARGS of Python's C API."""


class Threads(Protocol):
    """The threads that run a kernel: our pool, or the team of an OpenMP runtime."""

    @property
    def address(self) -> int:
        """The address of its state."""

    @property
    def parallel_for(self) -> int:
        """Address of a function of (state, kernel, arguments, extent, chunks)."""


class MethodDef(ctypes.Structure):
    """`PyMethodDef` of Python's C API; it has to outlive every function made of it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )

    library: LoadedCode
    """The code."""


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


PYTHON_SYMBOLS = (
    "PyCapsule_GetPointer",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "Py_IncRef",
    "_Py_NoneStruct",
)
"""What `find_table`, `unlocked` and `return_none` need of Python's C API."""


def define_method(
    name: str,
    write: Callable[[Routine], None],
    symbols: Sequence[str] = PYTHON_SYMBOLS,
    *,
    caches: Path | None,
) -> MethodDef:
    """Compile a function of Python's C API without arguments.

    Args:
        name: The function.
        write: Writes it, with `find_table`, `unlocked` and `return_none`.
        symbols: What of Python's C API it refers to.
        caches: The folder of all caches, where its code is kept; None keeps it nowhere.

    Raises:
        BackendError: There is no code generator.
    """
    addresses = {
        symbol: ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, symbol))
        for symbol in symbols
    }
    sources = (__name__, write.__module__)
    library = load_routine(
        name, partial(method_text, name, write), sources, symbols=addresses, caches=caches
    )
    method = MethodDef(b"step", library.addresses[name], _NO_ARGUMENTS, b"Run one region.")
    method.library = library
    return method


def method_text(name: str, write: Callable[[Routine], None]) -> str:
    """Return the module of a function of Python's C API."""
    module = new_module()
    write(Routine(module, name, c_void_p, c_void_p, c_void_p, is_exported=True))
    return str(module)


@cache
def _method(caches: Path | None) -> MethodDef:
    return define_method(_NAME, _write_calls, caches=caches)


def make_step(
    calls: Sequence[tuple[int, Sequence[int], int]],
    owned: object,
    pool: Threads | None = None,
    chunks: Sequence[int] = (),
    caches: Path | None = None,
) -> Callable[[], None]:
    """Return a function of no arguments that runs kernels one after another.

    Args:
        calls: For each, the kernel's address, its arguments (addresses and sizes), and the turns
            of its parallel loop.
        owned: Everything that must live as long as the function: code, weights, buffers.
        pool: Threads that share the work; None for the caller's alone.
        chunks: With a pool, into how many chunks each call is cut.
        caches: The folder of all caches, where the function's own code is kept.
    """
    tables = [np.array(arguments or (0,), np.uint64) for _, arguments, _ in calls]
    counts = chunks if pool is not None else [1] * len(calls)
    head = (len(calls), pool.address, pool.parallel_for) if pool is not None else (len(calls), 0, 0)
    rows = [
        (address, arguments.ctypes.data, extent, count)
        for (address, _, extent), arguments, count in zip(calls, tables, counts, strict=True)
    ]
    table = np.array([*head, *chain.from_iterable(rows)], np.uint64)
    return make_function(_method(caches), table, (owned, pool, tables))


def make_function(
    method: MethodDef, table: np.ndarray[Any, Any], owned: object
) -> Callable[[], None]:
    """Return a function of no arguments whose code finds the table in a capsule, its `self`.

    Args:
        method: The code.
        table: What it works on.
        owned: Everything that must live as long as the function.
    """
    new_capsule: Any = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (c_void_p,) * 3
    new_function: Any = ctypes.pythonapi.PyCFunction_NewEx
    new_function.restype = ctypes.py_object
    new_function.argtypes = (c_void_p, ctypes.py_object, ctypes.py_object)
    capsule = new_capsule(table.ctypes.data, None, None)
    # the third argument, which Python takes for the module, keeps all alive at no cost: the method
    # too, of which two threads may have made two
    step: Callable[[], None] = new_function(
        ctypes.addressof(method), capsule, (owned, table, method)
    )
    return step
