# SPDX-License-Identifier: Apache-2.0
"""What the cost database holds beside samples: bytes, what failed, which plans were accepted."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from intarsia.hashing import digest


@dataclass(frozen=True, slots=True)
class Poison:
    """Why something must not be tried again with this version of its backend.

    Attributes:
        code: A reason code: `crashed`, `timeout`, `numerics`, `compile-failed`.
        reason: One sentence.
        taken_at: Seconds since 1970-01-01 UTC.
        session: Which run of the tuner found it.
    """

    code: str
    reason: str
    taken_at: float = 0.0
    session: str = ""


@dataclass(frozen=True, slots=True)
class Weight:
    """The bytes by which a process grows with one more instance of a region.

    Attributes:
        nbytes: Constants counted by their size.
        taken_at: Seconds since 1970-01-01 UTC.
        session: Which run of the tuner weighed it.
    """

    nbytes: int
    taken_at: float = 0.0
    session: str = ""


@dataclass(frozen=True, slots=True)
class VerdictKey:
    """The circumstances under which a plan was accepted.

    Attributes:
        model: Content hash of the prepared model.
        targets: Lossless text of the machine's description.
        backends: Names and versions of all backends of the targets, in the targets' order.
        machine: Digest of the machine's fingerprint.
        threads: Of one run.
        constraints: Digest of pins, exclusions and annotations; empty without any.
        objective: `latency`, `memory` or `throughput`.
    """

    model: str
    targets: str
    backends: str
    machine: str
    threads: str
    constraints: str = ""
    objective: str = "latency"

    @property
    def digest(self) -> str:
        """A hash of all its fields, as 32 hexadecimal digits."""
        return digest(("verdict", *astuple(self)))


@dataclass(frozen=True, slots=True)
class Assigned:
    """Nodes that run as one region, by name, and the text of their target."""

    target: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """An accepted plan: it won the comparison of the finalists.

    Attributes:
        regions: In the order in which they run.
        seconds: Measured, of one run.
        single: Text of the target of the best plan with one backend.
        single_seconds: What that plan took, measured in the same rounds.
        predicted_seconds: What the search said before anything of it was measured as a whole.
        confidence: Of the claim that the plan is not slower than the best single one.
        is_mixed: Whether several backends run in it.
        decided_at: Seconds since 1970-01-01 UTC.
        session: Which run of the tuner decided.
        report: JSON text of whatever else the tuner wants to tell.
    """

    regions: tuple[Assigned, ...]
    seconds: float
    single: str
    single_seconds: float
    predicted_seconds: float
    confidence: float
    is_mixed: bool
    decided_at: float
    session: str = ""
    report: str = ""
