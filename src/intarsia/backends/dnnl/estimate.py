# SPDX-License-Identifier: Apache-2.0
"""What a program costs by a simple model: a roofline per primitive (Williams et al., 2009).

A primitive takes the longer of its arithmetic at a part of the CPU's peak and its traffic at a
core's bandwidth, and a start. Constants count as traffic: they are larger than the caches. The
figures are round ones of server CPUs; they order placements until something is measured.
"""

from __future__ import annotations

from math import prod

from intarsia.backends.dnnl.program import Origin, PrimitiveCall, PrimitiveProgram
from intarsia.backends.dnnl.words import (
    ISA_AMX,
    ISA_AVX2,
    ISA_AVX2_VNNI,
    ISA_AVX512,
    ISA_AVX512_VNNI,
)
from intarsia.cost.cost import Cost, CostSource

HERTZ = 2.7e9
"""A core's clock under wide vectors."""
EFFICIENCY = {"convolution": 0.85, "deconvolution": 0.6, "matmul": 0.75}
"""The part of the peak that oneDNN's generated code reaches, at batch 1."""
BYTES_PER_SECOND = 12e9
"""A core's share of memory bandwidth."""
SLOW_HALVES = 0.6
"""16-bit floats against float32 without AMX: slower, as measured with oneDNN 3.2."""
START_SECONDS = 2e-6
"""Fixed cost of a primitive: the call, and a barrier of the threads."""
SPREAD = 0.5
"""Half the interval, relative: the model knows neither caches nor shapes that fit badly."""


def flops_per_cycle(isa: int, dtype: str) -> float:
    """Return a core's operations per cycle, a multiplication and an addition being two.

    Args:
        isa: Instruction sets, as the library numbers them.
        dtype: What is multiplied: float32, bfloat16, float16, int8 or uint8.
    """
    per_vector = 64 if isa & ISA_AVX512 else 32 if isa & ISA_AVX2 else 16
    if dtype in ("int8", "uint8"):
        return per_vector * (4 if isa & (ISA_AVX512_VNNI | ISA_AVX2_VNNI) else 1)
    if dtype in ("bfloat16", "float16"):
        return per_vector * (2 if isa & ISA_AMX else SLOW_HALVES)
    return per_vector


def estimate_program(program: PrimitiveProgram, isa: int, num_threads: int) -> Cost:
    """Return what a run of a program costs.

    Args:
        program: The program.
        isa: Instruction sets, as the library numbers them.
        num_threads: Threads of one run.
    """
    threads = program.num_threads or num_threads
    seconds = sum(_seconds(program, call, isa, threads) for call in program.calls)
    constants = sum(t.nbytes for t in program.tensors if t.origin is Origin.CONSTANT)
    inner = [t.nbytes for t in program.tensors if t.origin is Origin.INNER]
    # Not the sum of all: the arena holds a tensor only while something still reads it.
    nbytes = constants + 2 * max(inner, default=0)  # a primitive reads one and writes one
    return Cost(seconds, nbytes, CostSource.ESTIMATED).within(1 + SPREAD)


def count_flops(program: PrimitiveProgram, call: PrimitiveCall) -> int:
    """Return the multiplications and additions of a primitive that multiplies, else 0."""
    if call.kind not in EFFICIENCY:
        return 0
    left, right = (program.tensors[tensor_id].shape for tensor_id in call.inputs[:2])
    result = program.tensors[call.output].shape
    if call.kind == "matmul":
        seen = call.lists.get("shape0") or left
        return 2 * prod(result) * seen[-1]
    if call.kind == "convolution":  # weights: filters, channels of a group, window
        return 2 * prod(result) * prod(right[1:])
    return 2 * prod(left) * prod(right[1:])


def _seconds(program: PrimitiveProgram, call: PrimitiveCall, isa: int, threads: int) -> float:
    # A view is a second descriptor over the same bytes: no primitive runs.
    if call.kind == "view":
        return 0.0
    tensors = [program.tensors[tensor_id] for tensor_id in (*call.reads, call.output)]
    traffic = sum(tensor.nbytes for tensor in tensors) / (BYTES_PER_SECOND * threads)
    dtype = tensors[0].dtype
    if dtype == "float32":
        dtype = {"bf16": "bfloat16", "f16": "float16"}.get(program.precision, dtype)
    peak = flops_per_cycle(isa, dtype) * HERTZ * threads
    work = count_flops(program, call) / (peak * EFFICIENCY.get(call.kind, 1.0))
    # ResNet-50, Inception v1 and MiniLM: 57, 23 and 25 ms of model, 58, 22 and 25 measured
    # (docs/dnnl.md). A longer-of-both needs no figure for how far they overlap.
    return START_SECONDS + max(work, traffic)
