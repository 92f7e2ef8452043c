# SPDX-License-Identifier: Apache-2.0
"""One call from Python for a whole region: a function of the interpreter, made of machine code.

A list of calls is a table of 8-byte entries: how many calls, then for each the kernel's address,
its argument table's address, and the end of its parallel loop. A small function walks over it
without the interpreter's lock. Wrapped as a builtin function of Python it costs a fraction of what
a foreign-function call does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from intarsia.codegen.machine import Library, host_machine
from intarsia.codegen.objects import ObjectCache

_NAME = "intarsia_step"

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
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %call, label %done
call:
  %i = phi i64 [ 0, %entry ], [ %next, %call ]
  %start = mul nuw nsw i64 %i, 24
  %record = getelementptr i8, ptr %table, i64 %start
  %kernel.at = getelementptr i8, ptr %record, i64 8
  %kernel = load ptr, ptr %kernel.at, align 8
  %arguments.at = getelementptr i8, ptr %record, i64 16
  %arguments = load ptr, ptr %arguments.at, align 8
  %extent.at = getelementptr i8, ptr %record, i64 24
  %extent = load i64, ptr %extent.at, align 8
  call void %kernel(ptr %arguments, i64 0, i64 %extent)
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %call, label %done
done:
  call void @PyEval_RestoreThread(ptr %state)
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}
"""

_NO_ARGUMENTS = 4
"""METH_NOARGS of Python's C API."""


class MethodDef(ctypes.Structure):
    """`PyMethodDef` of Python's C API; it has to outlive every function made of it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )

    library: Library
    """The code."""


def define_method(
    name: str, text: str, functions: Sequence[str], data: Mapping[str, int] | None = None
) -> MethodDef:
    """Compile a function of Python's C API without arguments; `None` is known to it.

    Args:
        name: The function.
        text: The module of LLVM IR that defines it.
        functions: Those of Python's C API that it calls.
        data: Addresses of the data that it refers to beside `None`.
    """
    symbols = {
        function: ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value or 0
        for function in functions
    }
    symbols |= {"_Py_NoneStruct": id(None), **(data or {})}
    library = Library({name: ObjectCache(None).object_of(text, host_machine())}, symbols)
    method = MethodDef(b"step", library.addresses[name], _NO_ARGUMENTS, b"Run one region.")
    method.library = library
    return method


@cache
def _method() -> MethodDef:
    functions = ("PyCapsule_GetPointer", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef")
    return define_method(_NAME, _TEXT, functions)


def make_step(calls: Sequence[tuple[int, Sequence[int], int]], kept: object) -> Callable[[], None]:
    """Return a function of no arguments that runs kernels one after another.

    Args:
        calls: For each, the kernel's address, its arguments (addresses and sizes), and the turns
            of its parallel loop.
        kept: Everything that must live as long as the function: code, weights, buffers.
    """
    tables = [np.array(arguments or (0,), np.uint64) for _, arguments, _ in calls]
    table = np.zeros(1 + 3 * len(calls), np.uint64)
    table[0] = len(calls)
    for position, ((address, _, extent), arguments) in enumerate(zip(calls, tables, strict=True)):
        table[1 + 3 * position : 4 + 3 * position] = (address, arguments.ctypes.data, extent)
    return make_function(_method(), table, (kept, tables))


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
    # the third argument, which Python takes for the module, keeps things alive at no cost
    step: Callable[[], None] = new_function(ctypes.addressof(method), capsule, (kept, table))
    return step
