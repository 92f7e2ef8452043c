# SPDX-License-Identifier: Apache-2.0
"""The kit: every check, as pytest cases or as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from types import MappingProxyType

from intarsia.backends.backend import Backend
from intarsia.errors import SettingError
from intarsia.testing import away, contract, endurance, oddities, programs, regions
from intarsia.testing.case import OperatorCase
from intarsia.testing.cases import CASES
from intarsia.testing.judging import NotApplicable
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import TOLERANCES, Tolerance
from intarsia.testing.trial import Status, Trial, TrialVerdict, judge


@dataclass(frozen=True, slots=True)
class ConformanceCheck:
    """One promise that a backend makes.

    Attributes:
        name: As in the ids of pytest.
        sentence: The promise.
        trials: From the table of cases to what is tried.
    """

    name: str
    sentence: str
    trials: Callable[[Sequence[OperatorCase]], Iterator[Trial]]


_CHECKS = (
    ConformanceCheck(
        "contract",
        "It has every member of the protocol; names, kinds, version and detection answer.",
        lambda _: contract.contract_trials(),
    ),
    ConformanceCheck(
        "numbers",
        "Every operator and dtype is refused, or computed as the reference does.",
        regions.number_trials,
    ),
    ConformanceCheck(
        "oddities",
        "Odd inputs are refused or computed; no foreign exception leaves the backend.",
        lambda _: oddities.oddity_trials(),
    ),
    ConformanceCheck(
        "regions",
        "What the rules take as a whole region compiles, loads and gives the numbers.",
        lambda _: regions.region_trials(),
    ),
    ConformanceCheck(
        "borders",
        "What `states` lists is taken, and any mix of it, with the same numbers; no other is.",
        lambda _: regions.border_trials(),
    ),
    ConformanceCheck(
        "processes",
        "A package is saved, and runs here and in a fresh process, with the same numbers.",
        lambda _: programs.process_trials(),
    ),
    ConformanceCheck(
        "threads",
        "One loaded region gives the right numbers to eight threads at once.",
        lambda _: programs.thread_trials(),
    ),
    ConformanceCheck(
        "artifacts",
        "Constants are referred to and not copied; compiling twice gives the same bytes.",
        lambda _: contract.artifact_trials(),
    ),
    ConformanceCheck(
        "memory",
        "200 runs, and 20 times loading and unloading, do not grow resident memory by 8 MiB.",
        lambda _: programs.memory_trials(),
    ),
    ConformanceCheck(
        "loads",
        "1,000 loads leave no memory, no open files, no threads and no maps of memory behind.",
        lambda _: endurance.load_trials(),
    ),
    ConformanceCheck(
        "limits",
        "70,000 rows and 130 operands are refused or computed; one thread is one thread.",
        lambda _: endurance.limit_trials(),
    ),
    ConformanceCheck(
        "faults",
        "To load a damaged artifact that is data is an error of ours, and takes no process.",
        lambda _: endurance.fault_trials(),
    ),
    ConformanceCheck(
        "devices",
        "A device gives back what was written; off the host, its buffers are opaque.",
        lambda _: contract.device_trials(),
    ),
)

CHECKS: Mapping[str, ConformanceCheck] = MappingProxyType({check.name: check for check in _CHECKS})
"""Every check by its name, in the order in which they run."""

RUNNER_CHECK = ConformanceCheck(
    "runner",
    "The machine of a runner answers; a region there says so, and how long the way took.",
    lambda _: away.runner_trials(),
)
"""One more where the target has a runner."""

RUNNER_CHECKS: Mapping[str, ConformanceCheck] = {**CHECKS, RUNNER_CHECK.name: RUNNER_CHECK}
"""The checks where the target has a runner; `why_not_there` tells which of their trials apply."""

_OF_THE_BACKEND = "it asks the backend, which is here, and not the machine"
_NOT_THERE: Mapping[str, str] = {
    **{f"contract-{name}": _OF_THE_BACKEND for name in contract.OF_THE_BACKEND},
    "devices": "tensors of a target with a runner lie here, in the host's memory",
    "limits-one_thread": "the threads that compute are there, and only those here are counted",
}
"""By the name of a check or the id of a trial, why it does not apply where there is a runner."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of every trial.

    Attributes:
        backend: Name of the backend.
        verdicts: In the order of the trials.
        runner: The way to the target's machine; empty if it is this one.
        left_out: Why trials do not apply where there is a runner, by their ids.
    """

    backend: str
    verdicts: tuple[TrialVerdict, ...]
    runner: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[TrialVerdict, ...]:
        """The verdicts of trials that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.status is Status.FAILED)

    def __str__(self) -> str:
        counts = Counter((verdict.trial.check, verdict.status) for verdict in self.verdicts)
        through = f" through the runner {self.runner}" if self.runner else ""
        lines = [f"{self.backend}{through}:"]
        for name in dict.fromkeys(verdict.trial.check for verdict in self.verdicts):
            parts = [f"{counts[name, s]} {s}" for s in Status if counts[name, s]]
            lines.append(f"  {name}: {', '.join(parts)}")
        for reason in dict.fromkeys(self.left_out.values()):
            names = ", ".join(name for name, why in self.left_out.items() if why == reason)
            lines.append(f"  not through a runner, as {reason}: {names}")
        return "\n".join([*lines, *(f"  {failure}" for failure in self.failures)])


def conformance(
    backend: Backend | str | PathLike[str],
    target: str | None = None,
    *,
    tolerances: Mapping[str, Tolerance] | None = None,
    checks: Sequence[str] | None = None,
    cases: Sequence[OperatorCase] = CASES,
) -> Callable[[Trial], None]:
    """Return a pytest function with one case per thing tried; needs pytest.

    A case that the backend refuses is skipped, with its reason, and so is one that does not apply
    to a target with a runner::

        test_conformance = conformance("my_package:BACKEND", target="mykind")

    Args:
        backend: The backend, or how it is found: `module:attribute` or `folder/file.py:attribute`;
            without an attribute it is `BACKEND`.
        target: The targets to compile for; None means the backend's first kind. To a partial kind
            alone a fallback is added.
        tolerances: By dtype, instead of those of `TOLERANCES`.
        checks: Names of the checks to run; None means all.
        cases: The table of operators.

    Raises:
        SettingError: There is no check or no backend of such a name.
    """
    import pytest

    subject = Subject(backend, target, {**TOLERANCES, **(tolerances or {})})
    chosen, left_out = choose_trials(subject, checks, cases)
    skipped = [
        replace(trial, act=partial(_leave_out, why=why), needs_runtime=False)
        for trial, why in left_out.items()
    ]

    @pytest.mark.parametrize(
        "trial", [pytest.param(trial, id=trial.id) for trial in (*chosen, *skipped)]
    )
    def test(trial: Trial) -> None:
        __tracebackhide__ = True
        verdict = judge(subject, trial)
        if verdict.status is Status.SKIPPED:
            pytest.skip(verdict.message)
        if verdict.status is Status.FAILED:
            promise = RUNNER_CHECKS[trial.check].sentence
            pytest.fail(f"{verdict.message}\n{trial.check}: {promise}", pytrace=False)

    return test


def examine(
    backend: Backend | str | PathLike[str],
    target: str | None = None,
    *,
    tolerances: Mapping[str, Tolerance] | None = None,
    checks: Sequence[str] | None = None,
    cases: Sequence[OperatorCase] = CASES,
) -> Report:
    """Run the kit without pytest and return a report; the arguments are `conformance`'s.

    Of a target with a runner, the report names what does not apply there, and why.

    Raises:
        SettingError: There is no check or no backend of such a name.
    """
    subject = Subject(backend, target, {**TOLERANCES, **(tolerances or {})})
    chosen, left_out = choose_trials(subject, checks, cases)
    verdicts = tuple(map(partial(judge, subject), chosen))
    reasons = {trial.id: why for trial, why in left_out.items()}
    return Report(subject.backend.name, verdicts, subject.runner, reasons)


def choose_trials(
    subject: Subject, checks: Sequence[str] | None, cases: Sequence[OperatorCase]
) -> tuple[tuple[Trial, ...], dict[Trial, str]]:
    """Return what to try, and what does not apply because there is a runner, and why.

    Args:
        subject: What is tried.
        checks: Names of checks; None means all that apply.
        cases: The table of operators.

    Raises:
        SettingError: There is no check of such a name.
    """
    if not subject.runner:
        return list_trials(checks, cases), {}
    every = list_trials((*CHECKS, RUNNER_CHECK.name) if checks is None else checks, cases)
    reasons = {trial: why_not_there(trial) for trial in every}
    left_out = {trial: why for trial, why in reasons.items() if why}
    return tuple(trial for trial in every if trial not in left_out), left_out


def _leave_out(_subject: Subject, why: str) -> None:
    raise NotApplicable(f"not through a runner, as {why}")


def why_not_there(trial: Trial) -> str:
    """Say why a trial does not apply where the target has a runner; nothing if it does."""
    return _NOT_THERE.get(trial.check) or _NOT_THERE.get(trial.id, "")


def list_trials(
    checks: Sequence[str] | None = None, cases: Sequence[OperatorCase] = CASES
) -> tuple[Trial, ...]:
    """Return what the kit tries, in order.

    Args:
        checks: Names of checks; None means all.
        cases: The table of operators.

    Raises:
        SettingError: There is no check of such a name.
    """
    for name in checks or ():
        if name not in RUNNER_CHECKS:
            raise SettingError(
                f"the kit has no check {name!r}", hint=f"use some of {', '.join(RUNNER_CHECKS)}"
            )
    chosen = CHECKS if checks is None else checks
    return tuple(trial for name in chosen for trial in RUNNER_CHECKS[name].trials(cases))
