# SPDX-License-Identifier: Apache-2.0
"""Fix the dynamic dimensions of a model's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from intarsia.errors import ModelError
from intarsia.graph.check import nearest
from intarsia.graph.snapshot import node_bodies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def specialise_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs these shapes, in place; a symbolic dimension is fixed wherever it stands.

    Raises:
        ModelError: No input has that name, or the rank, a fixed dimension or another input's
            dimension of the same symbol contradicts.
    """
    inputs = {value.name or "": value for value in model.graph.inputs}
    symbols: dict[str, tuple[int, str]] = {}
    for name, dims in shapes.items():
        if name not in inputs:
            raise ModelError(
                f"the model has no input {name!r}{nearest(name, list(inputs))}",
                hint=f"its inputs are {', '.join(map(repr, inputs)) or 'none'}",
            )
        _specialise_input(inputs[name], tuple(dims), symbols)
    if symbols:
        _replace(model.graph, {symbol: size for symbol, (size, _) in symbols.items()})


def check_shapes(model: ir.Model) -> None:
    """Check that every tensor input has a fixed shape.

    Raises:
        ModelError: A dimension is free; the hint shows the option that fixes it.
    """
    for value in model.graph.inputs:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            continue
        if value.shape is None:
            raise ModelError(
                f"input {value.name!r} has no shape",
                hint=f"give it one, for example --shape {value.name}=1x3x224x224",
            )
        free = [
            f"{index} ({dim.value})" if dim.value else str(index)
            for index, dim in enumerate(value.shape)
            if not isinstance(dim, int)
        ]
        if free:
            dims = "x".join(str(dim) if isinstance(dim, int) else "1" for dim in value.shape)
            raise ModelError(
                f"input {value.name!r} has free dimensions: {', '.join(free)}",
                hint=f"fix them, for example --shape {value.name}={dims}",
            )


def _specialise_input(
    value: ir.Value, dims: tuple[int, ...], symbols: dict[str, tuple[int, str]]
) -> None:
    name = value.name or ""
    text = "x".join(map(str, dims))
    if any(isinstance(dim, bool) or not isinstance(dim, int) or dim < 0 for dim in dims):
        raise ModelError(
            f"shape {text} of input {name!r} is not a list of sizes",
            hint=f"give whole numbers, for example --shape {name}=1x3x224x224",
        )
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise ModelError(f"input {name!r} is not a tensor", hint=f"leave out --shape {name}=...")
    declared = value.shape
    if declared is None:
        value.shape = ir.Shape(dims)
        return
    known = "x".join(str(dim) if isinstance(dim, int) else dim.value or "?" for dim in declared)
    hint = f"give a shape that fits {known or 'a scalar'}"
    if len(declared) != len(dims):
        raise ModelError(
            f"shape {text or '()'} of input {name!r} has {len(dims)} dimensions,"
            f" the model has {len(declared)}",
            hint=hint,
        )
    for index, (old, new) in enumerate(zip(declared, dims, strict=True)):
        if isinstance(old, int):
            if old != new:
                raise ModelError(
                    f"shape {text} of input {name!r} contradicts the model: dimension {index} is"
                    f" {old}",
                    hint=hint,
                )
        elif old.value:
            size, other = symbols.setdefault(old.value, (new, name))
            if size != new:
                raise ModelError(
                    f"dimension {old.value!r} would be {size} in input {other!r} but {new} in"
                    f" input {name!r}",
                    hint=f"give dimension {old.value!r} one size",
                )
    value.shape = ir.Shape(dims)


def _replace(graph: ir.Graph, sizes: Mapping[str, int]) -> None:
    graphs = [graph]
    while graphs:
        current = graphs.pop()
        values = [*current.inputs]
        for node in current:
            values += node.outputs
            graphs += node_bodies(node)
        for value in values:
            shape = value.shape
            if shape is None or shape.is_static():
                continue
            value.shape = ir.Shape(
                dim if isinstance(dim, int) else sizes.get(dim.value or "", dim) for dim in shape
            )
