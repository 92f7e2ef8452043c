# SPDX-License-Identifier: Apache-2.0
"""The C of a region by itself: one function of inputs, outputs, constants and an arena."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.backends.cmsis_nn.library import REGION
from intarsia.codegen.emit.c_function import CFunction
from intarsia.codegen.storage import StorageKind
from intarsia.graph.arena import ALIGNMENT

if TYPE_CHECKING:
    from intarsia.codegen.lower.program import Argument, Program


def write_source(program: Program) -> str:
    """Return a program of calls as a source with one function, `region_run`."""
    kernels = [kernel for kernel in program.kernels if isinstance(kernel, CFunction)]
    headers = dict.fromkeys(header for kernel in kernels for header in kernel.includes)
    parts = ["#include <stdint.h>", *(f"#include {header}" for header in headers), ""]
    parts += [kernel.source for kernel in kernels]
    parts.append(
        "int32_t region_run(const void *const *inputs, void *const *outputs,\n"
        "                   const void *const *constants, uint8_t *arena)\n{"
    )
    parts.append("    (void)inputs, (void)outputs, (void)constants, (void)arena;")
    for call in program.calls:
        kernel = program.kernels[call.kernel]
        passed = [
            f"({'' if buffer.is_written else 'const '}{buffer.dtype}_t *)"
            f"({_pointer(program, argument)})"
            for buffer, argument in zip(kernel.buffers, call.arguments, strict=True)
        ]
        parts.append(f"    if ({kernel.name}({', '.join(passed)}))\n        return -1;")
    parts.append("    return 0;\n}\n")
    return "\n".join(parts)


_CALL = """\
int32_t {region}_call(const void *const *inputs, void *const *outputs);
int32_t {region}_call(const void *const *inputs, void *const *outputs)
{{
    static uint8_t arena[{nbytes}] __attribute__((aligned({alignment})));
    return region_run(inputs, outputs, inputs + {count}, arena);
}}
"""


def write_called(program: Program, inputs: int) -> str:
    """Return that source for an agent: constants are behind the inputs, and the arena is in it."""
    nbytes = max(1, int(program.scratch_bytes))
    call = _CALL.format(region=REGION, nbytes=nbytes, alignment=ALIGNMENT, count=inputs)
    return f"{write_source(program)}\n{call}"


def _pointer(program: Program, argument: Argument) -> str:
    block = program.storages[argument.storage]
    if block.kind is StorageKind.SCRATCH:
        return f"arena + {int(block.index) + int(argument.offset)}"
    return f"{block.kind.value}s[{block.index}]"
