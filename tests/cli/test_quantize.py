# SPDX-License-Identifier: Apache-2.0
"""`intarsia quantize`: what it prints, writes, and answers."""

import numpy as np
import onnx
import pytest


@pytest.fixture
def product(folder, parse_model):
    """`product.onnx`, two products with a free batch, and `samples.npz` for it."""
    model = parse_model(
        "product (float[N,32] x, float[32,32] w, float[32,8] v) => (float[N,8] y) "
        "{ [first] a = MatMul(x, w) [second] b = Tanh(a) [third] y = MatMul(b, v) }"
    )
    generator = np.random.default_rng(0)
    for name, shape in (("w", (32, 32)), ("v", (32, 8))):
        array = generator.standard_normal(shape).astype(np.float32) / 6
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, "product.onnx")
    np.savez("samples.npz", x=generator.standard_normal((16, 32)).astype(np.float32))
    return "product.onnx"


def test_quantize_names_the_worst_and_writes_a_model_that_runs(call, product, own_cache):
    answer = call("quantize", product, "--calibrate", "samples.npz", "-o", "q.onnx")
    assert answer.code == 0, answer.err
    assert "int8, static (minmax), weights by channel, by onnxruntime" in answer.out
    assert "trial on 4 samples, ranges from 12 others" in answer.out
    assert "first" in answer.out
    assert "wrote q.onnx" in answer.out
    assert call("run", "q.onnx", "-t", "llvm, onnxruntime").code == 0


def test_quantize_as_json_says_all_that_the_table_does(call, product, own_cache):
    command = ("quantize", product, "--calibrate", "samples.npz", "--json")
    report = call(*command).json["report"]
    assert report["regions"][0]["nodes"] in (["first"], ["third"])
    bound = str(0.9 * report["outputs"][0]["error"])
    tighter = call(*command, "--max-error", bound).json
    assert tighter["file"] == "product.int8.onnx"
    assert tighter["report"]["left"] == report["regions"][0]["nodes"]
    assert tighter["error"] <= float(bound)


def test_quantize_that_cannot_hold_its_bound_writes_nothing_and_says_no(call, product, folder):
    answer = call("quantize", product, "--calibrate", "samples.npz", "--max-error", "1e-6")
    assert answer.code == 1
    assert "holds with nothing quantised only; alone: " in answer.err
    assert not (folder / "product.int8.onnx").exists()


def test_quantize_without_samples_says_what_to_give(call, product):
    answer = call("quantize", product)
    assert answer.code == 2
    assert "hint: give --calibrate FILE.npz, or --dynamic" in answer.err


def test_quantize_on_made_up_samples_says_so(call, product):
    answer = call("quantize", product, "--to", "int4", "--max-error", "0.5")
    assert answer.code == 0, answer.err
    assert "the error is that on made-up values" in answer.err
    assert (answer.code, "product.int4.onnx" in answer.out) == (0, True)


def test_quantize_on_few_samples_says_that_none_is_held_out(call, product):
    np.savez("few.npz", x=np.ones((2, 32), np.float32))
    answer = call("quantize", product, "--calibrate", "few.npz")
    assert "fewer than 4 samples" in answer.err
    assert "which gave the ranges, too" in answer.out
