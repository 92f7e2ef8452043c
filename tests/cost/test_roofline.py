# SPDX-License-Identifier: Apache-2.0
"""Bounds hold, and follow what the target says."""

import pytest

from intarsia.cost.cost import CostSource
from intarsia.cost.estimator import bound
from intarsia.cost.peak import Peak, measured_peak, target_peak
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.target import CompilationConfig, Target

_PEAK = Peak({"float32": 1e9, "int8": 4e9}, 1e8, 1e9, 1000)


@pytest.fixture
def matmul(parse_model):
    """The region of one product: 2 * 32**3 operations, 3 * 4096 bytes."""
    text = "m (float[32,32] a, float[32,32] b) => (float[32,32] y) { y = MatMul(a, b) }"
    return snapshot(load(parse_model(text))).whole


def test_the_larger_of_two_times_is_the_bound(matmul):
    cost = bound(matmul, _PEAK)
    assert cost.seconds == 3 * 4096 / 1e8  # beyond the cache
    assert cost.source is CostSource.ROOFLINE
    assert (cost.low_seconds, cost.high_seconds) == (cost.seconds, float("inf"))
    assert "bytes limit" in cost.provenance
    cached = Peak(_PEAK.flop_per_second, 1e8, 1e9, 1 << 20)
    assert bound(matmul, cached).seconds == 2 * 32**3 / 1e9
    assert "operations limit" in bound(matmul, cached).provenance


def test_what_was_reached_moves_the_figure_and_not_the_bound(matmul):
    reached = Peak({"float32": 1e6}, 1e6, 1e6, 0)
    cost = bound(matmul, _PEAK, reached)
    assert cost.low_seconds == bound(matmul, _PEAK).seconds
    assert cost.seconds == 2 * 32**3 / 1e6


def test_wider_vectors_and_more_cores_are_faster():
    def flop(text, threads=None):
        return target_peak(Target(text), threads).flops("float32")

    assert flop("llvm -mcpu=skylake-avx512 -num-cores=4") == 4 * flop(
        "llvm -mcpu=skylake-avx512", 1
    )
    assert flop("llvm -mcpu=skylake-avx512", 1) == 2 * flop("llvm -mcpu=haswell", 1)
    assert flop("llvm -mcpu=haswell -num-cores=2", 8) == 2 * flop("llvm -mcpu=haswell", 1)


def test_vectors_of_variable_width_may_be_wide():
    """Neoverse V1 has two units of 256 bits, others four of 128: a bound must allow for both."""
    narrow = target_peak(Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72"), 1)
    wide = target_peak(Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1"), 1)
    assert wide.flops("float32") == 4 * narrow.flops("float32")


def test_dtypes_have_rates_of_their_own():
    peak = target_peak(Target("llvm -mcpu=sapphirerapids"), 1)
    assert peak.flops("bfloat16") == 16 * peak.flops("float32")  # AMX
    assert peak.flops("int8") == 32 * peak.flops("float32")
    assert peak.flops("float64") == peak.flops("float32") / 2
    assert peak.flops("complex64") == peak.flops("float32")
    assert "1 cores" in peak.text


@pytest.mark.parametrize("text", ["cuda -arch=sm_80", "ethos-u -accelerator_config=ethos-u55-128"])
def test_every_target_has_a_peak(text):
    assert target_peak(Target(text)).flops("float32") > 1e13


def test_what_numpy_reaches_is_below_what_is_possible():
    peak = target_peak(CompilationConfig.resolve("llvm").targets[0].target)
    reached = measured_peak()
    assert 0 < reached.flops("float32") < peak.flops("float32")
    assert 0 < reached.bytes_per_second < peak.cache_bytes_per_second
    assert measured_peak() is reached
