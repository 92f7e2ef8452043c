# SPDX-License-Identifier: Apache-2.0
"""What matches of the table mean, and how they are written as graphs.

Tensors are as ONNX has them: channels before the window's dimensions. cuDNN's engines for that
order add in one order alone, another tensor before the row of the channels, and apply a function
only behind such a row; where a model has none, zeros are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intarsia.backends.cuda.cublas.table import DraftedProduct, drafted
from intarsia.backends.cuda.cudnn.graphs import DnnGraph, DnnOperation, DnnTensor, dense_strides

if TYPE_CHECKING:
    from intarsia.arrays import Array
    from intarsia.backends.cuda.cublas.products import LtProduct
    from intarsia.backends.cuda.library_program import RegionTensors
    from intarsia.graph.graph import Value
    from intarsia.graph.pattern import Match

CHANNELS = 1
"""The dimension of channels."""


@dataclass(frozen=True, slots=True)
class GraphDraft:
    """The meaning of a match.

    Attributes:
        node: The node whose operation is the first.
        operation: That one; its result is `y` or `o` of its letters.
        operands: By letter, as cuDNN sees them; their tensors are ids of values.
        result: As cuDNN sees it.
        arrays: By letter, what is made of constants.
        residual: The id of the value that is added; -1 for none.
        bias: The same of the row of the channels.
        is_relu: Whether negative numbers become zero in the end.
    """

    node: str
    operation: DnnOperation
    operands: Mapping[str, DnnTensor]
    result: DnnTensor
    arrays: Mapping[str, Array] = field(default_factory=dict)
    residual: int = -1
    bias: int = -1
    is_relu: bool = False


def graph_of(match: Match, tensors: RegionTensors) -> DnnGraph:
    """Return what a match with its followers computes.

    Args:
        match: Of the table.
        tensors: Of its region.
    """
    last = match.followers[-1] if match.followers else match
    if isinstance(last.meaning, DraftedProduct):
        return _DnnGraphWriter(tensors).product(drafted(match))
    assert isinstance(last.meaning, GraphDraft)
    return _DnnGraphWriter(tensors).graph(last.meaning, match.result)


@dataclass(slots=True)
class _DnnGraphWriter:
    """Writes one graph.

    Attributes:
        tensors: Of the region.
        made: Of the graph.
        operations: Of the graph.
    """

    tensors: RegionTensors
    made: list[DnnTensor] = field(default_factory=list)
    operations: list[DnnOperation] = field(default_factory=list)

    def graph(self, draft: GraphDraft, result: int) -> DnnGraph:
        letters = {
            letter: self._operand(draft, letter)
            for letter in draft.operands
            if letter != "BIAS" or draft.operation.kind == "norm"
        }
        dims = draft.result.dims
        steps: list[tuple[str, int]] = []
        if draft.operation.kind == "convolution":
            if draft.residual >= 0:
                added = DnnTensor(draft.result.dtype, dims, draft.result.strides)
                steps.append(("ADD", self._of_value(added, draft.residual)))
            if draft.bias >= 0 or draft.residual >= 0 or draft.is_relu:
                steps.append(("ADD", self._row(draft)))
        elif "BIAS" in draft.operands and draft.operation.kind == "pointwise":
            steps.append(("ADD", self._operand(draft, "BIAS")))
        if draft.is_relu:
            steps.append(("RELU_FWD", -1))
        output = "O" if draft.operation.kind == "attention" else "Y"
        self._chain(draft.operation, letters, output, steps, draft.result, result)
        return DnnGraph(draft.node, self.made, self.operations)

    def product(self, product: LtProduct) -> DnnGraph:
        m, n, k, batch = product.m, product.n, product.k, product.batch
        sides = (
            (product.left, m, k, product.is_left_turned, product.is_left_repeated),
            (product.right, k, n, product.is_right_turned, product.is_right_repeated),
        )
        letters = {}
        for letter, (value, rows, columns, is_turned, is_repeated) in zip("AB", sides, strict=True):
            inner = [1, rows] if is_turned else [columns, 1]
            seen = [1 if is_repeated else batch, rows, columns]
            tensor = DnnTensor(product.dtype, seen, [rows * columns, *inner])
            letters[letter] = self._of_value(tensor, value)
        steps: list[tuple[str, int]] = []
        if product.bias >= 0:
            row = DnnTensor(product.dtype, [1, 1, n], [n, n, 1])
            steps.append(("ADD", self._of_value(row, product.bias)))
        if product.activation:
            modes = {"Relu": "RELU_FWD", "Gelu": "GELU_APPROX_TANH_FWD"}
            steps.append((modes[product.activation], -1))
        dims = [batch, m, n]
        result = DnnTensor(product.dtype, dims, dense_strides(dims))
        self._chain(DnnOperation("product", {}), letters, "C", steps, result, product.result)
        return DnnGraph(product.node, self.made, self.operations)

    def _chain(
        self,
        first: DnnOperation,
        letters: Mapping[str, int],
        output: str,
        steps: Sequence[tuple[str, int]],
        result: DnnTensor,
        value: int,
    ) -> None:
        """Add an operation, and what is applied to its result before that is written."""
        inner, last = DnnTensor("float32", result.dims, result.strides), -1
        for place in range(len(steps) + 1):
            is_last = place == len(steps)
            made = self._of_value(result, value) if is_last else self._add(inner)
            if place == 0:
                tensors = {**letters, output: made}
                operation = _with(first, tensors)
            else:
                mode, other = steps[place - 1]
                tensors = {"X": last, "Y": made}
                operation = DnnOperation(
                    "pointwise", tensors if other < 0 else {**tensors, "B": other}, mode
                )
            self.operations.append(operation)
            last = made

    def _row(self, draft: GraphDraft) -> int:
        """Return the row of the channels that is added, which may be zeros."""
        dims = [1] * len(draft.result.dims)
        dims[CHANNELS] = draft.result.dims[CHANNELS]
        row = DnnTensor(draft.result.dtype, dims, dense_strides(dims))
        if draft.bias >= 0:
            return self._of_value(row, draft.bias)
        name = f"zeros of {dims[CHANNELS]} channels, {row.dtype}"
        number = self.tensors.constant(name, zeros(row.dtype, dims[1:2]))
        return self._add(_at(row, number))

    def _operand(self, draft: GraphDraft, letter: str) -> int:
        tensor = draft.operands[letter]
        if letter in draft.arrays:
            name = f"{letter} of {self.tensors.region.graph.values[draft.result.tensor].name}"
            return self._add(_at(tensor, self.tensors.constant(name, draft.arrays[letter])))
        return (
            self._add(tensor)
            if tensor.number is not None
            else self._of_value(tensor, tensor.tensor)
        )

    def _of_value(self, tensor: DnnTensor, value: int) -> int:
        return self._add(_at(tensor, self.tensors.number(value)))

    def _add(self, tensor: DnnTensor) -> int:
        self.made.append(tensor)
        return len(self.made) - 1


def _at(tensor: DnnTensor, number: int) -> DnnTensor:
    return DnnTensor(tensor.dtype, tensor.dims, tensor.strides, number)


def _with(operation: DnnOperation, tensors: dict[str, int]) -> DnnOperation:
    return msgspec.structs.replace(operation, tensors=tensors)


def dense(value: Value) -> DnnTensor:
    """Return a value as it lies."""
    return seen(value, list(value.shape or ()))


def seen(value: Value, dims: list[int]) -> DnnTensor:
    """Return a dense value with other dimensions."""
    return DnnTensor(value.dtype, dims, dense_strides(dims), value.id)


def zeros(dtype: str, dims: list[int]) -> Array:
    """Return zeros of a type, by numpy's name."""
    return np.zeros(dims, np.dtype(dtype))
