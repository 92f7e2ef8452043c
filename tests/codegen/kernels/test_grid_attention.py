"""Attention by slices in shared memory: the same numbers on every device, without a race."""

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.emit.runners import run_nvptx, run_opencl, run_wgsl
from tests.codegen.kernels.test_attention import ADDED, KEPT, exact, layout, numbers, sketch
from tests.codegen.kernels.test_grid_rows import interpreted
from tests.codegen.test_grid import barriers, without
from tests.ptx import ON_EACH_ARCHITECTURE, assembled

from intarsia.codegen.expand import expand
from intarsia.codegen.grid_rules import shared_bytes
from intarsia.codegen.interpreter import interpret
from intarsia.codegen.kernels.attention import EmptyRow, MaskKind
from intarsia.codegen.kernels.grid_attention import (
    GridAttention,
    GridAttentionSchedule,
    build,
    fits,
    grid_attention,
)
from intarsia.codegen.unit import SSE, GpuModel
from intarsia.errors import InternalError
from intarsia.extents import symbol

GPU = GpuModel(SSE, shared_bytes=48 << 10)
FEW = GpuModel(SSE, lanes=8, most_items=8)
"""A GPU of few lanes, for devices whose work-items are threads of this CPU."""
TINY = GridAttentionSchedule(2, 8, 2)


def shared(spec, machine=FEW, plan=TINY):
    if plan is None:
        found = grid_attention(spec, machine)
        assert found is not None
        return found
    found = GridAttention(spec, machine, plan)
    assert fits(found)
    return found


def placed(spec, q, k, v, masks=(), lengths=None):
    """A description of dense arrays, and these in the order of the kernel's arguments."""
    arrays = [q, k, v, np.zeros((*spec.batch, spec.queries, spec.value_size), "f4"), *masks]
    shapes = [(*spec.batch, *array.shape[-2:]) for array in arrays[:4]]
    names = zip("qkvy", map(layout, arrays[:4], shapes), strict=True)
    scores = (*spec.batch, spec.queries, spec.keys)
    kinds = zip(spec.masks, masks, strict=True)
    over = [replace(mask, layout=layout(array, scores)) for mask, array in kinds]
    spec = replace(spec, masks=tuple(over), **{n: replace(at, align=64) for n, at in names})
    if lengths is not None:
        spec = replace(spec, lengths=layout(lengths, spec.batch))
        arrays.append(lengths)
    return spec, arrays


def check(run, spec, given, masks=(), lengths=None, machine=FEW, plan=TINY):
    spec, arrays = placed(spec, *given, masks, lengths)
    got = run(build(shared(spec, machine, plan)), arrays, rtol=1e-4)[3]
    want = exact(spec, *given, masks, lengths)
    scale = float(np.abs(np.nan_to_num(want)).max(initial=1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * scale)


@pytest.mark.parametrize(
    ("queries", "keys", "size", "value_size"),
    [(16, 16, 8, 8), (5, 21, 12, 36), (3, 9, 7, 5), (4, 40, 64, 64)],
)
def test_shapes(queries, keys, size, value_size):
    spec = sketch((2,), queries, keys, size, value_size)
    check(interpreted(FEW), spec, numbers(spec))


def test_a_block_of_many_queries():
    """As it is on a GPU: 128 work-items, whole slices and a cut one."""
    spec = sketch((2,), 50, 70, 64, 48)
    check(interpreted(GPU), spec, numbers(spec), machine=GPU, plan=None)


@pytest.mark.parametrize("kind", [ADDED, KEPT, replace(KEPT, kind=MaskKind.DROPPED, fill=-1e4)])
def test_masks(kind):
    spec = sketch((2, 3), 6, 20, 8, masks=(kind,))
    for shape in ((2, 1, 1, 20), (2, 3, 6, 20), (1, 1, 6, 1)):
        mask = np.random.default_rng(1).standard_normal(shape).astype("f4")
        mask = mask if kind is ADDED else mask > 0
        check(interpreted(FEW), spec, numbers(spec), (mask,))


@pytest.mark.parametrize(
    "options",
    [
        {"last": 0},
        {"last": 3, "first": -2},
        {"cap": 5.0},
        {"empty": EmptyRow.ZERO, "last": -4},
        {"empty": EmptyRow.CLEAN, "first": 12},
    ],
    ids=str,
)
def test_what_queries_see(options):
    spec = sketch((2,), 9, 19, 8, **options)
    check(interpreted(FEW), spec, numbers(spec))
    check(interpreted(FEW), spec, numbers(spec), lengths=np.array([19, 11], "i4"))


def test_scores_that_are_not_finite():
    spec = sketch((1,), 4, 16, 8, empty=EmptyRow.NAN)
    q, k, v = numbers(spec)
    q[0, 1, 2], k[0, 3, 1] = np.nan, np.inf
    check(interpreted(FEW), spec, (q, np.abs(k), v))


@pytest.mark.parametrize("run", [run_opencl, run_wgsl, run_nvptx], ids=["opencl", "wgsl", "nvptx"])
def test_devices_agree(run):
    """A mask and a limit; queries and keys that fill no slice."""
    spec = sketch((2,), 5, 21, 12, 36, masks=(ADDED,), last=14)
    mask = np.random.default_rng(1).standard_normal((1, 5, 21)).astype("f4")
    check(run, spec, numbers(spec), (mask,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("run", [run_opencl, run_wgsl], ids=["opencl", "wgsl"])
def test_devices_agree_on_whole_blocks(run):
    spec = sketch((2,), 50, 70, 64, 48)
    machine = replace(GPU, shared_bytes=32 << 10)
    check(run, spec, numbers(spec), machine=machine, plan=None)


def test_every_barrier_counts():
    """Values of 5 entries come one by one: with vectors, an octet's lanes read what they wrote."""
    sketched = sketch((1,), 2, 16, 4, 5)
    spec, arrays = placed(sketched, *numbers(sketched))
    function = expand(build(shared(spec)))
    assert barriers(function) == 4
    memory = [array.reshape(-1) for array in arrays]
    for number in range(4):
        wrong = replace(function, body=without(function.body, number, []))
        with pytest.raises(InternalError, match=r"a race: work-items \d+ and \d+ touch entry"):
            interpret(wrong, memory)


def test_what_is_worth_it_and_fits():
    def plan(spec, machine=GPU):
        found = grid_attention(spec, machine)
        return found and found.schedule

    large, small = GridAttentionSchedule(32, 32, 2), GridAttentionSchedule(32, 16, 2)
    assert plan(sketch((8,), 128, 128, 64)) == large
    assert plan(sketch((8,), 128, 128, 128)) == large
    web = replace(GPU, shared_bytes=32 << 10)
    assert plan(sketch((8,), 128, 128, 64), web) == large
    assert plan(sketch((8,), 128, 128, 128), web) == small
    assert plan(sketch((8,), 128, 128, 256), web) is None
    assert plan(sketch((8,), 1, 128, 64)) is None
    assert plan(sketch((8,), symbol("n"), 128, 64)) is None
    assert plan(sketch((8,), 128, 128, 64), replace(GPU, most_items=64)) is None


@ON_EACH_ARCHITECTURE
def test_ptx_stays_in_registers(arch):
    functions, memory = {}, {}
    for queries, keys, size, last in ((128, 128, 64, None), (200, 77, 128, 0)):
        sketched = sketch((4,), queries, keys, size, last=last)
        spec, _ = placed(sketched, *numbers(sketched))
        function = build(shared(spec, GPU, None))
        name = f"a{len(functions)}"
        memory[name] = shared_bytes(function, has_shuffles=True)
        functions[name] = function
    most = {"a0": 168, "a1": 216}  # of 64 K that a multiprocessor has, for 128 work-items
    for one, body in assembled(functions, arch).values():
        assert "shfl.sync.bfly.b32" in body
        assert "ld.shared.v4" in body
        assert "ld.global.nc.v4" in body
        assert body.count("bar.sync") == 4
        assert one.registers <= most[one.name], one
        assert one.spilled_bytes <= 16, one
        assert memory[one.name] - 64 <= one.shared_bytes <= memory[one.name]
