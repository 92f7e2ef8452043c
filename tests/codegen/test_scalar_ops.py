"""Every elementwise operator against ONNX's reference evaluator."""

import math

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from intarsia.codegen.body import Apply, Body, Layout
from intarsia.codegen.ir import DTYPES
from intarsia.codegen.kernels.elementwise import Elementwise, build
from intarsia.codegen.scalar_ops import SCALAR_OPS, supported_dtypes
from intarsia.codegen.scalar_ops.narrow import NARROW
from intarsia.codegen.unit import AVX512, SSE

SIZE = 37  # with a tail at every number of lanes
FLOATS = ("float32", "float64")
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 1e-40, 2.5, -2.5, 1.5, 100.0]


def numbers(dtype, seed, *, special=True):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(SIZE) < 0.5
    kind = np.dtype(dtype).kind
    if kind == "f":
        x = rng.standard_normal(SIZE) * 4
        if special:
            x[: len(SPECIAL)] = rng.permutation(SPECIAL)
        return x.astype(dtype)
    low = 0 if kind == "u" else -20
    x = rng.integers(low, 20, SIZE).astype(dtype)
    if special:
        x[:2] = np.iinfo(dtype).max, np.iinfo(dtype).min
    return x


def reference(op_type, inputs, out_dtype, attrs):
    names = [f"x{n}" if x is not None else "" for n, x in enumerate(inputs)]
    values = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    node = helper.make_node(op_type, names, ["y"], **attrs)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in values.items()
    ]
    out = helper.np_dtype_to_tensor_dtype(np.dtype(out_dtype))
    y = helper.make_tensor_value_info("y", out, (SIZE,))
    graph = helper.make_graph([node], "g", infos, [y])
    opset = helper.make_opsetid("", onnx.defs.onnx_opset_version())
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=[opset])).run(
            None, values
        )[0]


def compute(run_kernel, op_type, inputs, out_dtype, attrs, unit=AVX512, **options):
    present = [x for x in inputs if x is not None]
    numbers_of = iter(range(len(present)))
    arguments = tuple(-1 if x is None else next(numbers_of) for x in inputs)
    attributes = tuple(sorted(attrs.items()))
    step = Apply(op_type, arguments, attributes, out_dtype)
    body = Body(tuple(x.dtype.name for x in present), (step,), (len(present),))
    layouts = tuple(Layout(x.dtype.name, (1,) if x.ndim else (0,)) for x in present)
    spec = Elementwise((SIZE,), layouts, (Layout(out_dtype, (1,)),), body, unit)
    out = np.zeros(SIZE, out_dtype)
    *_, got = run_kernel(build(spec), [*(x.reshape(-1) for x in present), out], **options)
    return got


def check(run_kernel, op_type, inputs, out_dtype, attrs, expected=None, rtol=None, **options):
    if expected is None:
        expected = reference(op_type, inputs, out_dtype, attrs)
    for unit in (AVX512, SSE):
        got = compute(run_kernel, op_type, inputs, out_dtype, attrs, unit, **options)
        assert got.dtype == expected.dtype
        if got.dtype.kind == "f":
            rtol = rtol or (2e-6 if got.dtype == "float32" else 1e-14)
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol / 10)
        else:
            np.testing.assert_array_equal(got, expected)


UNARY = [
    *[(op, {}) for op in ("Neg", "Abs", "Sign", "Reciprocal", "Sqrt", "Floor", "Ceil", "Round")],
    *[(op, {}) for op in ("Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan")],
    *[(op, {}) for op in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Identity")],
    *[(op, {}) for op in ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "HardSwish")],
    *[(op, {}) for op in ("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu")],
    *[(op, {"alpha": 0.3}) for op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")],
    ("Selu", {"alpha": 2.0, "gamma": 3.0}),
    ("HardSigmoid", {"alpha": 0.5, "beta": 0.6}),
    ("Gelu", {}),
    ("Gelu", {"approximate": "tanh"}),
    ("Shrink", {"lambd": 1.5, "bias": 1.0}),
]
if onnx.defs.onnx_opset_version() >= 24:
    UNARY += [("Swish", {}), ("Swish", {"alpha": 0.7})]


def gelu(x, approximate="none"):
    with np.errstate(all="ignore"):
        if approximate == "tanh":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + np.array([math.erf(item / math.sqrt(2)) for item in x]))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", UNARY, ids=str)
def test_unary(run_kernel, case, dtype):
    op_type, attrs = case
    attrs = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in attrs.items()}
    x = numbers(dtype, 1)
    expected = None
    if op_type == "Erf":
        expected = np.array([math.erf(item) for item in x.astype("float64")]).astype(dtype)
    if op_type == "Gelu":  # the evaluator's constants are float32; 1 + erf loses digits below 0
        expected = gelu(x.astype("float64"), **attrs).astype(dtype)
        got = compute(run_kernel, op_type, [x], dtype, attrs)
        tolerance = 1e-6 if dtype == "float32" else 1e-15
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        return
    if op_type == "Softplus":  # the evaluator's overflows
        with np.errstate(all="ignore"):
            expected = np.logaddexp(x, dtype_of(x, 0))
    if op_type == "Mish":
        with np.errstate(all="ignore"):
            expected = (x * np.tanh(np.logaddexp(x.astype("float64"), 0))).astype(dtype)
    check(run_kernel, op_type, [x], dtype, attrs, expected)


def dtype_of(x, value):
    return x.dtype.type(value)


@pytest.mark.parametrize("op_type", ["Neg", "Abs", "Sign", "Relu"])
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_unary_of_integers(run_kernel, op_type, dtype):
    check(run_kernel, op_type, [numbers(dtype, 1)], dtype, {})


ORDER = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("bool", "float16")])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Min", "Max", "Equal", *ORDER, "PRelu"])
def test_binary(run_kernel, op_type, dtype):
    out = "bool" if op_type in {"Equal", *ORDER} else dtype
    x, y = numbers(dtype, 1), numbers(dtype, 2)
    if op_type == "PRelu" and dtype not in supported_dtypes("PRelu"):
        pytest.skip("not an operator of this dtype")
    with np.errstate(all="ignore"):
        expected = np.where(x < 0, x * y, x) if op_type == "PRelu" else None
    check(run_kernel, op_type, [x, y], out, {}, expected)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("bool", "float16")])
def test_division(run_kernel, dtype):
    x, y = numbers(dtype, 1), numbers(dtype, 2)
    if np.dtype(dtype).kind == "f":
        with np.errstate(all="ignore"):
            check(run_kernel, "Div", [x, y], dtype, {}, x / y)
            check(run_kernel, "Mod", [x, y], dtype, {"fmod": 1}, np.fmod(x, y))
            check(run_kernel, "Mod", [x, y], dtype, {}, np.mod(x, y))
        return
    x[5:8], y[3:6] = np.iinfo(dtype).min, dtype_of(y, 0) - (np.dtype(dtype).kind == "i")
    y[8:10] = 0
    with np.errstate(all="ignore"):
        wide_x, wide_y = x.astype(object), np.where(y == 0, 1, y).astype(object)
        quotient = np.array(
            [
                abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                for a, b in zip(wide_x, wide_y, strict=True)
            ],
            object,
        )
        rest = wide_x - quotient * wide_y
        bits = 8 * x.itemsize
        wrapped = np.array([int(q) % 2**bits for q in quotient], "uint64").astype(dtype)
        wrapped[y == 0] = 0
        rest[y == 0] = 0
        check(run_kernel, "Div", [x, y], dtype, {}, wrapped)
        check(run_kernel, "Mod", [x, y], dtype, {"fmod": 1}, rest.astype(dtype))
        check(run_kernel, "Mod", [x, y], dtype, {}, np.mod(x, y))


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor", "Equal"])
def test_logic(run_kernel, op_type):
    check(run_kernel, op_type, [numbers("bool", 1), numbers("bool", 2)], "bool", {})


def test_not(run_kernel):
    check(run_kernel, "Not", [numbers("bool", 1)], "bool", {})


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_bitwise(run_kernel, dtype):
    for op_type in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check(run_kernel, op_type, [numbers(dtype, 1), numbers(dtype, 2)], dtype, {})
    check(run_kernel, "BitwiseNot", [numbers(dtype, 1)], dtype, {})


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(run_kernel, dtype, direction):
    x, y = numbers(dtype, 1), np.arange(SIZE).astype(dtype) * 2
    width = 8 * x.itemsize
    shifted = [
        int(a) << int(b) if direction == "LEFT" else int(a) >> int(b)
        for a, b in zip(x, y, strict=True)
    ]
    expected = np.array([item % 2**width for item in shifted], dtype)
    check(run_kernel, "BitShift", [x, y], dtype, {"direction": direction}, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity(run_kernel, dtype):
    x = numbers(dtype, 1)
    check(run_kernel, "IsNaN", [x], "bool", {})
    for positive in (0, 1):
        for negative in (0, 1):
            attrs = {"detect_positive": positive, "detect_negative": negative}
            check(run_kernel, "IsInf", [x], "bool", attrs)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op_type", ["Sum", "Mean", "Min", "Max"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic(run_kernel, op_type, count, dtype):
    inputs = [numbers(dtype, seed) for seed in range(count)]
    check(run_kernel, op_type, inputs, dtype, {})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("bounds", [(True, True), (True, False), (False, True), (False, False)])
def test_clip(run_kernel, dtype, bounds):
    low, high = np.array(2, dtype), np.array(5, dtype)
    inputs = [numbers(dtype, 1), low if bounds[0] else None, high if bounds[1] else None]
    x = inputs[0]
    expected = x if not bounds[0] else np.maximum(x, low)
    expected = expected if not bounds[1] else np.minimum(expected, high)
    check(run_kernel, "Clip", inputs, dtype, {}, expected)


def test_clip_by_attributes(run_kernel):
    x = numbers("float32", 1)
    check(run_kernel, "Clip", [x], "float32", {"min": -1.0, "max": 2.0}, np.clip(x, -1, 2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_where(run_kernel, dtype):
    inputs = [numbers("bool", 0), numbers(dtype, 1), numbers(dtype, 2)]
    check(run_kernel, "Where", inputs, dtype, {})


@pytest.mark.sample(3)
@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast(run_kernel, source, target):
    x = numbers(source, 1)
    if np.dtype(source).kind == "f" and np.dtype(target).kind in "iu":
        limits = np.iinfo(target)
        with np.errstate(all="ignore"):
            safe = np.nan_to_num(x.astype("float64"), posinf=0, neginf=0)
        x = np.clip(safe, max(limits.min, -100), 100).astype(source)
    with np.errstate(all="ignore"):
        check(run_kernel, "Cast", [x], target, {}, x.astype(target), rtol=1e-15)


def test_float16_is_rounded_once(run_kernel):
    edge = 1 + 2.0**-11  # halfway between two float16; a float32 cannot see what is beyond
    x = np.resize(np.array([edge, edge + 2.0**-40, edge - 2.0**-40, -edge - 2.0**-40, 1e300]), SIZE)
    with np.errstate(all="ignore"):
        check(run_kernel, "Cast", [x], "float16", {}, x.astype("float16"), rtol=1e-15)
    whole = np.resize(np.array([2049, 2051, 65504, 65519, -2049, 2**62], "int64"), SIZE)
    with np.errstate(all="ignore"):
        check(run_kernel, "Cast", [whole], "float16", {}, whole.astype("float16"), rtol=1e-15)


EVERY_HALF = np.arange(1 << 16, dtype="uint16").view("float16")


def near_halves():
    """float32 between neighbouring float16, halfway, too large, and denormal."""
    finite = EVERY_HALF[np.isfinite(EVERY_HALF)].astype("float32")
    halfway = (finite[1:] + finite[:-1]) / np.float32(2)
    more = np.array([1e-9, -1e-9, 65519.9, 65520, -65520, 3e38, np.inf, -np.inf, np.nan])
    return np.concatenate((finite * np.float32(1.0004), halfway, more.astype("float32")))


@pytest.mark.parametrize("target", ["float32", "float16"])
def test_every_float16(run_kernel, target):
    x = EVERY_HALF if target == "float32" else near_halves()
    body = Body((x.dtype.name,), (Apply("Cast", (0,), (), target),), (1,))
    layouts = Layout(x.dtype.name, (1,)), Layout(target, (1,))
    spec = Elementwise((x.size,), layouts[:1], layouts[1:], body)
    with np.errstate(all="ignore"):
        expected = x.astype(target)
    _, got = run_kernel(build(spec), [x, np.zeros(x.size, target)], interpreted=False)
    np.testing.assert_array_equal(got, expected)
    numbers_only = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[numbers_only], np.signbit(expected)[numbers_only])


@pytest.mark.parametrize("dtype", FLOATS)
def test_powers(run_kernel, dtype):
    x, y = numbers(dtype, 1), numbers(dtype, 2)
    check(run_kernel, "Pow", [x, y], dtype, {})
    check(run_kernel, "Pow", [x, numbers("int32", 2, special=False)], dtype, {})
    check(run_kernel, "Pow", [x, np.array(2, dtype)], dtype, {})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integer_powers(run_kernel, dtype):
    x, y = numbers(dtype, 1), np.abs(numbers(dtype, 2, special=False))
    with np.errstate(all="ignore"):
        check(run_kernel, "Pow", [x, y], dtype, {}, np.power(x, y))
    small = np.resize(np.array([0, 1, 2, 3, -2, 7], dtype), SIZE)
    check(run_kernel, "Pow", [small, np.array(3.0, "float32")], dtype, {}, small**3)


def test_unsupported_dtypes_are_told():
    assert supported_dtypes("Add") == set(DTYPES) - {"bool", "float16"}
    assert supported_dtypes("Conv") == frozenset()
    assert supported_dtypes("Cast") == {*DTYPES, *NARROW}
    assert all(op.dtypes <= {*DTYPES, *NARROW} for op in SCALAR_OPS.values())
