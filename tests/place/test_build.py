# SPDX-License-Identifier: Apache-2.0
"""Regions that cannot be compiled: what is blamed, what stays, and what is said of it."""

import numpy as np
import pytest

import intarsia
from intarsia.backends.registry import collect
from intarsia.codegen.lower import reductions
from intarsia.errors import BackendError, ReasonCode


@pytest.fixture
def softmax_model(parse_model):
    return parse_model(
        """agraph (float[3, 8] x) => (float[3, 8] y)
           { a = Relu(x)
             b = Softmax(a)
             y = Tanh(b) }"""
    )


@pytest.fixture
def with_mistake(monkeypatch):
    """Native code has a bug: it calls what is no function."""
    monkeypatch.setattr(reductions, "Rows", None)


@pytest.mark.mistakes
def test_a_mistake_of_our_own_is_said_loudly(
    softmax_model, with_mistake, random_feeds, evaluate, assert_same, caplog
):
    exe = intarsia.compile(softmax_model, "llvm, onnxruntime")
    (refusal,) = exe.placement.refusals
    assert (refusal.op_type, refusal.code) == ("Softmax", ReasonCode.INTERNAL_ERROR)
    assert "TypeError: 'NoneType' object is not callable" in refusal.reason
    (warning,) = [one for one in caplog.messages if one.startswith("internal error")]
    assert refusal.node in warning
    assert refusal.target in warning
    assert refusal.reason in warning
    assert "internal-error" in str(exe.explain())
    feeds = random_feeds(softmax_model)
    assert_same(exe.run(feeds), evaluate(softmax_model, feeds))


@pytest.mark.mistakes
def test_a_mistake_in_the_program_for_all_sizes_is_said_loudly(parse_model, with_mistake, caplog):
    model = parse_model("agraph (float[rows, 8] x) => (float[rows, 8] y) { y = Softmax(x) }")
    exe = intarsia.compile(model, "llvm, onnxruntime")
    assert exe.run({"x": np.zeros((2, 8), np.float32)})["y"].shape == (2, 8)
    assert any(one.startswith("internal error") for one in caplog.messages)


@pytest.mark.mistakes
def test_a_mistake_is_an_error_where_nothing_may_fall_back(softmax_model, with_mistake):
    with pytest.raises(BackendError, match="TypeError"):
        intarsia.compile(softmax_model, "llvm, onnxruntime", strict=True)


def test_what_fails_only_together_is_cut_where_it_begins_to(
    chain_model, random_feeds, evaluate, assert_same, backends, monkeypatch
):
    fake = backends.named("fake").value
    compile_region = type(fake).compile

    def fail_on_both(self, candidate, context):
        names = {candidate.region.graph.nodes[i].name for i in candidate.region.nodes}
        if {"second", "fourth"} <= names:
            raise RuntimeError("too much at once")
        return compile_region(self, candidate, context)

    monkeypatch.setattr(type(fake), "compile", fail_on_both)
    patched = collect([fake, backends.named("reference")])
    exe = intarsia.compile(chain_model, "fake, reference", backends=patched)
    (refusal,) = exe.placement.refusals
    assert (refusal.node, refusal.code) == ("fourth", ReasonCode.COMPILE_FAILED)
    assert "too much at once" in refusal.reason
    assert exe.placement.coverage() == {"fake": 4, "reference": 1}
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))
