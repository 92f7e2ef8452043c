# SPDX-License-Identifier: Apache-2.0
"""Runs of one region read large inputs where callers have them; results are in fresh memory."""

import numpy as np
import onnx.parser
import pytest

import intarsia
from intarsia.errors import InputError
from intarsia.runtime.moving import MovableTensor, moving_run

SHAPE = (128, 256)


def compiled(body, inputs="float[128,256] x, float[128,256] w", outputs="float[128,256] y"):
    text = f'<ir_version: 10, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return intarsia.compile(onnx.parser.parse_model(text), "llvm", num_threads=1)


def drawn(seed=0, shape=SHAPE):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def quick_run(exe, feeds):
    """Return the quick way of a program that has run twice, and what it returns."""
    for _ in range(2):
        exe.run(feeds)
    (bound,) = exe._bound.values()
    return bound.plain


def test_inputs_are_read_where_they_are_and_all_lies_where_it_was_behind_a_run():
    own, small, result = np.zeros(SHAPE, np.float32), np.zeros(4, np.float32), np.zeros(SHAPE)
    at, seen = {"x": None, "y": None}, []
    tensors = [
        MovableTensor("x", own, lambda address: at.update(x=address)),
        MovableTensor("s", small, lambda address: pytest.fail("it is small")),
    ]
    run = moving_run(
        lambda: seen.append(dict(at)),
        tensors,
        [MovableTensor("y", result, lambda address: at.update(y=address))],
    )
    x = drawn()
    outputs = run({"x": x, "s": np.arange(4, dtype=np.float32)})
    assert seen == [{"x": x.ctypes.data, "y": outputs["y"].ctypes.data}]
    assert at == {"x": own.ctypes.data, "y": result.ctypes.data}
    assert small.tolist() == [0, 1, 2, 3]
    assert outputs["y"].ctypes.data % 64 == 0
    run({"x": np.asfortranarray(x), "s": small})
    assert seen[-1]["x"] == at["x"]
    np.testing.assert_array_equal(own, x)
    for wrong in ({"x": x}, {"x": x[:2], "s": small}, {"x": x.astype(np.float64), "s": small}):
        assert run(wrong) is None
    assert len(seen) == 2


def test_all_lies_where_it_was_behind_a_run_that_fails():
    own = np.zeros(SHAPE, np.float32)
    at = []

    def fail():
        raise InputError("an index is too large")

    run = moving_run(fail, [MovableTensor("x", own, at.append)], [])
    with pytest.raises(InputError, match="too large"):
        run({"x": drawn()})
    assert at[-1] == own.ctypes.data


def test_results_belong_to_the_caller():
    exe = compiled("y = Add(x, w)")
    x, w = drawn(0), drawn(1)
    assert quick_run(exe, {"x": x, "w": w}).__name__ == "run_moving"
    first = exe.run({"x": x, "w": w})["y"]
    second = exe.run({"x": w, "w": w})["y"]
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, x + w)
    np.testing.assert_array_equal(second, w + w)
    turned = exe.run({"x": np.asfortranarray(x), "w": w[::-1]})["y"]
    np.testing.assert_array_equal(turned, x + w[::-1])
    second[:] = 0
    np.testing.assert_array_equal(exe.run({"x": x, "w": w}, timeout=60)["y"], x + w)
    np.testing.assert_array_equal(exe.run({"x": x.astype(np.float32), "w": x})["y"], x + x)


def test_faults_are_told_and_the_next_run_is_right():
    exe = compiled(
        "y = Gather<axis = 0>(x, i)", "float[128,256] x, int64[128] i", "float[128,256] y"
    )
    x, places = drawn(), np.arange(128)[::-1].copy()
    quick_run(exe, {"x": x, "i": places})
    with pytest.raises(InputError):
        exe.run({"x": x, "i": places + 1})
    for _ in range(3):
        np.testing.assert_array_equal(exe.run({"x": x, "i": places})["y"], x[::-1])


def test_what_computes_much_reads_copies_that_begin_at_a_cache_line():
    inputs = "float[256,512] x, float[512,512] w"
    exe = compiled("y = MatMul(x, w)", inputs, "float[256,512] y")
    feeds = {"x": drawn(0, (256, 512)), "w": drawn(1, (512, 512))}
    assert quick_run(exe, feeds).__name__ == "run_plain"
    np.testing.assert_allclose(exe.run(feeds)["y"], feeds["x"] @ feeds["w"], rtol=1e-3, atol=1e-3)
