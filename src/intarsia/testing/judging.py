# SPDX-License-Identifier: Apache-2.0
"""What the kit's checks raise, and what a refusal and an artifact must say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from intarsia.backends.artifact import tensor_spec
from intarsia.backends.borders import blocked_spec
from intarsia.backends.values import Artifact, Refusal
from intarsia.errors import ReasonCode
from intarsia.graph.region import Region

if TYPE_CHECKING:
    from intarsia.graph.graph import Node


class ConformanceError(AssertionError):
    """A backend does not keep a promise; the message says which, and where."""


class NotApplicable(Exception):  # noqa: N818 - no error: the backend said no, or has no such thing
    """There is nothing to check; the message says why."""


def judge_refusal(
    nodes: Sequence[Node], node_id: object, refusal: object, target: str, title: str
) -> None:
    """Require that a refusal names a node, its operator, the target and a reason.

    Args:
        nodes: Of the graph that was asked about.
        node_id: The key under which a rule refuses.
        refusal: What the rule returned.
        target: Text of the target that was asked.
        title: Names what was asked in messages.
    """
    is_node = isinstance(node_id, int) and 0 <= node_id < len(nodes)
    if not is_node:
        raise ConformanceError(f"{title}: a rule refuses {node_id!r}, which is not a node's id")
    assert isinstance(node_id, int)
    node = nodes[node_id]
    if not isinstance(refusal, Refusal):
        raise ConformanceError(f"{title}: a rule returned {refusal!r}, which is not a Refusal")
    facts = {
        "node": (refusal.node, node.name),
        "op_type": (refusal.op_type, node.op_type),
        "target": (refusal.target, target),
    }
    for name, (stated, expected) in facts.items():
        if stated != expected:
            raise ConformanceError(
                f"{title}: the refusal of {node.op_type} has {name} {stated!r}, not {expected!r}"
            )
    if refusal.code not in tuple(ReasonCode):
        raise ConformanceError(f"{title}: {refusal.code!r} is not a ReasonCode")
    if not refusal.reason:
        raise ConformanceError(f"{title}: the refusal of {node.op_type} gives no reason")


def judge_artifact(
    artifact: object,
    region: Region,
    backend: str,
    title: str,
    blocks: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Require that an artifact names its backend and has the border that was asked for.

    Args:
        artifact: What `compile` returned.
        region: What was compiled.
        backend: Name of the backend.
        title: Names what was compiled in messages.
        blocks: Of the border tensors in blocks of channels how many are in one, by name.
    """
    if not isinstance(artifact, Artifact):
        raise ConformanceError(f"{title}: compile returned {artifact!r}, which is not an Artifact")
    if artifact.backend != backend:
        raise ConformanceError(
            f"{title}: the artifact names backend {artifact.backend!r}, not "
            f"{backend!r}, so that nothing could load it"
        )
    for side, specs, ids in (
        ("inputs", artifact.inputs, region.inputs),
        ("outputs", artifact.outputs, region.outputs),
    ):
        plain = (tensor_spec(region.graph.values[i]) for i in ids)
        expected = tuple(blocked_spec(spec, blocks.get(spec.name, 0)) for spec in plain)
        if tuple(specs) != expected:
            stated = "; ".join(map(str, specs))
            raise ConformanceError(
                f"{title}: the artifact's {side} are ({stated}), not those of the region: "
                f"({'; '.join(map(str, expected))})"
            )
