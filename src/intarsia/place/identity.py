# SPDX-License-Identifier: Apache-2.0
"""Makes the identity of a setting, and of a request whose model is not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from msgspec import UNSET

from intarsia.backends.sources import code_identity, code_version
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.key import digest
from intarsia.errors import BackendError
from intarsia.graph.per_graph import per_graph
from intarsia.plan.devices import domain_text
from intarsia.plan.identity import Identity

if TYPE_CHECKING:
    from intarsia.backends.backend import RegisteredBackend
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.place.setting import Setting
    from intarsia.target import CompilationConfig


def make_identity(setting: Setting, *, is_exact: bool = False) -> Identity:
    """Return all that a plan for a setting depends on.

    Args:
        setting: The model and the machine.
        is_exact: Whether with the exact parts. To hash the weights takes a twentieth of the time
            that compiling resnet50 does, so it is done for verdicts alone.

    Raises:
        BackendError: A runtime is not installed; or if it is to be exact, a device is not there.
    """
    served = [(each.backend, each.context) for each in setting.capabilities]
    known = machine_identity(setting.config, served, setting.num_threads, is_exact=is_exact)
    if is_exact:
        from intarsia.graph.hashes import content_hash

        known = replace(known, content=content_hash(setting.graph.whole))
    return replace(
        known, model=model_digest(setting.graph), constraints=constraints_digest(setting)
    )


def machine_identity(
    config: CompilationConfig,
    served: Sequence[tuple[RegisteredBackend, BuildContext]],
    num_threads: int,
    *,
    is_exact: bool = False,
) -> Identity:
    """Return what is known before a model is read: the machine, and the code that serves it.

    Args:
        config: The machine.
        served: Of each target that may have nodes, its backend and what that is given.
        num_threads: Threads that one run may use.
        is_exact: Whether with `code`.

    Raises:
        BackendError: As `make_identity`.
    """
    own, machine = version("intarsia"), this_machine()
    devices = {str(context.target): _device_of(backend, context) for backend, context in served}
    code = (*(code_version(*each) for each in served), f"intarsia {own}") if is_exact else UNSET
    return Identity(
        model="",
        targets=config.text,
        versions={"intarsia": own} | {backend.name: backend.version() for backend, _ in served},
        machine=machine.digest,
        machine_text=machine.text,
        threads=num_threads,
        devices={target: device for target, device in devices.items() if device is not None},
        code=code,
    )


def _device_of(backend: RegisteredBackend, context: BuildContext) -> str | None:
    """Return which device a target is, "" if it is not there; None if all of a kind are alike."""
    try:
        return code_identity(backend, context).device or None
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
        for node, pin in sorted(said.said.items())
    ]
    for target, excluded in sorted(said.exclusions.items(), key=lambda item: str(item[0])):
        parts += [f"{nodes[node].name}!{target}" for node in sorted(excluded)]
    values, borders = setting.graph.values, said.borders
    parts += [f"{values[value].name}@{domain_text(borders[value])}" for value in sorted(borders)]
    return digest(parts) if parts else ""
