# SPDX-License-Identifier: Apache-2.0
"""A region as a C function of a program that holds other regions too: tensors lie in its memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from intarsia.arrays import Array
from intarsia.backends.arm_acl.builder import DerivedConstant
from intarsia.backends.arm_acl.program import AclProgram, make_source
from intarsia.backends.arm_acl.toolchain import Toolchain
from intarsia.codegen.emit import c_text
from intarsia.codegen.emit.c_function import Linkage, c_function, dense
from intarsia.codegen.lower.program import Argument, Call, MemoryBlock, Program
from intarsia.codegen.storage import StorageKind
from intarsia.graph.extract import aligned_constant
from intarsia.graph.region import Region

_STACK_BYTES = 64 << 10
"""What is said of a function that nobody has measured."""


def make_linked_program(
    region: Region,
    tables: AclProgram,
    constants: Sequence[int | DerivedConstant],
    toolchain: Toolchain,
    num_threads: int,
) -> Program:
    """Return a region as one C function, which has its machine code with it.

    What its functions keep between their calls, and weights as they reorder them, is the library's
    own memory: it takes that in the first run. Inputs, outputs and constants are the program's.

    Args:
        region: What it computes.
        tables: Of the region.
        constants: Theirs.
        toolchain: Compiles them.
        num_threads: Of the library.

    Raises:
        BackendError: They do not build.
    """
    graph = region.graph
    arrays: dict[str, Array] = {}
    for number, constant in enumerate(constants):
        if isinstance(constant, int):
            array, name = aligned_constant(graph, constant), graph.values[constant].name
        else:
            array, name = constant.array, constant.name
        arrays[f"{name}/{number}" if name in arrays else name] = array
    # A function is configured for its constants, so these tell it from others.
    tells = hashlib.sha256(make_source(tables, "", len(region.inputs), num_threads).encode())
    for array in arrays.values():
        tells.update(array.tobytes())
    name = f"acl_{tells.hexdigest()[:16]}"
    source = make_source(tables, name, len(region.inputs), num_threads)
    reads = [graph.values[i] for i in region.inputs]
    writes = [graph.values[i] for i in region.outputs]
    buffers = (
        *(dense(f"in{i}", one.dtype, one.shape or ()) for i, one in enumerate(reads)),
        *(
            dense(f"constant{i}", array.dtype.name, array.shape)
            for i, array in enumerate(arrays.values())
        ),
        *(
            dense(f"out{i}", one.dtype, one.shape or (), is_written=True)
            for i, one in enumerate(writes)
        ),
    )
    parameters = ", ".join(
        f"{'' if one.is_written else 'const '}{c_text.MEMORY[one.dtype]} *{one.name}"
        for one in buffers
    )
    read = ", ".join(one.name for one in buffers if not one.is_written)
    written = ", ".join(one.name for one in buffers if one.is_written)
    function = c_function(
        name,
        buffers,
        f"extern int32_t {name}_call(const void *const *, void *const *);\n"
        f"static int {name}({parameters})\n{{\n"
        f"    const void *const inputs[] = {{{read}}};\n"
        f"    void *const outputs[] = {{{written}}};\n"
        f"    return {name}_call(inputs, outputs);\n}}\n",
        stack_bytes=_STACK_BYTES,
        linkage=Linkage(
            toolchain.compiler, toolchain.objects(f"{name}.cpp", source), toolchain.archives
        ),
    )
    storages = (
        *(MemoryBlock(StorageKind.INPUT, i, one.nbytes) for i, one in enumerate(reads)),
        *(
            MemoryBlock(StorageKind.CONSTANT, i, one.nbytes)
            for i, one in enumerate(arrays.values())
        ),
        *(MemoryBlock(StorageKind.OUTPUT, i, one.nbytes) for i, one in enumerate(writes)),
    )
    call = Call(
        0,
        tuple(Argument(i, 0) for i in range(len(storages))),
        1,
        nodes=tuple(graph.nodes[number].name for number in region.nodes),
        note=f"{len(tables.calls)} functions of Arm Compute Library",
    )
    return Program((function,), (call,), storages, arrays, frozenset())
