# SPDX-License-Identifier: Apache-2.0
"""What kernels of CUTLASS are to compute, as data: products, and the kernels that compute them."""

from __future__ import annotations

import msgspec

from intarsia.backends.cuda.cutlass.kernels import ProductTile
from intarsia.backends.cuda.library_program import LibraryTensor


class CompiledProduct(msgspec.Struct, frozen=True):
    """A kernel, compiled."""

    name: str
    cubin: bytes
    """Machine code of one architecture."""
    tile: ProductTile
    threads: int
    """Of a block."""
    needs: tuple[int, int, int, int]
    """Registers of a thread, its stack, spilled bytes, shared memory of a block; `ptxas` counts."""


class DenseProduct(msgspec.Struct, frozen=True):
    """`result = activation(alpha * left @ right + row)` for every item of a batch, row by row.

    Tensors are numbers of the program's, of values before that.
    """

    node: str
    """The name of the node that multiplies."""
    dtype: str
    m: int
    n: int
    k: int
    batch: int
    left: int
    right: int
    result: int
    row: int = -1
    """`[n]`; -1 for none."""
    is_left_turned: bool = False
    is_right_turned: bool = False
    is_left_repeated: bool = False
    """Whether all items of the batch have the same one."""
    is_right_repeated: bool = False
    alpha: float = 1.0
    activation: str = ""
    """`Relu`, `Gelu` (with erf), or nothing."""
    kernels: tuple[int, ...] = ()
    """Numbers of the program's that compute it, to be measured."""


class CutlassProgram(msgspec.Struct, frozen=True):
    """The content of an artifact, except its constants."""

    arch: str
    """As in `sm_80`."""
    tensors: list[LibraryTensor]
    products: list[DenseProduct]
    kernels: list[CompiledProduct]
    scratch_bytes: int
    """Of what is kept between products."""
