# SPDX-License-Identifier: Apache-2.0
"""Averages of codes: summed in integers, within a step of what Q and DQ nodes say."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_interpreted import run_program

import intarsia
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.unit import AVX2, AVX512, SCALAR

VNNI = replace(AVX512, dots=("avx512bw", "avx512vl", "avx512vnni"))
UNITS = {"vnni": VNNI, "avx2": replace(AVX2, dots=("sse2", "avx2")), "scalar": SCALAR}
WINDOW = "kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]"
POOLS = {
    "windows": f"AveragePool<{WINDOW}>(d)",
    "windows with padding": f"AveragePool<{WINDOW}, count_include_pad = 1>(d)",
    "inner windows": "AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(d)",
    "images": "GlobalAveragePool(d)",
    "means": "ReduceMean<axes = [2, 3], keepdims = 1>(d)",
}


def draw(shape, dtype):
    limits = np.iinfo(dtype)
    return np.random.default_rng(3).integers(limits.min, limits.max, shape, dtype, endpoint=True)


def pooled(pool, x, scale, zero, *, is_quantised=True):
    body = f"d = DequantizeLinear(x, s, z) p = {pool}"
    body += " y = QuantizeLinear(p, t, v)" if is_quantised else " y = Identity(p)"
    constants = {"s": np.float32(scale), "z": zero, "t": np.float32(0.037), "v": zero}
    return small_model("y", body, {"x": x}, constants)


def check(lower_model, model, x, unit):
    program, region = lower_model(model, unit)
    assert any("sums of" in call.note for call in program.calls)
    return run_program(
        program,
        region,
        {"x": x},
        lambda call, arrays: interpret(program.kernels[call.kernel], arrays),
    )["y"]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_averages(lower_model, pool, dtype, unit):
    """Channels in plain memory and, behind a convolution of codes, in blocks."""
    x, zero = draw((2, 20, 7, 9), dtype), np.array(21, dtype)
    model = pooled(POOLS[pool], x, 0.0213, zero)
    got = check(lower_model, model, x, UNITS[unit])
    (wanted,) = evaluate(model, {"x": x}).values()
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1
    assert (got != wanted).mean() < 0.01


@pytest.mark.parametrize("pool", ["inner windows", "images"])
def test_averages_that_are_floats_are_exact(lower_model, pool):
    """Of a scale and a number of entries that are powers of 2 nothing is rounded."""
    x = draw((1, 16, 4, 8), "uint8")
    model = pooled(POOLS[pool], x, 0.25, np.uint8(3), is_quantised=False)
    got = check(lower_model, model, x, VNNI)
    np.testing.assert_array_equal(got, *evaluate(model, {"x": x}).values())


@pytest.mark.parametrize("pool", POOLS)
def test_blocks_of_channels(backends, pool):
    """Behind a convolution codes lie in blocks; the machine's own code is run."""
    x, zero = draw((1, 32, 8, 9), "uint8"), np.uint8(100)
    body = f"""
        a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, t, i) c = Conv(a, b)
        q = QuantizeLinear(c, t, z) d = DequantizeLinear(q, t, z) p = {POOLS[pool]}
        y = QuantizeLinear(p, u, z)"""
    constants = {"s": np.float32(0.01), "z": zero, "t": np.float32(0.02), "i": np.int8(0)}
    constants["u"] = np.float32(0.0171)  # of one scale a quarter of all averages were ties
    constants["w"] = np.eye(32, dtype=np.int8).reshape(32, 32, 1, 1) * 100  # no sums to round
    model = small_model("y", body, {"x": x}, constants)
    program = intarsia.compile(model, "llvm", strict=True, backends=backends)
    got = program.run({"x": x})["y"].astype(int)
    (wanted,) = evaluate(model, {"x": x}).values()
    assert np.abs(got - wanted).max() <= 1
    assert (got != wanted).mean() < 0.02


@pytest.mark.parametrize("operator", ["QLinearGlobalAveragePool", "QLinearAveragePool"])
def test_operators_of_onnxruntime(backends, operator):
    attributes = "<kernel_shape = [3, 3]>" if operator == "QLinearAveragePool" else ""
    x, zero = draw((1, 24, 9, 8), "uint8"), np.uint8(7)
    body = f"y = com.microsoft.{operator}{attributes}(x, s, z, t, z)"
    constants = {"s": np.float32(0.02), "t": np.float32(0.015), "z": zero}
    model = small_model("y", body, {"x": x}, constants)
    model.graph.output[0].type.tensor_type.elem_type = 2
    program = intarsia.compile(model, "llvm", strict=True, backends=backends)
    got = program.run({"x": x})["y"].astype(int)
    (wanted,) = evaluate(model, {"x": x}).values()
    assert np.abs(got - wanted).max() <= 1
