# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt's C interface (NVIDIA, "cuBLAS Library", "Using the cuBLASLt API").

Descriptions of products are made by the host alone; a handle needs NVIDIA's driver and a GPU.
cuBLASLt has its matrices column by column. A matrix that lies row by row is its transpose there, so
that what is asked for is `right.T @ left.T`, and no operand is moved.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.backends.cuda.libraries import (
    LibraryError,
    files_of_packages,
    load_library,
    version_text,
)
from intarsia.backends.cuda.library_execution import ALIGNMENT

if TYPE_CHECKING:
    from intarsia.backends.cuda.cublas.products import LtProduct

BACKEND_NAME = "cublas"
INSTALL = "pip install 'intarsia[cublas]'"

_PACKAGES = ("nvidia-cublas", "nvidia-cublas-cu12")
_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll", "cublasLt64_12.dll")
_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType_t."""
_FLOAT32, _PEDANTIC, _TF32, _FLOAT64, _PEDANTIC64 = 68, 69, 77, 70, 71
"""cublasComputeType_t."""
_RELU, _BIAS, _GELU, _DEFAULT = 2, 4, 32, 1
"""cublasLtEpilogue_t, which are combined."""
_TURNED = 1
"""cublasOperation_t."""
_LEFT, _RIGHT, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
"""cublasLtMatmulDescAttributes_t; of the left and right operand as cuBLASLt has them."""
_BATCH, _BATCH_STRIDE = 5, 6
"""cublasLtMatrixLayoutAttribute_t."""
_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
"""cublasLtMatmulPreferenceAttributes_t."""
_IN_SUMS = 3
"""cublasLtReductionScheme_t: in place and in the type of sums, not in that of the output."""


class CublasError(LibraryError):
    """What cuBLASLt answered instead of success."""


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: a way to compute a product."""

    _fields_ = (
        ("algo", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class CublasLt:
    """The library.

    Attributes:
        functions: Of it, by name.
    """

    functions: Any

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that answers with a status.

        Raises:
            CublasError: It failed.
        """
        status = getattr(self.functions, name)(*arguments)
        if status:
            say = self.functions.cublasLtGetStatusName
            say.restype = ctypes.c_char_p
            raise CublasError(f"{name}: {(say(status) or b'an unknown status').decode()}")

    def version(self) -> str:
        """Return its version, as in `12.9.3`."""
        ask = self.functions.cublasLtGetVersion
        ask.restype = c_size_t
        return version_text(int(ask()))

    def make(self, name: str, *arguments: Any) -> c_void_p:
        """Return what a function makes.

        Raises:
            CublasError: It failed.
        """
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        return made


@cache
def library() -> CublasLt:
    """Return cuBLASLt: of its wheel, else what the system has.

    Raises:
        BackendError: It is not installed.
    """
    files = files_of_packages(_PACKAGES, ("libcublasLt.so", "cublasLt64"))
    return CublasLt(load_library(BACKEND_NAME, "cuBLASLt", files, _NAMES, INSTALL))


class Description:
    """A product as cuBLASLt has it: its computation, and three layouts of matrices.

    Args:
        lt: The library.
        product: What is computed.
        math_mode: In which types, as the target says.

    Raises:
        CublasError: It does not take a part of it.
    """

    def __init__(self, lt: CublasLt, product: LtProduct, math_mode: str) -> None:
        self.lt, self.product = lt, product
        self._made: list[tuple[str, c_void_p]] = []
        weakref.finalize(self, _destroy, lt, self._made)
        is_double = product.dtype == "float64"
        self.scale_type = np.float64 if is_double else np.float32
        kind = _compute_type(product.dtype, math_mode)
        scale = _DATA_TYPES["float64" if is_double else "float32"]
        self.operation = self._make("MatmulDesc", kind, scale)
        # What is right row by row is left column by column.
        self._say("MatmulDesc", self.operation, _LEFT, c_int(product.is_right_turned))
        self._say("MatmulDesc", self.operation, _RIGHT, c_int(product.is_left_turned))
        self._say("MatmulDesc", self.operation, _EPILOGUE, c_int(_epilogue(product)))
        m, n, k = product.m, product.n, product.k
        right = (k, n) if product.is_right_turned else (n, k)
        left = (m, k) if product.is_left_turned else (k, m)
        self.left = self._layout(right, is_repeated=product.is_right_repeated)
        self.right = self._layout(left, is_repeated=product.is_left_repeated)
        self.result = self._layout((n, m), is_repeated=False)

    def set_bias(self, address: int) -> None:
        """Say where the bias lies.

        Raises:
            CublasError: It is not taken.
        """
        self._say("MatmulDesc", self.operation, _BIAS_POINTER, c_uint64(address))

    def preference(self, workspace_bytes: int, *, is_reduced_in_sums: bool) -> c_void_p:
        """Return what is asked of algorithms.

        Args:
            workspace_bytes: The most that they may have of memory of their own.
            is_reduced_in_sums: Whether partial sums are to be added in the type of sums alone.

        Raises:
            CublasError: It is not taken.
        """
        asked = self._make("MatmulPreference")
        self._say("MatmulPreference", asked, _WORKSPACE, c_uint64(workspace_bytes))
        if is_reduced_in_sums:
            self._say("MatmulPreference", asked, _REDUCTIONS, ctypes.c_uint32(_IN_SUMS))
        for attribute in _ALIGNMENTS:
            self._say("MatmulPreference", asked, attribute, ctypes.c_uint32(ALIGNMENT))
        return asked

    def algorithms(self, handle: c_void_p, preference: c_void_p, most: int) -> Sequence[Algorithm]:
        """Return ways to compute it, in the order in which the library would try them.

        Raises:
            CublasError: There is none.
        """
        results, count = (Algorithm * most)(), c_int()
        shapes = (self.operation, self.left, self.right, self.result, self.result)
        name = "cublasLtMatmulAlgoGetHeuristic"
        self.lt.call(name, handle, *shapes, preference, most, results, byref(count))
        return [one for one in results[: count.value] if one.state == 0]

    def caller(
        self, handle: c_void_p, algorithm: Algorithm, workspace: int, stream: int
    ) -> Callable[[int, int, int], None]:
        """Return what queues it, from the addresses of its operands and its result.

        Args:
            handle: Of the library.
            algorithm: How.
            workspace: The address of memory of the algorithm's own.
            stream: Where.
        """
        one, none = (ctypes.c_double if self.scale_type is np.float64 else c_float), 0.0
        alpha, beta = one(self.product.alpha), one(none)
        nbytes = c_size_t(algorithm.workspace_bytes)

        def queue(left: int, right: int, result: int) -> None:
            self.lt.call(
                "cublasLtMatmul",
                *(handle, self.operation, byref(alpha)),
                *(c_void_p(right), self.left, c_void_p(left), self.right, byref(beta)),
                *(c_void_p(result), self.result, c_void_p(result), self.result),
                *(byref(algorithm), c_void_p(workspace), nbytes, c_void_p(stream)),
            )

        return queue

    def _layout(self, shape: tuple[int, int], *, is_repeated: bool) -> c_void_p:
        """Return the layout of a dense matrix of some rows and columns, column by column."""
        rows, columns = shape
        kind = _DATA_TYPES[self.product.dtype]
        made = self._make("MatrixLayout", kind, c_uint64(rows), c_uint64(columns), c_int64(rows))
        self._say("MatrixLayout", made, _BATCH, c_int(self.product.batch))
        step = 0 if is_repeated else rows * columns
        self._say("MatrixLayout", made, _BATCH_STRIDE, c_int64(step))
        return made

    def _make(self, kind: str, *arguments: Any) -> c_void_p:
        made = self.lt.make(f"cublasLt{kind}Create", *arguments)
        self._made.append((f"cublasLt{kind}Destroy", made))
        return made

    def _say(self, kind: str, what: c_void_p, attribute: int, value: Any) -> None:
        name = f"cublasLt{kind}SetAttribute"
        self.lt.call(name, what, attribute, byref(value), c_size_t(ctypes.sizeof(value)))


def _destroy(lt: CublasLt, made: Sequence[tuple[str, c_void_p]]) -> None:
    for name, one in made:
        getattr(lt.functions, name)(one)


def _compute_type(dtype: str, math_mode: str) -> int:
    if dtype == "float64":
        return _PEDANTIC64 if math_mode == "pedantic" else _FLOAT64
    if math_mode == "tf32" and dtype == "float32":
        return _TF32
    return _PEDANTIC if math_mode == "pedantic" else _FLOAT32


def _epilogue(product: LtProduct) -> int:
    chosen = {"": 0, "Relu": _RELU, "Gelu": _GELU}[product.activation]
    return (chosen | (_BIAS if product.bias >= 0 else 0)) or _DEFAULT
