# SPDX-License-Identifier: Apache-2.0
"""Linking without LLVM: what it does as LLVM does it, and what it leaves to LLVM."""

import ctypes
import gc
import math
import struct
import weakref
from pathlib import Path

import pytest

from intarsia.errors import BackendError
from intarsia.native.elf import can_link, link_objects
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_object, link_object

pytestmark = pytest.mark.skipif(not can_link(), reason="objects are linked by LLVM here")

MODULES = {
    "constants": """
        @table = private constant [4 x double] [double 2.0, double 3.0, double 5.0, double 7.0]
        define double @f(double %x) {
          %i = fptoui double %x to i64
          %at = getelementptr [4 x double], ptr @table, i64 0, i64 %i
          %y = load double, ptr %at
          %z = fadd double %y, 0.125
          ret double %z
        }""",
    "another library's function": """
        declare double @fmod(double, double)
        define double @f(double %x) {
          %y = call double @fmod(double %x, double 1.5)
          %z = call double @fmod(double %y, double 0.75)
          %sum = fadd double %y, %z
          ret double %sum
        }""",
    "another library's data": """
        @stdout = external global ptr
        define double @f(double %x) {
          %p = load ptr, ptr @stdout
          %is.null = icmp eq ptr %p, null
          %y = select i1 %is.null, double 0.0, double %x
          ret double %y
        }""",
    "addresses of its own": """
        @table = private constant [2 x ptr] [ptr @g, ptr @h]
        define internal double @g(double %x) noinline {
          %y = fadd double %x, 1.0
          ret double %y
        }
        define internal double @h(double %x) noinline {
          %y = fmul double %x, 3.0
          ret double %y
        }
        define double @f(double %x) {
          %i = fptoui double %x to i64
          %at = getelementptr [2 x ptr], ptr @table, i64 0, i64 %i
          %k = load ptr, ptr %at
          %y = call double %k(double %x)
          ret double %y
        }""",
    "a function of its own": """
        define internal double @g(double %x) noinline {
          %y = fadd double %x, 4.0
          ret double %y
        }
        define double @f(double %x) {
          %y = call double @g(double %x)
          ret double %y
        }""",
}


def called(address, x):
    return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(x)


@pytest.mark.parametrize("name", MODULES)
def test_code_computes_what_it_computes_where_llvm_links_it(name):
    code = compile_object(MODULES[name], NativeCpu())
    image = link_objects({"f": code})
    assert image is not None
    linked = link_object("f", code, {})
    for x in (0.0, 1.0):
        assert called(image.addresses["f"], x) == called(linked["f"], x)


def test_symbols_that_are_given_come_before_those_of_the_process():
    twice = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(lambda x, y: 2 * y)
    symbols = {"fmod": ctypes.cast(twice, ctypes.c_void_p).value}
    code = compile_object(MODULES["another library's function"], NativeCpu())
    given, found = link_objects({"f": code}, symbols), link_objects({"f": code})
    assert called(given.addresses["f"], 1.0) == 3.0 + 1.5
    assert called(found.addresses["f"], 1.0) == 1.0 + math.fmod(1.0, 0.75)


def test_several_objects_do_not_see_one_another():
    plus = "define double @{} (double %x) {{ %y = call double @g(double %x) ret double %y }}"
    own = (
        "define internal double @g(double %x) noinline {{ %y = fadd double %x, {} ret double %y }}"
    )
    codes = {
        name: compile_object(plus.format(name) + own.format(number), NativeCpu())
        for name, number in (("a", "1.0"), ("b", "2.0"))
    }
    image = link_objects(codes)
    assert [called(image.addresses[name], 0.0) for name in "ab"] == [1.0, 2.0]


def test_code_can_be_run_and_not_written_and_goes_with_its_owner():
    image = link_objects({"f": compile_object(MODULES["constants"], NativeCpu())})
    (rights,) = _rights(image.addresses["f"])
    assert rights == "r-xp"
    memory = weakref.ref(image._memory)
    del image
    gc.collect()
    assert memory() is None


def _rights(address):
    with Path("/proc/self/maps").open(encoding="utf-8") as file:
        for span, rights, *_ in map(str.split, file):
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                yield rights


@pytest.mark.parametrize(
    "module",
    [
        "@count = global i64 0 define void @f() { store i64 1, ptr @count ret void }",
        "@count = internal global i64 7 define void @f() { store i64 1, ptr @count ret void }",
        "@own = thread_local global i64 0 define void @f() { store i64 1, ptr @own ret void }",
        "declare void @no_such_function_anywhere() "
        "define void @f() { call void @no_such_function_anywhere() ret void }",
        "define void @g() { ret void }",
    ],
    ids=["zeros that are written", "written", "of a thread", "unknown function", "no function"],
)
def test_what_is_not_known_here_is_left_to_llvm(module):
    assert link_objects({"f": compile_object(module, NativeCpu())}) is None


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "x86_64-pc-windows-msvc"])
def test_objects_of_other_machines_are_left_to_llvm(triple):
    assert link_objects({"f": compile_object(MODULES["constants"], NativeCpu(triple))}) is None


def test_damaged_objects_are_an_error_of_llvm_and_never_code():
    code = compile_object(MODULES["addresses of its own"], NativeCpu())
    for damaged in (b"", b"nothing", code[:40], code[:200], code[:-100]):
        assert link_objects({"f": damaged}) is None
    sections = struct.unpack_from("<Q", code, 40)[0]
    wrong = code[:sections] + b"\xff" * (len(code) - sections)
    assert link_objects({"f": wrong}) is None
    with pytest.raises(BackendError, match="cannot link kernel f"):
        LoadedCode({"f": b"nothing"})
