# SPDX-License-Identifier: Apache-2.0
"""What several rooms need to know of an ONNX operator: the columns of its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from intarsia.graph.ops.counts import NodeShapes


class Family(Enum):
    """What an operator does, roughly."""

    ELEMENTWISE = auto()
    """A function of the elements at one place of its operands, broadcast."""
    CONTRACTION = auto()
    """Sums of products: convolutions, matrix products, recurrences."""
    POOLING = auto()
    """Windows that slide, which `ceil_mode` may round up."""
    REDUCTION = auto()
    """Reduces chosen axes to one number."""
    AXES = auto()
    """Other work along axes: normalisations, softmax, scans, global pooling."""
    QUANTISATION = auto()
    """Between floats and the scaled integers that stand for them."""
    MOVEMENT = auto()
    """Elements are put elsewhere, or come from nowhere; none is computed."""
    STRUCTURE = auto()
    """Control flow, sequences, optionals: only bodies know what is computed."""
    OTHER = auto()


class CallWeight(Enum):
    """Whether an operator is worth a call of its own to a backend."""

    LIGHT = auto()
    """Too little for that: it goes with the maker of its operand."""
    LOOP = auto()
    """As light, but some backends run it in a loop of its own."""
    LINK = auto()
    """Worth one, but nothing between other work on integers: kernels for these swallow it."""
    HEAVY = auto()


class ViewKind(Enum):
    """How a result could lie in the memory of the first operand."""

    NONE = auto()
    SAME = auto()
    """It is the operand."""
    RESHAPED = auto()
    """The same elements in the same order have another shape."""
    STRIDED = auto()
    """Elements lie at regular distances."""


class Part(Enum):
    """How much of a tensor."""

    NONE = auto()
    SOME = auto()
    ALL = auto()


class Indexing(Enum):
    """What the second operand is to the first."""

    NONE = auto()
    AXIS = auto()
    """Indices into one dimension."""
    TUPLES = auto()
    """Its last dimension holds an index for each of several dimensions."""


@dataclass(frozen=True, slots=True)
class OnnxOperator:
    """The row of an operator of ONNX's main domain.

    Attributes:
        name: The operator.
        family: What it does.
        flops: Counts its operations by the definition; None if it computes nothing itself.
        least_flops: Counts them by the cheapest algorithm in use, where that is another one.
        weight: Whether it is worth a call of its own.
        view: How its result could lie in the memory of its first operand.
        casts: Whether it changes the element type and keeps the number as far as that holds it.
        keeps_scale: How Q/DQ commute with it: between DequantizeLinear and QuantizeLinear with one
            scale and zero point for all it gives the integers that it gives of integers.
        carries: How much of its first operand (Concat: of each) its results hold unchanged, as far
            as indices are followed through it.
        reads: How much of its first operand it reads; some: only what it puts out.
        indexing: What its second operand is to the first.
        shape_operands: Positions of the inputs on whose numbers the shape of a result depends.
        finds_entries: Whether its results have as many entries as it finds in its operand.
        is_random: Whether it may give other results when computed again.
        is_commutative: Whether its operands may change places.
    """

    name: str
    family: Family
    flops: Callable[[NodeShapes], int] | None = None
    least_flops: Callable[[NodeShapes], int] | None = None
    weight: CallWeight = CallWeight.HEAVY
    view: ViewKind = ViewKind.NONE
    casts: bool = False
    keeps_scale: bool = False
    carries: Part = Part.NONE
    reads: Part = Part.ALL
    indexing: Indexing = Indexing.NONE
    shape_operands: tuple[int, ...] = ()
    finds_entries: bool = False
    is_random: bool = False
    is_commutative: bool = False
