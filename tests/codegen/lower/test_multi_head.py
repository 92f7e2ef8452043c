# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's MultiHeadAttention and Attention in native code, against ONNX Runtime."""

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import feeds_of

import intarsia
from intarsia.backends import llvm
from intarsia.codegen.lower.multi_head import refuse_multi_head, refuse_packed
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.lower.tiles import reader_key
from intarsia.codegen.unit import AVX512
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.passes.free_shapes import prepare_free
from intarsia.testing.subject import Subject

MULTI_HEAD = ("q", "k", "v", "bias", "padding", "added", "past_key", "past_value")
THREE = {"q": (2, 9, 24), "k": (2, 21, 24), "v": (2, 21, 20)}
OLD = {"past_key": (2, 4, 5, 6), "past_value": (2, 4, 5, 6), "v": (2, 21, 24)}
ENDS = np.array([7, 20], np.int32)
SHOWN = np.random.default_rng(3).integers(0, 2, (2, 21)).astype(np.int32)


def multi_head(inputs, outputs=1, **attributes):
    """A model of one MultiHeadAttention; inputs are shapes, or arrays of that dtype and shape."""
    arrays = {
        name: np.zeros(given, np.float32) if isinstance(given, tuple) else given
        for name, given in inputs.items()
    }
    names = [name if name in inputs else "" for name in MULTI_HEAD]
    while not names[-1]:
        names.pop()
    results = ["y", "present_key", "present_value"][:outputs]
    node = onnx.helper.make_node(
        "MultiHeadAttention", names, results, "node", domain="com.microsoft", **attributes
    )
    declared = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
    ]
    made = [onnx.helper.make_tensor_value_info(name, 1, None) for name in results]
    domains = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "g", declared, made)
    return onnx.helper.make_model(graph, opset_imports=domains, ir_version=9)


MULTI_HEADS = {
    "plain": (THREE, 1, {}),
    "a scale": (THREE, 1, {"scale": 0.2}),
    "a bias": ({**THREE, "bias": (68,)}, 1, {}),
    "keys that are hidden": ({**THREE, "padding": SHOWN}, 1, {}),
    "keys that are hidden by another number": (
        {**THREE, "padding": SHOWN},
        1,
        {"mask_filter_value": -3.0},
    ),
    "keys that end": ({**THREE, "padding": ENDS}, 1, {}),
    "keys that end, by another number": (
        {**THREE, "padding": ENDS},
        1,
        {"mask_filter_value": -3.0},
    ),
    "queries that see some keys each": (
        {**THREE, "padding": np.stack([SHOWN] * 9, 1) ^ np.eye(9, 21, dtype=np.int32)},
        1,
        {},
    ),
    "something added": ({**THREE, "added": (1, 4, 9, 21)}, 1, {}),
    "something added to all heads": (
        {**THREE, "padding": SHOWN, "added": (2, 1, 9, 21)},
        1,
        {},
    ),
    "a past": ({**THREE, **OLD, "bias": (72,)}, 3, {}),
    "causal": ({**THREE, "k": (2, 9, 24), "v": (2, 9, 20)}, 1, {"unidirectional": 1}),
    "one query, a long past": (
        {
            **dict.fromkeys(("q", "k", "v"), (2, 1, 24)),
            **dict.fromkeys(("past_key", "past_value"), (2, 4, 1200, 6)),
        },
        3,
        {"unidirectional": 1},
    ),
    "keys and values that have heads": (
        {"q": (2, 9, 24), "k": (2, 4, 21, 6), "v": (2, 4, 21, 6), "padding": SHOWN},
        1,
        {},
    ),
    "a present without a past": (THREE | {"bias": (68,)}, 3, {}),
    "one query, a past": (
        {**THREE, **OLD, "q": (2, 1, 24), "k": (2, 1, 24), "v": (2, 1, 24)},
        3,
        {"unidirectional": 1},
    ),
}


@pytest.mark.parametrize("case", MULTI_HEADS)
def test_multi_head_numbers(run_both, case):
    inputs, outputs, attributes = MULTI_HEADS[case]
    model = multi_head(inputs, outputs, num_heads=4, **attributes)
    feeds = feeds_of(model)
    if "padding" in feeds:
        feeds["padding"] = inputs["padding"]
    run_both(model, feeds)


PACKED_FORMS = {
    "all together": ({"q": (2, 9, 4, 3, 6)}, 3),
    "keys and values together": ({"q": (2, 9, 24), "k": (2, 21, 4, 2, 6)}, 2),
}


@pytest.mark.parametrize("form", PACKED_FORMS)
def test_operands_that_lie_together(backends, form):
    """ONNX Runtime has these forms on other devices than CPUs alone: it gets them apart."""
    inputs, count = PACKED_FORMS[form]
    model = multi_head(inputs, num_heads=4)
    feeds = feeds_of(model)
    packed_at = "q" if count == 3 else "k"
    whole = feeds[packed_at]
    parts = [part.reshape(*whole.shape[:2], 24) for part in np.moveaxis(whole, 3, 0)]
    apart = dict(zip("qkv"[-count:], parts, strict=True))
    apart = {**({"q": feeds["q"]} if count == 2 else {}), **apart}
    wanted = evaluate(multi_head({name: x.shape for name, x in apart.items()}, num_heads=4), apart)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    np.testing.assert_allclose(exe.run(feeds)["y"], wanted["y"], rtol=1e-4, atol=1e-5)


MULTI_HEADS_REFUSED = {
    "its packed operands do not have its heads": ({"q": (2, 9, 3, 3, 6)}, 1),
    "its operands have heads already and a bias": ({"q": (2, 9, 4, 3, 6), "bias": (72,)}, 1),
    "its operands have heads already and a past or a present": (
        {"q": (2, 9, 24), "k": (2, 4, 21, 6), "v": (2, 4, 21, 6)},
        3,
    ),
    "its heads do not divide its operands": (
        {"q": (2, 9, 24), "k": (2, 3, 21, 6), "v": (2, 3, 21, 6)},
        1,
    ),
    "its mask is of sequences that are joined": ({**THREE, "padding": np.zeros(8, np.int32)}, 1),
    "its mask is of four dimensions": ({**THREE, "padding": np.zeros((2, 1, 9, 21), np.int32)}, 1),
}


@pytest.mark.parametrize("why", MULTI_HEADS_REFUSED)
def test_what_is_refused_of_multi_head_has_a_reason(why):
    inputs, outputs = MULTI_HEADS_REFUSED[why]
    graph = snapshot(load(multi_head(inputs, outputs, num_heads=4)))
    operation = Operation(graph, graph.nodes[0])
    assert refuse_multi_head(operation) == why


PACKED = ("x", "weights", "bias", "mask", "past", "added")
WIDE = {"x": (2, 5, 24), "weights": (24, 72), "bias": (72,)}
BEFORE = {"past": (2, 2, 4, 3, 6)}
FLAGS = np.random.default_rng(3).integers(0, 2, (2, 5)).astype(np.int32)


def packed(inputs, outputs=1, constants=("weights", "bias"), **attributes):
    """A model of one Attention of ONNX Runtime, some of its inputs constant."""
    rng = np.random.default_rng(5)
    arrays = {
        name: rng.standard_normal(given).astype("f4") if isinstance(given, tuple) else given
        for name, given in inputs.items()
    }
    names = [name if name in inputs else "" for name in PACKED]
    while not names[-1]:
        names.pop()
    results = ["y", "present"][:outputs]
    node = onnx.helper.make_node(
        "Attention", names, results, "node", domain="com.microsoft", num_heads=4, **attributes
    )
    declared = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in arrays.items()
        if name not in constants
    ]
    made = [onnx.helper.make_tensor_value_info(name, 1, None) for name in results]
    weights = [
        onnx.numpy_helper.from_array(arrays[name], name) for name in constants if name in arrays
    ]
    domains = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    graph = onnx.helper.make_graph([node], "g", declared, made, weights)
    feeds = {name: array for name, array in arrays.items() if name not in constants}
    return onnx.helper.make_model(graph, opset_imports=domains, ir_version=9), feeds


PLAIN = ["gemm", "attention"]
MASKED = ["gemm", "elementwise", "attention"]
CACHED = ["gemm", *["elementwise"] * 4, "attention"]
PACKEDS = {
    "plain": (WIDE, 1, {}, PLAIN),
    "a scale": (WIDE, 1, {"scale": 0.2}, PLAIN),
    "values of another size": (
        {"x": WIDE["x"], "weights": (24, 64), "bias": (64,)},
        1,
        {"qkv_hidden_sizes": [24, 24, 16]},
        PLAIN,
    ),
    "causal": (WIDE, 1, {"unidirectional": 1}, PLAIN),
    "ends of keys": ({**WIDE, "mask": np.array([3, 5], np.int32)}, 1, {}, MASKED),
    "ends and starts of keys": ({**WIDE, "mask": np.array([3, 5, 1, 2], np.int32)}, 1, {}, MASKED),
    "keys that are hidden": (
        {**WIDE, "mask": FLAGS},
        1,
        {"mask_filter_value": -2.0, "unidirectional": 1},
        MASKED,
    ),
    "each query with keys of its own": (
        {**WIDE, "mask": np.stack([FLAGS] * 5, 1) | np.eye(5, dtype=np.int32)},
        1,
        {},
        MASKED,
    ),
    "something added": ({**WIDE, "added": (1, 4, 5, 5)}, 1, {}, PLAIN),
    "a past": ({**WIDE, **BEFORE}, 2, {}, CACHED),
    "a past, causal": ({**WIDE, **BEFORE}, 2, {"unidirectional": 1}, CACHED),
    "one query, a past, a mask": (
        {**WIDE, **BEFORE, "x": (2, 1, 24), "mask": FLAGS[:, 1:]},
        2,
        {},
        [*CACHED[:-1], "elementwise", "attention"],
    ),
}


@pytest.mark.parametrize("case", PACKEDS)
def test_packed_numbers(run_both, lower_model, case):
    inputs, outputs, attributes, kernels = PACKEDS[case]
    model, feeds = packed(inputs, outputs, **attributes)
    run_both(model, feeds, rtol=1e-3 if "mask" in inputs else 1e-4)
    program, _ = lower_model(model)
    names = [program.kernels[call.kernel].name.rpartition("_")[0] for call in program.calls]
    assert names == kernels


def test_weights_that_are_computed(run_both):
    run_both(*packed(WIDE, constants=()))


def test_without_a_bias(backends):
    model, feeds = packed({name: WIDE[name] for name in ("x", "weights")})
    other, _ = packed({**WIDE, "bias": np.zeros(72, "f4")})
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    # ONNX Runtime 1.31 ends the process where there is no bias.
    want = evaluate(other, feeds)["y"]
    np.testing.assert_allclose(exe.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)


FREE = """
<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
g (float[batch, seq, 24] x, float[2, batch, 4, past, 6] past, int32[batch, total] mask)
  => (float[batch, seq, 24] z, float[2, batch, 4, total, 6] present,
      float[batch, 4, total, 6] keys)
{
  first = Constant<value_int = 0>()
  old = Gather(past, first)
  y, present = com.microsoft.Attention<num_heads = 4, unidirectional = 1>(x, w, b, mask, past)
  z, keys, values = com.microsoft.MultiHeadAttention<num_heads = 4>(y, y, y, , , , old, old)
}
"""


def test_one_program_for_all_sizes(backends):
    model = onnx.parser.parse_model(FREE)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "total":  # ONNX's text has no sums
                dim.dim_param = "past + seq"
    rng = np.random.default_rng(1)
    for name, shape in {"w": (24, 72), "b": (72,)}.items():
        array = rng.standard_normal(shape).astype("f4") / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = prepare_free(load(model, stays_free=True), {"batch": 2, "seq": 3, "past": 8})[0].graph
    assert not Subject(llvm.BACKEND, None, {}).refusals(graph, "layers")
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    for batch, new, past in ((2, 5, 3), (1, 1, 40), (3, 2, 7)):
        feeds = {
            "x": rng.standard_normal((batch, new, 24)).astype("f4"),
            "past": rng.standard_normal((2, batch, 4, past, 6)).astype("f4"),
            "mask": (rng.random((batch, past + new)) > 0.2).astype(np.int32),
        }
        feeds["mask"][:, 0] = 1
        results = exe.run(feeds)
        assert {region.backend for region in exe.placement.regions} == {"llvm"}
        for name, want in evaluate(model, feeds).items():
            np.testing.assert_allclose(results[name], want, rtol=1e-3, atol=1e-4, err_msg=name)


TWO = """
<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
g (float[batch, seq, 24] x, float[24, 72] w, float[24, 72] v, float[72] b)
  => (float[batch, seq, 24] y, float[batch, seq, 24] z)
{
  y = com.microsoft.Attention<num_heads = 4>(x, w, b)
  z = com.microsoft.Attention<num_heads = 4>(x, v, b)
}
"""


def test_products_of_two_nodes_note_their_own_orders():
    """Whatever the names of nodes and weights are: joined, these are the same."""
    model = onnx.parser.parse_model(TWO)
    names = {"w": "of/w", "v": "w"}
    for node, name in zip(model.graph.node, ("layer", "layer/of"), strict=True):
        node.name = name
        node.input[1] = names[node.input[1]]
    for value in model.graph.input:
        value.name = names.get(value.name, value.name)
    graph = prepare_free(load(model, stays_free=True), {"batch": 2, "seq": 3})[0].graph
    program = lower_region(Region.of(graph, range(len(graph.nodes))), AVX512)
    assert {key for key in program.sums if key.startswith("dots of")} == {
        "dots of 'layer'",
        "dots of 'layer/of'",
    }
    pairs = [("a", "x/ by c"), ("a/ by x", "c"), ("a' by 'x", "c"), ("a", "x' by 'c")]
    assert len({reader_key(name, reader) for name, reader in pairs}) == len(pairs)


PACKEDS_REFUSED = {
    "it turns queries and keys": (WIDE, 1, {"do_rotary": 1}),
    "it has a present without a past": (WIDE, 2, {}),
    "its mask is of four dimensions": (
        {**WIDE, "mask": np.zeros((2, 1, 5, 5), np.int32)},
        1,
        {},
    ),
    "its mask is of sequences that are joined": ({**WIDE, "mask": np.zeros(8, np.int32)}, 1, {}),
    "its weights do not fit its input": (WIDE, 1, {"qkv_hidden_sizes": [24, 24, 16]}),
    "its past has keys and values of several sizes": (
        {"x": (2, 5, 24), "weights": (24, 64), "bias": (64,), **BEFORE},
        1,
        {"qkv_hidden_sizes": [24, 24, 16]},
    ),
}


@pytest.mark.parametrize("why", PACKEDS_REFUSED)
def test_what_is_refused_of_attention_has_a_reason(why):
    inputs, outputs, attributes = PACKEDS_REFUSED[why]
    graph = snapshot(load(packed(inputs, outputs, **attributes)[0]))
    assert refuse_packed(Operation(graph, graph.nodes[0])) == why
