# SPDX-License-Identifier: Apache-2.0
"""What a worker process of a laboratory is asked to do.

Functions here are called by name through `runtime.workers`; they take and return plain values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from intarsia.arrays import Array
from intarsia.tuning.laboratory.session import Calls, Session
from intarsia.tuning.laboratory.store import Stage, graph_digest
from intarsia.tuning.laboratory.values import SessionSpec

_sessions: list[Session] = []
"""The session of this process, once it is open: a process has one."""


def open_session(spec: Mapping[str, Any]) -> str:
    """Open a model; return the hash of its graph, so that ids are known to mean the same.

    Args:
        spec: A `SessionSpec` as a dictionary.
    """
    _sessions[:] = [Session.open(msgspec.convert(spec, SessionSpec))]
    return graph_digest(_sessions[0].graph)


def session() -> Session:
    """Return the session of this process."""
    return _sessions[0]


def prepare(probe: int, calls: Calls, is_checked: bool, is_part: bool) -> dict[str, Any]:
    """Prepare a probe; return its `Report` as a dictionary."""
    report = session().prepare(probe, calls, is_checked=is_checked, is_part=is_part)
    session().mark.set(Stage.IDLE)
    return dict(msgspec.to_builtins(report))


def race(probes: Sequence[int], rounds: int, least_seconds: float, seed: int) -> dict[str, Any]:
    """Time probes as `Session.race` does; return its `Rounds` as a dictionary."""
    found = session().race(probes, rounds, least_seconds, seed)
    return {"seconds": found.seconds, "failures": found.failures, "taken_at": found.taken_at}


def drop(probes: Sequence[int]) -> None:
    """Forget probes."""
    session().drop(probes)


def weigh(probe: int) -> int:
    """Return by how many bytes one more instance of a probe makes this process grow."""
    found = session().weigh(probe)
    session().mark.set(Stage.IDLE)
    return found


def save(probe: int, file: str) -> None:
    """Write the package of a whole plan."""
    session().bound[probe].executable.save(file)


def outputs(probe: int) -> tuple[list[str], dict[str, Array]]:
    """Run a probe once; return the names of its outputs and the outputs by name."""
    context = session().bound[probe].context
    context.run()
    found = context.read_outputs()
    return list(found), found
