# SPDX-License-Identifier: Apache-2.0
"""Kernels that say which work-items there are, in the place of others where the machine is a GPU.

The program for all sizes has kernels for any sizes, and programs that follow it add up in its
order: neither has them.
"""

from __future__ import annotations

from intarsia.codegen.kernels.attention import Attention
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.depthwise import Depthwise
from intarsia.codegen.kernels.grid_attention import GridAttention, grid_attention
from intarsia.codegen.kernels.grid_conv import GridConv, grid_conv
from intarsia.codegen.kernels.grid_reduce import GridReduction, grid_reduction
from intarsia.codegen.kernels.grid_rows import GridRows, grid_rows
from intarsia.codegen.kernels.grid_strips import GridStrips, grid_strips
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.kernels.rows import Rows
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.unit import GpuModel


def gpu_of(assembler: Assembler) -> GpuModel | None:
    """Return the GPU that a program is for, if it is one and sums may be made in any order."""
    machine = assembler.machine
    return machine if isinstance(machine, GpuModel) and not assembler.settled else None


def shared_reduction(assembler: Assembler, spec: Reduction) -> Reduction | GridReduction:
    """Return a reduction as it is to run."""
    gpu = gpu_of(assembler)
    return (gpu and grid_reduction(spec, gpu)) or spec


def shared_rows(assembler: Assembler, spec: Rows) -> Rows | GridRows:
    """Return an operator on rows as it is to run."""
    gpu = gpu_of(assembler)
    return (gpu and grid_rows(spec, gpu)) or spec


def shared_attention(assembler: Assembler, spec: Attention) -> GridAttention | None:
    """Return attention as it is to run on a GPU; None where it has no kernel of its own there."""
    gpu = gpu_of(assembler)
    return None if gpu is None else grid_attention(spec, gpu)


def shared_conv(assembler: Assembler, spec: object) -> GridConv | GridStrips | None:
    """Return a convolution as it is to run on a GPU; None where it has no kernel of its own."""
    gpu = gpu_of(assembler)
    if gpu is None or not isinstance(spec, Conv | Depthwise):
        return None
    shared = grid_conv(spec, gpu) if isinstance(spec, Conv) else None
    return shared or grid_strips(spec, gpu)
