# SPDX-License-Identifier: Apache-2.0
"""Kernels that compute in float32, and whose arguments hold float16 or bfloat16.

No kernel is written for halves: one of float32 is rewritten, so that what it reads is widened in
registers and what it writes is rounded to nearest, ties to even. What is copied keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.codegen import ir
from intarsia.codegen.builder import Builder
from intarsia.codegen.scalar_ops.conversion import half_bits, half_to_float
from intarsia.codegen.scalar_ops.narrow import BFLOAT16, float_to_narrow, narrow_to_float
from intarsia.graph.arena import aligned_bytes

HALVES = ("float16", "bfloat16")
"""The dtypes, by the names of numpy and ml_dtypes."""

SINGLE = "float32"
"""What is computed in."""


def rounded(array: Array, dtype: str) -> Array:
    """Return numbers as halves, to nearest, at an address that kernels take."""
    block = aligned_bytes(array.size * np_dtype(dtype).itemsize)
    result = block.view(np_dtype(dtype)).reshape(array.shape)
    result[...] = array
    return result


def reads_back(function: ir.Function) -> frozenset[int]:
    """Return the numbers of the arguments that a kernel both writes and reads."""
    read = {item.buffer for item in ir.walk(function.body) if isinstance(item, ir.Load)}
    return frozenset(
        number
        for number, buffer in enumerate(function.buffers)
        if buffer.is_written and buffer in read
    )


def with_halves(function: ir.Function, halves: Sequence[str], *, has_half: bool) -> ir.Function:
    """Return a kernel whose arguments hold halves.

    Args:
        function: A kernel that has these arguments as float32.
        halves: What each argument holds: one of `HALVES`, or nothing to leave it.
        has_half: Whether the target converts float16; if not, integer operations do.
    """
    if not any(halves):
        return function
    rewriter = _Rewriter(has_half)
    buffers = []
    for buffer, half in zip(function.buffers, halves, strict=True):
        if half:
            assert buffer.dtype == SINGLE, f"{buffer.name} is {buffer.dtype}"
            rewriter.kept[buffer] = half, _narrowed(buffer, rewriter.element(half))
        buffers.append(rewriter.kept[buffer][1] if half else buffer)
    return replace(function, buffers=tuple(buffers), body=rewriter.rewrite(function.body))


def _narrowed(buffer: ir.Buffer, dtype: str) -> ir.Buffer:
    return replace(buffer, dtype=dtype, align=max(buffer.align, np.dtype(dtype).itemsize))


@dataclass(slots=True)
class _Rewriter:
    """Rewrites what reads and writes some buffers.

    Attributes:
        has_half: Whether the target converts float16.
        kept: What a buffer holds, and the buffer that takes its place.
        read: Of values that were read as halves: what they are, and the half itself.
    """

    has_half: bool
    kept: dict[ir.Buffer, tuple[str, ir.Buffer]] = field(default_factory=dict)
    read: dict[ir.IrValue, tuple[str, ir.IrValue]] = field(default_factory=dict)

    def element(self, half: str) -> str:
        """Return the dtype of halves in memory, as kernels know it."""
        return half if half == "float16" and self.has_half else "uint16"

    def rewrite(self, body: tuple[ir.Operation, ...]) -> tuple[ir.Operation, ...]:
        """Return a body in which buffers hold halves."""
        out: list[ir.Operation] = []
        for item in body:
            match item:
                case ir.Loop():
                    out.append(replace(item, body=self.rewrite(item.body)))
                case ir.Load(buffer=buffer) if buffer in self.kept:
                    out += self._load(item)
                case ir.Store(buffer=buffer) if buffer in self.kept:
                    out += self._store(item)
                case ir.Prefetch(buffer=buffer) if buffer in self.kept:
                    out.append(replace(item, buffer=self.kept[buffer][1]))
                case _:
                    out.append(item)
        return tuple(out)

    def _load(self, load: ir.Load) -> Iterator[ir.Operation]:
        half, buffer = self.kept[load.buffer]
        raw = ir.IrValue(load.result.type.with_dtype(buffer.dtype))
        self.read[load.result] = half, raw
        yield replace(load, result=raw, buffer=buffer)
        *steps, last = _steps(lambda b: self._widen(b, half, raw))
        yield from steps
        yield replace(last, result=load.result)  # type: ignore[arg-type] # each yields

    def _store(self, store: ir.Store) -> Iterator[ir.Operation]:
        half, buffer = self.kept[store.buffer]
        source, value = self.read.get(store.value, ("", store.value))
        if source != half:  # else it is copied
            steps = _steps(lambda b: self._narrow(b, half, store.value))
            yield from steps
            (value,) = ir.results(steps[-1])
        yield replace(store, value=value, buffer=buffer)

    def _widen(self, b: Builder, half: str, raw: ir.IrValue) -> ir.IrValue:
        if half == "bfloat16":
            return narrow_to_float(b, raw, BFLOAT16)
        return b.cast(raw, SINGLE) if self.has_half else half_to_float(b, raw)

    def _narrow(self, b: Builder, half: str, value: ir.IrValue) -> ir.IrValue:
        if half == "bfloat16":
            return float_to_narrow(b, value, BFLOAT16, saturates=False)
        return b.cast(value, half) if self.has_half else half_bits(b, value)


def _steps(append: Callable[[Builder], ir.IrValue]) -> tuple[ir.Operation, ...]:
    """Return the operations that a function appends."""
    b = Builder("steps")
    append(b)
    return b.finish().body
