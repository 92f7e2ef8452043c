# SPDX-License-Identifier: Apache-2.0
"""Which machine a description means, or which one is found here; its host and its memories.

The host runs shapes, control flow and whatever no target given takes. Where its kind refuses a
node, the next complete target in the host's memory has it, as a step of its own.

Light: nothing of a model is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from intarsia.backends.backend import RegisteredBackend
from intarsia.backends.calling import calling
from intarsia.backends.registry import Backends
from intarsia.backends.values import BuildContext, Detection
from intarsia.errors import TargetError
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.target import CompilationConfig, DeviceType, PlacedTarget, Target, list_stand_ins
from intarsia.target.hosts import deduce_host
from intarsia.target.legacy import GPU, read_device_key
from intarsia.target.priority import Overrides

if TYPE_CHECKING:
    from intarsia.target.placed import MemoryDomain

logger = logging.getLogger("intarsia")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, and what serves its targets.

    Attributes:
        config: Its canonical form.
        backends: Serve its targets.
    """

    config: CompilationConfig
    backends: Backends


def resolve_targets(
    target: Any, host: Any, backends: Backends, overrides: Overrides | None = None
) -> CompilationConfig:
    """Return the canonical form of a machine; None means what the backends detect here.

    Args:
        target: The machine, in any form.
        host: The target that runs the plan itself; None means what the targets say.
        backends: Those that are asked what is here.
        overrides: Attributes for all targets of certain kinds.

    Raises:
        TargetError: The description is wrong, or nothing was detected.
    """
    if target is not None:
        return CompilationConfig.resolve(target, host=host, overrides=overrides)
    # What is not a default is not looked for.
    detected = list_detected(each for each in backends.by_name.values() if each.is_default)
    if not any(each.kind.is_complete for each in detected):
        raise TargetError(
            "no target was given, and no complete one was found on this machine",
            hint="pip install 'intarsia[onnxruntime]', or pass target='reference' (slow)",
        )
    return as_detected(CompilationConfig.resolve(detected, host=host, overrides=overrides))


def as_detected(config: CompilationConfig) -> CompilationConfig:
    """Return a machine that was found here, perhaps written as text: the user gave no order."""
    return replace(config, reasons=replace(config.reasons, is_detected=True))


def list_detected(backends: Iterable[RegisteredBackend]) -> list[Target]:
    """Return what backends find on this machine, the best first; hidden kinds are left out."""
    ranked = [
        (detection.rank, target.kind.is_complete, target)
        for detection in map(detect_targets, backends)
        for target in detection.targets
        if not target.kind.is_hidden
    ]
    ranked.sort(key=lambda item: item[:2])  # of one rank partial ones first, else by name
    return [target for *_, target in ranked]


def detect_targets(backend: RegisteredBackend) -> Detection:
    """Return what a backend finds on this machine; nothing, with a warning, if it fails."""
    try:
        return backend.detect()
    except Exception as error:  # a plug-in may raise anything
        logger.warning("backend %r failed to detect its targets: %s", backend.name, error)
        return Detection(reason=str(error))


def asked_host(config: CompilationConfig) -> tuple[PlacedTarget, ...]:
    """Return the host if it is not among the targets, and somebody named it."""
    host = config.placed_host
    is_deduced = config.host == deduce_host(config.fallback)
    return () if is_deduced or host in config.targets else (host,)


def host_targets(config: CompilationConfig, backends: Backends) -> tuple[PlacedTarget, ...]:
    """Return what may run the nodes that no target of a machine takes, in order.

    That is the host unless it is among the targets, and what stands in for it.

    Raises:
        BackendError: No backend serves the host that was asked for, or its runtime is missing.
    """
    host = config.placed_host
    hosts = []
    if host not in config.targets:
        if asked_host(config):
            backends.for_target(config.host).version()
        if config.host.kind.name in backends.by_kind:
            hosts.append(host)
    present = {placed.target.kind.name for placed in (*config.targets, *hosts)}
    stand_ins = (
        kind for kind in list_stand_ins() if kind in backends.by_kind and kind not in present
    )
    return (*hosts, *(PlacedTarget.parse(kind) for kind in stand_ins))


def make_contexts(
    config: CompilationConfig,
    num_threads: int,
    hosts: Sequence[PlacedTarget] = (),
    sums: tuple[str, ...] = (),
) -> dict[PlacedTarget, BuildContext]:
    """Return what backends are given, by target in the user's order.

    Args:
        config: The machine.
        num_threads: Threads that one run may use.
        hosts: Targets beside those of the machine, which come after them; see `host_targets`.
        sums: What the program for all sizes says of the order of its sums.

    Raises:
        TargetError: A target is on a device that cannot be there.
    """
    contexts = {}
    for placed in (*config.targets, *hosts):
        if placed.device_type is DeviceType.CPU and placed.device_id:
            raise TargetError(
                f"{str(placed)!r}: there is one CPU, and its number is 0",
                target=str(placed),
                hint=f"write {str(placed.target)!r}",
            )
        refined = config.refined(placed) or placed.target
        contexts[placed] = BuildContext(placed, refined, config, num_threads, sums=sums)
    return contexts


def memory_domains(
    config: CompilationConfig, backends: Backends
) -> dict[PlacedTarget, MemoryDomain]:
    """Return the memory in which each target's tensors lie, in the user's order.

    What runs nodes that no target takes (`host_targets`) comes after them. A partial target shares
    the memory of what it refines, unless its kind has one of its own. Each vendor's accelerator
    has a memory of its own, which carries the name of the backend.
    """
    domains = {}
    for placed in (*config.targets, *host_targets(config, backends)):
        device_type, device_id, scope = config.device_of(placed).memory_domain
        owner = config.refined(placed) or placed.target
        if device_type == DeviceType.EXT_DEV:
            name = backends.for_target(owner).name
            scope = f"{name}/{scope}" if scope else name
        domains[placed] = (device_type, device_id, scope)
    return domains


def find_targets(config: CompilationConfig, text: str, words: str) -> tuple[PlacedTarget, ...]:
    """Return the targets of a machine that a text means, in the user's order.

    A label, a target's text, a kind or a tag means one; a device (`opencl:1`, `gpu:1`, `cpu`)
    means every target on it. The host is meant by its text or kind, and by `cpu` where no target
    is on the CPU.

    Args:
        config: The machine.
        text: What was written.
        words: Say in an error who wrote it.

    Raises:
        TargetError: None is meant, or one of several by a text that is not a device.
    """
    try:
        return (config.find(text),)
    except TargetError as error:
        found = _on_device(config, text) or _host_meant(config, text)
        if not found:
            raise TargetError(f"{words}: {error.message}", target=text, hint=error.hint) from error
        return found


def _on_device(config: CompilationConfig, text: str) -> tuple[PlacedTarget, ...]:
    name, _, scope = text.strip().partition("/")
    family = name.partition(":")[0]
    if family != GPU and family.upper() not in DeviceType.__members__:  # a kind is not a device
        return ()
    try:
        key = read_device_key(name)
    except TargetError:
        return ()
    places = [(config.device_of(item), item) for item in config.targets]
    places = [(place, item) for place, item in places if place.device_type in key.types]
    ordinals = [place.device_id or 0 for place, _ in places]
    wanted = min(ordinals, default=0) if key.ordinal is None else key.ordinal
    found = [(place.memory_scope, item) for place, item in places if place.device_id == wanted]
    if scope or any(not own for own, _ in found):  # without a scope: the device's own memory
        found = [(own, item) for own, item in found if own == scope]
    return tuple(item for _, item in found)


def _host_meant(config: CompilationConfig, text: str) -> tuple[PlacedTarget, ...]:
    """Return the host that is not among the targets, if a text means it."""
    host = config.placed_host
    if host in config.targets:
        return ()
    names = (str(host), config.host.kind.name, "cpu", domain_text(HOST_DOMAIN))
    return (host,) if text.strip() in names else ()


LIBRARIES = "libs"
_LIBRARIES = '; list a library as a target of its own, before what it refines: "dnnl, llvm"'
_DESCRIBING = "model"
"""The attribute that only says what a device is called; a tag may say it unasked."""


def check_attributes(contexts: Mapping[PlacedTarget, BuildContext], backends: Backends) -> None:
    """Check the targets of a machine before a model is compiled for it here.

    Warns of attributes that change nothing.

    Raises:
        BackendError: A target has no backend, or its runtime is not installed.
        TargetError: An attribute cannot be carried out, or means another machine.
    """
    for placed, context in contexts.items():
        backend = backends.for_target(placed.target)
        backend.version()  # a missing runtime, before any work is done
        _check_device_type(context)
        with calling(backend.name, context, "to check its target"):
            in_vain = tuple(_without_effect(context, backend))
        if in_vain:
            names = ", ".join(f"-{name}" for name in in_vain)
            note = _LIBRARIES if LIBRARIES in in_vain else ""
            logger.warning("no effect on what is compiled for '%s': %s%s", placed, names, note)


def _check_device_type(context: BuildContext) -> None:
    target, device_type = (
        context.target.target,
        context.config.device_of(context.target).device_type,
    )
    is_told = target.attrs.get("target_device_type") is not None
    if is_told and device_type not in (None, target.kind.device_type):
        raise TargetError(
            f"target_device_type: programs of {target.kind.name} run on "
            f"{target.kind.device_type.name}, not on {device_type.name}",
            target=str(target),
            hint="leave it out: it describes devices that nothing is compiled for here",
        )


def _without_effect(context: BuildContext, backend: RegisteredBackend) -> Iterable[str]:
    target = context.target.target
    if target.attrs.get(LIBRARIES):
        yield LIBRARIES
    if _DESCRIBING in target.attrs and not target.tags:
        yield _DESCRIBING
    if backend.check_target is not None:
        yield from backend.check_target(target)
