# SPDX-License-Identifier: Apache-2.0
"""How much of a run the ONNX reference evaluator takes, where it has nodes that nobody else takes.

There is no telling beforehand, least of all of a Loop. So the program runs once on made-up inputs,
in a process of its own, which may hang or die.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.backends.artifact import shared_sizes
from intarsia.errors import PackageError, ReasonCode
from intarsia.process.workers import Limits, Worker
from intarsia.runtime.package import PACKAGE_SUFFIX

if TYPE_CHECKING:
    from intarsia.runtime.executor import PlanExecutable

SLOW = "reference"
"""The backend that is slow; the kind that it serves is called so too."""

LIMIT_SECONDS = 10.0
"""Of the process, its start included."""

MOST_BYTES = 1 << 30
"""Of a program that is written to a file for this."""

logger = logging.getLogger("intarsia")


def time_slow_part(executable: PlanExecutable, num_threads: int) -> str:
    """Return what is said of the time that the reference evaluator takes of a run.

    Returns:
        The end of a sentence; nothing where the evaluator has no node, or its time cannot be had.
    """
    regions = executable.placement.regions
    if all(region.backend != SLOW for region in regions):
        return ""
    if sum(shared_sizes(executable.artifacts)) > MOST_BYTES:
        logger.info("a run is not timed: the program is large")
        return ""
    with tempfile.TemporaryDirectory(prefix="intarsia-") as folder, Worker() as worker:
        file = Path(folder) / f"program{PACKAGE_SUFFIX}"
        try:
            executable.save(file)
        except PackageError as error:
            logger.info("a run is not timed: %s", error.message)
            return ""
        limits = Limits(LIMIT_SECONDS)
        outcome = worker.call(f"{__name__}:split_seconds", str(file), num_threads, limits=limits)
    if outcome.is_ok:
        slow, whole = outcome.value
        return f"; {SLOW} takes {1e3 * slow:.3g} ms of the {1e3 * whole:.3g} ms of a run"
    if outcome.reason is ReasonCode.TIMEOUT:
        return f"; {SLOW} takes over {LIMIT_SECONDS:.0f} s of a run"
    logger.info("a run is not timed: %s", outcome.message)
    return ""


def split_seconds(file: str, num_threads: int) -> tuple[float, float]:
    """Return how long a run of a package takes on the reference evaluator, and in all.

    Args:
        file: The package.
        num_threads: Threads that the run may use.

    Raises:
        IntarsiaError: It cannot be loaded, or does not run on made-up inputs.
    """
    from intarsia.runtime.loading import load

    executable = load(file, num_threads=num_threads)
    profile = executable.profile(executable.sample_feeds(), 1)
    seconds = profile.of_regions(executable.plan)
    regions = executable.placement.regions
    slow = (one for one, region in zip(seconds, regions, strict=True) if region.backend == SLOW)
    return sum(slow), sum(profile.seconds)
