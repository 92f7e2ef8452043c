"""Dot products of narrow numbers: the interpreter by definition, and each way to compute them.

Instructions that this CPU lacks are put into words for it, as the manuals define them, so that what
is written around them runs everywhere; those that it has run as they are.
"""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.c_compiler import CACHE
from tests.codegen.conftest import host_cpu
from tests.codegen.emit.runners import run_c, run_opencl, run_wgsl
from tests.emulated import run_emulated

from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import DOT_GROUPS, DOT_SUMS, Constant, Dot, Function, IrValue, Type
from intarsia.codegen.printer import print_function
from intarsia.codegen.unit import DOT_FEATURES, CpuModel
from intarsia.codegen.verifier import verify
from intarsia.errors import InternalError
from intarsia.native.linking import BinaryKind, Linker
from intarsia.native.machine import NativeCpu, compile_assembly, compile_object

TURNS = 6
PAIRS = [
    *((a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")),
    ("int16", "int16"),
    ("uint16", "uint16"),
]
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"


def dots(left, right, lanes, total="", *, fits_pairs=False):
    """A kernel of dot products of two matrices' rows, each by one lane's neighbours of the other.

    Bytes of the left operand are the same for all lanes, as in a matrix product.
    """
    b = Builder("dots")
    group, total = 2 if total else DOT_GROUPS[left], total or DOT_SUMS[left]
    x = b.argument("x", left, (TURNS, group))
    w = b.argument("w", right, (TURNS, group * lanes))
    s = b.argument("s", total, (TURNS, lanes))
    y = b.argument("y", total, (TURNS, lanes), is_written=True)
    with b.parallel(TURNS) as turn:
        few = b.load(x, (turn, 0), group)
        wide = b.shuffle(few, few, list(range(group)) * lanes)
        addend = b.load(s, (turn, 0), lanes)
        column = b.load(w, (turn, 0), group * lanes)
        once = b.dot(wide, column, addend, fits_pairs=fits_pairs)
        if left == right:  # and the other way round
            once = b.dot(b.load(w, (0, 0), group * lanes), wide, once)
        b.store(once, y, (turn, 0))
    return b.finish()


def blocked_dots(left, right, lanes):
    """A kernel of blocked dot products, the sums of one the addends of the next."""
    b = Builder("blocked_dots")
    group, total = DOT_GROUPS[left], DOT_SUMS[left]
    x = b.argument("x", left, (TURNS, group * lanes))
    w = b.argument("w", right, (TURNS, group * lanes))
    s = b.argument("s", total, (TURNS, lanes))
    y = b.argument("y", total, (TURNS, lanes), is_written=True)
    with b.parallel(TURNS) as turn:
        rows, first = (b.load(x, (at, 0), group * lanes) for at in (turn, 0))
        columns, addend = b.load(w, (turn, 0), group * lanes), b.load(s, (turn, 0), lanes)
        once = b.dot(rows, columns, addend, is_blocked=True)
        b.store(b.dot(first, columns, once, is_blocked=True), y, (turn, 0))
    return b.finish()


def blocked_memory(left, right, lanes):
    """As `memory`, of as many numbers in each operand."""
    group, total = DOT_GROUPS[left], DOT_SUMS[left]
    shapes = ((TURNS, group * lanes),) * 2 + ((TURNS, lanes),) * 2
    dtypes = (left, right, total, total)
    return [numbers(*pair, seed) for seed, pair in enumerate(zip(dtypes, shapes, strict=True))]


def numbers(dtype, shape, seed):
    """Numbers of all sizes, the extremes in the first two rows."""
    rng = np.random.default_rng(seed)
    if dtype == "uint16":  # bfloat16
        bits = (rng.standard_normal(shape) * 8).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16)
    if dtype == "float32":
        return rng.standard_normal(shape).astype(np.float32)
    info = np.iinfo(dtype)
    out = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    out[0], out[1] = info.min, info.max
    out[2, ::2], out[2, 1::2] = info.min, info.max
    return out


def memory(left, right, lanes):
    group, total = DOT_GROUPS[left], DOT_SUMS[left]
    shapes = ((TURNS, group), (TURNS, group * lanes), (TURNS, lanes), (TURNS, lanes))
    dtypes = (left, right, total, total)
    return [numbers(*pair, seed) for seed, pair in enumerate(zip(dtypes, shapes, strict=True))]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_the_interpreter_sums_by_definition(left, right):
    lanes = 3
    x, w, s, y = memory(left, right, lanes)
    function = dots(left, right, lanes)
    assert "dot(" in print_function(function)
    interpret(function, [x.reshape(-1), w.reshape(-1), s.reshape(-1), (out := y.reshape(-1))])

    def wide(item):
        if left == "uint16":
            return (item.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return item.astype(object)  # integers without a bound

    groups = wide(w).reshape(TURNS, lanes, -1)
    exact = s.astype(np.float64 if left == "uint16" else object)
    exact = exact + (groups * wide(x)[:, None]).sum(-1)
    if left == right:
        exact = exact + (groups[:1] * wide(x)[:, None]).sum(-1)
    if left == "uint16":
        np.testing.assert_allclose(out.reshape(exact.shape), exact, rtol=1e-5, atol=1e-4)
    else:
        wrapped = np.array([(int(n) + 2**31) % 2**32 - 2**31 for n in exact.reshape(-1)])
        np.testing.assert_array_equal(out, wrapped)


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_the_interpreter_sums_blocks_by_definition(left, right):
    lanes = 8
    x, w, s, y = blocked_memory(left, right, lanes)
    function = blocked_dots(left, right, lanes)
    assert "blocked_dot(" in print_function(function)
    interpret(function, [x.reshape(-1), w.reshape(-1), s.reshape(-1), (out := y.reshape(-1))])

    def wide(item):  # turns, blocks, rows or columns, neighbours
        if left == "uint16":
            item = (item.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        else:
            item = item.astype(object)
        return item.reshape(TURNS, lanes // 4, 2, -1)

    exact = s.astype(np.float64 if left == "uint16" else object).reshape(TURNS, -1, 2, 2)
    for rows in (wide(x), wide(x)[:1]):
        exact = exact + (rows[:, :, :, None] * wide(w)[:, :, None]).sum(-1)
    if left == "uint16":
        np.testing.assert_allclose(out, exact.reshape(-1), rtol=1e-5, atol=2e-4)
    else:
        wrapped = np.array([(int(n) + 2**31) % 2**32 - 2**31 for n in exact.reshape(-1)])
        np.testing.assert_array_equal(out, wrapped)


def test_a_blocked_product_has_the_bits_of_two_that_are_not():
    """Of bfloat16, in the interpreter: halves of the neighbours one after the other."""
    x, w, s, y = blocked_memory("uint16", "uint16", 4)
    interpret(blocked_dots("uint16", "uint16", 4), [a.reshape(-1) for a in (x, w, s, y)])
    b = Builder("halves")
    arguments = [b.argument(name, "uint16", (TURNS, 8)) for name in "xw"]
    sums = [b.argument(n, "float32", (TURNS, 4), is_written=n == "y") for n in "sy"]
    with b.parallel(TURNS) as turn:
        total = b.load(sums[0], (turn, 0), 4)
        for row in (turn, 0):
            for half in (0, 2):
                parts = []
                for argument, places in zip(arguments, ((0, 0, 4, 4), (0, 4, 0, 4)), strict=True):
                    item = b.load(argument, (row if argument is arguments[0] else turn, 0), 8)
                    picks = [place + half + i for place in places for i in range(2)]
                    parts.append(b.shuffle(item, item, picks))
                total = b.dot(*parts, total)
        b.store(total, sums[1], (turn, 0))
    out = np.zeros_like(y)
    interpret(b.finish(), [a.reshape(-1) for a in (x, w, s, out)])
    np.testing.assert_array_equal(out, y)


@pytest.mark.parametrize("run", [run_c, run_opencl, run_wgsl])
@pytest.mark.parametrize(("left", "right"), [PAIRS[1], PAIRS[3], PAIRS[4], PAIRS[5]])
def test_blocks_in_c_and_opencl(run, left, right):
    run(blocked_dots(left, right, 8), blocked_memory(left, right, 8))


@pytest.mark.parametrize("features", ["plain", "here"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_machine_code_of_blocks(run_kernel, left, right, lanes, features):
    dots = HERE if features == "here" else ()
    emit = partial(emit_llvm, unit=CpuModel(dots=dots))
    function = blocked_dots(left, right, lanes)
    run_kernel(function, blocked_memory(left, right, lanes), emit=emit, rtol=1e-6)


@pytest.mark.parametrize("run", [run_c, run_opencl, run_wgsl])
@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize(("left", "right"), [PAIRS[1], PAIRS[2], *PAIRS[4:]])
def test_c_and_opencl(run, left, right, lanes):
    run(dots(left, right, lanes), memory(left, right, lanes))


def few_bits(left, lanes):
    """Codes of 4 bits and bytes for pairs that are summed in int16, and what comes of them."""
    rng = np.random.default_rng(2)
    codes, numbers = (TURNS, 2), (TURNS, 2 * lanes)
    codes, numbers = (codes, numbers) if left == "uint8" else (numbers, codes)
    x = rng.choice([0, 7, 15], codes).astype(np.uint8)
    w = rng.choice([-128, -3, 127], numbers).astype(np.int8)
    s = rng.integers(-28000, 28000, (TURNS, lanes), np.int16)
    pair = (x, w) if left == "uint8" else (w, x)
    few, wide = (item.astype(np.int64).reshape(TURNS, -1, 2) for item in pair)
    return [*pair, s, s.copy()], (s + (few * wide).sum(-1)).astype(np.int16)


@pytest.mark.parametrize("left", ["uint8", "int8"])
def test_pairs_of_bytes_in_16_bits(run_kernel, left):
    right, lanes = {"uint8": "int8", "int8": "uint8"}[left], 16
    function = dots(left, right, lanes, "int16")
    arrays, want = few_bits(left, lanes)
    flat = [array.reshape(-1) for array in arrays]
    interpret(function, flat)
    np.testing.assert_array_equal(flat[-1].reshape(want.shape), want)
    for unit in (CpuModel(), CpuModel(dots=HERE)):
        run_kernel(function, few_bits(left, lanes)[0], emit=partial(emit_llvm, unit=unit))
    run_c(function, few_bits(left, lanes)[0])
    run_opencl(function, few_bits(left, lanes)[0])


def test_the_interpreter_tells_of_pairs_that_do_not_fit():
    function = dots("uint8", "int8", 1, "int16")
    arrays = [np.full(TURNS * 2, 255, np.uint8), np.full(TURNS * 2, 127, np.int8)]
    with pytest.raises(AssertionError, match="fit"):
        interpret(function, [*arrays, *np.zeros((2, TURNS), np.int16)])


HERE = tuple(name for name in DOT_FEATURES if f"+{name}" in host_cpu().features.split(","))
"""What this CPU has."""


@pytest.mark.parametrize("features", [(), HERE], ids=["plain", "here"])
@pytest.mark.parametrize("lanes", [1, 3, 4, 8, 16])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_machine_code(run_kernel, left, right, lanes, features):
    function = dots(left, right, lanes)
    emit = partial(emit_llvm, unit=CpuModel(dots=features))
    run_kernel(function, memory(left, right, lanes), emit=emit, rtol=1e-6)


VNNI = ("avx512vl", "avx512vnni")
CPUS = {
    "avx512": (16, "cascadelake", ("sse2", "avx2", "avx512bw", *VNNI)),
    "avx512vl": (8, "cascadelake", ("sse2", "avx2", "avx512bw", *VNNI)),
    "avx512bf16": (16, "cooperlake", ("sse2", "avx2", "avx512bw", *VNNI, "avx512bf16")),
    "avxvnni": (8, "haswell +avxvnni", ("sse2", "avx2", "avxvnni")),
    "avxvnniint8": (8, "haswell +avxvnni,+avxvnniint8", ("avx2", "avxvnni", "avxvnniint8")),
    "avx2": (8, "haswell", ("sse2", "avx2")),
    "neon": (4, "generic +dotprod,+i8mm,+bf16", ("dotprod", "i8mm", "bf16")),
    "dotprod": (4, "generic +dotprod", ("dotprod",)),
}
INSTRUCTIONS = {
    ("avx512", "uint8", "int8"): r"vpdpbusd\s+.*%zmm",
    ("avx512", "int8", "uint8"): r"vpdpbusd\s+.*%zmm",
    ("avx512", "int8", "int8"): r"vpdpbusd\s+.*%zmm",
    ("avx512", "uint8", "uint8"): r"vpdpbusd\s+.*%zmm",
    ("avx512", "int16", "int16"): r"vpdpwssd\s+.*%zmm",
    ("avx512vl", "uint8", "int8"): r"(?<!{vex} )vpdpbusd\s+.*%ymm",
    ("avx512bf16", "uint16", "uint16"): r"vdpbf16ps\s+.*%zmm",
    ("avxvnni", "uint8", "int8"): r"{vex}\s+vpdpbusd\s+.*%ymm",
    ("avxvnniint8", "int8", "int8"): r"vpdpbssd\s+.*%ymm",
    ("avx2", "int16", "int16"): r"vpmaddwd\s+.*%ymm",
    ("avx2", "uint8", "int8"): r"vpmaddwd\s+.*%ymm",
    ("neon", "int8", "int8"): r"sdot\s+v\d+\.4s",
    ("neon", "uint8", "uint8"): r"udot\s+v\d+\.4s",
    ("neon", "uint8", "int8"): r"usdot\s+v\d+\.4s",
    ("dotprod", "uint8", "int8"): r"sdot\s+v\d+\.4s",
    ("dotprod", "int8", "uint8"): r"sdot\s+v\d+\.4s",
    ("neon", "uint16", "uint16"): r"bfdot\s+v\d+\.4s",
}


@pytest.mark.parametrize(("cpu", "left", "right"), INSTRUCTIONS)
def test_instructions_of_other_cpus(cpu, left, right):
    lanes, name, features = CPUS[cpu]
    name, _, flags = name.partition(" ")
    text = emit_llvm(dots(left, right, lanes), CpuModel(dots=features))
    native = NativeCpu(ARM if cpu in ("neon", "dotprod") else X86, name, flags)
    assembly = compile_assembly(text, native)
    assert re.search(INSTRUCTIONS[cpu, left, right], assembly), assembly
    assert "pmaddubsw" not in assembly


BLOCKED = {
    ("int8", "int8"): "smmla",
    ("uint8", "uint8"): "ummla",
    ("uint8", "int8"): "usmmla",
    ("uint16", "uint16"): "bfmmla",
}


@pytest.mark.parametrize(("left", "right"), [*BLOCKED, ("int8", "uint8"), ("int16", "int16")])
def test_instructions_for_blocks(left, right):
    _, _, features = CPUS["neon"]
    native = NativeCpu(ARM, "generic", "+dotprod,+i8mm,+bf16")
    function = blocked_dots(left, right, 4)
    assembly = compile_assembly(emit_llvm(function, CpuModel(dots=features)), native)
    found = set(re.findall(r"\b(?:us|s|u|bf)mmla\b", assembly))
    assert found == ({BLOCKED[left, right]} if (left, right) in BLOCKED else set())
    kept = tuple(name for name in features if name not in ("i8mm", "bf16"))
    assert "mmla" not in emit_llvm(function, CpuModel(dots=kept))
    assert "mmla" not in emit_llvm(blocked_dots(left, right, 8), CpuModel(dots=features))


@pytest.mark.parametrize(
    ("cpu", "make", "left", "right"),
    [
        *(
            ("neon", make, *pair)
            for make in ((dots, memory), (blocked_dots, blocked_memory))
            for pair in PAIRS
        ),
        ("dotprod", (dots, memory), "uint8", "int8"),
        ("dotprod", (dots, memory), "int8", "uint8"),
    ],
)
def test_neon_under_an_emulator(tmp_path, monkeypatch, cpu, make, left, right):
    """NEON's instructions as an emulator of Arm's CPUs has them."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(CACHE))
    lanes, name, features = CPUS[cpu]
    name, _, flags = name.partition(" ")
    function, native = make[0](left, right, lanes), NativeCpu(ARM, name, flags)
    arrays = make[1](left, right, lanes)
    (tmp_path / "k.o").write_bytes(
        compile_object(emit_llvm(function, CpuModel(dots=features)), native)
    )
    header, source = tmp_path / "case.h", tmp_path / "run.c"
    header.write_text(
        "#include <stddef.h>\n#include <stdint.h>\n"
        "int case_run(const void *x, const void *w, const void *s, void *y);\n"
    )
    source.write_text(
        f'#include "case.h"\nvoid {function.name}(const uint64_t *, int64_t, int64_t);\n'
        "int case_run(const void *x, const void *w, const void *s, void *y)\n{\n"
        "    const uint64_t given[] = {(uint64_t)x, (uint64_t)w, (uint64_t)s, (uint64_t)y};\n"
        f"    {function.name}(given, 0, {TURNS});\n    return 0;\n}}\n"
    )
    whole = tmp_path / "case.o"
    Linker.find(native, tmp_path).link(BinaryKind.OBJECT, whole, ["run.c", "k.o"], folder=tmp_path)
    target = f"llvm -mtriple={ARM} -mcpu={name} -mattr={flags}"
    (got,) = run_emulated(target, "max", (whole, header), arrays[:3], arrays[3:], tmp_path)
    want = np.zeros_like(arrays[3])
    interpret(function, [*(array.reshape(-1) for array in arrays[:3]), want.reshape(-1)])
    if left == "uint16":  # two products at a time; denormals may be 0
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("left", "right"), [PAIRS[1], PAIRS[2]])
@pytest.mark.parametrize("lanes", [8, 16])
def test_pairs_of_bytes_that_fit_int16(run_kernel, left, right, lanes):
    """At the limits of 255 times two weights, by the instruction that saturates beyond them."""
    function = dots(left, right, lanes, fits_pairs=True)
    assert "dot_fitting_pairs(" in print_function(function)
    arrays = memory(left, right, lanes)
    weights = np.array([64, 64, -64, -64, 127, 1, -128, 127], np.int8)
    for array in arrays[:2]:
        array[...] = np.resize(weights, array.shape) if array.dtype == "int8" else 255
    run_kernel(function, arrays, emit=partial(emit_llvm, unit=CpuModel(dots=HERE)))
    for name, bits, wanted in (("avx2", 256, lanes == 8), ("avx512bw", 512, lanes == 16)):
        text = emit_llvm(function, CpuModel(dots=("sse2", "avx2", name)))
        is_used = "pmadd.ub.sw" in text or "pmaddubs.w.512" in text
        assert is_used == (wanted or lanes == 8), bits
    assert "pmadd" not in emit_llvm(function, CpuModel(dots=CPUS["avx512vl"][2]))


@pytest.mark.parametrize(("cpu", "register"), [("avx512", "zmm"), ("avx2", "ymm")])
def test_instructions_for_pairs_of_bytes(cpu, register):
    lanes, name, features = CPUS[cpu]
    text = emit_llvm(dots("uint8", "int8", 2 * lanes, "int16"), CpuModel(dots=features))
    assert re.search(rf"vpmaddubsw.*%{register}", compile_assembly(text, NativeCpu(X86, name)))
    assert "pmadd.ub" not in emit_llvm(dots("uint8", "int8", 2 * lanes, "int16"))


def test_a_cpu_gets_no_instruction_that_it_lacks():
    text = emit_llvm(dots("uint8", "int8", 8), CpuModel(dots=CPUS["avx2"][2]))
    assert "vpdp" not in text
    assert "vpdp" not in compile_assembly(text, NativeCpu(X86, "haswell"))
    assert "pmadd" not in emit_llvm(dots("uint8", "int8", 8))


def in_words(declared):
    """A definition of one of the instructions, as the manuals have it."""
    name, lanes = re.search(r"@(llvm\.\S+?)\(", declared)[1], int(re.search(r"<(\d+)", declared)[1])
    is_half, is_pair = "bf" in name, "wssd" in name
    group, bits = (2, 16) if is_half or is_pair else (4, 8)
    left, right = {"bus": ("z", "s"), "bss": ("s", "s"), "wss": ("s", "s")}.get(
        re.sub(r".*vpdp(\w\w\w)d.*", r"\1", name), ("s", "s")
    )
    if "neon" in name:
        left, right = {"udot": "zz", "usdot": "zs"}.get(name.split(".")[3], "ss")
    total = "float" if is_half else "i32"
    given = [part.strip() for part in declared[declared.index("(") + 1 : -1].split(", ")]
    lines, count = [], 0
    element = "bfloat" if is_half else f"i{bits}"
    parts = f"<{group * lanes} x {element}>"
    for operand, type_ in (("b", given[1]), ("c", given[2])):
        lines.append(f"%{operand}p = bitcast {type_} %{operand} to {parts}")
    current = "%a"
    for number in reversed(range(group)):
        picks = ", ".join(f"i32 {group * lane + number}" for lane in range(lanes))
        wide = []
        for operand, sign in (("b", left), ("c", right)):
            count += 2
            lines.append(
                f"%v{count} = shufflevector {parts} %{operand}p, {parts} poison, "
                f"<{lanes} x i32> <{picks}>"
            )
            cast = "fpext" if is_half else f"{sign}ext"
            lines.append(
                f"%v{count + 1} = {cast} <{lanes} x {element}> %v{count} to <{lanes} x {total}>"
            )
            wide.append(f"%v{count + 1}")
        count += 2
        f = "f" if is_half else ""
        lines.append(f"%v{count} = {f}mul <{lanes} x {total}> {', '.join(wide)}")
        lines.append(f"%v{count + 1} = {f}add <{lanes} x {total}> {current}, %v{count}")
        current = f"%v{count + 1}"
    vector = f"<{lanes} x {total}>"
    arguments = ", ".join(f"{type_} %{n}" for type_, n in zip(given, "abc", strict=True))
    body = "\n  ".join(lines)
    return f"define {vector} @{name[5:]}({arguments}) {{\n  {body}\n  ret {vector} {current}\n}}"


def emit_in_words(features, function):
    text = emit_llvm(function, CpuModel(dots=features))
    is_worded = re.compile(r"declare .*@llvm\.\S*(dp[bw]|dot)").match
    defined = [in_words(line) for line in text.splitlines() if is_worded(line)]
    assert defined
    for name in re.findall(r"@(llvm\.\S*(?:dp[bw]|dot)\S*?)\(", text):
        text = text.replace(f"@{name}(", f"@{name[5:]}(")
    kept = [line for line in text.splitlines() if not re.match(r"declare .*(dp[bw]|dot)", line)]
    return "\n".join((*kept, *defined))


WORDED = [
    *((cpu, *pair) for cpu in ("avx512", "avxvnni", "avxvnniint8", "neon") for pair in PAIRS[:4]),
    *((cpu, "int16", "int16") for cpu in ("avx512", "avx512vl", "avxvnni")),
    *((cpu, "uint16", "uint16") for cpu in ("avx512bf16", "neon")),
]


@pytest.mark.parametrize(("cpu", "left", "right"), WORDED)
def test_what_is_around_the_instructions_of_other_cpus(run_kernel, cpu, left, right):
    lanes, _, features = CPUS[cpu]
    function = dots(left, right, lanes)
    run_kernel(
        function, memory(left, right, lanes), emit=partial(emit_in_words, features), rtol=1e-6
    )


@pytest.mark.parametrize(("total", "lanes"), [("int32", 6), ("int16", 8)])
def test_the_verifier_refuses_blocks_of_others(total, lanes):
    count = lanes * (4 if total == "int32" else 2)
    x, w, s = (IrValue(Type(t, n)) for t, n in (("uint8", count), ("int8", count), (total, lanes)))
    body = (*(Constant(value, 1) for value in (x, w, s)), Dot(IrValue(s.type), x, w, s))
    verify(Function("right", (), (), (), body))
    body = (*body[:-1], replace(body[-1], is_blocked=True))
    with pytest.raises(InternalError, match="blocks of sums"):
        verify(Function("wrong", (), (), (), body))


WRONG = {
    "other elements": ("int8", "int16", "int32", 16),
    "of floats": ("float32", "float32", "float32", 4),
    "unsigned words": ("uint8", "uint8", "uint32", 16),
    "too few": ("uint8", "uint8", "int32", 8),
    "bytes of bfloat16": ("uint16", "uint16", "int32", 8),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_verifier_refuses(case):
    left, right, total, count = WRONG[case]
    x, w, s = (IrValue(Type(t, n)) for t, n in ((left, count), (right, count), (total, 4)))
    given = [Constant(value, 1) for value in (x, w, s)]
    body = (*given, Dot(IrValue(s.type), x, w, s))
    with pytest.raises(InternalError, match="Dot"):
        verify(Function("wrong", (), (), (), body))
