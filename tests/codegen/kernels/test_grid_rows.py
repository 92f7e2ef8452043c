"""Rows that a GPU's work-items share: the same numbers on every device, without a race."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.emit.runners import run_nvptx, run_opencl, run_wgsl
from tests.codegen.kernels import test_reduce, test_rows
from tests.codegen.test_grid import barriers, without
from tests.ptx import ON_EACH_ARCHITECTURE, assembled

from intarsia.codegen.body import Apply, Body, Fused, Layout
from intarsia.codegen.expand import expand
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.ir import row_major
from intarsia.codegen.kernels import grid_reduce, grid_rows
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.kernels.row_items import row_teams
from intarsia.codegen.kernels.rows import Rows
from intarsia.codegen.unit import SSE, GpuModel
from intarsia.codegen.verifier import verify
from intarsia.errors import InternalError

GPU = GpuModel(SSE, shared_bytes=48 << 10)
FEW = GpuModel(SSE, lanes=4, most_items=8, registers=32)
"""A GPU of few lanes, for devices whose work-items are threads of this CPU."""
SHAPES = [(3, 32), (5, 100), (2, 260), (3, 4, 5, 7)]
"""Short and long ones, whole and cut; of the last one three dimensions are a row."""


def shared_rows(machine, **fields):
    spec = grid_rows.grid_rows(Rows(unit=SSE, **fields), machine)
    assert spec is not None
    return spec


def shared_reduction(machine, *fields, **others):
    spec = grid_reduce.grid_reduction(Reduction(*fields, unit=SSE, **others), machine)
    assert spec is not None
    return spec


def interpreted(machine):
    """Return what runs a kernel in the interpreter, as the runners of devices do."""

    def run(function, arrays, *, rtol=0):
        del rtol
        verify(function, machine)
        ready = expand(function)
        verify(ready, machine)
        memory = [np.array(array) for array in arrays]
        interpret(ready, [array.reshape(-1) for array in memory])
        return memory

    return run


RUNNERS = {
    "interpreter": interpreted(FEW),
    "opencl": run_opencl,
    "wgsl": run_wgsl,
    "nvptx": run_nvptx,
}


def rows_of(run, kind, x, machine=FEW, extra=(), **options):
    """Run a kernel whose rows are all dimensions but the first."""
    layout = Layout("float32", row_major(x.shape), 64)
    axes = tuple(range(1, x.ndim))
    spec = shared_rows(machine, domain=x.shape, axes=axes, kind=kind, x=layout, y=layout, **options)
    before = sum(options.get(name) is not None for name in ("scale", "bias"))
    arrays = [x, *extra[:before], np.zeros_like(x), *extra[before:]]
    return spec, run(grid_rows.build(spec), arrays, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
@pytest.mark.parametrize("kind", test_rows.KINDS)
def test_softmax_and_kin(kind, shape):
    for machine in (FEW, GPU):
        x = test_rows.numbers(shape)
        x = np.round(x) if kind == "Hardmax" else x  # equal ones
        _, (_, got) = rows_of(interpreted(machine), kind, x, machine)
        test_rows.close(got, test_rows.KINDS[kind](x.astype("float64"), 1))


def test_softmax_of_hard_values():
    x = test_rows.numbers((6, 100))
    x[0, 3], x[1], x[2, 5], x[3, 7], x[4], x[5, 1:] = -np.inf, -np.inf, np.inf, np.nan, 3e38, -200
    for kind in ("Softmax", "LogSoftmax"):
        _, (_, got) = rows_of(interpreted(GPU), kind, x, GPU)
        test_rows.close(got, test_rows.KINDS[kind](x.astype("float64"), 1))


def normal(x, kind):
    axes = tuple(range(1, x.ndim))
    wide = x.astype("float64")
    mean = wide.mean(axes, keepdims=True) if kind == "Normalize" else 0 * wide[:1].mean()
    inverse = 1 / np.sqrt(((wide - mean) ** 2).mean(axes, keepdims=True) + 1e-5)
    return (wide - mean) * inverse, mean, inverse


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["Normalize", "RmsNormalize"])
def test_normalizations(kind, shape):
    x, one = test_rows.numbers(shape) + 30, Layout("float32", (1,))
    flat = Layout("float32", (0, *row_major(shape[1:])))
    rest = [test_rows.numbers(shape[1:], seed=number) for number in (1, 2)]
    options = {"scale": flat, "bias": flat, "inverse": one}
    room = [np.zeros(shape[0], "f4")]
    if kind == "Normalize":
        options["mean"], room = one, room * 2
    for machine in (FEW, GPU):
        run = interpreted(machine)
        _, got = rows_of(run, kind, x, machine, (*rest, *room), **options)
        exact, mean, inverse = normal(x, kind)
        np.testing.assert_allclose(got[3], exact * rest[0] + rest[1], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[-1], inverse.reshape(-1), rtol=1e-5)
        if kind == "Normalize":
            np.testing.assert_allclose(got[4], mean.reshape(-1), rtol=1e-6)


SKIP = Body(("float32",) * 3, (Apply("Add", (0, 1)), Apply("Add", (3, 2))), (4,))
RELU = Body(("float32",) * 2, (Apply("Mul", (0, 1)), Apply("Relu", (2,))), (3,))


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize(
    "shape", [(3, 44), pytest.param((3, 300), marks=pytest.mark.exhaustive)], ids=str
)
def test_what_is_fused_on_every_device(name, shape):
    """A sum comes before, which is wanted, and a product and a ReLU follow."""
    x, skip, bias, factor = (test_rows.numbers(shape, seed=number) for number in range(4))
    layout, wide = Layout("float32", row_major(shape)), Layout("float32", (0, 1))
    fused = {
        "prologue": Fused(SKIP, (layout, wide)),
        "epilogue": Fused(RELU, (layout,)),
        "made": layout,
    }
    for kind in ("Normalize", "Softmax"):
        extra = (factor, skip, bias[0], np.zeros_like(x))
        _, got = rows_of(RUNNERS[name], kind, x, FEW, extra, **fused)
        total = (x + skip + bias[0]).astype("float64")
        exact = normal(total, kind)[0] if kind == "Normalize" else test_rows.softmax(total, 1)
        np.testing.assert_allclose(got[1], np.maximum(exact * factor, 0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got[-1], total, rtol=1e-6, atol=1e-6)


def reduced(run, kind, x, machine=FEW, **options):
    axes, dtype = tuple(range(1, x.ndim)), x.dtype.name
    out = "int64" if kind.startswith("Arg") else dtype
    layouts = Layout(dtype, row_major(x.shape)), Layout(out, (1,))
    spec = shared_reduction(machine, x.shape, axes, kind, *layouts, **options)
    return run(grid_reduce.build(spec), [x, np.zeros(len(x), out)], rtol=1e-5)[1]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("kind", test_reduce.NUMPY)
def test_reductions(kind, dtype):
    if dtype == "int32" and kind in ("Mean", "L1", "L2", "LogSum", "LogSumExp"):
        return
    for shape in (SHAPES[0], SHAPES[1], (2, 300)):
        rng = np.random.default_rng(0)
        x = (
            rng.uniform(0.5, 2, shape).astype("f4")
            if dtype == "float32"
            else rng.integers(-9, 9, shape)
        )
        x = np.where(rng.random(shape) < 0.2, x[:, :1], x).astype(dtype)  # equal ones
        for machine in (FEW, GPU):
            got = reduced(interpreted(machine), kind, x, machine)
            exact = test_reduce.reference(kind, x, (1,))
            if dtype == "float32":
                np.testing.assert_allclose(got, exact, rtol=2e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(got, np.asarray(exact).astype(got.dtype))


@pytest.mark.parametrize("name", RUNNERS)
def test_reductions_on_every_device(name):
    x = test_rows.numbers((5, 70))
    x[1, 3], x[2, 68] = np.nan, np.nan
    np.testing.assert_array_equal(reduced(RUNNERS[name], "Max", x), np.max(x, 1))
    np.testing.assert_array_equal(reduced(RUNNERS[name], "ArgMin", x), np.argmin(x, 1))
    x = test_rows.numbers((2, 3, 36))
    np.testing.assert_allclose(reduced(RUNNERS[name], "Mean", x), x.mean((1, 2)), atol=1e-5)


def test_the_last_of_equal_ones():
    x = np.zeros((2, 50), "float32")
    x[0, [4, 41]] = 2
    np.testing.assert_array_equal(reduced(interpreted(FEW), "ArgMax", x), [4, 0])
    got = reduced(interpreted(FEW), "ArgMax", x, select_last=True)
    np.testing.assert_array_equal(got, [41, 49])


def test_every_barrier_counts():
    x = test_rows.numbers((1, 64))
    spec, _ = rows_of(interpreted(FEW), "Softmax", x)
    assert spec.teams.team == 2
    function = expand(grid_rows.build(spec))
    assert barriers(function) == 2
    for number in range(2):
        wrong = replace(function, body=without(function.body, number, []))
        with pytest.raises(InternalError, match=r"a race: work-items \d+ and \d+ touch entry"):
            interpret(wrong, [x.reshape(-1).copy(), np.zeros(64, "f4")])


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 9),
    length=st.integers(4, 90),
    kind=st.sampled_from(["Softmax", "Normalize", "LogSoftmax"]),
)
def test_any_row(count, length, kind):
    x = test_rows.numbers((count, length), seed=length)
    _, (_, got) = rows_of(interpreted(FEW), kind, x)
    wide = x.astype("float64")
    exact = normal(x, kind)[0] if kind == "Normalize" else test_rows.KINDS[kind](wide, 1)
    np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)


def test_how_rows_are_shared():
    """Short rows have a warp each, long ones several, and few rows more than many."""

    def team(rows, length):
        return row_teams((rows,), (length,), "float32", GPU)

    assert team(4096, 31) is None
    assert (team(4096, 64).team, team(4096, 64).warps, team(4096, 64).width) == (1, 4, 1)
    assert (team(4096, 1024).team, team(4096, 1024).width) == (1, 4)
    assert team(4096, 8192).team == 8
    assert team(16, 1024).team == 8
    assert team(1, 1001).width == 1
    assert row_teams((8,), (64,), "float64", GPU) is None
    assert team(1, 50000).warps == GPU.most_items // GPU.lanes


@ON_EACH_ARCHITECTURE
def test_ptx_stays_in_registers(arch):
    functions, teams = {}, {}
    for shape in ((4096, 128), (16, 1024), (4096, 8192), (64, 1001)):
        layout = Layout("float32", row_major(shape), 64)
        for kind in ("Softmax", "Normalize", "Mean"):
            name = f"r{len(functions)}"
            if kind == "Mean":
                spec = shared_reduction(GPU, shape, (1,), kind, layout, Layout("float32", (1,)))
                function = grid_reduce.build(spec)
            else:
                fields = {"domain": shape, "axes": (1,), "kind": kind, "x": layout, "y": layout}
                spec = shared_rows(GPU, **fields)
                function = grid_rows.build(spec)
            verify(function, GPU)
            teams[name] = spec.teams
            functions[name] = function
    for name, (one, body) in assembled(functions, arch).items():
        team = teams[name]
        assert "shfl.sync.bfly.b32" in body
        assert ("bar.sync" in body) == (team.team > 1)
        assert ("ld.global.nc.v4" in body) == (team.width == 4)
        assert one.registers <= 72, one
        assert one.spilled_bytes == 0, one
        assert one.shared_bytes <= 4 * 4 * team.warps, one
    assert functions["r0"].work_items == 4 * GPU.lanes
