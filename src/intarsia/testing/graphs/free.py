# SPDX-License-Identifier: Apache-2.0
"""Graphs whose inputs have free dimensions: which may be free is found by trying other sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import onnx
from onnx import helper

from intarsia.testing.graphs.draft import MOST_ELEMENTS, Draft, NodeRun, Unfit
from intarsia.testing.graphs.growing import UNFIT

_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)
_DRAWS = 2
_TRIES = 6
_SECOND = 0.4

Place = tuple[str, int]
"""An input and one of its axes."""

Sizes = Mapping[Place, int]
"""By place, how many elements there are."""


def free(d: Draft, model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[dict[Place, int]]]:
    """Return a model with one or two free dimensions, and other sizes that it takes.

    A dimension is that of all inputs that have as many elements along the same axis, of one input
    alone, or of all axes with as many. Whether it may be free is tried: the reference computes the
    graph at other sizes, and at each of them the model passes the full check of `onnx.checker`.

    Args:
        d: The draft of the model.
        model: A valid model without free dimensions.

    Raises:
        Unfit: No dimension may be free.
    """
    inputs = {value.name: value for value in model.graph.input}
    places = [
        (name, axis)
        for name in inputs
        if name in d.redraws
        for axis in range(d.array(name).ndim)
        if d.array(name).shape[axis]
    ]
    names: dict[Place, str] = {}
    sizes: list[dict[Place, int]] = [{} for _ in range(_DRAWS)]
    for symbol in ("n", "m"):
        for _ in range(_TRIES):
            remaining = [place for place in places if place not in names]
            if not remaining:
                break
            tied = _tied(d, remaining, d.pick(remaining))
            drawn = [int(d.pick(_SIZES)) for _ in range(_DRAWS)]
            tried = [
                {**known, **dict.fromkeys(tied, n)} for known, n in zip(sizes, drawn, strict=True)
            ]
            if all(_fits(d, model, each) for each in tried):
                names |= dict.fromkeys(tied, symbol)
                sizes = tried
                break
        if not names or not d.chance(_SECOND):
            break
    if not names:
        raise Unfit("no dimension may be free")
    return _declared(model, names, d), sizes


def _tied(d: Draft, places: Collection[Place], first: Place) -> list[Place]:
    """Return the places that are free together with one."""
    extent = d.array(first[0]).shape[first[1]]
    alike = [place for place in places if d.array(place[0]).shape[place[1]] == extent]
    along = [place for place in alike if place[1] == first[1]]
    return list(d.pick(([first], along, along, alike)))


def _shape(d: Draft, name: str, sizes: Sizes) -> tuple[int, ...]:
    return tuple(sizes.get((name, i), extent) for i, extent in enumerate(d.array(name).shape))


def feeds_of(d: Draft, feeds: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Return other numbers of these sizes; what never changes stays.

    Args:
        d: The draft.
        feeds: An array per input, by name.
        sizes: What `free` returned.
    """
    return {
        name: d.redraws[name](d.rng, _shape(d, name, sizes)) if name in d.redraws else array
        for name, array in feeds.items()
    }


def _fits(d: Draft, model: onnx.ModelProto, sizes: Sizes) -> bool:
    """Tell whether a model is valid at these sizes, and the reference computes it."""
    static = onnx.ModelProto()
    static.CopyFrom(model)
    feeds = {value.name: d.values[value.name] for value in model.graph.input}
    feeds = feeds_of(d, feeds, sizes)
    for value in static.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_value = sizes.get((value.name, axis), dim.dim_value)
    _open(static.graph.output)
    values = {**d.constants, **feeds}
    try:
        onnx.checker.check_model(static, full_check=True)
        for node in static.graph.node:
            made = NodeRun(node, d.opset, values)(values)
            if any(getattr(value, "size", 0) > 4 * MOST_ELEMENTS for value in made):
                return False
            values.update(zip(node.output, made, strict=True))
    except Exception:  # the reference evaluator raises anything where shapes do not fit
        return False
    return True


def _declared(model: onnx.ModelProto, names: Mapping[Place, str], d: Draft) -> onnx.ModelProto:
    """Return a model whose inputs have free dimensions, and whose outputs have any."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in names:
                dim.dim_param = names[value.name, axis]
    _open(made.graph.output)
    try:
        onnx.checker.check_model(made, full_check=True)
    except UNFIT as error:
        raise Unfit(str(error)) from error
    return made


def _open(outputs: Any) -> None:
    """Leave the dimensions of outputs open."""
    for output in outputs:
        if output.type.HasField("tensor_type"):
            element, rank = output.type.tensor_type.elem_type, output.type.tensor_type.shape.dim
            shape = [f"{output.name}_{axis}" for axis in range(len(rank))]
            output.CopyFrom(helper.make_tensor_value_info(output.name, element, shape))
