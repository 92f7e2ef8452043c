# SPDX-License-Identifier: Apache-2.0
"""What a product of tiles is: a convolution or a matrix product of bfloat16 or codes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from intarsia.codegen.body import NOTHING, Fused, Layout
from intarsia.codegen.ir import DOT_GROUPS, DOT_SUMS, TILE_BYTES, TILE_ROWS
from intarsia.codegen.kernels.tile_rows import NARROW_ROW, row_of
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size, is_free, typical

_TURN_WORK = 1 << 22
"""Products of a turn, at least: some microseconds."""
_MOST_TURNS = 64
_FAR_PART = 8
"""The part of the second cache that weights may fill and be found there in the next run."""


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps of a window along one dimension: how many, and elements of the input between them."""

    count: int = 1
    stride: int = 0


@dataclass(frozen=True, slots=True)
class TileProduct:
    """`y[n, :, r, c] = epilogue(bias + sum of w[:, i, s, t] * x[n, i, r, c, s, t])`.

    The input is as `TileRows` writes it: rows of 32 channels, of codes of 64. Few channels of codes
    lie side by side with those of the next columns: all taps along a row are then the channels of
    one. A matrix product has its rows as positions `c` and its columns as output channels, which
    lie in blocks of 16 in either case.

    Attributes:
        batch: Images.
        in_channels: A multiple of those of a row.
        out_channels: Any number.
        rows: Of positions.
        columns: Positions of a row; they may be free where there is one row.
        x_strides: Elements of the input from an image, from a row's channels, from a row and from
            a column of positions to the next.
        x_size: Elements of the input's memory; behind what is meant there are as many as the
            positions of a tile, less one, which may hold anything.
        taps: Along rows and columns.
        y: Over images, blocks of 16 output channels, rows, columns, channels of a block.
        bias: Whether there is one, for whole blocks.
        is_cut: Whether the last block ends with the last channel in memory.
        epilogue: Over the domain of y.
        unit: What it is shaped for.
        x_dtype: Of the input.
        w_dtype: Of the weights.
        narrow: Where results are written as bfloat16 too, for products of tiles to read: over
            images, 32 channels, rows, columns, channels; None for nowhere.
        is_kept: Whether y is written.
        has_own: Whether each image has weights of its own, one after the other.
    """

    batch: Size
    in_channels: int
    out_channels: int
    rows: int
    columns: Size
    x_strides: tuple[Size, Size, int, int]
    x_size: Size
    taps: tuple[Taps, Taps]
    y: Layout
    bias: bool = False
    is_cut: bool = False
    epilogue: Fused = NOTHING
    unit: CpuModel = AVX512
    x_dtype: str = "uint16"
    w_dtype: str = "uint16"
    narrow: Layout | None = None
    is_kept: bool = True
    has_own: bool = False

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        assert self.in_channels % self.row == 0, f"{self.in_channels} channels"
        assert not self.bias or self.sum_dtype == "float32", "codes have their bias in the epilogue"
        assert self.rows == 1 or not is_free((self.columns,)), "several rows of free length"
        assert len(self.y.strides) == len(self.domain), f"{self.y}"
        assert self.is_kept or self.narrow is not None, "nothing is written"
        assert not self.has_own or not is_free((self.batch,)), "free numbers of weights"
        is_whole = self.out_channels % NARROW_ROW == 0
        assert self.narrow is None or is_whole, f"{self.out_channels} channels"

    @property
    def row(self) -> int:
        """Channels of a row of a tile."""
        return row_of(self.x_dtype)

    @property
    def group(self) -> int:
        """Channels that lie side by side for each output channel."""
        return DOT_GROUPS[self.x_dtype]

    @property
    def sum_dtype(self) -> str:
        """What products are summed in: the first input of the epilogue."""
        return DOT_SUMS[self.x_dtype]

    @property
    def blocks(self) -> int:
        """Blocks of output channels."""
        return -(-self.out_channels // TILE_ROWS)

    @property
    def weights(self) -> int:
        """Packed weights that all images share, or of one that has its own."""
        return self.blocks * self.steps * TILE_ROWS * self.row

    @property
    def domain(self) -> tuple[Size, ...]:
        """The extents of y."""
        return (self.batch, self.blocks, self.rows, self.columns, TILE_ROWS)

    @property
    def steps(self) -> int:
        """Tiles that are summed."""
        return self.in_channels // self.row * math.prod(taps.count for taps in self.taps)

    @property
    def pitch(self) -> int:
        """Positions from a row to the next if rows are read on through what is between; else 0."""
        _, _, by_row, by_column = self.x_strides
        return by_row // by_column if by_column and by_row % by_column == 0 else 0

    @property
    def is_flat(self) -> bool:
        """Whether tiles go on from row to row, through positions of no use between them."""
        if self.rows == 1 or not self.pitch or is_free((self.columns,)):
            return False
        assert isinstance(self.columns, int)
        flat = -(-((self.rows - 1) * self.pitch + self.columns) // TILE_ROWS)
        return flat < self.rows * -(-self.columns // TILE_ROWS)


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """How a product is cut.

    Attributes:
        lines: Rows of positions that tiles do not leave: 1 where they go on from row to row.
        length: Positions of such a line.
        positions: Tiles of positions of a turn, at most.
        pairs: Pairs of blocks of output channels of a turn, at most.
        prefetch: Cache lines of the next pair's weights that are asked for in each step.
    """

    lines: int
    length: Size
    positions: int
    pairs: int
    prefetch: int = 0


def schedule(spec: TileProduct) -> TileSchedule:
    """Return how a product is cut."""
    lines, length = spec.rows, spec.columns
    if spec.is_flat:
        lines, length = 1, (spec.rows - 1) * spec.pitch + spec.columns
    tiles = lines * -(-typical(length) // TILE_ROWS)
    pairs = -(-spec.blocks // 2)
    row_bytes = TILE_ROWS * spec.in_channels * TILE_BYTES // spec.row
    # What of the input is read for each pair stays in the second cache.
    most = max(2, spec.unit.l2_bytes // 2 // row_bytes // 2 * 2)
    positions = min(tiles, most)
    images = typical(spec.batch)
    work = images * tiles * TILE_ROWS * spec.blocks * TILE_ROWS * spec.steps * spec.row
    wanted = min(_MOST_TURNS, max(1, work // _TURN_WORK))
    have = images * -(-tiles // positions)
    x_bytes, w_bytes = tiles * row_bytes, pairs * 2 * spec.steps * TILE_ROWS * TILE_BYTES
    # Each turn reads its part of one operand and all of the other, so what is larger is cut.
    shares = 1
    if have < wanted:
        if w_bytes > x_bytes:
            shares = min(pairs, -(-wanted // have))
        else:
            positions = max(2, positions // (-(-wanted // have)) // 2 * 2)
    # Weights that the second cache does not keep from run to run come while those before are read.
    is_far = w_bytes > spec.unit.l2_bytes // _FAR_PART and not spec.has_own
    prefetch = -(-2 * TILE_ROWS // -(-min(positions, tiles) // 2)) if is_far else 0
    return TileSchedule(lines, length, positions, -(-pairs // shares), prefetch)
