# SPDX-License-Identifier: Apache-2.0
"""ONNX's Attention in native code against the reference evaluator."""

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from tests.codegen.lower.small_models import feeds_of

import intarsia
from intarsia.codegen.lower.region import refuse_node
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NAMES = ("q", "k", "v", "mask", "past_key", "past_value", "lengths")


def attention(inputs, outputs=1, opset=25, **attributes):
    """A model of one node; inputs are shapes, or arrays of that dtype and shape."""
    arrays = {
        name: np.zeros(given, np.float32) if isinstance(given, tuple) else given
        for name, given in inputs.items()
    }
    names = [name if name in inputs else "" for name in NAMES]
    while not names[-1]:
        names.pop()
    results = ["y", "present_key", "present_value", "scores"][:outputs]
    declared = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    node = onnx.helper.make_node("Attention", names, results, name="node", **attributes)
    graph = onnx.helper.make_graph(
        [node], "g", declared, [onnx.helper.make_empty_tensor_value_info(name) for name in results]
    )
    domains = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=11)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def check(backends, model, target="llvm", **feeds):
    """Run a model natively and in the reference evaluator, and compare all results."""
    feeds = {**feeds_of(model), **feeds}
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    assert {region.backend for region in exe.placement.regions} == {"llvm"}
    results = exe.run(feeds)
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, feeds)
    for output, want in zip(model.graph.output, wanted, strict=True):
        np.testing.assert_allclose(results[output.name], want, rtol=1e-4, atol=1e-4)


FLAT = {"q": (2, 9, 24), "k": (2, 21, 12), "v": (2, 21, 10)}
HEADS = {"q": (2, 4, 9, 6), "k": (2, 2, 21, 6), "v": (2, 2, 21, 5)}
PAST = {"past_key": (2, 2, 13, 6), "past_value": (2, 2, 13, 5)}
COUNTS = {"q_num_heads": 4, "kv_num_heads": 2}
LENGTHS = np.array([21, 8])

CASES = {
    "three dimensions": (FLAT, 1, COUNTS),
    "four dimensions": (HEADS, 1, {}),
    "a scale": (HEADS, 1, {"scale": 0.1}),
    "a soft cap": ({**HEADS, "mask": (9, 21)}, 1, {"softcap": 0.7}),
    "causal": (HEADS, 1, {"is_causal": 1}),
    "a mask of one dimension": ({**HEADS, "mask": (21,)}, 1, {}),
    "a mask of heads": ({**HEADS, "mask": (4, 9, 21)}, 1, {}),
    "a mask of bool": ({**FLAT, "mask": np.zeros((2, 1, 9, 21), bool)}, 1, COUNTS),
    "a mask that is short": ({**HEADS, "mask": (2, 1, 9, 11)}, 1, {}),
    "a mask of bool that is short and causal": (
        {**HEADS, "mask": np.zeros((9, 3), bool)},
        1,
        {"is_causal": 1},
    ),
    "a past": ({**FLAT, **PAST}, 3, {**COUNTS, "is_causal": 1}),
    "a past without a present": ({**HEADS, **PAST}, 1, {"is_causal": 1}),
    "a past of nothing": (
        {**HEADS, "past_key": (2, 2, 0, 6), "past_value": (2, 2, 0, 5)},
        3,
        {"is_causal": 1},
    ),
    "a window": (HEADS, 1, {"left_window_size": 3, "right_window_size": 2}),
    "a window and a past": (
        {**HEADS, **PAST},
        3,
        {"left_window_size": 3, "right_window_size": 2, "is_causal": 1},
    ),
    "one query": ({**HEADS, **PAST, "q": (2, 4, 1, 6)}, 3, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers(backends, case):
    inputs, outputs, attributes = CASES[case]
    check(backends, attention(inputs, outputs, **attributes))


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("cpu", ["haswell", "x86-64"])
def test_numbers_with_narrower_vectors(backends, cpu, opset):
    inputs, outputs, attributes = CASES["a past"]
    check(backends, attention(inputs, outputs, opset, **attributes), f"llvm -mcpu={cpu}")


@pytest.mark.parametrize("lengths", [(21, 8), (1, 0), (30, 20)])
@pytest.mark.parametrize(
    "attributes", [{}, {"is_causal": 1}, {"left_window_size": 2, "right_window_size": 1}], ids=str
)
def test_lengths_of_keys(backends, lengths, attributes):
    model = attention({**HEADS, "lengths": LENGTHS}, **attributes)
    check(backends, model, lengths=np.array(lengths))


def test_a_row_without_keys_is_zero(backends):
    mask = np.zeros((9, 21), np.float32)
    mask[3] = -np.inf
    check(backends, attention({**HEADS, "mask": (9, 21)}), mask=mask)


REFUSED = {
    "its scores are asked for": ({**HEADS, **PAST}, 4, {}),
    "its softmax has another precision": (HEADS, 1, {"softmax_precision": 11}),
    "its input 3 is of float64": ({**HEADS, "mask": np.zeros((9, 21))}, 1, {}),
    "its heads do not match: (4, 6), (4, 3) and (4, 3)": (
        {**FLAT, "v": (2, 21, 12)},
        1,
        {"q_num_heads": 4, "kv_num_heads": 4},
    ),
    "its heads have 600 and 5 entries": (
        {**HEADS, "q": (2, 4, 9, 600), "k": (2, 2, 21, 600)},
        1,
        {},
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_has_a_reason(why):
    inputs, outputs, attributes = REFUSED[why]
    graph = snapshot(load(attention(inputs, outputs, **attributes)))
    assert refuse_node(graph, graph.nodes[0]) == ("op", why)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_nodes(backends, data):
    small, long = st.integers(1, 3), st.integers(1, 30)
    batch, pairs, group = (data.draw(small) for _ in range(3))
    queries, keys, size, value_size = (data.draw(long) for _ in range(4))
    past = data.draw(st.sampled_from([0, 5]))
    inputs = {
        "q": (batch, pairs * group, queries, size),
        "k": (batch, pairs, keys, size),
        "v": (batch, pairs, keys, value_size),
    }
    if past:
        inputs |= {"past_key": (batch, pairs, past, size)}
        inputs |= {"past_value": (batch, pairs, past, value_size)}
    if data.draw(st.booleans()):
        extents = (batch, pairs * group, queries)
        mask = np.zeros([*(data.draw(st.sampled_from([1, n])) for n in extents), keys + past], "f4")
        inputs["mask"] = mask if data.draw(st.booleans()) else mask > 0
    attributes = {
        "is_causal": data.draw(st.integers(0, 1)),
        "softcap": data.draw(st.sampled_from([0.0, 2.0])),
        "left_window_size": data.draw(st.sampled_from([-1, 0, 3])),
        "right_window_size": data.draw(st.sampled_from([-1, 0, 3])),
    }
    outputs = 3 if past else 1
    cpu = data.draw(st.sampled_from(["", " -mcpu=haswell", " -mcpu=x86-64"]))
    check(backends, attention(inputs, outputs, **attributes), f"llvm{cpu}")


LONG_FLAT = {"q": (2, 2, 24), "k": (2, 1100, 6), "v": (2, 1100, 5)}
LONG = {"q": (1, 4, 1, 6), "k": (1, 1, 3, 6), "v": (1, 1, 3, 5)}
LONG_PAST = {"past_key": (1, 1, 1500, 6), "past_value": (1, 1, 1500, 5)}
SHARED = {"q_num_heads": 4, "kv_num_heads": 1}
LONG_CASES = {
    "two queries": (LONG_FLAT, 1, SHARED),
    "a past and a soft cap": ({**LONG, **LONG_PAST}, 3, {"is_causal": 1, "softcap": 2.0}),
    "a window": ({**LONG, **LONG_PAST, "q": (1, 4, 3, 6)}, 3, {"left_window_size": 700}),
    "a mask": ({**LONG, **LONG_PAST, "mask": np.zeros((4, 1, 1503), bool)}, 3, {}),
    "lengths": (
        {**LONG_FLAT, "lengths": np.array([1100, 513])},
        1,
        {"q_num_heads": 4, "kv_num_heads": 1},
    ),
}


@pytest.mark.parametrize("cpu", ["", " -mcpu=haswell"])
@pytest.mark.parametrize("case", LONG_CASES)
def test_many_keys_of_few_queries(backends, case, cpu):
    inputs, outputs, attributes = LONG_CASES[case]
    feeds = {"lengths": inputs["lengths"]} if "lengths" in inputs else {}
    check(backends, attention(inputs, outputs, **attributes), f"llvm{cpu}", **feeds)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_threads_share_keys_and_change_no_bit(backends, data):
    """Parts of keys are as long as they are, whatever the number of threads."""
    batch, pairs, group = (data.draw(st.integers(1, 2)) for _ in range(3))
    queries, size = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([16, 64]))
    keys = data.draw(st.sampled_from([512, 513, 1024, 1537, 4000]))
    inputs = {"q": (batch, pairs * group, queries, size)}
    inputs |= dict.fromkeys(("k", "v"), (batch, pairs, keys, size))
    model = attention(inputs, left_window_size=data.draw(st.sampled_from([-1, 800])))
    feeds = feeds_of(model)
    results = [
        intarsia.compile(model, "llvm", num_threads=threads, backends=backends).run(feeds)["y"]
        for threads in (1, 2)
    ]
    np.testing.assert_array_equal(*results)
    wanted = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_allclose(results[0], wanted, rtol=1e-4, atol=1e-5)
