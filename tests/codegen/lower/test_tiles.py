# SPDX-License-Identifier: Apache-2.0
"""`-precision=bf16` by products of tiles: in the interpreter, and where this CPU has tiles, on it.

What is wanted is computed in float64 of operands that were rounded to bfloat16 before.
"""

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper
from tests.backends.test_llvm_free_bits import Sketch, check
from tests.codegen.lower.small_models import feeds_of, small_model
from tests.codegen.lower.test_interpreted import run_program

import intarsia
from intarsia.arrays import np_dtype
from intarsia.backends.float64 import evaluate
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import TileDot, walk
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX2, AVX512, LoweringOptions
from intarsia.errors import BackendError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.native.tiles import why_no_tiles
from intarsia.passes.free_shapes import prepare_free
from intarsia.settings import Settings

TILES = replace(AVX512, tiles=("amx-bf16",))
CONV = "y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]{}>(x, w, b)"


def conv(text, x, w, **more):
    return small_model("y", text, {"x": x}, {"w": w, "b": w[:1]} | more)


MODELS = {
    "product": small_model("y", "y = MatMul(x, w)", {"x": (33, 96)}, {"w": (96, 32)}),
    "columns that fill no tile": small_model(
        "y", "h = MatMul(x, w) y = Add(h, b)", {"x": (2, 17, 32)}, {"w": (32, 41), "b": (41,)}
    ),
    "fewer columns than a tile": small_model(
        "y", "y = MatMul(x, w)", {"x": (8, 64)}, {"w": (64, 5)}
    ),
    "rows that share sets": small_model(
        "y", "y = MatMul(x, w)", {"x": (20, 512)}, {"w": (512, 16)}
    ),
    "turned weights": small_model(
        "y",
        "y = Gemm<transB = 1, alpha = 0.5>(x, w, b)",
        {"x": (40, 64)},
        {"w": (24, 64), "b": (24,)},
    ),
    "epilogue": small_model(
        "y",
        "h = MatMul(x, w) s = Add(h, r) y = Relu(s)",
        {"x": (1, 19, 64), "r": (1, 19, 48)},
        {"w": (64, 48)},
    ),
    "one copy for two": small_model(
        "y",
        "g = MatMul(x, w) h = MatMul(x, v) y = Mul(g, h)",
        {"x": (9, 32)},
        {"w": (32, 16), "v": (32, 16)},
    ),
    "1x1": conv("y = Conv(x, w, b)", (1, 64, 5, 7), (48, 64, 1, 1)),
    "1x1 by 2": conv("y = Conv<strides = [2, 2]>(x, w, b)", (2, 32, 9, 6), (32, 32, 1, 1)),
    "3x3 of a small image": conv(CONV.format(""), (1, 32, 7, 7), (16, 32, 3, 3)),
    "3x3 of a wide image": conv(CONV.format(""), (1, 32, 2, 31), (24, 32, 3, 3)),
    "3x3 by 2": conv(CONV.format(", strides = [2, 2]"), (2, 64, 9, 8), (24, 64, 3, 3)),
    "3x3 by 2 and 1": conv(CONV.format(", strides = [2, 1]"), (1, 32, 8, 20), (16, 32, 3, 3)),
    "taps apart": conv(
        "y = Conv<kernel_shape = [3, 3], dilations = [2, 2], pads = [2, 2, 2, 2]>(x, w, b)",
        *((1, 32, 9, 9), (16, 32, 3, 3)),
    ),
    "padded on one side": conv(
        "y = Conv<kernel_shape = [2, 3], pads = [0, 0, 1, 2]>(x, w, b)",
        (1, 32, 6, 6),
        (40, 32, 2, 3),
    ),
    "7x7 by 2 of an image": conv(
        "y = Conv<kernel_shape = [7, 7], pads = [3, 3, 3, 3], strides = [2, 2]>(x, w, b)",
        *((2, 3, 20, 37), (24, 3, 7, 7)),
    ),
    "4 by 4 of an image": conv(
        "y = Conv<strides = [4, 4]>(x, w, b)", (1, 3, 16, 12), (16, 3, 4, 4)
    ),
    "a grey image": conv(
        "y = Conv<kernel_shape = [5, 5], pads = [2, 2, 2, 2], dilations = [1, 1]>(x, w, b)",
        *((1, 1, 8, 9), (16, 1, 5, 5)),
    ),
    "samples of two channels": conv(
        "y = Conv<kernel_shape = [8], strides = [4]>(x, w, b)", (1, 2, 70), (16, 2, 8)
    ),
    "channels that fill half a row": conv(CONV.format(""), (1, 48, 5, 7), (32, 48, 3, 3)),
    "groups": conv("y = Conv<group = 2>(x, w, b)", (1, 64, 5, 7), (32, 32, 1, 1)),
    "groups that are half a row": conv(
        CONV.format(", group = 4, strides = [2, 2]"), (2, 64, 9, 8), (64, 16, 3, 3)
    ),
    "groups of three halves of a row": conv(
        CONV.format(", group = 2"), (1, 96, 4, 6), (32, 48, 3, 3)
    ),
    "groups behind which more is done": small_model(
        "y",
        "h = Conv<kernel_shape = [3], pads = [1, 1], group = 2>(x, w, c)"
        " s = Add(h, r) t = Mul(s, f) y = Relu(t)",
        {"x": (3, 64, 19), "r": (3, 96, 19)},
        {"w": (96, 32, 3), "c": (96,), "f": (96, 1)},
    ),
    "one dimension": conv(
        "y = Conv<kernel_shape = [3], pads = [1, 1], strides = [2]>(x, w, b)",
        (2, 32, 37),
        (16, 32, 3),
    ),
    "one input, two windows": small_model(
        "y",
        "g = Conv(x, w) h = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, v) y = Add(g, h)",
        {"x": (1, 32, 6, 6)},
        {"w": (16, 32, 1, 1), "v": (16, 32, 3, 3)},
    ),
    "residual": small_model(
        "y",
        "h = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w) s = Add(h, x) y = Relu(s)",
        {"x": (1, 32, 7, 9)},
        {"w": (32, 32, 3, 3)},
    ),
}

PRODUCTS_OF_GROUPS = {
    "groups": 2,
    "groups that are half a row": 2,
    "groups of three halves of a row": 1,
    "groups behind which more is done": 2,
}
"""Two groups that have half a row each are one product."""


CHAINS = {
    "a result that tiles alone read": (
        "h = Conv(x, w) r = Relu(h) y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r, v)",
        False,
    ),
    "a result that is added too": (
        "h = Conv(x, w) r = Relu(h) g = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r, v)"
        " y = Add(g, r)",
        True,
    ),
    "a result that groups read": (
        "h = Conv<group = 2>(x, w) r = Relu(h)"
        " y = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 2>(r, v)",
        False,
    ),
    "a result with two windows": (
        "h = Conv(x, w) r = Relu(h) g = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(r, v)"
        " k = Conv<strides = [2, 2]>(r, w) m = GlobalAveragePool(k) y = Add(g, m)",
        False,
    ),
}


def rounded(array):
    return array.astype(np_dtype("bfloat16")).astype(array.dtype)


def wanted(model, feeds):
    """The result of operands that are rounded; what is added is not."""
    exact, given = type(model).FromString(model.SerializeToString()), dict(feeds)
    for tensor in exact.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name in "wv":
            factor = np.float32(0.5 if any(n.op_type == "Gemm" for n in model.graph.node) else 1)
            array = rounded(array * factor) / factor
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return evaluate(exact, given | {"x": rounded(given["x"])})[0]


def close(found, want, rtol=3e-6):
    np.testing.assert_allclose(found, want, rtol=0, atol=rtol * np.abs(want).max())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "residual"])
def test_what_kernels_of_tiles_compute(name):
    """In the interpreter, which leaves no buffer, with an arena of NaN that nobody may count."""
    model, feeds = MODELS[name], feeds_of(MODELS[name])
    graph = snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    program = lower_region(region, LoweringOptions(TILES, is_bf16=True))
    products = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    count = PRODUCTS_OF_GROUPS.get(name, len(products))
    assert program.summary().endswith(f" {count} x bfloat16 tiles")

    def run(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    close(run_program(program, region, feeds, run, filler=0xFF)["y"], wanted(model, feeds))


def test_few_channels_of_a_group_stay_float32_where_they_are_transposed():
    weights = {"w": (32, 32, 1, 1), "t": (32, 8, 3, 3)}
    body = "h = Conv(x, w) y = ConvTranspose<group = 4, strides = [2, 2]>(h, t)"
    model = small_model("y", body, {"x": (1, 32, 7, 6)}, weights)
    feeds, graph = feeds_of(model), snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    program = lower_region(region, LoweringOptions(TILES, is_bf16=True))
    assert sum("bfloat16 tiles" in call.note for call in program.calls) == 1

    def run(call, memory):
        interpret(program.kernels[call.kernel], memory)

    close(run_program(program, region, feeds, run)["y"], wanted(model, feeds))


@pytest.mark.parametrize(
    ("groups", "shape", "stride", "products"),
    [
        (8, (64, 8, 3, 3), 1, 2),
        (8, (64, 4, 3, 3), 2, 1),
        (2, (48, 32, 1, 1), 1, 1),
        (16, (32, 2, 3, 3), 1, 0),
        (6, (48, 8, 3, 3), 1, 0),
    ],
    ids=["of 8", "of 4", "of results that are no blocks", "of 2", "of 8 that fill no last row"],
)
def test_few_channels_of_a_group_in_blocks(groups, shape, stride, products):
    """Groups that have a part of a row each are one product, zeros between their weights."""
    inside = groups * shape[1]
    pads = [shape[-1] // 2] * 4
    head = small_model("h", "h = Conv(x, u)", {"x": (1, 32, 7, 6)}, {"u": (inside, 32, 1, 1)})
    window = f"group = {groups}, strides = [{stride}, {stride}], pads = {pads}"
    body = f"Conv<kernel_shape = [{shape[2]}, {shape[3]}], {window}>"
    tail = small_model("y", f"y = {body}(h, w)", {"h": (1, inside, 7, 6)}, {"w": shape})
    arrays = {
        tensor.name: numpy_helper.to_array(tensor)
        for part in (head, tail)
        for tensor in part.graph.initializer
    }
    model = small_model("y", f"h = Conv(x, u) y = {body}(h, w)", {"x": (1, 32, 7, 6)}, arrays)
    feeds, graph = feeds_of(model), snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    program = lower_region(region, LoweringOptions(TILES, is_bf16=True))
    assert sum("bfloat16 tiles" in call.note for call in program.calls) == 1 + products

    def run(call, memory):
        interpret(program.kernels[call.kernel], memory)

    found = run_program(program, region, feeds, run)["y"]
    want = evaluate(model, feeds)[0]
    assert np.linalg.norm(found - want) < 0.01 * np.linalg.norm(want)
    if products:
        between = evaluate(replaced(head, "u"), {"x": rounded(feeds["x"])})[0].astype("f4")
        want = evaluate(replaced(tail, "w"), {"h": rounded(between)})[0]
        assert np.linalg.norm(found - want) < 2e-4 * np.linalg.norm(want)


def replaced(model, name):
    """A model whose weights are rounded."""
    exact = type(model).FromString(model.SerializeToString())
    for tensor in exact.graph.initializer:
        if tensor.name == name:
            array = rounded(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    return exact


@pytest.mark.parametrize("name", CHAINS)
def test_results_are_written_as_bfloat16_where_tiles_read_them(name):
    """Rounded once, by who makes them; kept as float32 where others read them too."""
    body, is_kept = CHAINS[name]
    groups = 2 if "group" in body else 1
    shape, width = (2, groups * 32, 6, 5), groups * 32
    model = small_model("y", body, {"x": shape}, {"w": (width, 32, 1, 1), "v": (width, 32, 3, 3)})
    feeds, graph = feeds_of(model), snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    program = lower_region(region, LoweringOptions(TILES, is_bf16=True))
    first = program.kernels[next(c for c in program.calls if "tiles" in c.note).kernel]
    written = {buffer.name for buffer in first.buffers if buffer.is_written}
    assert written == ({"y", "narrow"} if is_kept else {"narrow"})
    copies = [call for call in program.calls if call.note == "as bfloat16"]
    assert len(copies) == 1  # of the input

    def run(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    found = run_program(program, region, feeds, run)["y"]
    arrays = {t.name: rounded(numpy_helper.to_array(t)) for t in model.graph.initializer}
    head = f"h = Conv<group = {groups}>(x, w) r = Relu(h)"
    inner = small_model("r", head, {"x": shape}, {"w": arrays["w"]})
    between = evaluate(inner, {"x": rounded(feeds["x"])})[0].astype(np.float32)
    rest = body.partition("Relu(h)")[2]
    tail = small_model("y", rest, {"r": shape}, arrays)
    want = evaluate(tail, {"r": rounded(between)})[0]
    if is_kept:
        want = want - rounded(between) + between
    # One number in a hundred may be rounded the other way where it lies in the middle.
    close(found, want, 2.0**-10)
    assert np.mean(np.abs(found - want) > 3e-6 * np.abs(want).max()) < 0.1


@pytest.mark.parametrize(
    ("body", "shapes", "arrays"),
    [
        pytest.param(
            "h = Conv<group = 2>(x, w) r = Relu(h) y = Conv(r, v)",
            {"x": (2, 64, 6, 5)},
            {"w": (96, 32, 1, 1), "v": (32, 96, 1, 1)},
            id="groups of 48 that tiles read",
        ),
        pytest.param(
            "h = Conv<group = 2>(x, w) k = Conv(z, w) y = Add(h, k)",
            {"x": (1, 32, 5, 6), "z": (1, 16, 5, 6)},
            {"w": (32, 16, 3, 3)},
            id="weights of two groups and of one",
        ),
    ],
)
def test_groups_are_what_they_are_beside_others(body, shapes, arrays):
    model = small_model("y", body, shapes, arrays)
    feeds, graph = feeds_of(model), snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    program = lower_region(region, LoweringOptions(TILES, is_bf16=True))
    assert sum("bfloat16 tiles" in call.note for call in program.calls) > 1

    def run(call, memory):
        interpret(program.kernels[call.kernel], memory)

    found, want = run_program(program, region, feeds, run)["y"], evaluate(model, feeds)[0]
    assert np.linalg.norm(found - want) < 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize("name", MODELS)
def test_what_this_cpu_computes_with_tiles(name, backends):
    problem = why_no_tiles(Settings.from_environment().cache_folder())
    if problem:
        pytest.skip(f"no tiles here: {problem}")
    model, feeds = MODELS[name], feeds_of(MODELS[name])
    exe = intarsia.compile(model, "llvm -precision=bf16", num_threads=2, backends=backends)
    assert "x bfloat16 tiles" in str(exe.explain())
    found = exe.run(feeds)["y"]
    np.testing.assert_array_equal(exe.run(feeds)["y"], found)
    if name == "residual":  # what is added there is not rounded
        close(found, evaluate(model, feeds)[0], 2.0**-7)
    else:
        close(found, wanted(model, feeds))


def test_sizes_that_are_free_give_the_same_bits():
    problem = why_no_tiles(Settings.from_environment().cache_folder())
    if problem:
        pytest.skip(f"no tiles here: {problem}")
    sketch = Sketch()
    value = sketch.add("MatMul", "x", sketch.weight(64, 96, scale=0.1))
    value = sketch.add("Gelu", value)
    value = sketch.add("MatMul", value, sketch.weight(96, 40, scale=0.1))
    model = sketch.model({"x": ["batch", "seq", 64]}, [value])
    sizes = [{"batch": b, "seq": n} for b, n in ((1, 1), (1, 9), (2, 16), (3, 33))]
    check(model, sizes, target="llvm -precision=bf16")


def test_groups_of_a_free_batch_give_the_same_bits():
    problem = why_no_tiles(Settings.from_environment().cache_folder())
    if problem:
        pytest.skip(f"no tiles here: {problem}")
    sketch = Sketch()
    value = sketch.add("Conv", "x", sketch.weight(32, 16, 3, 3, scale=0.1), group=2)
    model = sketch.model({"x": ["batch", 32, 7, 6]}, [sketch.add("Relu", value)])
    check(model, [{"batch": 1}, {"batch": 3}], target="llvm -precision=bf16")


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")], ids=["free first", "row first"])
def test_products_of_one_weight_settle_their_own(order):
    """Of free rows by tiles, of one row without, in the program for all sizes and for some."""
    sketch = Sketch()
    weight = sketch.weight(64, 32)
    outputs = [sketch.add("MatMul", name, weight) for name in order]
    model = sketch.model({"x": ["rows", 64], "y": [1, 64]}, outputs)
    free = prepare_free(load(model, stays_free=True), {"rows": 32})[0].graph
    own = lower_region(Region.of(free, range(2)), LoweringOptions(TILES, is_bf16=True))
    ways = {key: way for key, way in own.sums.items() if key.startswith("tiles of")}
    assert sorted(ways.values()) == ["tiles", "vectors"]
    static = snapshot(load(sketch.model({"x": [1, 64], "y": [1, 64]}, outputs)))
    told = lower_region(
        Region.of(static, range(2)), LoweringOptions(TILES, is_bf16=True), settled=own.sums
    )
    for program in (own, told):
        tiled = [call.nodes for call in program.calls if call.note == "bfloat16 tiles"]
        assert tiled == [(outputs[order.index("x")],)]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("product", replace(AVX2, tiles=("amx-bf16",))),
        ("product", replace(TILES, tiles=("amx-int8",))),
        ("product", AVX512),
        ("1x1", AVX512),
    ],
)
def test_others_have_no_tiles(name, unit):
    graph = snapshot(load(MODELS[name]))
    region = Region.of(graph, range(len(graph.nodes)))
    kernels = lower_region(region, LoweringOptions(unit, is_bf16=True)).kernels
    is_tiled = any(isinstance(item, TileDot) for kernel in kernels for item in walk(kernel.body))
    assert is_tiled == ("amx-bf16" in unit.tiles)


@pytest.mark.parametrize(
    "model",
    [
        small_model(
            "y", "y = MatMul(x, w)", {"x": (33, 96)}, {"w": np.full((96, 32), 3.4e38, "f")}
        ),
        small_model("y", "y = MatMul(x, w)", {"x": (4, 96)}, {"w": (96, 32)}),
        small_model("y", "y = MatMul(x, w)", {"x": (33, 90)}, {"w": (90, 32)}),
        conv("y = Conv<group = 3>(x, w, b)", (1, 48, 5, 7), (48, 16, 1, 1)),
        conv("y = Conv<group = 4>(x, w, b)", (1, 32, 5, 7), (64, 8, 1, 1)),
        conv("y = Conv<group = 6>(x, w, b)", (1, 48, 5, 7), (96, 8, 1, 1)),
        small_model(
            "y",
            "y = Conv<group = 4>(x, w)",
            {"x": (1, 32, 5, 7)},
            {"w": np.full((64, 8, 1, 1), 3.4e38, "f")},
        ),
        conv("y = Conv<group = 130>(x, w, b)", (1, 2080, 3, 3), (2080, 16, 1, 1)),
        conv("y = Conv<group = 64>(x, w, b)", (1, 64, 5, 7), (64, 1, 1, 1)),
        conv("y = Conv(x, w, b)", (1, 40, 5, 7), (32, 40, 1, 1)),
        conv("y = Conv(x, w, b)", (1, 3, 5, 12), (32, 3, 3, 9)),
        conv(CONV.format(""), (1, 3, 9, 18), (32, 3, 3, 3)),
        conv("y = Conv<dilations = [2, 2]>(x, w, b)", (1, 3, 9, 12), (32, 3, 3, 3)),
    ],
    ids=[
        "weights that it does not hold",
        "few rows",
        "terms",
        "groups of which a last one is half a row",
        "groups of 8 of what is in no blocks",
        "groups of 8 that fill no last row",
        "weights of groups of 8 that it does not hold",
        "too many groups",
        "depthwise",
        "channels",
        "taps of an image",
        "three taps of an image",
        "taps of an image apart",
    ],
)
def test_what_does_not_fit_tiles_stays_as_it_was(model):
    graph = snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    kernels = lower_region(region, LoweringOptions(TILES, is_bf16=True)).kernels
    assert not any(kernel.tiles for kernel in kernels)


def test_code_with_tiles_is_refused_where_a_process_cannot_have_them(backends, monkeypatch):
    problem = why_no_tiles(Settings.from_environment().cache_folder())
    if problem:
        pytest.skip(f"no tiles here: {problem}")
    model = MODELS["product"]
    exe = intarsia.compile(model, "llvm -precision=bf16", num_threads=1, backends=backends)
    monkeypatch.setattr("intarsia.native.tiles.why_no_tiles", lambda _: "no more of them")
    with pytest.raises(BackendError, match=r"products of tiles .*: no more of them"):
        backends.by_kind["llvm"].value.load(exe.artifacts[0], exe.artifacts[0])


@pytest.mark.parametrize(
    ("options", "heads"),
    [({}, 2), ({"is_causal": 1}, 1), ({"softcap": 3.0}, 2)],
    ids=["plain", "causal, heads that share keys", "capped"],
)
def test_attention_is_two_products_of_tiles(options, heads):
    """What kernels of vectors compute without tiles, but for rounding."""
    sketch = Sketch()
    value = sketch.add("Attention", "q", "k", "v", q_num_heads=2, kv_num_heads=heads, **options)
    shapes = {"q": [1, 70, 64], "k": [1, 90, 32 * heads], "v": [1, 90, 32 * heads]}
    model = sketch.model(shapes, [value])
    feeds, graph = feeds_of(model), snapshot(load(model))
    region = Region.of(graph, range(len(graph.nodes)))
    found = {}
    for unit in (AVX512, TILES):
        program = lower_region(region, LoweringOptions(unit, is_bf16=True))
        notes = [call.note for call in program.calls if "attention" in call.note]
        assert notes == ["attention by bfloat16 tiles" if unit is TILES else "attention"]
        assert any(kernel.tiles for kernel in program.kernels) == (unit is TILES)

        def run(call, memory, program=program):
            interpret(program.kernels[call.kernel], memory)

        found[unit] = run_program(program, region, feeds, run)[value]
    want = evaluate(model, feeds)[0]
    close(found[AVX512], want, 1e-5)
    error = np.linalg.norm(found[TILES] - want) / np.linalg.norm(want)
    assert 1e-4 < error < 1e-2
    exact = lower_region(region, LoweringOptions(TILES))
    assert not any(kernel.tiles for kernel in exact.kernels)


def test_attention_of_free_lengths_gives_the_same_bits():
    """Few queries take vectors in every program, and few keys do as the program for all sizes."""
    problem = why_no_tiles(Settings.from_environment().cache_folder())
    if problem:
        pytest.skip(f"no tiles here: {problem}")
    sketch = Sketch()
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    value = sketch.add("Attention", "q", "k", "v", is_causal=1, **heads)
    inputs = {"q": ["batch", "rows", 64], "k": ["batch", "keys", 64], "v": ["batch", "keys", 64]}
    sizes = [
        {"batch": b, "rows": m, "keys": n}
        for b, m, n in ((1, 1, 40), (2, 9, 20), (1, 70, 130), (1, 140, 300))
    ]
    shapes = {"rows": "1..256", "keys": "1..512"}
    exe = check(sketch.model(inputs, [value]), sizes, None, "llvm -precision=bf16", shapes)
    assert "attention by bfloat16 tiles" in str(exe.explain())
