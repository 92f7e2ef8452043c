# SPDX-License-Identifier: Apache-2.0
"""Compute what depends on constants only, by onnxscript's folding.

Nodes found to change nothing become an Identity of the same name, for `eliminate_identities`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass
from onnxscript.optimizer import FOLDED_FROM_KEY
from onnxscript.optimizer._constant_folding import FoldConstantsPass

from intarsia.graph.infer import infer_shapes
from intarsia.graph.snapshot import node_bodies
from intarsia.passes.provenance import RANDOM, hidden, makes_output, stand_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_SWEEPS = 8
_MOST_INPUT_ELEMENTS = 2**26
_MOST_NEW_ELEMENTS = 2**20
_TYPED_CONSTANTS = 9
"""The operator set whose Constant may be of any type."""
_MOST_NEW_BYTES = 2**28
"""Of all that folding makes, beside what it frees: a chain of small nodes may double at each."""
_LIBRARY_INPUT_ELEMENTS = 8192
_MOST_SLOW_ELEMENTS = 2**10
"""Of what is evaluated entry by entry, in Python."""
_SLOW = frozenset(
    """AffineGrid AveragePool Col2Im Conv ConvInteger ConvTranspose DFT DeformConv Einsum GRU
    GridSample LRN LSTM LpPool MaxPool MaxRoiPool MaxUnpool NonMaxSuppression QLinearConv RNN Resize
    RoiAlign STFT Upsample""".split()  # noqa: SIM905 - longer as a list
)
"""Operators that may take long for their size."""
_LINEAR = frozenset(
    """Add Cast Concat ConstantOfShape Div Expand Flatten Identity Mul Neg Reshape Slice Sqrt
    Squeeze Sub Transpose Unsqueeze""".split()  # noqa: SIM905 - longer as a list
)
MISEVALUATED = frozenset(
    """AveragePool BatchNormalization ConvTranspose Erf Gelu Hardmax LRN LogSoftmax LpNormalization
    LpPool MaxPool Resize Softmax""".split()  # noqa: SIM905 - longer as a list
)
"""What the library's evaluator, which is the ONNX reference evaluator, gets wrong (some versions):
the reference backend puts it right (`backends.corrections`), folding leaves it to a backend."""
_QUANTISED = ("DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear")
_SEQUENCES = ("ConcatFromSequence", "SplitToSequence")
_STEPS = 4
"""Position of Slice's input `steps`."""
_NATIVE_KINDS = "fiub"


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes into initializers, except graph outputs, strings and sparse ones."""
    with hidden(model, lambda node: None if _is_liftable(node) else "intarsia.constant"):
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def fold_constants(model: ir.Model) -> None:
    """Fold until nothing folds: folded shapes let more shapes be inferred."""
    folding = _Folding(
        shape_inference=False,
        input_size_limit=_LIBRARY_INPUT_ELEMENTS,
        output_size_limit=_MOST_NEW_ELEMENTS,
        should_fold=_should_fold,
    )
    folding.has_typed_constants = model.opset_imports.get("", 0) >= _TYPED_CONSTANTS
    for _ in range(_MOST_SWEEPS):
        with hidden(model), np.errstate(all="ignore"):
            modified = folding(model).modified
        if not modified:
            break
        lift_constants(model)
        infer_shapes(model)


class _Folding(FoldConstantsPass):  # type: ignore[misc]
    """The library's pass, kept off control flow, sequences, copies and wrong results.

    What it makes in all sweeps together is bounded.
    """

    made_bytes = 0
    has_typed_constants = True
    """Whether Constant may hold anything but floats: an output cannot be an initializer."""

    def process_node(self, node: ir.Node, is_function: bool) -> Any:
        source = node.inputs[0] if node.inputs else None
        copies = node.op_type == "Identity" and (source is None or source.const_value is None)
        if copies or node.op_type in _SEQUENCES or node_bodies(node):
            return None
        if not self.has_typed_constants and makes_output(node):
            return None
        try:
            return super().process_node(node, is_function)
        except RuntimeError:  # the evaluator of a shape operator may raise anything
            return None

    def new_initializer(self, node: ir.Node, array: NDArray[Any]) -> ir.Value | None:
        value = node.outputs[0]
        if array.dtype.kind not in _NATIVE_KINDS or value.shape != array.shape:
            return None
        if value.dtype != ir.DataType.from_numpy(array.dtype):
            return None
        freed = sum(
            source.const_value.nbytes
            for source in node.inputs
            if source is not None and source.const_value is not None and len(source.uses()) == 1
        )
        added = max(0, array.nbytes - freed)
        if self.made_bytes + added > _MOST_NEW_BYTES:
            return None
        self.made_bytes += added
        made: ir.Value | None = super().new_initializer(node, array)
        return made

    def replace_node(self, node: ir.Node, replacement: Any, root: Any) -> None:
        for new in replacement.new_nodes:
            _as_tensor(new)
            new.name = node.name
            stand_for(new, [node])
        super().replace_node(node, replacement, root)
        for value in replacement.new_outputs:  # it grows with each step of a chain
            value.meta.pop(FOLDED_FROM_KEY, None)
            value.metadata_props.pop(FOLDED_FROM_KEY, None)


def _work(node: ir.Node, elements: int) -> int:
    """Return how many entries an operator of `_SLOW` works on; of Einsum the whole product."""
    sizes = [math.prod(value.shape.numpy()) for value in node.inputs if value and value.shape]
    return max(elements, math.prod(sizes) if node.op_type == "Einsum" else max(sizes, default=1))


def _as_tensor(node: ir.Node) -> None:
    """Write the numbers of a Constant as a tensor: its other attributes came with opset 12."""
    if node.op_type != "Constant":
        return
    for name in ("value_int", "value_ints"):
        if name in node.attributes:
            numbers = np.array(node.attributes.pop(name).value, np.int64)
            node.attributes.add(ir.AttrTensor("value", ir.tensor(numbers)))


def _is_liftable(node: ir.Node) -> bool:
    if node.op_type != "Constant" or len(node.attributes) != 1:
        return False
    (name,) = node.attributes  # numpy, which the pass uses, cuts zeros off the end of a string
    return name not in ("sparse_value", "value_string", "value_strings")


def _should_fold(node: ir.Node) -> bool | None:
    """Refuse what is random, quantised, misevaluated, big or an output; take what is cheap."""
    if node.op_type in (*RANDOM, *_QUANTISED) or _is_misevaluated(node):
        return False
    if len(node.outputs) != 1 or makes_output(node):
        return False
    values = [value for value in node.inputs if value is not None]
    result = node.outputs[0].shape
    if not values or result is None or not result.is_static():
        return False
    tensors = [(value, value.const_value) for value in values if value.const_value is not None]
    if any(tensor.dtype.numpy().kind not in _NATIVE_KINDS for _, tensor in tensors):
        return False
    freed = sum(tensor.size for value, tensor in tensors if len(value.uses()) == 1)
    elements = math.prod(result.numpy())
    if elements > max(_MOST_NEW_ELEMENTS, freed):
        return False
    if node.op_type in _SLOW and _work(node, elements) > _MOST_SLOW_ELEMENTS:
        return False
    if sum(tensor.size for _, tensor in tensors) > _MOST_INPUT_ELEMENTS:
        return False
    return True if node.op_type in _LINEAR else None


def _is_misevaluated(node: ir.Node) -> bool:
    if node.op_type == "Slice" and len(node.inputs) > _STEPS:
        steps = node.inputs[_STEPS]
        known = None if steps is None else steps.const_value
        return known is not None and bool((known.numpy() < 0).any())  # its starts are not clamped
    return node.op_type in MISEVALUATED
