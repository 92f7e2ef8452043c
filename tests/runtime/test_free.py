# SPDX-License-Identifier: Apache-2.0
"""A model with free dimensions runs at any sizes, and says which dimension does not fit."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.errors import InputError, ModelError, SettingError
from intarsia.zoo import build

TARGETS = ("llvm, onnxruntime", "onnxruntime", "openvino, onnxruntime")

# Attention over a sequence as exporters write it: the Reshapes' targets are computed from Shape.
ATTENTION = """free (int64[batch,seq] ids, float[batch,seq] mask) => (float[batch,seq,8] y) {
    x = Gather <axis: int = 0> (table, ids)
    lengths = Shape (x)
    heads = Constant <value_ints: ints = [2, 4]> ()
    outer = Slice (lengths, zero, two)
    split = Concat <axis: int = 0> (outer, heads)
    q = Reshape (x, split)
    rows = Transpose <perm: ints = [0, 2, 1, 3]> (q)
    columns = Transpose <perm: ints = [0, 2, 3, 1]> (q)
    scores = MatMul (rows, columns)
    axes = Constant <value_ints: ints = [1, 2]> ()
    wide = Unsqueeze (mask, axes)
    masked = Add (scores, wide)
    shares = Softmax <axis: int = -1> (masked)
    mixed = MatMul (shares, rows)
    back = Transpose <perm: ints = [0, 2, 1, 3]> (mixed)
    joined = Reshape (back, lengths)
    y = MatMul (joined, w)
}"""
CONVOLUTION = """free (float[N,3,H,W] x) => (float[N,4,h,v] y) {
    a = Conv <pads: ints = [1, 1, 1, 1], strides: ints = [2, 2]> (x, k)
    b = Relu (a)
    y = MaxPool <kernel_shape: ints = [2, 2], strides: ints = [2, 2]> (b)
}"""
NAMELESS = "free (float[?,6] x, float[?,6] z) => (float[?,6] y) { y = Mul (x, z) }"


def with_weights(model, **arrays):
    rng = np.random.default_rng(7)
    for name, given in arrays.items():
        array = given if isinstance(given, np.ndarray) else rng.standard_normal(given)
        array = array if array.dtype == np.int64 else array.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture(scope="session")
def attention():
    text = '<ir_version: 9, opset_import: ["" : 17]>' + ATTENTION
    model = onnx.parser.parse_model(text)
    bounds = {"zero": np.array([0]), "two": np.array([2])}
    return with_weights(model, table=(16, 8), w=(8, 8), **bounds)


@pytest.fixture(scope="session")
def convolution():
    text = '<ir_version: 9, opset_import: ["" : 17]>' + CONVOLUTION
    return with_weights(onnx.parser.parse_model(text), k=(4, 3, 3, 3))


def peer(model):
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def attention_feeds(batch, seq, seed=0):
    rng = np.random.default_rng(seed)
    mask = rng.standard_normal((batch, seq)).astype(np.float32)
    return {"ids": rng.integers(0, 16, (batch, seq)), "mask": mask}


@pytest.mark.parametrize("target", TARGETS)
def test_one_program_runs_at_any_batch_and_length(target, attention):
    exe, theirs = intarsia.compile(attention, target), peer(attention)
    assert [str(spec) for spec in exe.inputs] == [
        "ids: int64[batch,seq]",
        "mask: float32[batch,seq]",
    ]
    for batch, seq in ((1, 1), (1, 7), (3, 16), (2, 5), (1, 7)):
        feeds = attention_feeds(batch, seq)
        outputs = exe.run(feeds)
        np.testing.assert_allclose(outputs["y"], theirs.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    assert exe.sizes[-1] == {"batch": 1, "seq": 7}
    assert len(exe.sizes) == 4


@pytest.mark.parametrize("target", TARGETS)
def test_spatial_sizes_may_be_free(target, convolution):
    exe, theirs = intarsia.compile(convolution, target), peer(convolution)
    for shape in ((1, 3, 8, 8), (2, 3, 17, 30), (1, 3, 9, 12)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        (expected,) = theirs.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_of_the_zoo_runs_at_many_lengths():
    model = build("minilm:free")
    exe, theirs = intarsia.compile(model, "llvm, onnxruntime"), peer(model)
    rng = np.random.default_rng(3)
    for batch, seq in ((1, 3), (2, 9)):
        feeds = {
            spec.name: rng.integers(0, 2, (batch, seq))
            if "mask" not in spec.name
            else np.ones((batch, seq), np.int64)
            for spec in exe.inputs
        }
        expected = theirs.run(None, feeds)
        for actual, wanted in zip(exe.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


def test_an_empty_batch_gives_an_empty_result(parse_model):
    exe = intarsia.compile(parse_model(NAMELESS), "onnxruntime")
    empty = np.zeros((0, 6), np.float32)
    assert exe(empty, empty).shape == (0, 6)


def test_nameless_dimensions_are_called_after_input_and_axis(parse_model):
    exe = intarsia.compile(parse_model(NAMELESS), "reference")
    assert [symbol.name for symbol in exe.symbols] == ["x.0", "z.0"]
    assert exe.outputs[0].shape == (None, 6)
    fixed = intarsia.compile(parse_model(NAMELESS), "reference", shapes={"x.0": 2, "z.0": 2})
    assert [spec.shape for spec in fixed.inputs] == [(2, 6), (2, 6)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (2, 4)), "dimension 'seq' is 3 in input 'ids' but 4 in input 'mask'"),
        (((9, 3), (9, 3)), "dimension 'batch' is 9 in input 'ids', and was bounded to 1..8"),
        (((0, 3), (0, 3)), "dimension 'batch' is 0 in input 'ids', and was bounded to 1..8"),
        (((2,), (2, 3)), r"'ids' has shape \[2\].* it has 2 dimensions"),
    ],
)
def test_a_size_that_does_not_fit_names_the_dimension_and_the_inputs(shapes, message, attention):
    exe = intarsia.compile(attention, "reference", shapes={"batch": "1..8"})
    ids, mask = np.zeros(shapes[0], np.int64), np.zeros(shapes[1], np.float32)
    with pytest.raises(InputError, match=message) as caught:
        exe(ids, mask)
    assert caught.value.hint
    assert exe.sizes == ()  # nothing was compiled for it


def test_other_mistakes_are_found_before_anything_is_compiled(attention):
    exe = intarsia.compile(attention, "reference")
    feeds = attention_feeds(1, 2)
    for wrong, message in (
        ({"ids": feeds["ids"]}, "input 'mask' is missing"),
        ({**feeds, "nope": 1}, "unknown input 'nope'"),
        ({**feeds, "mask": feeds["ids"]}, "'mask' is int64, the model wants float32"),
    ):
        with pytest.raises(InputError, match=message):
            exe.run(wrong)
    with pytest.raises(InputError, match="takes 2 inputs, 1"):
        exe(feeds["ids"])
    assert exe.sizes == ()


def test_a_dimension_that_is_a_sum_of_others_follows_them(parse_model):
    model = parse_model("""free (float[past] a, float[new] b, float[total] c) => (float[n] y) {
        d = Concat <axis: int = 0> (a, b)
        y = Add (c, d)
    }""")
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "past + new"
    exe = intarsia.compile(model, "reference")
    assert [symbol.name for symbol in exe.symbols] == ["past", "new"]
    a, b = np.ones(2, np.float32), np.ones(3, np.float32)
    np.testing.assert_array_equal(exe(a, b, np.ones(5, np.float32)), np.full(5, 2))
    message = (
        "'new\\+past' is 4 in input 'c', but 'new' is 3 in input 'b', 'past' is 2 in input 'a'"
    )
    with pytest.raises(InputError, match=message):
        exe(a, b, np.ones(4, np.float32))
    fixed = intarsia.compile(model, "reference", shapes={"past": 2, "new": 3})
    assert fixed.inputs[2].shape == (5,)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"length": 3}, "no input 'length'"),
        ({"seq": "8..1"}, "bounds 8..1 of dimension 'seq' are empty"),
        ({"seq": "many"}, "'many' are no bounds of dimension 'seq'"),
        ({"seq": (1, 8)}, r"\(1, 8\) is no size of 'seq'"),
        ({"seq": 4, "ids": (1, 5)}, "'seq' would be 5 in input 'ids', and 4 by its own name"),
        ({"ids": (1, 5), "mask": (1, 6)}, "'seq' would be 5 in input 'ids' but 6 in input 'mask'"),
    ],
)
def test_what_is_said_wrongly_of_sizes_is_a_model_error(shapes, message, attention):
    with pytest.raises(ModelError, match=message) as caught:
        intarsia.compile(attention, "reference", shapes=shapes)
    assert caught.value.hint


def test_the_least_recently_used_program_goes(attention):
    exe = intarsia.compile(attention, "reference", max_shapes=2)
    for seq in (1, 2, 1, 3):
        exe.run(attention_feeds(1, seq))
    assert [sizes["seq"] for sizes in exe.sizes] == [1, 3]
    with pytest.raises(SettingError, match="max_shapes=0"):
        intarsia.compile(attention, "reference", max_shapes=0)


def test_a_frozen_program_compiles_no_more(attention):
    exe = intarsia.compile(attention, "reference", sizes={"seq": [2, 4]}, frozen=True)
    assert exe.run(attention_feeds(1, 4))["y"].shape == (1, 4, 8)
    with pytest.raises(InputError, match="no program for batch=1, seq=3, and none") as caught:
        exe.run(attention_feeds(1, 3))
    assert "batch=1, seq=2; batch=1, seq=4" in caught.value.hint


def test_programs_of_a_model_share_their_weights(attention):
    exe = intarsia.compile(attention, "llvm, onnxruntime", sizes={"seq": [16, 32], "batch": 1})
    addresses = [
        {constant.data.ctypes.data for part in program.artifacts for constant in part.constants}
        for program in exe.programs
    ]
    assert addresses[0] & addresses[1]


def test_arrays_are_bound_in_place_at_their_sizes(attention):
    exe = intarsia.compile(attention, "llvm, onnxruntime")
    feeds = attention_feeds(2, 5)
    y = np.zeros((2, 5, 8), np.float32)
    exe.bind(feeds, {"y": y})()
    np.testing.assert_allclose(y, peer(attention).run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="'y' has shape"):
        exe.bind(feeds, {"y": np.zeros((2, 4, 8), np.float32)})
    other = np.zeros_like(y)
    assert exe(*feeds.values(), out=other) is other
    np.testing.assert_array_equal(other, y)


def test_many_threads_compile_each_size_once(attention):
    exe = intarsia.compile(attention, "onnxruntime")
    lengths = [1, 2, 3, 4] * 4
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda seq: exe.run(attention_feeds(1, seq))["y"], lengths))
    assert [result.shape[1] for result in results] == lengths
    assert sorted(sizes["seq"] for sizes in exe.sizes) == [1, 2, 3, 4]


def test_an_explanation_names_the_sizes(attention):
    exe = intarsia.compile(attention, "reference", shapes={"batch": "2..8"})
    assert "batch (from 2 to 8), seq (from 0)" in str(exe.explain())
    assert exe.sizes == ({"batch": 2, "seq": 128},)  # the nominal ones
    assert exe.placement.coverage()
    with pytest.raises(InputError, match="no free dimension 'length'"):
        exe.specialise({"length": 3})


def test_a_model_file_that_changes_is_not_compiled_again(attention, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(attention, path)
    exe = intarsia.compile(path, "reference")
    exe.run(attention_feeds(1, 2))
    path.write_bytes(b"")
    exe.run(attention_feeds(1, 2))
    with pytest.raises(ModelError, match="has changed since it was compiled"):
        exe.run(attention_feeds(1, 3))


def test_kept_programs_are_found_by_another_start(attention, tmp_path, own_cache, monkeypatch):
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    path = tmp_path / "m.onnx"
    onnx.save(attention, path)
    feeds = attention_feeds(1, 2)
    first = intarsia.compile(path, "reference").run(feeds)["y"]
    folder = own_cache / "programs"
    kept = {file.name: file.stat().st_ino for file in folder.glob("*.intarsia")}
    assert len(kept) == 1
    np.testing.assert_array_equal(intarsia.compile(path, "reference").run(feeds)["y"], first)
    assert {file.name: file.stat().st_ino for file in folder.glob("*.intarsia")} == kept


def test_an_input_without_a_rank_takes_any_shape(parse_model):
    model = parse_model("free (float[n] x) => (float[n] y) { y = Neg (x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    exe = intarsia.compile(model, "reference")
    for shape in ((2, 3), (4,), ()):
        assert exe(np.ones(shape, np.float32)).shape == shape
    with pytest.raises(InputError, match="input 'x' has no rank"):
        exe.specialise({})


def wait_until(is_done):
    end = time.monotonic() + 300
    while not is_done() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_done()


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, onnxruntime"])
def test_a_program_for_all_sizes_runs_what_comes_until_its_sizes_come_often(target, attention):
    exe, theirs = intarsia.compile(attention, target), peer(attention)
    assert exe.generic.placement.coverage()[target.partition(",")[0]]
    for batch, seq in ((1, 3), (4, 9), (1, 3), (2, 17)):
        feeds = attention_feeds(batch, seq)
        expected = theirs.run(None, feeds)[0]
        np.testing.assert_allclose(exe.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
    assert exe.artifacts == exe.generic.artifacts  # nothing was compiled
    feeds = attention_feeds(4, 9)
    expected = exe.run(feeds)["y"]
    for _ in range(3):
        exe.run(feeds)

    def is_swapped():
        np.testing.assert_allclose(exe.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)
        return exe.artifacts != exe.generic.artifacts

    wait_until(is_swapped)
    exe.run(attention_feeds(1, 3))
    assert exe.artifacts == exe.generic.artifacts


def test_the_program_for_all_sizes_is_on_the_users_targets_alone(attention):
    assert intarsia.compile(attention, "reference").generic is None
    fixed = intarsia.compile(attention, "onnxruntime", shapes={"batch": 2})
    assert fixed.generic is not None
    assert fixed.run(attention_feeds(2, 3))["y"].shape == (2, 3, 8)


def test_sizes_that_the_program_for_all_does_not_take_get_their_own(attention):
    exe = intarsia.compile(attention, "onnxruntime")
    assert exe.run(attention_feeds(0, 3))["y"].shape == (0, 3, 8)
    assert exe.artifacts != exe.generic.artifacts


def test_a_plan_with_free_dimensions_has_other_offsets_at_other_sizes(attention):
    exe = intarsia.compile(attention, "onnxruntime, openvino", exclude=["onnxruntime:Softmax"])
    plan = exe.generic.plan
    sizes = [plan.at({"batch": 2, "seq": seq}) for seq in (4, 400)]
    assert [dict(one.extents) for one in sizes] == [{}, {}]
    assert sizes[0].arena_bytes < sizes[1].arena_bytes
    assert max(tensor.offset for tensor in sizes[1].tensors) > 0
    for seq in (4, 400):
        feeds = attention_feeds(2, seq)
        expected = peer(attention).run(None, feeds)[0]
        np.testing.assert_allclose(exe.run(feeds)["y"], expected, rtol=1e-4, atol=1e-5)


def test_programs_for_sizes_know_shapes_that_the_model_computes():
    exe = intarsia.compile(build("minilm:free"), "onnxruntime", sizes={"seq": 8})
    (program,) = exe.programs
    assert not any(tensor.shape is None for tensor in program.plan.tensors)
    assert program.placement.node_count < exe.generic.placement.node_count + 1


@pytest.mark.parametrize(("batch", "seq"), [(1, 5), (3, 40)])
def test_a_program_for_some_sizes_is_that_of_a_build_for_these(attention, batch, seq):
    """What `benchmarks/free_sizes.py` compares differs by where it lies in memory alone."""
    sizes = {"batch": batch, "seq": seq}
    own = intarsia.compile(attention, "llvm", num_threads=1).specialise(sizes)
    static = intarsia.compile(attention, "llvm", shapes=sizes, num_threads=1)
    assert [one.payload for one in own.artifacts] == [one.payload for one in static.artifacts]


def test_sizes_use_the_same_memory_in_turn(attention):
    exe, theirs = intarsia.compile(attention, "llvm", num_threads=1, frozen=True), peer(attention)

    def check(batch, seq):
        feeds = attention_feeds(batch, seq, seed=seq)
        for _ in range(2):
            result = exe.run(feeds)["y"]
            np.testing.assert_allclose(result, theirs.run(None, feeds)[0], rtol=1e-4, atol=1e-5)

    check(2, 40)
    (memory,) = exe.generic._idle
    block = memory.block
    check(2, 7)
    check(1, 39)
    assert memory.block is block
    check(4, 100)  # it grows, and what is bound to the old one is bound anew
    assert memory.block.nbytes > block.nbytes
    check(2, 40)
    with pytest.raises(InputError, match="ids"):
        exe.run(attention_feeds(2, 40) | {"ids": np.full((2, 40), 99)})
    check(2, 40)
    check(1, 1)
    assert list(exe.generic._idle) == [memory]


@pytest.mark.parametrize("form", ["plain", "strided", "unaligned"])
def test_a_first_run_reads_and_writes_arrays_as_they_are(form, attention):
    """It copies nothing, and what it returns belongs to the caller as what later runs return."""
    exe = intarsia.compile(attention, "llvm")
    ids = np.arange(60).reshape(2, 30) % 16
    mask = np.zeros((2, 30), np.float32)
    if form == "strided":
        ids = np.repeat(ids, 2, 1)[:, ::2]
    elif form == "unaligned":
        bytes_ = np.zeros(mask.nbytes + 1, np.uint8)
        mask = bytes_[1:].view(np.float32).reshape(2, 30)
    feeds = {"ids": ids, "mask": mask}
    want = peer(attention).run(None, {name: np.array(array) for name, array in feeds.items()})[0]
    first = exe.run(feeds)["y"]
    kept = first.copy()
    assert first.ctypes.data % 64 == 0
    np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-5)
    others = [exe.run({"ids": ids[:, ::-1], "mask": mask})["y"] for _ in range(2)]
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(others[0], others[1])
    np.testing.assert_array_equal(exe.run(feeds)["y"], kept)


def test_a_first_run_may_write_where_it_reads():
    text = "free (float[seq,6] x) => (float[seq,6] y) { y = MatMul (x, w) }"
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>' + text)
    model = with_weights(model, w=(6, 6))
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    want = x @ numpy_helper.to_array(model.graph.initializer[0])
    np.testing.assert_allclose(intarsia.compile(model, "llvm")(x, out=x), want, rtol=1e-5)


def test_threads_at_different_sizes_do_not_share_memory(attention):
    exe, theirs = intarsia.compile(attention, "llvm", num_threads=1, frozen=True), peer(attention)
    every = [attention_feeds(1 + n % 3, 1 + 7 * n, seed=n) for n in range(8)]
    expected = [theirs.run(None, feeds)[0] for feeds in every]

    def run(turn):
        return turn, exe.run(every[turn % 8])["y"]

    with ThreadPoolExecutor(4) as pool:
        for turn, result in pool.map(run, range(64)):
            np.testing.assert_allclose(result, expected[turn % 8], rtol=1e-4, atol=1e-5)
    assert 1 <= len(exe.generic._idle) <= 4


def test_explain_says_which_nodes_another_target_has_in_the_program_for_all_sizes():
    """Native code takes an LSTM whose number of sequences it knows."""
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[4,N,3] x) => (float[4,1,N,5] y) {'
    model = onnx.parser.parse_model(text + " y = LSTM <hidden_size: int = 5> (x, w, r) }")
    model = with_weights(model, w=(1, 20, 3), r=(1, 20, 5))
    model.graph.node[0].name = "steps"
    exe = intarsia.compile(model, "llvm, onnxruntime")
    exe.run({"x": np.zeros((4, 2, 3), np.float32)})
    assert exe.latest.placement.regions[0].backend == "onnxruntime"
    assert "last digits" not in str(exe.explain())
    exe.specialise({"N": 2})
    assert exe.latest.placement.regions[0].backend == "llvm"
    told = "1 node has another target in the program for all sizes (steps: onnxruntime, not llvm"
    assert told in str(exe.explain())
