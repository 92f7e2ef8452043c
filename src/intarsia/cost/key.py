# SPDX-License-Identifier: Apache-2.0
"""What a measured time belongs to, and one measurement. Texts only: nothing here needs a model."""

from __future__ import annotations

import uuid
from dataclasses import astuple, dataclass
from typing import TypeAlias, TypeVar

from intarsia.cost.fingerprint import host_id
from intarsia.hashing import digest


@dataclass(frozen=True, slots=True)
class CostKey:
    """What a cost was measured of, and under which circumstances.

    Attributes:
        region: `shape_hash` of the region, whose border is plain; of several calls in a row a hash
            of theirs, with the layouts of their borders where these are not plain.
        target: Lossless text of the target, without an ordinal.
        backend: Name and version of the backend: `openvino 2026.4.1`; where our code decides what
            runs, ours too: `llvm 22.1.0, intarsia 0.1.0 (sources 5f0c2a11)`.
        machine: Digest of the machine's fingerprint.
        threads: Of one run, with ` shared` if several runtimes take turns: `2`, `2 shared`.
    """

    region: str
    target: str
    backend: str
    machine: str
    threads: str

    @property
    def digest(self) -> str:
        """A hash of all its fields, as 32 hexadecimal digits."""
        return digest(("cost", *astuple(self)))


@dataclass(frozen=True, slots=True)
class BoundaryKey:
    """The border between two regions that run one after another.

    What is measured on one target is the time of the one, plus that of the other, less that of
    their union run as one region: what the cut costs. On two targets it is the time of both in
    sequence less that of each: what running next to each other adds.

    Attributes:
        region: `shape_hash` of the region before the cut.
        target: Lossless text of its target.
        next_region: `shape_hash` of the region after the cut; where tensors cross the cut in
            blocks of channels, followed by their layouts.
        next_target: Lossless text of that region's target.
        backend: Name and version of the backend, or of both joined by ` | `.
        machine: Digest of the machine's fingerprint.
        threads: As in `CostKey`.
    """

    region: str
    target: str
    next_region: str
    next_target: str
    backend: str
    machine: str
    threads: str

    @property
    def digest(self) -> str:
        """A hash of all its fields, as 32 hexadecimal digits."""
        return digest(("junction", *astuple(self)))


Key: TypeAlias = CostKey | BoundaryKey
KeyT = TypeVar("KeyT", bound=Key)


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        seconds: Of one run; of a boundary it may be negative.
        anchor_seconds: What the anchor took in the same round; 0 without an anchor.
        anchor: Name of what was timed beside it in every round; empty without one.
        taken_at: Seconds since 1970-01-01 UTC.
        session: What `new_session` gave for the run of the tuner that took it.
    """

    seconds: float
    anchor_seconds: float = 0.0
    anchor: str = ""
    taken_at: float = 0.0
    session: str = ""

    @property
    def host(self) -> str:
        """Which machine took it, as `host_id` said there."""
        return session_host(self.session)


def new_session() -> str:
    """Return a new name for a run of the tuner; it begins with the id of this host."""
    return f"{host_id()}.{uuid.uuid4().hex[:16]}"


def session_host(session: str) -> str:
    """Return the id of the host where a session ran."""
    return session.partition(".")[0]
