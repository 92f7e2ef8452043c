# SPDX-License-Identifier: Apache-2.0
"""The estimate of a program: what it counts, and how it moves with what it is given."""

import pytest

from intarsia.backends.dnnl.backend import DnnlBackend
from intarsia.backends.dnnl.estimate import count_flops, estimate_program, flops_per_cycle
from intarsia.backends.dnnl.program import Origin, PrimitiveCall, PrimitiveProgram, ProgramTensor
from intarsia.backends.dnnl.words import ISA_AMX, ISA_AVX2, ISA_AVX512, ISA_AVX512_VNNI
from intarsia.cost.cost import CostSource
from intarsia.settings import Settings


def dnnl():
    """The backend as the environment has it now."""
    return DnnlBackend(Settings.from_environment())


SERVER = ISA_AVX2 | ISA_AVX512 | ISA_AVX512_VNNI


def convolution(batch=1, dtype="float32", group=1):
    """Return a program of one convolution with windows of 3."""
    lists = dict.fromkeys(("strides", "dilations", "begin", "end"), (1, 1))
    tensors = (
        ProgramTensor((batch, 64, 56, 56), Origin.INPUT, 0, dtype),
        ProgramTensor((128, 64 // group, 3, 3), Origin.CONSTANT, 0, dtype),
        ProgramTensor((batch, 128, 56, 56)),
    )
    return PrimitiveProgram(tensors, (PrimitiveCall("convolution", (0, 1), 2, lists=lists),), (2,))


@pytest.mark.parametrize("group", [1, 4])
def test_operations_of_a_convolution(group):
    program = convolution(group=group)
    expected = 2 * 56 * 56 * 128 * (64 // group) * 9
    assert count_flops(program, program.calls[0]) == expected


def test_operations_of_a_product_that_sees_rows():
    tensors = (ProgramTensor((2, 5, 32), Origin.INPUT), ProgramTensor((32, 7), Origin.CONSTANT))
    call = PrimitiveCall("matmul", (0, 1), 2, lists={"shape0": (10, 32), "shape": (10, 7)})
    program = PrimitiveProgram((*tensors, ProgramTensor((2, 5, 7))), (call,), (2,))
    assert count_flops(program, call) == 2 * 10 * 7 * 32


def test_more_threads_and_shorter_types_are_faster_and_more_work_slower():
    cost = estimate_program(convolution(), SERVER, 1)
    assert cost.source is CostSource.ESTIMATED
    assert 0 < cost.low_seconds < cost.seconds < cost.high_seconds
    assert cost.nbytes >= 128 * 64 * 9 * 4
    assert estimate_program(convolution(), SERVER, 2).seconds < cost.seconds
    assert estimate_program(convolution(4), SERVER, 1).seconds > 3 * cost.seconds
    assert estimate_program(convolution(dtype="uint8"), SERVER, 1).seconds < cost.seconds / 2
    assert estimate_program(convolution(), ISA_AVX2, 1).seconds > cost.seconds


def test_integers_are_fast_only_with_their_instructions():
    assert flops_per_cycle(SERVER, "uint8") == 4 * flops_per_cycle(SERVER, "float32")
    assert flops_per_cycle(SERVER, "bfloat16") < flops_per_cycle(SERVER, "float32")
    assert flops_per_cycle(SERVER | ISA_AMX, "float16") > flops_per_cycle(SERVER, "float32")
    assert flops_per_cycle(ISA_AVX2, "int8") == flops_per_cycle(ISA_AVX2, "float32")


def test_the_backend_answers(library, parse_model, whole):
    del library
    text = "case (float[64,64] x) => (float[64,64] y) { y = MatMul(x, x) }"
    cost = dnnl().estimate(*whole(parse_model(text)))
    assert cost.source is CostSource.ESTIMATED
    assert 0 < cost.seconds < 1
