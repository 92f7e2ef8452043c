# SPDX-License-Identifier: Apache-2.0
"""Estimates of regions for CPUs that are not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from intarsia.codegen.cycles.kernel import kernel_cost
from intarsia.codegen.cycles.program import ProgramEstimate, estimate_program
from intarsia.codegen.ir import TileDot, walk
from intarsia.codegen.lower.assembler import _sketched
from intarsia.codegen.lower.program import Program
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import TILE_FEATURES, CpuModel, LoweringOptions
from intarsia.cost.cost import CostSource
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.native import native_target
from intarsia.native.estimates import (
    SPREAD,
    estimate_cost,
    estimate_region,
    find_instructions,
    sketch_program,
)
from intarsia.native.native_target import lowering_options
from intarsia.target import Target
from intarsia.target.cores import core_named

A72 = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72")


def convolution(channels: int, size: int = 14) -> Region:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((channels, channels, 3, 3), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, channels, size, size))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, channels, size, size))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return snapshot(load(model)).whole


def test_a_sketch_has_the_kernels_that_are_compiled() -> None:
    region = convolution(32)
    options = lowering_options(A72)
    compiled = lower_region(region, options)
    sketch = sketch_program(region, A72)
    assert [kernel.name for kernel in sketch.kernels] == [k.name for k in compiled.kernels]
    assert len(sketch.calls) == len(compiled.calls)
    sizes = [sum(array.nbytes for array in each.constants.values()) for each in (sketch, compiled)]
    assert sizes[0] < sizes[1] / 10


def test_a_cost_is_marked_estimated_and_its_interval_is_the_stated_error() -> None:
    cost = estimate_cost(convolution(32), A72)
    assert cost is not None
    assert cost.source is CostSource.ESTIMATED
    assert cost.high_seconds / cost.seconds == pytest.approx(SPREAD)
    assert "cortex-a72" in cost.provenance
    vague = estimate_cost(convolution(32), Target("llvm -mtriple=aarch64-linux-gnu"))
    assert vague is not None
    assert vague.high_seconds / vague.seconds > SPREAD


def test_more_work_and_slower_cores_take_longer() -> None:
    region, larger = convolution(16, 8), convolution(64, 8)
    times = {}
    for cpu in ("cortex-a53", "cortex-a76"):
        target = Target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}")
        small, large = (estimate_region(each, target) for each in (region, larger))
        assert small is not None
        assert large is not None
        assert large.cycles > 4 * small.cycles
        times[cpu] = large.seconds
    assert list(times.values()) == sorted(times.values(), reverse=True)


def test_cycles_of_microcontrollers_are_at_least_those_of_their_products() -> None:
    direct = 14 * 14 * 16 * 16 * 9
    region = convolution(16)
    m4, m7 = (estimate_region(region, Target(f"c -mcpu=cortex-{m}")) for m in ("m4", "m7"))
    assert m4 is not None
    assert m7 is not None
    assert m7.cycles < m4.cycles
    assert m4.cycles > direct


def test_threads_share_turns() -> None:
    region = convolution(64)
    one, four = (estimate_region(region, A72, threads) for threads in (1, 4))
    assert one is not None
    assert four is not None
    assert one.cycles / 4 <= four.cycles < 0.75 * one.cycles


def codes_product(rows: int, dtype: str = "uint8") -> Region:
    weights = np.random.default_rng(0).integers(-128, 128, (256, 256)).astype(np.int8)
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> one '
        f"({dtype}[{rows}, 256] x) => (int32[{rows}, 256] y) {{ y = MatMulInteger (x, w) }}"
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.checker.check_model(model)
    return snapshot(load(model)).whole


@pytest.mark.parametrize("cpu", ["neoverse-v1", "neoverse-n2"])
def test_products_of_blocks_are_estimated_at_half_of_dot_products(cpu: str) -> None:
    """Of many rows; of one, half of each block is for nothing."""

    def cycles(rows: int, attributes: str) -> float:
        target = Target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}{attributes}")
        estimate = estimate_region(codes_product(rows, "int8"), target)
        assert estimate is not None
        return estimate.cycles

    assert 0.4 < cycles(64, "") / cycles(64, " -mattr=-i8mm") < 0.7
    assert 0.7 < cycles(1, "") / cycles(1, " -mattr=-i8mm") < 1.3


def graph_of(text: str) -> Region:
    """Return the whole of a model in ONNX's own notation."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    return snapshot(load(onnx.shape_inference.infer_shapes(model))).whole


def estimates_of(text: str, target: str = "llvm -mcpu=znver3") -> ProgramEstimate:
    found = find_instructions(Target(target))
    assert found is not None
    return estimate_program(sketch_program(graph_of(text), Target(target)), found[0])


def test_what_the_arena_holds_one_after_another_is_the_same_lines() -> None:
    """Tensors of 256 KiB have two places by turns; both fit the second cache, not the first."""
    nodes = "a = Softmax(x) b = Softmax(a) c = Softmax(b) d = Softmax(c) y = Softmax(d)"
    calls = estimates_of(f"one (float[256, 256] x) => (float[256, 256] y) {{ {nodes} }}").calls
    first, second, third = calls[:3]
    lines = 2 * 256 * 1024 / 64
    assert all(each.transfers[0] > lines for each in calls)
    assert first.transfers[1] > second.transfers[1] > lines  # of a new place each
    assert third.transfers[1] == 0.0  # where `a` was


def test_a_border_is_where_the_calls_before_have_left_its_lines() -> None:
    """A border of some lines is not in the first cache if its place was read among many others."""
    ones = ",".join(["1"] * (16 * 16 * 9))
    nodes = "".join(f"{a} = Conv<pads = [1, 1, 1, 1]>({b}, w) " for a, b in ("ax", "ba", "yb"))
    image = "float[1, 16, 56, 56]"
    text = f"one ({image} x) => ({image} y) <float[16, 16, 3, 3] w = {{{ones}}}>"
    borders = [
        each for each in estimates_of(f"{text} {{ {nodes} }}").calls if "fill" in each.kernel
    ]
    assert borders
    assert all(each.transfers[0] > 0.0 for each in borders)


def test_instructions_come_from_where_the_rest_of_a_run_has_put_them() -> None:
    """A short kernel waits for its own code if much is touched between its calls."""
    alone = estimates_of("one (float[16] x) => (float[16] y) { y = Exp(x) }").calls[0]
    text = "one (float[16] x, float[2048, 2048] v) => (float[16] y, float[2048, 2048] z)"
    among = estimates_of(f"{text} {{ z = Softmax(v) y = Exp(x) }}").calls
    short = min(among, key=lambda each: each.cycles)
    assert short.kernel == alone.kernel
    assert short.core == alone.core
    assert short.cycles - alone.cycles > 350  # a line from memory, and those that follow


def test_a_core_alone_has_all_of_the_cache_that_others_share() -> None:
    core = core_named("znver4")
    assert core is not None
    assert core.alone().caches[-1].nbytes == core.sharers * core.caches[-1].nbytes == 32 << 20
    assert core.alone().caches[:-1] == core.caches[:-1]


SAPPHIRE = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -precision=bf16")


def has_tiles(program: Program) -> bool:
    return any(
        isinstance(each, TileDot) for kernel in program.kernels for each in walk(kernel.body)
    )


def estimate_with(region: Region, unit: CpuModel) -> ProgramEstimate:
    found = find_instructions(SAPPHIRE)
    assert found is not None
    program = lower_region(region, LoweringOptions(unit, is_bf16=True), is_sketch=True)
    assert has_tiles(program) == bool(unit.tiles)
    return estimate_program(program, found[0])


@pytest.mark.parametrize("channels", [64, 256])
def test_a_convolution_by_tiles_is_estimated_faster_than_by_vectors(channels: int) -> None:
    region, unit = convolution(channels), lowering_options(SAPPHIRE).unit
    vectors = estimate_with(region, unit)
    tiles = estimate_with(region, replace(unit, tiles=TILE_FEATURES))
    products = 14 * 14 * 9 * channels**2
    assert tiles.cycles > products / 512  # 16 x 16 sums of 32 products in 16 cycles
    assert 2 < vectors.cycles / tiles.cycles < 16


def test_an_estimate_is_of_the_kernels_with_tiles_that_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def usable(features: frozenset[str], caches: Path) -> tuple[str, ...]:
        asked.append((features, caches))
        return TILE_FEATURES

    monkeypatch.setattr(native_target, "usable_tiles", usable)
    monkeypatch.setattr(native_target, "why_not_here", lambda cpu: "")
    region = convolution(64)
    assert has_tiles(sketch_program(region, SAPPHIRE, caches=tmp_path))
    assert "amx-bf16" in asked[0][0]
    assert asked[0][1] == tmp_path
    with_tiles, without = (
        estimate_cost(region, SAPPHIRE, 1, caches) for caches in (tmp_path, None)
    )
    assert with_tiles is not None
    assert without is not None
    assert with_tiles.seconds < without.seconds
    assert not has_tiles(sketch_program(region, SAPPHIRE))
    exact = Target(str(SAPPHIRE).replace(" -precision=bf16", ""))
    assert lowering_options(exact, tmp_path).unit.tiles == ("amx-int8",)


def test_a_cpu_that_is_not_here_has_no_tiles_in_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_target, "usable_tiles", lambda features, caches: TILE_FEATURES)
    monkeypatch.setattr(native_target, "why_not_here", lambda cpu: "it is elsewhere")
    assert lowering_options(SAPPHIRE, tmp_path).unit.tiles == ()


def test_a_kernel_that_was_estimated_before_is_not_looked_at_again_and_costs_the_same() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[24, 40] x, float[40, 24] w) => (float[24, 24] y) {
            a = MatMul(x, w)  y = Softmax(a) }"""
    )
    region, target = snapshot(load(model)).whole, Target("llvm -mcpu=znver3")
    _sketched.cache_clear()
    kernel_cost.cache_clear()
    first = estimate_region(region, target)
    looked_at = kernel_cost.cache_info().misses
    assert looked_at == len({call.kernel for call in first.calls}) > 1
    other = snapshot(load(model)).whole
    assert estimate_region(other, target) == first
    assert kernel_cost.cache_info().misses == looked_at
    assert estimate_region(other, Target("llvm -mcpu=cascadelake")).cycles != first.cycles
    kernel_cost.cache_clear()
    assert estimate_region(region, target) == first
