# SPDX-License-Identifier: Apache-2.0
"""Gelu as exporters spell it, with the error function or with tanh: one step instead of ten.

A shape says which operators there are; whether its constants are Gelu's is tried with numbers.

Source:
    Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016 (arXiv:1606.08415).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from intarsia.arrays import Array
from intarsia.codegen.lower.halves import model_dtype
from intarsia.codegen.patterns.spelling import Meaning
from intarsia.graph.extract import constant_array
from intarsia.graph.pattern import CONSTANT, SOURCE, Match, Op, Pattern

_erf = np.vectorize(math.erf, otypes=[np.float64])
_FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Erf": _erf,
    "Mul": np.multiply,
    "Pow": np.power,
    "Tanh": np.tanh,
}
_POINTS = np.linspace(-6, 6, 49)
_CLOSE = {"float16": 2e-4, "bfloat16": 4e-3, "float32": 5e-7, "float64": 5e-14}
"""How far results may be from Gelu's: constants are rounded to the dtype of the model."""


def _by_erf(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))
    return result


def _by_tanh(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


_KINDS = {"none": _by_erf, "tanh": _by_tanh}


def _halves(factor: Op) -> Iterator[Op]:
    """Yield the spellings of half the source times a factor."""
    yield Op("Mul", Op("Mul", SOURCE, factor), CONSTANT)
    yield Op("Mul", Op("Mul", SOURCE, CONSTANT), factor)
    yield Op("Mul", SOURCE, Op("Mul", factor, CONSTANT))


def _shapes() -> Iterator[Op]:
    for argument in (Op("Div", SOURCE, CONSTANT), Op("Mul", SOURCE, CONSTANT)):
        yield from _halves(Op("Add", Op("Erf", argument), CONSTANT))
    for argument in _tanh_arguments():
        yield from _halves(Op("Add", Op("Tanh", argument), CONSTANT))


def _tanh_arguments() -> Iterator[Op]:
    square = Op("Mul", SOURCE, SOURCE)
    cubes = (
        Op("Mul", Op("Pow", SOURCE, CONSTANT), CONSTANT),
        Op("Mul", Op("Mul", SOURCE, square), CONSTANT),
        Op("Mul", Op("Mul", Op("Mul", SOURCE, CONSTANT), SOURCE), SOURCE),
    )
    for cube in cubes:
        yield Op("Mul", Op("Add", SOURCE, cube), CONSTANT)
    yield Op("Mul", Op("Mul", SOURCE, CONSTANT), Op("Add", Op("Mul", square, CONSTANT), CONSTANT))


def _meaning(match: Match) -> Meaning | str:
    graph, result = match.graph, match.graph.values[match.nodes[0].outputs[0]]
    source = graph.values[match.source]
    dtype = model_dtype(source)
    if dtype not in _CLOSE or (result.dtype, result.shape) != (source.dtype, source.shape):
        return "its result has another dtype or shape"
    computed = _computed(match)
    if computed is None:
        return "a constant is not one number"
    for kind, exact in _KINDS.items():
        if np.allclose(computed, exact(_POINTS), rtol=0, atol=_CLOSE[dtype]):
            return Meaning("Gelu", (match.source,), {"approximate": kind})
    return "its constants are other ones"


def _computed(match: Match) -> Array | None:
    """Return what a match makes of some points, in float64."""
    numbers: dict[int, Array] = {match.source: _POINTS}
    for node in sorted(match.nodes, key=lambda node: node.id):
        for operand in node.inputs:
            constant = match.graph.values[operand].constant
            if constant is not None:
                array = constant_array(match.graph.values[operand])
                if array.size != 1:
                    return None
                numbers[operand] = array.astype(np.float64).reshape(())
        with np.errstate(all="ignore"):
            made = _FUNCTIONS[node.op_type](*(numbers[operand] for operand in node.inputs))
        numbers[node.outputs[0]] = made
    return numbers[match.nodes[0].outputs[0]]


GELUS = tuple(Pattern("Gelu", shape, _meaning) for shape in _shapes())
