# SPDX-License-Identifier: Apache-2.0
"""Kernels that compute in float32, and whose arguments hold float16 or bfloat16.

No kernel is written for halves: one of float32 is rewritten, so that what it reads is widened in
registers and what it writes is rounded to nearest, ties to even. What is copied keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True, slots=True)
class Half:
    """How numbers that a kernel has as float32 are kept in memory.

    Attributes:
        dtype: One of `HALVES`, to which what is written is rounded.
        is_wide: Whether memory holds float32 all the same: numbers that are read many times are
            not worth widening each time.
    """

    dtype: str
    is_wide: bool = False

    @property
    def item_bytes(self) -> int:
        """Bytes of an element in memory."""
        return np.dtype(SINGLE if self.is_wide else "uint16").itemsize


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


def with_halves(
    function: ir.Function, halves: Sequence[Half | None], *, has_half: bool
) -> ir.Function:
    """Return a kernel whose arguments hold halves.

    Args:
        function: A kernel that has these arguments as float32.
        halves: What each argument holds; None to leave it.
        has_half: Whether the target converts float16; if not, integer operations do.
    """
    rewriter = _Rewriter(has_half)
    buffers = []
    for buffer, half in zip(function.buffers, halves, strict=True):
        if half is None or (half.is_wide and not buffer.is_written):
            buffers.append(buffer)
            continue
        assert buffer.dtype == SINGLE, f"{buffer.name} is {buffer.dtype}"
        kept = buffer if half.is_wide else _narrowed(buffer, rewriter.element(half))
        rewriter.kept[buffer] = half, kept
        buffers.append(kept)
    if not rewriter.kept:
        return function
    return replace(function, buffers=tuple(buffers), body=rewriter.rewrite(function.body))


def _narrowed(buffer: ir.Buffer, dtype: str) -> ir.Buffer:
    return replace(buffer, dtype=dtype, align=max(buffer.align, np.dtype(dtype).itemsize))


@dataclass(slots=True)
class _Rewriter:
    """Rewrites what reads and writes some buffers.

    Attributes:
        has_half: Whether the target converts float16.
        kept: What a buffer holds, and the buffer that takes its place.
        read: Of values that were read as halves: what they hold, and the half itself.
    """

    has_half: bool
    kept: dict[ir.Buffer, tuple[Half, ir.Buffer]] = field(default_factory=dict)
    read: dict[ir.IrValue, tuple[Half, ir.IrValue]] = field(default_factory=dict)

    def element(self, half: Half) -> str:
        """Return the dtype of halves in memory, as kernels know it."""
        return "float16" if half.dtype == "float16" and self.has_half else "uint16"

    def rewrite(self, body: tuple[ir.Operation, ...]) -> tuple[ir.Operation, ...]:
        """Return a body in which buffers hold halves."""
        out: list[ir.Operation] = []
        for item in body:
            match item:
                case ir.Loop():
                    out.append(replace(item, body=self.rewrite(item.body)))
                case ir.Load(buffer=buffer) if buffer in self.kept:
                    self._load(item, out)
                case ir.Store(buffer=buffer) if buffer in self.kept:
                    self._store(item, out)
                case ir.Prefetch(buffer=buffer) if buffer in self.kept:
                    out.append(replace(item, buffer=self.kept[buffer][1]))
                case _:
                    out.append(item)
        return tuple(out)

    def _load(self, load: ir.Load, out: list[ir.Operation]) -> None:
        half, buffer = self.kept[load.buffer]
        if half.is_wide:
            out.append(load)
            return
        raw = ir.IrValue(load.result.type.with_dtype(buffer.dtype))
        out.append(replace(load, result=raw, buffer=buffer))
        self.read[load.result] = half, raw
        *steps, last = _steps(lambda b: self._widen(b, half, raw))
        out += [*steps, replace(last, result=load.result)]  # type: ignore[call-arg]

    def _store(self, store: ir.Store, out: list[ir.Operation]) -> None:
        half, buffer = self.kept[store.buffer]
        source, raw = self.read.get(store.value, (None, store.value))
        is_copied = source == half
        if half.is_wide:
            # What is a half already needs no rounding.
            if source is None or source.dtype != half.dtype:
                store = self._converted(store, half, out, is_wide=True)
        elif is_copied:
            store = replace(store, value=raw)
        else:
            store = self._converted(store, half, out, is_wide=False)
        out.append(replace(store, buffer=buffer))

    def _converted(
        self, store: ir.Store, half: Half, out: list[ir.Operation], *, is_wide: bool
    ) -> ir.Store:
        """Return a store of what is rounded to halves, after the steps that this takes."""

        def steps(b: Builder) -> ir.IrValue:
            rounded = self._narrow(b, half, store.value)
            return self._widen(b, half, rounded) if is_wide else rounded

        operations = _steps(steps)
        out += operations
        return replace(store, value=operations[-1].result)  # type: ignore[union-attr]

    def _widen(self, b: Builder, half: Half, raw: ir.IrValue) -> ir.IrValue:
        if half.dtype == "bfloat16":
            return narrow_to_float(b, raw, BFLOAT16)
        return b.cast(raw, SINGLE) if self.has_half else half_to_float(b, raw)

    def _narrow(self, b: Builder, half: Half, value: ir.IrValue) -> ir.IrValue:
        if half.dtype == "bfloat16":
            return float_to_narrow(b, value, BFLOAT16, saturates=False)
        if self.has_half:
            return b.cast(value, "float16")
        return half_bits(b, value)


def _steps(append: Callable[[Builder], ir.IrValue]) -> tuple[ir.Operation, ...]:
    """Return the operations that a function appends."""
    b = Builder("steps")
    append(b)
    return b.finish().body
