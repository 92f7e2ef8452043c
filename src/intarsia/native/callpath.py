# SPDX-License-Identifier: Apache-2.0
"""One call from Python for a whole region: a function of the interpreter, made of machine code.

A list of calls is a table of 8-byte entries: how many calls, the pool of threads and what runs a
kernel there, then for each call the kernel's address, its argument table's address, the end of its
parallel loop, and into how many chunks that is cut. A small function walks over it without the
interpreter's lock. Wrapped as a builtin function of Python it costs a fraction of what a
foreign-function call does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from intarsia.native.machine import LoadedCode, host_machine
from intarsia.native.objects import ObjectCache

_NAME = "intarsia_step"

# None is counted: it is not immortal before Python 3.12. Calling a builtin takes 0.16 us, a
# function of ctypes with one pointer 0.32 us (Cascade Lake).
_TEXT = f"""
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
@_Py_NoneStruct = external global i8

define ptr @{_NAME}(ptr %self, ptr %nothing) {{
entry:
  %table = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
  %state = call ptr @PyEval_SaveThread()
  %count = load i64, ptr %table, align 8
  %pool.at = getelementptr i8, ptr %table, i64 8
  %pool = load ptr, ptr %pool.at, align 8
  %parallel.at = getelementptr i8, ptr %table, i64 16
  %parallel = load ptr, ptr %parallel.at, align 8
  %records = getelementptr i8, ptr %table, i64 24
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %call, label %done
call:
  %i = phi i64 [ 0, %entry ], [ %next, %called ]
  %start = mul nuw nsw i64 %i, 32
  %record = getelementptr i8, ptr %records, i64 %start
  %kernel = load ptr, ptr %record, align 8
  %arguments.at = getelementptr i8, ptr %record, i64 8
  %arguments = load ptr, ptr %arguments.at, align 8
  %extent.at = getelementptr i8, ptr %record, i64 16
  %extent = load i64, ptr %extent.at, align 8
  %chunks.at = getelementptr i8, ptr %record, i64 24
  %chunks = load i64, ptr %chunks.at, align 8
  %several = icmp sgt i64 %chunks, 1
  br i1 %several, label %share, label %alone
share:
  call void %parallel(ptr %pool, ptr %kernel, ptr %arguments, i64 %extent, i64 %chunks)
  br label %called
alone:
  call void %kernel(ptr %arguments, i64 0, i64 %extent)
  br label %called
called:
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %call, label %done
done:
  call void @PyEval_RestoreThread(ptr %state)
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}
"""

_HEAD, _RECORD = 3, 4
"""Entries of a table before the first call, and of a call."""

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
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )

    library: LoadedCode
    """The code."""


def define_method(
    name: str,
    text: str,
    functions: Sequence[str],
    data: Mapping[str, int] | None = None,
    *,
    caches: Path | None,
) -> MethodDef:
    """Compile a function of Python's C API without arguments; `None` is known to it.

    Args:
        name: The function.
        text: The module of LLVM IR that defines it.
        functions: Those of Python's C API that it calls.
        data: Addresses of the data that it refers to beside `None`.
        caches: The folder of all caches, where its code is kept; None keeps it nowhere.
    """
    symbols = {
        function: ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value or 0
        for function in functions
    }
    symbols |= {"_Py_NoneStruct": id(None), **(data or {})}
    code = ObjectCache(caches).object_of(text, host_machine())
    library = LoadedCode({name: code}, symbols)
    method = MethodDef(b"step", library.addresses[name], _NO_ARGUMENTS, b"Run one region.")
    method.library = library
    return method


@cache
def _method(caches: Path | None) -> MethodDef:
    functions = ("PyCapsule_GetPointer", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef")
    return define_method(_NAME, _TEXT, functions, caches=caches)


def make_step(
    calls: Sequence[tuple[int, Sequence[int], int]],
    kept: object,
    pool: Threads | None = None,
    chunks: Sequence[int] = (),
    caches: Path | None = None,
) -> Callable[[], None]:
    """Return a function of no arguments that runs kernels one after another.

    Args:
        calls: For each, the kernel's address, its arguments (addresses and sizes), and the turns
            of its parallel loop.
        kept: Everything that must live as long as the function: code, weights, buffers.
        pool: Threads that share the work; None for the caller's alone.
        chunks: With a pool, into how many chunks each call is cut.
        caches: The folder of all caches, where the function's own code is kept.
    """
    tables = [np.array(arguments or (0,), np.uint64) for _, arguments, _ in calls]
    table = np.zeros(_HEAD + _RECORD * len(calls), np.uint64)
    table[0] = len(calls)
    if pool is not None:
        table[1:_HEAD] = (pool.address, pool.parallel_for)
    counts = chunks if pool is not None else [1] * len(calls)
    records = table[_HEAD:].reshape(-1, _RECORD)
    for record, (address, _, extent), arguments, count in zip(
        records, calls, tables, counts, strict=True
    ):
        record[:] = (address, arguments.ctypes.data, extent, count)
    return make_function(_method(caches), table, (kept, pool, tables))


def make_function(
    method: MethodDef, table: np.ndarray[Any, Any], kept: object
) -> Callable[[], None]:
    """Return a function of no arguments whose code finds the table in a capsule, its `self`.

    Args:
        method: The code.
        table: What it works on.
        kept: Everything that must live as long as the function.
    """
    new_capsule: Any = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    new_function: Any = ctypes.pythonapi.PyCFunction_NewEx
    new_function.restype = ctypes.py_object
    new_function.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    capsule = new_capsule(table.ctypes.data, None, None)
    # the third argument, which Python takes for the module, keeps all alive at no cost: the method
    # too, of which two threads may have made two
    step: Callable[[], None] = new_function(
        ctypes.addressof(method), capsule, (kept, table, method)
    )
    return step
