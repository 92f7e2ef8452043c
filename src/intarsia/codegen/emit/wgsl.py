# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to WGSL (W3C, "WebGPU Shading Language"), one module for each kernel.

::

    kernel = emit_wgsl(function, limits)
    # make a pipeline of `kernel.source` with the entry point `kernel.name`, bind each buffer in
    # order and then the uniform `numbers`, and dispatch `workgroups(kernel, extent)`

Bindings, in order: each buffer, as storage that may be written (one memory block may be bound
twice in a call, and WebGPU wants all its uses alike); then, as `i32` in one uniform, for each
buffer the element of its binding at which it begins, and each size.

Subscripts have 32 bits (`narrow`). Elements of 8 and 16 bits lie in words, as on the host: what
writes them changes its own bits of a word by atomic operations. Halves need `shader-f16`; 64-bit
numbers need `shader-int64` and `shader-f64`, which are wgpu's own and not in every device: without
them a kernel is refused by name.

Floating point: `+`, `-` and `*` round once, or twice as one `fma` where a driver contracts them;
division and square root are within 2.5 units in the last place; results below the smallest normal
number may be 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intarsia.codegen import ir
from intarsia.codegen.emit import wgsl_text as text
from intarsia.codegen.emit.device_family import (
    DeviceFamily,
    DeviceKernel,
    DeviceLimits,
    dtypes_of,
)
from intarsia.codegen.emit.live import prune
from intarsia.codegen.emit.narrow import narrow
from intarsia.codegen.float_constants import FORMATS
from intarsia.errors import BackendError

MOST_GROUPS = 65535
"""Workgroups in one dimension of a dispatch."""

_UNIFORM_LANES = 4
"""Numbers of an entry of the uniform: entries of an array there have 16 bytes."""

FEATURES = {"float16": "shader-f16", "float64": "shader-f64"}
FEATURES |= dict.fromkeys(("int64", "uint64"), "shader-int64")
"""The feature of wgpu that a device needs to compute with a dtype."""

_BETWEEN = "\f"
"""Between the modules of a program: WGSL takes it for a space."""


def needed_features(function: ir.Function) -> tuple[str, ...]:
    """Return which features of wgpu a kernel needs."""
    dtypes = dtypes_of(_ready(function))
    return tuple(dict.fromkeys(FEATURES[name] for name in FEATURES if name in dtypes))


def missing_feature(features: Sequence[str], limits: DeviceLimits) -> str | None:
    """Return the first of some features that a device lacks."""
    have = {
        "shader-f16": limits.has_fp16,
        "shader-f64": limits.has_fp64,
        "shader-int64": limits.has_int64,
    }
    return next((name for name in features if not have[name]), None)


def emit_wgsl(function: ir.Function, limits: DeviceLimits) -> DeviceKernel:
    """Return a kernel in WGSL.

    Args:
        function: The kernel, verified and expanded.
        limits: Of the device.

    Raises:
        BackendError: It computes what the device or the language cannot.
    """
    hint = "exclude its nodes from this target, or convert the model to float32 and int32"
    missing = missing_feature(needed_features(function), limits)
    if missing:
        raise BackendError(
            f"kernel {function.name} needs {missing}, which the device does not have",
            backend="webgpu",
            hint=hint,
        )
    if any(
        isinstance(item, ir.Binary) and item.name == "rem" and item.left.type.dtype == "float64"
        for item in ir.walk(function.body)
    ):
        raise BackendError(
            f"kernel {function.name} needs a remainder of float64, which WGSL does not have",
            backend="webgpu",
            hint=hint,
        )
    return _Wgsl(_ready(function), limits).kernel()


def uniform_row(numbers: Sequence[Any]) -> list[Any]:
    """Return the content of a call's uniform: its numbers in whole entries, and one of zeros."""
    return [*numbers, *(0 for _ in range(-len(numbers) % _UNIFORM_LANES + _UNIFORM_LANES))]


def join_modules(modules: Sequence[str]) -> str:
    """Return the modules of a program as one text."""
    return _BETWEEN.join(modules)


def split_modules(source: str) -> list[str]:
    """Return the modules of a program, of what `join_modules` made of them."""
    return source.split(_BETWEEN) if source else []


def workgroups(turns: int, sharing: int) -> tuple[int, int, int]:
    """Return a dispatch.

    Args:
        turns: Groups of turns: `DeviceKernel.global_size` over `local_size`.
        sharing: Groups that share turns.
    """
    rows = min(turns, MOST_GROUPS)
    return sharing, rows, -(-turns // rows)


def _ready(function: ir.Function) -> ir.Function:
    return narrow(prune(function))


class _Wgsl(DeviceFamily):
    integer = "i32"
    reserved = frozenset(("special", "remainder", "numbers"))
    wide: Mapping[int, text.WgslSpelling] = {
        width: text.WgslSpelling(width) for width in text.WIDTHS
    }

    def __init__(self, function: ir.Function, limits: DeviceLimits) -> None:
        super().__init__(function, limits)
        self._zeros = self._hidden = 0
        self._uses_remainder = any(
            isinstance(item, ir.Binary) and item.name == "rem" and item.left.type.is_float
            for item in ir.walk(function.body)
        )

    def _buffer_name(self, hint: str) -> str:
        # WGSL keeps hundreds of words; none ends so.
        return super()._buffer_name(f"{hint}_b")

    group = "group"
    item_of_group = "i32(local.x)"

    @property
    def turn(self) -> str:  # type: ignore[override]
        if self.plan.items > 1:
            return "group"
        return f"group * {self.group_size} + i32(local.x)"

    def kernel(self) -> DeviceKernel:
        function = self.function
        declared = [
            f"@group(0) @binding({number}) var<storage, read_write> "
            f"{self.buffers[buffer]}: array<{self._element(buffer)}>;"
            for number, buffer in enumerate(function.buffers)
        ]
        numbers = [f"{self.buffers[buffer]}_at" for buffer in function.buffers]
        numbers += [name for size in function.sizes for name in self.names[size]]
        entries = len(uniform_row(numbers)) // _UNIFORM_LANES
        declared.append(
            f"@group(0) @binding({len(function.buffers)}) var<uniform> numbers: "
            f"array<vec4<i32>, {entries}>;"
        )
        self._zeros = entries - 1
        for position, name in enumerate(numbers):
            place = f"numbers[{position // _UNIFORM_LANES}].{'xyzw'[position % _UNIFORM_LANES]}"
            self.variable("i32", name, place)
        is_shared = self.plan.items > 1
        for buffer in function.locals:
            array = f"{self.buffers[buffer]}: array<{self._element(buffer)}, {buffer.span}>;"
            if is_shared or buffer.scope is ir.Scope.SHARED:
                declared.append(f"var<workgroup> {array}")
            else:
                self.line(f"var {array}")
        self.line("let group = i32(place.y + place.z * count.y);")
        width = function.work_items or (self.sharing if is_shared else self.group_size)
        if is_shared:
            self.line(f"let item = i32(place.x) * {width} + i32(local.x);")
            self.line(f"let items = i32(count.x) * {width};")
        if function.parallel is None and function.grid is None:
            self.open(f"if ({self.turn} == 0)")
            self.body(function.body)
            self.close()
        else:
            self.body(function.body)
        declared += [
            f"var<workgroup> {name}: array<{type_}, {self.meeting}>;"
            for type_, name in self.meeting_places.items()
        ]
        declared.append(text.SPECIAL)
        if self._uses_remainder:
            declared.append(text.EXACT_REMAINDER)
        head = (
            f"@compute @workgroup_size({width})\nfn {function.name}(\n"
            "    @builtin(local_invocation_id) local: vec3<u32>,\n"
            "    @builtin(workgroup_id) place: vec3<u32>,\n"
            "    @builtin(num_workgroups) count: vec3<u32>,\n) {"
        )
        enabled = ["enable f16;"] if "float16" in dtypes_of(function) else []
        notes = [f"// {note}" for note in function.notes]
        return self.made("\n".join((*enabled, *notes, *declared, head, *self.lines, "}", "")))

    # Variables

    def constant(self, operation: ir.Constant) -> None:
        """Take a number as a value; one that is added and taken away again is not known early.

        A compiler may add up in another order, and of `x + magic - magic`, by which kernels round,
        nothing would be left. So each that is as large as such a `magic` is made of its bits and
        another 0 that the host sends.
        """
        type_, number = operation.result.type, operation.value
        form = FORMATS.get(type_.dtype)
        if form is None or not form.magic <= number < 2 * form.magic:
            super().constant(operation)
            return
        self._hidden += 1
        # No two alike, or a compiler would see that what is taken away is what was added.
        zero = f"numbers[{self._zeros}].x * {self._hidden}"
        element = text.ELEMENTS[type_.dtype]
        bits = int(np.array(number, type_.dtype).view(form.bits))
        word, suffix = ("i32", "i") if element == "f32" else ("i64", "li")
        name = self.fresh()
        self.variable(element, name, f"bitcast<{element}>({bits}{suffix} ^ {word}({zero}))")
        self.keep_scalar(operation.result, name)

    def variable(self, type_: str, name: str, expression: str, *, is_const: bool = True) -> None:
        self.line(f"{'let' if is_const else 'var'} {name}: {type_} = {expression};")

    def head(self, name: str, lower: str, upper: str, step: str) -> str:
        return f"for (var {name}: i32 = {lower}; {name} < {upper}; {name} += {step})"

    def item_bytes(self, dtype: str) -> int:
        size = np.dtype(dtype).itemsize
        return size if dtype == "float16" else max(size, 4)

    # Memory

    def _packed(self, buffer: ir.Buffer) -> int:
        """Return how many elements of a buffer lie in a word."""
        is_own = buffer.scope is not ir.Scope.GLOBAL
        return 1 if is_own or buffer.dtype == "float16" else max(1, 4 // buffer.item_bytes)

    def _element(self, buffer: ir.Buffer) -> str:
        if self._packed(buffer) == 1:
            return text.ELEMENTS[buffer.dtype]
        return "atomic<u32>" if buffer.is_written else "u32"

    def offset(self, access: ir.Load | ir.Store, lane: int = 0) -> str:
        place = super().offset(access, lane)
        if access.buffer.scope is not ir.Scope.GLOBAL:
            return place
        start = f"{self.buffers[access.buffer]}_at"
        return start if place == "0" else f"{start} + {place}"

    def loaded(self, load: ir.Load, first: int, width: int) -> str:
        dtype = load.buffer.dtype
        if width > 1 and load.stride == 0 and first + width <= load.count:
            return self.wide[width].repeated(self._read(load, 0), dtype)
        lanes = [
            self._read(load, lane) if lane < load.count else text.literal(0, dtype)
            for lane in range(first, first + width)
        ]
        return lanes[0] if width == 1 else self.wide[width].joined(lanes, dtype)

    def _read(self, load: ir.Load, lane: int) -> str:
        buffer, place = load.buffer, self.offset(load, lane)
        packed = self._packed(buffer)
        if packed == 1:
            return f"{self.buffers[buffer]}[{place}]"
        word, shift = self._word(buffer, place)
        word = f"atomicLoad(&{word})" if buffer.is_written else word
        bits = text.WORD_BITS // packed
        if buffer.dtype.startswith("int"):
            return f"extractBits(bitcast<i32>({word}), {shift}, {bits}u)"
        number = f"extractBits({word}, {shift}, {bits}u)"
        return f"{number} != 0u" if buffer.dtype == "bool" else number

    def _word(self, buffer: ir.Buffer, place: str) -> tuple[str, str]:
        """Return the word that an element lies in, and how many bits lie before it."""
        packed = self._packed(buffer)
        at, name = self.fresh(), self.buffers[buffer]
        self.variable("u32", at, f"u32({place})")
        bits = text.WORD_BITS // packed
        return f"{name}[{at} / {packed}u]", f"({at} % {packed}u) * {bits}u"

    def write(self, store: ir.Store, first: int, width: int, value: str) -> None:
        buffer, dtype = store.buffer, store.buffer.dtype
        source = ir.IrValue(ir.Type(dtype, width))
        if width > 1:
            self.declare(source, [value])
        for lane in range(width):
            scalar = self.lane(source, lane) if width > 1 else value
            place = self.offset(store, first + lane)
            if self._packed(buffer) == 1:
                self.line(f"{self.buffers[buffer]}[{place}] = {scalar};")
                continue
            word, shift = self._word(buffer, place)
            mask = f"{(1 << text.WORD_BITS // self._packed(buffer)) - 1}u"
            bits = f"u32({scalar}) & {mask}" if dtype != "bool" else f"select(0u, 1u, {scalar})"
            # Neighbours in the word are other work-items': each changes its own bits alone.
            self.line(f"atomicAnd(&{word}, ~({mask} << ({shift})));")
            self.line(f"atomicOr(&{word}, ({bits}) << ({shift}));")

    # What the dialect says

    def wait(self) -> None:
        self.line("storageBarrier();")
        self.line("workgroupBarrier();")

    def literal(self, value: float, dtype: str) -> str:
        name = self.fresh()
        self.variable(text.ELEMENTS[dtype], name, text.literal(value, dtype))
        return name

    def picked(self, name: str, lanes: Sequence[int]) -> str:
        return f"{name}.{''.join('xyzw'[lane] for lane in lanes)}"
