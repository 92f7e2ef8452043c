# SPDX-License-Identifier: Apache-2.0
"""What a backend may tell of the work inside a call of a region, for traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from intarsia.backends.device import Buffer, Executable


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """One piece of work inside a call of a region: an operator or a kernel, or a thread's part.

    Attributes:
        name: What the backend calls it.
        nodes: Names of the nodes of the region that it computes; none where it does not tell.
        start: When it began, by `time.perf_counter`.
        seconds: How long it took.
        facts: What else is known of it, by a name in print.
        thread: Which thread did it, as `threading.get_ident` numbers them, if it is the part of
            one; 0 for the whole.
    """

    name: str
    nodes: tuple[str, ...]
    start: float
    seconds: float
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    thread: int = 0


@runtime_checkable
class TracedStep(Protocol):
    """A bound call that tells afterwards what it did."""

    def __call__(self) -> object:
        """Run."""

    def spans(self) -> Sequence[WorkSpan]:
        """Return the work of all calls so far; it is called once, after the last of them."""


@runtime_checkable
class Traceable(Protocol):
    """What an executable may have besides: calls that tell of their work."""

    def trace_step(
        self, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scratch: Buffer | None
    ) -> TracedStep | None:
        """Return the call that `bind` returns, but one that tells; None where it cannot."""


def trace_step(
    executable: Executable,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    scratch: Buffer | None,
) -> TracedStep | None:
    """Return a call of an executable that tells of its work, if it can."""
    if not isinstance(executable, Traceable):
        return None
    return executable.trace_step(inputs, outputs, scratch)


def cover_nodes(
    nodes: Iterable[tuple[str, Sequence[str], Sequence[str]]], named: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return which nodes each of those that a runtime names stands for.

    A runtime that fuses nodes names one of them. What it names nowhere was computed with what reads
    it, or, where nothing does, with what made its inputs.

    Args:
        nodes: In order, the name of each, the values that it reads and those that it makes.
        named: Names of nodes that the runtime tells of.
    """
    known = list(nodes)
    chief = {name: name for name in named if any(name == node for node, _, _ in known)}
    readers: dict[str, list[str]] = {}
    for name, reads, _ in known:
        for value in reads:
            readers.setdefault(value, []).append(name)
    for name, _, makes in reversed(known):
        found = {chief[one] for value in makes for one in readers.get(value, ()) if one in chief}
        if name not in chief and len(found) == 1:
            chief[name] = found.pop()
    makers: dict[str, str] = {}
    for name, reads, makes in known:
        found = {chief[makers[value]] for value in reads if makers.get(value) in chief}
        if name not in chief and len(found) == 1:
            chief[name] = found.pop()
        makers |= dict.fromkeys(makes, name)
    groups: dict[str, tuple[str, ...]] = {}
    for name, _, _ in known:
        if name in chief:
            groups[chief[name]] = (*groups.get(chief[name], ()), name)
    return groups
