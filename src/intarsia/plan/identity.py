# SPDX-License-Identifier: Apache-2.0
"""What a result depends on, and what of that has changed since.

One value: `machine_identity` makes it before a model is read, and a setting adds the model. A lock
file and a package store it, a verdict is filed under its `verdict_key`, and the name of a program
among the caches is a digest of its `code` and more.

Light: a start that finds its program imports this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from intarsia.errors import BackendError

if TYPE_CHECKING:
    from intarsia.backends.backend import RegisteredBackend
    from intarsia.backends.values import BuildContext
    from intarsia.cost.records import VerdictKey
    from intarsia.target import CompilationConfig


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything a plan depends on: the model, the code, the machine, the user's constraints.

    The exact parts are stricter, and are for claims that numbers were compared. Where they are not
    asked for they are unset, and then lock files and packages do not have them.

    Attributes:
        model: Digest of the prepared model without its weights: names, operators, attributes,
            wiring, dtypes and shapes; empty before it is read.
        targets: Lossless text of the machine's description.
        versions: Of Intarsia and of every backend of the targets, by name.
        machine: Digest of the machine's fingerprint.
        machine_text: What that stands for.
        threads: Of one run.
        constraints: Digest of pins, annotations and exclusions; empty without any.
        devices: By text of the placed target, which device it is, where devices of its kind are
            not alike; empty text: it was not there. None: that is not known.
        content: Exact: digest of the prepared model with its weights, without names.
        code: Exact: of each target in order, the version of its backend and all else that decides
            which code it runs, as `code_version` has it; at the end, Intarsia's version.
    """

    model: str
    targets: str
    versions: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    machine_text: str = ""
    threads: int = 1
    constraints: str = ""
    devices: dict[str, str] | None = None
    content: str | UnsetType = UNSET
    code: tuple[str, ...] | UnsetType = UNSET

    def verdict_key(self, objective: str = "latency") -> VerdictKey:
        """Return what an accepted plan is filed under; the exact parts are there.

        Args:
            objective: What was minimised, with its limit.
        """
        assert not isinstance(self.content, UnsetType)
        assert not isinstance(self.code, UnsetType)
        from intarsia.cost.records import VerdictKey  # running a package files nothing

        return VerdictKey(
            model=self.content,
            targets=self.targets,
            backends=" | ".join(self.code),
            machine=self.machine,
            threads=str(self.threads),
            constraints=self.constraints,
            objective=objective,
        )


def identity_here(targets: str, versions: Mapping[str, str], num_threads: int) -> Identity:
    """Return the parts of an identity that need no model: the machine, and the code on it.

    Args:
        targets: Lossless text of the machine's description.
        versions: Of backends, by name.
        num_threads: Threads of one run.
    """
    from importlib.metadata import version  # nor does it ask what is installed

    from intarsia.cost.fingerprint import this_machine

    machine = this_machine()
    return Identity(
        model="",
        targets=targets,
        versions={"intarsia": version("intarsia"), **versions},
        machine=machine.digest,
        machine_text=machine.text,
        threads=num_threads,
    )


def machine_identity(
    config: CompilationConfig,
    served: Sequence[tuple[RegisteredBackend, BuildContext]],
    num_threads: int,
    *,
    is_exact: bool = False,
) -> Identity:
    """Return the parts of an identity that need no model, with the code for a machine.

    Args:
        config: The machine.
        served: Of each target that may have nodes, its backend and what that is given.
        num_threads: Threads that one run may use.
        is_exact: Whether with `code`.

    Raises:
        BackendError: A runtime is not installed; or if it is to be exact, a device is not there.
    """
    from intarsia.backends.sources import code_version

    versions = {backend.name: backend.version() for backend, _ in served}
    identity = identity_here(config.text, versions, num_threads)
    if is_exact:
        own = f"intarsia {identity.versions['intarsia']}"
        identity = replace(identity, code=(*(code_version(*each) for each in served), own))
    devices = {
        str(context.target): device
        for backend, context in served
        if (device := _device_of(backend, context)) is not None
    }
    return replace(identity, devices=devices)


def _device_of(backend: RegisteredBackend, context: BuildContext) -> str | None:
    """Return which device a target is, "" if it is not there; None if all of a kind are alike."""
    from intarsia.backends.sources import code_identity

    try:
        return code_identity(backend, context).device or None
    except BackendError:  # running on it raises the same again
        return ""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is not what it was.

    Attributes:
        what: What it is: `model`, `targets`, `openvino`, `machine`, `threads`, `constraints`,
            `device opencl:1`.
        before: What it was.
        now: What it is.
    """

    what: str
    before: str
    now: str

    def __str__(self) -> str:
        if self.what in ("model", "constraints"):
            return f"{_WORDS[self.what]} changed"
        return f"{self.what}: {self.before or 'none'} -> {self.now or 'none'}"


_WORDS = {"model": "the model", "constraints": "pins, annotations or exclusions"}


def compare_identities(before: Identity, now: Identity) -> tuple[Change, ...]:
    """Return what is different, in the order of the fields; versions in order of their names."""
    changes = []
    for what in ("model", "targets", "versions", "machine", "threads", "constraints"):
        if what == "versions":
            names = sorted({*before.versions, *now.versions})
            pairs = [(name, before.versions.get(name), now.versions.get(name)) for name in names]
        else:
            pairs = [(what, getattr(before, what), getattr(now, what))]
        changes += [Change(name, str(a or ""), str(b or "")) for name, a, b in pairs if a != b]
    if before.devices is not None and now.devices is not None:
        changes += [
            Change(f"device {name}", before.devices.get(name, ""), now.devices.get(name, ""))
            for name in sorted({*before.devices, *now.devices})
            if before.devices.get(name) != now.devices.get(name)
        ]
    texts = (before.machine_text, now.machine_text)
    return tuple(
        Change("machine", *texts) if change.what == "machine" and all(texts) else change
        for change in changes
    )
