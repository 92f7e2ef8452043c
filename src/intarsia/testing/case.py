# SPDX-License-Identifier: Apache-2.0
"""One operator with its operands as data, and the problem that it makes: a model with answers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from intarsia.arrays import Array, np_dtype
from intarsia.backends.evaluator import make_evaluator

FLOATS = ("float32", "float16", "float64")
NUMBERS = (*FLOATS, "int64", "int32")
ANY = (*NUMBERS, "uint8", "bool")

OPSET = 20
DRAWS = 2
"""Feeds per problem: the second shows what a bound step has kept of the first."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One input of a case.

    Attributes:
        shape: Its dimensions.
        low: Lower end of the values drawn.
        high: Upper end of the values drawn.
        dtype: Its element type; empty means the case's.
        values: What it holds, instead of drawn values.
        is_constant: Whether it is an initializer rather than an input.
    """

    shape: tuple[int, ...]
    low: float = -2.0
    high: float = 2.0
    dtype: str = ""
    values: tuple[Any, ...] | None = None
    is_constant: bool = False

    def draw(self, rng: np.random.Generator, dtype: str) -> Array:
        """Return an array of this operand; floats are drawn evenly between the two ends."""
        own = np_dtype(self.dtype or dtype)
        if self.values is not None:
            return np.array(self.values).astype(own).reshape(self.shape)
        if own.kind == "b":
            return rng.integers(0, 2, self.shape).astype(bool)
        if own.kind in "iu":
            low = max(int(np.ceil(self.low)), 0) if own.kind == "u" else int(np.ceil(self.low))
            return rng.integers(low, max(int(self.high), low) + 1, self.shape).astype(own)
        return rng.uniform(self.low, self.high, self.shape).astype(own)


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """One operator with its attributes and operands, to be tried in several dtypes.

    Attributes:
        op_type: The operator.
        name: What is special about it, in a few words joined by `_`.
        operands: One per input; None for an optional input that is absent.
        attributes: Names and values.
        dtypes: The element types to try.
        outputs: How many outputs it has.
        opset: Version of the operator set.
    """

    op_type: str
    name: str
    operands: tuple[Operand | None, ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    outputs: int = 1
    opset: int = OPSET

    def __str__(self) -> str:
        return f"{self.op_type}-{self.name}"


def fed(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "") -> Operand:
    """Return an input that is drawn."""
    return Operand(shape, low, high, dtype)


def weight(*shape: int, low: float = -1.0, high: float = 1.0, dtype: str = "") -> Operand:
    """Return an initializer that is drawn."""
    return Operand(shape, low, high, dtype, is_constant=True)


def given(values: Any, dtype: str = "") -> Operand:
    """Return an input with these values."""
    array = np.asarray(values)
    return Operand(array.shape, dtype=dtype, values=tuple(array.ravel().tolist()))


def constant(values: Any, dtype: str = "int64") -> Operand:
    """Return an initializer with these values."""
    array = np.asarray(values)
    flat = tuple(array.ravel().tolist())
    return Operand(array.shape, dtype=dtype, values=flat, is_constant=True)


def case(
    op_type: str,
    name: str,
    *operands: Operand | None,
    dtypes: tuple[str, ...] = ("float32",),
    outputs: int = 1,
    opset: int = OPSET,
    **attributes: Any,
) -> OperatorCase:
    """Return a case; further keywords are attributes of the operator."""
    return OperatorCase(op_type, name, operands, tuple(attributes.items()), dtypes, outputs, opset)


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """A model, feeds for it, and the value of every tensor in it.

    Attributes:
        title: Names it in messages.
        model: The model, with declared outputs.
        feeds: An array per input, by name, for each draw.
        values: What the reference computes: a value per tensor, by name, for each draw.
    """

    title: str
    model: onnx.ModelProto
    feeds: tuple[Mapping[str, Array], ...]
    values: tuple[Mapping[str, Any], ...]


@cache
def problem_of(case: OperatorCase, dtype: str) -> EvaluatedModel:
    """Return the problem of a case in one dtype; equal cases have equal numbers everywhere."""
    feeds: list[dict[str, Array]] = [{} for _ in range(DRAWS)]
    names, constants, inputs = [], [], []
    rng = np.random.default_rng(zlib.crc32(f"{case} {dtype}".encode()))
    for position, operand in enumerate(case.operands):
        names.append(f"x{position}" if operand is not None else "")
        if operand is None:
            continue
        if operand.is_constant:
            constants.append(numpy_helper.from_array(operand.draw(rng, dtype), names[-1]))
            continue
        for draw in feeds:
            draw[names[-1]] = operand.draw(rng, dtype)
        element = helper.np_dtype_to_tensor_dtype(np_dtype(operand.dtype or dtype))
        inputs.append(helper.make_tensor_value_info(names[-1], element, operand.shape))
    outputs = [f"y{position}" for position in range(case.outputs)]
    node = helper.make_node(
        case.op_type, names, outputs, case.op_type.lower(), **dict(case.attributes)
    )
    graph = helper.make_graph(
        [node], "case", inputs, [onnx.ValueInfoProto(name=n) for n in outputs], constants
    )
    shapes = ", ".join(_shape_text(operand) for operand in case.operands)
    return solve(f"{case} {dtype} {shapes}", graph, feeds, case.opset)


def solve(
    title: str,
    graph: onnx.GraphProto,
    feeds: Sequence[Mapping[str, Array]],
    opset: int = OPSET,
) -> EvaluatedModel:
    """Return a graph as a problem: evaluated, with the outputs that lack a type declared.

    Args:
        title: Names it in messages.
        graph: Its declared inputs and constants are complete; it is changed.
        feeds: An array per input, by name, for each draw.
        opset: Version of the operator set.
    """
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, ir_version=9, opset_imports=imports)
    values = tuple(evaluate(model, draw) for draw in feeds)
    for output in model.graph.output:
        if not output.HasField("type"):
            array = values[0][output.name]
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            output.CopyFrom(helper.make_tensor_value_info(output.name, element, array.shape))
    return EvaluatedModel(title, model, tuple(feeds), values)


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the reference evaluator computes for every tensor, by name."""
    names = [name for node in model.graph.node for name in node.output if name]
    with np.errstate(all="ignore"):
        results = make_evaluator(model).run(names, dict(feeds))
    computed = {
        name: np.asarray(value) if not isinstance(value, list) else value
        for name, value in zip(names, results, strict=True)
    }
    return {**feeds, **computed}


def _shape_text(operand: Operand | None) -> str:
    return "_" if operand is None else f"[{','.join(map(str, operand.shape))}]"
