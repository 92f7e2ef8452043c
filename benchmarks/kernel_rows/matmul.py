# SPDX-License-Identifier: Apache-2.0
"""Matrix products with constant weights, and matrix-vector products."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from intarsia.codegen.body import Layout
from intarsia.codegen.kernels.gemm import Gemm, Panels, build, flops, pack, schedule
from intarsia.native.native_target import target_cpu
from intarsia.native.work import measure_peak
from intarsia.target import Target
from kernel_rows.row import UNIT, Area, Row, Sides, aligned, kernel_call, session_call

GEMM_SHAPES = (
    (128, 768, 768),
    (128, 3072, 768),
    (384, 768, 3072),
    (512, 512, 512),
    (1024, 1024, 1024),
    (3136, 64, 64),
    (784, 128, 512),
    (49, 512, 4608),
)
"""M, N, K: of BERT, of square products, of a ResNet's convolutions."""

GEMV_SHAPES = ((1, 1000, 2048), (1, 4096, 25088))
"""The head of ResNet-50, and the first layer of VGG's."""


def product(m: int, n: int, k: int) -> Gemm:
    """Return a dense product with constant weights."""
    layouts = [Layout("float32", (columns, 1), 64) for columns in (k, n)]
    return Gemm(m, n, k, layouts[0], Panels(), layouts[1], unit=UNIT)


def sides(m: int, n: int, k: int, **options: Any) -> Sides:
    """Return both sides of a product; options replace fields of its schedule."""
    rng = np.random.default_rng(0)
    a = aligned(rng.standard_normal((m, k), np.float32))
    b = rng.standard_normal((k, n), np.float32)
    ours, theirs = (aligned(np.zeros((m, n), np.float32)) for _ in range(2))
    spec = product(m, n, k)
    if options:
        spec = replace(spec, schedule=replace(schedule(spec), **options))
    call = kernel_call((build(spec), (a, aligned(pack(spec, b)), ours)))
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    peer = session_call([node], {"a": a}, {"c": theirs}, {"b": b})
    return Sides(call, [(peer, 1.0)], lambda: (ours, theirs))


def _row(area: str, shape: tuple[int, int, int]) -> Row:
    m, n, k = shape
    name = f"{m} x {n} x {k}"
    if area == "gemv":
        return Row(area, name, 4.0 * n * k, "GB/s", lambda: sides(m, n, k))
    return Row(area, name, flops(product(m, n, k)), "GFLOP/s", lambda: sides(m, n, k))


def peak() -> float:
    """Return the most GFLOP/s of float32 that multiply-adds in registers alone come to."""
    return measure_peak(*target_cpu(Target("llvm")), clock=time.thread_time) / 1e9


def areas() -> Sequence[Area]:
    """Return the areas of this family."""
    return (
        Area("gemm", 1.10, [_row("gemm", shape) for shape in GEMM_SHAPES], peak),
        Area("gemv", 0.95, [_row("gemv", shape) for shape in GEMV_SHAPES]),
    )
