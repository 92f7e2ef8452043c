# SPDX-License-Identifier: Apache-2.0
"""What attention is, and the choices of how it is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from intarsia.codegen.body import Layout
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """The choices of a kernel.

    Attributes:
        vectors: Of queries, at most; so wide is a register tile.
        rows: Of a register tile, at most: keys of scores, then entries of values.
        keys: Of a block, whose scores stay in a near cache.
        is_by_keys: Whether lanes are keys, for few queries; then a turn has all of them, and
            `vectors` and `rows` do not count.
        is_far: Whether keys and values come from beyond the second cache, and are asked for ahead.
        tiles: Register tiles of queries of a turn, which a block of keys is read for.
        is_gathered: Whether keys and values of a block are copied together before they are read.
        unroll: Steps of a turn of the innermost loops.
        few: Up to how many queries lanes are keys, where their number is free: a kernel whose lanes
            are keys has turns for no more, one whose lanes are queries only for more. 0 where the
            number is known.
        part: Keys of a part, which has turns of its own, a multiple of `keys`; 0 for all keys in
            one. Only where lanes are keys.
    """

    vectors: int
    rows: int
    keys: int
    is_by_keys: bool = False
    is_far: bool = False
    tiles: int = 1
    is_gathered: bool = False
    unroll: int = 1
    few: int = 0
    part: int = 0


class MaskKind(StrEnum):
    """What a mask does to scores."""

    ADDED = "added"  # float32: the score plus the mask
    KEPT = "kept"  # bool: the score where it is true, else the fill
    DROPPED = "dropped"  # bool: the fill where it is true, else the score


class EmptyRow(StrEnum):
    """What becomes of a query whose scores are all minus infinity."""

    NAN = "nan"  # as step by step
    ZERO = "zero"
    CLEAN = "clean"  # zero, and so is that of a query one of whose scores is NaN


@dataclass(frozen=True, slots=True)
class Mask:
    """Which scores count.

    Attributes:
        layout: Over (*batch, queries, keys); strides of 0 where it is broadcast.
        kind: What it does.
        fill: The score of what a mask of bool leaves out.
    """

    layout: Layout
    kind: MaskKind = MaskKind.ADDED
    fill: float = -math.inf


@dataclass(frozen=True, slots=True)
class Attention:
    """`y = softmax(masked(cap(scale * q @ k.T))) @ v` for every item of a batch, in float32.

    Attributes:
        queries: Rows of q and y; they, the keys and the batch may be free.
        keys: Rows of k and v.
        key_size: Columns of q and k.
        value_size: Columns of v and y.
        q: Over (*batch, queries, key_size).
        k: Over (*batch, keys, key_size).
        v: Over (*batch, keys, value_size).
        y: Over (*batch, queries, value_size).
        batch: Extents in front: items, heads.
        scale: Factor of the scores.
        cap: Scores become `cap * tanh(score / cap)`; 0 for no cap.
        masks: Applied in order.
        lengths: Of the keys of each item that count, int32 or int64 over batch; None for all keys.
        last: Query i sees the keys up to `i + last`; None for all. With `lengths` the last query
            sees the last key that counts, and `last` more.
        first: Query i sees the keys from `i + first` on; None for all. With `lengths` as `last`.
        empty: What becomes of queries that see nothing.
        unit: What it is shaped for.
        schedule: How; None leaves it to the heuristic.
        is_tiled: Whether both products are of tiles of bfloat16, where lanes are queries.
    """

    queries: Size
    keys: Size
    key_size: int
    value_size: int
    q: Layout
    k: Layout
    v: Layout
    y: Layout
    batch: tuple[Size, ...] = ()
    scale: float = 1.0
    cap: float = 0.0
    masks: tuple[Mask, ...] = ()
    lengths: Layout | None = None
    last: int | None = None
    first: int | None = None
    empty: EmptyRow = EmptyRow.NAN
    unit: CpuModel = AVX512
    schedule: AttentionSchedule | None = None
    is_tiled: bool = False

    def __post_init__(self) -> None:
        """Check what the kernel relies on."""
        rank = len(self.batch) + 2
        layouts = (self.q, self.k, self.v, self.y, *(mask.layout for mask in self.masks))
        assert all(len(item.strides) == rank for item in layouts), f"layouts of rank {rank}"
        assert self.key_size > 0, "scores of nothing"

    @property
    def items(self) -> Size:
        """Attentions of the same shape."""
        return math.prod(self.batch)


def flops(spec: Attention) -> Size:
    """Return the additions and multiplications of both products."""
    return 2 * spec.items * spec.queries * spec.keys * (spec.key_size + spec.value_size)
