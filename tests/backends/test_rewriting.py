# SPDX-License-Identifier: Apache-2.0
"""What a library lacks or misreads is said otherwise, and then comes out right."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.backends.defects import forgotten
from intarsia.backends.openvino_defects import GREATER_THAN_NAN
from intarsia.backends.rewriting import has_definition
from intarsia.errors import UnsupportedError
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot

NEWEST = 28


def model_of(nodes, feeds, outputs, opset=NEWEST, constants=None):
    """Return a model; outputs are names with element types, their shapes are inferred."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    results = [
        onnx.ValueInfoProto(name=name, type=helper.make_tensor_type_proto(kind, None))
        for name, kind in outputs.items()
    ]
    arrays = [onnx.numpy_helper.from_array(x, name) for name, x in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, results, arrays)
    imports = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    return helper.make_model(graph, opset_imports=imports, ir_version=version)


def check(model, feeds, target, backends, *, alone=True):
    """Compare with onnx's evaluator; the target runs every node, if it is to."""
    exe = intarsia.compile(model, target, num_threads=1, backends=backends, strict=alone)
    found = exe.run(feeds)
    names = [output.name for output in model.graph.output]
    for name, array in zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True):
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, 1e-5, 1e-5, err_msg=name)


def draw(*shape, dtype=np.float32):
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 9).astype(dtype)


RECURRENT = [
    (op, states, initial, direction)
    for op, states in (("RNN", 1), ("GRU", 1), ("LSTM", 2))
    for initial in (False, True)
    for direction in ("forward", "bidirectional")
]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, reference"])
@pytest.mark.parametrize(("op", "states", "initial", "direction"), RECURRENT)
def test_recurrent_layers_may_have_the_batch_first(
    target, op, states, initial, direction, backends
):
    batch, steps, width, hidden = 2, 3, 4, 5
    directions = 2 if direction == "bidirectional" else 1
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    small = {"dtype": np.float32}
    feeds = {"x": draw(batch, steps, width, **small) / 9}
    constants = {
        "w": draw(directions, gates * hidden, width, **small) / 9,
        "r": draw(directions, gates * hidden, hidden, **small) / 9,
    }
    given = [f"i{state}" for state in range(states)] if initial else []
    for name in given:
        feeds[name] = draw(batch, directions, hidden, **small) / 9
    names = ["y", "h", "c"][: states + 1]
    attributes = {"hidden_size": hidden, "direction": direction}
    reads = ["x", "w", "r", "", "", *given][: 5 + len(given)] if given else ["x", "w", "r"]
    layer = helper.make_node(op, reads, names, layout=1, **attributes)
    outputs = dict.fromkeys(names, TensorProto.FLOAT)
    model = model_of([layer], feeds, outputs, 14, constants)
    exe = intarsia.compile(model, target, num_threads=1, backends=backends, strict=True)
    found = exe.run(feeds)
    # onnx's evaluator has no batch first in some versions: the same with the sequence first.
    plain = helper.make_node(op, reads, names, **attributes)
    turned = {name: np.ascontiguousarray(x.swapaxes(0, 1)) for name, x in feeds.items()}
    peer = intarsia.compile(
        model_of([plain], turned, outputs, 14, constants), "onnxruntime", backends=backends
    ).run(turned)
    wanted = {name: peer[name].swapaxes(0, 1) for name in names[1:]}
    wanted["y"] = peer["y"].transpose(2, 0, 1, 3)
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, reference"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_goes_to_channels_in_either_order(target, mode, backends):
    feeds = {"x": draw(2, 3, 4, 6)}
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
    check(model_of([node], feeds, {"y": TensorProto.FLOAT}), feeds, target, backends)


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_short_integers_are_compared(op, dtype, backends):
    limits = np.iinfo(dtype)
    feeds = {
        "a": np.array([limits.min, 3, limits.max], dtype),
        "b": np.array([limits.max, 3, 1], dtype),
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node(op, ["a", "b"], ["y"])
    check(model_of([node], feeds, {"y": kind}, 13), feeds, "onnxruntime", backends)


def test_powers_may_be_unsigned(backends):
    feeds = {"x": draw(5), "p": np.arange(5, dtype=np.uint32)}
    node = helper.make_node("Pow", ["x", "p"], ["y"])
    check(model_of([node], feeds, {"y": TensorProto.FLOAT}, 15), feeds, "onnxruntime", backends)


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("op", ["MatMulInteger", "QLinearMatMul", "QLinearConv"])
def test_sums_of_signed_and_unsigned_bytes_do_not_saturate(op, is_constant, level, backends):
    """Where a CPU lacks VNNI, ONNX Runtime adds pairs of them in 16 bits if it is let."""
    shape = (8, 16, 3, 3) if op == "QLinearConv" else (33, 20)
    rng = np.random.default_rng(3)
    feeds = {"a": rng.integers(200, 256, (1, 16, 9, 9) if op == "QLinearConv" else (6, 33))}
    feeds = {"a": feeds["a"].astype(np.uint8)}
    factors = {"b": rng.integers(-128, 128, shape).astype(np.int8)}
    constants = {"as": np.float32(0.02), "az": np.uint8(131), "bs": np.float32(0.004)}
    constants |= {"bz": np.int8(0), "ys": np.float32(0.2), "yz": np.uint8(125)}
    reads = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    node = helper.make_node(op, ["a", "b"] if op == "MatMulInteger" else reads, ["y"])
    kind = TensorProto.INT32 if op == "MatMulInteger" else TensorProto.UINT8
    constants, feeds = (constants | factors, feeds) if is_constant else (constants, feeds | factors)
    model = model_of([node], feeds, {"y": kind}, 20, constants)
    target = f"onnxruntime -graph_optimization={level}"
    exe = intarsia.compile(model, target, num_threads=1, backends=backends, strict=True)
    expected = ReferenceEvaluator(model).run(None, feeds)[0].astype(np.int64)
    assert len(np.unique(expected)) > 20
    apart = np.abs(exe.run(feeds)["y"] - expected)
    assert apart.max() <= (0 if op == "MatMulInteger" else 1)  # where a tie is rounded


@pytest.mark.parametrize("zero", [0, 3])
def test_weights_may_share_a_zero_point(zero, backends):
    """ONNX Runtime's pass for CPUs without VNNI changes it for each of them, under one name."""
    rng = np.random.default_rng(5)
    constants = {"s": np.float32(0.02), "z": np.uint8(128), "ws": np.full(96, 0.01, np.float32)}
    constants |= {"wz": np.full(96, zero, np.int8), "w": rng.integers(-99, 99, (96, 96), np.int8)}
    constants["v"] = rng.integers(-99, 99, (96, 96), np.int8)
    nodes, value = [], "x"
    for weights in ("w", "v"):
        names = [f"{weights}{i}" for i in range(4)]
        nodes += [
            helper.make_node("QuantizeLinear", [value, "s", "z"], names[:1]),
            helper.make_node("DequantizeLinear", [names[0], "s", "z"], names[1:2]),
            helper.make_node("DequantizeLinear", [weights, "ws", "wz"], names[2:3], axis=1),
            helper.make_node("MatMul", names[1:3], names[3:]),
        ]
        value = names[3]
    feeds = {"x": rng.standard_normal((4, 96)).astype(np.float32)}
    model = model_of(nodes, feeds, {value: TensorProto.FLOAT}, 20, constants)
    exe = intarsia.compile(model, "onnxruntime", num_threads=1, backends=backends, strict=True)
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    apart = np.abs(exe.run(feeds)[value] - expected)
    assert apart.max() < 0.01 * np.abs(expected).max()  # a step of what lies between


def test_a_range_may_be_given_vectors(backends):
    """As the body that ONNX declares for AffineGrid does, where a condition hides it from onnx."""
    unknown = onnx.ValueInfoProto(name="e", type=helper.make_tensor_type_proto(7, None))
    then = helper.make_graph([helper.make_node("Neg", ["v"], ["e"])], "then", [], [unknown])
    other = helper.make_node("ReduceSum", ["v"], ["e"], keepdims=0)
    nodes = [
        helper.make_node(
            "If",
            ["is_vector"],
            ["end"],
            then_branch=then,
            else_branch=helper.make_graph([other], "else", [], [unknown]),
        ),
        helper.make_node("Range", ["start", "end", "step"], ["y"]),
    ]
    constants = {"start": np.array(0), "step": np.array(-2), "is_vector": np.array(True)}
    feeds = {"v": np.array([5])}
    model = model_of(nodes, feeds, {"y": TensorProto.INT64}, 13, constants)
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    np.testing.assert_array_equal(exe.run(feeds)["y"], [0, -2, -4])


NEW = [
    ("Mod", {"fmod": 0}, "int32", "int32"),
    ("Celu", {"alpha": 0.5}, "float32", "float32"),
    ("BitShift", {"direction": "LEFT"}, "uint8", "uint8"),
]


@pytest.mark.parametrize(("op", "attributes", "dtype", "result"), NEW)
def test_a_newer_operator_set_is_lowered_where_the_older_says_the_same(
    op, attributes, dtype, result, backends
):
    feeds = {"x": np.arange(1, 7).astype(dtype)}
    if op != "Celu":
        feeds["p"] = np.array([2, 3, 1, 2, 3, 1], dtype)
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(result))
    check(model_of([node], feeds, {"y": kind}), feeds, "onnxruntime", backends)


def test_what_only_the_newer_operator_set_has_is_refused_with_a_reason(backends):
    feeds = {"x": np.arange(4, dtype=np.int32), "p": np.ones(4, np.int32)}
    node = helper.make_node("BitShift", ["x", "p"], ["y"], direction="LEFT")
    model = model_of([node], feeds, {"y": TensorProto.INT32})
    with pytest.raises(UnsupportedError, match="operator sets up to 26"):
        intarsia.compile(model, "onnxruntime", backends=backends, strict=True)


@pytest.mark.parametrize(
    ("op", "dtype", "attributes", "expected"),
    [
        ("BitShift", "uint8", {"direction": "LEFT"}, True),
        ("BitShift", "int8", {"direction": "LEFT"}, False),
        ("Mod", "int32", {}, True),
        ("Add", "float32", {}, True),
    ],
)
def test_definitions_are_compared_by_types_and_attributes(op, dtype, attributes, expected):
    feeds = {"x": np.ones(4, dtype), "p": np.ones(4, dtype)}
    node = helper.make_node(op, ["x", "p"], ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = snapshot(load(model_of([node], feeds, {"y": kind})))
    assert has_definition(graph, graph.nodes[0], 26) is expected


def test_attributes_that_the_older_operator_set_lacks_count():
    feeds = {"x": draw(1, 4, 4, 4)}
    for mode, expected in (("DCR", True), ("CRD", False), (None, True)):
        given = {} if mode is None else {"mode": mode}
        node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, **given)
        graph = snapshot(load(model_of([node], feeds, {"y": TensorProto.FLOAT})))
        assert has_definition(graph, graph.nodes[0], 26) is expected


def test_a_cast_like_keeps_what_it_says_of_overflow(backends):
    """The library that folds constants makes a Cast of it that says nothing."""
    feeds = {"x": np.array([1, 1e4, -np.inf], np.float32)}
    like = onnx.helper.make_tensor("like", TensorProto.FLOAT8E4M3FN, [1], [1.0])
    node = helper.make_node("CastLike", ["x", "like"], ["y"], saturate=0)
    model = model_of([node], feeds, {"y": TensorProto.FLOAT8E4M3FN}, 19)
    model.graph.initializer.append(like)
    exe = intarsia.compile(model, "onnxruntime", backends=backends)
    np.testing.assert_array_equal(
        exe.run(feeds)["y"].astype(np.float32), np.array([1, np.nan, np.nan], np.float32)
    )


def test_short_transforms_have_half_of_the_frequencies():
    """onnx's inference takes the default of `onesided` to be 0."""
    feeds = {"x": draw(1, 32, 1)}
    constants = {"step": np.array(8), "length": np.array(16)}
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"])
    model = model_of([node], feeds, {"y": TensorProto.FLOAT}, 17, constants)
    graph = snapshot(intarsia.graph.load.load(model))
    assert graph.values[graph.nodes[0].outputs[0]].shape == (1, 3, 9, 2)


POOLS = [
    (op, kernel, stride, pads, ceil, counts)
    for op in ("AveragePool", "MaxPool", "LpPool")
    for kernel, stride, pads in (
        (2560, 2560, (0, 0)),  # the head of EfficientNet
        (9, 9, (1, 0)),
        (3, 2, (1, 1)),
        (2, 3, (1, 0)),
        (2, 2, (0, 1)),
        (3, 4, (2, 2)),
    )
    for ceil in (0, 1)
    for counts in ((0, 1) if op == "AveragePool" else (0,))
]


def pooled(op, x, kernel, stride, pads, ceil, counts):
    """Return a pooling of squares with windows as ONNX counts them."""
    begin, end = pads
    extent = x.shape[2]
    padded = begin + extent + end
    steps = (padded - kernel) / stride
    count = int(np.ceil(steps) if ceil else np.floor(steps)) + 1
    if ceil and (count - 1) * stride >= extent + begin:
        count -= 1
    result = np.zeros((*x.shape[:2], count, count), np.float32)
    for at in np.ndindex(count, count):
        starts = [step * stride - begin for step in at]
        inside = [slice(max(0, start), max(0, min(extent, start + kernel))) for start in starts]
        seen = x[:, :, inside[0], inside[1]]
        sizes = [min(extent + end, start + kernel) - start for start in starts]
        if op == "MaxPool":
            result[:, :, *at] = seen.max(axis=(2, 3))
        elif op == "LpPool":
            result[:, :, *at] = np.sqrt((seen**2).sum(axis=(2, 3)))
        else:
            divisor = sizes[0] * sizes[1] if counts else seen[0, 0].size
            result[:, :, *at] = seen.sum(axis=(2, 3)) / divisor
    return result


@pytest.mark.parametrize("opset", [10, 19])
def test_windows_are_those_that_onnx_counts(opset, backends):
    feeds, nodes, wanted = {"x": draw(1, 2, 7, 7)}, [], {}
    for op, kernel, stride, pads, ceil, counts in POOLS:
        if (kernel > 7 and not ceil) or max(pads) >= kernel or (op == "LpPool" and opset < 18):
            continue
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "ceil_mode": ceil}
        attributes["pads"] = [pads[0]] * 2 + [pads[1]] * 2
        if op == "AveragePool":
            attributes["count_include_pad"] = counts
        name = f"{op}_k{kernel}_s{stride}_p{pads}_c{ceil}_i{counts}"
        nodes.append(helper.make_node(op, ["x"], [name], **attributes))
        wanted[name] = pooled(op, feeds["x"], kernel, stride, pads, ceil, counts)
    model = model_of(nodes, feeds, dict.fromkeys(wanted, TensorProto.FLOAT), opset)
    exe = intarsia.compile(model, "openvino, reference", backends=backends, strict=True)
    for name, array in exe.run(feeds).items():
        assert array.shape == wanted[name].shape, name
        np.testing.assert_allclose(array, wanted[name], 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("op", ["Softmax"])
@pytest.mark.parametrize("opset", [10, 12])
def test_an_old_softmax_flattens(op, opset, backends):
    feeds = {"x": draw(2, 3, 4, 5) / 9}
    nodes, wanted = [], {}
    for axis in (0, 1, 2, 3, -1, -2, -3):
        nodes.append(helper.make_node(op, ["x"], [f"y{axis}"], axis=axis))
        flat = feeds["x"].reshape(int(np.prod((1, *feeds["x"].shape[: axis % 4]))), -1)
        weights = np.exp(flat - flat.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        wanted[f"y{axis}"] = weights.reshape(feeds["x"].shape)
    nodes.append(helper.make_node(op, ["x"], ["y"]))
    wanted["y"] = wanted["y1"]
    model = model_of(nodes, feeds, dict.fromkeys(wanted, TensorProto.FLOAT), opset)
    exe = intarsia.compile(model, "openvino, reference", backends=backends, strict=True)
    for name, array in exe.run(feeds).items():
        np.testing.assert_allclose(array, wanted[name], 1e-4, 1e-6, err_msg=name)


SPECIAL = np.array([np.nan, np.inf, -np.inf, -2, -0.5, 0, 0.5, 0.75, 1, 2] * 7, np.float32)


def test_what_is_compared_with_nan_is_never_greater(backends):
    feeds = {"a": SPECIAL, "b": SPECIAL[::-1].copy()}
    nodes = [
        helper.make_node(op, list(feeds), [op])
        for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ]
    outputs = {node.op_type: TensorProto.BOOL for node in nodes}
    check(model_of(nodes, feeds, outputs, 17), feeds, "openvino, reference", backends)


@pytest.mark.parametrize("opset", [10, 22])
def test_bounds_select_and_do_not_multiply(opset, backends):
    feeds = {"x": SPECIAL}
    nodes = [
        helper.make_node("ThresholdedRelu", ["x"], ["t"], alpha=0.5),
        helper.make_node("ThresholdedRelu", ["x"], ["d"]),
        helper.make_node("Shrink", ["x"], ["s"], lambd=0.5, bias=0.25),
        helper.make_node("Shrink", ["x"], ["e"]),
    ]
    exe = intarsia.compile(
        model_of(nodes, feeds, dict.fromkeys("tdse", TensorProto.FLOAT), opset),
        "openvino, reference",
        backends=backends,
        strict=True,
    )
    found, x = exe.run(feeds), SPECIAL
    for name, bound in (("t", 0.5), ("d", 1.0)):
        np.testing.assert_array_equal(found[name], np.where(x > bound, x, 0))
    for name, bias in (("s", 0.25), ("e", 0.0)):
        wanted = np.where(x < -0.5, x + bias, np.where(x > 0.5, x - bias, 0))
        np.testing.assert_array_equal(found[name], wanted.astype(np.float32))


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_slope_of_the_last_axis_is_one(is_constant, backends):
    feeds, slope = {"x": draw(2, 4, 3, 4)}, draw(4)
    constants = {"s": slope} if is_constant else {}
    if not is_constant:
        feeds["s"] = slope
    node = helper.make_node("PRelu", ["x", "s"], ["y"])
    model = model_of([node], feeds, {"y": TensorProto.FLOAT}, 16, constants)
    check(model, feeds, "openvino, reference", backends)


def test_a_rule_that_is_forgotten_rewrites_nothing(backends):
    feeds = {"a": SPECIAL, "b": SPECIAL[::-1].copy()}
    node = helper.make_node("Greater", list(feeds), ["y"])
    model = model_of([node], feeds, {"y": TensorProto.BOOL}, 17)

    def operators():
        exe = intarsia.compile(model, "openvino, reference", backends=backends, strict=True)
        (artifact,) = exe.artifacts
        assert artifact.backend == "openvino"
        return [node.op_type for node in onnx.load_from_string(artifact.payload).graph.node]

    assert operators() != ["Greater"]
    with forgotten(GREATER_THAN_NAN):
        assert operators() == ["Greater"]


def attention(q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("is_causal", [0, 1])
def test_a_mask_of_truth_values_says_what_counts(is_causal, backends):
    feeds = {name: draw(1, 2, 5, 8) / 9 for name in "qkv"}
    feeds["m"] = np.random.default_rng(0).random((5, 5)) < 0.7
    feeds["m"][:, 0] = True  # a row of which nothing counts is another matter
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], is_causal=is_causal)
    model = model_of([node], feeds, {"y": TensorProto.FLOAT}, 24)
    exe = intarsia.compile(model, "openvino, reference", backends=backends, strict=True)
    mask = feeds["m"] & (np.tril(np.ones((5, 5), bool)) if is_causal else True)
    wanted = attention(feeds["q"], feeds["k"], feeds["v"], mask)
    np.testing.assert_allclose(exe.run(feeds)["y"], wanted, 1e-4, 1e-5)


MASKED = [
    ({"left_window_size": 1}, "", False),
    ({"left_window_size": 2, "right_window_size": 0}, "float", False),
    ({"right_window_size": 1}, "bool", False),
    ({"left_window_size": 0, "is_causal": 1}, "row", False),
    ({"left_window_size": 2}, "bool", True),
    ({"left_window_size": -1, "right_window_size": -1}, "", False),
    ({"is_causal": 1}, "float", True),
    ({"is_causal": 1, "left_window_size": 3}, "", True),
]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, reference"])
@pytest.mark.parametrize(("attributes", "kind", "has_past"), MASKED)
def test_windows_of_attention_are_masks(target, attributes, kind, has_past, backends):
    feeds = {"q": draw(2, 4, 5, 8) / 9, "k": draw(2, 2, 5, 8) / 9, "v": draw(2, 2, 5, 6) / 9}
    past = 3 if has_past else 0
    reads = ["q", "k", "v", "m" if kind else "", *(["p", "o"] if has_past else [])]
    rng = np.random.default_rng(0)
    masks = {
        "float": rng.standard_normal((5, 5 + past)).astype(np.float32),
        "bool": rng.random((2, 1, 5, 5 + past)) < 0.8,
        "row": rng.random(5 + past) < 0.8,
    }
    if kind:
        feeds["m"] = masks[kind]
    if has_past:
        feeds |= {"p": draw(2, 2, past, 8) / 9, "o": draw(2, 2, past, 6) / 9}
    while not reads[-1]:
        del reads[-1]
    outputs = ["y", "present_key", "present_value"][: 3 if has_past else 1]
    node = helper.make_node("Attention", reads, outputs, **attributes)
    opset = 25 if any("window" in name for name in attributes) else 24
    model = model_of([node], feeds, dict.fromkeys(outputs, TensorProto.FLOAT), opset)
    check(model, feeds, target, backends)


@pytest.mark.parametrize(
    ("attributes", "inputs", "words"),
    [
        ({"left_window_size": 2, "qk_matmul_output_mode": 3}, ["q", "k", "v"], "windows"),
        ({"is_causal": 1}, ["q", "k", "v", "short", "p", "o"], "is_causal"),
    ],
)
def test_attention_that_openvino_misreads_is_refused(attributes, inputs, words, backends):
    feeds = {name: draw(1, 2, 5, 8) for name in "qkv"}
    past = {"short": draw(5, 6), "p": draw(1, 2, 2, 8), "o": draw(1, 2, 2, 8)}
    feeds |= {name: past[name] for name in inputs[3:]}
    outputs = ["y", "present_key", "present_value"] if "p" in inputs else ["y", "", "", "scores"]
    node = helper.make_node("Attention", inputs, outputs, **attributes)
    opset = 25 if "left_window_size" in attributes else 24
    outputs = {name: TensorProto.FLOAT for name in outputs if name}
    model = model_of([node], feeds, outputs, opset)
    with pytest.raises(UnsupportedError, match=words):
        intarsia.compile(model, "openvino, reference", backends=backends, strict=True)


@pytest.mark.parametrize(("opset", "axis"), [(17, 2), (20, 1), (20, 2), (20, -2), (20, None)])
def test_transforms_are_along_the_axis_that_is_said(opset, axis, backends):
    feeds, constants = {"x": draw(2, 4, 6, 1)}, {}
    reads, attributes = ["x"], {}
    if opset < 20:
        attributes["axis"] = axis
    elif axis is not None:
        constants["axis"] = np.array(axis)
        reads = ["x", "", "axis"]
    node = helper.make_node("DFT", reads, ["y"], **attributes)
    model = model_of([node], feeds, {"y": TensorProto.FLOAT}, opset, constants)
    found = intarsia.compile(model, "openvino, reference", backends=backends).run(feeds)["y"]
    wanted = np.fft.fft(feeds["x"][..., 0], axis=1 if axis == 1 else 2)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, 1e-4, 1e-3)
