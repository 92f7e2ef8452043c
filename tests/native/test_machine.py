"""From LLVM IR to objects, and from those to addresses."""

import ctypes
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.errors import BackendError
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import (
    NativeCpu,
    compile_assembly,
    compile_object,
    llvm_version,
    target_machine,
)


def text_of(number, name="answer"):
    b = Builder(name)
    y = b.argument("y", "float32", (1,), is_written=True)
    b.store(b.constant(number, b.load(y, 0).type), y, 0)
    return emit_llvm(b.finish())


def call(address):
    out = np.zeros(1, "float32")
    table = np.array([out.ctypes.data], np.uint64)
    kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    kernel(table.ctypes.data, 0, 1)
    return out[0]


def test_the_version_has_three_numbers():
    assert len([int(part) for part in llvm_version().split(".")]) == 3


def test_equal_modules_have_equal_objects():
    assert compile_object(text_of(1), NativeCpu()) == compile_object(text_of(1), NativeCpu())
    assert compile_object(text_of(1), NativeCpu()) != compile_object(text_of(2), NativeCpu())


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_yields_a_kernel(level):
    library = LoadedCode({"answer": compile_object(text_of(42), NativeCpu(), level)})
    assert call(library.addresses["answer"]) == 42


def test_objects_of_equal_names_live_beside_one_another():
    libraries = [LoadedCode({"answer": compile_object(text_of(i), NativeCpu())}) for i in range(3)]
    assert [call(library.addresses["answer"]) for library in libraries] == [0, 1, 2]


def test_a_library_of_several_kernels():
    objects = {name: compile_object(text_of(i, name), NativeCpu()) for i, name in enumerate("ab")}
    addresses = LoadedCode(objects).addresses
    assert set(addresses) == {"a", "b"}


def test_a_wrong_module_is_refused():
    with pytest.raises(BackendError, match="LLVM refused a kernel"):
        compile_object("define void @f() { ret i32 0 }", NativeCpu())


def test_an_unknown_triple_is_refused():
    with pytest.raises(BackendError, match="LLVM cannot generate code"):
        compile_object(text_of(1), NativeCpu("nosuch-cpu-anywhere"))


def test_machines_are_made_once():
    cpu = NativeCpu("x86_64-unknown-linux-gnu", "haswell")
    assert target_machine(cpu) is target_machine(NativeCpu("x86_64-unknown-linux-gnu", "haswell"))


def test_assembly_is_for_people():
    cpu = NativeCpu("x86_64-unknown-linux-gnu", "haswell")
    assert "answer:" in compile_assembly(text_of(7), cpu)


@pytest.mark.parametrize("cpu", [NativeCpu("", "pentium4"), NativeCpu("", "haswell", "-64bit")])
@pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86")
def test_no_cpu_ends_the_process(cpu):
    assert compile_object(text_of(7), cpu)


FORKS = """
import os, signal, threading
from intarsia.native.machine import NativeCpu, compile_object
text = "define void @f() { ret void }"
done = threading.Event()
def work():
    while not done.is_set():
        compile_object(text, NativeCpu())
thread = threading.Thread(target=work)
thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        signal.alarm(300)
        compile_object(text, NativeCpu())
        os._exit(0)
    print(os.waitpid(child, 0)[1])
done.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_of_fork_compiles_whatever_other_threads_did():
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.stdout.split() == ["0"] * 20, ran.stderr
