# SPDX-License-Identifier: Apache-2.0
"""Compute what depends on constants only, where there is such a thing, by onnxscript's folding.

Nodes found to change nothing become an Identity of the same name, for `eliminate_identities`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from intarsia.graph.infer import infer_shapes
from intarsia.graph.metadata import COMPUTED_KEY
from intarsia.graph.ops import Family, operator_of
from intarsia.graph.snapshot import node_bodies
from intarsia.passes.provenance import hidden, makes_output

if TYPE_CHECKING:
    import onnx_ir as ir

_MOST_SWEEPS = 8
_MOST_INPUT_ELEMENTS = 2**26
_MOST_NEW_ELEMENTS = 2**20
_TYPED_CONSTANTS = 9
"""The operator set whose Constant may be of any type."""
_MOST_NEW_BYTES = 2**28
"""Limit of new constants minus freed ones: a chain of small nodes may double each time."""
# The library's own default (onnxscript, DEFAULT_CONSTANT_FOLD_INPUT_SIZE_LIMIT); `_should_fold`
# decides on what is larger.
_LIBRARY_INPUT_ELEMENTS = 8192
_MOST_SLOW_ELEMENTS = 2**10
"""Most elements of operators that are evaluated entry by entry, in Python."""
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
    """AveragePool BatchNormalization ConvTranspose Erf GRU Gelu GlobalMaxPool Hardmax LRN LSTM
    LogSoftmax LpNormalization LpPool MaxPool RNN Resize Softmax""".split()  # noqa: SIM905 - longer as a list
)
"""What the library's evaluator, which is the ONNX reference evaluator, gets wrong (some versions):
the reference backend puts it right (`backends.corrections`), folding leaves it to a backend."""
_STEPS = 4
"""Position of Slice's input `steps`."""
NATIVE_KINDS = "fiub"
"""Kinds of numpy types that tensors store as they are."""
REPLACED = frozenset(("CastLike", "Dropout", "SequenceAt", "Shape", "Size"))
"""What the library replaces although an input is fed."""
MAY_CHANGE_NOTHING = frozenset(("Cast", "Concat", "Expand", "Reshape"))
"""What it replaces where the result is the input."""
PASSING_ON = frozenset(("Abs", "Add", "Gather", "Identity", "Squeeze"))
"""What it replaces if it knows the numbers of the input, as of a constant."""


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes into initializers, except graph outputs, strings and sparse ones."""
    with hidden(model, lambda node: None if _is_liftable(node) else "intarsia.constant"):
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def fold_constants(model: ir.Model) -> None:
    """Fold until nothing folds: folded shapes let more shapes be inferred."""
    if not any(map(may_fold, model.graph)):
        return
    from intarsia.passes.folding import Folding  # its import takes longer than most passes

    folding = Folding(
        shape_inference=False,
        input_size_limit=_LIBRARY_INPUT_ELEMENTS,
        output_size_limit=_MOST_NEW_ELEMENTS,
        should_fold=_should_fold,
    )
    folding.most_bytes = _MOST_NEW_BYTES
    folding.has_typed_constants = model.opset_imports.get("", 0) >= _TYPED_CONSTANTS
    for _ in range(_MOST_SWEEPS):
        with hidden(model, _what_library_gets_wrong), np.errstate(all="ignore"):
            modified = folding(model).modified
        if not modified:
            break
        lift_constants(model)
        infer_shapes(model)


def _what_library_gets_wrong(node: ir.Node) -> str | None:
    """Return where to hide a CastLike that does not saturate: the library's Cast would."""
    is_hidden = node.op_type == "CastLike" and not node.attributes.get_int("saturate", 1)
    return "intarsia.unsaturated" if is_hidden else None


def may_fold(node: ir.Node) -> bool:
    """Tell whether the library might replace a node of the graph; "no" is certain.

    Args:
        node: Not of a body, which folding does not touch.
    """
    if node_bodies(node):
        return False
    values = [value for value in node.inputs if value is not None]
    if all(map(_is_constant, values)):
        is_looked_at = node.op_type in REPLACED | MAY_CHANGE_NOTHING | PASSING_ON
        is_known = all(value.const_value is not None for value in values)
        return is_looked_at or not is_known or _should_fold(node) is not False
    if node.op_type not in MAY_CHANGE_NOTHING:
        return node.op_type in REPLACED
    source, result = values[0], node.outputs[0]
    if node.op_type == "Cast":
        return source.dtype is None or source.dtype == result.dtype
    shapes = [value.shape for value in (*values, result) if value.shape is not None]
    if len(shapes) <= len(values) or not all(shape.is_static() for shape in shapes):
        return True
    if node.op_type == "Concat":
        return len(values) == 1 or any(0 in shape.numpy() for shape in shapes)
    return source.shape == result.shape


def _is_constant(value: ir.Value) -> bool:
    """Tell whether a value has numbers, or is of a Constant that was not lifted."""
    producer = value.producer()
    is_made = producer is not None and producer.op_type == "Constant"
    return is_made or value.const_value is not None


def _work(node: ir.Node, elements: int) -> int:
    """Return how many entries an operator of `_SLOW` works on; of Einsum the whole product."""
    sizes = [math.prod(value.shape.numpy()) for value in node.inputs if value and value.shape]
    return max(elements, math.prod(sizes) if node.op_type == "Einsum" else max(sizes, default=1))


def _is_liftable(node: ir.Node) -> bool:
    if node.op_type != "Constant" or len(node.attributes) != 1:
        return False
    (name,) = node.attributes  # numpy, which the pass uses, cuts zeros off the end of a string
    return name not in ("sparse_value", "value_string", "value_strings")


def _should_fold(node: ir.Node) -> bool | None:
    """Refuse what is random, quantised, misevaluated, big, kept, an output; take what is cheap."""
    operator = operator_of(node)
    if operator.is_random or operator.family is Family.QUANTISATION or _is_misevaluated(node):
        return False
    is_kept = COMPUTED_KEY in node.metadata_props or makes_output(node)
    if len(node.outputs) != 1 or is_kept:
        return False
    values = [value for value in node.inputs if value is not None]
    result = node.outputs[0].shape
    if not values or result is None or not result.is_static():
        return False
    tensors = [(value, value.const_value) for value in values if value.const_value is not None]
    if any(tensor.dtype.numpy().kind not in NATIVE_KINDS for _, tensor in tensors):
        return False
    # What nothing else reads goes away: then the result may be as large.
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
        numbers = None if steps is None else steps.const_value
        # with a step below zero its starts are not clamped
        return numbers is not None and bool((numbers.numpy() < 0).any())
    return node.op_type in MISEVALUATED
