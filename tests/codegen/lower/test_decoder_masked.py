# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's DecoderMaskedMultiHeadAttention in native code, against ONNX Runtime."""

import numpy as np
import onnx
import pytest
from tests.codegen.lower.conftest import evaluate

import intarsia
from intarsia.codegen.lower.decoder_masked import refuse_decoder_masked
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import InputError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NAMES = (
    *("query", "key", "value", "mask", "added", "past_key", "past_value", "past_length"),
    *("beams", "turned", "bias"),
)
ROOM = 12


def decoder_masked(feeds, outputs=3, **attributes):
    """A model of one node that reads these arrays."""
    names = [name if name in feeds else "" for name in NAMES]
    while not names[-1]:
        names.pop()
    results = ["y", "present_key", "present_value", "scores"][:outputs]
    node = onnx.helper.make_node(
        "DecoderMaskedMultiHeadAttention",
        names,
        results,
        "node",
        domain="com.microsoft",
        num_heads=4,
        **attributes,
    )
    declared = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    made = [onnx.helper.make_tensor_value_info(name, 1, None) for name in results]
    domains = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "g", declared, made)
    return onnx.helper.make_model(graph, opset_imports=domains, ir_version=9)


def draw(**shapes):
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


NEW = draw(query=(2, 1, 24), key=(2, 1, 24), value=(2, 1, 24))
PAST = {**NEW, **draw(past_key=(2, 4, ROOM, 6), past_value=(2, 4, ROOM, 6))}
ENCODED = {**draw(query=(2, 1, 24)), **draw(key=(2, 4, 9, 6), value=(2, 4, 9, 6))}
FLAGS = np.random.default_rng(3).integers(0, 2, (2, ROOM)).astype(np.int32)


def after(length):
    return {"past_length": np.array([length], np.int32)}


CASES = {
    "a past": {**PAST, **after(5)},
    "nothing before": {**PAST, **after(0)},
    "room for one more": {**PAST, **after(ROOM - 1)},
    "a bias": {**PAST, **after(5), **draw(bias=(72,))},
    "a mask": {**PAST, **after(5), "mask": FLAGS[:, :6]},
    "a mask and something added": {
        **PAST,
        **after(8),
        "mask": FLAGS[:, :9],
        **draw(added=(1, 4, 1, 9)),
    },
    "one beam": {**PAST, **after(5), "beams": np.array([1], np.int32)},
    "an encoder": ENCODED,
    "an encoder, a mask and a bias": {**ENCODED, "mask": FLAGS[:, :9], **draw(bias=(72,))},
    "nothing but itself": NEW,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3, "mask_filter_value": -3.0}])
def test_numbers(backends, case, attributes):
    feeds = CASES[case]
    is_shared = "past_key" in feeds
    shared = {"past_present_share_buffer": 1} if is_shared else {}
    model = decoder_masked(feeds, 3 if is_shared else 1, **shared, **attributes)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    results = exe.run(feeds)
    # In ONNX Runtime's memory the present is the past, which it writes into.
    wanted = evaluate(model, {name: array.copy() for name, array in feeds.items()})
    for name, array in wanted.items():
        np.testing.assert_allclose(results[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("length", [ROOM, -1])
def test_a_past_that_is_too_long_is_an_error(backends, length):
    feeds = {**PAST, **after(length)}
    model = decoder_masked(feeds, past_present_share_buffer=1)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    with pytest.raises(InputError, match="past_length"):
        exe.run(feeds)


REFUSED = {
    "its scores are asked for": ({**PAST, **after(5)}, 4),
    "its keys come from several beams": (
        {**PAST, **after(5), "turned": np.zeros((2, 1, ROOM), np.int32)},
        3,
    ),
    "its operands are packed": ({**draw(query=(2, 1, 72))}, 1),
    "it does not say the length of its past in int32": (PAST, 3),
    "it has no past to share memory with": ({**NEW, **after(5)}, 3),
    "it has a past and keys of an encoder": (
        {**ENCODED, **after(5), **draw(past_key=(2, 4, 9, 6), past_value=(2, 4, 9, 6))},
        3,
    ),
    "its past does not have the shape of its heads": (
        {**NEW, **after(5), **draw(past_key=(2, 4, ROOM, 6), past_value=(2, 4, ROOM, 5))},
        3,
    ),
    "it has several queries for an item": (
        {**PAST, **after(5), **draw(query=(2, 2, 24), key=(2, 2, 24), value=(2, 2, 24))},
        3,
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_has_a_reason(why):
    feeds, outputs = REFUSED[why]
    graph = snapshot(load(decoder_masked(feeds, outputs, past_present_share_buffer=1)))
    assert refuse_decoder_masked(Operation(graph, graph.nodes[0])) == why


def test_a_past_without_shared_memory_is_refused():
    graph = snapshot(load(decoder_masked({**PAST, **after(5)})))
    why = refuse_decoder_masked(Operation(graph, graph.nodes[0]))
    assert why is not None
    assert "share its memory" in why
