"""C and OpenCL C do what the interpreter says, operation by operation.

The cases are those of the LLVM emitter.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.codegen import test_emit_llvm as cases
from tests.codegen.emit.runners import run_c, run_opencl, run_wgsl

from intarsia.codegen import maths
from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.c import emit_c
from intarsia.codegen.emit.device_family import DeviceLimits, pieces
from intarsia.codegen.emit.opencl import emit_opencl, refuse_types
from intarsia.codegen.emit.opencl_text import WIDTHS
from intarsia.codegen.ir import INT64, Type
from intarsia.errors import BackendError

LANGUAGES = {"c": run_c, "opencl": run_opencl, "wgsl": run_wgsl}


@pytest.fixture(params=["c", "opencl", pytest.param("wgsl", marks=pytest.mark.exhaustive)])
def run(request):
    return LANGUAGES[request.param]


@pytest.mark.parametrize("language", LANGUAGES)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), dtype=st.sampled_from(cases.DTYPES), lanes=st.sampled_from([1, 3, 4, 16]))
def test_random_expressions(language, data, dtype, lanes):
    cases.test_random_expressions.hypothesis.inner_test(LANGUAGES[language], data, dtype, lanes)


@pytest.mark.parametrize("language", LANGUAGES)
@settings(max_examples=6, deadline=None)
@given(
    nest=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=3),
    size=st.integers(0, 3),
)
def test_nested_loops_with_values(language, nest, size):
    cases.test_nested_loops_with_values.hypothesis.inner_test(LANGUAGES[language], nest, size)


@pytest.mark.parametrize("lanes", [2, 16, 7])
def test_horizontal_reductions(run, lanes):
    """All at once: a kernel for each would take long to compile."""
    b = Builder("horizontal")
    chosen = [pair for pair in cases.HORIZONTAL if lanes != 7 or pair[0] in ("add", "mul")]
    arrays = []
    for number, (name, dtype) in enumerate(chosen):
        x = b.argument(f"x{number}", dtype, (lanes,))
        y = b.argument(f"y{number}", dtype, (1,), is_written=True)
        b.store(b.reduce(name, b.load(x, 0, lanes)), y, 0)
        values = np.random.default_rng(1).integers(0, 4, lanes).astype(dtype)
        arrays += [values, np.zeros(1, dtype)]
    run(b.finish(), arrays, rtol=0)


def cast_all(dtypes, sources=None):
    """A kernel that converts numbers of each dtype to each other one, and its memory."""
    b = Builder("casts")
    arrays = []
    for source in sources or dtypes:
        x = b.argument(f"x{len(arrays)}", source, (8,))
        targets = [dtype for dtype in dtypes if dtype != source]
        numbers = np.array([0, 1, 2, 100, 0.75, 3.5, 7, 5]).astype(source)
        if source.startswith(("int", "float")):
            targets = [target for target in targets if not target.startswith("uint")]
            numbers[-1] = -5
        arrays.append(numbers)
        for target in targets:
            y = b.argument(f"y{len(arrays)}", target, (8,), is_written=True)
            b.store(b.cast(b.load(x, 0, 8), target), y, 0)
            arrays.append(np.zeros(8, target))
    return b.finish(), arrays


def test_casts(run):
    dtypes = ("bool", *cases.DTYPES)
    # WebGPU does not bind so many buffers at once, and Mesa takes seconds for each kernel.
    sources = [dtypes[:2], ("int8", "int64")] if run is run_wgsl else [dtypes]
    for some in sources:
        run(*cast_all(dtypes, some), rtol=0)


@pytest.mark.parametrize("name", ["exp_nonpositive", "exp2_nonpositive"])
def test_exponentials_round_where_compilers_would_simplify(run, name):
    """They add a large number and take it away again, which a driver must not."""
    b = Builder(name)
    x = b.argument("x", "float32", (64,))
    y = b.argument("y", "float32", (64,), is_written=True)
    with b.parallel(64) as i:
        b.store(getattr(maths, name)(b, b.load(x, i, 1)), y, i)
    numbers = -np.linspace(0, 20, 64, dtype=np.float32)
    *_, got = run(b.finish(), [numbers, np.zeros_like(numbers)])
    exact = np.exp(numbers) if name == "exp_nonpositive" else np.exp2(numbers)
    np.testing.assert_allclose(got, exact, rtol=3e-6)  # a fused product may round twice


def test_casts_of_halves(run):
    run(*cast_all(("float16", "float32", "int32", "bool", "uint16")), rtol=0)


def test_halves_are_rounded_as_ieee_754_says():
    """Every float16 comes back; numbers between two go to the even one."""
    b = Builder("halves")
    n = b.argument("n", "uint16", (1 << 16,))
    x = b.argument("x", "float32", (1 << 16,))
    y = b.argument("y", "float16", (1 << 16,), is_written=True)
    z = b.argument("z", "float16", (1 << 16,), is_written=True)
    with b.parallel(1 << 16) as i:
        b.store(b.bitcast(b.load(n, i), "float16"), y, i)
        b.store(b.cast(b.load(x, i), "float16"), z, i)
    bits = np.arange(1 << 16, dtype=np.uint16)
    every = bits.view(np.float16)
    with np.errstate(invalid="ignore"):
        middle = (every[:-1].astype(np.float32) + every[1:].astype(np.float32)) / 2
    x = np.append(middle, np.float32(1e-8))
    _, _, back, rounded = run_c(
        b.finish(), [bits, x, np.zeros_like(every), np.zeros_like(every)], interpreted=False
    )
    np.testing.assert_array_equal(back, every)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(rounded, x.astype(np.float16))


@pytest.mark.parametrize(("source", "target"), [("float32", "int32"), ("uint64", "float64")])
def test_bitcasts(run, source, target):
    cases.test_bitcasts(run, source, target)


@pytest.mark.parametrize(
    ("dtype", "stride", "count"),
    [("float32", 1, 5), ("bool", 1, 5), ("bool", 3, 8), ("int64", 2, 1)],
)
def test_parts_of_vectors(run, dtype, stride, count):
    cases.test_parts_of_vectors(run, dtype, stride, count)


def test_values_may_change_places_in_a_loop(run):
    """What a turn hands on is read before it is overwritten, for scalars and vectors."""
    b = Builder("fibonacci")
    y = b.argument("y", "int64", (2, 3), is_written=True)
    with b.parallel(2) as turn:
        one = b.add(b.index(turn), 1)
        first, wide = b.constant(0, INT64), b.splat(one, 3)
        out = b.loop(
            *(0, 7, [first, one, wide, b.mul(wide, 2)]),
            lambda i, p, q, r, s: [q, b.add(p, q), s, b.add(r, s)],
        )
        b.store(b.add(b.splat(out[0], 3), b.sub(out[3], out[2])), y, (turn, 0))
    run(b.finish(), [np.zeros((2, 3), "int64")], rtol=0)


@pytest.mark.parametrize(
    "constants",
    [
        ("float32", [1e-45, -0.0, np.inf, -np.inf, np.nan, 0.1, 16777216.0]),
        ("float64", [5e-324, -0.0, np.inf, np.nan, 0.1, 1e300]),
        ("int32", [-(2**31), 2**31 - 1, -1]),
        ("int64", [-(2**63), 2**63 - 1, 2**40, -1]),
        ("uint64", [2**64 - 1, 0]),
        ("int8", [-128, 127]),
    ],
    ids=lambda pair: pair[0],
)
def test_literals(run, constants):
    dtype, numbers = constants
    b = Builder("literals")
    y = b.argument("y", dtype, (len(numbers), 4), is_written=True)
    with b.parallel(1):
        for row, number in enumerate(numbers):
            b.store(b.constant(number, Type(dtype, 4)), y, (row, 0))
    _ = run(b.finish(), [np.zeros((len(numbers), 4), dtype)], rtol=0)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "bool"])
def test_a_value_may_be_compared_with_itself_and_zero(run, dtype):
    b = Builder("same")
    x = b.argument("x", dtype, (4,))
    y = b.argument("y", "bool", (3, 4), is_written=True)
    with b.parallel(1):
        value = b.load(x, 0, 4)
        b.store(b.compare("eq", value, value), y, (0, 0))
        b.store(b.compare("lt", value, b.constant(0, value.type)), y, (1, 0))
        b.store(b.compare("ge", value, b.constant(0, value.type)), y, (2, 0))
    run(b.finish(), [np.array([0, 1, 1, 0], dtype), np.zeros((3, 4), "bool")], rtol=0)


def test_pieces_of_any_number_of_lanes():
    assert pieces(1, WIDTHS) == ((0, 1),)
    assert pieces(19, WIDTHS) == ((0, 16), (16, 2), (18, 1))
    assert pieces(32, WIDTHS) == ((0, 16), (16, 16))


def scaled(dtype):
    b = Builder("scaled")
    x = b.argument("x", dtype, (4,))
    y = b.argument("y", dtype, (4,), is_written=True)
    with b.parallel(1):
        b.store(b.mul(b.load(x, 0, 4), 3), y, 0)
    return b.finish()


@pytest.mark.parametrize(
    ("dtype", "extension"), [("float16", "cl_khr_fp16"), ("float64", "cl_khr_fp64")]
)
def test_a_missing_extension_is_named(dtype, extension):
    limits = DeviceLimits(has_fp16=False, has_fp64=False)
    assert refuse_types(scaled("float32"), limits) is None
    with pytest.raises(BackendError, match=extension):
        emit_opencl(scaled(dtype), limits)
    emit_opencl(scaled(dtype), DeviceLimits(has_fp16=True, has_fp64=True))


def test_names_that_mean_something_get_another_one(run):
    b = Builder("names")
    names = ("in", "out", "kernel", "float", "turn", "v1", "i0", "l", "half", "int", "end", "item")
    buffers = [b.argument(name, "float32", (4,)) for name in names]
    y = b.argument("global", "float32", (4,), is_written=True)
    total = b.load(buffers[0], 0, 4)
    for buffer in buffers[1:]:
        total = b.add(total, b.load(buffer, 0, 4))
    b.store(total, y, 0)
    ones = [np.ones(4, "float32") for _ in names]
    assert run(b.finish(), [*ones, np.zeros(4, "float32")])[-1].tolist() == [len(names)] * 4


def test_c_says_what_a_kernel_is_and_needs_nothing_else():
    b = Builder("noted")
    b.note("twice the numbers")
    x = b.argument("x", "float32", (8,))
    y = b.argument("y", "float32", (8,), is_written=True)
    with b.parallel(2) as turn:
        b.store(b.mul(b.load(x, turn * 4, 4), 2), y, turn * 4)
    text = emit_c([b.finish()])
    assert "/* twice the numbers */" in text
    assert "y[4 * turn + l] = " in text
    included = {line.split()[1] for line in text.splitlines() if line.startswith("#include")}
    assert included == {"<stdbool.h>", "<stddef.h>", "<stdint.h>"}  # of a freestanding compiler
    assert "half" not in text
