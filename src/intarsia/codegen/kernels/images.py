# SPDX-License-Identifier: Apache-2.0
"""What kernels share that work on images, on blocks of channels or on plain memory."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.unit import AVX512, CpuModel


@dataclass(frozen=True, slots=True)
class ImageKernel:
    """A kernel on images, channel by channel.

    Its own domain has a last dimension that vectors go along: the channels of a block, or on plain
    memory the last spatial dimension.

    Attributes:
        batch: Images.
        channels: Of input and output; the last block may be part empty.
        extents: Of the input's spatial dimensions, without padding.
        x: Over (batch, blocks, *extents, block).
        y: Over (batch, blocks, *its extents, block).
        block: Channels of a block; 1 for plain memory.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
    """

    batch: int
    channels: int
    extents: tuple[int, ...]
    x: Layout
    y: Layout
    _: KW_ONLY
    block: int = 1
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512

    @property
    def is_blocked(self) -> bool:
        """Whether it works on blocks of channels."""
        return self.block > 1

    @property
    def blocks(self) -> int:
        """Blocks of channels; the channels themselves for plain memory."""
        return -(-self.channels // self.block)

    def domain(self, extents: tuple[int, ...]) -> tuple[int, ...]:
        """Return the kernel's own domain over images of some extents."""
        tail = (self.block,) if self.is_blocked else ()
        return (self.batch, self.blocks, *extents, *tail)

    def own(self, layout: Layout) -> Layout:
        """Return a layout over the kernel's own domain."""
        return layout if self.is_blocked else layout.without_last()

    @property
    def own_epilogue(self) -> Fused:
        """The epilogue over the kernel's own domain."""
        return self.epilogue.over(map(self.own, self.epilogue.operands))
