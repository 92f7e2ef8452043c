# SPDX-License-Identifier: Apache-2.0
"""What results of a setting depend on: for lock files and packages, and for accepted plans."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import digest
from intarsia.cost.records import VerdictKey
from intarsia.errors import BackendError
from intarsia.graph.per_graph import per_graph
from intarsia.plan.devices import domain_text
from intarsia.plan.identity import Identity

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph
    from intarsia.place.capability import Capability
    from intarsia.place.setting import Setting


def make_identity(setting: Setting) -> Identity:
    """Return all that a plan for a setting depends on."""
    versions = {"intarsia": version("intarsia")}
    for capability in setting.capabilities:
        versions[capability.backend.name] = capability.backend.version()
    machine = this_machine()
    return Identity(
        model=model_digest(setting.graph),
        targets=setting.config.text,
        versions=versions,
        machine=machine.digest,
        machine_text=machine.text,
        threads=setting.num_threads,
        constraints=constraints_digest(setting),
        devices={
            str(each.target): device
            for each in setting.capabilities
            if (device := _device_of(each)) is not None
        },
    )


def verdict_key(setting: Setting, objective: str = "latency") -> VerdictKey:
    """Return what an accepted plan for a setting is filed under.

    It is stricter than an identity, as it claims that numbers were compared: of the model the
    weights count, and of backends the sources of what they generate.

    Args:
        setting: The model and the machine.
        objective: What was minimised.
    """
    from intarsia.backends.sources import code_version
    from intarsia.graph.hashes import content_hash

    versions = [code_version(each.backend, each.context) for each in setting.capabilities]
    versions.append(f"intarsia {version('intarsia')}")  # who places and runs the regions
    return VerdictKey(
        model=content_hash(setting.graph.whole),
        targets=setting.config.text,
        backends=" | ".join(versions),
        machine=this_machine().digest,
        threads=str(setting.num_threads),
        constraints=constraints_digest(setting),
        objective=objective,
    )


def _device_of(capability: Capability) -> str | None:
    """Return which device a target is, "" if it is not there; None if all of a kind are alike."""
    if capability.backend.identity is None:
        return None
    try:
        return capability.backend.identity(capability.context).device or None
    except BackendError:  # running on it raises the same again
        return ""


@per_graph
def model_digest(graph: Graph) -> str:
    """Return a hash of a prepared model without its weights, as 32 hexadecimal digits.

    A model that was only trained further keeps it: of constants only dtypes and shapes count.
    """
    from intarsia.graph.signature import node_signature  # imports onnx_ir; loading does not

    values = (f"{value.name} {value.dtype} {value.shape}" for value in graph.values)
    nodes = (
        f"{node.name} {node_signature(graph, node.id, content=False).digest.hex()} "
        f"{node.inputs} {node.captured} {node.outputs}"
        for node in graph.nodes
    )
    return digest((*values, *nodes, f"{graph.inputs} {graph.outputs}"))


def constraints_digest(setting: Setting) -> str:
    """Return a hash of what the user said about nodes, inputs and outputs; empty if nothing."""
    nodes, said = setting.graph.nodes, setting.constraints
    parts = [
        f"{nodes[node].name}={'|'.join(map(str, pin.targets))}"
        for node, pin in sorted(said.pins.items())
    ]
    for target, excluded in sorted(said.exclusions.items(), key=lambda item: str(item[0])):
        parts += [f"{nodes[node].name}!{target}" for node in sorted(excluded)]
    values, borders = setting.graph.values, setting.devices.borders
    parts += [f"{values[value].name}@{domain_text(borders[value])}" for value in sorted(borders)]
    return digest(parts) if parts else ""
