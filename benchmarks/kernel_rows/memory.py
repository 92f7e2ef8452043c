# SPDX-License-Identifier: Apache-2.0
"""Kernels that memory or vector maths bounds: elementwise, normalisation, softmax, transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from intarsia.codegen.body import Apply, Body, Layout, identity
from intarsia.codegen.ir import Function, row_major
from intarsia.codegen.kernels import elementwise, reduce, rows
from kernel_rows.row import UNIT, Area, Row, Sides, aligned, kernel_call, session_call

Array = np.ndarray[Any, np.dtype[Any]]

ADD_RELU = Body(("float32", "float32"), (Apply("Add", (0, 1)), Apply("Relu", (2,))), (3,))
GELU = Body(("float32",), (Apply("Gelu", (0,)),), (1,))


def dense(shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor that starts at a cache line."""
    return Layout("float32", row_major(tuple(shape)), 64)


def numbers(*shape: int) -> Array:
    """Return normally distributed numbers."""
    return aligned(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32))


def compared(
    function: Function,
    inputs: dict[str, Array],
    constants: dict[str, Array],
    nodes: list[Any],
    shape: Sequence[int],
) -> Sides:
    """Return a kernel and the nodes that do the same; the last node's output is `y`."""
    ours, theirs = (aligned(np.zeros(shape, np.float32)) for _ in range(2))
    arrays = [*inputs.values(), *map(aligned, constants.values()), ours]
    call = kernel_call((function, arrays))
    peer = session_call(nodes, inputs, {"y": theirs}, constants)
    return Sides(call, [(peer, 1.0)], lambda: (ours, theirs))


def layer_norm(count: int, columns: int) -> Sides:
    """Return LayerNormalization over rows."""
    shape = (count, columns)
    flat = Layout("float32", (0, 1), 64)
    spec = rows.Rows(shape, (1,), "Normalize", dense(shape), dense(shape), flat, flat, unit=UNIT)
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"])
    constants = {"s": numbers(columns), "b": numbers(columns)}
    return compared(rows.build(spec), {"x": numbers(*shape)}, constants, [node], shape)


def softmax(count: int, columns: int) -> Sides:
    """Return Softmax over rows."""
    shape = (count, columns)
    spec = rows.Rows(shape, (1,), "Softmax", dense(shape), dense(shape), unit=UNIT)
    node = helper.make_node("Softmax", ["x"], ["y"])
    return compared(rows.build(spec), {"x": numbers(*shape)}, {}, [node], shape)


def gelu(count: int, columns: int) -> Sides:
    """Return Gelu by the error function."""
    shape = (count, columns)
    spec = elementwise.Elementwise(shape, (dense(shape),), (dense(shape),), GELU, unit=UNIT)
    node = helper.make_node("Gelu", ["x"], ["y"])
    return compared(elementwise.build(spec), {"x": numbers(*shape)}, {}, [node], shape)


def add_relu(count: int) -> Sides:
    """Return Relu of a sum."""
    shape = (count,)
    spec = elementwise.Elementwise(shape, (dense(shape),) * 2, (dense(shape),), ADD_RELU, unit=UNIT)
    nodes = [helper.make_node("Add", ["a", "b"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    inputs = {"a": numbers(count), "b": numbers(count)}
    return compared(elementwise.build(spec), inputs, {}, nodes, shape)


def transpose(*shape: int, perm: tuple[int, ...]) -> Sides:
    """Return Transpose."""
    moved = tuple(shape[axis] for axis in perm)
    steps = row_major(shape)
    layout = Layout("float32", tuple(steps[axis] for axis in perm), 64)
    spec = elementwise.Elementwise(
        moved, (layout,), (dense(moved),), identity("float32"), unit=UNIT
    )
    node = helper.make_node("Transpose", ["x"], ["y"], perm=perm)
    return compared(elementwise.build(spec), {"x": numbers(*shape)}, {}, [node], moved)


def mean(*shape: int, axes: tuple[int, ...]) -> Sides:
    """Return ReduceMean without the reduced dimensions."""
    extents = tuple(extent for axis, extent in enumerate(shape) if axis not in axes)
    spec = reduce.Reduction(shape, axes, "Mean", dense(shape), dense(extents), unit=UNIT)
    node = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
    x = numbers(*shape)
    ours, theirs = (aligned(np.zeros(extents, np.float32)) for _ in range(2))
    call = kernel_call((reduce.build(spec), [x, ours]))
    peer = session_call([node], {"x": x}, {"y": theirs}, {"axes": np.array(axes, np.int64)})
    return Sides(call, [(peer, 1.0)], lambda: (ours, theirs))


def _row(area: str, name: str, moved: float, build: Callable[[], Sides]) -> Row:
    return Row(area, name, moved, "GB/s", build)


def areas() -> list[Area]:
    """Return the areas, with the bytes that a row moves as its work."""
    sizes = ((128, 768), (384, 768), (197, 768))
    shapes = ((1536, 128), (4608, 384), (1, 1024))
    hidden = ((128, 3072), (384, 3072))
    counts = (802_816, 401_408, 200_704)
    turned = (((768, 1024), (1, 0)), ((12, 384, 64), (1, 0, 2)), ((64, 56 * 56), (1, 0)))
    means = (((2048, 49), (1,)), ((128, 768), (1,)), ((768, 128), (0,)))
    turns = [
        _row(
            "transpose",
            f"{'x'.join(map(str, shape))} by {perm}",
            8.0 * prod(shape),
            partial(transpose, *shape, perm=perm),
        )
        for shape, perm in turned
    ]
    reductions = [
        _row(
            "mean",
            f"{'x'.join(map(str, shape))} over {axes}",
            4.0 * prod(shape),
            partial(mean, *shape, axes=axes),
        )
        for shape, axes in means
    ]

    def square(
        area: str, shapes: Sequence[tuple[int, int]], build: Callable[..., Sides]
    ) -> list[Row]:
        name = build.__name__.replace("_", "")
        return [
            _row(area, f"{name} {m} x {n}", 8.0 * m * n, partial(build, m, n)) for m, n in shapes
        ]

    norms = [
        *square("memory", sizes, layer_norm),
        *square("memory", hidden, gelu),
        *(_row("memory", f"add+relu {n}", 12.0 * n, partial(add_relu, n)) for n in counts),
    ]
    return [
        Area("memory", 1.8, norms),
        Area("softmax", 1.0, square("softmax", shapes, softmax)),
        Area("transpose", None, turns),
        Area("mean", None, reductions),
    ]
