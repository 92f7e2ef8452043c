"""Machine code does what the interpreter says, on this CPU; for others it has their registers."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import BINARY, INT64, REDUCTIONS, UNARY, Type
from intarsia.codegen.unit import CpuModel
from intarsia.extents import symbol
from intarsia.native.machine import NativeCpu, compile_assembly, compile_object

LENGTH = 64
DTYPES = ("float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64")
FLOATS = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint")
INTEGERS = ("neg", "not", "abs")
BITWISE = ("and", "or", "xor")


def memory(dtype, seed):
    """Numbers, some of them special."""
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        x = rng.standard_normal(LENGTH) * 100
        x[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42]
    else:
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, LENGTH, dtype=dtype, endpoint=True)
        x[:3] = [info.min, info.max, 0]
    return rng.permutation(x).astype(dtype)


def grow(draw, b, dtype, values, bools):
    """Append a random operation on earlier values of a dtype."""
    is_float = dtype.startswith("float")
    x, y, z = (draw(st.sampled_from(values)) for _ in range(3))
    names = ["unary", "binary", "fma", "select", "extremum", "compare", "shuffle"]
    name = draw(st.sampled_from(names))
    lanes = x.type.lanes
    if name == "unary":
        values.append(b.unary(draw(st.sampled_from(FLOATS if is_float else INTEGERS)), x))
    elif name == "binary" and is_float:
        values.append(
            b.binary(draw(st.sampled_from(("add", "sub", "mul", "div", "rem", "copysign"))), x, y)
        )
    elif name == "binary":
        choice = draw(st.sampled_from(("add", "sub", "mul", *BITWISE, "shl", "shr", "div", "rem")))
        if choice in ("shl", "shr"):
            y = b.binary("and", y, 7)
        elif choice in ("div", "rem"):  # neither by zero nor of the least number by -1
            y = b.binary("or", b.binary("and", y, 63), 1)
        values.append(b.binary(choice, x, y))
    elif name == "fma" and is_float:
        values.append(b.fma(x, y, z))
    elif name == "extremum":
        values.append(b.binary(draw(st.sampled_from(("min", "max"))), x, y))
    elif name == "compare":
        predicate = draw(st.sampled_from(("eq", "ne", "lt", "le", "gt", "ge")))
        bools.append(b.compare(predicate, x, y))
    elif name == "shuffle" and lanes > 1:
        picks = draw(st.lists(st.integers(0, 2 * lanes - 1), min_size=lanes, max_size=lanes))
        values.append(b.shuffle(x, y, picks))
    elif bools:
        values.append(b.select(draw(st.sampled_from(bools)), x, y))


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(DTYPES), st.sampled_from([1, 2, 4, 16]))
def test_random_expressions(run_kernel, data, dtype, lanes):
    b = Builder("expression")
    x = b.argument("x", dtype, (LENGTH,))
    y = b.argument("y", dtype, (LENGTH,), is_written=True)
    z = b.argument("z", "bool", (LENGTH,), is_written=True)
    with b.parallel(LENGTH // lanes // 2) as turn:
        first = turn * (2 * lanes)
        values = [
            b.load(x, first, lanes),
            b.load(x, first + 1, lanes, stride=2 if lanes > 1 else 1),
        ]
        values.append(b.constant(3, values[0].type))
        bools = []
        for _ in range(data.draw(st.integers(1, 8))):
            grow(data.draw, b, dtype, values, bools)
        b.store(values[-1], y, first)
        if bools:
            b.store(bools[-1], z, first)
    arrays = [memory(dtype, 0), np.zeros(LENGTH, dtype), np.zeros(LENGTH, "bool")]
    run_kernel(b.finish(), arrays, rtol=0)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_remainders_without_the_c_library_have_its_bits(run_kernel, dtype, lanes):
    b = Builder("remainders")
    x, y = (b.argument(name, dtype, (1 << 12,)) for name in "xy")
    z = b.argument("z", dtype, (1 << 12,), is_written=True)
    with b.parallel((1 << 12) // lanes) as turn:
        operands = (b.load(one, turn * lanes, lanes) for one in (x, y))
        b.store(b.binary("rem", *operands), z, turn * lanes)
    word = f"uint{8 * np.dtype(dtype).itemsize}"
    drawn = np.random.default_rng(1).integers(0, np.iinfo(word).max, (2, 1 << 12), word)
    drawn[:, :600] >>= np.dtype(word).type(6)  # small ones, denormals among them
    drawn[1, 300:2000] = drawn[0, 300:2000] - (drawn[1, 300:2000] >> np.dtype(word).type(5))
    left, right = drawn.view(dtype)
    left[:9] = [np.nan, np.inf, -np.inf, 0, -0.0, 5.3, -5.3, 1, 7]
    right[:9] = [1, 2, 3, 4, 5, -2.1, 2.1, 0, np.inf]
    unit = CpuModel(calls_with_floats=False)
    arrays = [left, right, np.zeros(1 << 12, dtype)]
    *_, got = run_kernel(
        b.finish(), arrays, interpreted=False, emit=lambda kernel: emit_llvm(kernel, unit)
    )
    with np.errstate(invalid="ignore"):
        want = np.fmod(left, right)
    assert np.isfinite(want).sum() > 1000
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


HORIZONTAL = [
    *((name, "float32") for name in sorted(REDUCTIONS - {"and", "or"})),
    *((name, "int32") for name in sorted(REDUCTIONS)),
    *((name, "bool") for name in ("and", "or")),
]


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("lanes", [1, 2, 8, 16])
@pytest.mark.parametrize(("name", "dtype"), HORIZONTAL)
def test_horizontal_reductions(run_kernel, name, dtype, lanes, level):
    b = Builder("horizontal")
    x = b.argument("x", dtype, (lanes,))
    y = b.argument("y", dtype, (1,), is_written=True)
    b.store(b.reduce(name, b.load(x, 0, lanes)), y, 0)
    numbers = np.random.default_rng(1).integers(0, 4, lanes).astype(dtype)
    run_kernel(b.finish(), [numbers, np.zeros(1, dtype)], rtol=0, level=level)


CASTS = [
    (a, b) for a in ("bool", *DTYPES, "float16") for b in ("bool", *DTYPES, "float16") if a != b
]


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts(run_kernel, source, target):
    b = Builder("casts")
    x = b.argument("x", source, (8,))
    y = b.argument("y", target, (8,), is_written=True)
    b.store(b.cast(b.load(x, 0, 8), target), y, 0)
    is_signed = "u" not in source + target and "bool" not in (source, target)
    numbers = np.array([0, 1, 2, 100, 0.75, 3.5, 7, -5 if is_signed else 5]).astype(source)
    run_kernel(b.finish(), [numbers, np.zeros(8, target)], rtol=0)


@pytest.mark.parametrize("name", ["add", "mul"])
@pytest.mark.parametrize("lanes", [3, 5, 7])
def test_reductions_of_odd_numbers_of_lanes(run_kernel, name, lanes):
    test_horizontal_reductions(run_kernel, name, "float32", lanes, 0)


@pytest.mark.parametrize(("source", "target"), [("float32", "int32"), ("uint64", "float64")])
def test_bitcasts(run_kernel, source, target):
    b = Builder("bits")
    x = b.argument("x", source, (4,))
    y = b.argument("y", target, (4,), is_written=True)
    b.store(b.bitcast(b.load(x, 0, 4), target), y, 0)
    numbers = np.array([1, 2, 3, 4]).astype(source)
    got = run_kernel(b.finish(), [numbers, np.zeros(4, target)])[1]
    np.testing.assert_array_equal(got, numbers.view(target))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "int64"])
@pytest.mark.parametrize(("stride", "count"), [(1, 8), (1, 5), (3, 8), (2, 1)])
def test_parts_of_vectors(run_kernel, dtype, stride, count):
    b = Builder("parts")
    x = b.argument("x", dtype, (32,))
    y = b.argument("y", dtype, (32,), is_written=True)
    z = b.argument("z", dtype, (8,), is_written=True)
    value = b.load(x, 1, 8, stride=stride, count=count)
    b.store(value, y, 2, stride=stride, count=count)
    b.store(value, z, 0)
    numbers = np.random.default_rng(1).integers(0, 2, 32).astype(dtype)
    run_kernel(b.finish(), [numbers, np.ones(32, dtype), np.ones(8, dtype)], rtol=0)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=3), st.integers(0, 3)
)
def test_nested_loops_with_values(run_kernel, nest, size):
    """Bounds that are known, that depend on outer loops, and that are 0."""
    b = Builder("nested")
    n = symbol("n")
    y = b.argument("y", "int64", (4,), is_written=True)

    def make(loops, outer, total):
        if not loops:
            return [b.add(b.mul(total, 7), b.index(outer + n + 1))]
        (turns, is_dependent), *rest = loops
        upper = outer + turns if is_dependent else turns
        return b.loop(0, upper, [total], lambda i, value: make(rest, i, value))

    with b.parallel(n) as turn:
        (total,) = make(nest, turn, b.constant(1, INT64))
        b.store(total, y, turn)
    run_kernel(b.finish(), [np.zeros(4, "int64")], sizes=[size], rtol=0)


def triad(lanes, dtype="float32"):
    b = Builder("triad")
    x = b.argument("x", dtype, (64, lanes))
    y = b.argument("y", dtype, (64, lanes), is_written=True)
    t = b.local("t", dtype, (lanes,))
    with b.parallel(64) as i:
        value = b.fma(b.load(x, (i, 0), lanes), 2, b.load(x, (i, 0), lanes))
        b.store(value, t, 0)
        total = b.reduce("add", b.load(t, 0, lanes))
        b.loop(0, 2, [], lambda j: b.prefetch(x, (i + j, 0)))
        b.store(b.mul(total, b.load(t, 0, lanes)), y, (i, 0))
    return emit_llvm(expand(b.finish()))


X86 = "x86_64-unknown-linux-gnu"
REGISTERS = {
    "skylake-avx512": (16, r"%zmm\d"),
    "znver4": (16, r"%zmm\d"),
    "haswell": (8, r"%ymm\d"),
    "x86-64": (4, r"%xmm\d"),
}


@pytest.mark.parametrize("name", REGISTERS)
def test_vectors_use_the_registers_of_the_target(name):
    lanes, register = REGISTERS[name]
    assembly = compile_assembly(triad(lanes), NativeCpu(X86, name))
    assert re.search(register, assembly)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_haswell_gets_no_avx512(lanes):
    """Even of vectors that are too wide for it."""
    assembly = compile_assembly(triad(lanes), NativeCpu(X86, "haswell"))
    assert not re.search(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|[23]\d)", assembly)
    assert "vfmadd" in assembly


TRIPLES = {
    "aarch64-unknown-linux-gnu": ("generic", "", r"fmla\s+v\d+\.4s"),
    "riscv64-unknown-linux-gnu": ("generic-rv64", "+m,+a,+f,+d,+c,+v", r"vfmacc|vfmadd"),
    "armv7-unknown-linux-gnueabihf": ("cortex-a9", "+neon", r"\bq\d+"),
}


@pytest.mark.parametrize("triple", TRIPLES)
def test_other_architectures(triple):
    name, features, pattern = TRIPLES[triple]
    text = triad(4)
    cpu = NativeCpu(triple, name, features)
    assert compile_object(text, cpu)[:4] == b"\x7fELF"
    if not triple.startswith("armv7"):  # NEON's multiply-add there is not fused
        assert re.search(pattern, compile_assembly(text, cpu))


def test_without_fma_it_rounds_twice():
    b = Builder("twice")
    x = b.argument("x", "float32", (4,))
    y = b.argument("y", "float32", (4,), is_written=True)
    value = b.load(x, 0, 4)
    b.store(b.fma(value, value, value), y, 0)
    function = b.finish()
    plain = compile_assembly(emit_llvm(function, CpuModel(has_fma=False)), NativeCpu(X86, "x86-64"))
    assert "mulps" in plain
    assert "fmaf" not in plain
    assert "fmaf" in compile_assembly(emit_llvm(function), NativeCpu(X86, "x86-64"))


def test_all_operations_are_known():
    """Every name of the IR is emitted for some dtype."""
    b = Builder("names")
    x = b.argument("x", "float32", (4,))
    n = b.argument("n", "int32", (4,))
    value, number = b.load(x, 0, 4), b.load(n, 0, 4)
    for name in UNARY:
        b.unary(name, number if name == "not" else value)
    for name in BINARY:
        item = number if name in (*BITWISE, "shl", "shr") else value
        b.binary(name, item, item)
    assert value.type == Type("float32", 4)
    compile_object(emit_llvm(b.finish()), NativeCpu(X86, "haswell"))
