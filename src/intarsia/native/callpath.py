# SPDX-License-Identifier: Apache-2.0
"""One call from Python for a whole region: a function of the interpreter, made of machine code.

A list of calls is a table of 8-byte entries: how many calls, the pool of threads and what runs a
kernel there, then the calls (`ParallelCall`). A small function (`callpath_code`) walks over it
without the interpreter's lock. Calling a builtin function of Python takes 0.16 us, a function of
ctypes with one pointer 0.32 us (Cascade Lake).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from intarsia.arrays import address_of
from intarsia.native.loading import LoadedCode, load_routine

_NAME = "intarsia_step"


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


PYTHON_SYMBOLS = (
    "PyCapsule_GetPointer",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "Py_IncRef",
    "_Py_NoneStruct",
)
"""What functions that `callpath_code` helps to write need of Python's C API."""


def load_method(
    name: str,
    write: Callable[[], str],
    sources: tuple[str, ...],
    symbols: Sequence[str] = PYTHON_SYMBOLS,
    *,
    caches: Path | None,
) -> MethodDef:
    """Load a function of Python's C API without arguments, from the cache or compiled now.

    Args:
        name: The function.
        write: Returns its module, see `callpath_code.method_text`.
        sources: The modules of Python that write it.
        symbols: What of Python's C API it refers to.
        caches: The folder of all caches, where its code is kept; None keeps it nowhere.

    Raises:
        BackendError: There is no code generator.
    """
    addresses = {
        symbol: ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, symbol))
        for symbol in symbols
    }
    library = load_routine(name, write, sources, symbols=addresses, caches=caches)
    method = MethodDef(b"step", library.addresses[name], _NO_ARGUMENTS, b"Run one region.")
    method.library = library
    return method


_WRITER = "intarsia.native.callpath_code"


def _step_text() -> str:
    from intarsia.native.callpath_code import method_text, write_calls  # once for each machine

    return method_text(_NAME, write_calls)


@cache
def _method(caches: Path | None) -> MethodDef:
    return load_method(_NAME, _step_text, (_WRITER,), caches=caches)


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
    words = np.array([word for _, arguments, _ in calls for word in arguments] or [0], np.uint64)
    sizes = [words.itemsize * len(arguments) for _, arguments, _ in calls]
    starts = list(accumulate(sizes, initial=words.ctypes.data))[:-1]
    counts = chunks if pool is not None else [1] * len(calls)
    rows = [
        (address, start, extent, count)
        for (address, _, extent), start, count in zip(calls, starts, counts, strict=True)
    ]
    return make_step_of(np.array(rows, np.uint64), (owned, words), pool, caches)


def make_step_of(
    rows: np.ndarray[Any, Any],
    owned: object,
    pool: Threads | None = None,
    caches: Path | None = None,
) -> Callable[[], None]:
    """Return a function of no arguments that runs kernels one after another.

    Args:
        rows: `u64[calls, 4]`: the kernel's address, that of its arguments, the turns of its
            parallel loop, and into how many chunks these are cut.
        owned: Everything that must live as long as the function, arguments too.
        pool: As of `make_step`.
        caches: Likewise.
    """
    head = (len(rows), pool.address, pool.parallel_for) if pool is not None else (len(rows), 0, 0)
    table = np.concatenate((np.array(head, np.uint64), rows.ravel()))
    return make_function(_method(caches), table, (owned, pool))


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
    capsule = new_capsule(address_of(table), None, None)
    # the third argument, which Python takes for the module, keeps all alive at no cost: the method
    # too, of which two threads may have made two
    step: Callable[[], None] = new_function(
        ctypes.addressof(method), capsule, (owned, table, method)
    )
    return step
