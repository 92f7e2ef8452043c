# SPDX-License-Identifier: Apache-2.0
"""Fully convolutional networks whose height and width are free run at any sizes."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.errors import IntarsiaError

TARGETS = ("llvm, onnxruntime", "openvino, onnxruntime", None)
SIZES = ((32, 32), (64, 48), (36, 60))

UNET = """free (float[1,3,H,W] image) => (float[1,2,h,w] y) {
    a0 = Conv<pads = [1,1,1,1]>(image, k1)
    a = Relu(a0)
    d = MaxPool<kernel_shape = [2,2], strides = [2,2]>(a)
    b0 = Conv<pads = [1,1,1,1]>(d, k2)
    b = Relu(b0)
    e = MaxPool<kernel_shape = [2,2], strides = [2,2]>(b)
    c0 = Conv<pads = [1,1,1,1]>(e, k3)
    c = Relu(c0)
    u = ConvTranspose<strides = [2,2]>(c, k4)
    j = Concat<axis = 1>(u, b)
    f0 = Conv<pads = [1,1,1,1]>(j, k5)
    f = Relu(f0)
    r = Resize<mode = "nearest", nearest_mode = "floor",
               coordinate_transformation_mode = "asymmetric">(f, , twice)
    s = Concat<axis = 1>(r, a)
    y = Conv(s, k6) }"""
UNET_WEIGHTS = {
    "k1": (8, 3, 3, 3), "k2": (16, 8, 3, 3), "k3": (32, 16, 3, 3), "k4": (32, 16, 2, 2),
    "k5": (16, 32, 3, 3), "k6": (2, 24, 1, 1), "twice": np.array([1, 1, 2, 2], np.float32),
}  # fmt: skip

TRUNK = """free (float[N,3,H,W] image) => (float[N,10] y) {
    a0 = Conv<pads = [3,3,3,3], strides = [2,2]>(image, k1)
    a = Relu(a0)
    d = MaxPool<kernel_shape = [3,3], strides = [2,2], ceil_mode = 1>(a)
    b0 = Conv<pads = [1,1,1,1]>(d, k2)
    b1 = Relu(b0)
    b2 = Conv<pads = [1,1,1,1]>(b1, k3)
    b3 = Add(b2, d)
    b = Relu(b3)
    q = Conv(b, k4)
    g = GlobalAveragePool(q)
    f = Flatten(g)
    y = Gemm<transB = 1>(f, w) }"""
TRUNK_WEIGHTS = {
    "k1": (16, 3, 7, 7), "k2": (16, 16, 3, 3), "k3": (16, 16, 3, 3), "k4": (32, 16, 1, 1),
    "w": (10, 32),
}  # fmt: skip

# The head resizes to the size of the image as torch's exporter spells it.
SEGMENTATION = """free (float[1,3,H,W] image) => (float[1,4,H,W] y) {
    a0 = Conv<pads = [1,1,1,1], strides = [2,2]>(image, k1)
    a = Relu(a0)
    b0 = Conv<pads = [2,2,2,2], dilations = [2,2]>(a, k2)
    b = Relu(b0)
    c = Conv(b, k3)
    shape = Shape(image)
    sides = Slice(shape, two, four)
    inner = Shape(c)
    outer = Slice(inner, zero, two)
    size = Concat<axis = 0>(outer, sides)
    y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(c, , , size) }"""
SEGMENTATION_WEIGHTS = {
    "k1": (8, 3, 3, 3), "k2": (8, 8, 3, 3), "k3": (4, 8, 1, 1),
    "zero": np.array([0]), "two": np.array([2]), "four": np.array([4]),
}  # fmt: skip
NETWORKS = {
    "unet": (UNET, UNET_WEIGHTS),
    "trunk": (TRUNK, TRUNK_WEIGHTS),
    "segmentation": (SEGMENTATION, SEGMENTATION_WEIGHTS),
}


def build(name):
    text, weights = NETWORKS[name]
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    rng = np.random.default_rng(5)
    for weight, given in weights.items():
        array = given
        if isinstance(given, tuple):
            array = rng.standard_normal(given) / np.sqrt(np.prod(given[1:]))
            array = array.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, weight))
    return model


@pytest.fixture(scope="module", params=NETWORKS)
def network(request):
    """A name, a model, and pairs of an image and what ONNX Runtime makes of it."""
    model = build(request.param)
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    images = [rng.standard_normal((1, 3, *size)).astype(np.float32) for size in SIZES]
    return request.param, model, [(one, peer.run(None, {"image": one})[0]) for one in images]


@pytest.mark.parametrize("target", TARGETS)
def test_one_program_runs_all_sizes(network, target, backends):
    _, model, pairs = network
    exe = intarsia.compile(model, target, backends=backends, num_threads=1)
    assert exe.generic is not None
    for image, expected in pairs:
        (y,) = exe.run({"image": image}).values()
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        assert exe.latest.artifacts == exe.generic.artifacts  # nothing was compiled
    image, expected = pairs[-1]
    own = exe.specialise({"H": image.shape[2], "W": image.shape[3]})
    assert own.artifacts != exe.generic.artifacts
    (y,) = exe.run({"image": image}).values()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_native_code_alone_has_a_program_for_each_sizes_and_says_why(network, backends):
    _, model, pairs = network
    exe = intarsia.compile(model, "llvm", backends=backends, num_threads=1, max_shapes=2)
    assert exe.generic is None
    text = exe.explain().free
    assert "at most 2, each compiled when its sizes come for the first time" in text
    assert "there is none for all sizes: a0 (Conv) not on llvm" in text
    for image, expected in pairs:
        (y,) = exe.run({"image": image}).values()
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert len(exe.programs) == 2


def test_what_does_not_come_back_from_pooling_is_no_size(backends, tmp_path):
    """A U-Net takes multiples of 4; its program for all sizes is for these, in a package too."""
    model = build("unet")
    exe = intarsia.compile(model, "llvm, onnxruntime", backends=backends, num_threads=1)
    assert exe.explain().free.endswith("all sizes (H a multiple of 4, W a multiple of 4)")
    exe.save(tmp_path / "unet.intarsia")
    loaded = intarsia.load(tmp_path / "unet.intarsia", backends=backends)
    image = np.ones((1, 3, 8, 12), np.float32)
    for one in (exe, loaded):
        (y,) = one.run({"image": image}).values()
        assert y.shape == (1, 2, 8, 12)
        with pytest.raises(IntarsiaError, match="j"):
            one.run({"image": np.ones((1, 3, 8, 10), np.float32)})


def test_sizes_that_decisions_are_taken_for_have_to_fit_too(backends, caplog):
    with caplog.at_level(logging.INFO, "intarsia"):
        exe = intarsia.compile(
            build("unet"), "onnxruntime", shapes={"H": "1..50"}, backends=backends
        )
    assert exe.generic is None
    assert "'H' is to be a multiple of 4, and the size that is taken for it is 50" in caplog.text
    (y,) = exe.run({"image": np.ones((1, 3, 8, 12), np.float32)}).values()
    assert y.shape == (1, 2, 8, 12)


@pytest.mark.parametrize("extra", ["", "z = Relu(x)"])
def test_shapes_that_are_computed_inside_a_region_have_memory(extra, backends):
    """Memory whose size is known stays where it was put, beside memory whose size is not."""
    outputs = "int64[2] y" + (", float[H,W,3] z" if extra else "")
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        free (float[H,W,3] x) => ({outputs}) <int64[1] none = {{0}}, int64[1] two = {{2}}>
        {{ {extra} s = Shape(x) y = Slice(s, none, two) }}""")
    exe = intarsia.compile(model, "llvm", backends=backends)
    assert exe.generic is not None
    for size in ((5, 7), (128, 2), (1, 1)):
        x = np.ones((*size, 3), np.float32)
        assert exe.run({"x": x})["y"].tolist() == list(size)
