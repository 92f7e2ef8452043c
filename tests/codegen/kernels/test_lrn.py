"""Local response normalisation against onnxruntime."""

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from tests.codegen.kernels.test_pool import LAYOUTS, pack, unpack

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import lrn
from intarsia.codegen.unit import AVX2


def expected_of(x, **attributes):
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("LRN", ["x"], ["y"], **attributes)
    graph = helper.make_graph([node], "g", [info], [out])
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def by_hand(x, size, alpha, beta, bias):
    squares = x.astype(np.float64) ** 2
    total = np.zeros_like(squares)
    for c in range(x.shape[1]):
        first, end = max(0, c - (size - 1) // 2), c + size // 2 + 1
        total[:, c] = squares[:, first:end].sum(1)
    return x / (bias + alpha / size * total) ** beta


def make_spec(shape, unit, block, **options):
    batch, channels, *extents = shape
    layout = Layout("float32", row_major((batch, -(-channels // block), *extents, block)))
    return lrn.Lrn(
        batch, channels, tuple(extents), layout, layout, block=block, unit=unit, **options
    )


def check(run_kernel, x, expected, spec, more=()):
    domain = (x.shape[0], spec.blocks, *x.shape[2:], spec.block)
    arrays = [pack(x, spec.block), np.full(domain, 55, "float32")]
    got = run_kernel(lrn.build(spec), [*arrays, *(pack(item, spec.block) for item in more)])[1]
    actual = unpack(got.reshape(domain), x.shape, x.shape[1])
    np.testing.assert_allclose(actual, expected, rtol=5e-6, atol=1e-6)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("unit", "block"), LAYOUTS)
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(
    "shape", [(1, 18, 3, 23), (2, 48, 2, 2), (1, 1, 1, 1), (1, 3, 70), (1, 33, 2, 2, 3)]
)
def test_agrees_with_onnxruntime(run_kernel, shape, size, unit, block):
    x = 20 * np.random.default_rng(0).standard_normal(shape).astype("float32")
    attributes = {"size": size, "alpha": 0.01, "beta": 0.75, "bias": 2.0}
    full = x.reshape(*shape, 1) if len(shape) == 3 else x
    wanted = by_hand(x, **attributes)
    if full.ndim == 4:  # all that onnxruntime takes
        np.testing.assert_allclose(
            expected_of(full, **attributes).reshape(shape), wanted, rtol=1e-5
        )
    check(run_kernel, x, wanted, make_spec(shape, unit, block, **attributes))


@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.6])
@pytest.mark.parametrize("size", [2, 4, 5])
def test_powers_and_even_sizes(run_kernel, size, beta):
    x = 20 * np.random.default_rng(0).standard_normal((1, 11, 2, 9)).astype("float32")
    attributes = {"size": size, "alpha": 0.01, "beta": beta, "bias": 1.0}
    for block in (1, 8):
        spec = make_spec(x.shape, AVX2, block, **attributes)
        check(run_kernel, x, by_hand(x, **attributes), spec)


def test_epilogue(run_kernel):
    x = np.random.default_rng(0).standard_normal((1, 11, 2, 9)).astype("float32")
    body = Body(("float32", "float32"), (Apply("Add", (0, 1)),), (2,))
    for block in (1, 8):
        spec = make_spec(x.shape, AVX2, block, size=3)
        spec = dataclasses.replace(spec, epilogue=Fused(body, (spec.y,)))
        check(run_kernel, x, by_hand(x, 3, 1e-4, 0.75, 1.0) + x, spec, [x])


def test_no_images(run_kernel):
    x = np.zeros((0, 3, 4, 4), "float32")
    check(run_kernel, x, x, make_spec(x.shape, AVX2, 1, size=3))


def test_windows_wider_than_blocks_are_for_plain_memory(run_kernel):
    assert lrn.fits_blocks(9, 4)
    assert not lrn.fits_blocks(11, 4)
    x = np.random.default_rng(0).standard_normal((1, 20, 2, 3)).astype("float32")
    check(
        run_kernel,
        x,
        by_hand(x, 11, 1.0, 0.75, 1.0),
        make_spec(x.shape, AVX2, 1, size=11, alpha=1.0),
    )
