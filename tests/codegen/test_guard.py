# SPDX-License-Identifier: Apache-2.0
"""Kernels that run by a number: in machine code, C and OpenCL."""

import numpy as np
import pytest
from tests.codegen.emit.runners import run_c, run_opencl, run_opencl_groups, run_wgsl
from tests.codegen.kernels.test_gather import dense

from intarsia.codegen.body import identity
from intarsia.codegen.builder import Builder
from intarsia.codegen.guard import guarded
from intarsia.codegen.kernels import elementwise, reduce
from intarsia.codegen.unit import AVX2, AVX512


def check(run):
    x = np.random.default_rng(0).standard_normal((7, 40)).astype(np.float32)
    y = np.full(7, 5, np.float32)
    layout = dense(y)
    spec = reduce.Reduction(x.shape, (1,), "Max", dense(x), layout, unit=AVX2)
    for number, wanted in ((3, x.max(1)), (4, y)):
        got = run(guarded(reduce.build(spec), 3), [x, y, np.array([number])])
        np.testing.assert_array_equal(got[1], wanted)


def test_a_kernel_runs_by_a_number(run_kernel):
    check(run_kernel)


@pytest.mark.parametrize("run", [run_c, run_opencl, run_opencl_groups, run_wgsl])
def test_a_kernel_runs_by_a_number_elsewhere(run):
    check(run)


def test_a_kernel_of_many_turns(run_kernel):
    x = np.random.default_rng(0).standard_normal(100_001).astype(np.float32)
    y = np.zeros_like(x)
    spec = elementwise.Elementwise(x.shape, (dense(x),), (dense(y),), identity("float32"), AVX512)
    for number, wanted in ((0, x), (1, y)):
        kernel = guarded(elementwise.build(spec), 0)
        got = run_kernel(kernel, [x, y, np.array([number])], interpreted=False)
        np.testing.assert_array_equal(got[1], wanted)


def test_a_kernel_without_a_parallel_loop(run_kernel):
    b = Builder("one")
    y = b.argument("y", "int64", (1,), is_written=True)
    b.store(b.index(7), y, 0)
    for number, wanted in ((-2, 7), (2, 0)):
        kernel = guarded(b.finish(), -2)
        assert run_kernel(kernel, [np.zeros(1, np.int64), np.array([number])])[0] == wanted
