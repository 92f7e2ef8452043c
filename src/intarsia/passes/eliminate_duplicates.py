# SPDX-License-Identifier: Apache-2.0
"""Compute once what several nodes compute alike (common subexpression elimination)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.graph.signature import operator_digest
from intarsia.graph.snapshot import node_bodies
from intarsia.passes.provenance import absorb, device_of

if TYPE_CHECKING:
    import onnx_ir as ir

_RANDOM = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
_DOMAINS = ("", "ai.onnx.ml")


def eliminate_duplicates(model: ir.Model) -> list[str]:
    """Let the first of equal nodes stand for all; equal includes the annotation.

    Operators of other domains, functions, random operators, nodes with bodies and nodes that make
    graph outputs are left alone.
    """
    done = []
    alike: dict[tuple[object, ...], list[ir.Node]] = {}
    for node in list(model.graph):
        if not _may_go(model, node):
            continue
        key = (node.domain, node.op_type, device_of(node), *node.inputs)
        earlier = alike.setdefault(key, [])
        twin = _twin(model, node, earlier) if earlier else None
        if twin is None:
            earlier.append(node)
            continue
        done.append(node.name or "")
        absorb(twin, node)
        for gone, kept in zip(node.outputs, twin.outputs, strict=True):
            gone.replace_all_uses_with(kept)
        model.graph.remove(node, safe=True)
    return done


def _may_go(model: ir.Model, node: ir.Node) -> bool:
    return (
        node.domain in _DOMAINS
        and node.op_type not in _RANDOM
        and node.op_identifier() not in model.functions
        and not any(value.is_graph_output() for value in node.outputs)
        and not node_bodies(node)
    )


def _twin(model: ir.Model, node: ir.Node, earlier: list[ir.Node]) -> ir.Node | None:
    digest = operator_digest(model, node)
    present = [bool(value.name) for value in node.outputs]
    for other in earlier:
        if [bool(value.name) for value in other.outputs] == present and (
            operator_digest(model, other) == digest
        ):
            return other
    return None
