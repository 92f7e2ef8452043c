# SPDX-License-Identifier: Apache-2.0
"""Kernels that read images between their entries, against onnxruntime."""

import numpy as np
import pytest
from tests.codegen.kernels.test_gather import UNITS, dense, expected_of, numbers

from intarsia.codegen.body import Layout
from intarsia.codegen.kernels import sampling


@pytest.mark.parametrize("padding", sampling.PADDINGS)
@pytest.mark.parametrize("mode", sampling.TAPS)
def test_grid_sample(run_kernel, mode, padding):
    x = numbers((2, 38, 4, 5))
    grid = np.random.default_rng(0).uniform(-1.5, 1.5, (2, 5, 14, 2)).astype("float32")
    old = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    wanted = expected_of("GridSample", [x, grid], mode=old, padding_mode=padding)
    y, points = np.zeros((2, 38, 70), "float32"), grid.reshape(2, 70, 2)
    layouts = (dense(x.reshape(-1)), dense(points), dense(y))
    spec = sampling.GridSample(2, 38, (4, 5), 70, *layouts, mode, padding)
    got = run_kernel(sampling.build(spec), [x.reshape(-1), points, y])[2]
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(run_kernel, mode, unit):
    x, images = numbers((2, 19, 5, 9)), np.array([1, 0])
    boxes = np.array([[0, 0, 3.5, 2], [-2, -3, 12, 9]], "float32")
    sizes = {"output_height": 3, "output_width": 2}
    wanted = expected_of("RoiAlign", [x, boxes, images], mode=mode, **sizes)
    y = np.zeros_like(wanted)
    across = [
        Layout("float32", tuple(a.strides[dim] // a.itemsize for dim in (0, 2, 3, 1)))
        for a in (x, y)
    ]
    spec = sampling.RoiAlign(
        (2, 5, 9, 19),
        (2, 3, 2),
        across[0],
        dense(boxes),
        dense(images),
        across[1],
        is_largest=mode == "max",
        unit=unit,
    )
    got = run_kernel(sampling.build(spec), [x, boxes, images, y])[3]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
