# SPDX-License-Identifier: Apache-2.0
"""Programs in C: arenas that are packed tightly, parts that are joined, calls into a library."""

import ctypes

import numpy as np
import onnxruntime
from tests.c_compiler import STRICT, compile_c
from tests.codegen.lower.small_models import small_model

from intarsia.codegen.emit.c_function import c_function, dense
from intarsia.codegen.emit.c_join import ProgramPart, join
from intarsia.codegen.emit.c_memory import stack_bytes, with_tight_arena
from intarsia.codegen.emit.c_program import ProgramLayout, Tensor, emit_c_program
from intarsia.codegen.lower.program import Argument, Call, MemoryBlock, Program
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.storage import StorageKind
from intarsia.codegen.unit import SCALAR
from intarsia.graph.arena import assign_offsets, pack_offsets
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot


def test_offsets_are_disjoint_while_blocks_live_and_never_more_than_quick_ones():
    rng = np.random.default_rng(3)
    for _ in range(40):
        first = np.sort(rng.integers(0, 12, 14))
        lives = [(int(f), int(f + rng.integers(0, 6)), int(rng.integers(1, 900))) for f in first]
        offsets, size = pack_offsets(lives, 8)
        assert all(offset % 8 == 0 for offset in offsets)
        assert max(o + n for o, (_, _, n) in zip(offsets, lives, strict=True)) <= size
        for i, (a, (first_a, last_a, n)) in enumerate(zip(offsets, lives, strict=True)):
            for b, (first_b, last_b, m) in zip(offsets[:i], lives[:i], strict=True):
                if first_a <= last_b and first_b <= last_a:
                    assert a + n <= b or b + m <= a
        floor = max(
            sum(-(-n // 8) * 8 for f, last, n in lives if f <= t <= last) for t in range(20)
        )
        assert floor <= size <= 1.3 * floor
        assert size <= assign_offsets(lives)[1] * 1.1


def lowered(model, nodes):
    """The program of some nodes of a model, as a part."""
    graph = snapshot(load(model))
    region = Region.of(graph, nodes)
    return graph, ProgramPart(lower_region(region, SCALAR), region.inputs, region.outputs)


BODY = """
    a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) c = AveragePool<kernel_shape = [2, 2]>(b)
    d = Sigmoid({}) y = Mul(d, d)"""


def convnet(pooled="c", **more):
    weights = {"w": (3, 2, 3, 3), **more}
    body = BODY.format(pooled)
    if pooled == "h":
        body = body.replace("d =", "h = Mul(c, half) d =")
    return small_model("y", body, {"x": (1, 2, 6, 6)}, weights)


STACK = 4000
ANY_NAME = "half *\\\n/ /* of it"
"""Of a node: it would end a comment where a compiler joins lines, and begin another one."""
HALVED = """\
static int halved(const float *x, float *work, float *y)
{
    for (int i = 0; i < 75; ++i)
        work[i] = 0.5f * x[i];
    memcpy(y, work, 75 * sizeof *y);
    return !(x[0] < 1e30f);
}
"""


def library_call():
    """A program that calls a function of a library, which works in memory of its own."""
    buffers = (
        dense("x", "float32", (75,)),
        dense("work", "float32", (75,), is_written=True),
        dense("y", "float32", (75,), is_written=True),
    )
    function = c_function("halved", buffers, HALVED, includes=("<string.h>",), stack_bytes=STACK)
    kinds = (StorageKind.INPUT, StorageKind.SCRATCH, StorageKind.OUTPUT)
    storages = tuple(MemoryBlock(kind, 0, 300) for kind in kinds)
    call = Call(0, tuple(Argument(number, 0) for number in range(3)), 1, (ANY_NAME,))
    return Program((function,), (call,), storages)


def test_parts_and_a_call_into_a_library_are_one_program_in_one_arena(tmp_path):
    model = convnet()
    graph, first = lowered(model, range(3))
    _, second = lowered(model, range(3, 5))
    (middle,) = first.outputs
    assert second.inputs == (middle,)
    halved = max(value.id for value in graph.values) + 1
    parts = [
        first,
        ProgramPart(library_call(), (middle,), (halved,)),
        ProgramPart(second.program, (halved,), second.outputs),
    ]
    program = join(parts, graph.inputs, graph.outputs)
    ends = [Tensor("x", "float32", (1, 2, 6, 6))], [Tensor("y", "float32", (1, 3, 5, 5))]
    sources = emit_c_program("whole", program, *ends, ProgramLayout(scratch_align=8))
    apart = [with_tight_arena(part.program, 8).scratch_bytes for part in parts]
    assert max(apart) <= sources.footprint.arena < sum(apart) + 2 * 300
    assert sources.footprint.stack >= STACK
    assert "-1: a function of a library has failed" in sources.header
    (tmp_path / "whole.h").write_text(sources.header)
    (tmp_path / "whole.c").write_text(sources.source)
    library = tmp_path / "whole.so"
    compile_c(*STRICT, "-O1", "-shared", "-fPIC", tmp_path / "whole.c", "-o", library)
    x = np.random.default_rng(1).standard_normal((1, 2, 6, 6), np.float32)
    y = np.zeros((1, 3, 5, 5), np.float32)

    def run():
        return ctypes.CDLL(str(library)).whole_run(
            *(ctypes.c_void_p(i.ctypes.data) for i in (x, y))
        )

    assert run() == 0
    whole = convnet("h", half=np.float32(0.5))
    (want,) = onnxruntime.InferenceSession(whole.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, want, rtol=1e-5)
    x[...] = np.inf  # of which the library says that it fails
    assert run() == -1


def test_buffers_of_kernels_lie_in_the_arena_and_not_on_the_stack():
    inputs = {"x": (1, 2, 6, 6), "grid": (1, 4, 4, 2)}
    model = small_model("y", "y = GridSample(x, grid)", inputs)
    _, part = lowered(model, [0])
    own = [buffer for kernel in part.program.kernels for buffer in kernel.locals]
    assert own
    program = with_tight_arena(part.program, 8)
    assert not any(kernel.locals for kernel in program.kernels)
    needed = sum(int(buffer.span) * buffer.item_bytes for buffer in own)
    assert program.scratch_bytes >= needed
    kept = sum(int(b.span) * b.item_bytes for b in program.kernels[0].locals)
    assert kept == 0 < stack_bytes(program)
