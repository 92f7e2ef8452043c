# SPDX-License-Identifier: Apache-2.0
"""Native programs for all sizes and for some sum in one order: their results are the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import intarsia
from intarsia.codegen.kernels.window import Window
from intarsia.codegen.kernels.winograd.schedules import choose_winograd
from intarsia.codegen.unit import AVX2, AVX512
from intarsia.zoo import build

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 31, 48, 64, 95, 96, 97, 130, 200)
ACTIVATIONS = (
    *("Abs", "Erf", "Exp", "Gelu", "HardSwish", "Mish", "Relu"),
    *("Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh"),
)
ROWS = ("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceL2", "ReduceLogSumExp", "ReduceMax")
CHECKED = settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@dataclass
class Sketch:
    """A model that grows node by node; weights are made up when they are asked for."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        array = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return self.constant(array)

    def constant(self, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, kind: str, *inputs: str, **attributes) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def model(self, inputs: dict[str, list[int | str]], outputs: list[str]) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(n, 1, shape) for n, shape in inputs.items()]
        # What is computed on the way is seen too, where it is asked for.
        results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "free", values, results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def check(
    model: onnx.ModelProto,
    sizes: list[dict[str, int]],
    draw=None,
    target="llvm",
    shapes=None,
    threads=(None,),
):
    """Run the program for all sizes and those for some; they must agree in every bit."""
    exe, *others = (
        intarsia.compile(model, target, shapes=shapes, num_threads=number) for number in threads
    )
    assert exe.generic is not None
    assert all(target.startswith("llvm") for target in exe.generic.placement.coverage())
    rng = np.random.default_rng(1)
    draw = draw or (lambda name, shape: rng.standard_normal(shape, dtype=np.float32))
    for some in sizes:
        feeds = {name: draw(name, shape) for name, shape in exe.signature.shapes_at(some).items()}
        first = exe.run(feeds)
        assert exe.artifacts == exe.generic.artifacts
        programs = [exe.specialise(some)]
        programs += [one for other in others for one in (other, other.specialise(some))]
        for program in programs:
            second = program.run(feeds)
            for name, array in first.items():
                np.testing.assert_array_equal(array, second[name], err_msg=f"{name} at {some}")
    return exe


def test_both_programs_of_a_model_give_the_same_bits():
    sketch = Sketch()
    value = sketch.add("MatMul", "x", sketch.weight(1030, 70, scale=0.03))
    value = sketch.add("Gelu", value)
    value = sketch.add("LayerNormalization", value, sketch.weight(70), axis=-1)
    shares = sketch.add("Softmax", value, axis=1)
    means = sketch.add("ReduceMean", value, sketch.constant(np.array([1, 2])))
    sizes = [{"batch": 1, "seq": 1}, {"batch": 2, "seq": 95}]
    check(sketch.model({"x": ["batch", "seq", 1030]}, [shares, means]), sizes)


def test_tiles_of_convolutions_are_those_that_are_best_for_the_images():
    """The program for all sizes has a kernel for one image and one for several."""
    window = Window((8, 8), (3, 3), (1, 1), (1, 1))
    for unit in (AVX2, AVX512):
        assert len({choose_winograd(window, n, 1, 320, 320, unit) for n in (1, 8)}) > 1
    sketch = Sketch()
    value = sketch.add("Conv", "x", sketch.weight(320, 320, 3, 3, scale=0.015), pads=[1] * 4)
    model = sketch.model({"x": ["batch", 320, 8, 8]}, [value])
    exe = check(model, [{"batch": images} for images in (1, 3, 8)])
    found = {n: exe.specialise({"batch": n}).artifacts[0].metadata["about"] for n in (1, 8)}
    assert [[f"F({m})" in about for m in (2, 4)] for about in found.values()] == [
        [True, False],
        [False, True],
    ]
    # No image more or less is computed where a kernel has no turns.
    many = check(model, [{"batch": 2}], shapes={"batch": "2.."})
    assert "F(2)" not in many.generic.artifacts[0].metadata["about"]


def test_bits_are_the_same_wherever_the_program_for_all_sizes_comes_from(
    tmp_path, monkeypatch, own_cache
):
    """Compiled, kept among the caches, or read from a package."""
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    sketch = Sketch()
    value = sketch.add("Conv", "x", sketch.weight(256, 256, 3, 3, scale=0.02), pads=[1] * 4)
    value = sketch.add("Softmax", value, axis=1)
    onnx.save(sketch.model({"x": ["batch", 256, 7, 7]}, [value]), tmp_path / "conv.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 256, 7, 7), np.float32)}
    exe = intarsia.compile(tmp_path / "conv.onnx", "llvm")
    (expected,) = exe.generic.at({"batch": 8}).run(feeds).values()
    exe.save(tmp_path / "conv.intarsia")
    kept = intarsia.compile(tmp_path / "conv.onnx", "llvm")
    for one in (exe, kept, intarsia.load(tmp_path / "conv.intarsia")):
        (found,) = one.specialise({"batch": 8}).run(feeds).values()
        np.testing.assert_array_equal(found, expected)


def test_products_of_computed_operands_do_not_go_by_rows():
    """Few rows are dot products, unless the program for all sizes has tiles; and the reverse."""
    sketch = Sketch()
    rows = sketch.add("MatMul", "x", sketch.weight(96, 300, scale=0.1))
    keys = sketch.add("MatMul", "y", sketch.weight(96, 300, scale=0.1))
    turned = sketch.add("Transpose", keys, perm=[1, 0])
    free = sketch.add("MatMul", rows, turned)  # its columns are free: dot products
    other = sketch.add("Gemm", rows, "z", transB=1)  # its rows are, its columns are not
    summed = sketch.add("Einsum", rows, "z", equation="ik,jk->ij")
    inputs = {"x": ["seq", 96], "y": ["keys", 96], "z": [40, 300]}
    sizes = [{"seq": 1, "keys": 1}, {"seq": 5, "keys": 30}, {"seq": 40, "keys": 3}]
    check(sketch.model(inputs, [free, other, summed]), sizes)


def test_sums_along_other_dimensions_do_not_go_by_what_is_one():
    """Where a dimension is 1, a tensor lies otherwise, and vectors could go along another one."""
    sketch = Sketch()
    outputs = [sketch.add("Softmax", "x", axis=axis) for axis in (0, 1, 2)]
    outputs += [
        sketch.add(kind, "x", sketch.constant(np.array(axes)))
        for kind in ("ReduceSum", "ReduceLogSumExp")
        for axes in ([0], [1], [0, 2], [0, 1], [0, 1, 2])
    ]
    outputs.append(sketch.add("LpNormalization", "x", axis=1))
    outputs.append(sketch.add("Einsum", "x", equation="abc->b"))
    sizes = [{"a": a, "b": b, "c": c} for a in (1, 9) for b in (1, 70) for c in (1, 50)]
    check(sketch.model({"x": ["a", "b", "c"]}, outputs), sizes)


def test_parts_of_keys_do_not_go_by_queries_or_heads():
    """Keys of few queries are cut in parts of one length, whatever is known of the sizes."""
    sketch = Sketch()
    inputs = {"q": ["batch", "seq", 64], "k": ["batch", "keys", 16], "v": ["batch", "keys", 16]}
    free = sketch.add("Attention", *inputs, q_num_heads=4, kv_num_heads=1)
    inputs |= {"one": ["batch", 1, 64], "mask": ["keys"]}
    one = sketch.add("Attention", "one", "k", "v", "mask", q_num_heads=4, kv_num_heads=1)
    sizes = [(1, 1, 600), (2, 3, 512), (1, 9, 1025), (1, 2, 1024)]
    named = [dict(zip(("batch", "seq", "keys"), some, strict=True)) for some in sizes]
    check(sketch.model(inputs, [free, one]), named)


def head(sketch: Sketch, size) -> str:
    """Add a head like SegFormer's: stages are resized to the first one's size, and joined.

    Args:
        sketch: Grows.
        size: Returns the inputs of a Resize behind what it resizes, from that and its extent.
    """
    levels = []
    for name, (side, width) in STAGES.items():
        y = sketch.add("MatMul", name, sketch.weight(width, 64, scale=width**-0.5))
        y = sketch.add("Transpose", sketch.add("Add", y, sketch.weight(64)), perm=[0, 2, 1])
        y = sketch.add("Reshape", y, sketch.constant(np.array([0, 64, side, side])))
        modes = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
        levels.append(sketch.add("Resize", y, *size(sketch, y, side), **modes))
    joined = sketch.add("Concat", *levels, axis=1)
    y = sketch.add("Conv", joined, sketch.weight(64, 192, 1, 1, scale=0.07))
    return sketch.add("Conv", sketch.add("Relu", y), sketch.weight(10, 64, 1, 1, scale=0.1))


STAGES = {"fine": (16, 32), "middle": (8, 64), "coarse": (4, 96)}
"""Inputs of a head, with the extent of the image and the width of its tokens."""


def by_sizes(sketch: Sketch, y: str, _: int) -> tuple[str, ...]:
    """As `interpolate(y, size=...)` is exported."""
    ends = (sketch.constant(np.array([end])) for end in (0, 2))
    images = sketch.add("Slice", sketch.add("Shape", y), *ends)
    sizes = sketch.add("Concat", images, sketch.constant(np.array([16, 16])), axis=0)
    return "", "", sizes


def by_scales(sketch: Sketch, _: str, side: int) -> tuple[str, ...]:
    """As `interpolate(y, scale_factor=...)` is exported."""
    return "", sketch.constant(np.array([1, 1, 16 / side, 16 / side], np.float32))


@pytest.mark.parametrize("size", [by_sizes, by_scales])
def test_heads_of_free_images_are_rewritten_for_all_sizes(size):
    """Convolutions before resizes, merged into the layers that they read: in both programs."""
    sketch = Sketch()
    value = head(sketch, size)
    inputs = {name: ["batch", side * side, width] for name, (side, width) in STAGES.items()}
    check(sketch.model(inputs, [value]), [{"batch": 1}, {"batch": 3}])


def test_angles_of_positions_are_computed_in_both_programs():
    """Folding has another cosine than native code."""
    sketch = Sketch()
    length = sketch.add("Gather", sketch.add("Shape", "x"), sketch.constant(np.array(1)))
    zero, one = (sketch.constant(np.array(number)) for number in (0, 1))
    places = sketch.add("Cast", sketch.add("Range", zero, length, one), to=1)
    turns = sketch.weight(1, 32)
    angles = sketch.add(
        "Mul", sketch.add("Unsqueeze", places, sketch.constant(np.array([1]))), turns
    )
    value = sketch.add("Mul", "x", sketch.add("Cos", angles))
    value = sketch.add("Add", value, sketch.add("Sin", angles))
    check(sketch.model({"x": ["batch", "seq", 32]}, [value]), [{"batch": 2, "seq": 77}])


def test_rows_of_a_table_stay_apart_from_products():
    """One row of positions would be a bias, and be added before the other one."""
    sketch = Sketch()
    length = sketch.add("Slice", sketch.add("Shape", "x"), *map(sketch.constant, ENDS))
    table = sketch.weight(64, 40)
    rows = sketch.add("Slice", table, sketch.constant(np.array([0])), length)
    value = sketch.add("Gemm", "x", sketch.weight(96, 40), sketch.weight(40))
    value = sketch.add("Mul", sketch.add("Add", value, rows), rows)
    check(sketch.model({"x": ["seq", 96]}, [value]), [{"seq": 1}, {"seq": 5}])


ENDS = (np.array([0]), np.array([1]))


HALF_WEIGHTS, BF16 = "llvm -weights=f16", "llvm -mattr=-avx512bf16 -precision=bf16"


@pytest.mark.parametrize(
    ("bounds", "target", "dtype"),
    [
        ("1..", HALF_WEIGHTS, "float32"),
        ("1..8", HALF_WEIGHTS, "float16"),
        ("1..", BF16, "bfloat16"),
    ],
)
def test_weights_are_rounded_in_both_programs_or_in_none(bounds, target, dtype):
    sketch = Sketch()
    value = sketch.add("MatMul", "x", sketch.weight(1030, 300, scale=0.03))
    model = sketch.model({"x": ["rows", 1030]}, [value])
    sizes = [{"rows": 1}, {"rows": 5}]
    exe = check(model, sizes, target=target, shapes={"rows": bounds})
    for program in (exe.generic, exe.specialise({"rows": 1})):
        about = "".join(one.metadata["about"] for one in program.artifacts)
        assert (f" {dtype} weights" in about) == (dtype != "float32")


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")], ids=["free first", "row first"])
def test_products_of_one_weight_settle_their_own(order):
    """One has free rows and float32 weights, the other one row and their halves."""
    sketch = Sketch()
    weight = sketch.weight(1030, 300, scale=0.03)
    outputs = [sketch.add("MatMul", name, weight) for name in order]
    model = sketch.model({"x": ["rows", 1030], "y": [1, 1030]}, outputs)
    exe = check(model, [{"rows": 1}, {"rows": 5}], target=HALF_WEIGHTS)
    for program in (exe.generic, exe.specialise({"rows": 1})):
        (artifact,) = program.artifacts
        assert "; 1 x float16 weights" in artifact.metadata["about"]


def test_products_of_codes_are_the_same_for_all_sizes():
    """Static and dynamic codes one after the other, beside ONNX's definition."""
    sketch = Sketch()

    def codes(*shape: int) -> str:
        return sketch.constant(sketch.rng.integers(-127, 128, shape, dtype=np.int8))

    def single(number: float) -> str:
        return sketch.constant(np.float32(number))

    def between(value: str) -> str:
        scales = single(0.05), sketch.constant(np.uint8(120))
        return sketch.add("DequantizeLinear", sketch.add("QuantizeLinear", value, *scales), *scales)

    scales = sketch.constant(sketch.rng.uniform(0.001, 0.002, 40).astype(np.float32))
    weights = sketch.add("DequantizeLinear", codes(64, 40), scales, axis=1)
    value = sketch.add("MatMul", between("x"), weights)
    value = between(sketch.add("Relu", value))
    parts = ["dynamic", "scale", "zero"]
    sketch.nodes.append(helper.make_node("DynamicQuantizeLinear", [value], parts, "quantise"))
    sums = sketch.add("MatMulInteger", parts[0], codes(40, 24), parts[2])
    factor = sketch.add("Mul", parts[1], single(0.002))
    value = sketch.add("Mul", sketch.add("Cast", sums, to=onnx.TensorProto.FLOAT), factor)
    model = sketch.model({"x": ["batch", "seq", 64]}, [value])
    exe = check(model, [{"batch": 1, "seq": 1}, {"batch": 2, "seq": 95}])
    x = np.random.default_rng(2).standard_normal((3, 7, 64), dtype=np.float32)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(exe.run({"x": x})[value], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_both_programs_of_an_encoder_give_the_same_bits():
    rng = np.random.default_rng(2)

    def draw(name, shape):
        return rng.integers(0, 2 if "mask" in name or "type" in name else 1000, shape)

    lengths = (1, 3, 7, 20, 95, 130)
    check(build("minilm:free"), [{"batch": 1, "seq": seq} for seq in lengths], draw)


def drawn_sizes(**ranges):
    """Return two different choices of sizes."""
    sizes = st.fixed_dictionaries({name: st.sampled_from(of) for name, of in ranges.items()})
    return st.lists(sizes, min_size=2, max_size=2, unique_by=str)


TOKENS = {"batch": range(1, 6), "seq": LENGTHS}


@pytest.mark.exhaustive
@CHECKED
@given(st.data())
def test_products(data):
    """Terms up to 2048, rows from one to a thousand, with what is fused into them."""
    sketch, value = Sketch(), "x"
    width = first = data.draw(st.sampled_from((5, 64, 511, 768, 1030, 2048)))
    outputs = []
    for _ in range(data.draw(st.integers(1, 3))):
        after = data.draw(st.sampled_from((1, 10, 96, 200, 700, 1537)))
        value = sketch.add("MatMul", value, sketch.weight(width, after, scale=width**-0.5))
        width = after
        if data.draw(st.booleans()):
            value = sketch.add("Add", value, sketch.weight(width))
        value = sketch.add(data.draw(st.sampled_from(ACTIVATIONS)), value)
        outputs.append(value)
    check(sketch.model({"x": ["batch", "seq", first]}, outputs), data.draw(drawn_sizes(**TOKENS)))


@pytest.mark.exhaustive
@CHECKED
@given(st.data())
def test_products_of_computed_operands(data):
    """Columns free or not, the right operand row by row or column by column."""
    sketch = Sketch()
    terms = data.draw(st.sampled_from((5, 64, 300, 1030)))
    fixed = data.draw(st.sampled_from((1, 3, 40)))
    turned = sketch.add("Transpose", "y", perm=[0, 2, 1])
    outputs = [
        sketch.add("MatMul", "x", turned),
        sketch.add("MatMul", "x", sketch.add("Transpose", "z", perm=[0, 2, 1])),
        sketch.add("Einsum", "x", "z", equation="bik,bjk->bij"),
        sketch.add("MatMul", sketch.add("Relu", "z"), turned),
    ]
    inputs = {
        "x": ["batch", "seq", terms],
        "y": ["batch", "keys", terms],
        "z": ["batch", fixed, terms],
    }
    sizes = data.draw(drawn_sizes(**TOKENS, keys=LENGTHS))
    check(sketch.model(inputs, outputs), sizes)


@pytest.mark.exhaustive
@CHECKED
@given(st.data())
def test_rows_and_reductions(data):
    sketch, value, outputs = Sketch(), "x", []
    width = data.draw(st.sampled_from((1, 6, 24, 100, 384)))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(ROWS + REDUCTIONS))
        if kind.startswith("Reduce"):
            axes = data.draw(st.sampled_from(([0], [1], [2], [-1, 1], [0, 1], [0, 2])))
            reduced = sketch.add(kind, value, sketch.constant(np.array(axes)))
            value = sketch.add("Add", value, reduced)
        elif kind.endswith("Normalization"):
            value = sketch.add(kind, value, sketch.weight(width), axis=-1)
        else:
            value = sketch.add(kind, value, axis=data.draw(st.sampled_from((0, 1, 2))))
        outputs.append(value)
    check(sketch.model({"x": ["batch", "seq", width]}, outputs), data.draw(drawn_sizes(**TOKENS)))


@pytest.mark.exhaustive
@CHECKED
@given(st.data())
def test_attention(data):
    """Of whole blocks of keys and others, with few queries and many, with masks and without."""
    heads, size = data.draw(st.sampled_from(((2, 8), (3, 20), (4, 32))))
    shared = data.draw(st.sampled_from([n for n in (1, 2, heads) if heads % n == 0]))
    sketch = Sketch()
    inputs = {
        "q": ["batch", "seq", heads * size],
        "k": ["batch", "keys", shared * size],
        "v": ["batch", "keys", shared * size],
    }
    names = [*inputs]
    if data.draw(st.booleans()):
        names.append("mask")
        inputs["mask"] = data.draw(
            st.sampled_from((["batch", 1, 1, "keys"], ["batch", 1, "seq", "keys"], ["seq", "keys"]))
        )
    y = sketch.add(
        "Attention",
        *names,
        q_num_heads=heads,
        kv_num_heads=shared,
        is_causal=data.draw(st.integers(0, 1)),
        softcap=data.draw(st.sampled_from((0.0, 5.0))),
    )
    sizes = data.draw(drawn_sizes(**TOKENS, keys=(*LENGTHS, 511, 513, 1300)))
    check(sketch.model(inputs, [y]), sizes)


@pytest.mark.exhaustive
@CHECKED
@given(st.data())
def test_images(data):
    """Convolutions, Winograd's among them, whose tiles go by the number of images; and poolings."""
    sketch, value, outputs = Sketch(), "x", []
    channels = first = data.draw(st.sampled_from((1, 3, 16, 32)))
    extent = data.draw(st.sampled_from((7, 14, 19)))
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(
            st.sampled_from(
                ("direct", "direct", "depthwise", "pointwise", "strided", "turned", "pool")
            )
        )
        after = data.draw(st.sampled_from((8, 32, 200, 520)))
        if kind == "pool":
            value = sketch.add(
                data.draw(st.sampled_from(("MaxPool", "AveragePool"))),
                value,
                kernel_shape=[3, 3],
                pads=[1] * 4,
            )
        else:
            taps = 1 if kind == "pointwise" else 3
            shape = (after, channels, taps, taps)
            options = {"pads": [taps // 2] * 4}
            if kind == "depthwise":
                shape, options = (channels, 1, taps, taps), options | {"group": channels}
            elif kind == "strided":
                options |= {"strides": [2, 2]}
            elif kind == "turned":
                shape = (channels, after, taps, taps)
            weight = sketch.weight(*shape, scale=(channels * taps * taps) ** -0.5)
            value = sketch.add(
                "ConvTranspose" if kind == "turned" else "Conv", value, weight, **options
            )
            channels = channels if kind == "depthwise" else after
        outputs.append(value)
    outputs.append(sketch.add("GlobalAveragePool", value))
    sizes = data.draw(drawn_sizes(batch=range(1, 8)))
    model = sketch.model({"x": ["batch", first, extent, extent]}, outputs)
    check(model, sizes)


def convolve(
    sketch: Sketch, x: str, channels: int, after: int, taps: int = 3, group: int = 1, **options
) -> str:
    """Add a convolution that keeps the size of images."""
    read = channels // group
    weight = sketch.weight(after, read, taps, taps, scale=(read * taps * taps) ** -0.5)
    return sketch.add("Conv", x, weight, pads=[taps // 2] * 4, group=group, **options)


def gate(sketch: Sketch, x: str, channels: int) -> str:
    """Multiply channels by what a convolution makes of their means."""
    means = convolve(sketch, sketch.add("GlobalAveragePool", x), channels, channels, taps=1)
    return sketch.add("Mul", x, sketch.add("Sigmoid", means))


def normalise(sketch: Sketch, kind: str, x: str, channels: int, **options) -> str:
    """Add a normalisation with a scale and a bias of each channel."""
    return sketch.add(kind, x, sketch.weight(channels), sketch.weight(channels), **options)


def subtract(sketch: Sketch, kind: str, x: str) -> str:
    """Subtract what a reduction makes of each channel."""
    return sketch.add("Sub", x, sketch.add(kind, x, sketch.constant(np.array([2, 3]))))


WINDOW = {"kernel_shape": [3, 3], "pads": [1] * 4}
EDGES = np.array([0, 0, 1, 1, 0, 0, 1, 1])
TWICE = np.array([1, 1, 2, 2], np.float32)
SAME = {
    "depthwise": lambda s, x, c: convolve(s, x, c, c, group=c),
    "grouped": lambda s, x, c: convolve(s, x, c, c, group=4),
    "residual": lambda s, x, c: s.add("Add", x, convolve(s, x, c, c)),
    "gate": gate,
    "pad": lambda s, x, c: s.add("Pad", x, s.constant(EDGES)),
    "resize": lambda s, x, c: s.add("Resize", x, "", s.constant(TWICE), mode="linear"),
    "max": lambda s, x, c: s.add("MaxPool", x, **WINDOW),
    "average": lambda s, x, c: s.add("AveragePool", x, **WINDOW),
    "lp": lambda s, x, c: s.add("LpPool", x, **WINDOW),
    "groups": lambda s, x, c: normalise(s, "GroupNormalization", x, c, num_groups=4),
    "instance": lambda s, x, c: normalise(s, "InstanceNormalization", x, c),
    "lrn": lambda s, x, c: s.add("LRN", x, size=5),
    "softmax": lambda s, x, c: s.add("Softmax", x, axis=1),
    "activation": lambda s, x, c: s.add("HardSwish", x),
    "mean": lambda s, x, c: subtract(s, "ReduceMean", x),
    "norm": lambda s, x, c: subtract(s, "ReduceL2", x),
}
"""Layers that keep the number of channels, a multiple of 4: from a sketch, images and channels."""


@pytest.mark.parametrize("kind", ["GroupNormalization", "InstanceNormalization"])
def test_images_are_normalised_in_one_order(kind):
    sketch = Sketch()
    value = convolve(sketch, "x", 8, 32)
    groups = {"num_groups": 4} if kind == "GroupNormalization" else {}
    value = normalise(sketch, kind, value, 32, **groups)
    check(sketch.model({"x": ["batch", 8, 9, 9]}, [value]), [{"batch": 1}, {"batch": 3}])


@pytest.mark.exhaustive
@CHECKED
@given(st.data())
def test_networks_of_images(data):
    """Layers of all kinds, by one thread and two."""
    sketch, value, outputs = Sketch(), "x", []
    channels = first = data.draw(st.sampled_from((8, 16, 64)))
    names = st.sampled_from((*SAME, "strided", "wide", "turned"))
    for name in data.draw(st.lists(names, min_size=2, max_size=6)):
        if name in SAME:
            value = SAME[name](sketch, value, channels)
        elif name == "turned":
            weight = sketch.weight(channels, 24, 2, 2, scale=channels**-0.5)
            value = sketch.add("ConvTranspose", value, weight, strides=[2, 2])
            channels = 24
        else:
            after, strides = (40, [2, 2]) if name == "strided" else (96, [1, 1])
            value = convolve(sketch, value, channels, after, strides=strides)
            channels = after
        outputs.append(value)
    flat = sketch.add("Flatten", sketch.add("GlobalAveragePool", value))
    outputs.append(sketch.add("Gemm", flat, sketch.weight(channels, 50), sketch.weight(50)))
    extent = data.draw(st.sampled_from((7, 14)))
    sizes = data.draw(drawn_sizes(batch=range(1, 9)))
    model = sketch.model({"x": ["batch", first, extent, extent]}, outputs)
    check(model, sizes, threads=(1, 2))
