# SPDX-License-Identifier: Apache-2.0
"""Sizes that the data decides: found while a plan runs, and given to native code behind them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.errors import ExecutionError, InputError
from intarsia.plan.plan import FORMAT_VERSION
from intarsia.runtime.package import read_package
from intarsia.runtime.recorder import RunRecorder
from intarsia.runtime.verify import verify_plan

HEAD = (
    '<ir_version: 9, opset_import: ["" : 17]> late (float[12,8] x, bool[12] keep) => ({outputs}) {{'
)
ROWS = """
    found = NonZero (keep)
    axes = Constant <value_ints: ints = [0]> ()
    places = Squeeze (found, axes)
    rows = Gather <axis: int = 0> (x, places)
"""
# What reads `rows`, of shape [n, 8], and makes y; with how many nodes native code must have.
TAILS = {
    "elementwise": "a = Relu (rows)\n y = Add (a, bias)",
    "rows of a product": "a = MatMul (rows, w)\n y = Tanh (a)",
    "gemm": "y = Gemm (rows, w, b)",
    "terms of a product": "a = Transpose (rows)\n y = MatMul (a, rows)",
    "columns of a product": "a = Transpose (rows)\n y = MatMul (rows, a)",
    "transposed": "y = Transpose (rows)",
    "sliced": "y = Slice (rows, one, four, one)",
    "joined": "y = Concat <axis: int = 0> (rows, x, rows)",
    "cast": "c = Cast <to: int = 11> (rows)\n y = Cast <to: int = 1> (c)",
    "normalised": "y = LayerNormalization (rows, bias)",
    "softmax": "y = Softmax <axis: int = -1> (rows)",
    "softmax along": "y = Softmax <axis: int = 0> (rows)",
    "summed": "y = ReduceSum <keepdims: int = 0> (rows, zero)",
    "mean of a row": "y = ReduceMean <axes: ints = [1]> (rows)",
    "reshaped": "y = Reshape (rows, split)",
    "shape of it": "s = Shape (rows)\n y = Cast <to: int = 1> (s)",
    "filled": "s = Shape (rows)\n c = ConstantOfShape (s)\n y = Add (c, bias)",
    "expanded": "s = Shape (rows)\n y = Expand (bias, s)",
    "repeated": "y = Tile (rows, twos)",
    "unsqueezed": "y = Unsqueeze (rows, one)",
    "chosen": "c = Greater (rows, bias)\n y = Where (c, rows, bias)",
    "gathered by pairs": "p = Transpose (found)\n y = GatherND (x, p)",
    "counted": "y = CumSum (rows, zero)",
    "scattered": "u = Exp (rows)\n p = Transpose (found)\n y = ScatterND (x, p, u)",
    "padded": "y = Pad (rows, pads)",
    "several": "a = MatMul (rows, w)\n s = Softmax <axis: int = -1> (a)\n t = Transpose (s)\n"
    " m = MatMul (t, rows)\n r = Relu (m)\n k = ReduceSum <keepdims: int = 1> (rows, zero)\n"
    " y = Add (r, k)",
}
COUNTS = (0, 1, 2, 5, 12)


def late_model(tail, outputs="float[p,q] y"):
    model = onnx.parser.parse_model(HEAD.format(outputs=outputs) + ROWS + tail + "}")
    rng = np.random.default_rng(3)
    arrays = {
        "w": rng.standard_normal((8, 5)),
        "b": rng.standard_normal(5),
        "bias": rng.standard_normal(8),
    }
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    numbers = {
        "zero": [0],
        "one": [1],
        "four": [4],
        "twos": [2, 1],
        "split": [-1, 2, 4],
        "pads": [1, 0, 0, 2],
    }
    for name, entries in numbers.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(entries, np.int64), name))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def feeds(count, seed=0):
    rng = np.random.default_rng([count, seed])
    keep = np.zeros(12, bool)
    keep[rng.permutation(12)[:count]] = True
    return {"x": rng.standard_normal((12, 8)).astype(np.float32), "keep": keep}


def check(exe, model, inputs, tolerance=2e-6):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results = exe.run(inputs)
    for spec, expected in zip(model.graph.output, peer.run(None, inputs), strict=True):
        assert results[spec.name].shape == expected.shape, spec.name
        assert results[spec.name].dtype == expected.dtype, spec.name
        np.testing.assert_allclose(
            results[spec.name], expected, rtol=tolerance, atol=tolerance, err_msg=spec.name
        )


def nodes_on(exe, target):
    return {
        node.op_type
        for region in exe.placement.regions
        if region.target.startswith(target)
        for node in region.nodes
    }


@pytest.mark.parametrize("tail", TAILS, ids=str)
def test_native_code_reads_what_the_data_decides(tail):
    model = late_model(TAILS[tail])
    apart = {"llvm": "NonZero"}
    exe = intarsia.compile(model, target="llvm, onnxruntime", exclude=apart, cache=False)
    assert nodes_on(exe, "onnxruntime") == {"NonZero"}
    for count in (*COUNTS, *COUNTS):
        check(exe, model, feeds(count))


def test_sizes_are_found_one_after_another():
    """NonZero of what another one picked: three stages, and a tensor that lives through two."""
    model = late_model(
        """again = ReduceMax <axes: ints = [1], keepdims: int = 0> (rows)
        mean = ReduceMean <axes: ints = [1], keepdims: int = 0> (rows)
        is_high = Greater (again, limit)
        second = NonZero (is_high)
        q = Squeeze (second, zero)
        picked = Gather <axis: int = 0> (rows, q)
        wide = MatMul (picked, w)
        means = Gather <axis: int = 0> (mean, q)
        column = Unsqueeze (means, one)
        y = Add (wide, column)
        shares = Softmax <axis: int = 1> (rows)""",
        "float[p,q] y, float[r,8] shares",
    )
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1.5), "limit"))
    exe = intarsia.compile(model, target="llvm", cache=False)
    assert [one.name for one in exe.plan.late] == ["found.1", "second.1"]
    seen = set()
    for count in (*COUNTS, *COUNTS[::-1]):
        for seed in range(3):
            inputs = feeds(count, seed)
            check(exe, model, inputs)
            seen.add(len(exe.run(inputs)["y"]))
    assert len(seen) > 3


def test_more_sizes_than_are_remembered_run():
    model = late_model(TAILS["several"])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 40
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 40
    exe = intarsia.compile(model, target="llvm", cache=False)
    x = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    for count in (*range(20), *range(0, 20, 3)):
        check(exe, model, {"x": x, "keep": np.arange(40) < count})


def test_threads_have_stages_of_their_own():
    model = late_model(TAILS["rows of a product"])
    exe = intarsia.compile(model, target="llvm, onnxruntime", cache=False)
    inputs = [feeds(count, seed) for seed in range(4) for count in COUNTS]
    wanted = [exe.run(one)["y"] for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            results = list(pool.map(lambda one: exe.run(one)["y"], inputs))
            for result, expected in zip(results, wanted, strict=True):
                np.testing.assert_array_equal(result, expected)


def test_what_the_data_decides_is_bound_profiled_and_explained():
    model = late_model(TAILS["rows of a product"], "float[p,q] y, int64[1,n] found")
    exe = intarsia.compile(model, target="llvm, onnxruntime", cache=False)
    inputs, small = feeds(7), feeds(2)
    held = {name: array.copy() for name, array in inputs.items()}
    context = exe.context(held)
    for given in (inputs, small, inputs):
        for name, array in given.items():
            held[name][...] = array
        context.run()
        results, expected = context.read_outputs(), exe.run(given)
        for name, array in expected.items():
            np.testing.assert_array_equal(results[name], array)
    assert len(exe.profile(inputs, 2).seconds) == len(exe.plan.steps)
    recorder = RunRecorder(context, by_kernel=True)
    positions = {call.position for call in recorder.calls.values()}
    assert positions == set(range(len(exe.plan.steps)))
    assert len(recorder.run()) == len(recorder.calls)
    (line,) = exe.explain().late
    assert line.startswith("size found.1: dimension 1 of 'found', found when NonZero has run on")
    assert line.endswith("at most 12")
    with pytest.raises(InputError, match="cannot be bound"):
        exe.context(outputs={"y": np.zeros((7, 5), np.float32)})


def test_a_package_has_the_sizes_that_are_found(tmp_path):
    model = late_model(TAILS["several"])
    exe = intarsia.compile(model, target="llvm, onnxruntime", cache=False)
    exe.save(tmp_path / "late.intarsia")
    package = read_package(tmp_path / "late.intarsia")
    assert package.version == FORMAT_VERSION
    assert package.plan == exe.plan
    loaded = intarsia.load(tmp_path / "late.intarsia")
    for count in COUNTS:
        check(loaded, model, feeds(count))


DAMAGES = {
    "a size that is not found": lambda plan: replace(plan, late=()),
    "one that is found twice": lambda plan: replace(plan, late=plan.late * 2),
    "of a tensor that is none": lambda plan: replace(
        plan, late=(replace(plan.late[0], tensor=99),)
    ),
    "of a tensor with a size": lambda plan: replace(plan, late=(replace(plan.late[0], tensor=0),)),
    "an axis below zero": lambda plan: replace(plan, late=(replace(plan.late[0], axis=-1),)),
    "no expressions": lambda plan: replace(plan, extents={}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_plan_whose_sizes_do_not_fit_is_refused(name):
    model = late_model(TAILS["rows of a product"])
    exe = intarsia.compile(model, target="llvm, onnxruntime", cache=False)
    verify_plan(exe.plan, exe.artifacts, exe.constants)
    with pytest.raises(ValueError, match=r"size|shape"):
        verify_plan(DAMAGES[name](exe.plan), exe.artifacts, exe.constants)


def test_nodes_of_one_target_stay_one_region():
    """Where nobody needs a size before it runs, the plan is not cut."""
    model = late_model(TAILS["several"])
    exe = intarsia.compile(model, target="onnxruntime", cache=False)
    assert len(exe.placement.regions) == 1
    assert not exe.plan.late
    for count in COUNTS:
        check(exe, model, feeds(count))


def test_a_value_that_does_not_have_its_size_is_an_error():
    """[n, 8] and [12, 8] are added if n is 12 or 1, which native code cannot know."""
    model = late_model("y = Add (rows, x)")
    exe = intarsia.compile(model, target="llvm, onnxruntime", cache=False)
    assert nodes_on(exe, "onnxruntime") == {"Add"}
    check(exe, model, feeds(12))
    check(exe, model, feeds(1))
    with pytest.raises(ExecutionError):
        exe.run(feeds(5))


BODIES = {
    "a branch": """
        y = If (first) <
            then_branch = t () => (float[n,8] a) { a = Relu (rows) },
            else_branch = e () => (float[12,8] c) { c = Mul (x, x) }
        >""",
    "what follows a branch": """
        z = If (first) <
            then_branch = t () => (float[n,8] a) { a = Relu (rows) },
            else_branch = e () => (float[12,8] c) { c = Mul (x, x) }
        >
        m = MatMul (z, w)
        y = Softmax <axis: int = 1> (m)""",
    "a branch that counts": """
        y = If (first) <
            then_branch = t () => (float[p,5] a) {
                k = NonZero (keep)
                i = Squeeze (k, zero)
                r = Gather <axis: int = 0> (x, i)
                a = MatMul (r, w)
            },
            else_branch = e () => (float[12,5] c) { c = MatMul (x, w) }
        >""",
    "a loop that grows": """
        most = Constant <value_int: int = 3> ()
        yes = Constant <value: tensor = bool {1}> ()
        y = Loop (most, yes, rows) <
            body = l (int64 number, bool on, float[n,8] old) => (bool goes, float[m,8] new) {
                goes = Identity (on)
                t = Tanh (old)
                new = Concat <axis: int = 0> (old, t)
            }
        >""",
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies_read_and_make_what_the_data_decides(name):
    model = late_model(
        "some = ReduceMax <keepdims: int = 0> (x)\n first = Greater (some, limit)" + BODIES[name]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2.6), "limit"))
    exe = intarsia.compile(model, target="llvm, onnxruntime", cache=False)
    branches = set()
    for count in COUNTS:
        for seed in range(3):
            inputs = feeds(count, seed)
            branches.add(bool(inputs["x"].max() > 2.6))
            check(exe, model, inputs)
    assert branches == {True, False}
