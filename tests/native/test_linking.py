# SPDX-License-Identifier: Apache-2.0
"""Sources and objects, linked for this machine and for others."""

import ctypes
import subprocess

import pytest
from tests.c_compiler import CACHE, install_compiler

from intarsia.errors import BackendError
from intarsia.native.linking import BinaryKind, Linker, zig_target
from intarsia.native.machine import NativeCpu, compile_object

TRIPLES = {
    "aarch64-linux-gnu": "aarch64-linux-gnu",
    "aarch64-unknown-linux-gnu": "aarch64-linux-gnu",
    "armv7-linux-gnueabihf": "arm-linux-gnueabihf",
    "armv7-linux": "arm-linux-gnueabihf",
    "thumbv7em-none-eabihf": "thumb-freestanding-eabihf",
    "thumbv8.1m.main-none-eabi": "thumb-freestanding-eabi",
    "riscv64-unknown-linux-gnu": "riscv64-linux-gnu",
    "riscv32-unknown-elf": "riscv32-freestanding",
    "wasm32-wasip1": "wasm32-wasi",
    "wasm32": "wasm32-freestanding",
    "arm64-apple-darwin": "aarch64-macos",
    "i686-linux-gnu": "x86-linux-gnu",
}


def test_zig_has_names_of_its_own_for_triples():
    assert {triple: zig_target(triple) for triple in TRIPLES} == TRIPLES


def test_sources_and_objects_become_a_program_and_a_library(tmp_path, monkeypatch):
    install_compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    linker = Linker.find(NativeCpu(), tmp_path)
    assert linker.c == (str(tmp_path / "bin" / "cc"),)
    text = "define i32 @six() {\n  ret i32 6\n}\n"
    (tmp_path / "six.o").write_bytes(compile_object(text, NativeCpu()))
    (tmp_path / "seven.c").write_text("int six(void);\nint seven(void) { return six() + 1; }\n")
    (tmp_path / "main.c").write_text("int seven(void);\nint main(void) { return seven(); }\n")
    parts = ["six.o", "seven.c"]
    linker.link(BinaryKind.SHARED, tmp_path / "seven.so", parts, folder=tmp_path)
    assert ctypes.CDLL(str(tmp_path / "seven.so")).seven() == 7
    whole = tmp_path / "whole.o"
    linker.link(BinaryKind.OBJECT, whole, parts, libraries=["m"], folder=tmp_path)
    linker.link(BinaryKind.EXECUTABLE, tmp_path / "program", [whole, tmp_path / "main.c"])
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 7


@pytest.mark.parametrize(
    ("cpu", "machine"),
    [
        (NativeCpu("thumbv7em-none-eabihf", "cortex-m7"), b"\x28\x00"),
        (NativeCpu("thumbv8.1m.main-none-eabihf", "cortex-m55"), b"\x28\x00"),
        (NativeCpu("riscv64-unknown-linux-gnu", "", "+v,+zvl256b"), b"\xf3\x00"),
        (NativeCpu("aarch64-linux-gnu", "cortex-a76"), b"\xb7\x00"),
    ],
    ids=lambda value: value.triple if isinstance(value, NativeCpu) else "",
)
def test_one_object_for_another_machine(tmp_path, monkeypatch, cpu, machine):
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(CACHE))
    text = "define i32 @half(i32 %x) {\n  %y = lshr i32 %x, 1\n  ret i32 %y\n}\n"
    (tmp_path / "half.o").write_bytes(compile_object(text, cpu))
    (tmp_path / "use.c").write_text("int half(int); int quarter(int x) { return half(half(x)); }\n")
    linker = Linker.find(cpu, tmp_path)
    linker.link(BinaryKind.OBJECT, tmp_path / "all.o", ["use.c", "half.o"], folder=tmp_path)
    content = (tmp_path / "all.o").read_bytes()
    assert (content[:4], content[18:20]) == (b"\x7fELF", machine)  # e_machine of the ELF header
    assert b"quarter" in content


def test_what_a_compiler_complains_of_is_told(tmp_path, monkeypatch):
    install_compiler(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bad.c").write_text("int f(void) { return nothing; }\n")
    linker = Linker.find(NativeCpu(), tmp_path)
    with pytest.raises(BackendError, match=r"failed to link bad\.so: .*undeclared") as caught:
        linker.link(BinaryKind.SHARED, tmp_path / "bad.so", [tmp_path / "bad.c"])
    assert "--emit c" in caught.value.hint


def test_a_compiler_that_is_gone_is_told(tmp_path):
    linker = Linker("gone", (str(tmp_path / "gone"),), ())
    with pytest.raises(BackendError, match=r"gone failed to link a\.o: No such file"):
        linker.link(BinaryKind.OBJECT, tmp_path / "a.o", [])


def test_without_the_wheel_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("intarsia.native.linking.has_zig", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="links for riscv64-linux-gnu") as caught:
        Linker.find(NativeCpu("riscv64-linux-gnu"), tmp_path)
    assert caught.value.hint == 'pip install "intarsia[cross]"'
    with pytest.raises(BackendError, match="links for this machine") as caught:
        Linker.find(NativeCpu(), tmp_path)
    assert "install gcc or clang" in caught.value.hint
