# SPDX-License-Identifier: Apache-2.0
"""Who reads a tensor last: its memory may be overwritten by that primitive."""

from __future__ import annotations

from math import inf

from intarsia.backends.dnnl.program import PrimitiveCall, PrimitiveProgram


class TensorReads:
    """The last reads of a program's tensors; a view is the tensor that it shows.

    Args:
        program: Whose calls are looked at, by their positions.
    """

    def __init__(self, program: PrimitiveProgram) -> None:
        self._root: dict[int, int] = {}
        self._last: dict[int, float] = {}
        for position, call in enumerate(program.calls):
            if call.kind in ("view", "slice"):
                self._root[call.output] = self._root_of(call.inputs[0])
            for tensor_id in call.reads:
                self._last[self._root_of(tensor_id)] = position
        for tensor_id in program.outputs:
            self._last[self._root_of(tensor_id)] = inf

    def _root_of(self, tensor_id: int) -> int:
        return self._root.get(tensor_id, tensor_id)

    def add(self, call: PrimitiveCall, position: float) -> None:
        """Take into account a call that is put between two positions."""
        for tensor_id in call.reads:
            root = self._root_of(tensor_id)
            self._last[root] = max(self._last.get(root, 0), position)

    def is_last(self, tensor_id: int, call: PrimitiveCall, position: float) -> bool:
        """Tell whether a call at a position is the last to read a tensor, and reads it once."""
        root = self._root_of(tensor_id)
        roots = [self._root_of(other) for other in call.reads]
        return self._last.get(root, -1) <= position and roots.count(root) == 1
