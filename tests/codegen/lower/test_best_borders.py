# SPDX-License-Identifier: Apache-2.0
"""Which tensors at a border native code lists in blocks of channels, and what it refuses."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from tests.codegen.lower.bordered import (
    AVX2_TARGET,
    AVX512_TARGET,
    CASES,
    blocked,
    case,
    conversions,
    names_of,
    program_of,
    whole,
)
from tests.codegen.lower.random_graphs import models
from tests.codegen.lower.small_models import small_model

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.llvm import LlvmBackend
from intarsia.backends.native import read_borders
from intarsia.codegen.lower.fusion import best_borders
from intarsia.codegen.lower.layouts import Borders
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX2, AVX512, SSE
from intarsia.errors import BackendError
from intarsia.graph.state import blocked_state

SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


def listed(model, target=AVX512_TARGET):
    """Return the names of border tensors that are blocked in the border that is listed."""
    candidate, context = whole(model, target)
    borders = LlvmBackend().states(candidate, context)
    names = [
        (name, state.layout)
        for inputs, outputs in borders
        for name, state in zip(names_of(candidate), (*inputs, *outputs), strict=True)
    ]
    assert len(borders) <= 1
    return {name: layout for name, layout in names if layout != "plain"}


def test_a_border_in_blocks_has_no_conversion():
    model = CASES["a residual block"]
    assert RegisteredBackend.of(LlvmBackend()).states is not None
    assert listed(model) == dict.fromkeys("xyz", "nchw16c")
    assert len(conversions(program_of(model, []))) == 3
    blocked_program = program_of(model, ["x", "y", "z"])
    assert not conversions(blocked_program)
    assert "border" in {call.note for call in blocked_program.calls}


def test_what_has_no_border_of_zeros_is_read_and_written_where_it_lies():
    program = program_of(case("y", "a = Conv(x, w) b = Add(a, x) y = Conv(b, w)"), ["x", "y"])
    assert all(call.nodes for call in program.calls)


def test_the_lanes_of_the_target_are_the_channels_of_a_block():
    model = case("y", "y = Conv(x, w)", {"w": (24, 32, 1, 1)})
    assert listed(model) == {"x": "nchw16c"}  # 24 channels are not whole blocks of 16
    assert listed(model, AVX2_TARGET) == {"x": "nchw8c", "y": "nchw8c"}
    assert listed(model, "llvm -mcpu=x86-64") == {}  # blocks of 4 have no shared name


def test_what_wants_plain_tensors_lists_none():
    assert listed(small_model("y", "y = MatMul(x, x)", {"x": (64, 64)})) == {}
    assert listed(case("y", "y = Softmax(x)")) == {}
    assert listed(CASES["only names"]) == {}


def test_only_what_saves_conversions_is_listed():
    body = "a = Conv(x, w) y = Softmax(a) z = Flatten(y) u = Relu(a)"
    assert listed(case("y, z, u", body)) == {"x": "nchw16c", "u": "nchw16c"}


def test_what_follows_its_operands_goes_with_them():
    assert listed(CASES["poolings"]) == dict.fromkeys("xyzu", "nchw16c")
    body = "a = Softmax(s) y = Add(a, t) b = Add(x, z) u = Conv(b, w)"
    shape = (1, 32, 5, 6)
    model = case("y, u", body, x=shape, z=shape, s=shape, t=shape)
    assert listed(model) == dict.fromkeys("xzu", "nchw16c")


@pytest.mark.exhaustive
@settings(SETTINGS, max_examples=100)
@given(models(channels=(16, 32, 20)))
def test_what_is_listed_saves_conversions(model):
    candidate, _ = whole(model)
    best = best_borders(candidate.region, AVX512)
    programs = [lower_region(candidate.region, AVX512, borders=b) for b in (Borders(), best)]
    counts = [len(conversions(program)) for program in programs]
    assert counts[1] <= counts[0]


# What cannot be


@pytest.mark.parametrize("layout", ["nchw8c", "nchw4c", "hwcn"])
def test_another_layout_is_refused(layout):
    candidate, context = whole(case("y", "y = Conv(x, w)"))
    state = replace(candidate.inputs[0], layout=layout)
    with pytest.raises(BackendError, match=f"cannot take 'x' in the layout {layout}") as caught:
        LlvmBackend().compile(replace(candidate, inputs=(state,)), context)
    assert "lists" in caught.value.hint


def test_channels_that_are_no_whole_blocks_are_refused():
    candidate, context = whole(case("y", "y = Conv(x, w)", {"w": (24, 32, 1, 1)}))
    state = blocked_state(candidate.outputs[0], 16)
    with pytest.raises(BackendError, match="cannot take 'y' in the layout nchw16c"):
        LlvmBackend().compile(replace(candidate, outputs=(state,)), context)


def test_a_private_layout_is_refused():
    candidate, context = whole(case("y", "y = Conv(x, w)"))
    state = replace(blocked_state(candidate.inputs[0], 16), runtime="dnnl")
    with pytest.raises(BackendError, match="cannot take 'x'"):
        LlvmBackend().compile(replace(candidate, inputs=(state,)), context)


def test_code_for_other_devices_has_plain_borders():
    candidate, _ = whole(case("y", "y = Conv(x, w)"))
    assert read_borders(candidate, "opencl", (0,)) == Borders()
    with pytest.raises(BackendError, match="opencl cannot take 'x' in the layout nchw16c"):
        read_borders(blocked(candidate, ["x"], 16), "opencl", (0,))


def test_blocks_of_eight_are_those_of_avx2():
    model = case("y", "y = Conv(x, w)")
    assert set(best_borders(whole(model)[0].region, AVX2).inputs.values()) == {8}
    assert best_borders(whole(model)[0].region, SSE) == Borders()
