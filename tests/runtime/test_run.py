# SPDX-License-Identifier: Apache-2.0
"""Running a plan: what goes in is checked, what comes out is the caller's."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.errors import ExecutionError, InputError, UnsupportedError

TARGETS = ("reference", "onnxruntime", "openvino, onnxruntime", "fake -ops=Relu,Add, reference")


class DlpackOnly:
    """An array of another library: nothing but the DLPack protocol."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class BrokenDlpack(DlpackOnly):
    """One whose memory cannot be had."""

    def __dlpack__(self, **options):
        raise RuntimeError("it requires a gradient")


@pytest.fixture(scope="module", params=TARGETS)
def exe(request, chain_model, backends):
    return intarsia.compile(chain_model, request.param, num_threads=1, backends=backends)


@pytest.fixture(scope="module")
def feeds(chain_model, random_feeds):
    return random_feeds(chain_model)


def test_inputs_and_outputs_describe_the_model(exe):
    assert [str(spec) for spec in exe.inputs] == ["x: float32[2,4]"]
    assert [str(spec) for spec in exe.outputs] == ["y: float32[2,4]", "mid: float32[2,4]"]


def test_the_positional_form_gives_a_tuple(exe, chain_model, feeds, evaluate, assert_same):
    outputs = exe(feeds["x"])
    assert_same(dict(zip(("y", "mid"), outputs, strict=True)), evaluate(chain_model, feeds))


def test_one_output_comes_alone(parse_model, backends):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    exe = intarsia.compile(model, "reference", backends=backends)
    np.testing.assert_array_equal(exe(np.array([1, -2], np.float32)), [-1, 2])


BAD_FEEDS = [
    ({}, "input 'x' is missing"),
    ({"x": np.zeros((2, 4), np.float32), "z": 1}, "unknown input 'z'"),
    ({"X": np.zeros((2, 4), np.float32)}, "unknown input 'X'; input 'x' is missing"),
    ({"x": np.zeros((2, 4))}, "'x' is float64, the model wants float32"),
    ({"x": np.zeros((4, 2), np.float32)}, r"'x' has shape \[4, 2\], the model wants \[2, 4\]"),
    ({"x": np.zeros(8, np.float32)}, r"has shape \[8\]"),
    ({"x": None}, "'x' is None"),
    ({"x": [[1.0, 2.0], [3.0]]}, "'x' cannot be read as an array"),
    ({"x": BrokenDlpack(np.zeros(1))}, "it requires a gradient"),
    ([np.zeros((2, 4), np.float32)], "not as list"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_FEEDS)
def test_bad_inputs_are_named(bad, message, exe):
    with pytest.raises(InputError, match=message) as caught:
        exe.run(bad)
    assert caught.value.hint


@pytest.mark.parametrize("count", [0, 2])
def test_a_wrong_number_of_positional_inputs_is_an_error(count, exe, feeds):
    with pytest.raises(InputError, match=f"takes 1 inputs, {count} were given"):
        exe(*[feeds["x"]] * count)


@pytest.mark.parametrize("value", [np.zeros(2, np.float32), [1, 2], np.array([b"a", b"b"])])
def test_text_is_wanted_where_the_model_says_so(value, parse_model, backends):
    model = parse_model("g (string[2] x) => (string[4] y) { y = Concat<axis = 0>(x, x) }")
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    with pytest.raises(InputError, match="the model wants string"):
        exe.run({"x": value})
    with pytest.raises(InputError, match=r"has shape \[3\]"):
        exe.run({"x": np.array(["a", "b", "c"])})


def test_dlpack_and_strided_inputs_are_taken(exe, chain_model, feeds, evaluate, assert_same):
    expected = evaluate(chain_model, feeds)
    assert_same(exe.run({"x": DlpackOnly(feeds["x"])}), expected)
    assert_same(exe.run({"x": np.asfortranarray(feeds["x"])}), expected)
    wide = np.zeros((2, 8), np.float32)
    wide[:, ::2] = feeds["x"]
    assert_same(exe.run({"x": wide[:, ::2]}), expected)
    read_only = feeds["x"].copy()
    read_only.flags.writeable = False
    assert_same(exe.run({"x": read_only}), expected)


def test_outputs_are_the_callers_to_change(exe, chain_model, feeds, evaluate, assert_same):
    expected = evaluate(chain_model, feeds)
    for _ in range(3):
        outputs = exe.run(feeds)
        assert_same(outputs, expected)
        for array in outputs.values():
            array.fill(np.nan)


def test_many_threads_share_one_executable(exe, chain_model, random_feeds, evaluate, assert_same):
    cases = [random_feeds(chain_model, seed) for seed in range(8)]
    expected = [evaluate(chain_model, case) for case in cases]

    def work(i):
        for _ in range(20):
            assert_same(exe.run(cases[i]), expected[i])
        return i

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_a_context_reads_and_writes_the_callers_arrays(
    exe, chain_model, random_feeds, evaluate, assert_same
):
    x, y = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
    context = exe.context(inputs={"x": x}, outputs={"y": y})
    for seed in range(3):
        feeds = random_feeds(chain_model, seed)
        x[...] = feeds["x"]
        context.run()
        expected = evaluate(chain_model, feeds)
        np.testing.assert_allclose(y, expected["y"], rtol=1e-5)
        assert_same(context.read_outputs(), expected)


def test_two_contexts_do_not_disturb_each_other(
    exe, chain_model, random_feeds, evaluate, assert_same
):
    contexts = [exe.context() for _ in range(2)]
    cases = [random_feeds(chain_model, seed) for seed in range(2)]
    for context, case in zip(contexts, cases, strict=True):
        context.write_inputs([case["x"]])
    for context in contexts:
        context.run()
    for context, case in zip(contexts, cases, strict=True):
        assert_same(context.read_outputs(), evaluate(chain_model, case))


def read_only_array():
    array = np.zeros((2, 4), np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"q": np.zeros((2, 4), np.float32)}, None, "no tensor 'q'"),
        (None, {"x": np.zeros((2, 4), np.float32)}, "no tensor 'x'"),
        ({"x": np.zeros((2, 4))}, None, "float64"),
        ({"x": np.zeros((2, 8), np.float32)[:, ::2]}, None, "not a C-contiguous"),
        (None, {"y": np.zeros((4, 2), np.float32)}, "has shape"),
        (None, {"y": read_only_array()}, "read-only"),
    ],
)
def test_what_cannot_be_bound_is_an_error(inputs, outputs, message, exe):
    with pytest.raises(InputError, match=message):
        exe.context(inputs=inputs, outputs=outputs)


BORDERS = {
    "no nodes": "g (float[2] x) => (float[2] x) {}",
    "an input is an output": "g (float[2] x) => (float[2] y, float[2] x) { y = Neg(x) }",
    "a constant is an output": """
        g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }""",
    "everything folds": """
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Neg(w) }""",
    "identity of an input": "g (float[2] x) => (float[2] y) { y = Identity(x) }",
    "one input to two outputs": """
        g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x) z = Identity(x) }""",
    "an output is consumed": """
        g (float[2] x) => (float[2] y, float[2] z) { y = Neg(x) z = Exp(y) }""",
    "an unused input": "g (float[2] x, float[3] u) => (float[2] y) { y = Neg(x) }",
}


@pytest.mark.parametrize("target", ["reference", "onnxruntime", "openvino, onnxruntime", "fake"])
@pytest.mark.parametrize("name", BORDERS)
def test_any_border_works(name, target, parse_model, random_feeds, evaluate, assert_same, backends):
    model = parse_model(BORDERS[name])
    exe = intarsia.compile(model, target, backends=backends)
    for seed in range(2):
        feeds = random_feeds(model, seed)
        expected = evaluate(model, feeds)
        outputs = exe.run(feeds)
        assert_same(outputs, expected)
        for array in outputs.values():
            array.fill(np.nan)  # not the constant's own memory, nor the input's
        assert not np.isnan(feeds["x"]).any()


def test_one_value_may_be_two_outputs(parse_model, backends):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    model.graph.output.append(model.graph.output[0])
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    first, second = exe(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(first, [-1, -2])
    np.testing.assert_array_equal(second, first)


def test_an_output_that_is_an_input_cannot_be_bound(parse_model, backends):
    model = parse_model("g (float[2] x) => (float[2] y, float[2] x) { y = Neg(x) }")
    exe = intarsia.compile(model, "reference", backends=backends)
    with pytest.raises(InputError, match="'x' cannot be bound"):
        exe.context(outputs={"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize("target", ["reference", "onnxruntime"])
def test_a_dynamic_output_is_the_callers_to_change(target, parse_model, backends):
    model = parse_model("""
        g (bool c, string[2] s) => (string[2] t, float[n] y) <float[2] w = {1.0, 2.0}> {
            t = Identity(s)
            y = If(c) <then_branch = a () => (float[2] p) { p = Identity(w) },
                       else_branch = b () => (float[1] q) { q = Constant<value_floats = [7.0]>() }>
        }""")
    exe = intarsia.compile(model, target, backends=backends)
    given = np.array(["a", "b"], object)
    for _ in range(2):
        outputs = exe.run({"c": np.array(True), "s": given})
        assert outputs["t"].tolist() == given.tolist() == ["a", "b"]
        assert outputs["y"].tolist() == [1, 2]
        outputs["t"][0] = "changed"
        outputs["y"][0] = 9


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, onnxruntime"])
def test_a_step_keeps_its_constants_alive_and_no_longer(target, backends):
    # the runtimes only point to our constants: nothing may free them while a step can run
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((512, 512), dtype=np.float32)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "product",
        [info("x", onnx.TensorProto.FLOAT, [1, 512])],
        [info("y", onnx.TensorProto.FLOAT, [1, 512])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    x = rng.standard_normal((1, 512), dtype=np.float32)
    executable = intarsia.compile(model, target, backends=backends)
    (constant,) = executable.artifacts[0].constants
    pointed_to = weakref.ref(constant.data)
    context = executable.context(inputs={"x": x})
    (step,) = context.backend_steps()
    del model, graph, executable, constant, context
    gc.collect()
    assert pointed_to() is not None, "a step would read freed memory"
    step()
    del step
    gc.collect()
    assert pointed_to() is None, "the weights are leaked"


@pytest.mark.parametrize("dims", [(1 << 40, 10), (1 << 31, 1 << 31, 10)])
@pytest.mark.parametrize("target", ["onnxruntime", "llvm"])
def test_an_output_that_no_memory_holds_is_an_error_that_names_it(target, dims):
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Expand", ["x", "s"], ["y"])],
        "g",
        [value("x", 1, [10])],
        [value("y", 1, dims)],
        [onnx.numpy_helper.from_array(np.array(dims), "s")],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=imports)
    try:
        exe = intarsia.compile(model, target, num_threads=1)
    except UnsupportedError:  # native code addresses no more than 2**63 bytes
        assert len(dims) > 2
        return
    with pytest.raises(ExecutionError, match="no memory for 'y'"):
        exe.run({"x": np.zeros(10, np.float32)})


def test_the_buffers_of_a_program_go_with_it(parse_model):
    exe = intarsia.compile(
        parse_model("g (float[2,3] x) => (float[2,3] y) { y = Relu (x) }"), "llvm", num_threads=1
    )
    exe.run({"x": np.ones((2, 3), np.float32)})
    (bound,) = exe._bound.values()
    context = weakref.ref(bound.context)
    del bound
    gc.disable()  # arenas are too large to wait for a collection
    try:
        del exe
        assert context() is None
    finally:
        gc.enable()
