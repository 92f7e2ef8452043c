# SPDX-License-Identifier: Apache-2.0
"""onnxscript's folding, kept off what it must not touch, and bounded.

It brings the reference evaluator and all operators with it; so without folding nothing is imported.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnxscript.optimizer import FOLDED_FROM_KEY
from onnxscript.optimizer._constant_folding import FoldConstantsPass

from intarsia.graph.snapshot import node_bodies
from intarsia.passes.fold_constants import NATIVE_KINDS
from intarsia.passes.provenance import makes_output, stand_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEQUENCES = ("ConcatFromSequence", "SplitToSequence")


logger = logging.getLogger(__name__)


_thread = threading.local()


def _demote(record: logging.LogRecord) -> bool:
    """Log what is told by a thread that folds for us in our log instead, at level debug."""
    if not getattr(_thread, "is_folding", False):
        return True
    logger.debug("onnxscript: %s", record.getMessage())
    return False


@contextmanager
def _library_at_debug() -> Iterator[None]:
    """Log what the library's folding warns of in this thread in our log, at level debug."""
    # The filter stays: another thread may fold, and passes what others tell. One that went away
    # while the library's logger walks its filters would make it miss the next.
    logging.getLogger(FoldConstantsPass.__module__).addFilter(_demote)
    _thread.is_folding = True
    try:
        yield
    finally:
        _thread.is_folding = False


class Folding(FoldConstantsPass):  # type: ignore[misc]
    """The library's pass, kept off control flow, sequences, copies and wrong results.

    What it makes in all sweeps together is bounded.
    """

    made_bytes = 0
    most_bytes = 0
    """Limit of the constants that it makes minus those that it frees."""
    has_typed_constants = True
    """Whether Constant may hold anything but floats: an output cannot be an initializer."""

    def call(self, model: ir.Model) -> Any:
        """Fold once; what cannot be computed stays as it is, which is no user's concern."""
        with _library_at_debug():
            return super().call(model)

    def process_node(self, node: ir.Node, is_function: bool) -> Any:
        """Return what replaces a node, or None; also None for nodes that it must not fold."""
        source = node.inputs[0] if node.inputs else None
        copies = node.op_type == "Identity" and (source is None or source.const_value is None)
        if copies or node.op_type in _SEQUENCES or node_bodies(node):
            return None
        if node.op_type == "CastLike" and node.attributes:
            return None  # the Cast that the library makes of it leaves `saturate` out
        if not self.has_typed_constants and makes_output(node):
            return None
        try:
            return super().process_node(node, is_function)
        except RuntimeError:  # the evaluator of a shape operator may raise anything
            return None

    def new_initializer(self, node: ir.Node, array: NDArray[Any]) -> ir.Value | None:
        """Return a constant; nothing if it would not be as declared, or is too much."""
        value = node.outputs[0]
        if array.dtype.kind not in NATIVE_KINDS or value.shape != array.shape:
            return None
        if value.dtype != ir.DataType.from_numpy(array.dtype):
            return None
        freed = sum(
            source.const_value.nbytes
            for source in node.inputs
            if source is not None and source.const_value is not None and len(source.uses()) == 1
        )
        added = max(0, array.nbytes - freed)
        if self.made_bytes + added > self.most_bytes:
            return None
        self.made_bytes += added
        value_made: ir.Value | None = super().new_initializer(node, array)
        return value_made

    def replace_node(self, node: ir.Node, replacement: Any, root: Any) -> None:
        """Put new nodes in a node's place, under its name and with its annotations."""
        for new in replacement.new_nodes:
            _as_tensor(new)
            new.name = node.name
            stand_for(new, [node])
        super().replace_node(node, replacement, root)
        for value in replacement.new_outputs:  # it grows with each step of a chain
            value.meta.pop(FOLDED_FROM_KEY, None)
            value.metadata_props.pop(FOLDED_FROM_KEY, None)


def _as_tensor(node: ir.Node) -> None:
    """Write the numbers of a Constant as a tensor: its other attributes came with opset 12."""
    if node.op_type != "Constant":
        return
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            numbers = np.array(node.attributes.pop(name).value, np.int64)
            node.attributes.add(ir.AttrTensor("value", ir.tensor(numbers)))
