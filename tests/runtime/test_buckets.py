# SPDX-License-Identifier: Apache-2.0
"""Padded runs: what comes out is what the model gives without padding."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.errors import InputError, SettingError

# Attention with a mask, which hides what is padded.
MASKED = """
<ir_version: 9, opset_import: ["" : 17]>
masked (int64[batch,seq] ids, float[batch,seq] mask) => (float[batch,seq,8] y, int64[batch,seq] z) {
    x = Gather <axis: int = 0> (table, ids)
    turned = Transpose <perm: ints = [0, 2, 1]> (x)
    scores = MatMul (x, turned)
    axes = Constant <value_ints: ints = [1]> ()
    wide = Unsqueeze (mask, axes)
    masked = Add (scores, wide)
    shares = Softmax <axis: int = -1> (masked)
    y = MatMul (shares, x)
    z = Add (ids, ids)
}
"""
PADS = {"mask": -1e9}


@pytest.fixture(scope="module")
def model():
    parsed = onnx.parser.parse_model(MASKED)
    table = np.random.default_rng(3).standard_normal((16, 8)).astype(np.float32)
    parsed.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return parsed


@pytest.fixture(scope="module")
def expected(model):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    def run(feeds):
        return dict(zip(("y", "z"), session.run(None, feeds), strict=True))

    return run


def feeds(batch, seq, seed=0):
    rng = np.random.default_rng(seed)
    mask = rng.standard_normal((batch, seq)).astype(np.float32)
    return {"ids": rng.integers(0, 16, (batch, seq)), "mask": mask}


def assert_close(outputs, wanted):
    assert outputs.keys() == wanted.keys()
    for name, array in wanted.items():
        assert outputs[name].shape == array.shape
        assert outputs[name].flags.c_contiguous
        np.testing.assert_allclose(outputs[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "target",
    [
        "llvm",
        "onnxruntime",
        "openvino, onnxruntime",
        "dnnl, onnxruntime",
        "fake -cost=*:1e-3, reference",
    ],
)
def test_each_backend_runs_the_program_of_the_next_bucket(target, model, expected):
    exe = intarsia.compile(model, target, num_threads=1, buckets={"seq": [8, 4]}, pad_values=PADS)
    for batch, seq in ((1, 3), (1, 4), (1, 5), (2, 8), (2, 1)):
        assert_close(exe.run(feeds(batch, seq)), expected(feeds(batch, seq)))
    assert {(one["batch"], one["seq"]) for one in exe.sizes} == {(1, 4), (1, 8), (2, 8), (2, 4)}
    with pytest.raises(InputError, match="'seq' is 9, and its largest bucket is 8") as caught:
        exe.run(feeds(1, 9))
    assert "--bucket seq=4,8,9" in caught.value.hint
    with pytest.raises(InputError, match="'seq' is 3 in input 'ids' but 4 in input 'mask'"):
        exe.run({"ids": feeds(1, 3)["ids"], "mask": feeds(1, 4)["mask"]})
    positional = exe(*feeds(2, 3).values())
    assert_close(dict(zip(("y", "z"), positional, strict=True)), expected(feeds(2, 3)))


def test_a_frozen_program_has_its_buckets_and_no_more(model, expected, tmp_path):
    options = {"num_threads": 1, "buckets": {"seq": [4, 8], "batch": 2}, "pad_values": PADS}
    exe = intarsia.compile(model, "onnxruntime", frozen=True, **options)
    assert {(one["batch"], one["seq"]) for one in exe.sizes} == {(2, 4), (2, 8)}
    assert_close(exe.run(feeds(1, 7)), expected(feeds(1, 7)))
    assert "padded to seq=4,8 batch=2" in str(exe.explain())
    exe.save(tmp_path / "bucketed.intarsia")
    loaded = intarsia.load(tmp_path / "bucketed.intarsia", num_threads=1, frozen=True)
    assert loaded.buckets == exe.buckets
    assert_close(loaded.run(feeds(2, 3)), expected(feeds(2, 3)))
    assert len(loaded.sizes) == 2
    assert "padded to seq=4,8 batch=2" in str(loaded.explain())
    session = intarsia.InferenceSession(model, targets="onnxruntime", **options)
    outputs = session.run(["z", "y"], feeds(1, 5))
    assert_close(dict(zip(("z", "y"), outputs, strict=True)), expected(feeds(1, 5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": {"time": [4]}}, "no free dimension 'time' to pad"),
        ({"buckets": {"seq": [0, 4]}}, r"buckets \[0, 4\] of dimension 'seq'"),
        ({"buckets": {"seq": [4, 9]}, "shapes": {"seq": "1..8"}}, "sizes from 1..8 can be"),
        ({"buckets": {"seq": [4]}, "pad_values": {"data": 1}}, "no input 'data' to pad"),
        ({"buckets": {"seq": [4]}, "pad_values": {"ids": "a"}}, "'ids' cannot be padded with 'a'"),
        ({"buckets": {"seq": [4]}, "shapes": {"seq": 4, "batch": 1}}, "no free dimension 'seq'"),
    ],
)
def test_what_cannot_be_padded_is_an_error(options, message, model):
    with pytest.raises(InputError, match=message):
        intarsia.compile(model, "onnxruntime", num_threads=1, **options)


def test_values_without_buckets_contradict(model):
    with pytest.raises(SettingError, match="no buckets to pad to"):
        intarsia.compile(model, "onnxruntime", pad_values={"ids": 1})


def test_an_output_whose_size_the_data_decides_is_refused(parse_model):
    model = parse_model("g (float[n] x) => (int64[1,m] y) { y = NonZero (x) }")
    with pytest.raises(InputError, match=r"output y.* cannot be cut back"):
        intarsia.compile(model, "onnxruntime", num_threads=1, buckets={"n": [4]})


def test_an_output_is_cut_as_its_shape_is_inferred_and_not_as_it_is_declared(parse_model):
    text = "g (float[n,2] x, int64[1] i) => (float[n,2] y) { y = Gather <axis: int = 0> (x, i) }"
    exe = intarsia.compile(parse_model(text), "onnxruntime", num_threads=1, buckets={"n": [4]})
    outputs = exe.run({"x": np.ones((3, 2), np.float32), "i": np.zeros(1, np.int64)})
    assert outputs["y"].shape == (1, 2)
