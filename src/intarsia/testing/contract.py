# SPDX-License-Identifier: Apache-2.0
"""Check: the backend has every member of the protocol, and they answer what they must."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from intarsia.backends.backend import Backend
from intarsia.backends.device import Device, Executable, ThreadOptions
from intarsia.backends.values import Candidate, Detection, Rule
from intarsia.cost.cost import Cost
from intarsia.errors import TargetError
from intarsia.target import Target, TargetKind, get_kind
from intarsia.testing.case import problem_of
from intarsia.testing.cases import CASES
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.subject import Subject
from intarsia.testing.trial import Trial

SENTENCE = "It has every member of the protocol; names, kinds, version and detection answer."

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")


def trials() -> Iterator[Trial]:
    """Yield what is tried."""
    for name, act in (
        ("members", has_members),
        ("name", has_a_name),
        ("kinds", serves_known_kinds),
        ("version", tells_its_version),
        ("detect", detects),
    ):
        yield Trial("contract", name, act, needs_runtime=False)
    for name, act in (
        ("rules", has_rules),
        ("device", opens_a_device),
        ("yields", says_when_it_yields),
        ("takes_something", takes_something),
        ("executable", makes_executables),
    ):
        yield Trial("contract", name, act)


def has_members(subject: Subject) -> None:
    """Require every member of `Backend`."""
    _require(subject.backend, Backend, "the backend")


def has_a_name(subject: Subject) -> None:
    """Require a name that stays, and that text forms can hold."""
    name, again = subject.backend.name, subject.backend.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConformanceError(f"name is {name!r}: use lower-case letters, digits, _ . and -")
    if name != again:
        raise ConformanceError(f"name changes from {name!r} to {again!r}")


def serves_known_kinds(subject: Subject) -> None:
    """Require kinds that the catalogue has, or that the backend brings."""
    kinds = subject.backend.kinds
    if not isinstance(kinds, tuple) or not kinds:
        raise ConformanceError(f"kinds is {kinds!r}, not a tuple of kinds or of their names")
    for kind in kinds:
        if not isinstance(kind, str | TargetKind):
            raise ConformanceError(f"kinds holds {kind!r}, neither a TargetKind nor a name")
        try:
            found = get_kind(kind) if isinstance(kind, str) else kind
        except TargetError as error:
            raise ConformanceError(f"kinds: {error.message}") from error
        with subject.calling("Target", f"kind {found.name!r}"):
            _ = subject.backends  # registers the kinds that it brings
            Target(found.name)
    _ = subject.placed  # the target asked for is one of them


def tells_its_version(subject: Subject) -> None:
    """Require a text that stays the same, or a `BackendError` if the runtime is missing."""
    try:
        subject.need_runtime()
        version, again = subject.backend.version(), subject.backend.version()
    except NotApplicable:
        raise
    except Exception as error:
        raise ConformanceError(
            f"version() raised {type(error).__name__}: {error}; raise a BackendError"
        ) from error
    if not isinstance(version, str) or not version or version != again:
        raise ConformanceError(f"version() is {version!r}, then {again!r}: not one text")


def detects(subject: Subject) -> None:
    """Require targets of kinds that it serves, or a reason."""
    with subject.calling("detect", "detect() must not raise"):
        _ = subject.backends  # registers the kinds that it brings
        found = subject.backend.detect()
    if not isinstance(found, Detection):
        raise ConformanceError(f"detect() returned {found!r}, which is no Detection")
    if not found.targets and not found.reason:
        raise ConformanceError("detect() found nothing and gives no reason")
    for target in found.targets:
        if not isinstance(target, Target) or target.kind.name not in subject.kinds:
            raise ConformanceError(
                f"detect() found '{target}', of a kind that is not in kinds: "
                f"{', '.join(subject.kinds)}"
            )


def has_rules(subject: Subject) -> None:
    """Require rules with names that stay, whose answers stay."""
    graph = subject.graph(problem_of(CASES[0], "float32").model)
    with subject.calling("rules", "contract"):
        rules, again = (subject.backend.rules(subject.context) for _ in range(2))
    if not isinstance(rules, Sequence) or not all(isinstance(rule, Rule) for rule in rules):
        raise ConformanceError(f"rules() returned {rules!r}, which is no sequence of Rule")
    names = [rule.name for rule in rules]
    if names != [rule.name for rule in again] or len(set(names)) < len(names):
        raise ConformanceError(f"the names of the rules are not stable and distinct: {names}")
    if subject.refusals(graph, "rules") != subject.refusals(graph, "rules, asked again"):
        raise ConformanceError("the rules refuse differently when they are asked again")


def says_when_it_yields(subject: Subject) -> None:
    """Require of `yields` a reason or None, and the same answer again."""
    yields = subject.registered.yields
    if yields is None:
        raise NotApplicable("the backend has no `yields`")
    graph = subject.graph(problem_of(CASES[0], "float32").model)
    with subject.calling("yields", "contract"):
        why, again = (yields(graph) for _ in range(2))
    if why is not None and (not isinstance(why, str) or not why):
        raise ConformanceError(f"yields() returned {why!r}: say why in words, or return None")
    if why != again:
        raise ConformanceError(f"yields() returned {why!r}, then {again!r}")


def opens_a_device(subject: Subject) -> None:
    """Require that `open` returns a device with the options that it was given."""
    options = ThreadOptions(num_threads=2, is_shared=True)
    with subject.calling("open", str(subject.placed)):
        device = subject.backend.open(subject.placed, options)
    _require(device, Device, "what open() returned")
    if device.options != options:
        raise ConformanceError(f"the device has options {device.options}, not {options}")


def takes_something(subject: Subject) -> None:
    """Require that some case of the table is not refused: else the kit has shown nothing."""
    for case in CASES:
        for dtype in case.dtypes:
            graph = subject.graph(problem_of(case, dtype).model)
            if not subject.refusals(graph, str(case)):
                return
    raise ConformanceError("the rules refuse every case of the table, so that nothing was tried")


def makes_executables(subject: Subject) -> None:
    """Require `check` and `estimate` to answer, and `load` to return an `Executable`."""
    for case in CASES:
        graph = subject.graph(problem_of(case, case.dtypes[0]).model)
        if subject.refusals(graph, str(case)):
            continue
        loaded = subject.build(graph.whole, str(case))
        _require(loaded.executable, Executable, "what load() returned")
        estimate, cost = subject.registered.estimate, None
        if estimate is not None:
            with subject.calling("estimate", str(case)):
                cost = estimate(Candidate.plain(graph.whole, subject.placed), subject.context)
        if cost is not None and not isinstance(cost, Cost):
            raise ConformanceError(f"estimate() returned {cost!r}, neither a Cost nor None")
        return
    raise NotApplicable("the rules refuse every case of the table")


def _require(value: Any, protocol: type, what: str) -> None:
    members = sorted({*protocol.__annotations__, *vars(protocol)})
    public = (name for name in members if not name.startswith("_"))
    missing = [name for name in public if not hasattr(value, name)]
    if missing:
        raise ConformanceError(f"{what} lacks {', '.join(missing)} of {protocol.__name__}")
