# SPDX-License-Identifier: Apache-2.0
"""Indices that are out of bounds are an error that names them, on every target."""

import numpy as np
import pytest
from onnx import helper
from tests.codegen.lower.small_models import small_model
from tests.opencl import first_device

import intarsia
from intarsia.backends.registry import collect
from intarsia.errors import InputError, UnsupportedError

TARGETS = ("llvm", "opencl", "openvino, onnxruntime", "onnxruntime", "reference", "fake")


@pytest.fixture
def target(request):
    """A target of `TARGETS`; where no OpenCL works, the tests on it are skipped."""
    if request.param == "opencl":
        first_device()
    return request.param


PICKED = {"x": (4, 5)}
PUT = {"x": (4, 5), "u": (2, 5)}
OPERATORS = {
    "Gather": ("y = Gather<axis = 1>(x, i)", PICKED, np.array([[-5, 0, 4]]), 5),
    "GatherElements": ("y = GatherElements(x, i)", PICKED, np.array([[-4, 0, 3, 1, 2]]), 4),
    "GatherND": ("y = GatherND(x, i)", PICKED, np.array([[-4, 4], [0, -5], [3, 4]]), 5),
    "batched GatherND": ("y = GatherND<batch_dims = 1>(x, i)", PICKED, np.full((4, 1), -5), 5),
    "ScatterElements": (
        "y = ScatterElements(x, i, u)",
        PUT,
        np.array([[0, 1, 2, 3, -4], [1, 2, 3, 0, -1]]),
        4,
    ),
    "ScatterND": ("y = ScatterND(x, i, u)", PUT, np.array([[-4], [3]]), 4),
    "added ScatterND": ('y = ScatterND<reduction = "add">(x, i, u)', PUT, np.array([[3], [3]]), 4),
    "moved indices": (
        "a = Unsqueeze(i, zero) b = Cast<to = 6>(a) y = Gather(x, b)",
        PICKED,
        np.array([-4, 0, 3]),
        4,
    ),
}


@pytest.mark.parametrize("target", TARGETS, indirect=True)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_index_out_of_bounds_is_an_error_that_names_it(backends, name, target):
    body, shapes, legal, extent = OPERATORS[name]
    operator = name.split()[-1].replace("indices", "Gather")
    feeds = {key: np.ones(shape, np.float32) for key, shape in shapes.items()} | {"i": legal}
    weights = {"zero": np.array([0])} if "zero" in body else {}
    model = small_model("y", body, {**shapes, "i": legal}, weights, opset=18)
    node = next(node.name for node in model.graph.node if node.op_type == operator)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    wanted = exe.run(feeds)["y"]
    for bad in (extent, -extent - 1, 2**31 - 1):
        indices = legal.copy()
        indices[-1, -1 if legal.ndim > 1 else ...] = bad
        with pytest.raises(InputError, match=f"index {bad} .* {node!r} has {extent} ") as caught:
            exe.run({**feeds, "i": indices})
        assert caught.value.node == node
        assert caught.value.hint == f"give indices from -{extent} to {extent - 1}"
    np.testing.assert_array_equal(exe.run(feeds)["y"], wanted)


def test_computed_indices_are_looked_at(backends):
    body = "a = Add(i, one) y = Gather(x, a)"
    model = small_model("y", body, {"x": (4, 2), "i": np.array([0])}, {"one": np.array([1])})
    exe = intarsia.compile(model, "llvm", backends=backends)
    feeds = {"x": np.ones((4, 2), np.float32)}
    exe.run({**feeds, "i": np.array([2])})
    with pytest.raises(InputError, match="index 4 in 'a'"):
        exe.run({**feeds, "i": np.array([3])})


def test_indices_that_are_not_read_may_be_anything(backends):
    body = "a = Slice(i, zero, two) y = Gather(x, a)"
    weights = {"zero": np.array([0]), "two": np.array([2])}
    model = small_model("y", body, {"x": (4, 2), "i": np.arange(3)}, weights)
    feeds = {"x": np.ones((4, 2), np.float32), "i": np.array([0, 3, 99])}
    for target in ("llvm", "openvino, onnxruntime"):
        intarsia.compile(model, target, backends=backends).run(feeds)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "float16", "int32", "float64"])
@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_what_a_cast_makes_another_number_of_is_no_index_yet(backends, target, dtype):
    # the same input is read as it is: a border of its region
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    casts = f"a = Cast<to = {kind}>(i) b = Cast<to = 7>(a)"
    body = f"{casts} u = Gather(x, i) v = Gather(z, b) y = Add(u, v)"
    given = {"bool": 3, "float16": 2049}.get(dtype, 2**16 + 2)
    entry = int(np.array(given).astype(dtype).astype(np.int64))
    rows = given + 1
    shapes = {"x": (rows, 2), "z": (entry + 1, 2), "i": np.arange(3) % 2}
    model = small_model("y", body, shapes, opset=18)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    feeds = {key: np.ones(shapes[key], np.float32) for key in "xz"} | {"i": np.array([0, 1, given])}
    np.testing.assert_array_equal(exe.run(feeds)["y"], np.full((3, 2), 2))
    with pytest.raises(InputError, match=r"out of bounds"):
        exe.run(feeds | {"i": np.array([0, 1, given + 1])})


@pytest.mark.parametrize("index", [4, -5])
def test_a_constant_index_out_of_bounds_is_refused(backends, index):
    weights = {"i": np.array(index), "j": np.array([0, index])}
    for name in weights:
        model = small_model("y", f"y = Gather(x, {name})", {"x": (4, 2)}, weights)
        known = collect([backends.named("llvm")])  # nothing to run it on the host
        with pytest.raises(UnsupportedError, match=f"its index {index} is out of 4 entries"):
            intarsia.compile(model, "llvm", backends=known)


@pytest.mark.parametrize("target", ["llvm", "opencl"], indirect=True)
def test_one_hot_takes_any_index_as_onnx_says(backends, target):
    weights = {"depth": np.array(4), "v": np.array([0, 1])}
    model = small_model("y", "y = OneHot(i, depth, v)", {"i": np.arange(3)}, weights)
    exe = intarsia.compile(model, target, backends=backends)
    got = exe.run({"i": np.array([-5, 4, -4])})["y"]
    np.testing.assert_array_equal(got, [[0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])


def test_a_profile_runs_the_checks_too(backends):
    model = small_model("y", "y = Gather(x, i)", {"x": (4, 2), "i": np.arange(3)})
    exe = intarsia.compile(model, "llvm", backends=backends)
    assert exe.profile({"x": np.ones((4, 2), np.float32), "i": np.arange(3)}, runs=1)


def test_a_saved_program_keeps_its_checks(backends, tmp_path):
    model = small_model("y", "y = Gather(x, i)", {"x": (4, 2), "i": np.arange(3)})
    feeds = {"x": np.ones((4, 2), np.float32), "i": np.array([0, 1, 4])}
    for target in ("llvm", "openvino, onnxruntime"):
        intarsia.compile(model, target, backends=backends).save(tmp_path / "m.intarsia")
        loaded = intarsia.load(tmp_path / "m.intarsia", backends=backends)
        with pytest.raises(InputError, match="index 4 in 'i'"):
            loaded.run(feeds)
