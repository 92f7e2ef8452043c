# SPDX-License-Identifier: Apache-2.0
"""Products with weights of 4 and 8 bits in blocks: float64's numbers, and ONNX Runtime's."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.codegen.lower.conftest import evaluate
from tests.codegen.lower.small_models import small_model
from tests.codegen.lower.test_interpreted import run_program

import intarsia
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.unit import CpuModel
from intarsia.errors import UnsupportedError

UNITS = {
    "vnni": CpuModel(512, 32, has_half=True, dots=("avx512bw", "avx512vnni")),
    "pairs": CpuModel(256, 16, has_half=True, dots=("avx2",)),
    "neon": CpuModel(128, 32, dots=("dotprod",)),
    "scalar": CpuModel(0, 16),
}
RNG = np.random.default_rng(11)


def blocks_of(bits, size, n, k, zeros="", dtype=np.float32):
    """Weights of a MatMulNBits as it has them, by name, and as float64 `[k, n]`."""
    count = -(-k // size)
    codes = RNG.integers(0, 1 << bits, (n, count * size), np.uint8)
    scales = RNG.uniform(0.01, 0.03, (n, count)).astype(np.float16).astype(dtype)
    arrays = {"w": packed(codes, bits).reshape(n, count, -1), "s": scales}
    points = np.full((n, count), 1 << (bits - 1), np.float64)
    if zeros == "packed":
        given = RNG.integers(0, 1 << bits, (n, count), np.uint8)
        points = given.astype(np.float64)
        arrays["z"] = packed(np.pad(given, ((0, 0), (0, count % 2 if bits == 4 else 0))), bits)
    elif zeros == "floats":
        arrays["z"] = RNG.uniform(0, 1 << bits, (n, count)).astype(dtype)
        points = arrays["z"].astype(np.float64)
    wide = np.repeat(points, size, 1), np.repeat(scales.astype(np.float64), size, 1)
    return arrays, ((codes - wide[0]) * wide[1])[:, :k].T


def packed(codes, bits):
    return codes if bits == 8 else codes[:, 0::2] | (codes[:, 1::2] << 4)


def product(bits, size, shape, n, *, zeros="", bias=False, level=0, dtype=np.float32, after=""):
    """A MatMulNBits, an input of it, and its result in float64."""
    *_, k = shape
    arrays, weights = blocks_of(bits, size, n, k, zeros, dtype)
    names = ["x", "w", "s", "z" if zeros else ""]
    x = RNG.standard_normal(shape).astype(dtype)
    want = (quantised(x, size) if level == 4 else x.astype(np.float64)) @ weights
    if bias:
        arrays["b"] = RNG.standard_normal(n).astype(dtype)
        names += ["", "b"]
        want = want + arrays["b"].astype(np.float64)
    inputs = ", ".join(names).rstrip(", ")
    attributes = f"K = {k}, N = {n}, bits = {bits}, block_size = {size}, accuracy_level = {level}"
    result = "m" if after else "y"
    body = f"{result} = com.microsoft.MatMulNBits<{attributes}>({inputs}) {after}"
    model = small_model("y", body, {"x": x}, arrays, 17)
    element = 10 if dtype == np.float16 else 1
    model.graph.output[0].type.tensor_type.elem_type = element
    return model, x, want


def quantised(x, size):
    """What activations are after they were int8 in blocks, float64."""
    k = x.shape[-1]
    blocks = np.pad(x.reshape(-1, k), ((0, 0), (0, -k % size))).reshape(-1, size)
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    codes = np.rint(blocks * (np.float32(127) / np.abs(blocks).max(1, keepdims=True)))
    wide = codes.astype(np.float64) * scale
    return wide.reshape(x.size // k, -1)[:, :k].reshape(x.shape)


def native(backends, model, x, target="llvm"):
    exe = intarsia.compile(model, target, strict=True, num_threads=1, backends=backends)
    return exe.run({"x": x})["y"]


def error_of(got, want):
    """The root of the mean square of the differences over that of what is wanted."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


CASES = {
    "one row": (4, 32, (1, 128), 24),
    "many rows": (4, 32, (13, 128), 24),
    "cut columns": (4, 32, (3, 64), 37),
    "a cut block": (4, 32, (2, 75), 19),
    "few numbers": (4, 16, (2, 9), 3),
    "small blocks": (4, 16, (5, 80), 16),
    "large blocks": (4, 256, (1, 600), 40),
    "stacks": (4, 32, (2, 3, 64), 20),
    "a vector": (4, 32, (64,), 20),
    "8 bits": (8, 32, (1, 128), 24),
    "8 bits, many rows": (8, 64, (9, 100), 21),
    "8 bits, large blocks": (8, 128, (1, 256), 24),
}


ZEROS = ["", "packed", "floats"]
EACH = [(case, ZEROS[number % 3]) for number, case in enumerate(CASES)]
EACH += [("many rows", ""), ("8 bits, many rows", "")]


@pytest.mark.parametrize(("case", "zeros"), EACH)
def test_exact_products_are_those_of_dequantised_weights(backends, case, zeros):
    model, x, want = product(*CASES[case], zeros=zeros)
    assert error_of(native(backends, model, x), want) < 1e-6


@pytest.mark.parametrize(("case", "zeros"), EACH)
def test_fast_products_are_those_of_int8_activations(backends, case, zeros):
    model, x, want = product(*CASES[case], zeros=zeros, level=4)
    assert error_of(native(backends, model, x), want) < 1e-6


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("case", ["a cut block", "8 bits, many rows"])
def test_onnxruntime_computes_the_same(backends, case, level):
    model, x, _ = product(*CASES[case], zeros="packed", level=level, bias=True)
    want = evaluate(model, {"x": x})["y"]
    # It quantises activations in the same way, but rounds otherwise.
    assert error_of(native(backends, model, x), want) < (1e-6 if level == 0 else 3e-3)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(("bits", "rows"), [(4, 1), (4, 9), (8, 2)])
def test_other_cpus_by_the_interpreter(lower_model, bits, rows, level, unit):
    model, x, want = product(bits, 16, (rows, 27), 18, zeros=ZEROS[rows % 3], level=level)
    program, region = lower_model(model, UNITS[unit])

    def interpreted(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    got = run_program(program, region, {"x": x}, interpreted)["y"]
    assert error_of(got, want) < 1e-6


@pytest.mark.parametrize("level", [0, 4])
def test_the_target_decides_over_the_model(backends, level):
    case = CASES["many rows"]
    model, x, _ = product(*case, level=level)
    both = [native(backends, model, x, f"llvm -accuracy={name}") for name in ("exact", "fast")]
    assert 1e-3 < error_of(both[1], both[0]) < 1e-2
    np.testing.assert_array_equal(both[level == 4], native(backends, model, x))


def test_products_of_one_operand_quantise_it_once(lower_model, backends):
    model, x, want = product(*CASES["many rows"], level=4)
    first, second = model.graph.node[0], onnx.NodeProto()
    second.CopyFrom(first)
    second.name, second.output[0] = "again", "again"
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("again", 1, want.shape))
    program, _ = lower_model(model)
    assert [call.nodes for call in program.calls] == [("n0",), ("n0",), ("again",)]
    assert error_of(native(backends, model, x), want) < 1e-6


def test_bias_and_what_follows_are_in_the_kernel(backends):
    model, x, want = product(*CASES["cut columns"], bias=True, after="y = Relu(m)")
    exe = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    assert error_of(exe.run({"x": x})["y"], np.maximum(want, 0)) < 1e-6


def test_scales_that_float16_does_not_hold_stay_float32(backends):
    model, x, want = product(*CASES["many rows"], level=4)
    scales = numpy_helper.to_array(model.graph.initializer[1]) * np.float32(1e-6)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(scales, "s"))
    assert error_of(native(backends, model, x), want * 1e-6) < 1e-6


@pytest.mark.parametrize("level", [0, 4])
def test_float16_is_computed_in_float32(backends, level):
    model, x, want = product(*CASES["many rows"], level=level, dtype=np.float16, bias=True)
    got = native(backends, model, x)
    assert got.dtype == np.float16
    assert error_of(got.astype(np.float64), want) < 5e-4


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_no_number_stays_none(backends, number, level):
    model, x, _ = product(*CASES["many rows"], level=level)
    x[3, 40] = number
    got = native(backends, model, x)
    assert not np.isfinite(got[3]).any()
    assert np.isfinite(np.delete(got, 3, 0)).all()


def test_zeros_are_zero(backends):
    model, x, _ = product(*CASES["many rows"], level=4)
    assert not native(backends, model, np.zeros_like(x)).any()


@pytest.mark.parametrize("level", [0, 4])
def test_free_rows_give_the_bits_of_known_ones(backends, level):
    model, x, _ = product(4, 32, (37, 96), 41, zeros="packed", level=level)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    free = intarsia.compile(model, "llvm", strict=True, num_threads=1, backends=backends)
    for rows in (1, 3, 13):
        known = intarsia.compile(
            model, "llvm", strict=True, num_threads=1, backends=backends, shapes={"rows": rows}
        )
        part = x[:rows]
        want = known.run({"x": part})["y"]
        np.testing.assert_array_equal(free.run({"x": part})["y"], want, err_msg=str(rows))


TILED = {
    "blocks of 16": (4, 16, (17, 75), 37, ""),
    "zero points in a cut block": (4, 32, (13, 75), 16, "packed"),
    "several chunks": (4, 32, (8, 1200), 3, "floats"),
    "more rows than a turn has": (4, 64, (130, 64), 3, "packed"),
    "large blocks": (4, 256, (9, 600), 17, ""),
    "8 bits": (8, 32, (20, 100), 20, ""),
    "8 bits with zero points": (8, 64, (18, 130), 20, "packed"),
    "stacks": (4, 32, (2, 9, 64), 20, "packed"),
}
TILE_UNIT = replace(UNITS["vnni"], tiles=("amx-int8",))


def interpreted(lower_model, model, x, unit):
    program, region = lower_model(model, unit)

    def run(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    has_tiles = any(kernel.tiles for kernel in program.kernels)
    return has_tiles, run_program(program, region, {"x": x}, run)["y"]


@pytest.mark.parametrize("case", TILED)
def test_tiles_give_the_bits_of_vectors(lower_model, case):
    *what, zeros = TILED[case]
    model, x, want = product(*what, zeros=zeros, level=4, bias=True)
    has_tiles, by_tiles = interpreted(lower_model, model, x, TILE_UNIT)
    has_none, by_vectors = interpreted(lower_model, model, x, UNITS["vnni"])
    assert (has_tiles, has_none) == (True, False)
    assert error_of(by_tiles, want) < 1e-6
    np.testing.assert_array_equal(by_tiles, by_vectors)


@pytest.mark.parametrize("rows", [1, 7])
def test_few_rows_and_float32_have_no_tiles(lower_model, rows):
    for level, count in ((4, rows), (0, 40)):
        model, x, want = product(4, 32, (count, 64), 20, level=level)
        has_tiles, got = interpreted(lower_model, model, x, TILE_UNIT)
        assert not has_tiles
        assert error_of(got, want) < 1e-6


@pytest.mark.parametrize("case", ["blocks of 16", "8 bits with zero points"])
def test_the_cpus_own_tiles_give_the_bits_of_its_vectors(backends, case):
    *what, zeros = TILED[case]
    model, x, _ = product(*what, zeros=zeros, level=4, bias=True)
    got = native(backends, model, x)  # by vectors too, on a CPU without tiles
    off = native(backends, model, x, "llvm -mattr=-amx-int8")
    np.testing.assert_array_equal(got, off)


REFUSED = {
    "2 bits": ("bits = 2, block_size = 32", "", "have 2 bits"),
    "blocks of 24": ("bits = 4, block_size = 24", "", "have 24 weights"),
    "g_idx": ("bits = 4, block_size = 32", ", , g", "g_idx"),
    "computed": ("bits = 4, block_size = 32", "", "weights are not constant"),
    "other shape": ("bits = 8, block_size = 32", "", "weights have"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why(backends, case):
    attributes, more, reason = REFUSED[case]
    weights, _ = blocks_of(4, 32, 8, 64)
    weights["g"] = np.zeros(64, np.int32)
    inputs = {"x": (2, 64)}
    if case == "computed":
        inputs["w"] = weights.pop("w")
    body = f"y = com.microsoft.MatMulNBits<K = 64, N = 8, {attributes}>(x, w, s{more})"
    model = small_model("y", body, inputs, weights)
    with pytest.raises(UnsupportedError, match=reason):
        intarsia.compile(model, "llvm", strict=True, backends=backends)


def dequantised(body, shape, size, columns, *, dtype="int4", zeros=False, k=96, n=40):
    """A product of `x` and `d`, what it is in float64, and the numbers of `x`.

    Args:
        body: Nodes that make y of x and d.
        shape: Of x.
        size: Of a block; 0 for none.
        columns: Which dimension of the weights has the columns; None for one scale.
        dtype: Of the codes.
        zeros: Whether there are zero points.
        k: Rows of the weights.
        n: Columns of them.
    """
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[dtype]
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    of_weights = (k, n) if columns != 0 else (n, k)
    axis = columns if columns is not None and not size else 1 - (columns or 0)
    of_scales = ()
    if size:
        of_scales = tuple(-(-e // size) if d == axis else e for d, e in enumerate(of_weights))
    elif columns is not None:
        of_scales = (n,)
    arrays = {
        "w": RNG.integers(low, high, of_weights).astype(numpy_dtype),
        "s": RNG.uniform(0.01, 0.03, of_scales).astype(np.float32),
        "c": RNG.standard_normal(n).astype(np.float32),
    }
    if zeros:
        arrays["z"] = RNG.integers(low, high, of_scales).astype(numpy_dtype)

    def over(array):
        wide = np.asarray(array).astype(np.float64)
        if size:
            return np.repeat(wide, size, axis).take(range(of_weights[axis]), axis)
        return wide if columns != 0 else wide[:, None]

    weights = (
        arrays["w"].astype(np.float64) - over(arrays.get("z", 0.0) if zeros else 0 * arrays["s"])
    ) * over(arrays["s"])
    x = RNG.standard_normal(shape).astype(np.float32)
    attributes = f"axis = {axis}" + (f", block_size = {size}" if size else "")
    names = "w, s, z" if zeros else "w, s"
    text = f"d = DequantizeLinear<{attributes}>({names}) {body}"
    used = {name: array for name, array in arrays.items() if name != "c" or "c)" in body}
    model = small_model("y", text, {"x": x}, used, 21)
    product = x.astype(np.float64) @ (weights if columns != 0 else weights.T)
    return model, x, product + (arrays["c"] if "c)" in body else 0)


MATMUL, GEMM = "y = MatMul(x, d)", "y = Gemm<transB = 1>(x, d, c)"
SPELLED = {
    "blocks": (MATMUL, (5, 96), 32, 1),
    "a cut block": (MATMUL, (1, 96), 64, 1),
    "stacks": (MATMUL, (2, 3, 96), 16, 1),
    "turned blocks": (GEMM, (9, 96), 32, 0),
    "columns": (MATMUL, (5, 96), 0, 1),
    "turned columns": (GEMM, (5, 96), 0, 0),
    "one scale": (MATMUL, (5, 96), 0, None),
}


@pytest.mark.parametrize(
    ("case", "dtype", "zeros"),
    [
        *(
            ("blocks", dtype, zeros)
            for dtype in ("int4", "uint4", "int8", "uint8")
            for zeros in (0, 1)
        ),
        *((case, dtype, 1) for case in list(SPELLED)[1:] for dtype in ("int4", "uint8")),
    ],
)
def test_dequantised_weights_stay_packed(lower_model, backends, case, dtype, zeros):
    model, x, want = dequantised(*SPELLED[case], dtype=dtype, zeros=bool(zeros))
    program, _ = lower_model(model)
    assert [call.nodes for call in program.calls] == [("n0", "n1")]
    limit = 96 * 40 * (1 if dtype.endswith("4") else 2)
    assert sum(array.nbytes for array in program.constants.values()) < limit * 2.6
    assert error_of(native(backends, model, x), want) < 1e-6
    fast = native(backends, model, x, "llvm -accuracy=fast")
    assert 1e-4 < error_of(fast, want) < 0.012


def test_what_others_read_is_dequantised_too(lower_model, backends):
    body = "m = MatMul(x, d) e = Softmax<axis = 0>(d) y = MatMul(m, e)"
    model, x, _ = dequantised(body, (5, 40), 16, 1, k=40)
    program, _ = lower_model(model)
    assert [call.nodes for call in program.calls if "n1" in call.nodes] == [("n1",)]
    got = native(backends, model, x)
    assert error_of(got, evaluate(model, {"x": x})["y"]) < 1e-6
