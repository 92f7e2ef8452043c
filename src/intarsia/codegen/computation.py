# SPDX-License-Identifier: Apache-2.0
"""What an operation without effects computes, in numpy: for one work-item, or for many at once.

Operands are scalars, or vectors along their last axis; axes before that are work-items.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen import ir


def computation(operation: ir.Operation) -> Callable[..., Any]:  # noqa: PLR0911, PLR0912, C901 - one case a line
    """Return what makes the result of an operation of its operands, in their order."""
    match operation:
        case ir.Constant(result=result, value=value):
            return lambda: _filled(value, result)
        case ir.Unary(name=name):
            unary: Callable[..., Any] = _UNARY[name]
            return unary
        case ir.Binary(name=name):
            binary: Callable[..., Any] = _BINARY[name]
            return binary
        case ir.Fma(result=result):
            return _fused(np.dtype(result.type.dtype))
        case ir.Dot(result=result, is_blocked=True):
            return lambda a, b, c: _blocked_dot(a, b, c, result.type.lanes)
        case ir.Dot(result=result):
            return lambda a, b, c: _dot(a, b, c, result.type.lanes)
        case ir.Compare(predicate=predicate):
            compare: Callable[..., Any] = _PREDICATES[predicate]
            return compare
        case ir.Select():
            return _where
        case ir.Cast(result=result):
            dtype = np.dtype(result.type.dtype)
            return lambda a: a.astype(dtype)
        case ir.Bitcast(result=result):
            bits = np.dtype(result.type.dtype)
            return lambda a: a.view(bits)
        case ir.Splat(result=result):
            return lambda a: np.repeat(np.asarray(a)[..., None], result.type.lanes, -1)
        case ir.Shuffle(lanes=(lane,)):
            return lambda a, b: np.concatenate(_alike(a, b), -1)[..., lane]
        case ir.Shuffle(lanes=lanes):
            picked = np.array(lanes)
            return lambda a, b: np.concatenate(_alike(a, b), -1)[..., picked]
        case ir.Extract(lane=lane):
            return lambda a: a[..., lane]
        case ir.Reduce(name=name):
            return lambda a: _reduce(name, a)
        case _:
            raise AssertionError(operation)


def _fused(dtype: np.dtype[Any]) -> Callable[..., Any]:
    if dtype.kind != "f":
        return lambda a, b, c: a * b + c
    wide = np.dtype(np.longdouble if dtype == np.float64 else np.float64)
    # Of float32 the product is exact so (48 of 53 bits); the sum is rounded twice,
    # which differs from a fused one next to ties alone.
    return lambda a, b, c: (np.multiply(a, b, dtype=wide) + c).astype(dtype)


def _filled(value: Any, result: ir.IrValue) -> Any:
    type_ = result.type
    if type_.lanes == 1:
        return np.dtype(type_.dtype).type(value)
    return np.full(type_.lanes, value, type_.dtype)


def _alike(left: Array, right: Array) -> tuple[Array, ...]:
    """Return vectors of as many work-items each."""
    return (left, right) if left.ndim == right.ndim else tuple(np.broadcast_arrays(left, right))


def _dot(left: Array, right: Array, addend: Any, lanes: int) -> Any:
    group = left.shape[-1] // lanes
    if left.dtype == np.uint16:  # bfloat16: the upper half of a float32
        left, right = ((item.astype(np.uint32) << 16).view(np.float32) for item in (left, right))
    wide = np.asarray(addend).dtype
    products = left.astype(wide) * right.astype(wide)
    total = addend if lanes > 1 else np.asarray(addend)[..., None]
    for number in reversed(range(group)):
        before, total = total, total + products[..., number::group]
        if wide == np.int16:
            exact = before.astype(np.int32) + products[..., number::group]
            assert (total == exact).all(), "a sum does not fit int16"
    return total if lanes > 1 else total[..., 0]


def _blocked_dot(left: Array, right: Array, addend: Any, lanes: int) -> Any:
    """Add the products of two rows by two columns for each block; see `ir.Dot`."""
    group = left.shape[-1] // lanes
    # Blocks, rows or columns, halves of their neighbours, and these.
    rows, columns = (item.reshape(*item.shape[:-1], -1, 2, 2, group) for item in (left, right))
    total = addend
    for half in range(2):
        each = (rows[..., :, None, half, :], columns[..., None, :, half, :])
        whole = np.broadcast_shapes(*(item.shape for item in each))
        wide = (np.broadcast_to(item, whole) for item in each)
        x, w = (item.reshape(*whole[:-4], lanes * group) for item in wide)
        total = _dot(x, w, total, lanes)
    return total


def _reduce(name: str, lanes: Array) -> Any:
    while lanes.shape[-1] > 1:
        # By halves, as the IR defines it: then emitters and this agree to the bit.
        half = (lanes.shape[-1] + 1) // 2
        upper = lanes[..., half:]
        rest = upper.shape[-1]
        combined = lanes[..., :half].copy()
        combined[..., :rest] = apply_binary(name, lanes[..., :rest], upper)
        lanes = combined
    return lanes[..., 0]


def apply_binary(name: str, left: Any, right: Any) -> Any:
    """Apply one of `ir.BINARY` as the IR defines it."""
    return _BINARY[name](left, right)


def _quotient(left: Any, right: Any) -> Any:
    dtype = np.asarray(left).dtype
    if dtype.kind == "f":
        return left / right
    safe = np.where(right == 0, 1, right).astype(dtype)
    quotient = left // safe  # rounds down; the smallest integer has no absolute value
    if dtype.kind == "i":
        quotient = quotient + ((left % safe != 0) & ((left < 0) != (safe < 0)))
    return np.asarray(quotient).astype(dtype)[()]


def _remainder(left: Any, right: Any) -> Any:
    dtype = np.asarray(left).dtype
    if dtype.kind == "f":
        return np.fmod(left, right)
    safe = np.where(right == 0, 1, right).astype(dtype)
    return np.asarray(left - _quotient(left, safe) * safe).astype(dtype)[()]


def _where(condition: Any, left: Any, right: Any) -> Any:
    return np.where(condition, left, right)[()]


def _bfloat16(x: Any) -> Any:
    """Return float32 as the bits of bfloat16; see `ir.UNARY`."""
    bits = np.asarray(x).view(np.uint32)
    near = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    quiet = (bits >> 16 | 0x40).astype(np.uint16)
    return np.where(np.isnan(x), quiet, near)[()]


_UNARY: Mapping[str, Any] = {
    "neg": operator.neg,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "not": np.invert,
    "isnan": np.isnan,
    "bfloat16": _bfloat16,
}
_BINARY: Mapping[str, Any] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _quotient,
    "rem": _remainder,
    # Where one is NaN, the right operand, as `minps` and `maxps` have it.
    "min": lambda a, b: _where(a < b, a, b),
    "max": lambda a, b: _where(a > b, a, b),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "copysign": np.copysign,
}
_PREDICATES: Mapping[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
