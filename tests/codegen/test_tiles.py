"""Products of tiles: the interpreter by definition, the code that is written, and the CPU's own."""

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.conftest import host_cpu

from intarsia.arrays import np_dtype
from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import DOT_GROUPS, DOT_SUMS
from intarsia.codegen.printer import fingerprint, print_function
from intarsia.codegen.unit import AVX512
from intarsia.codegen.verifier import verify
from intarsia.errors import InternalError
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_assembly, compile_object
from intarsia.native.tile_trial import in_dtype, interleaved, tile_product
from intarsia.native.tiles import usable_tiles, why_no_tiles
from intarsia.settings import Settings

KINDS = [
    *((a, b) for a in ("uint8", "int8") for b in ("uint8", "int8")),
    ("uint16", "uint16"),
]
SAPPHIRE = NativeCpu("x86_64-unknown-linux-gnu", "sapphirerapids")
OPCODES = {
    ("uint8", "uint8"): "tdpbuud",
    ("uint8", "int8"): "tdpbusd",
    ("int8", "uint8"): "tdpbsud",
    ("int8", "int8"): "tdpbssd",
    ("uint16", "uint16"): "tdpbf16ps",
}


def operands(left, right, seed=0):
    """Numbers of both operands as they count, and memory that holds them for `tile_product`."""
    rng, group = np.random.default_rng(seed), DOT_GROUPS[left]
    shapes = ((16, 48 * group), (48 * group, 16))
    if left == "uint16":
        bits = [in_dtype(rng.standard_normal(shape), left) for shape in shapes]
        exact = [(item.astype(np.uint32) << 16).view(np.float32).astype(float) for item in bits]
    else:
        bits = []
        for dtype, shape in zip((left, right), shapes, strict=True):
            ends = np.iinfo(dtype)
            bits.append(rng.integers(ends.min, ends.max + 1, shape).astype(dtype))
        exact = [item.astype(np.int64) for item in bits]
    return exact, [bits[0].reshape(-1), interleaved(bits[1], group).reshape(-1)]


def check(found, exact, left):
    found, wanted = found.reshape(16, 16), exact[0] @ exact[1]
    if left == "uint16":  # as far from the exact sum as a sum of float32 may be
        bound = 1e-6 * (np.abs(exact[0]) @ np.abs(exact[1]))
        assert (np.abs(found - wanted) <= bound).all()
    else:
        np.testing.assert_array_equal(found, wanted)


def tile_problem():
    return why_no_tiles(Settings.from_environment().cache_folder())


@pytest.mark.parametrize(("left", "right"), KINDS)
def test_the_interpreter_multiplies_tiles_by_definition(left, right):
    kernel = tile_product(left, right)
    verify(kernel)
    exact, arrays = operands(left, right)
    y = np.full(256, 7, DOT_SUMS[left])
    interpret(kernel, [*arrays, y])
    check(y, exact, left)


@pytest.mark.parametrize(("left", "right"), KINDS)
def test_the_cpus_own_products_of_tiles_agree(left, right):
    if tile_problem():
        pytest.skip(f"no tiles here: {tile_problem()}")
    kernel = expand(tile_product(left, right))
    library = LoadedCode({kernel.name: compile_object(emit_llvm(kernel), host_cpu())})
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    exact, arrays = operands(left, right, 1)
    y = np.full(256, 7, DOT_SUMS[left])
    table = np.array([item.ctypes.data for item in (*arrays, y)], np.int64)
    call(library.addresses[kernel.name])(table.ctypes.data, 0, 1)
    check(y, exact, left)
    if left == "uint16":  # the order of sums is the one that the interpreter has
        slow = np.zeros_like(y)
        interpret(kernel, [*arrays, slow])
        np.testing.assert_allclose(y, slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("left", "right"), KINDS)
def test_code_configures_tiles_multiplies_and_gives_them_up(left, right):
    assembly = compile_assembly(emit_llvm(expand(tile_product(left, right))), SAPPHIRE)
    names = re.findall(
        r"^\t(ldtilecfg|tilerelease|tilezero|tileloadd|tdp\w+|tilestored)", assembly, re.M
    )
    product = OPCODES[left, right]
    wanted = [
        "ldtilecfg",
        "tilezero",
        "tileloadd",
        "tileloadd",
        product,
        "tilestored",
        "tilerelease",
    ]
    assert names == wanted


def test_denormals_of_bfloat16_count_as_nothing():
    kernel = tile_product("uint16", "uint16")
    tiny = np.full((16, 96), 1, np.uint16)
    one = interleaved(np.full((96, 16), 0x3F80, np.uint16), 2)
    y = np.ones(256, np.float32)
    interpret(kernel, [tiny.reshape(-1), one.reshape(-1), y])
    assert not y.any()


def test_a_tile_is_part_of_what_a_kernel_says():
    kernel = tile_product("int8", "uint8")
    text = print_function(kernel)
    assert "tile rows: int8" in text
    assert "tile total <- tile_dot(rows, columns, total)" in text
    assert "tile rows <- x[0, 64*i1]<rows by 192>" in text
    assert fingerprint(kernel) != fingerprint(tile_product("uint8", "int8"))


def broken(write):
    b = Builder("broken")
    x = b.argument("x", "int8", (16, 64))
    y = b.argument("y", "int32", (16, 16), is_written=True)
    tiles = [b.tile(name, dtype) for name, dtype in (("a", "int8"), ("b", "int8"), ("c", "int32"))]
    with b.parallel(1):
        write(b, x, y, *tiles)
    return b.finish()


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (lambda b, x, y, a, w, c: b.tile_load(a, x, (0, 1), 64), "x is left"),
        (lambda b, x, y, a, w, c: b.tile_load(c, x, (0, 0), 64), "int32 goes with int8"),
        (lambda b, x, y, a, w, c: b.tile_store(a, x, (0, 0), 64), "x is only read"),
        (lambda b, x, y, a, w, c: b.tile_dot(c, a, a), "not three"),
        (lambda b, x, y, a, w, c: b.tile_dot(a, w, c), "no product of tiles of int8 and int32"),
        (lambda b, x, y, a, w, c: [b.tile(f"t{i}", "int8") for i in range(6)], "9 tiles"),
    ],
)
def test_the_verifier_refuses_what_is_wrong(write, problem):
    with pytest.raises(InternalError, match=problem):
        verify(broken(write))


def test_the_interpreter_refuses_to_leave_a_buffer():
    kernel = tile_product("int8", "int8")
    arrays = [np.zeros(n, dtype) for n, dtype in ((3072, "int8"), (3071, "int8"), (256, "int32"))]
    with pytest.raises(InternalError, match="leaves w"):
        interpret(kernel, arrays)


def test_a_target_without_tiles_has_none_to_use(tmp_path):
    assert usable_tiles({"avx512f"}, tmp_path) == ()
    assert usable_tiles({"amx-bf16"}, tmp_path) == ()  # nothing to load them with


@pytest.mark.parametrize("has_tiles", [False, True])
def test_bfloat16_is_rounded_alike_with_and_without_its_instruction(run_kernel, has_tiles):
    """To nearest with ties to even; denormals may become 0, which is what tiles take them for."""
    if has_tiles and tile_problem():
        pytest.skip(f"no tiles here: {tile_problem()}")
    bits = np.random.default_rng(5).integers(0, 1 << 32, 4096, np.uint32)
    special = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F7FFFFF, 0x7F808000]
    special += [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000, 0x3FFF8000]
    bits[: len(special)] = special
    x = bits.view(np.float32)
    b = Builder("rounding")
    source = b.argument("x", "float32", (4096,))
    target = b.argument("y", "uint16", (4096,), is_written=True)
    with b.parallel(256) as turn:
        b.store(b.unary("bfloat16", b.load(source, (turn * 16,), 16)), target, (turn * 16,))
    unit = replace(AVX512, tiles=("amx-bf16",) if has_tiles else ())
    found = run_kernel(
        b.finish(),
        [x, np.zeros(4096, np.uint16)],
        interpreted=not has_tiles,
        emit=lambda kernel: emit_llvm(kernel, unit),
    )[1]
    narrow = (found.astype(np.uint32) << 16).view(np.float32)
    is_none, is_small = np.isnan(x), np.abs(x) < np.finfo(np.float32).tiny
    assert np.isnan(narrow[is_none]).all()
    assert is_small.sum() > 10
    assert (np.abs(narrow[is_small]) < 2 * np.finfo(np.float32).tiny).all()
    rest = ~(is_none | is_small)
    with np.errstate(over="ignore"):
        want = x[rest].astype(np_dtype("bfloat16")).view(np.uint16)
    np.testing.assert_array_equal(found[rest], want)
