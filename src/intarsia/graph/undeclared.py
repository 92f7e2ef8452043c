# SPDX-License-Identifier: Apache-2.0
"""Operators that ONNX Runtime puts into ONNX's own domain, where ONNX has none: as functions.

Its optimiser writes them into models, which ONNX's checker refuses. A function is inlined when the
model is loaded, so that what is left is ONNX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser
import onnx_ir as ir

from intarsia.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_DOMAIN = "intarsia.undeclared"
_LIKE = 15
"""The operator set that brought CastLike."""
_AXES_INPUT = 18
"""The operator set since which the axes of ReduceMean are an input."""


def _simplified(node: ir.Node, version: int) -> str:
    """Return the nodes of a layer normalisation without a mean: `y` of `x` and `scale`."""
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    axis = node.attributes.get_int("axis", -1)
    if axis != -1 or version < _LIKE or len(node.outputs) != 1:
        raise ModelError(
            f"{node.name!r} is a SimplifiedLayerNormalization of ONNX Runtime that is not taken: "
            "over other dimensions than the last, with two results, or before operator set 15",
            hint="export the model without ONNX Runtime's optimisation",
        )
    mean = "m = ReduceMean<axes = [-1]>(p)"
    if version >= _AXES_INPUT:
        mean = "a = Constant<value_ints = [-1]>() m = ReduceMean(p, a)"
    return (
        f"c = Cast<to = 1>(x) p = Mul(c, c) {mean}"
        f" e = Constant<value_float = {epsilon!r}>() v = Add(m, e) r = Sqrt(v) q = Div(c, r)"
        " t = CastLike(q, scale) y = Mul(t, scale)"
    )


_BODIES: Mapping[str, Callable[[ir.Node, int], str]] = {"SimplifiedLayerNormalization": _simplified}

UNDECLARED = frozenset(_BODIES)


def define_undeclared(model: ir.Model) -> None:
    """Give a model functions for such operators of its graph, in place.

    Raises:
        ModelError: One has a form that has no function.
    """
    version = model.opset_imports.get("", 1)
    places = [node for node in model.graph if not node.domain and node.op_type in _BODIES]
    for number, node in enumerate(places):
        name = f"{node.op_type}_{number}"
        header = f'<domain: "{_DOMAIN}", opset_import: ["": {version}]>'
        text = f"{header} {name} (x, scale) => (y) {{ {_BODIES[node.op_type](node, version)} }}"
        function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
        model.functions[function.identifier()] = function
        model.opset_imports[_DOMAIN] = 1
        node.domain, node.op_type = _DOMAIN, name
        node.attributes.clear()
