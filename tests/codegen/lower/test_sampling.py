# SPDX-License-Identifier: Apache-2.0
"""Operators that read images between their entries, against onnxruntime and ONNX's reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import small_model
from tests.opencl import first_device

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.errors import InputError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

IMAGES = {"flat": (2, 3, 4, 5), "many channels": (1, 70, 3, 7), "deep": (1, 5, 3, 4, 5)}
MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")


def grid_feeds(shape, points, dtype="float32", reach=2.5):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 4).astype(dtype)
    grid_dtype = dtype if dtype == "float64" else "float32"
    grid = rng.uniform(-reach, reach, (shape[0], *points, len(shape) - 2)).astype(grid_dtype)
    return {"x": x, "g": grid}


def grid_model(feeds, mode, padding="zeros", aligned=0, body="y = Identity(s)", opset=20):
    node = f's = GridSample<mode="{mode}", padding_mode="{padding}", align_corners={aligned}>(x, g)'
    return small_model("y", f"{node} {body}", feeds, opset=opset)


@pytest.mark.sample(4)
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("mode", "case"), [p for p in itertools.product(MODES, IMAGES) if p != ("cubic", "deep")]
)
def test_samples(run_both, mode, case, padding, aligned):
    shape = IMAGES[case]
    feeds = grid_feeds(shape, (9, 11) if len(shape) == 4 else (2, 7, 6))
    run_both(grid_model(feeds, mode, padding, aligned), feeds)


@settings(max_examples=25)
@given(
    st.tuples(*(st.integers(1, most) for most in (2, 9, 6, 6, 12, 12))),
    st.sampled_from(MODES),
    st.sampled_from(PADDINGS),
    st.integers(0, 1),
)
def test_random_images(backends, sizes, mode, padding, aligned):
    batch, channels, height, width, down, across = sizes
    if padding == "reflection" and aligned and 1 in (height, width):
        return  # onnxruntime divides by 0
    feeds = grid_feeds((batch, channels, height, width), (down, across))
    model = grid_model(feeds, mode, padding, aligned)
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    np.testing.assert_allclose(got, evaluate(model, feeds)["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("padding", PADDINGS)
def test_any_dtype_is_copied(backends, padding):
    single = grid_feeds((2, 5, 4, 6), (5, 9))
    wanted = evaluate(grid_model(single, "nearest", padding), single)["y"]
    for dtype in ("float64", "int64", "uint8", "float16", "bool"):
        feeds = single | {"x": single["x"].astype(dtype)}
        model = grid_model(feeds, "nearest", padding)
        got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
        np.testing.assert_array_equal(got, wanted.astype(dtype))


@pytest.mark.parametrize("mode", MODES)
def test_float64(run_both, mode):
    feeds = grid_feeds((1, 5, 4, 6), (5, 9), "float64")
    run_both(grid_model(feeds, mode), feeds, rtol=1e-9)


def test_infinity_outside_the_sample_is_not_seen(backends):
    x = np.full((1, 1, 2, 2), np.inf, "float32")
    grid = np.array([[[[-9, 0], [np.nan, 0], [np.inf, -np.inf]]]], "float32")
    feeds = {"x": x, "g": grid}
    for mode in MODES:
        exe = intarsia.compile(grid_model(feeds, mode), "llvm", num_threads=1, backends=backends)
        np.testing.assert_array_equal(exe.run(feeds)["y"], np.zeros((1, 1, 1, 3)))


def test_old_names_of_modes(run_both):
    feeds = grid_feeds((1, 2, 4, 6), (5, 9))
    for mode in ("bilinear", "bicubic", "nearest"):
        run_both(grid_model(feeds, mode, opset=16), feeds)


def test_beside_blocked_tensors_and_joined(run_both):
    rng = np.random.default_rng(1)
    feeds = grid_feeds((2, 20, 5, 6), (5, 6), reach=1)
    weights = {"w": (20, 20, 1, 1)}
    body = "c = Conv(x, w) s = GridSample(c, g) d = Conv(s, w) t = Relu(s) y = Concat<axis=1>(d, t)"
    run_both(small_model("y", body, feeds, weights, opset=20), feeds)
    boxes = np.sort(rng.uniform(0, 6, (3, 2, 2)), 1).reshape(3, 4).astype("float32")
    feeds = {"x": feeds["x"], "b": boxes, "i": np.array([1, 0, 1])}
    body = (
        "c = Conv(x, w) s = RoiAlign<output_height=2, output_width=3>(c, b, i) d = Conv(s, w)"
        " t = Relu(s) y = Concat<axis=1>(d, t)"
    )
    model = small_model("y", body, feeds, weights)
    wanted = evaluate(model, feeds)
    got = intarsia.compile(model, "llvm", num_threads=1).run(feeds)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("extents", [(4, 5), (2, 40), (3, 2, 5), (7, 2, 2)])
def test_affine_grids(run_both, extents, aligned, dtype):
    dims = len(extents)
    theta = np.random.default_rng(0).standard_normal((3, dims, dims + 1)).astype(dtype)
    size = np.array([3, 2, *extents])
    body = f"g = AffineGrid<align_corners = {aligned}>(t, s) y = Relu(g)"
    run_both(small_model("y", body, {"t": theta}, {"s": size}, opset=20), {"t": theta})


def test_a_grid_samples_where_it_was_moved_to(run_both):
    x = np.random.default_rng(0).standard_normal((2, 20, 5, 6)).astype("float32")
    theta = np.array([[[1, 0, 0.5], [0, -1, 0]], [[0.5, 0.2, 0], [0, 1, 0.1]]], "float32")
    weights = {"w": (20, 20, 1, 1), "s": np.array([2, 20, 7, 4])}
    body = "c = Conv(x, w) g = AffineGrid(t, s) y = GridSample(c, g)"
    feeds = {"x": x, "t": theta}
    run_both(small_model("y", body, feeds, weights, opset=20), feeds)


def test_on_opencl(backends):
    first_device()  # skips where there is none
    feeds = grid_feeds((1, 5, 4, 6), (5, 9))
    model = grid_model(feeds, "linear")
    exe = intarsia.compile(model, "opencl", num_threads=1, backends=backends)
    np.testing.assert_allclose(exe.run(feeds)["y"], evaluate(model, feeds)["y"], atol=1e-4)


DEFORMED = {
    "plain": ((1, 3, 5, 6), (4, 3, 2, 2), {}),
    "of one": ((2, 3, 5, 6), (1, 3, 1, 1), {}),
    "many channels": ((1, 40, 6, 7), (35, 40, 3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((2, 4, 7, 9), (6, 4, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "dilated": ((1, 4, 9, 8), (3, 4, 2, 3), {"dilations": [3, 2], "pads": [0, 2, 1, 0]}),
    "in groups": ((2, 4, 5, 5), (6, 2, 2, 2), {"group": 2, "offset_group": 4}),
    "offsets in groups": ((1, 6, 5, 5), (2, 6, 2, 2), {"offset_group": 3}),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("more", ["", ", b", ", b, m", ", , m"])
@pytest.mark.parametrize("case", DEFORMED)
def test_deformed_convolutions(backends, case, more, dtype):
    shape, kernel, attributes = DEFORMED[case]
    rng = np.random.default_rng(0)
    pads, ones = attributes.get("pads", [0] * 4), [1, 1]
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    out = [
        (shape[2 + i] + pads[i] + pads[2 + i] - (kernel[2 + i] - 1) * dilations[i] - 1)
        // strides[i]
        + 1
        for i in range(2)
    ]
    count = attributes.get("offset_group", 1) * kernel[2] * kernel[3]
    feeds = {
        "x": rng.standard_normal(shape),
        "w": rng.standard_normal(kernel),
        "o": rng.uniform(-4, 4, (shape[0], 2 * count, *out)),
        "b": rng.standard_normal(kernel[0]),
        "m": rng.uniform(0, 1, (shape[0], count, *out)),
    }
    names = ("x", "o", *more.replace(",", "").split(), "w")
    feeds = {name: feeds[name].astype(dtype) for name in names}
    text = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    body = f"d = DeformConv<{text}>(x, w, o{more}) y = Relu(d)".replace("<>", "")
    known = {"w": feeds.pop("w")} if len(more) < 6 else {}
    model = small_model("y", body, feeds, known, opset=22)
    (wanted,) = evaluate(model, feeds).values()
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * kernel[1])


def test_a_deformed_convolution_beside_blocked_tensors(backends):
    rng = np.random.default_rng(1)
    feeds = {"x": (2, 20, 5, 6), "o": (2, 18, 5, 6), "m": (2, 9, 5, 6)}
    feeds = {name: rng.uniform(-1, 1, shape).astype("float32") for name, shape in feeds.items()}
    body = "c = Conv(x, v) d = DeformConv<pads = [1, 1, 1, 1]>(c, w, o, , m) y = Conv(d, v)"
    weights = {"v": (20, 20, 1, 1), "w": (20, 20, 3, 3)}
    model = small_model("y", body, feeds, weights, opset=19)
    (wanted,) = evaluate(model, feeds).values()
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


BOXES = [[0, 0, 3.5, 2], [-2, -3, 12, 40], [5, 4, 5, 4], [3, 3, 1, 1.5], [4.2, 0.3, 9, 4.9]]


def box_feeds(dtype="float32", channels=19):
    x = np.random.default_rng(0).standard_normal((3, channels, 5, 9)).astype(dtype)
    return {"x": x, "b": np.array(BOXES, dtype), "i": np.array([0, 2, 1, 1, -1])}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("place", ["half_pixel", "output_half_pixel"])
def test_regions(backends, place, mode, ratio, dtype):
    feeds = box_feeds(dtype) | {"i": np.array([0, 2, 1, 1, 2])}
    attributes = (
        f'coordinate_transformation_mode="{place}", mode="{mode}", sampling_ratio={ratio},'
        " output_height=3, output_width=2, spatial_scale=0.75"
    )
    model = small_model("y", f"y = RoiAlign<{attributes}>(x, b, i)", feeds)
    got = intarsia.compile(model, "llvm", num_threads=1, backends=backends).run(feeds)["y"]
    np.testing.assert_allclose(got, evaluate(model, feeds)["y"], rtol=1e-4, atol=1e-5)


def test_a_region_of_no_image_is_an_error(backends):
    feeds = box_feeds()
    model = small_model("y", "y = RoiAlign(x, b, i)", feeds)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    with pytest.raises(InputError, match="3"):
        exe.run(feeds | {"i": np.array([0, 1, 2, 3, 0])})


@pytest.mark.parametrize(
    ("body", "inputs", "reason"),
    [
        ("y = GridSample(x, g)", {"x": (1, 2, 0, 3), "g": (1, 2, 2, 2)}, "empty"),
        (
            "y = GridSample(x, g)",
            {"x": np.zeros((1, 2, 3, 3), "int32"), "g": (1, 2, 2, 2)},
            "int32",
        ),
        (
            "y = RoiAlign(x, b, i)",
            {"x": (1, 0, 4, 3), "b": (2, 4), "i": np.zeros(2, "int64")},
            "empty",
        ),
    ],
)
def test_what_is_refused(body, inputs, reason):
    graph = snapshot(load(small_model("y", body, inputs, opset=20)))
    assert reason in refuse_node(graph, graph.nodes[0])[1]
