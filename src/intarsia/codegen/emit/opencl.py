# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to OpenCL C 1.2 (Khronos, "The OpenCL C Specification", 1.2).

One IR kernel becomes one `__kernel`::

    limits = DeviceLimits(vector_bits=512)
    kernel = emit_opencl(function, limits)
    source = program_source([kernel, ...])
    # build `source` with `build_options(limits)`, then for a call of `function.extent` turns:
    # enqueue kernel.name with kernel.global_size(extent) and kernel.local_size

A turn of a grid loop is a work-group, whose items are those of dimension 1. Of other kernels a turn
of the parallel loop becomes one work-item of dimension 0; where loops inside it are provably
parallel (`distribute`), the items of dimension 1 share them, as one work-group if they must wait
for each other. A kernel's own buffers are private, or local to the group that shares a turn.

Arguments, in order: for each buffer of the kernel its `cl_mem` and, as a `cl_long`, the element of
it at which the buffer begins (so that buffers may share one `cl_mem`, at any offset); then each
size as a `cl_long`. Elements lie as on the host; a bool is a byte.

Floating point: kernels are built without relaxed mathematics and without contraction. `+`, `-`,
`*` and `fma` round once to nearest; division and square root do where the device says so
(`build_options`), else they are within 2.5 and 3 units in the last place. Whether results below
the smallest normal number are kept is the device's (`CL_FP_DENORM`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from intarsia.codegen import ir
from intarsia.codegen.emit import opencl_text as text
from intarsia.codegen.emit.device_family import (
    DeviceFamily,
    DeviceKernel,
    DeviceLimits,
    dtypes_of,
)
from intarsia.codegen.emit.live import prune
from intarsia.errors import BackendError

_FP16, _FP64 = "cl_khr_fp16", "cl_khr_fp64"


def needed_extensions(function: ir.Function) -> tuple[str, ...]:
    """Return which extensions of OpenCL a kernel needs."""
    used = dtypes_of(function)
    return tuple(name for dtype, name in (("float64", _FP64), ("float16", _FP16)) if dtype in used)


def refuse_types(function: ir.Function, limits: DeviceLimits) -> str | None:
    """Return which extension of OpenCL a kernel needs and the device lacks; None if it can run."""
    have = {_FP64: limits.has_fp64, _FP16: limits.has_fp16}
    return next((name for name in needed_extensions(function) if not have[name]), None)


def emit_opencl(function: ir.Function, limits: DeviceLimits) -> DeviceKernel:
    """Return a kernel in OpenCL C.

    Args:
        function: The kernel, verified and expanded.
        limits: Of the device.

    Raises:
        BackendError: It has elements that the device has no arithmetic for.
    """
    missing = refuse_types(function, limits)
    if missing:
        raise BackendError(
            f"kernel {function.name} needs {missing}, which the device does not have",
            backend="opencl",
            hint="exclude its nodes from this target, or convert the model to float32",
        )
    return _OpenCl(prune(function), limits).kernel()


def build_options(limits: DeviceLimits) -> tuple[str, ...]:
    """Return options for OpenCL's compiler."""
    # The option is an error for devices that do not have it.
    exact = ("-cl-fp32-correctly-rounded-divide-sqrt",) if limits.is_correctly_rounded else ()
    return ("-cl-std=CL1.2", "-w", *exact)  # compilers warn of what generated code may well do


def program_source(kernels: Sequence[DeviceKernel], limits: DeviceLimits) -> str:
    """Return a program of kernels."""
    pragmas = ["#pragma OPENCL FP_CONTRACT OFF"]
    for extension, is_there in ((_FP16, limits.has_fp16), (_FP64, limits.has_fp64)):
        if is_there:
            pragmas.append(f"#pragma OPENCL EXTENSION {extension} : enable")
    return "\n\n".join(("\n".join(pragmas), *(kernel.source for kernel in kernels))) + "\n"


_RESERVED = """
kernel global local constant private half image sampler read_only write_only read_write restrict
const in out uint signed unsigned char short int long float double bool mix step sign length
distance dot cross select shuffle min max clamp fma mad abs exp log pow turn item items auto
default switch case register static void volatile size_t
"""
"""Names that have a meaning in OpenCL C, or that we give ourselves."""


class _OpenCl(DeviceFamily):
    integer = "long"
    turn = "(long)get_global_id(0)"
    group = "(long)get_group_id(0)"
    item_of_group = "(long)get_local_id(1)"
    reserved = frozenset(_RESERVED.split())

    wide: Mapping[int, text.OpenClSpelling]

    def __init__(self, function: ir.Function, limits: DeviceLimits) -> None:
        self.wide = {width: text.OpenClSpelling(width, limits.has_fma) for width in text.WIDTHS}
        super().__init__(function, limits)

    def kernel(self) -> DeviceKernel:
        function = self.function
        parameters = []
        for buffer in function.buffers:
            name, element = self.buffers[buffer], text.MEMORY[buffer.dtype]
            const = "" if buffer.is_written else "const "
            # A buffer and where the tensor begins in it: OpenCL 1.2 has no pointers into a buffer
            # on the host.
            parameters += [f"__global {const}{element} *restrict {name}", f"long {name}_at"]
        parameters += [f"long {name}" for size in function.sizes for name in self.names[size]]
        for buffer in function.buffers:
            name = self.buffers[buffer]
            self.line(f"{name} += {name}_at;")
        for buffer in function.locals:
            element = text.MEMORY[buffer.dtype]
            if self.plan.items > 1 or buffer.scope is ir.Scope.SHARED:
                element = f"__local {element}"
            align = f"__attribute__((aligned({buffer.align})))"
            self.line(f"{element} {self.buffers[buffer]}[{buffer.span}] {align};")
        if self.plan.items > 1:
            self.line("const long item = get_global_id(1), items = get_global_size(1);")
        # Without a parallel loop one work-item does it all; a group may have more.
        if function.parallel is None and function.grid is None:
            self.open("if (get_global_id(0) == 0)")
            self.body(function.body)
            self.close()
        else:
            self.body(function.body)
        declared = [
            f"    __local {type_} {name}[{self.meeting}];"
            for type_, name in self.meeting_places.items()
        ]
        notes = [f"// {note}" for note in function.notes]
        items = function.work_items
        if items:  # so that the compiler leaves each as many registers as there are
            notes.append(f"__attribute__((reqd_work_group_size(1, {items}, 1)))")
        head = f"__kernel void {function.name}(\n    " + ",\n    ".join(parameters) + ")\n{"
        return self.made("\n".join((*notes, head, *declared, *self.lines, "}")))

    # What the dialect says

    def wait(self) -> None:
        self.line("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")

    def literal(self, value: float, dtype: str) -> str:
        return text.literal(value, dtype)

    def picked(self, name: str, lanes: Sequence[int]) -> str:
        return f"{name}.s{''.join(f'{lane:x}' for lane in lanes)}"

    def loaded(self, load: ir.Load, first: int, width: int) -> str:
        name, dtype = self.buffers[load.buffer], load.buffer.dtype
        element = text.MEMORY[dtype]
        # `vload` asks for the alignment of an element alone (6.12.7), where a pointer to vectors
        # would ask for a vector's.
        if width > 1 and load.stride == 1 and first + width <= load.count:
            place = f"{name} + {self.offset(load, first)}"
            return self.wide[width].from_memory(f"vload{width}(0, {place})", dtype)
        if width > 1 and load.stride == 0 and first + width <= load.count:
            scalar = f"({self.wide[width].vector(element)})({name}[{self.offset(load)}])"
            return self.wide[width].from_memory(scalar, dtype)
        lanes = [
            f"{name}[{self.offset(load, lane)}]" if lane < load.count else f"({element})0"
            for lane in range(first, first + width)
        ]
        raw = (
            lanes[0] if width == 1 else f"({self.wide[width].vector(element)})({', '.join(lanes)})"
        )
        return self.wide[width].from_memory(raw, dtype)

    def write(self, store: ir.Store, first: int, width: int, value: str) -> None:
        value = self.wide[width].to_memory(value, store.buffer.dtype)
        name, place = self.buffers[store.buffer], self.offset(store, first)
        if width == 1:
            self.line(f"{name}[{place}] = {value};")
        else:
            self.line(f"vstore{width}({value}, 0, {name} + {place});")
