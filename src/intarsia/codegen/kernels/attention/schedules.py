# SPDX-License-Identifier: Apache-2.0
"""How attention is cut: picked from shapes and the vector unit, never from the host."""

from __future__ import annotations

from dataclasses import replace

from intarsia.codegen.ir import TILE_ROWS
from intarsia.codegen.kernels.attention.spec import Attention, AttentionSchedule
from intarsia.codegen.kernels.window import Split
from intarsia.codegen.tile import is_long_step, step_cost, tile_rows
from intarsia.extents import Expression, most, typical

_VECTORS = (4, 3, 2, 1)
"""In the order of preference between what is about equal."""
_ABOUT = 1.03
_KEYS = 96
"""Keys of a block: their scores for a turn's queries are some kilobytes. It decides the order of
sums, and so does not depend on the other choices."""
_KEYS_OF_FEW = 128
"""The same where lanes are keys."""
_VECTORS_OF_TILES = 2
"""Of queries, where products are of tiles: two by two take all registers that a CPU has of them."""
_KEYS_OF_TILES = 128
"""Keys of a block then; 64, 96 and 128 took about the same time."""
_QUERIES_OF_TILES = 384
_LEAST_QUERIES_OF_TILES = 128
"""As `_QUERIES` and `_LEAST_QUERIES` then: keys and values of a block are copied for each turn, in
about the time that 32 queries take. With 128 of both (12 heads), turns of all queries take 0.9 of
the time of those of half as many."""
_PART = 512
"""Keys of a part where lanes are keys; it decides the order of sums too."""
_FEW = 2
"""A lane of a query takes about half of what a query takes whose lanes are keys."""
_LOCAL_BYTES = 64 << 10
"""Of the queries, the scores and the sums of a turn together; they lie on a thread's stack."""

_QUERIES = 288
"""Queries that a block of keys is read for, at most. With 8192 keys of 64 entries on Zen 3, this
takes 0.81 of the time of 96."""
_LEAST_QUERIES = 96
"""The same where there are few turns for several threads."""
_TURNS = 24
"""Of the parallel loop, if there can be so many. With 384 keys (12 heads, Zen 3) turns of twice
`_LEAST_QUERIES` take 0.97 of the time, with 8192 keys those of 264 queries 0.94."""
_WIDE = 8
"""Lanes from which a thread's stack surely has room for it; work items of OpenCL have less."""
_TURN_BYTES = 208 << 10
"""Of what a turn of several tiles keeps, values of a block among it: a part of the second cache."""


def schedule(spec: Attention) -> AttentionSchedule:
    """Return the schedule that a kernel has, or that is picked for it."""
    return spec.schedule or _choose(spec)


def _choose(spec: Attention) -> AttentionSchedule:
    lanes = spec.unit.lanes("float32")
    few = lanes // _FEW
    if isinstance(spec.queries, int) and spec.queries <= few:
        return _by_keys(spec)
    if spec.is_tiled:
        return _of_tiles(spec, few if isinstance(spec.queries, Expression) else 0)
    total = -(-typical(spec.queries) // lanes)
    columns = spec.key_size + spec.value_size

    def cost(vectors: int) -> int:
        rows = tile_rows(vectors, spec.unit)
        return sum(
            (run.end - run.first)
            * sum(
                (tiles.end - tiles.first) * step_cost(tiles.size, run.size) * weight
                for extent, weight in ((_KEYS, spec.key_size), (spec.value_size, _KEYS))
                for tiles in Split.of(extent, rows).runs
            )
            for run in Split.of(total, vectors).runs
        )

    fitting = [
        vectors
        for vectors in _VECTORS
        if 2 * vectors + 1 <= spec.unit.registers
        and vectors * lanes * 4 * (columns + _KEYS) <= _LOCAL_BYTES
    ]
    costs = {vectors: cost(vectors) for vectors in fitting or [1]}
    least = min(costs.values())
    vectors = next(vectors for vectors in costs if costs[vectors] <= _ABOUT * least)
    rows = tile_rows(vectors, spec.unit)
    keys = _KEYS if isinstance(spec.keys, Expression) else max(1, min(spec.keys, _KEYS))
    is_far = 2 * 4 * typical(spec.keys) * columns > spec.unit.l2_bytes
    tiles = _tiles(spec, vectors, -(-total // vectors))
    few = few if isinstance(spec.queries, Expression) else 0
    return AttentionSchedule(
        vectors,
        rows,
        keys,
        is_far=is_far,
        tiles=tiles,
        is_gathered=tiles > 1,
        unroll=1 if is_long_step(rows, vectors) else 4,
        few=few,
    )


def _of_tiles(spec: Attention, few: int) -> AttentionSchedule:
    """Return that of a kernel whose products are of tiles."""
    keys = _KEYS_OF_TILES
    if isinstance(spec.keys, int):
        keys = max(1, min(spec.keys, keys))
    columns = spec.key_size + spec.value_size
    width = _VECTORS_OF_TILES * TILE_ROWS
    # Of a block: scores, exponentials, keys and values; of a tile: queries and sums.
    shared = _KEYS_OF_TILES * (6 * width + 2 * columns)
    fitting = (_TURN_BYTES - shared) // (width * (2 * spec.key_size + 4 * spec.value_size))
    count = -(-typical(spec.queries) // width)
    wanted = max(_LEAST_QUERIES_OF_TILES // width, typical(spec.items) * count // _TURNS)
    most = max(1, min(_QUERIES_OF_TILES // width, fitting, wanted, count))
    return AttentionSchedule(
        _VECTORS_OF_TILES,
        TILE_ROWS,
        keys,
        is_far=2 * 4 * typical(spec.keys) * columns > spec.unit.l2_bytes,
        tiles=-(-count // -(-count // most)),
        is_gathered=True,
        few=few,
    )


def _by_keys(spec: Attention, few: int = 0) -> AttentionSchedule:
    """Return that of a kernel whose lanes are keys; `few` as in `AttentionSchedule`."""
    keys = most(spec.keys, _KEYS_OF_FEW)
    part = _PART if most(spec.keys, _PART + 1) > _PART else 0
    return AttentionSchedule(1, 1, max(1, keys), is_by_keys=True, few=few, part=part)


def ways(spec: Attention) -> tuple[Attention, ...]:
    """Return what computes attention, of which one has turns: two by the number of free queries."""
    plan = schedule(spec)
    if plan.is_by_keys or not plan.few:
        return (spec,)
    return spec, replace(spec, schedule=_by_keys(spec, plan.few))


def _tiles(spec: Attention, vectors: int, count: int) -> int:
    """Return for how many of an item's tiles of queries a block of keys is read.

    Args:
        spec: Of the kernel.
        vectors: Of a tile.
        count: Of all tiles of an item.
    """
    lanes, columns = spec.unit.lanes("float32"), spec.key_size + spec.value_size
    kept = 2 * 4 * typical(spec.keys) * columns
    if lanes < _WIDE or kept <= spec.unit.l2_bytes // 4:
        return 1
    shared = 4 * _KEYS * (vectors * lanes + columns)
    fitting = (_TURN_BYTES - shared) // (4 * vectors * lanes * columns)
    wanted = max(_LEAST_QUERIES // (vectors * lanes), typical(spec.items) * count // _TURNS)
    most = max(1, min(_QUERIES // (vectors * lanes), fitting, wanted, count))
    groups = -(-count // most)
    return -(-count // groups)
