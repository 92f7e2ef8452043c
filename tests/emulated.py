# SPDX-License-Identifier: Apache-2.0
"""A model's object in a program without a C library, run under an emulator of another CPU.

Cross compilers and their C libraries would have to be there for every machine; this needs none. The
program reads its inputs from standard input, one after the other, and writes its outputs.
"""

import shutil
import subprocess

import numpy as np
import pytest
from tests.c_compiler import CACHE

from intarsia.native.linking import BinaryKind, Linker
from intarsia.native.native_target import target_cpu
from intarsia.target import Target

# Numbers of system calls, from the kernel's tables: read, write, exit.
_START = {
    "aarch64": (63, 64, 93, "x8", "svc #0", ("x0", "x1", "x2")),
    "arm": (3, 4, 1, "r7", "svc #0", ("r0", "r1", "r2")),
    "riscv64": (63, 64, 93, "a7", "ecall", ("a0", "a1", "a2")),
    "x86_64": (0, 1, 60, "rax", "syscall", ("rdi", "rsi", "rdx")),
}

_SOURCE = """
#include "NAME.h"
static long call(long number, long a, long b, long c)
{
    register long n __asm__("REG") = number;
    register long x __asm__("R0") = a;
    register long y __asm__("R1") = b;
    register long z __asm__("R2") = c;
    __asm__ volatile("TRAP" : "+r"(x), "+r"(n) : "r"(y), "r"(z) : "memory", "cc" CLOBBERS);
    return RESULT;
}
void *memcpy(void *to, const void *from, size_t count)
{
    volatile char *t = to;
    for (size_t i = 0; i < count; ++i) t[i] = ((const char *)from)[i];
    return to;
}
void *memset(void *to, int byte, size_t count)
{
    volatile char *t = to;
    for (size_t i = 0; i < count; ++i) t[i] = (char)byte;
    return to;
}
#ifdef __arm__ /* it divides 32 bits only */
long long __divdi3(long long a, long long b)
{
    unsigned long long x = a < 0 ? -a : a, y = b < 0 ? -b : b, rest = 0, quotient = 0;
    for (int bit = 63; bit >= 0; --bit) {
        rest = rest << 1 | (x >> bit & 1);
        quotient <<= 1;
        if (rest >= y) rest -= y, quotient |= 1;
    }
    return (a < 0) == (b < 0) ? quotient : -quotient;
}
#endif
static char heap[1 << 24] __attribute__((aligned(64)));
static size_t used;
void *aligned_alloc(size_t align, size_t size)
{
    char *block = heap + used;
    (void)align;
    used += (size + 63) / 64 * 64;
    return block;
}
void free(void *block) { used = (size_t)((char *)block - heap); }
static char data[BYTES] __attribute__((aligned(64)));
__attribute__((used)) static void body(void)
{
    for (long at = 0; at < INPUT;) {
        long count = call(READ, 0, (long)(data + at), INPUT - at);
        if (count <= 0) break;
        at += count;
    }
    int fault = NAME_run(CALLED);
    for (long at = INPUT; at < BYTES;) at += call(WRITE, 1, (long)(data + at), BYTES - at);
    call(EXIT, fault, 0, 0);
}
__attribute__((naked)) void _start(void) { __asm__ volatile("ENTRY"); }
"""
_ENTRIES = {
    "aarch64": "bl body",
    "arm": "bl body",
    "riscv64": ".option norelax\\nla gp, __global_pointer$\\ncall body",
    "x86_64": "call body",
}


def run_emulated(target, emulated_cpu, exported, feeds, wanted, folder, sizes=()):
    """Run a model's object, and return its outputs.

    Args:
        target: What the object is for.
        emulated_cpu: The emulator's `-cpu`.
        exported: The object and its header.
        feeds: Arrays, in the order of the model's inputs.
        wanted: Arrays like the model's outputs, in their order.
        folder: For files.
        sizes: What the function is told before its inputs.
    """
    cpu, _ = target_cpu(Target(target))
    family = "arm" if cpu.triple.startswith("arm") else cpu.triple.partition("-")[0]
    emulator = shutil.which(f"qemu-{family}-static")
    if emulator is None:
        pytest.skip(f"qemu-{family}-static is not installed")
    read, write, leave, register, trap, registers = _START[family]
    places, at = [], 0
    for array in (*feeds, *wanted):
        places.append(f"(void *)(data + {at})")
        at += array.nbytes
    name = exported[0].stem
    words = {
        "NAME": name,
        "REG": register,
        "R0": registers[0],
        "R1": registers[1],
        "R2": registers[2],
        "TRAP": trap,
        "CLOBBERS": ', "rcx", "r11"' if family == "x86_64" else "",
        "RESULT": "n" if family == "x86_64" else "x",
        "READ": read,
        "WRITE": write,
        "EXIT": leave,
        "INPUT": sum(array.nbytes for array in feeds),
        "BYTES": at,
        "CALLED": ", ".join([*map(str, sizes), *places]),
        "ENTRY": _ENTRIES[family],
    }
    text = _SOURCE
    for word, value in words.items():
        text = text.replace(word, str(value))
    (folder / "start.c").write_text(text)
    linker = Linker.find(cpu, CACHE)
    program = folder / f"{name}.elf"
    # Loops that copy must not become calls of themselves.
    options = ["-nostdlib", "-static", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"]
    options += ["-g0", "-w", f"-I{exported[0].parent}"]
    linker.link(BinaryKind.EXECUTABLE, program, [folder / "start.c", exported[0]], options=options)
    command = [emulator, "-cpu", emulated_cpu, str(program)]
    sent = b"".join(array.tobytes() for array in feeds)
    done = subprocess.run(command, input=sent, check=False, capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    outputs, at = [], 0
    for array in wanted:
        part = done.stdout[at : at + array.nbytes]
        outputs.append(np.frombuffer(part, array.dtype).reshape(array.shape))
        at += array.nbytes
    return outputs
