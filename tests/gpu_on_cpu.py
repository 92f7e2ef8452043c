# SPDX-License-Identifier: Apache-2.0
"""Kernels for GPUs on this CPU: the LLVM IR that PTX is made of, compiled for this machine.

Where a thread is, and how those of a block wait for each other, is what the caller says.
"""

from intarsia.native.machine import NativeCpu, compile_object, link_object

REGISTERS = ("tid.x", "ctaid.x", "ctaid.y", "nctaid.y")
WAIT, SHUFFLE = "block_wait", "warp_shuffle"
_BARRIER = "llvm.nvvm.barrier.cta.sync.aligned.all"
_SHUFFLE = "llvm.nvvm.shfl.sync.bfly.i32"


def waits(kernel):
    """Tell whether threads of a block wait for each other."""
    return any(f"@{name}(" in kernel.source for name in (_BARRIER, _SHUFFLE))


def link_kernel(kernel, functions, *, is_table=False):
    """Return a kernel's code for this CPU and its address.

    Args:
        kernel: Of `emit_nvptx`.
        functions: Addresses of functions that return the special registers, by name, of `WAIT`
            and of `SHUFFLE`.
        is_table: Whether it gets the addresses of its arguments, as from the driver, and not them.
    """
    text, name = kernel.source.replace("define ptx_kernel", "define"), kernel.name
    symbols = {}
    for register in REGISTERS:
        symbol = f"register_{register.replace('.', '_')}"
        symbols[symbol] = functions[register]
        text = text.replace(f"@llvm.nvvm.read.ptx.sreg.{register}(", f"@{symbol}(")
    text = text.replace(f"@{_BARRIER}(", f"@{WAIT}(")
    text = text.replace(f"@{_SHUFFLE}(", f"@{SHUFFLE}(")
    symbols |= {name: functions[name] for name in (WAIT, SHUFFLE) if name in functions}
    if is_table:
        text += _by_table(kernel)
        name = f"{name}.by_table"
    used = {symbol: address for symbol, address in symbols.items() if f"@{symbol}(" in text}
    library = link_object(name, compile_object(text, NativeCpu()), used)
    return library, library[name]


def _by_table(kernel):
    types = ["ptr addrspace(1)" for _ in kernel.buffers] + ["i64"] * kernel.sizes
    lines = []
    for number, type_ in enumerate(types):
        lines += [
            f"  %p{number} = getelementptr ptr, ptr %table, i64 {number}",
            f"  %q{number} = load ptr, ptr %p{number}",
            f"  %a{number} = load {type_}, ptr %q{number}",
        ]
    passed = ", ".join(f"{type_} %a{number}" for number, type_ in enumerate(types))
    lines += [f"  call void @{kernel.name}({passed})", "  ret void"]
    body = "\n".join(lines)
    return f"\ndefine void @{kernel.name}.by_table(ptr %table) {{\n{body}\n}}\n"
