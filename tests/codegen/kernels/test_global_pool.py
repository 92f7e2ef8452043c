"""Pooling of whole images against onnxruntime."""

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from tests.codegen.kernels.test_pool import LAYOUTS, pack, unpack

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import global_pool
from intarsia.codegen.kernels.pool.combination import PoolKind
from intarsia.codegen.unit import AVX2, AVX512

OPERATORS = {
    PoolKind.MAX: "GlobalMaxPool",
    PoolKind.AVERAGE: "GlobalAveragePool",
    PoolKind.LP: "GlobalLpPool",
}


def expected_of(kind, x):
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(OPERATORS[kind], ["x"], ["y"])], "g", [info], [out])
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def make_spec(kind, shape, unit, block, **options):
    batch, channels, *extents = shape
    blocks = -(-channels // block)
    ones = (1,) * len(extents)
    x = Layout("float32", row_major((batch, blocks, *extents, block)))
    y = Layout("float32", row_major((batch, blocks, *ones, block)))
    spec = global_pool.GlobalPool(
        batch, channels, tuple(extents), x, y, kind, block=block, unit=unit
    )
    return dataclasses.replace(spec, **options)


@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
@pytest.mark.parametrize("kind", list(PoolKind))
@pytest.mark.parametrize(
    "shape",
    [(1, 18, 7, 7), (3, 3, 1, 1), (1, 2, 2, 5), (2, 3, 37), (1, 3, 3, 4, 5), (1, 2, 19, 30)],
)
def test_agrees_with_onnxruntime(run_kernel, shape, kind, unit, block):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32") - 3  # all negative
    spec = make_spec(kind, shape, unit, block)
    y = np.full((shape[0], spec.blocks, block), 55, "float32")
    got = run_kernel(global_pool.build(spec), [pack(x, block), y])[1]
    wanted = expected_of(kind, x)
    packed = got.reshape(*y.shape[:2], *wanted.shape[2:], block)
    np.testing.assert_allclose(unpack(packed, wanted.shape, shape[1]), wanted, rtol=3e-6)


@pytest.mark.parametrize("sums", [1, 3, 8])
def test_gaps_between_rows_and_epilogue(run_kernel, sums):
    body = Body(("float32", "float32"), (Apply("Add", (0, 1)), Apply("Relu", (2,))), (3,))
    spec = make_spec(PoolKind.AVERAGE, (2, 3, 5, 21), AVX2, 1)
    spec = dataclasses.replace(
        spec,
        x=Layout("float32", (3 * 5 * 32, 5 * 32, 32, 1, 1)),
        epilogue=Fused(body, (spec.y,)),
        sums=sums,
    )
    rng = np.random.default_rng(0)
    memory = rng.standard_normal((2, 3, 5, 32)).astype("float32")
    more = rng.standard_normal((2, 3)).astype("float32")
    got = run_kernel(global_pool.build(spec), [memory, np.zeros((2, 3), "float32"), more])[1]
    wanted = np.maximum(memory[..., :21].mean((2, 3)) + more, 0)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_channels_last(run_kernel):
    spec = make_spec(PoolKind.MAX, (1, 3, 4, 6), AVX512, 1)
    spec = dataclasses.replace(spec, x=Layout("float32", (72, 1, 18, 3, 1)))
    x = np.random.default_rng(0).standard_normal((4, 6, 3)).astype("float32")
    got = run_kernel(global_pool.build(spec), [x, np.zeros(3, "float32")])[1]
    np.testing.assert_array_equal(got, x.max((0, 1)))


def test_no_images(run_kernel):
    spec = make_spec(PoolKind.MAX, (0, 3, 4, 6), AVX512, 1)
    empty = np.zeros(0, "float32")
    assert run_kernel(global_pool.build(spec), [empty, empty])[1].size == 0
