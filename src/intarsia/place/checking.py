# SPDX-License-Identifier: Apache-2.0
"""Which targets take a model's nodes, for `intarsia check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from intarsia.plan.checking import CheckFinding, CheckReport, CheckVerdict

if TYPE_CHECKING:
    from intarsia.place.setting import Setting

_MOST_NODES = 5


def check_setting(file: str, setting: Setting) -> CheckReport:
    """Return which targets take a model's nodes, without compiling.

    Args:
        file: Where the model came from.
        setting: The prepared model and the machine.
    """
    return CheckReport.of(file, (*_model(setting), *_targets(setting), *_homeless(setting)))


def _model(setting: Setting) -> Iterator[CheckFinding]:
    graph = setting.graph
    inputs = ", ".join(str(graph.values[value].name) for value in graph.inputs)
    message = f"{len(graph.nodes)} nodes after preparation; inputs {inputs or 'none'}"
    yield CheckFinding("model", CheckVerdict.OK, message)


def _targets(setting: Setting) -> Iterator[CheckFinding]:
    count = len(setting.graph.nodes)
    for capability in setting.capabilities:
        codes = Counter(str(refusal.code) for refusal in capability.refusals.values())
        why = ", ".join(f"{code} {number}" for code, number in codes.most_common())
        message = f"takes {count - len(capability.refusals)} of {count} nodes"
        yield CheckFinding(
            str(capability.target), CheckVerdict.OK, message + (f": {why}" if why else "")
        )


def _homeless(setting: Setting) -> Iterator[CheckFinding]:
    """Name nodes that every target refuses, with the reason of the last: that is the fallback."""
    homeless = [
        node
        for node in setting.graph.nodes
        if all(node.id in capability.refusals for capability in setting.capabilities)
    ]
    for node in homeless[:_MOST_NODES]:
        refusal = setting.capabilities[-1].refusals[node.id]
        message = f"{node.op_type} is not taken by any target: {refusal.reason}"
        hint = refusal.hint or "add a target that takes it, such as onnxruntime"
        yield CheckFinding(f"node {node.name}", CheckVerdict.INCOMPATIBLE, message, hint)
    if len(homeless) > _MOST_NODES:
        message = f"{len(homeless) - _MOST_NODES} more are not taken by any target"
        yield CheckFinding("nodes", CheckVerdict.INCOMPATIBLE, message)
