# SPDX-License-Identifier: Apache-2.0
"""Products of tiles, tried on this machine: run in a process of its own, see `native.tiles`."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.builder import Builder
from intarsia.codegen.emit.llvm import emit_llvm
from intarsia.codegen.expand import expand
from intarsia.codegen.ir import DOT_GROUPS, DOT_SUMS, TILE_ROWS, Function
from intarsia.errors import BackendError
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, compile_object
from intarsia.native.tiles import ask_for_tiles
from intarsia.target.cpu import host_cpu

_STEPS = 3
_LARGEST = 9
"""Of the numbers multiplied: their products are exact in every dtype, and so are the sums."""


def try_tiles() -> Iterator[str]:
    """Multiply tiles of bfloat16 and of bytes, on this thread and on another one; yield a word.

    Whoever gets no word knows that nothing was tried.

    Raises:
        BackendError: What they compute is wrong, or tiles cannot be used.
    """
    problem = ask_for_tiles()
    if problem:
        raise BackendError(f"tiles cannot be used: {problem}", backend="llvm")
    features = host_cpu().features
    kinds = [("uint16", "uint16")] if "amx-bf16" in features else []
    if "amx-int8" in features:
        kinds += [(a, b) for a in ("int8", "uint8") for b in ("int8", "uint8")]
    wrong: list[str] = []

    def work() -> None:
        wrong.extend(f"{a} by {b}" for a, b in kinds if not _is_right(a, b))

    work()
    other = threading.Thread(target=work)
    other.start()
    other.join()
    if wrong:
        text = f"products of tiles are wrong: {', '.join(dict.fromkeys(wrong))}"
        raise BackendError(text, backend="llvm")
    yield "right"


def _is_right(left: str, right: str) -> bool:
    """Tell whether a product of small whole numbers is the one of numpy, to the bit."""
    rng, group = np.random.default_rng(0), DOT_GROUPS[left]
    a, b = (
        rng.integers(
            0 if name == "uint8" else -_LARGEST, _LARGEST, (TILE_ROWS, _STEPS * 16 * group)
        )
        for name in (left, right)
    )
    arrays = [in_dtype(a, left), interleaved(in_dtype(b.T, right), group)]
    y = np.zeros((TILE_ROWS, TILE_ROWS), DOT_SUMS[left])
    kernel = expand(tile_product(left, right))
    here = host_cpu()
    cpu = NativeCpu("", here.name, ",".join(f"+{name}" for name in sorted(here.features)))
    library = LoadedCode({kernel.name: compile_object(emit_llvm(kernel), cpu)})
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    table = np.array([item.ctypes.data for item in (*arrays, y)], np.int64)
    call(library.addresses[kernel.name])(table.ctypes.data, 0, 1)
    return bool(np.array_equal(y, a @ b.T))


def in_dtype(numbers: Array, dtype: str) -> Array:
    """Return numbers in a dtype of tiles: as bytes, or as the bits of bfloat16 (rounded to 0)."""
    if dtype != "uint16":
        return np.ascontiguousarray(numbers, dtype)
    return (np.ascontiguousarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def interleaved(matrix: Array, group: int) -> Array:
    """Return a matrix (k, n) as right tiles have it: (k / group, n * group)."""
    k, n = matrix.shape
    return np.ascontiguousarray(matrix.reshape(k // group, group, n).swapaxes(1, 2)).reshape(
        -1, n * group
    )


def tile_product(left: str, right: str) -> Function:
    """Return a kernel of the product of 16 rows and 16 columns, along a few tiles."""
    step = TILE_ROWS * DOT_GROUPS[left]
    b = Builder("tile_product")
    x = b.argument("x", left, (TILE_ROWS, _STEPS * step))
    w = b.argument("w", right, (_STEPS * TILE_ROWS, step))
    y = b.argument("y", DOT_SUMS[left], (TILE_ROWS, TILE_ROWS), is_written=True)
    rows, columns = b.tile("rows", left), b.tile("columns", right)
    total = b.tile("total", DOT_SUMS[left])
    with b.parallel(1):
        b.tile_zero(total)
        with b.serial(0, _STEPS) as k:
            b.tile_load(rows, x, (0, k * step), _STEPS * step)
            b.tile_load(columns, w, (k * TILE_ROWS, 0), step)
            b.tile_dot(total, rows, columns)
        b.tile_store(total, y, (0, 0), TILE_ROWS)
    return b.finish()
