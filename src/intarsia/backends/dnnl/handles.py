# SPDX-License-Identifier: Apache-2.0
"""What the library makes, each thing owned by one Python object that destroys it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from functools import cache, cached_property
from math import prod
from typing import Any

from intarsia.backends.dnnl.library import OneDnn, StatusError
from intarsia.backends.dnnl.program import Scaling
from intarsia.backends.dnnl.words import (
    BLOCKED,
    FORMAT_ANY,
    SCRATCHPAD_USER,
    DataType,
    FpMath,
    Query,
)

_IMAGE_RANKS = (3, 4, 5)
_MOST_TAGS = 700
"""Where the search ends. oneDNN 3.2 has 761 numbers, those in blocks of channels up to 142."""


class Handle:
    """One thing of the library's; it is destroyed with this object."""

    def __init__(self, library: OneDnn, kind: str, pointer: int) -> None:
        self.library = library
        self.pointer = pointer
        destroy = getattr(library.functions, f"dnnl_{kind}_destroy")
        # At exit the system takes the memory back, in any order.
        weakref.finalize(self, destroy, pointer).atexit = False


def dims_of(numbers: Sequence[int]) -> Any:
    """Return numbers as the library takes dimensions, strides and pads."""
    return (c_int64 * len(numbers))(*numbers)


class MemoryLayout(Handle):
    """A memory descriptor: dimensions, element type, and where which element lies."""

    def __init__(self, library: OneDnn, pointer: int) -> None:
        super().__init__(library, "memory_desc", pointer)

    @classmethod
    def strided(
        cls,
        library: OneDnn,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        dtype: DataType = DataType.F32,
    ) -> MemoryLayout:
        """Return a layout with strides in elements; None means row-major and dense."""
        shape = tuple(shape) or (1,)
        strides = dense_strides(shape) if strides is None else strides
        descriptor = library.make(
            "dnnl_memory_desc_create_with_strides",
            len(shape),
            dims_of(shape),
            dtype,
            dims_of(strides),
        )
        return cls(library, descriptor)

    def of_dtype(self, dtype: DataType) -> MemoryLayout:
        """Return this layout for another element type; a blocked one becomes row-major."""
        if self.dtype == dtype:
            return self
        make = MemoryLayout.channels_last if self.is_channels_last else MemoryLayout.strided
        return make(self.library, self.shape, dtype=dtype)

    @classmethod
    def blocked(
        cls, library: OneDnn, shape: Sequence[int], block: int, dtype: DataType = DataType.F32
    ) -> MemoryLayout | None:
        """Return the layout in blocks of channels, `nChw16c` for a block of 16.

        Its tag is looked for among all: their numbers are not the same in all versions.
        """
        tag = _blocked_tag(library, len(shape), block)
        if tag is None:
            return None
        descriptor = library.make(
            "dnnl_memory_desc_create_with_tag", len(shape), dims_of(shape), dtype, tag
        )
        return cls(library, descriptor)

    def blocking(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the strides, and the blocks and their dimensions, outermost first."""
        count = self._number(Query.BLOCK_COUNT)
        strides = self._numbers(Query.STRIDES, len(self.shape))
        blocks = self._numbers(Query.BLOCKS, count)
        return strides, blocks, self._numbers(Query.BLOCK_DIMS, count)

    @cached_property
    def block(self) -> int:
        """The channels of a block where the layout is one in blocks of channels, else 0."""
        if self._number(Query.FORMAT_KIND) != BLOCKED or len(self.shape) not in _IMAGE_RANKS:
            return 0
        _, blocks, block_dims = self.blocking()
        if block_dims != (1,):
            return 0
        (block,) = blocks
        named = MemoryLayout.blocked(self.library, self.shape, block, self.dtype)
        return block if named is not None and self.is_same(named) else 0

    def like(self, shape: Sequence[int]) -> MemoryLayout | None:
        """Return the layout of this kind for another shape: row-major, or in blocks of channels."""
        if self.is_dense and not self.block:
            return MemoryLayout.strided(self.library, shape, None, self.dtype)
        if self.is_channels_last and len(shape) == len(self.shape):
            return MemoryLayout.channels_last(self.library, shape, self.dtype)
        if self.block and shape[1] % self.block == 0:
            return MemoryLayout.blocked(self.library, shape, self.block, self.dtype)
        return None

    def offset_of(self, shape: Sequence[int], begin: Sequence[int]) -> int | None:
        """Return where a part lies, in bytes, if it lies in one piece, else None."""
        whole = self.shape
        cut = [dim for dim in range(len(whole)) if shape[dim] != whole[dim]]
        if not cut:
            return 0
        axis = cut[0]
        if len(cut) > 1 or prod(whole[:axis]) != 1 or self.is_channels_last:
            return None
        if self.block and (axis != 1 or begin[1] % self.block or shape[1] % self.block):
            return None
        if not self.is_dense and not self.block:
            return None
        return begin[axis] * prod(whole[axis + 1 :]) * self.dtype.itemsize

    def part(self, shape: Sequence[int], begin: Sequence[int]) -> MemoryLayout | None:
        """Return a part seen in the memory of the whole, or None if blocks would be cut."""
        try:
            descriptor = self.library.make(
                "dnnl_memory_desc_create_submemory", self.pointer, dims_of(shape), dims_of(begin)
            )
        except StatusError:
            return None
        return MemoryLayout(self.library, descriptor)

    @classmethod
    def any(
        cls, library: OneDnn, shape: Sequence[int], dtype: DataType = DataType.F32
    ) -> MemoryLayout:
        """Return what lets a primitive choose the layout."""
        shape = tuple(shape) or (1,)
        descriptor = library.make(
            "dnnl_memory_desc_create_with_tag", len(shape), dims_of(shape), dtype, FORMAT_ANY
        )
        return cls(library, descriptor)

    @classmethod
    def channels_last(
        cls, library: OneDnn, shape: Sequence[int], dtype: DataType = DataType.F32
    ) -> MemoryLayout:
        """Return the dense layout in which the second dimension is the innermost."""
        inner = dense_strides((*shape[2:], shape[1]))
        strides = (prod(shape[1:]), inner[-1], *inner[:-1])
        return cls.strided(library, shape, strides, dtype)

    @cached_property
    def is_channels_last(self) -> bool:
        """Whether it is that layout, and differs from the row-major one."""
        rank = len(self.shape)
        if rank <= 2 or self.is_dense:  # noqa: PLR2004 - batch and channels
            return False
        return self.is_same(MemoryLayout.channels_last(self.library, self.shape, self.dtype))

    @property
    def nbytes(self) -> int:
        """The bytes of a buffer of this layout, padding included."""
        return int(self.library.functions.dnnl_memory_desc_get_size(self.pointer))

    @cached_property
    def dtype(self) -> DataType:
        """The element type."""
        return DataType(self._number(Query.DATA_TYPE))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self._numbers(Query.DIMS, self._number(Query.RANK))

    def is_same(self, other: MemoryLayout) -> bool:
        """Tell whether two layouts are equal, dimensions and element types included."""
        return bool(self.library.functions.dnnl_memory_desc_equal(self.pointer, other.pointer))

    @cached_property
    def is_dense(self) -> bool:
        """Whether the elements lie in row-major order without gaps, blocked or not.

        Blocks of channels over one pixel, for one, are in the order of the channels.
        """
        shape = self.shape
        if self._numbers(Query.PADDED_DIMS, len(shape)) != shape:
            return False
        if self.nbytes != prod(shape) * self.dtype.itemsize:  # sums of weights lie behind them
            return False
        strides, blocks, block_dims = self.blocking()
        outer = list(shape)
        inner = 1
        for extent, dim in zip(blocks, block_dims, strict=True):
            outer[dim] //= extent
            inner *= extent
        order = sorted((d for d in range(len(shape)) if outer[d] > 1), key=lambda d: -strides[d])
        sequence = [
            *order,
            *(d for d, extent in zip(block_dims, blocks, strict=True) if extent > 1),
        ]
        expected = inner
        for dim in reversed(order):
            if strides[dim] != expected:
                return False
            expected *= outer[dim]
        return sequence == sorted(sequence)

    def permuted(self, order: Sequence[int]) -> MemoryLayout:
        """Return the same memory with its dimensions in another order, as `numpy.transpose`."""
        positions = [0] * len(order)
        for new, old in enumerate(order):
            positions[old] = new
        descriptor = self.library.make(
            "dnnl_memory_desc_permute_axes", self.pointer, (c_int * len(order))(*positions)
        )
        return MemoryLayout(self.library, descriptor)

    def _number(self, what: Query) -> int:
        number = c_int()
        self.library.call("dnnl_memory_desc_query", self.pointer, what, ctypes.byref(number))
        return number.value

    def _numbers(self, what: Query, count: int) -> tuple[int, ...]:
        numbers = POINTER(c_int64)()
        self.library.call("dnnl_memory_desc_query", self.pointer, what, ctypes.byref(numbers))
        return tuple(numbers[:count])


@cache
def _blocked_tag(library: OneDnn, rank: int, block: int) -> int | None:
    """Return the number of the layout in blocks of channels, if the library has it."""
    # Two blocks and different odd extents: no other layout has these strides by chance.
    shape = (1, 2 * block, 3, 5, 7)[:rank]
    inner = prod(shape[2:])
    steps = tuple(block * step for step in dense_strides(shape[2:]))
    for tag in range(FORMAT_ANY + 1, _MOST_TAGS):
        try:
            descriptor = library.make(
                "dnnl_memory_desc_create_with_tag", rank, dims_of(shape), DataType.F32, tag
            )
        except StatusError:  # a number of no layout of this rank
            continue
        if MemoryLayout(library, descriptor).blocking() == (
            (2 * block * inner, block * inner, *steps),
            (block,),
            (1,),
        ):
            return tag
    return None


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major array, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


class Attributes(Handle):
    """How a primitive computes: precision, scratchpad, and what is done to its result."""

    def __init__(self, library: OneDnn, fpmath: FpMath = FpMath.STRICT) -> None:
        super().__init__(library, "primitive_attr", library.make("dnnl_primitive_attr_create"))
        # Ours lies in the arena, in bytes of tensors that are dead at that time; the library's own
        # would be memory beside it, kept as long as the primitive or the thread.
        library.call("dnnl_primitive_attr_set_scratchpad_mode", self.pointer, SCRATCHPAD_USER)
        library.call("dnnl_primitive_attr_set_fpmath_mode", self.pointer, fpmath)
        self._posts = Handle(library, "post_ops", library.make("dnnl_post_ops_create"))

    def scale(self, scaling: Scaling) -> None:
        """Have one of the tensors scaled, or shifted, by numbers that are given when running."""
        what = "zero_points" if scaling.is_zero_point else "scales"
        self.library.call(
            f"dnnl_primitive_attr_set_{what}_mask",
            self.pointer,
            scaling.argument,
            scaling.mask,
        )

    def append_sum(self) -> None:
        """Add what lies in the destination."""
        self.library.call("dnnl_post_ops_append_sum", self._posts.pointer, 1.0, 0, 0)

    def append_eltwise(self, algorithm: int, alpha: float, beta: float) -> None:
        """Apply an elementwise function."""
        self.library.call(
            "dnnl_post_ops_append_eltwise", self._posts.pointer, algorithm, alpha, beta
        )

    def append_binary(self, algorithm: int, operand: MemoryLayout) -> None:
        """Combine with another tensor, which may be broadcast."""
        self.library.call(
            "dnnl_post_ops_append_binary", self._posts.pointer, algorithm, operand.pointer
        )

    def finish(self) -> int:
        """Set what was appended, and return the address for a descriptor to copy."""
        self.library.call("dnnl_primitive_attr_set_post_ops", self.pointer, self._posts.pointer)
        return self.pointer


class Descriptor(Handle):
    """A primitive descriptor: an implementation with its layouts chosen."""

    def __init__(self, library: OneDnn, pointer: int) -> None:
        super().__init__(library, "primitive_desc", pointer)

    def layout(self, what: Query, index: int = 0) -> MemoryLayout:
        """Return a copy of one of its layouts."""
        descriptor = self.library.functions.dnnl_primitive_desc_query_md(self.pointer, what, index)
        return MemoryLayout(self.library, self.library.make("dnnl_memory_desc_clone", descriptor))

    @cached_property
    def scratchpad(self) -> MemoryLayout:
        """The layout of the scratchpad; its size is 0 if none is needed."""
        return self.layout(Query.SCRATCHPAD)

    @cached_property
    def implementation(self) -> str:
        """The library's name for the implementation, such as `jit:avx512_core`."""
        name = c_char_p()
        self.library.call(
            "dnnl_primitive_desc_query",
            self.pointer,
            Query.IMPLEMENTATION,
            0,
            ctypes.byref(name),
        )
        return (name.value or b"").decode()

    @property
    def is_reference(self) -> bool:
        """Whether it is one of the plain loops that the library falls back on."""
        return self.implementation.startswith(("ref", "simple:any"))

    @property
    def is_general(self) -> bool:
        """Whether it is not made for its kind: plain loops, or a general matrix product."""
        return self.is_reference or "gemm:" in self.implementation

    def primitive(self) -> Handle:
        """Return code that can run."""
        primitive = self.library.make("dnnl_primitive_create", self.pointer)
        return Handle(self.library, "primitive", primitive)


def make_memory(layout: MemoryLayout, address: int) -> Handle:
    """Return a memory object over a buffer that someone else owns."""
    library = layout.library
    memory = library.make("dnnl_memory_create", layout.pointer, library.engine, c_void_p(address))
    return Handle(library, "memory", memory)
