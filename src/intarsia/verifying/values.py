# SPDX-License-Identifier: Apache-2.0
"""What verifying finds, as frozen values that the commands print and write as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from intarsia.measure.divergence import WorstElement


class Symptom(StrEnum):
    """How a fault shows."""

    WRONG = "wrong"
    NAN = "nan"
    SHAPE = "shape"
    SLOW = "slow"
    LEAK = "leak"
    CRASHED = "crashed"
    HUNG = "hung"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fault:
    """One call that did not do what the model says.

    Attributes:
        symptom: How it shows.
        text: What is wrong, in a sentence.
        output: The tensor, if one is wrong.
        worst: Its worst element.
    """

    symptom: Symptom
    text: str
    output: str = ""
    worst: WorstElement | None = None

    def __str__(self) -> str:
        return f"{self.text}; {self.worst}" if self.worst is not None else self.text


@dataclass(frozen=True, slots=True)
class RegionFault:
    """A fault of a region of a program, in one of the runs.

    Attributes:
        region: Its position in the placement; -1 means the program as a whole.
        target: Text of its target.
        nodes: Names of its nodes.
        operators: Its operators with their counts.
        run: In which run it showed first; 0 is the first one.
        fault: What it did.
    """

    region: int
    target: str
    nodes: tuple[str, ...]
    operators: str
    run: int
    fault: Fault

    def __str__(self) -> str:
        where = "the whole program" if self.region < 0 else f"region {self.region}"
        return f"{where} ({self.operators}) on {self.target}, run {self.run}: {self.fault}"


@dataclass(frozen=True, slots=True)
class RegionAgreement:
    """How near a region came to the reference over all runs.

    Attributes:
        region: Its position in the placement.
        target: Text of its target.
        operators: Its operators with their counts.
        error: The largest error of an output, as a part of what is tolerated; infinite if it is
            more than that.
        worst: The worst element of all; None if all are equal.
        unchecked: Why it was not compared; empty if it was.
    """

    region: int
    target: str
    operators: str
    error: float = 0.0
    worst: WorstElement | None = None
    unchecked: str = ""


@dataclass(frozen=True, slots=True)
class SmallestModel:
    """The smallest model that still shows a fault.

    Attributes:
        folder: Where `model.onnx`, `inputs.npz` and `README.md` are.
        nodes: How many nodes it has.
        operators: They, in their order.
        first: Name of the node at which the fault is first seen in the model that was cut.
        fault: What it shows.
        trials: How many models were tried.
        command: Shows the fault again.
    """

    folder: str
    nodes: int
    operators: tuple[str, ...]
    first: str
    fault: Fault
    trials: int
    command: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a monitored run of a program, or several, found.

    Attributes:
        file: The model or package.
        runs: How many runs were made.
        regions: How near each region came to the reference.
        faults: What went wrong, the first first.
        smallest: The smallest model that shows the first fault; None if there is none.
        note: Why there is no smallest model although something went wrong, or why the outputs of
            the whole were not compared.
        seconds: How long it all took.
    """

    file: str
    runs: int
    regions: tuple[RegionAgreement, ...] = ()
    faults: tuple[RegionFault, ...] = ()
    smallest: SmallestModel | None = None
    note: str = ""
    seconds: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether nothing went wrong."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class Bisection:
    """Where two ways of running a model first part.

    Attributes:
        against: What is right by assumption.
        suspect: What is doubted.
        fault: What the suspect does with the whole model; None if they agree.
        node: Name of the first node that differs.
        operator: Its operator.
        smallest: The smallest model that shows it; None if they agree.
        trials: How many models were tried.
        seconds: How long it took.
    """

    against: str
    suspect: str
    fault: Fault | None = None
    node: str = ""
    operator: str = ""
    smallest: SmallestModel | None = None
    trials: int = 0
    seconds: float = 0.0
