# SPDX-License-Identifier: Apache-2.0
"""Shared libraries that are made without a linker."""

import ctypes

import pytest

from intarsia.native.elf import NotLinkedError, can_link
from intarsia.native.machine import NativeCpu, compile_object
from intarsia.native.shared_object import make_library

pytestmark = pytest.mark.skipif(not can_link(), reason="for ELF on x86-64")

CODE = """
@text = private unnamed_addr constant [5 x i8] c"told\\00"
declare extern_weak i64 @strlen(ptr) nonlazybind
declare extern_weak i64 @not_anywhere(ptr) nonlazybind

define internal i64 @twice(i64 %x) noinline {
  %y = add i64 %x, %x
  ret i64 %y
}

define i64 @measure() {
  %length = call i64 @strlen(ptr @text)
  %result = call i64 @twice(i64 %length)
  ret i64 %result
}

define i64 @is_there() {
  %is = icmp ne ptr @not_anywhere, null
  %number = zext i1 %is to i64
  ret i64 %number
}
"""


def test_a_library_has_functions_constants_and_what_the_process_has(tmp_path):
    content = make_library(compile_object(CODE, NativeCpu()), "lib.so", ["measure", "is_there"])
    assert len(content) < 1 << 14
    file = tmp_path / "lib.so"
    file.write_bytes(content)
    library = ctypes.CDLL(str(file))
    assert (library.measure(), library.is_there()) == (8, 0)
    assert not hasattr(library, "twice")


@pytest.mark.parametrize(
    "code",
    [
        "@state = global i64 0\ndefine ptr @find() { ret ptr @state }",
        "@state = thread_local global i64 0\ndefine ptr @find() { ret ptr @state }",
        "define i64 @other() { ret i64 0 }",
    ],
)
def test_what_takes_a_linker_is_said(code):
    with pytest.raises(NotLinkedError):
        make_library(compile_object(code, NativeCpu()), "lib.so", ["find"])
