# SPDX-License-Identifier: Apache-2.0
"""CUTLASS's products as C++: one kernel for each type, layout, alignment, epilogue and tile.

Sizes are arguments, so that a kernel serves every product of its sort; CUTLASS's parameters are
made of them in the kernel itself, by the same constructors that a host would call (NVIDIA, "CUTLASS
2.x GEMM API", `cutlass::gemm::kernel::DefaultGemm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import msgspec


class ProductTile(msgspec.Struct, frozen=True):
    """How a product is cut up: of a block, of a warp, and how many stages of a block are loaded."""

    block: tuple[int, int, int]
    warp: tuple[int, int, int]
    stages: int


@dataclass(frozen=True, slots=True)
class ProductSort:
    """What products have in common that a kernel serves.

    Attributes:
        dtype: By numpy's name, of operands, row and result; sums are float32.
        is_left_turned: Whether the left operand is `[k, m]`.
        is_right_turned: Whether the right one is `[n, k]`.
        left_items: Elements to which rows of the left operand are aligned.
        right_items: Likewise.
        result_items: Likewise of the result, and of the row that is added.
        has_row: Whether one is added.
        activation: `Relu`, `Gelu` (with erf) or nothing.
        is_exact: Of float32, whether it is multiplied as float32, not by three products of TF32.
    """

    dtype: str
    is_left_turned: bool
    is_right_turned: bool
    left_items: int
    right_items: int
    result_items: int
    has_row: bool
    activation: str
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ProductKernel:
    """A kernel.

    Attributes:
        name: Of its function.
        source: C++.
        tile: How it cuts a product up.
        threads: Of a block.
    """

    name: str
    source: str
    tile: ProductTile
    threads: int


SHARED_BYTES = 48 << 10
"""Shared memory that a kernel has without asking the driver for more."""

_ELEMENTS = {
    "float16": "cutlass::half_t",
    "bfloat16": "cutlass::bfloat16_t",
    "float32": "float",
}
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
_NARROW = (
    ProductTile((128, 128, 32), (64, 64, 32), 3),
    ProductTile((128, 64, 32), (64, 32, 32), 4),
    ProductTile((64, 64, 32), (32, 32, 32), 5),
)
_SPLIT = (
    ProductTile((128, 64, 16), (64, 32, 16), 3),
    ProductTile((64, 64, 16), (32, 32, 16), 3),
)
_EXACT = (
    ProductTile((128, 128, 8), (32, 64, 8), 4),
    ProductTile((64, 64, 8), (32, 32, 8), 4),
)
_EPILOGUES = {
    "": "LinearCombination",
    "Relu": "LinearCombinationRelu",
    "Gelu": "LinearCombinationGELU",
}
_HEADERS = {
    "": "linear_combination.h",
    "Relu": "linear_combination_relu.h",
    "Gelu": "linear_combination_gelu.h",
}
_WARP = 32


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return _ITEM_BYTES[dtype]


def tiles_of(sort: ProductSort) -> tuple[ProductTile, ...]:
    """Return the tiles that are worth measuring, the one for large products first."""
    if sort.dtype != "float32":
        return _NARROW
    return _EXACT if sort.is_exact else _SPLIT


def least_items(dtype: str) -> int:
    """Return the elements to which rows have to be aligned: copies are of 4 bytes at least."""
    return 4 // _ITEM_BYTES[dtype]


def write_kernel(sort: ProductSort, tile: ProductTile) -> ProductKernel:
    """Return the kernel of a sort of products, cut up in one way."""
    body = _body(sort, tile)
    name = f"product_{sha256(body.encode()).hexdigest()[:16]}"
    warps = (tile.block[0] // tile.warp[0]) * (tile.block[1] // tile.warp[1])
    return ProductKernel(name, body.replace("@NAME@", name), tile, warps * _WARP)


def _body(sort: ProductSort, tile: ProductTile) -> str:
    element = _ELEMENTS[sort.dtype]
    if sort.dtype != "float32":
        unit, step, operator = "OpClassTensorOp", (16, 8, 16), "OpMultiplyAdd"
    elif sort.is_exact:
        unit, step, operator = "OpClassSimt", (1, 1, 1), "OpMultiplyAdd"
    else:
        unit, step, operator = "OpClassTensorOp", (16, 8, 8), "OpMultiplyAddFastF32"
    items = (sort.left_items, sort.right_items, sort.result_items)
    if sort.is_exact:  # which goes element by element
        items = (1, 1, 1)
    layouts = [
        f"cutlass::layout::{'ColumnMajor' if turned else 'RowMajor'}"
        for turned in (sort.is_left_turned, sort.is_right_turned)
    ]
    scale = "NoBetaScaling" if sort.has_row else "OnlyAlphaScaling"
    leading = ("m" if sort.is_left_turned else "k", "k" if sort.is_right_turned else "n")
    return f"""\
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/{_HEADERS[sort.activation]}"
#include "cutlass/gemm/kernel/default_gemm.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"

namespace {{

// The third dimension of the grid is the batch, not a part of the sums.
struct Blocks : cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1> {{
  CUTLASS_DEVICE static cutlass::gemm::GemmCoord get_tile_offset(int) {{
    return {{int(blockIdx.x), int(blockIdx.y), 0}};
  }}
}};

using Element = {element};
using Epilogue = cutlass::epilogue::thread::{_EPILOGUES[sort.activation]}<
    Element, {items[2]}, float, float, cutlass::epilogue::thread::ScaleType::{scale}>;
using Kernel = cutlass::gemm::kernel::DefaultGemm<
    Element, {layouts[0]}, {items[0]}, Element, {layouts[1]}, {items[1]},
    Element, cutlass::layout::RowMajor, float, cutlass::arch::{unit}, cutlass::arch::Sm80,
    {_shape(tile.block)}, {_shape(tile.warp)}, {_shape(step)},
    Epilogue, Blocks, {tile.stages}, false, cutlass::arch::{operator}>::GemmKernel;
static_assert(sizeof(Kernel::SharedStorage) <= {SHARED_BYTES}, "more shared memory than there is");

}}  // namespace

extern "C" __global__ void __launch_bounds__(Kernel::kThreadCount)
@NAME@(Element *left, Element *right, Element *row, Element *result, long long m, long long n,
       long long k, long long left_step, long long right_step, double alpha) {{
  __shared__ Kernel::SharedStorage storage;
  long long item = blockIdx.z;
  Kernel::Params params({{int(m), int(n), int(k)}}, {{int(gridDim.x), int(gridDim.y), 1}},
                        {{left + item * left_step, {leading[0]}}},
                        {{right + item * right_step, {leading[1]}}}, {{row, 0}},
                        {{result + item * m * n, n}}, {{float(alpha), 1.0f}});
  Kernel()(params, storage);
}}
"""


def _shape(extents: tuple[int, int, int]) -> str:
    return f"cutlass::gemm::GemmShape<{', '.join(map(str, extents))}>"
