# SPDX-License-Identifier: Apache-2.0
"""What kernels of CUTLASS are to compute, as data: products, and the kernels that compute them."""

from __future__ import annotations

import msgspec

from intarsia.backends.cuda.cublas.products import LtProduct
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


class CutlassProduct(LtProduct, frozen=True):
    """A product, and the kernels that compute it, to be measured."""

    kernels: tuple[int, ...] = ()
    """Numbers of the program's."""


class CutlassProgram(msgspec.Struct, frozen=True):
    """The content of an artifact, except its constants."""

    arch: str
    """As in `sm_80`."""
    tensors: list[LibraryTensor]
    products: list[CutlassProduct]
    kernels: list[CompiledProduct]
    scratch_bytes: int
    """Of what is kept between products."""
