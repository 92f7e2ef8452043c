# SPDX-License-Identifier: Apache-2.0
"""Kernels as PTX that NVIDIA's assembler has read, without a GPU."""

from dataclasses import replace

import pytest

from intarsia.codegen.emit.device_family import DeviceLimits
from intarsia.codegen.emit.nvptx import emit_nvptx
from intarsia.codegen.expand import expand
from intarsia.native.ptx import compile_ptx
from intarsia.native.ptxas import assemble, find_ptxas

ON_EACH_ARCHITECTURE = pytest.mark.parametrize(
    "arch",
    [
        "sm_80",
        pytest.param("sm_75", marks=pytest.mark.exhaustive),
        pytest.param("sm_90", marks=pytest.mark.exhaustive),
    ],
)
LIMITS = DeviceLimits(work_group=64, local_bytes=48 << 10, has_shuffles=True)


def assembled(functions, arch):
    """Return what the assembler says of kernels (`KernelResources`) and their PTX, by name.

    Args:
        functions: Kernels by the names that they get.
        arch: A GPU, such as `sm_80`.
    """
    named = [replace(expand(function), name=name) for name, function in functions.items()]
    kernels = {function.name: emit_nvptx(function, LIMITS) for function in named}
    counted, ptx = count(list(kernels.values()), arch)
    for one in counted:  # what is said of a kernel, but for how its buffers are aligned
        assert abs(one.shared_bytes - kernels[one.name].shared_bytes) <= 64, one
    bodies = {body.split("(")[0]: body for body in ptx.split(".visible .entry ")[1:]}
    assert {one.name for one in counted} == set(bodies) == set(functions)
    return {one.name: (one, bodies[one.name]) for one in counted}


def count(kernels, arch):
    """Return what the assembler says of emitted kernels, printed too, and their PTX."""
    if find_ptxas() is None:
        pytest.skip("ptxas is not here: pip install nvidia-cuda-nvcc-cu12")
    ptx = compile_ptx(kernels, arch)
    counted = assemble(ptx)
    print(*counted, sep="\n")
    return counted, ptx
