"""Products by a warp's matrix instruction: right in the interpreter, which knows its fragments.

No GPU has run them: what PTX's assembler says of them is all that is known of the rest.
"""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from tests.codegen.kernels import test_grid_conv
from tests.codegen.kernels.conv_cases import Case, unblock
from tests.codegen.kernels.test_grid_gemm import operands, product
from tests.codegen.lower.test_interpreted import run_program
from tests.codegen.test_grid import barriers, without
from tests.ptx import count

from intarsia.codegen import ir
from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.kernels.grid_conv import build as build_conv
from intarsia.codegen.kernels.warp_gemm import (
    WarpGemm,
    WarpGemmSchedule,
    build,
    fits,
    schedule,
    warp_gemm,
)
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.printer import print_function
from intarsia.codegen.unit import AVX2, GpuModel
from intarsia.codegen.verifier import verify
from intarsia.codegen.work_items import _rounded_to_tf32
from intarsia.errors import InternalError, TargetError
from intarsia.export.region import lower_for_gpu
from intarsia.graph.load import load
from intarsia.graph.snapshot import snapshot
from intarsia.native.ptx import compile_ptx, gpu_limits
from intarsia.place.request import Request
from intarsia.target import Target

GPU = GpuModel(AVX2, shared_bytes=48 << 10, has_mma=True, has_tf32=True)
LARGE = WarpGemmSchedule(128, 128, 16, 64, 32)
MEDIUM = WarpGemmSchedule(64, 64, 16, 32, 32)
SMALL = WarpGemmSchedule(32, 32, 16, 16, 16)
LIMITS = DeviceLimits(
    work_group=64, local_bytes=48 << 10, has_fp16=True, has_mma=True, has_tf32=True
)


def warps(m, n, k, dtype="float16", **changes):
    spec = warp_gemm(product(m, n, k, machine=GPU, **changes), dtype)
    assert isinstance(spec, WarpGemm)
    return spec


def to_tf32(array):
    """Numbers with ten bits behind the leading one, halves away from zero, by arithmetic."""
    fraction, exponent = np.frexp(array.astype("float64"))
    return np.copysign(np.floor(np.abs(fraction) * 2**11 + 0.5), fraction) * 2.0 ** (exponent - 11)


def checked(function):
    verify(function, GPU)
    ready = expand(function)
    verify(ready, GPU)
    return ready


def one_product():
    """A kernel of one warp and one product, of all of two matrices."""
    b = Builder("one")
    x = b.argument("x", "float16", (16, 16))
    y = b.argument("y", "float16", (16, 8))
    z = b.argument("z", "float32", (16, 8), is_written=True)
    with b.grid(1), b.block(1), b.lane(32) as lane:
        group, pair = b.split(lane, 4)
        pair = pair * 2
        left = [b.load(x, (group + i % 2 * 8, pair + i // 2 * 8), 2) for i in range(4)]
        right = [b.load(y, (pair + i, group), 2, stride=8) for i in (0, 8)]
        quads = [b.shuffle(*left[i : i + 2], range(4)) for i in (0, 2)]
        total = b.mma(
            b.shuffle(*quads, range(8)),
            b.shuffle(*right, range(4)),
            b.constant(0, ir.Type("float32", 4)),
        )
        for i in range(2):
            b.store(b.shuffle(total, total, (2 * i, 2 * i + 1)), z, (group + i * 8, pair))
    return b.finish()


def test_fragments_are_those_of_the_instruction():
    function = checked(one_product())
    assert "mma(" in print_function(function)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 8, shape).astype("float16") for shape in ((16, 16), (16, 8)))
    z = np.zeros((16, 8), "float32")
    interpret(function, [one.reshape(-1) for one in (x, y, z)])
    np.testing.assert_array_equal(z, x.astype("float32") @ y.astype("float32"))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    "shape",
    [(70, 50, 37), pytest.param((128, 128, 128), marks=pytest.mark.exhaustive), (33, 51, 16)],
    ids=str,
)
def test_products_of_warps(shape, stages, dtype):
    scale = Fused(Body(("float32",) * 2, (Apply("Mul", (0, 1)),), (2,)))
    spec = warps(*shape, dtype, epilogue=scale.over([Layout("float32", (0, 1))]))
    spec = replace(spec, schedule=replace(MEDIUM, stages=stages))
    m, n, _ = shape
    a, b = (one.astype(dtype) for one in operands(spec.product))
    factors = np.linspace(1, 2, n, dtype="float32")
    c = np.zeros((m, n), "float32")
    interpret(checked(build(spec)), [one.reshape(-1) for one in (a, b, c, factors)])
    left, right = (a.astype("float64"), b) if dtype == "float16" else map(to_tf32, (a, b))
    exact = (left @ right) * factors
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "plan", [SMALL, pytest.param(LARGE, marks=pytest.mark.exhaustive)], ids=["small", "large"]
)
def test_schedules(plan, dtype):
    assert fits(plan, GPU, dtype)
    spec = replace(warps(130, 40, 20, dtype), schedule=plan)
    a, b = (one.astype(dtype) for one in operands(spec.product))
    c = np.zeros((130, 40), "float32")
    function = build(spec)
    assert function.work_items == 32 * plan.warps
    interpret(checked(function), [one.reshape(-1) for one in (a, b, c)])
    left, right = (a.astype("float64"), b) if dtype == "float16" else map(to_tf32, (a, b))
    np.testing.assert_allclose(c, left @ right, rtol=1e-5, atol=1e-4)


def test_a_schedule_is_picked_by_the_shape():
    picked = [schedule(warps(*shape)) for shape in ((4096,) * 3, (512, 512, 64), (48, 40, 64))]
    assert picked == [LARGE, MEDIUM, SMALL]
    narrow = replace(GPU, shared_bytes=16 << 10)
    assert not fits(LARGE, narrow, "float32")
    assert schedule(warp_gemm(product(4096, 4096, 64, machine=narrow), "float32")) == SMALL
    for machine in (replace(GPU, most_items=32), replace(GPU, lanes=16)):
        assert warp_gemm(product(64, 64, 64, machine=machine), "float16") is None
    assert warp_gemm(product(64, 64, 64, machine=replace(GPU, has_tf32=False)), "float32") is None


def test_what_tf32_loses():
    """Each operand 2**-11 of itself at most, so a sum twice that of what it is a sum of."""
    spec = warps(64, 48, 96, "float32")
    a, b = operands(spec.product)
    c = np.zeros((64, 48), "float32")
    interpret(checked(build(spec)), [one.reshape(-1) for one in (a, b, c)])
    exact = a.astype("float64") @ b
    whole = np.abs(a).astype("float64") @ np.abs(b)
    error = np.abs(c - exact)
    assert (error <= 2.01 * 2.0**-11 * whole).all()
    largest = error.max() / np.abs(exact).max()
    print(f"error of TF32: {largest:.1e} of the largest number")
    assert 1e-5 < largest < 1e-3


def test_rounding_to_tf32():
    """Halves away from zero; no number becomes NaN, and NaN and infinities stay what they are."""
    ones = np.float32([1 + 2.0**-11, 1 + 2.0**-11 - 2.0**-23, 1 + 2.0**-10, -1 - 2.0**-11])
    rounded = (1 + 2.0**-10, 1, 1 + 2.0**-10, -1 - 2.0**-10)
    odd = np.array([0x7F7FFFFF, 0x7FFFFFFF, 0x7F800000, 1], np.uint32).view("float32")
    spec = warps(16, 16, 16, "float32")
    a = np.resize(ones, (16, 16))
    c = np.zeros((16, 16), "float32")
    identity = np.eye(16, dtype="float32")
    interpret(checked(build(spec)), [one.reshape(-1) for one in (a, identity, c)])
    np.testing.assert_array_equal(c, np.resize(np.float32([*rounded]), (16, 16)))
    np.testing.assert_array_equal(c, to_tf32(a))
    np.testing.assert_array_equal(_rounded_to_tf32(odd), [np.inf, np.nan, np.inf, 0])


def test_every_barrier_counts():
    spec = warps(40, 36, 33)
    function = expand(build(spec))
    memory = [one.astype("float16").reshape(-1) for one in operands(spec.product)]
    memory.append(np.zeros(40 * 36, "float32"))
    for number in range(barriers(function)):
        wrong = replace(function, body=without(function.body, number, []))
        with pytest.raises(InternalError, match=r"a race: work-items \d+ and \d+ touch entry"):
            interpret(wrong, memory)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90", marks=pytest.mark.exhaustive)])
def test_ptx_has_the_instruction(arch, dtype):
    steps = 8 if dtype == "float32" else 16
    name = "m16n8k8.row.col.f32.tf32.tf32" if dtype == "float32" else "m16n8k16.row.col.f32.f16.f16"
    products = {(m, n, k): warps(m, n, k, dtype) for m, n, k in ((1024,) * 3, (70, 50, 37))}
    plans = [(shape, plan) for shape in products for plan in (LARGE, MEDIUM, SMALL)]
    kernels = []
    for number, (shape, plan) in enumerate(plans):
        function = checked(build(replace(products[shape], schedule=plan)))
        kernels.append(emit_nvptx(replace(function, name=f"w{number}"), LIMITS))
    all_counted, ptx = count(kernels, arch)
    bodies = {body.split("(")[0]: body for body in ptx.split(".visible .entry ")[1:]}
    for counted in all_counted:
        _, plan = plans[int(counted.name[1:])]
        tiles = plan.warp_rows // 16 * plan.warp_columns // 8
        products_of_step = bodies[counted.name].count(f"mma.sync.aligned.{name}")
        assert products_of_step == 2 * tiles * plan.depth // steps, counted  # and the last step
        assert counted.registers * plan.warps * 32 <= 64 << 10, counted
        assert counted.spilled_bytes == 0, counted
        assert abs(counted.shared_bytes - plan.shared_bytes(dtype)) <= 64, counted


@pytest.mark.parametrize("plan", [SMALL, MEDIUM], ids=["small", "medium"])
@pytest.mark.parametrize(
    "case",
    [
        Case((4, 16), (9, 9), (3, 2), strides=(2, 1), dilations=(1, 2), residual=True),
        Case((3, 16), (8, 7), (3, 3), pads=(1, 0, 1, 2)),
        Case((8, 64), (5, 5), groups=2, pads=(1, 1, 1, 1), bias=False),
    ],
    ids=["residual", "plain images", "groups"],
)
def test_convolutions_of_warps(case, plan):
    spec, arrays, want = test_grid_conv.arranged(case, GPU, plan)
    function = checked(build_conv(spec))
    assert function.name == "warp_conv"
    interpret(function, [array.reshape(-1) for array in arrays])
    got = unblock(arrays[2 + case.bias], case.channels[1])
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())
    assert np.abs(got - want).max() > 1e-5


def in_warp(write, lanes=32):
    b = Builder("wrong")
    x = b.argument("x", "float32", (64,))
    with b.grid(1), b.block(1), b.lane(lanes) as lane:
        parts = [b.constant(1, ir.Type(*one)) for one in (("float16", 8), ("float16", 4))]
        write(b, lane, [*parts, b.constant(1, ir.Type("float32", 4))], x)
    return b.finish()


def test_all_lanes_of_a_warp_take_part():
    def in_loop(b, lane, parts, x):
        with b.serial(0, lane):
            b.mma(*parts)

    def plain(b, lane, parts, x):
        b.mma(*parts)

    problem = "a product of a warp is not all of its 32 lanes'"
    for function in (in_warp(in_loop), in_warp(plain, lanes=16)):
        with pytest.raises(InternalError, match=problem):
            verify(function)
    with pytest.raises(InternalError, match="a product of a warp that not all its lanes come to"):
        interpret(in_warp(in_loop), [np.zeros(64, "float32")])
    verify(in_warp(plain), GPU)
    with pytest.raises(InternalError, match="and the machine has none"):
        verify(in_warp(plain), replace(GPU, has_mma=False))
    swapped = in_warp(lambda b, lane, parts, x: b.mma(parts[1], parts[0], parts[2]))
    with pytest.raises(InternalError, match="Mma: float16x4 meets float16x8"):
        verify(swapped)
    b = Builder("parallel")
    with b.parallel(1):
        b.barrier()
    with pytest.raises(InternalError, match="no grid loop"):
        verify(b.finish())


@pytest.mark.exhaustive
def test_a_model_of_float16_reaches_it(parse_model):
    """Only where the architecture has the instruction; what is computed is kept as float16."""
    model = parse_model("""
        g (float16[48,40] x, float16[40,32] u, float16[32,64] w)
            => (float16[48,64] y)
        { a = MatMul(x, u) r = Relu(a) y = Gemm(r, w) }""")

    def names(arch):
        program, *_ = lower_for_gpu(Request(model=model, target=f"cuda -arch={arch}"))
        kernels = [program.kernels[call.kernel] for call in program.calls]
        return program, [kernel.name.rsplit("_", 1)[0] for kernel in kernels]

    assert names("sm_75")[1].count("warp_gemm") == 0
    program, found = names("sm_80")
    assert found == ["warp_gemm", "elementwise", "warp_gemm"]
    assert not gpu_limits(Target("cuda -arch=sm_75")).has_mma
    kernels = [emit_nvptx(kernel, LIMITS) for kernel in program.kernels]
    assert "mma.sync" in compile_ptx(kernels, "sm_80")


def test_a_target_asks_for_tf32(parse_model):
    model = parse_model("""
        g (float[48,40] x, float[40,32] u) => (float[48,32] y) { y = MatMul(x, u) }""")

    def names(target):
        program, *_ = lower_for_gpu(Request(model=model, target=target))
        return {kernel.name.rsplit("_", 1)[0] for kernel in program.kernels}

    assert names("cuda -arch=sm_80 -precision=tf32") == {"warp_gemm"}
    assert names("nvptx -mcpu=sm_90 -precision=tf32") == {"warp_gemm"}
    assert names("cuda -arch=sm_80 -precision=f32") == {"grid_gemm"}
    with pytest.raises(TargetError, match="know an architecture") as caught:
        names("cuda -arch=sm_75 -precision=tf32")
    assert "-arch=sm_80 or later" in caught.value.hint


def test_a_model_of_float16_has_its_numbers():
    """Weights, a bias and an activation between two products, every kernel in the interpreter."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        g (float16[2,24,40] x, float16[2,48,20] u) => (float16[2,24,20] y)
        { a = MatMul(x, w) b = Add(a, c) r = Relu(b) y = MatMul(r, u) }""")
    rng = np.random.default_rng(0)
    x, u, w, c = (
        rng.uniform(-1, 1, shape).astype("float16")
        for shape in ((2, 24, 40), (2, 48, 20), (40, 48), (48,))
    )
    for name, weight in (("w", w), ("c", c)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    region = snapshot(load(model)).whole
    program = lower_region(region, GPU)
    names = [program.kernels[call.kernel].name.rsplit("_", 1)[0] for call in program.calls]
    assert names.count("warp_gemm") == 2

    def interpreted(call, arrays):
        interpret(program.kernels[call.kernel], arrays)

    found = run_program(program, region, {"x": x, "u": u}, interpreted)["y"]
    hidden = np.maximum(x.astype("float64") @ w + c, 0)
    exact = hidden @ u
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, exact, rtol=4e-3, atol=4e-3 * np.abs(exact).max())
