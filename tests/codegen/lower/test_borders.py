# SPDX-License-Identifier: Apache-2.0
"""Tensors in blocks of channels at a region's border: the numbers are onnxruntime's."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen.lower.bordered import (
    CASES,
    SAME,
    TARGETS,
    WIDEST_TARGET,
    blockable,
    blocked,
    check,
    conversions,
    program_of,
    run,
    whole,
)
from tests.codegen.lower.random_graphs import models
from tests.codegen.lower.small_models import feeds_of, small_model

from intarsia.codegen.unit import AVX512
from intarsia.native import native_target

SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.sample(2)
@pytest.mark.parametrize("title", CASES)
def test_all_that_can_be_is_blocked(title):
    candidate, _ = whole(CASES[title])
    check(CASES[title], WIDEST_TARGET, blockable(candidate, TARGETS[WIDEST_TARGET]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("title", CASES)
def test_every_mix_has_the_same_numbers(title, target):
    names = blockable(whole(CASES[title])[0], TARGETS[target])
    for mix in range(2 ** len(names)):
        check(CASES[title], target, [name for i, name in enumerate(names) if mix >> i & 1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", TARGETS)
@settings(SETTINGS, max_examples=60)
@given(model=models(channels=(16, 32, 8), max_nodes=8), data=st.data())
def test_random_graphs_with_any_mix(target, model, data):
    names = blockable(whole(model)[0], TARGETS[target])
    check(model, target, [name for name in names if data.draw(st.booleans())])


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", ["-winograd=f4", "-winograd=f2", "-weights=f16"])
def test_other_algorithms_take_blocks_as_well(options):
    body = f"a = Conv{SAME}(x, v) b = Relu(a) y = Conv{SAME}(b, v) c = GlobalAveragePool(b)"
    body += " d = Flatten(c) z = Gemm(d, m)"
    model = small_model(
        "y, z", body, {"x": (1, 64, 20, 20)}, {"v": (64, 64, 3, 3), "m": (64, 8192)}
    )
    target = f"{WIDEST_TARGET} {options}"
    candidate, context = whole(model, target)
    feeds = feeds_of(model)
    plain = run(candidate, context, feeds)
    mixed = run(blocked(candidate, ["x", "y"], TARGETS[WIDEST_TARGET]), context, feeds)
    for name, want in plain.items():
        np.testing.assert_allclose(mixed[name], want, rtol=1e-4, atol=1e-3 * np.abs(want).max())


def test_bands_of_a_chain_begin_and_end_at_the_border(monkeypatch):
    body = """a = Conv(x, p) b = Relu(a) c = Conv<group = 48, pads = [1, 1, 1, 1]>(b, d)
        e = Conv(c, q) y = Add(e, x)"""
    weights = {"p": (48, 16, 1, 1), "d": (48, 1, 3, 3), "q": (16, 48, 1, 1)}
    model = small_model("y", body, {"x": (2, 16, 29, 17)}, weights)
    found = native_target.lowering_options

    def small(target, caches):
        options = found(target, caches)
        return replace(options, unit=replace(options.unit, l2_bytes=8 << 10))

    monkeypatch.setattr(native_target, "lowering_options", small)
    program = program_of(model, ["x", "y"], replace(AVX512, l2_bytes=8 << 10))
    calls = [call.nodes for call in program.calls if call.nodes]
    assert len(calls) > len(set(calls))
    assert not conversions(program)
    for names in ("xy", "x", "y"):
        check(model, WIDEST_TARGET, list(names))
