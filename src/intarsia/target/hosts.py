# SPDX-License-Identifier: Apache-2.0
"""The choice of the host: one algorithm, used wherever a host is needed."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.errors import TargetError
from intarsia.target.cpu_there import RUNNER
from intarsia.target.device import DeviceType
from intarsia.target.kind import BASE_ATTR
from intarsia.target.placed import PlacedTarget
from intarsia.target.priority import (
    Overrides,
    default_host,
    is_composite,
    on_this_machine,
    overridden,
)
from intarsia.target.target import Target
from intarsia.target.warn import warn

_FALLBACK = "the fallback, which runs on a CPU"


def choose_host(
    asked: Target | None,
    given: Sequence[Target],
    fallback: PlacedTarget,
    overrides: Overrides,
) -> tuple[Target, str, tuple[str, ...]]:
    """Choose: the one asked for, else what the targets carry, else one that is deduced.

    A host that a target carries and that is not chosen is a warning.

    Args:
        asked: The host that was named for all targets.
        given: The targets as given, composites among them.
        fallback: The last complete one.
        overrides: Attributes for all targets of certain kinds.

    Returns:
        The host, why it is, and what it took the place of.

    Raises:
        TargetError: It cannot be a host.
    """
    carried = [pair for target in given for pair in _carried(target, fallback)]
    if asked is not None:
        chosen, why = asked, "asked for as the host of all targets"
    elif carried:
        chosen, why = carried[0][0], f"carried by {carried[0][1]}"
        if chosen is fallback.target:
            why = _FALLBACK
    else:
        chosen, why = deduce_host(fallback), _FALLBACK
        if chosen is not fallback.target:
            why = "default, none was given"
    chosen = check_host(overridden(chosen, overrides))
    replaced = []
    for host, owner in carried:
        if on_this_machine(overridden(host.without_host(), overrides)) != chosen:
            warn(f"host '{host}' is replaced by '{chosen}'")
            replaced.append(f"host {host} of {owner}: all targets of a config have one host")
    return chosen, why, tuple(replaced)


def deduce_host(fallback: PlacedTarget) -> Target:
    """Return the fallback's target if it runs on a CPU, else the default host."""
    target = fallback.target
    # Row 104: of `cuda, llvm` the host is llvm, of `opencl` alone the default.
    if target.device_type == DeviceType.CPU and not target.attrs.get(RUNNER):
        return target
    return on_this_machine(Target(default_host()))


def check_host(host: Target) -> Target:
    """Return a host without a host of its own, on this machine if it is a plain `llvm`.

    Raises:
        TargetError: It cannot run a whole plan on a CPU.
    """
    target = on_this_machine(host.without_host())
    if target.attrs.get(RUNNER):
        raise TargetError(
            f"'{target}' cannot be the host: it is reached by a runner, and the host is here",
            target=str(target),
            hint=f"use {default_host()}",
        )
    if not target.kind.is_complete or target.device_type != DeviceType.CPU or is_composite(target):
        raise TargetError(
            f"'{target}' cannot be the host: it has to run a whole model on a CPU",
            target=str(target),
            hint=f"use {default_host()}",
        )
    return target


def _carried(target: Target, fallback: PlacedTarget) -> list[tuple[Target, str]]:
    """Return the hosts of a target and of what is inside, each with its owner, the outer first.

    A composite's host says what its fallback is; a fallback of the same kind that the user gives
    after it (`acl, llvm -mattr=+neon`) takes its place, unless a runner leads to it.
    """
    name = target.tags[0] if target.tags else target.kind.name
    host, last = target.host, fallback.target
    hosts: list[tuple[Target, str]] = []
    if host is not None:
        is_last = is_composite(target) and last.kind == host.kind and not last.attrs.get(RUNNER)
        hosts = [(last if is_last else host, name), *_carried(host, fallback)]
    base = target.attrs.get(BASE_ATTR.name)
    inner = (*((base,) if base is not None else ()), *target.attrs.get("devices", ()))
    return hosts + [pair for each in inner for pair in _carried(each, fallback)]
