# SPDX-License-Identifier: Apache-2.0
"""What cuBLASLt is to compute, as data: products with what goes before they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import msgspec

from intarsia.backends.cuda.library_program import LibraryTensor


class LtProduct(msgspec.Struct, frozen=True):
    """`result = epilogue(alpha * left @ right + bias)` for every item of a batch, row by row.

    Tensors are numbers of the program's.
    """

    node: str
    """The name of the node that multiplies."""
    dtype: str
    """By numpy's name: of both operands, the result and the bias."""
    m: int
    n: int
    k: int
    batch: int
    left: int
    """`[batch, m, k]`, or `[batch, k, m]` if it is turned."""
    right: int
    """`[batch, k, n]`, or `[batch, n, k]` if it is turned."""
    result: int
    """`[batch, m, n]`."""
    bias: int = -1
    """`[n]`; -1 for none."""
    is_left_turned: bool = False
    is_right_turned: bool = False
    is_left_repeated: bool = False
    """Whether all items of the batch have the same one."""
    is_right_repeated: bool = False
    alpha: float = 1.0
    activation: str = ""
    """`Relu`, `Gelu` (the approximation is the library's: `product_patterns`), or nothing."""

    @property
    def operands(self) -> tuple[int, ...]:
        """The tensors that it reads and writes."""
        rows = () if self.bias < 0 else (self.bias,)
        return (self.left, self.right, self.result, *rows)

    def numbered(self, number: Callable[[int], int]) -> Self:
        """Return the same of tensors with other numbers.

        Args:
            number: Returns that of a tensor.
        """
        bias = -1 if self.bias < 0 else number(self.bias)
        left, right, result = map(number, (self.left, self.right, self.result))
        changed: Self = msgspec.structs.replace(
            self, left=left, right=right, bias=bias, result=result
        )
        return changed


class LtProgram(msgspec.Struct, frozen=True):
    """The content of an artifact, except its constants."""

    tensors: list[LibraryTensor]
    products: list[LtProduct]
    scratch_bytes: int
    """Of what is kept between products."""
    math_mode: str
    """`default`, `pedantic` or `tf32`."""
    is_reduced_in_sums: bool
    """Whether partial sums are to be added in the type of sums alone."""
    workspace_bytes: int
    """The most that cuBLASLt may have of memory of its own."""
