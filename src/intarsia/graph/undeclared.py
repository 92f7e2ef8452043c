# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX Runtime puts into ONNX's own domain, where ONNX has none: as functions.

Its optimiser writes them into models, which ONNX's checker refuses. A function is inlined when the
model is loaded, so that what is left is ONNX.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import onnx.parser
import onnx_ir as ir

from intarsia.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOMAIN = "intarsia.undeclared"
_LIKE = 15
"""The operator set that brought CastLike."""
_DECLARED = 17
"""The operator set that brought LayerNormalization; ONNX Runtime writes it into older ones."""
_AXES_INPUT = 18
"""The operator set since which the axes of ReduceMean are an input."""


def _normalized(node: ir.Node, version: int) -> str:
    """Return the nodes of a normalisation of rows: `y` of `x`, `scale` and perhaps `bias`."""
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    axis = node.attributes.get_int("axis", -1)
    is_wide = node.inputs[1] is not None and node.inputs[1].dtype == ir.DataType.FLOAT
    if axis != -1 or not (is_wide or version >= _LIKE) or len(node.outputs) != 1:
        raise ModelError(
            f"{node.name!r} is a {node.op_type} of ONNX Runtime that is not taken: over other "
            "dimensions than the last, with several results, or of halves before operator set 15",
            hint="export the model without ONNX Runtime's optimisation",
        )

    def mean(result: str, of: str) -> str:
        if version < _AXES_INPUT:
            return f" {result} = ReduceMean<axes = [-1]>({of})"
        return f" {result}a = Constant<value_ints = [-1]>() {result} = ReduceMean({of}, {result}a)"

    has_mean = node.op_type == "LayerNormalization"
    centre = f"{mean('n', 'c')} d = Sub(c, n)" if has_mean else ""
    row, rest = "d" if has_mean else "c", "q" if is_wide else "t"
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None  # noqa: PLR2004
    # Constants of attributes other than tensors are younger than some of these models.
    tensor = f"Constant<value = float e {{{epsilon!r}}}>()"
    return (
        f"c = Cast<to = 1>(x){centre} p = Mul({row}, {row}){mean('m', 'p')}"
        f" e = {tensor} v = Add(m, e) r = Sqrt(v) q = Div({row}, r)"
        f"{'' if is_wide else ' t = CastLike(q, scale)'}"
        f" {f's = Mul({rest}, scale) y = Add(s, bias)' if has_bias else f'y = Mul({rest}, scale)'}"
    )


_BEFORE: Mapping[str, float] = {
    "SimplifiedLayerNormalization": inf,
    "LayerNormalization": _DECLARED,
}
"""By operator, the operator set in which it is ONNX's own."""


def is_undeclared(name: str, version: int) -> bool:
    """Tell whether an operator of ONNX's domain is one that only ONNX Runtime has there.

    Args:
        name: Its type.
        version: Of the operator set.
    """
    return version < _BEFORE.get(name, 0)


def define_undeclared(model: ir.Model) -> None:
    """Give a model functions for such operators of its graph, in place.

    Raises:
        ModelError: One has a form that has no function.
    """
    version = model.opset_imports.get("", 1)
    places = [
        node for node in model.graph if not node.domain and is_undeclared(node.op_type, version)
    ]
    for number, node in enumerate(places):
        name = f"{node.op_type}_{number}"
        header = f'<domain: "{_DOMAIN}", opset_import: ["": {version}]>'
        inputs = ", ".join(("x", "scale", "bias")[: len(node.inputs)])
        text = f"{header} {name} ({inputs}) => (y) {{ {_normalized(node, version)} }}"
        function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
        model.functions[function.identifier()] = function
        model.opset_imports[_DOMAIN] = 1
        node.domain, node.op_type = _DOMAIN, name
        node.attributes.clear()
