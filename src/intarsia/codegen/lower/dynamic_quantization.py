# SPDX-License-Identifier: Apache-2.0
"""DynamicQuantizeLinear: the extrema of a tensor, a scale and a zero point of them, the codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intarsia.codegen.body import Apply, Body
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.conversions import convert_step
from intarsia.codegen.lower.grid import shared_reduction
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.reductions import in_settled_order
from intarsia.codegen.lower.views import View, without
from intarsia.graph.graph import ABSENT

_REAL, _CODE = "float32", "uint8"
_LARGEST = 255.0
_LIMITS = (("max", _LARGEST), ("min", 0.0))


def lower_dynamic_quantize(assembler: Assembler, group: KernelGroup) -> None:
    """Append the extrema, one kernel of a thread for scale and zero point, and the codes."""
    operation = group.anchor
    x = assembler.read(operation.node.inputs[0])
    data = x.unsqueezed(0)  # an extremum of one number is one as well
    axes = tuple(range(1, len(data.shape))) or (0,)
    extrema = []
    for kind in ("Min", "Max"):
        y = assembler.scratch(_REAL, (1,))
        spec = Reduction(
            data.domain, axes, kind, data.layout, without(_like(y, data), axes), unit=assembler.unit
        )
        spec = in_settled_order(assembler, spec, f"{operation.node.name}/{kind}")
        kernel = shared_reduction(assembler, spec)
        assembler.call(kernel, (data, y), group.names, kind.lower())
        extrema.append(y)
    outputs = [*operation.node.outputs, ABSENT, ABSENT][:3]
    scale, zero = (
        assembler.scratch(dtype, (1,))
        if value == ABSENT
        else assembler.target(value).reshaped((1,))
        for value, dtype in zip(outputs[1:], (_REAL, _CODE), strict=True)
    )
    constants = [_constant(assembler, number) for number in (0.0, 1.0, _LARGEST)]
    read = (*extrema, *constants)
    steps = (
        Apply("Min", (0, 2), (), _REAL),  # 5: the range has 0
        Apply("Max", (1, 2), (), _REAL),
        Apply("Equal", (5, 6), (), "bool"),
        Apply("Sub", (6, 5), (), _REAL),
        Apply("Where", (7, 3, 8), (), _REAL),
        Apply("Div", (9, 4), (), _REAL),  # 10: the scale
        Apply("Div", (5, 10), (), _REAL),
        Apply("Sub", (2, 11), (), _REAL),
        Apply("Clip", (12,), _LIMITS, _REAL),
        Apply("Round", (13,), (), _REAL),
        convert_step(14, _REAL, _CODE),
    )
    _call(assembler, group, read, (scale, zero), Body((_REAL,) * 5, steps, (10, 15)))
    if outputs[0] == ABSENT:
        return
    codes = assembler.target(outputs[0])
    code_steps = (
        Apply("Div", (0, 1), (), _REAL),
        Apply("Round", (3,), (), _REAL),
        convert_step(2, _CODE, _REAL),
        Apply("Add", (4, 5), (), _REAL),
        Apply("Clip", (6,), _LIMITS, _REAL),
        convert_step(7, _REAL, _CODE),
    )
    numbers = (view.reshaped(()).expanded(x.shape) for view in (scale, zero))
    body = Body((_REAL, _REAL, _CODE), code_steps, (8,))
    _call(assembler, group, (x, *numbers), (codes,), body)


def _like(y: View, data: View) -> View:
    """Return one number over the dimensions of what it is made of."""
    return y.expanded((1,) * (len(data.shape) - 1) + (1,))


def _constant(assembler: Assembler, number: float) -> View:
    return assembler.constant(f"the number {number:g}", np.full(1, number, _REAL))


def _call(
    assembler: Assembler,
    group: KernelGroup,
    read: Sequence[View],
    written: Sequence[View],
    body: Body,
) -> None:
    spec = Elementwise(
        written[0].domain,
        tuple(view.layout for view in read),
        tuple(view.layout for view in written),
        body,
        assembler.unit,
    )
    assembler.call(spec, (*read, *written), group.names)
