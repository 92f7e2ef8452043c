# SPDX-License-Identifier: Apache-2.0
"""One call from Python for a whole region: a loop over `dnnl_primitive_execute` in machine code.

The loop sets the number of OpenMP threads, which is a property of the calling thread, runs every
primitive without the interpreter's lock, and restores the number. A primitive that fails ends it
with an exception that names its position.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from intarsia.backends.device import Step
from intarsia.backends.dnnl.library import OneDnn
from intarsia.backends.dnnl.threads import GET, SET, thread_count
from intarsia.errors import BackendError
from intarsia.native.callpath import MethodDef, define_method, make_function

logger = logging.getLogger(__name__)

_NAME = "intarsia_dnnl_step"
_HEADER = 6

_TEXT = f"""
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyErr_Format(ptr, ptr, ...)
@_Py_NoneStruct = external global i8
@PyExc_RuntimeError = external global ptr
@message = private constant [37 x i8] c"oneDNN: primitive %ld ended with %ld\\00"

define ptr @{_NAME}(ptr %self, ptr %nothing) {{
entry:
  %table = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
  %execute = load ptr, ptr %table, align 8
  %set.at = getelementptr i8, ptr %table, i64 8
  %set = load ptr, ptr %set.at, align 8
  %get.at = getelementptr i8, ptr %table, i64 16
  %get = load ptr, ptr %get.at, align 8
  %stream.at = getelementptr i8, ptr %table, i64 24
  %stream = load ptr, ptr %stream.at, align 8
  %threads.at = getelementptr i8, ptr %table, i64 32
  %threads.wide = load i64, ptr %threads.at, align 8
  %threads = trunc i64 %threads.wide to i32
  %count.at = getelementptr i8, ptr %table, i64 40
  %count = load i64, ptr %count.at, align 8
  %state = call ptr @PyEval_SaveThread()
  %has.threads = icmp ne ptr %set, null
  br i1 %has.threads, label %prepare, label %start
prepare:
  %before = call i32 %get()
  call void %set(i32 %threads)
  br label %start
start:
  %restored = phi i32 [ 0, %entry ], [ %before, %prepare ]
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %run, label %finish
run:
  %i = phi i64 [ 0, %start ], [ %next, %continue ]
  %first = mul nuw nsw i64 %i, 24
  %record = getelementptr i8, ptr %table, i64 %first
  %primitive.at = getelementptr i8, ptr %record, i64 48
  %primitive = load ptr, ptr %primitive.at, align 8
  %number.at = getelementptr i8, ptr %record, i64 56
  %number.wide = load i64, ptr %number.at, align 8
  %number = trunc i64 %number.wide to i32
  %arguments.at = getelementptr i8, ptr %record, i64 64
  %arguments = load ptr, ptr %arguments.at, align 8
  %status = call i32 %execute(ptr %primitive, ptr %stream, i32 %number, ptr %arguments)
  %is.good = icmp eq i32 %status, 0
  %next = add nuw nsw i64 %i, 1
  br i1 %is.good, label %continue, label %finish
continue:
  %more = icmp slt i64 %next, %count
  br i1 %more, label %run, label %finish
finish:
  %ended = phi i32 [ 0, %start ], [ %status, %run ], [ 0, %continue ]
  %where = phi i64 [ 0, %start ], [ %i, %run ], [ 0, %continue ]
  br i1 %has.threads, label %restore, label %leave
restore:
  call void %set(i32 %restored)
  br label %leave
leave:
  call void @PyEval_RestoreThread(ptr %state)
  %failed = icmp ne i32 %ended, 0
  br i1 %failed, label %fail, label %succeed
fail:
  %type = load ptr, ptr @PyExc_RuntimeError, align 8
  %wide = sext i32 %ended to i64
  %nothing.made = call ptr (ptr, ptr, ...) @PyErr_Format(
    ptr %type, ptr @message, i64 %where, i64 %wide)
  ret ptr null
succeed:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}
"""

_FUNCTIONS = (
    *("PyCapsule_GetPointer", "PyEval_SaveThread", "PyEval_RestoreThread", "Py_IncRef"),
    "PyErr_Format",
)


@cache
def _method(caches: Path | None) -> MethodDef | None:
    """Return the loop, or None if there is no code generator."""
    error_type = ctypes.addressof(ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyExc_RuntimeError"))
    data = {"PyExc_RuntimeError": error_type}
    try:
        return define_method(_NAME, _TEXT, _FUNCTIONS, data, caches=caches)
    except BackendError as error:
        logger.warning("primitives are called one by one from Python: %s", error.message)
        return None


def make_step(
    library: OneDnn,
    stream: int,
    num_threads: int,
    calls: Sequence[tuple[int, int, int]],
    kept: object,
) -> Step:
    """Return a function of no arguments that runs primitives one after another.

    Args:
        library: oneDNN.
        stream: Where they run.
        num_threads: OpenMP threads.
        calls: For each, the primitive, the number of its arguments, and their address.
        kept: Everything that must live as long as the function.
    """
    method = _method(library.caches)
    if method is None:
        return plain_step(library, stream, num_threads, calls, kept)
    table = np.zeros(_HEADER + 3 * len(calls), np.uint64)
    has_threads = bool(library.address(SET) and library.address(GET))
    table[:_HEADER] = (
        library.address("dnnl_primitive_execute"),
        library.address(SET) if has_threads else 0,
        library.address(GET) if has_threads else 0,
        stream,
        num_threads,
        len(calls),
    )
    table[_HEADER:] = np.array(calls, np.uint64).reshape(-1)
    return make_function(method, table, kept)


def plain_step(
    library: OneDnn,
    stream: int,
    num_threads: int,
    calls: Sequence[tuple[int, int, int]],
    kept: object,
) -> Callable[[], None]:
    """Return what `make_step` does, as a loop in Python."""

    def run(kept: object = kept) -> None:  # what is owned lives as long as the function
        with thread_count(library, num_threads):
            for primitive, number, arguments in calls:
                library.call("dnnl_primitive_execute", primitive, stream, number, arguments)

    return run
