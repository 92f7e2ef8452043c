# SPDX-License-Identifier: Apache-2.0
"""A limit of the host's memory is planned for, or refused with figures before anything runs."""

import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.cli.options import read_max_memory
from intarsia.compiler import read_setting
from intarsia.errors import PlacementError, SettingError
from intarsia.place.memory_limit import inner_bytes, memory_need
from intarsia.place.request import Request

WEIGHTS = 64 * 64 * 4
ROWS = 512
TENSOR = ROWS * 64 * 4


@pytest.fixture(scope="module")
def model():
    """A product with weights of 16 KiB, and three more tensors of 128 KiB."""
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Sin", ["a"], ["b"], name="sin"),
        helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, 64]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(scope="module")
def free(parse_model):
    return parse_model("g (float[n,64] x) => (float[n,64] y) { a = Sin(x) y = Relu(a) }")


def test_what_a_program_needs_is_counted(model):
    graph = read_setting(Request(model=model, target="onnxruntime")).graph
    exe = intarsia.compile(model, "onnxruntime")
    need = memory_need(exe, graph)
    assert need.constant_bytes == WEIGHTS
    assert need.tensor_bytes == 2 * TENSOR  # input and output
    assert need.workspace_bytes == inner_bytes(graph.whole) == 3 * TENSOR
    assert need.total_bytes == WEIGHTS + 5 * TENSOR
    assert need.runs_within(WEIGHTS + 11 * TENSOR) == 2
    assert need.runs_within(WEIGHTS) == 0


def test_weights_of_bodies_are_counted():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
        g (float[1,64] x, bool c) => (float[1,64] y) {
            y = If(c) <
                then_branch = then () => (float[1,64] p) { p = MatMul(x, w) },
                else_branch = other () => (float[1,64] q) { q = Abs(x) }
            >
        }""")
    branch = next(each.g for each in model.graph.node[0].attribute if each.name == "then_branch")
    branch.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
    graph = read_setting(Request(model=model, target="llvm, onnxruntime")).graph
    exe = intarsia.compile(model, "llvm, onnxruntime")
    assert exe.bodies
    assert memory_need(exe, graph).constant_bytes >= WEIGHTS


def test_weights_that_are_stored_narrow_may_fit(model):
    with pytest.raises(PlacementError, match="weights alone take"):
        intarsia.compile(model, "llvm", max_memory=WEIGHTS // 2)
    with pytest.raises(PlacementError, match="tensors"):  # they are not what is too much
        intarsia.compile(model, "llvm -precision=bf16", max_memory=WEIGHTS // 2)


def test_weights_that_are_too_large_are_refused_before_anything_is_compiled(model, monkeypatch):
    def build(*_, **__):
        raise AssertionError("it is compiled")

    monkeypatch.setattr("intarsia.place.build.build_program", build)
    with pytest.raises(PlacementError, match=r"weights alone take 0\.1 MiB"):
        intarsia.compile(model, "onnxruntime", max_memory=WEIGHTS - 1)


def test_a_limit_that_nothing_meets_is_refused_with_figures(model):
    with pytest.raises(PlacementError) as caught:
        intarsia.compile(model, "fake -ops=Sin, onnxruntime, reference", max_memory=WEIGHTS + 1)
    text = str(caught.value)
    for part in ("0.1 MiB of memory are too few", "onnxruntime: 0.7 MiB", "reference: ", "weights"):
        assert part in text


def test_a_plan_that_fits_is_taken_where_the_first_does_not(
    model, caplog, random_feeds, evaluate, assert_same
):
    """Between regions a tensor that several read lives on; inside native code it need not."""
    limit = WEIGHTS + 4 * TENSOR
    exe = intarsia.compile(model, "onnxruntime, llvm", max_memory=limit, num_threads=1)
    assert {region.target.split()[0] for region in exe.placement.regions} == {"llvm"}
    assert "runs everything, to stay within" in caplog.text
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_no_more_runs_go_on_at_once_than_there_is_memory_for(model):
    exe = intarsia.compile(model, "reference", max_memory=WEIGHTS + 11 * TENSOR)
    assert exe._memories.most == 2
    alone = intarsia.compile(model, "reference", max_memory=WEIGHTS + 5 * TENSOR)
    assert alone._memories.most == 1
    feeds = {"x": np.ones((ROWS, 64), np.float32)}
    threads = [threading.Thread(target=alone.run, args=(feeds,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(alone._memories.idle) == 1  # of all three


def test_few_programs_of_free_sizes_are_kept_and_sizes_that_do_not_fit_are_refused(free):
    limit = 3 * 256 * 64 * 4
    exe = intarsia.compile(free, "onnxruntime", max_memory=limit)
    for rows in (8, 16, 256):
        exe.run({"x": np.ones((rows, 64), np.float32)})
        assert len(exe.programs) == 1
    with pytest.raises(PlacementError, match="are too few"):
        exe.run({"x": np.ones((512, 64), np.float32)})
    kept = intarsia.compile(free, "onnxruntime", max_memory=limit, max_shapes=2)
    with pytest.raises(PlacementError, match="for each of 2 sizes"):
        kept.run({"x": np.ones((256, 64), np.float32)})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_memory": 0}, "is no memory"),
        ({"max_memory": 1, "placement": "collage"}, "contradicts placement"),
        ({"max_memory": 1, "buckets": {"n": 4}}, "contradicts buckets"),
    ],
)
def test_limits_that_mean_nothing(free, options, text):
    with pytest.raises(SettingError, match=text):
        intarsia.compile(free, "onnxruntime", **options)


def test_amounts_are_read():
    assert [read_max_memory(text) for text in ("7", "1.5kB", "2 MiB", "1g", None)] == [
        *(7, 1500, 2 << 20, 10**9, None)
    ]
    for text in ("", "much", "-1MB", "0.1"):
        with pytest.raises(SettingError, match="no amount of memory"):
            read_max_memory(text)
