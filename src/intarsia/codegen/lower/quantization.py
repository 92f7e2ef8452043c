# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear as elementwise steps, which join their neighbours."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from intarsia.codegen.body import Apply
from intarsia.codegen.lower.conversions import FITS, convert_step
from intarsia.codegen.lower.operation import Array, Operation
from intarsia.codegen.lower.reciprocals import reciprocals
from intarsia.codegen.scalar_ops.arithmetic import MULTIPLY_ADD

Operand: TypeAlias = "int | tuple[str, Array]"
"""The id of a value, or a named array that is made when compiling."""
Steps: TypeAlias = tuple[tuple[Operand, ...], tuple[Apply, ...]]
"""Operands, and what is done with them: as in a `Recipe`."""

_SCALE, _ZERO_POINT = 1, 2
"""Positions of inputs."""
_BOUNDS = ("least", "largest")

_LIMITS: dict[str, tuple[float, float]] = {
    **{name: (np.iinfo(name).min, np.iinfo(name).max) for name in ("int8", "uint8")},
    **{name: (np.iinfo(name).min, np.iinfo(name).max) for name in ("int16", "uint16")},
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int2": (-2, 1),
    "uint2": (0, 3),
}
"""Integers that numbers are quantised to, with the least and the largest."""

_SHORT = frozenset(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"))
_FLOATS = _SHORT | {"float4_e2m1fn"}
"""Floats that they are."""


def refuse_quantization(operation: Operation) -> str | None:
    """Say why a `QuantizeLinear` or `DequantizeLinear` is not taken."""
    codes, real = operation.inputs[0], operation.output
    taken = frozenset(_LIMITS) | _FLOATS
    if operation.op_type == "QuantizeLinear":
        codes, real = real, codes
    else:
        taken |= {"int32"}
    for value, dtypes in ((codes, taken), (real, ("float32",))):
        if value.dtype not in dtypes:
            return f"{operation.op_type} of {value.dtype} has no native code"
    if operation.inputs[_SCALE].dtype != "float32":
        return f"its scale is {operation.inputs[_SCALE].dtype}"
    if operation.attribute("precision", 0):
        return "it asks for a precision"
    if all(_is_trailing(operation, position) for position in (_SCALE, _ZERO_POINT)):
        return None
    return operation.why_computed({_SCALE: "scale is", _ZERO_POINT: "zero point is"})


def _axis(operation: Operation) -> int:
    axis: int = operation.attribute("axis", 1)
    return axis % max(1, len(operation.shape()))


def _is_trailing(operation: Operation, position: int) -> bool:
    """Tell whether a parameter is broadcast as numpy does it: one number, or the last axis."""
    value = operation.value(position)
    if value is None or value.constant is not None or value.shape in ((), (1,)):
        return True
    is_last = _axis(operation) == len(operation.shape()) - 1
    return is_last and not operation.attribute("block_size", 0)


def _parameter(operation: Operation, position: int, role: str) -> Operand | None:
    """Return a parameter over the dimensions of the input, or None if it is absent."""
    value = operation.value(position)
    if value is None:
        return None
    if value.constant is None:
        return value.id
    array = _spread(operation, operation.array(position))
    return f"{role} {value.name} over {array.shape}", array


def _spread(operation: Operation, array: Array) -> Array:
    shape, axis = operation.shape(), _axis(operation)
    size = operation.attribute("block_size", 0)
    if size and array.ndim == len(shape):
        return np.repeat(array, size, axis).take(range(shape[axis]), axis)
    if array.size == 1:
        return array.reshape((1,) * len(shape))
    return array.reshape([-1 if dim == axis else 1 for dim in range(len(shape))])


class _StepList:
    """Steps by the numbers of what they read: operands first, then steps."""

    def __init__(self, *sources: Operand) -> None:
        self.sources = sources
        self.steps: list[Apply] = []

    def append(self, step: Apply) -> int:
        """Add a step, and return its number."""
        self.steps.append(step)
        return len(self.sources) + len(self.steps) - 1

    def finish(self) -> Steps:
        """Return operands and steps."""
        return self.sources, tuple(self.steps)


def _start(operation: Operation, dtype: str, *others: Operand) -> tuple[_StepList, int | None]:
    """Return a draft, and the number of the zero point in it, as a dtype; None for none.

    Its operands are the input, the scale, and what else is wanted.
    """
    scale = _parameter(operation, _SCALE, "scale")
    assert scale is not None
    operands = (operation.node.inputs[0], scale, *others)
    value = operation.value(_ZERO_POINT)
    zero_point = _parameter(operation, _ZERO_POINT, "zero_point")
    if value is None or zero_point is None:
        return _StepList(*operands), None
    if isinstance(zero_point, int):
        draft = _StepList(*operands, zero_point)
        return draft, draft.append(convert_step(len(operands), value.dtype, dtype))
    name, array = zero_point
    if not array.astype(np.float32).any():
        return _StepList(*operands), None
    return _StepList(*operands, (f"{name} as {dtype}", array.astype(dtype))), len(operands)


def dequantize(operation: Operation) -> Steps:
    """Return `(x - zero_point) * scale`; the difference of integers is one."""
    source = operation.inputs[0].dtype
    dtype = "float32" if source in _FLOATS else "int32"
    draft, zero_point = _start(operation, dtype)
    x = draft.append(convert_step(0, source, dtype))
    if zero_point is not None:
        x = draft.append(Apply("Sub", (x, zero_point), (), dtype))
    if dtype != "float32":
        x = draft.append(convert_step(x, dtype, "float32"))
    draft.append(Apply("Mul", (x, _SCALE), (), "float32"))
    return draft.finish()


def dequantized(operation: Operation) -> Array | None:
    """Return what a DequantizeLinear makes of constants, the bits of its kernel; else None."""
    known = [operation.value(i) is None or operation.is_constant(i) for i in range(3)]
    x = operation.inputs[0]
    if (
        operation.op_type != "DequantizeLinear"
        or not all(known)
        or x.dtype not in {*_LIMITS, "int32"}
    ):
        return None
    difference = operation.array(0).astype(np.int32)
    if operation.value(_ZERO_POINT) is not None:
        zero_point = _spread(operation, operation.array(_ZERO_POINT))
        difference = difference - zero_point.astype(np.int32)
    scale = _spread(operation, operation.array(_SCALE)).astype(np.float32)
    return (difference.astype(np.float32) * scale).astype(np.float32)


def quantize(operation: Operation, *, has_reciprocals: bool = False) -> Steps:
    """Return `x / scale`, moved by the zero point and saturated; for integers rounded to even.

    Args:
        operation: A QuantizeLinear.
        has_reciprocals: Whether quotients by known scales are products, of the same bits.
    """
    dtype = operation.output.dtype
    limits = _LIMITS.get(dtype)
    if limits is not None:
        multiplied = _multiply_to_integers(operation, dtype, limits) if has_reciprocals else None
        return multiplied or _quantize_to_integers(operation, dtype, limits)
    draft, zero_point = _start(operation, "float32")
    x = draft.append(Apply("Div", (0, _SCALE), (), "float32"))
    if zero_point is not None:
        x = draft.append(Apply("Add", (x, zero_point), (), "float32"))
    saturate = operation.attribute("saturate", 1)
    attributes = (("saturate", saturate),) if dtype in _SHORT else ()
    draft.append(convert_step(x, "float32", dtype, attributes))
    return draft.finish()


def _quantize_to_integers(operation: Operation, dtype: str, limits: tuple[float, float]) -> Steps:
    """Return steps that saturate first: to integers, so that rounding leaves the limits.

    NaN is the least number, as in ONNX Runtime.
    """
    value, scale = operation.value(_ZERO_POINT), _parameter(operation, _SCALE, "scale")
    zero_point = _parameter(operation, _ZERO_POINT, "zero_point")
    assert scale is not None
    x = operation.node.inputs[0]
    name = "no zero point" if value is None else value.name
    if isinstance(zero_point, int):
        assert value is not None
        bounds = [np.full((1,) * len(operation.shape()), limit, "int32") for limit in limits]
        named = [(f"{role} {dtype}", a) for role, a in zip(_BOUNDS, bounds, strict=True)]
        draft = _StepList(x, scale, *named, zero_point)
        code: int | None = draft.append(convert_step(4, value.dtype, "int32"))
        assert code is not None
        differences = [draft.append(Apply("Sub", (i, code), (), "int32")) for i in (2, 3)]
        low, high = (draft.append(convert_step(i, "int32", "float32")) for i in differences)
    else:
        zeros = np.zeros((1,) * len(operation.shape()), np.int32)
        codes = zeros if zero_point is None else zero_point[1].astype(np.int32)
        bounds = [(limit - codes).astype(np.float32) for limit in limits]
        named = [
            (f"{role} {dtype} with {name} over {codes.shape}", array)
            for role, array in zip(_BOUNDS, bounds, strict=True)
        ]
        moved = [(f"zero_point {name} over {codes.shape} as int32", codes)] if codes.any() else []
        draft = _StepList(x, scale, *named, *moved)
        low, high, code = 2, 3, 4 if moved else None
    y = draft.append(Apply("Div", (0, _SCALE), (), "float32"))
    y = draft.append(Apply("Clip", (y, low, high), (("nan", "least"),), "float32"))
    y = draft.append(Apply("Round", (y,), (), "float32"))
    y = draft.append(convert_step(y, "float32", "int32"))
    if code is not None:
        y = draft.append(Apply("Add", (y, code), (), "int32"))
    draft.append(convert_step(y, "int32", dtype, FITS))
    return draft.finish()


def _multiply_to_integers(
    operation: Operation, dtype: str, limits: tuple[float, float]
) -> Steps | None:
    """Return steps with the same results that multiply by parts of the scale's reciprocal.

    Limits are those of the number, so that no product is of infinities: the float32 next to a
    limit's multiple of the scale is rounded to the limit. None where the scale is not known, or
    has no such parts.
    """
    if operation.attribute("block_size", 0):
        return None  # as many scales as that are better divided by than looked at
    scale, value = operation.value(_SCALE), operation.value(_ZERO_POINT)
    zero_point = _parameter(operation, _ZERO_POINT, "zero_point")
    if scale is None or scale.constant is None or isinstance(zero_point, int):
        return None
    divisors = _spread(operation, operation.array(_SCALE))
    parts = reciprocals(divisors)
    if parts is None:
        return None
    codes = np.zeros((1,) * len(operation.shape()), np.int32)
    if zero_point is not None:
        codes = zero_point[1].astype(np.int32)
    name = "no zero point" if value is None else value.name
    bounds = [(limit - codes).astype(np.float32) * divisors for limit in limits]
    of = f"{scale.name} over {divisors.shape}"
    named = [
        (f"{role} {dtype} with {name} times {of}", array.astype(np.float32))
        for role, array in zip(_BOUNDS, bounds, strict=True)
    ]
    factors = [(f"reciprocal of {of}", parts.head), (f"rest of the reciprocal of {of}", parts.rest)]
    moved = [(f"zero_point {name} over {codes.shape} as int32", codes)] if codes.any() else []
    draft = _StepList(operation.node.inputs[0], *named, *factors, *moved)
    x = draft.append(Apply("Clip", (0, 1, 2), (("nan", "least"),), "float32"))
    product = draft.append(Apply("Mul", (x, 4), (), "float32"))
    y = draft.append(Apply(MULTIPLY_ADD, (x, 3, product), (), "float32"))
    y = draft.append(Apply("Round", (y,), (), "float32"))
    y = draft.append(convert_step(y, "float32", "int32"))
    if moved:
        y = draft.append(Apply("Add", (y, 5), (), "int32"))
    draft.append(convert_step(y, "int32", dtype, FITS))
    return draft.finish()
