# SPDX-License-Identifier: Apache-2.0
"""GroupQueryAttention in native code, against ONNX Runtime's and against numpy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from tests.codegen.halves_models import in_halves
from tests.codegen.lower.conftest import evaluate

import intarsia
from intarsia.backends import llvm
from intarsia.codegen.lower.group_query import refuse_group_query
from intarsia.codegen.lower.operation import Operation
from intarsia.errors import InputError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.passes.free_shapes import prepare_free
from intarsia.testing.subject import Subject

HEADS, PAIRS, SIZE = 4, 2, 32
NAMES = (
    "query", "key", "value", "past_key", "past_value", "last", "total", "cos", "sin", "positions",
    "bias", "sinks",
)  # fmt: skip
RESULTS = ("y", "present_key", "present_value")
ANGLES = np.arange(64)[:, None] * np.linspace(0.05, 1, SIZE // 2)


def feeds_of(batch, new, past, last, total, *, is_packed=False, pairs=SIZE // 2, **more):
    """Numbers for a node; `past` is None for none."""
    rng = np.random.default_rng(new)
    widths = [HEADS, PAIRS, PAIRS]
    if is_packed:
        widths = [sum(widths)]
    shapes = [(batch, new, width * SIZE) for width in widths]
    shapes += [(0,)] * (3 - len(shapes))
    shapes += [(0,) if past is None else (batch, PAIRS, past, SIZE)] * 2
    arrays = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    feeds = dict(zip(NAMES, arrays, strict=False))
    feeds = {name: array for name, array in feeds.items() if array.ndim > 1}
    feeds |= {"last": np.array(last, np.int32), "total": np.array(total, np.int32)}
    feeds |= {"cos": np.cos(ANGLES)[:, :pairs], "sin": np.sin(ANGLES)[:, :pairs]}
    feeds |= more
    whole = {
        name: array.astype("f4") if array.dtype == "f8" else array for name, array in feeds.items()
    }
    return {name: whole[name] for name in NAMES if name in whole}


def model_of(feeds, capacity, outputs=3, **attributes):
    """A model of one node; `capacity` is the length of its present, which its value decides."""
    names = [name if name in feeds else "" for name in NAMES]
    while not names[-1]:
        names.pop()
    options = {"num_heads": HEADS, "kv_num_heads": PAIRS, "do_rotary": 1} | attributes
    node = helper.make_node(
        "GroupQueryAttention", names, RESULTS[:outputs], "node", domain="com.microsoft", **options
    )
    declared = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    batch = feeds["query"].shape[0]
    present = (batch, PAIRS, capacity, SIZE)
    made = [helper.make_tensor_value_info("y", 1, None)]
    made += [helper.make_tensor_value_info(name, 1, present) for name in RESULTS[1:outputs]]
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", declared, made)
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def exact(
    feeds,
    capacity,
    *,
    rotary_interleaved=0,
    local_window_size=-1,
    softcap=0.0,
    scale=0.0,
    do_rotary=1,
):
    """The three results, step by step in double precision."""
    query = feeds["query"].astype("f8")
    batch, new, _ = query.shape
    if "key" in feeds:
        parts = [query, feeds["key"].astype("f8"), feeds["value"].astype("f8")]
    else:
        parts = np.split(query, np.cumsum([HEADS, PAIRS]) * SIZE, axis=2)
    q, k, v = (part.reshape(batch, new, -1, SIZE).transpose(0, 2, 1, 3) for part in parts)
    keys, values = np.zeros((2, batch, PAIRS, capacity, SIZE))
    y = np.zeros(q.shape)

    def turn(x, at):
        cos, sin = feeds["cos"][at].astype("f8"), feeds["sin"][at].astype("f8")
        pairs = cos.shape[1]
        ends = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        if not rotary_interleaved:
            ends = (slice(0, pairs), slice(pairs, 2 * pairs))
        first, second = (x[..., end] for end in ends)
        x = x.copy()
        x[..., ends[0]], x[..., ends[1]] = first * cos - second * sin, first * sin + second * cos
        return x

    for item in range(batch):
        before = max(0, int(feeds["last"][item]) + 1 - new)
        at = before + np.arange(new)
        turned = [turn(x[item], at) if do_rotary else x[item] for x in (q, k)]
        if before:
            keys[item, :, :before] = feeds["past_key"][item, :, :before]
            values[item, :, :before] = feeds["past_value"][item, :, :before]
        keys[item, :, at], values[item, :, at] = turned[1].swapaxes(0, 1), v[item].swapaxes(0, 1)
        for head in range(HEADS):
            pair = head * PAIRS // HEADS
            scores = turned[0][head] @ keys[item, pair].T * (scale or SIZE**-0.5)
            scores = softcap * np.tanh(scores / softcap) if softcap else scores
            if "bias" in feeds:
                scores = scores + feeds["bias"][item, head]
            number = np.arange(capacity)
            seen = number <= at[:, None]
            if local_window_size > 0:
                seen &= number > at[:, None] - local_window_size
            risen = np.where(seen, np.exp(scores - scores.max()), 0)
            y[item, head] = risen / risen.sum(1, keepdims=True) @ values[item, pair]
    return y.transpose(0, 2, 1, 3).reshape(batch, new, -1), keys, values


def kernels_of(lower_model, model):
    program, _ = lower_model(model)
    return [program.kernels[call.kernel].name.rpartition("_")[0] for call in program.calls]


PROMPT = {"batch": 2, "new": 5, "past": None, "last": (4, 4), "total": 5}
TOKEN = {"batch": 2, "new": 1, "past": 6, "last": (6, 4), "total": 7}
SHARED = {**TOKEN, "past": 12}
MORE = {"batch": 1, "new": 3, "past": 6, "last": (8,), "total": 9}
RNG = np.random.default_rng(1)
PLACES = RNG.integers(0, 60, (2, 1))

PLAIN = ["cache_lengths", "carry", "append", "carry", "append", "attention"]
TURNED = ["cache_lengths", "check_indices", "gather", "gather", "elementwise", "elementwise"]
TURNED += PLAIN[1:]
FIRST = [kernel for kernel in TURNED if kernel != "carry"]
CASES = {
    "a prompt": (PROMPT, {}, FIRST),
    "a prompt of which some is padding": ({**PROMPT, "last": (4, 2)}, {}, FIRST),
    "a prompt into an empty past": ({**PROMPT, "past": 0}, {}, FIRST),
    "a prompt into a long buffer": ({**PROMPT, "past": 9}, {}, TURNED),
    "a token": (TOKEN, {}, TURNED),
    "a token in a long buffer": (SHARED, {}, TURNED),
    "some tokens": (MORE, {}, TURNED),
    "a packed prompt": ({**PROMPT, "is_packed": True}, {}, FIRST),
    "a packed token": ({**TOKEN, "is_packed": True}, {}, TURNED),
    "without angles": (TOKEN, {"do_rotary": 0}, PLAIN),
    "neighbours turned": (MORE, {"rotary_interleaved": 1}, TURNED),
    "a part of heads turned": (
        {**MORE, "pairs": 8},
        {},
        [*TURNED[:6], "elementwise", "elementwise", *TURNED[6:]],
    ),
    "a scale and a cap": (MORE, {"scale": 0.3, "softcap": 1.5}, TURNED),
    "a window": (MORE, {"local_window_size": 3}, TURNED),
    "a window of a token": (SHARED, {"local_window_size": 2}, TURNED),
    "a window as long as all": (MORE, {"local_window_size": 9}, TURNED),
    "a bias": ({**MORE, "bias": RNG.standard_normal((1, HEADS, 3, 9))}, {}, TURNED),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64"])
def test_numbers(backends, lower_model, case, target):
    options, attributes, kernels = CASES[case]
    feeds = feeds_of(**options)
    capacity = max(options["total"], options["past"] or 0)
    model = model_of(feeds, capacity, **attributes)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends)
    assert {region.backend for region in exe.placement.regions} == {"llvm"}
    results = exe.run(feeds)
    seen = np.arange(options["new"]) <= np.array(options["last"])[:, None]
    for other in (
        evaluate(model, feeds),
        dict(zip(RESULTS, exact(feeds, capacity, **attributes), strict=True)),
    ):
        for name, want in other.items():
            assert results[name].shape == want.shape
            # What padding attends to is not defined.
            part = seen if name == "y" else np.s_[:]
            np.testing.assert_allclose(results[name][part], want[part], rtol=1e-4, atol=1e-5)
    assert kernels_of(lower_model, model) == kernels


@pytest.mark.parametrize("options", [{**PROMPT, "last": (4, 4)}, TOKEN, {**MORE}], ids=str)
def test_positions_that_are_given(backends, options):
    given = np.random.default_rng(2).integers(0, 50, (options["batch"], options["new"]))
    feeds = feeds_of(**options, positions=given)
    model = model_of(feeds, max(options["total"], options["past"] or 0))
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    results = exe.run(feeds)
    for name, want in evaluate(model, feeds).items():
        np.testing.assert_allclose(results[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


WRONG = {
    "a length of nothing": {"last": (-1, 4)},
    "more than the past has": {"past": 4, "last": (6, 5)},
    "another total": {"total": 8},
}


@pytest.mark.parametrize("case", WRONG)
def test_lengths_that_do_not_fit_are_an_error(backends, case):
    feeds = feeds_of(**{**TOKEN, **WRONG[case]})
    exe = intarsia.compile(model_of(feeds, 7), "llvm", num_threads=1, backends=backends)
    with pytest.raises(InputError, match="does not fit"):
        exe.run(feeds)


def test_a_position_beyond_the_tables_is_an_error(backends):
    feeds = feeds_of(**{**TOKEN, "past": 80, "last": (70, 2), "total": 71})
    exe = intarsia.compile(model_of(feeds, 80), "llvm", num_threads=1, backends=backends)
    with pytest.raises(InputError, match="70"):
        exe.run(feeds)


FREE = """
<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
g (float[batch, seq, 256] query, float[batch, 2, past, 32] past_key,
   float[batch, 2, past, 32] past_value, int64[batch, total] mask)
  => (float[batch, seq, 128] y, float[batch, 2, KEYS, 32] present_key,
      float[batch, 2, KEYS, 32] present_value)
{
  axes = Constant<value_ints = [1]>()
  one = Constant<value_int = 1>()
  count = ReduceSum<keepdims = 0>(mask, axes)
  number = Sub(count, one)
  last = Cast<to = 6>(number)
  shape = Shape(mask)
  length = Gather(shape, one)
  total_length = Cast<to = 6>(length)
  y, present_key, present_value =
    com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1>
    (query, , , past_key, past_value, last, total_length, cos, sin)
}
"""
GROWING = [
    (2, 5, 0, 5),
    (2, 1, 6, 7),
    (1, 3, 6, 9),
    (3, 1, 130, 131),
    (1, 40, 0, 40),
    (2, 1, 1090, 1091),
]
BUFFERED = [(2, 5, 20, 5), (2, 1, 20, 7), (1, 3, 20, 9), (1, 1, 33, 33), (1, 2, 1500, 700)]


def free_model(keys):
    """A decoder's layer as exporters write it; what is called `keys` is as long as the present."""
    model = onnx.parser.parse_model(FREE.replace("KEYS", keys))
    tables = {"cos": np.cos(ANGLES), "sin": np.sin(ANGLES)}
    tables = {name: np.tile(table, (24, 1)).astype("f4") for name, table in tables.items()}
    model.graph.initializer.extend(
        numpy_helper.from_array(table, name) for name, table in tables.items()
    )
    return model


@pytest.mark.parametrize("keys", ["total", "past"])
def test_one_program_for_all_sizes(backends, keys):
    """Whichever of them is declared, the present is as long as the longer one."""
    model, sizes = free_model(keys), GROWING + BUFFERED
    nominal = {"batch": 2, "seq": 3, "past": 8, "total": 11}
    graph = prepare_free(load(model, stays_free=True), nominal)[0].graph
    assert not Subject(llvm.BACKEND, None, {}).refusals(graph, "layer")
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    rng = np.random.default_rng(3)
    for batch, new, past, total in sizes:
        shapes = [(batch, new, 256), *[(batch, PAIRS, past, SIZE)] * 2]
        arrays = [rng.standard_normal(shape).astype("f4") for shape in shapes]
        feeds = dict(zip(("query", "past_key", "past_value"), arrays, strict=True))
        feeds["mask"] = np.ones((batch, total), np.int64)
        if new == 1 and batch > 1:
            feeds["mask"][1, -2:] = 0
        results = exe.run(feeds)
        assert {region.backend for region in exe.placement.regions} == {"llvm"}
        for name, want in evaluate(model, feeds).items():
            np.testing.assert_allclose(results[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.exhaustive
def test_caches_of_halves(backends):
    """For all sizes: what is kept has the numbers that came, the rest is that of float32."""
    exes = [
        intarsia.compile(model, "llvm", num_threads=1, backends=backends)
        for model in (in_halves(free_model("total"), "float16"), free_model("total"))
    ]
    rng = np.random.default_rng(3)
    for batch, new, past, total in [(2, 5, 0, 5), (2, 1, 6, 7), (1, 2, 40, 33)]:
        shapes = [(batch, new, 256), *[(batch, PAIRS, past, SIZE)] * 2]
        arrays = [rng.standard_normal(shape).astype("f2") for shape in shapes]
        feeds = dict(zip(("query", "past_key", "past_value"), arrays, strict=True))
        wide = {name: array.astype("f4") for name, array in feeds.items()}
        mask = {"mask": np.ones((batch, total), np.int64)}
        results, wanted = (
            exe.run(given | mask) for exe, given in zip(exes, (feeds, wide), strict=True)
        )
        assert {region.backend for region in exes[0].placement.regions} == {"llvm"}
        before = total - new
        for name, want in wanted.items():
            assert results[name].dtype == np.float16
            np.testing.assert_allclose(results[name], want, rtol=2e-3, atol=2e-3, err_msg=name)
        for name in ("key", "value"):
            kept = results[f"present_{name}"][:, :, :before]
            np.testing.assert_array_equal(kept, feeds[f"past_{name}"][:, :, :before])


HALVES = np.zeros((2, PAIRS, 6, SIZE), "f2")
REFUSED = {
    "its softmax is smooth": ({}, {"smooth_softmax": 1}),
    "it is not causal": ({}, {"causal": 0}),
    "its cache is a window": ({}, {"sliding_window_cache": 1}),
    "its keys are quantised": ({}, {"k_quant_type": "PER_TENSOR"}),
    "its heads have sinks": ({"sinks": np.zeros(HEADS)}, {}),
    "its input 3 is of float16": ({"past_key": HALVES, "past_value": HALVES}, {}),
    "its heads do not match: 4 and 3": ({}, {"kv_num_heads": 3}),
    "its soft cap is negative": ({}, {"softcap": -1.0}),
    "its bias is not one for each key of the present": (
        {"bias": np.zeros((1, 1, 1, 5))},
        {},
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_has_a_reason(why):
    more, attributes = REFUSED[why]
    graph = snapshot(load(model_of(feeds_of(**TOKEN, **more), 7, **attributes)))
    assert refuse_group_query(Operation(graph, graph.nodes[0])) == why
