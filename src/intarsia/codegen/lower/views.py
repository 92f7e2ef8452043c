# SPDX-License-Identifier: Apache-2.0
"""How the tensors of a program lie in memory.

A tensor is *plain* (any strides over its dimensions) or *blocked*: `[N][C/L][...][L]`, channels in
blocks of as many as a vector has lanes, the last block filled up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from intarsia.codegen.body import Layout
from intarsia.codegen.ir import row_major
from intarsia.extents import Size, UndecidedError, common_divisor, divide, is_free
from intarsia.graph.graph import item_bytes

CHANNELS = 1
"""The dimension of the channels."""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor, or a part of one, in one storage.

    Attributes:
        storage: Number of the storage in its program.
        dtype: Of the elements, by numpy's name.
        shape: The tensor's dimensions as ONNX sees them.
        strides: Elements for each dimension of `domain`.
        offset: Elements from the start of the storage to the first one.
        block: Channels of a block, or 0 for a plain tensor.
        align: Bytes to which the storage is aligned; the caller's may be to one element only.
        half: What memory keeps, if that is halves; they are float32 to kernels.
    """

    storage: int
    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0
    block: int = 0
    align: int = 64
    half: str = ""

    @property
    def item_bytes(self) -> int:
        """Bytes of an element in memory."""
        return item_bytes(self.half or self.dtype)

    @property
    def domain(self) -> tuple[Size, ...]:
        """The extents that kernels run over: of a blocked tensor one more than its dimensions."""
        return domain_of(self.shape, self.block)

    @property
    def lowest(self) -> Size:
        """The entry that lies lowest in memory: the first one, unless a stride is negative."""
        steps = zip(self.domain, self.strides, strict=True)
        backwards = [(extent - 1) * stride for extent, stride in steps if stride < 0]
        return sum(backwards, self.offset)

    @property
    def layout(self) -> Layout:
        """What kernels need to know of it."""
        start = self.lowest * self.item_bytes
        return Layout(self.dtype, self.strides, common_divisor(self.align, start))

    @property
    def is_dense(self) -> bool:
        """Whether a plain tensor is row-major without gaps."""
        wanted = row_major(self.shape)
        return not self.block and all(
            stride == want or extent == 1
            for extent, stride, want in zip(self.shape, self.strides, wanted, strict=True)
        )

    def at(self, starts: Sequence[Size]) -> View:
        """Return the view that starts at an entry of the domain."""
        steps = [start * stride for start, stride in zip(starts, self.strides, strict=True)]
        return replace(self, offset=sum(steps, self.offset))

    def part(self, dim: int, start: Size, size: Size, step: int = 1) -> View:
        """Return a slice along one of the tensor's dimensions; blocked channels by whole blocks."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        starts = [0] * len(self.strides)
        strides = list(self.strides)
        if self.block and dim == CHANNELS:
            assert step == 1
            assert start % self.block == 0, "a slice cuts a block"
            starts[dim] = start // self.block
        else:
            starts[dim] = start
            strides[dim] *= step
        return replace(self.at(starts), shape=shape, strides=tuple(strides))

    def reshaped(self, shape: Sequence[Size]) -> View:
        """Return a dense tensor under another shape.

        Raises:
            UndecidedError: Whether that has as many entries depends on the sizes.
        """
        assert self.is_dense
        given, wanted = prod(self.shape), prod(shape)
        if given != wanted and is_free((given, wanted)):
            raise UndecidedError(f"{given} entries as {wanted}")
        assert given == wanted
        return replace(self, shape=tuple(shape), strides=row_major(tuple(shape)))

    def viewed_as(self, shape: Sequence[Size]) -> View | None:
        """Return a plain tensor under another shape where strides allow that, else None."""
        if self.block or 0 in self.shape:
            return None
        pairs = [pair for pair in zip(self.shape, self.strides, strict=True) if pair[0] != 1]
        strides: list[Size] = []
        part: Size = 1  # what is left of dimensions that lie as one
        step: Size = 0  # the stride in them
        for extent in reversed(shape):
            while extent != 1 and divide(part, extent) is None and pairs:
                outer, stride = pairs.pop()
                if part != 1 and stride != step * part:
                    return None
                part, step = (outer, stride) if part == 1 else (part * outer, step)
            rest = divide(part, extent)
            if rest is None:
                return None
            strides.append(step if extent != 1 else 0)
            part = rest
            step *= extent
        return replace(self, shape=tuple(shape), strides=tuple(reversed(strides)))

    def reshaped_to_rank(self, rank: int) -> View:
        """Return a plain tensor with dimensions of 1 in front."""
        missing = rank - len(self.shape)
        shape, strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        return replace(self, shape=shape, strides=strides)

    def unsqueezed(self, axis: int) -> View:
        """Return a plain tensor with one more dimension, of 1; negative axes count from the end."""
        at = axis % (len(self.shape) + 1)
        shape = (*self.shape[:at], 1, *self.shape[at:])
        return replace(self, shape=shape, strides=(*self.strides[:at], 0, *self.strides[at:]))

    def as_blocks(self) -> View:
        """Return a plain tensor as blocks of one channel; a blocked one as it is."""
        return self if self.block else replace(self, strides=(*self.strides, 1), block=1)

    def permuted(self, order: Sequence[int]) -> View:
        """Return a plain tensor with its dimensions in another order."""
        shape = tuple(self.shape[dim] for dim in order)
        return replace(self, shape=shape, strides=tuple(self.strides[dim] for dim in order))

    def split(self, dim: int, count: int) -> View:
        """Return a plain tensor with a dimension as `count` equal parts, and what is in one."""
        extent, step = self.shape[dim], self.strides[dim]
        inner = extent // count if count else 0
        shape = (*self.shape[:dim], count, inner, *self.shape[dim + 1 :])
        strides = (*self.strides[:dim], step * inner, step, *self.strides[dim + 1 :])
        return replace(self, shape=shape, strides=strides)

    def expanded(self, shape: Sequence[Size]) -> View:
        """Return a plain tensor broadcast to a shape.

        Raises:
            UndecidedError: Whether it can be depends on the sizes.
        """
        missing = len(shape) - len(self.shape)
        for extent, wanted in zip(self.shape, shape[missing:], strict=True):
            if extent not in (1, wanted) and is_free((extent, wanted)):
                raise UndecidedError(f"whether {extent} is 1 or {wanted} depends on the sizes")
        strides = [0] * missing + [
            0 if extent == 1 else stride
            for extent, stride in zip(self.shape, self.strides, strict=True)
        ]
        return replace(self, shape=tuple(shape), strides=tuple(strides))


def without(view: View, axes: Sequence[int]) -> Layout:
    """Return a layout over the other dimensions of a domain."""
    layout = view.layout
    remaining = tuple(step for dim, step in enumerate(layout.strides) if dim not in axes)
    return replace(layout, strides=remaining)


def domain_of(shape: Sequence[Size], block: int) -> tuple[Size, ...]:
    """Return the extents that a tensor's kernels run over."""
    if not block:
        return tuple(shape)
    return (shape[0], -(-shape[CHANNELS] // block), *shape[2:], block)


def dense_view(
    storage: int,
    dtype: str,
    shape: Sequence[Size],
    block: int = 0,
    pads: Pads | None = None,
    half: str = "",
) -> View:
    """Return a tensor that fills a storage, inside its padding.

    Args:
        storage: Number of the storage.
        dtype: Of the elements.
        shape: The tensor's dimensions.
        block: Channels of a block, or 0 for a plain tensor.
        pads: Border around the spatial dimensions.
        half: What memory keeps, if that is halves.
    """
    outer = padded(shape, pads)
    strides = row_major(domain_of(outer, block))
    view = View(storage, dtype, tuple(outer), strides, 0, block, half=half)
    return inner(view, pads)


Pads = tuple[tuple[int, int], ...]
"""The border before and after each spatial dimension."""


def padded(shape: Sequence[Size], pads: Pads | None) -> tuple[Size, ...]:
    """Return a shape with its border."""
    if pads is None:
        return tuple(shape)
    spatial = zip(shape[2:], pads, strict=True)
    return (*shape[:2], *(before + extent + after for extent, (before, after) in spatial))


def inner(view: View, pads: Pads | None) -> View:
    """Return what lies inside a border."""
    if pads is None:
        return view
    shape = (*view.shape[:2], *(e - sum(pad) for e, pad in zip(view.shape[2:], pads, strict=True)))
    starts = [0, 0, *(before for before, _ in pads)] + [0] * bool(view.block)
    return replace(view.at(starts), shape=shape)


def outer(view: View, pads: Pads) -> View:
    """Return a tensor with a border that lies around it in memory."""
    starts = [0, 0, *(-before for before, _ in pads)] + [0] * bool(view.block)
    return replace(view.at(starts), shape=padded(view.shape, pads))
