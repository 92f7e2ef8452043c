# SPDX-License-Identifier: Apache-2.0
"""A region as a step of a C program: one call of the Ethos-U's driver.

The driver is Arm's `ethos-u-core-driver`: its header `ethosu_driver.h` is included, and its sources
are linked by whoever builds for a board. Inputs are copied into the arena that the command stream
works in, outputs out of it; the arena is memory of the program, planned with the rest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from intarsia.codegen.emit.c_function import c_function, dense
from intarsia.codegen.lower.program import Argument, Call, MemoryBlock, Program, place_scratch
from intarsia.codegen.storage import StorageKind

if TYPE_CHECKING:
    from intarsia.backends.ethos_u.backend import CompiledNetwork
    from intarsia.graph.region import Region

HEADER = '"ethosu_driver.h"'
_ALIGN = 16
"""Bytes to which the driver wants the command stream and every base address aligned."""

_STACK_BYTES = 1024
"""Taken for a call: the driver waits for an interrupt, and keeps little on the stack."""


def lower_region(region: Region, compiled: CompiledNetwork) -> Program:
    """Return a region as a program of one call.

    Args:
        region: What was compiled.
        compiled: What became of it.
    """
    values = region.graph.values
    sides = (
        (StorageKind.INPUT, "x", region.inputs, compiled.inputs),
        (StorageKind.OUTPUT, "y", region.outputs, compiled.outputs),
    )
    buffers, storages = [], []
    copies: dict[StorageKind, list[str]] = {}
    for kind, letter, ids, places in sides:
        copies[kind] = []
        for number, (value, (offset, size)) in enumerate(zip(ids, places, strict=True)):
            name = f"{letter}{number}"
            is_output = kind is StorageKind.OUTPUT
            buffers.append(dense(name, values[value].dtype, (size,), is_written=is_output))
            storages.append(MemoryBlock(kind, number, size))
            ends = (name, f"arena + {offset}") if is_output else (f"arena + {offset}", name)
            copies[kind].append(f"    memcpy({ends[0]}, {ends[1]}, {size});")
    constants = {
        name: np.frombuffer(content, np.uint8)
        for name, content in (("commands", compiled.commands), ("weights", compiled.weights))
        if content
    }
    memory = {"arena": compiled.arena_bytes, "fast": compiled.fast_bytes}
    for number, (name, array) in enumerate(constants.items()):
        buffers.append(dense(name, "uint8", array.shape))
        storages.append(MemoryBlock(StorageKind.CONSTANT, number, array.nbytes))
    for name, size in memory.items():
        if size:
            buffers.append(dense(f"{name}_block", "uint8", (size + _ALIGN,), is_written=True))
            storages.append(MemoryBlock(StorageKind.SCRATCH, 0, size + _ALIGN))
    passed = ", ".join(
        f"{'' if one.is_written else 'const '}{one.dtype}_t *{one.name}" for one in buffers
    )
    body = _body(compiled, copies)
    digest = hashlib.sha256(compiled.commands + compiled.weights + body.encode()).hexdigest()[:12]
    name = f"ethosu_{digest}"
    kernel = c_function(
        name,
        tuple(buffers),
        f"static int {name}({passed})\n{{\n{body}}}\n",
        includes=("<string.h>", HEADER),
        stack_bytes=_STACK_BYTES,
        align=_ALIGN,
    )
    nodes = tuple(region.graph.nodes[node].name for node in region.nodes)
    note = f"{compiled.cycles} cycles by Vela's model"
    call = Call(0, tuple(Argument(one, 0) for one in range(len(storages))), 1, nodes, note)
    placed, size = place_scratch(storages, (call,))
    return Program((kernel,), (call,), placed, constants, frozenset(constants), size)


def _body(compiled: CompiledNetwork, copies: dict[StorageKind, list[str]]) -> str:
    """Return the statements of the call."""
    aligned = "(uint8_t *)(((uintptr_t){0}_block + 15u) & ~(uintptr_t)15u)"
    weights = "(uintptr_t)weights" if compiled.weights else "0"
    lines = [f"    uint8_t *const arena = {aligned.format('arena')};"]
    if compiled.fast_bytes:
        lines.append(f"    uint8_t *const fast = {aligned.format('fast')};")
    fast, fast_bytes = ("fast", compiled.fast_bytes) if compiled.fast_bytes else ("arena", 0)
    sizes = (len(compiled.weights), compiled.arena_bytes, fast_bytes or compiled.arena_bytes)
    lines += [
        f"    uint64_t bases[3] = {{{weights}, (uintptr_t)arena, (uintptr_t){fast}}};",
        f"    const size_t sizes[3] = {{{', '.join(map(str, sizes))}}};",
        "    struct ethosu_driver *const driver = ethosu_reserve_driver();",
        "    int failed;",
        "    if (!driver)",
        "        return -1;",
        *copies[StorageKind.INPUT],
        f"    failed = ethosu_invoke_v3(driver, commands, {len(compiled.commands)}, bases, sizes, "
        "3, 0);",
        "    ethosu_release_driver(driver);",
        "    if (failed)",
        "        return -1;",
        *copies[StorageKind.OUTPUT],
        "    return 0;",
    ]
    return "\n".join(lines) + "\n"
