# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a model that still shows a fault: first fewer nodes, then smaller shapes.

A part is fed with what the reference makes of everything before it. The end is found by bisection:
the shortest beginning of the model that shows the fault ends at the node where it is first seen.
The start is found alike, then nodes in between are left out while the fault is still there (delta
debugging), and at last dimensions are cut. Of a region that is known to be at fault, single nodes
are tried first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from intarsia.arrays import Array
from intarsia.errors import IntarsiaError
from intarsia.graph.graph import Graph
from intarsia.graph.region import Region
from intarsia.verifying.references import embedded
from intarsia.verifying.values import Fault, Symptom

Judge = Callable[[bytes, Mapping[str, Any]], Fault | None]
"""Returns what is wrong with a model on inputs, or None; raises if it cannot be tried."""


_FATAL_SIZES = 2
"""Sizes that are cut where each model that shows the fault ends the process."""


@dataclass(frozen=True, slots=True)
class ReducedModel:
    """What is left of a model.

    Attributes:
        model: A serialized `ModelProto`.
        feeds: An array per input, by name.
        fault: What it shows.
        nodes: Names of its nodes in the model that it was cut from.
        operators: Their operators.
        first: Name of the node at which the fault is first seen.
    """

    model: bytes
    feeds: Mapping[str, Any]
    fault: Fault
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    first: str


class Reducer:
    """Cuts a model down to what still shows a fault.

    Args:
        graph: The model.
        values: What the reference makes of every value, by name.
        judge: Tells the fault.
        seconds: How long to go on; then the best so far is returned.
        symptom: Of the fault; None means that of the whole model.
        is_direct: Whether one node alone, or two in a row, are tried before all else: most faults
            are of an operator. Then `first` is where the fault is shown, not where it begins.
    """

    def __init__(
        self,
        graph: Graph,
        values: Mapping[str, Any],
        judge: Judge,
        seconds: float = math.inf,
        symptom: Symptom | None = None,
        *,
        is_direct: bool = False,
    ) -> None:
        self._graph, self._values, self._judge = graph, values, judge
        self._is_direct = is_direct
        self._end = time.monotonic() + seconds
        self._kind = symptom
        self._best: ReducedModel | None = None

    def reduce(self) -> ReducedModel | None:
        """Return the smallest model that shows a fault; None if the whole model shows none."""
        nodes = list(range(len(self._graph.nodes)))
        if self._is_direct and self._shows_in_few(nodes):
            assert self._best is not None
            return self._with_smaller_shapes(self._best)
        if not self._shows(nodes):
            return None
        end = self._shortest(len(nodes), lambda count: self._shows(nodes[:count]))
        nodes = nodes[:end]
        length = self._shortest(len(nodes), lambda count: self._shows(nodes[-count:]))
        nodes = self._without(nodes[-length:])
        assert self._best is not None
        return self._with_smaller_shapes(self._best)

    def _shows_in_few(self, nodes: Sequence[int]) -> bool:
        """Try a node of each operator alone, then two in a row; keep the first that shows it.

        That costs little: what crashes or hangs does so once, where bisection would have it do so
        at every other step.
        """
        for length in (1, 2):
            tried: set[tuple[str, ...]] = set()
            for start in range(len(nodes) - length + 1):
                part = nodes[start : start + length]
                operators = tuple(self._graph.nodes[i].op_type for i in part)
                if operators in tried or self._is_over:
                    continue
                tried.add(operators)
                if self._shows(part):
                    return True
        return False

    def _with_smaller_shapes(self, reduced: ReducedModel) -> ReducedModel:
        """Return the model with each size of its dimensions cut that can be."""
        is_fatal = reduced.fault.symptom in (Symptom.CRASHED, Symptom.HUNG)  # each costs a worker
        for size in sizes_of(reduced.model, reduced.feeds)[: _FATAL_SIZES if is_fatal else None]:
            for smaller in (1,) if is_fatal else (1, 2, size // 4):
                if self._is_over or not 0 < smaller < size:
                    continue
                model, feeds = with_size(reduced.model, reduced.feeds, size, smaller)
                fault = self._try(model, feeds)
                if fault is not None:
                    reduced = replace(reduced, model=model, feeds=feeds, fault=fault)
                    break
        return reduced

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._end

    def _shortest(self, high: int, shows: Callable[[int], bool]) -> int:
        """Return the smallest count that shows the fault, if those above it all do."""
        low = 0
        while high - low > 1 and not self._is_over:
            middle = (low + high) // 2
            if shows(middle):
                high = middle
            else:
                low = middle
        return high

    def _without(self, nodes: list[int]) -> list[int]:
        """Return nodes of which none can be left out: the last one stays."""
        size = max(1, len(nodes) // 2)
        while len(nodes) > 1 and not self._is_over:
            for start in range(0, len(nodes) - 1, size):
                left = nodes[:start] + nodes[min(start + size, len(nodes) - 1) :]
                if len(left) < len(nodes) and self._shows(left):
                    nodes = left
                    break
            else:
                if size == 1:
                    break
                size //= 2
                continue
            size = min(size, max(1, len(nodes) // 2))
        return nodes

    def _shows(self, nodes: Sequence[int]) -> bool:
        """Try a part, and keep it if it shows the fault: each is smaller than the one before."""
        region = Region.of(self._graph, nodes)
        names = [self._graph.values[i].name for i in region.inputs]
        if any(name not in self._values for name in names) or not region.outputs:
            return False
        try:
            model = embedded(region)
        except IntarsiaError:
            return False
        feeds = {name: self._values[name] for name in names}
        fault = self._try(model, feeds)
        if fault is None:
            return False
        every = [self._graph.nodes[i] for i in nodes]
        self._best = ReducedModel(
            model,
            feeds,
            fault,
            tuple(node.name for node in every),
            tuple(node.op_type for node in every),
            every[-1].name,
        )
        return True

    def _try(self, model: bytes, feeds: Mapping[str, Any]) -> Fault | None:
        """Return the fault of a model, if it is of the same kind as that of the whole."""
        try:
            fault = self._judge(model, feeds)
        except IntarsiaError:
            return None
        if fault is None or self._kind not in (None, fault.symptom):
            return None
        self._kind = fault.symptom
        return fault


def sizes_of(model: bytes, feeds: Mapping[str, Any]) -> list[int]:
    """Return the sizes above 1 of dimensions of inputs and constants, the largest first.

    Args:
        model: A serialized `ModelProto` with its constants.
        feeds: An array per input, by name.
    """
    constants = onnx.load_from_string(model).graph.initializer
    shapes = [*map(np.shape, feeds.values()), *(tuple(one.dims) for one in constants)]
    return sorted({size for shape in shapes for size in shape if size > 1}, reverse=True)


def with_size(
    model: bytes, feeds: Mapping[str, Any], size: int, smaller: int
) -> tuple[bytes, dict[str, Any]]:
    """Return a model whose dimensions of one size have a smaller one.

    Inputs and constants are cut at their beginnings, and integers that give the size follow. The
    result need not be valid: whoever tries it finds out.

    Args:
        model: A serialized `ModelProto` with its constants.
        feeds: An array per input, by name.
        size: Which dimensions.
        smaller: What they become.
    """

    def cut(array: Array) -> Array:
        if array.dtype == np.int64 and array.ndim <= 1 and (array == size).any():
            return np.where(array == size, np.int64(smaller), array)
        kept = tuple(slice(0, smaller if extent == size else extent) for extent in array.shape)
        return np.ascontiguousarray(array[kept]).reshape([k.stop for k in kept])

    changed = onnx.load_from_string(model)
    constants = [
        numpy_helper.from_array(cut(numpy_helper.to_array(one)), one.name)
        for one in changed.graph.initializer
    ]
    del changed.graph.initializer[:], changed.graph.value_info[:]
    changed.graph.initializer.extend(constants)
    new_feeds = {name: cut(np.asarray(array)) for name, array in feeds.items()}
    for value in (*changed.graph.input, *changed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = smaller
    return changed.SerializeToString(), new_feeds
