# SPDX-License-Identifier: Apache-2.0
"""The example that decodes: its tokens are ONNX Runtime's, and draws follow its options."""

import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

PATH = Path(__file__).parents[2] / "examples" / "06_decode.py"
LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05]))


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("decode_example", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(example):
    return {
        name: build(example.SIZE, np.random.default_rng(0))
        for name, build in example.WEIGHTS.items()
    }


@pytest.fixture(scope="module")
def decoder(example, models):
    return example.Decoder(models["float32"], room=40)


@pytest.mark.parametrize("weights", ["float32", pytest.param("int4", marks=pytest.mark.exhaustive)])
def test_greedy_tokens_are_those_of_whole_texts(example, models, decoder, weights):
    """ONNX Runtime reads all tokens anew for each that follows."""
    model = models[weights]
    if weights == "int4":
        decoder = example.Decoder(model, room=40)
        # A program for all sizes, one for a token: weights are packed once.
        given = sum(numpy_helper.to_array(one).nbytes for one in model.graph.initializer)
        assert decoder.weight_bytes() < 1.01 * given
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    prompt = example.ByteTokeniser().encode("Once")
    tokens = example.generate(decoder, prompt, 32)
    shape = (1, example.SIZE.key_heads, 0, example.SIZE.head)
    caches = {name: np.zeros(shape, np.float32) for name in decoder.cache}
    pasts = {f"past_key_values.{name}": array for name, array in caches.items()}
    text = [*prompt]
    for token in tokens:
        ids = np.array([text])
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **pasts}
        (logits,) = session.run(["logits"], feeds)
        assert token == logits[0, -1].argmax()
        text.append(token)
    assert len(tokens) == 32 or tokens[-1] == example.END


def test_a_text_ends_where_there_is_no_more_room(example, decoder):
    tokens = example.generate(decoder, [1] * 38, 32)
    assert len(tokens) == 3 or tokens[-1] == example.END


def test_a_seed_draws_the_same_tokens(example, decoder):
    how = {"temperature": 1.0, "top_k": 50}
    first, second, other = (
        example.generate(decoder, [65, 66], 16, seed=seed, **how) for seed in (3, 3, 4)
    )
    assert first == second != other


@pytest.mark.parametrize(
    ("how", "taken"),
    [
        ({}, {0}),
        ({"temperature": 1.0, "top_k": 1}, {0}),
        ({"temperature": 1.0, "top_p": 0.4}, {0}),
        ({"temperature": 1.0, "top_k": 2}, {0, 1}),
        ({"temperature": 1.0, "top_p": 0.9}, {0, 1, 2}),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.3}, {0}),
        ({"temperature": 1.0}, {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_only_likely_tokens_are_drawn(example, how, taken):
    rng = np.random.default_rng(0)
    assert {example.pick(LOGITS, rng, **how) for _ in range(400)} == taken


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_their_shares(example, temperature):
    rng = np.random.default_rng(0)
    drawn = [example.pick(LOGITS, rng, temperature) for _ in range(8000)]
    shares = np.exp(LOGITS / temperature)
    np.testing.assert_allclose(np.bincount(drawn) / 8000, shares / shares.sum(), atol=0.02)


def test_texts_are_tokens_and_back(example):
    tokeniser = example.ByteTokeniser()
    for text in ("", "Once", "für ein Kätzchen", "日本"):
        assert tokeniser.decode(tokeniser.encode(text)) == text
    assert tokeniser.decode([72, 105, example.END]) == "Hi"
