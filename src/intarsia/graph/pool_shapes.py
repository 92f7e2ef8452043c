# SPDX-License-Identifier: Apache-2.0
"""How many windows a pooling with `ceil_mode` has, where onnx's inference counts one too many.

A window that would begin in the padding behind the input is none: so say ONNX from operator set 22
on, and ONNX Runtime, onnx.reference and PyTorch of every version. The inference of onnx counts it
in older operator sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from intarsia.graph.ops import Family, operator_of


def drop_empty_windows(proto: onnx.ModelProto, inferred: onnx.ModelProto) -> bool:
    """Rewrite poolings of a skeleton so that inference counts their windows as ONNX does.

    Args:
        proto: Changed in place: such a pooling gets explicit pads in the place of `ceil_mode`.
        inferred: The same with inferred shapes.

    Returns:
        Whether a pooling was rewritten; what follows it has to be inferred again.
    """
    pairs = zip(_graphs(proto.graph), _graphs(inferred.graph), strict=True)
    rewritten = [_rewrite(graph, known) for graph, known in pairs]
    return any(rewritten)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _rewrite(graph: onnx.GraphProto, known: onnx.GraphProto) -> bool:
    pools = [node for node in graph.node if operator_of(node).family is Family.POOLING]
    pools = [node for node in pools if _attributes(node).get("ceil_mode", 0)]
    if not pools:
        return False
    infos = (*known.input, *known.value_info, *known.output)
    shapes = {info.name: _shape(info) for info in infos}
    changed = False
    for node in pools:
        before, after = shapes.get(node.input[0]), shapes.get(node.output[0])
        pads = _explicit_pads(_attributes(node), before, after) if before and after else None
        if pads is not None:
            kept = [item for item in node.attribute if item.name not in ("ceil_mode", "pads")]
            del node.attribute[:]
            node.attribute.extend((*kept, onnx.helper.make_attribute("pads", pads)))
            changed = True
    return changed


def _explicit_pads(
    attributes: dict[str, Any], before: tuple[int, ...], after: tuple[int, ...]
) -> list[int] | None:
    """Return pads that give the right shape without `ceil_mode`; None if nothing is wrong."""
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    ones = [1] * rank
    given = attributes.get("pads") or [0] * 2 * rank
    begins, ends = given[:rank], list(given[rank:])
    is_wrong = False
    for dim, (size, out) in enumerate(zip(before[2:], after[2:], strict=True)):
        stride = (attributes.get("strides") or ones)[dim]
        span = (kernel[dim] - 1) * (attributes.get("dilations") or ones)[dim] + 1
        if (out - 1) * stride >= size + begins[dim] and out > 1:
            is_wrong = True
        else:
            ends[dim] = max(ends[dim], (out - 1) * stride + span - size - begins[dim])
    return [*begins, *ends] if is_wrong else None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    dims = info.type.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)
