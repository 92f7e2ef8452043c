# SPDX-License-Identifier: Apache-2.0
"""One native program at many sizes, against ONNX Runtime."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import intarsia
from intarsia.backends import llvm, native_free
from intarsia.backends.native_free import FreeCalls
from intarsia.errors import ExecutionError, PackageError
from intarsia.extents import evaluate_all
from intarsia.graph.arena import aligned_bytes, assign_offsets
from intarsia.graph.load import load
from intarsia.passes.free_shapes import prepare_free
from intarsia.testing.subject import Subject
from intarsia.zoo import free
from intarsia.zoo.transformers import Encoder

NOMINAL = {"batch": 2, "seq": 64}
SIZES = [(1, 1), (2, 64), (3, 17), (1, 128), (2, 200), (8, 5), (1, 512), (5, 14)]


@pytest.fixture(scope="module")
def encoder():
    return free.bert(Encoder("tiny", 2, 64, 4, 100), np.random.default_rng(0))


@pytest.fixture(scope="module")
def program(encoder):
    """The graph of the encoder, and its one executable."""
    graph = prepare_free(load(encoder, stays_free=True), NOMINAL)[0].graph
    subject = Subject(llvm.BACKEND, None, {})
    assert not subject.refusals(graph, "encoder")
    artifact = subject.backend.compile(subject.candidate(graph.whole), subject.context)
    return graph, subject.backend.load(artifact, subject.open()), artifact


def feeds_of(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 1000 + length)
    mask = (rng.random((batch, length)) > 0.2).astype(np.int64)
    mask[:, 0] = 1
    return {
        "input_ids": rng.integers(0, 100, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


def bind(graph, executable, feeds):
    """Return the step of an executable of known sizes, and its outputs."""
    batch, length = feeds["input_ids"].shape
    sizes = {"batch": batch, "seq": length}
    outputs = {
        graph.values[i].name: np.full(
            evaluate_all(graph.values[i].extents or graph.values[i].shape, sizes), np.nan, "float32"
        )
        for i in graph.whole.outputs
    }
    inputs = [feeds[graph.values[i].name] for i in graph.whole.inputs]
    scratch = aligned_bytes(max(1, executable.scratch_bytes))
    return executable.bind(inputs, list(outputs.values()), scratch), outputs


def test_one_program_serves_all_sizes(encoder, program):
    graph, executable, _ = program
    session = onnxruntime.InferenceSession(
        encoder.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for batch, length in SIZES:
        feeds = feeds_of(batch, length)
        step, outputs = bind(graph, executable.at({"batch": batch, "seq": length}), feeds)
        step()
        for (name, result), expected in zip(
            outputs.items(), session.run(list(outputs), feeds), strict=True
        ):
            np.testing.assert_allclose(result, expected, rtol=2e-4, atol=2e-5, err_msg=name)


def test_programs_of_several_sizes_run_side_by_side(program):
    graph, executable, _ = program
    bound = [
        bind(graph, executable.at({"batch": b, "seq": n}), feeds_of(b, n)) for b, n in SIZES[:3]
    ]
    for step, _ in bound:
        step()
    first = [{name: array.copy() for name, array in outputs.items()} for _, outputs in bound]
    for step, _ in reversed(bound):
        step()
    for (_, outputs), before in zip(bound, first, strict=True):
        for name, array in outputs.items():
            np.testing.assert_array_equal(array, before[name])


def test_an_index_out_of_bounds_is_found_at_any_size(program):
    graph, executable, _ = program
    feeds = feeds_of(2, 33)
    feeds["input_ids"][1, 32] = 100
    step, _ = bind(graph, executable.at({"batch": 2, "seq": 33}), feeds)
    with pytest.raises(Exception, match="100"):
        step()


def test_a_damaged_record_of_sizes_is_refused(program):
    _, executable, artifact = program
    payload = executable._payload
    broken = msgspec.structs.replace(payload.free, extents=payload.free.extents[:-1])
    with pytest.raises(PackageError, match="damaged"):
        FreeCalls(msgspec.structs.replace(payload, free=broken), artifact.target).at(NOMINAL)
    calls = FreeCalls(payload, artifact.target)
    with pytest.raises(PackageError, match="damaged"):
        calls.at({"batch": 2})
    with pytest.raises(ExecutionError, match="larger than any memory"):
        calls.at({"batch": 1 << 40, "seq": 1 << 40})


def test_lengths_that_grow_by_one_find_their_places_known(program, monkeypatch):
    """Places are found for a few lengths, and take little more than each length would."""
    _, executable, artifact = program
    free = executable._payload.free
    lives = sorted((*life, i) for i, life in enumerate(free.lives) if life is not None)
    asked = []

    def counted(blocks):
        asked.append(blocks)
        return assign_offsets(blocks)

    monkeypatch.setattr(native_free, "assign_offsets", counted)
    calls = FreeCalls(executable._payload, artifact.target)
    for length in range(100, 200):
        sized = calls.at({"batch": 1, "seq": length})
        blocks = [(first, last, int(sized.nbytes[i])) for first, last, i in lives]
        _, needed = assign_offsets(blocks)
        assert needed <= sized.scratch_bytes <= 1.07 * needed + 256 * len(lives)
        ends = sized.starts + sized.nbytes
        for number, (first, _, i) in enumerate(lives):
            assert ends[i] <= sized.scratch_bytes
            for _, other_last, other in lives[:number]:
                is_apart = ends[other] <= sized.starts[i] or ends[i] <= sized.starts[other]
                assert other_last < first or is_apart or not sized.nbytes[[i, other]].all()
    assert len(asked) < 25


def test_a_place_outside_of_its_storage_is_found_when_sizes_are_known(program):
    _, executable, artifact = program
    payload, first = executable._payload, executable._payload.calls[0]
    (storage, offset), *others = first.arguments
    for number, problem in ((storage, "an offset"), (len(payload.storages), "a pointer")):
        arguments = [(number, offset + (1 << 40)), *others]
        calls = [msgspec.structs.replace(first, arguments=arguments), *payload.calls[1:]]
        with pytest.raises(PackageError, match=problem):
            FreeCalls(msgspec.structs.replace(payload, calls=calls), artifact.target).at(NOMINAL)


NETWORK = """
<ir_version: 8, opset_import: ["" : 18]>
network (float[images, 3, 33, 33] x) => (float[images, 10] y)
{
  s = Conv<strides=[2, 2], pads=[1, 1, 1, 1]>(x, a)
  r = Relu(s)
  p = MaxPool<kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]>(r)
  w = Conv<group=16, pads=[1, 1, 1, 1]>(p, b)
  q = Clip(w)
  u = Conv(q, c)
  v = Conv<pads=[1, 1, 1, 1]>(u, d)
  t = Add(u, v)
  g = GlobalAveragePool(t)
  f = Constant<value_ints=[-1, 32]>()
  h = Reshape(g, f)
  y = Gemm<transB=1>(h, e)
}
"""
WEIGHTS = {
    "a": (16, 3, 3, 3),
    "b": (16, 1, 3, 3),
    "c": (32, 16, 1, 1),
    "d": (32, 32, 3, 3),
    "e": (10, 32),
}


def test_a_network_of_images_has_a_free_batch():
    """Direct, depthwise and pointwise convolutions, Winograd's transforms, and poolings."""
    model = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        array = rng.standard_normal(shape, dtype=np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = prepare_free(load(model, stays_free=True), {"images": 4})[0].graph
    subject = Subject(llvm.BACKEND, None, {})
    assert not subject.refusals(graph, "network")
    artifact = subject.backend.compile(subject.candidate(graph.whole), subject.context)
    assert "Winograd" in artifact.metadata["about"]
    executable = subject.backend.load(artifact, subject.open())
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for images in (1, 2, 3, 7):
        x = rng.standard_normal((images, 3, 33, 33), dtype=np.float32)
        y = np.full((images, 10), np.nan, np.float32)
        fixed = executable.at({"images": images})
        fixed.bind([x], [y], aligned_bytes(max(1, fixed.scratch_bytes)))()
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("split", ["Split<axis=0>(x, sizes)", "Split<axis=-2>(x, sizes)"])
def test_sizes_of_parts_may_not_be_those_of_a_free_extent(split):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[n,4] x) => (float[2,4] y, float[2,4] z)'
        f"<int64[2] sizes = {{2, 2}}> {{ [split] y, z = {split} }}"
    )
    graph = prepare_free(load(model, stays_free=True), {"n": 4})[0].graph
    (refusal,) = Subject(llvm.BACKEND, None, {}).refusals(graph, "parts").values()
    assert "may not add up" in str(refusal)


def test_ones_on_a_diagonal_of_free_length_are_not_one_number_everywhere():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 16]> g (float16[3,n] x) => (float[a,b] y) '
        "{ y = EyeLike<dtype=1>(x) }"
    )
    program = intarsia.compile(model, "llvm", cache=False, num_threads=1)
    for length in (7, 1, 2, 7):
        made = program.run({"x": np.ones((3, length), np.float16)})["y"]
        np.testing.assert_array_equal(made, np.eye(3, length, dtype=np.float32))
