# SPDX-License-Identifier: Apache-2.0
"""What a fresh process does with a package: run it while others do too, or see how it grows.

Functions here are called by name through `process.workers`. The process knows nothing of tuning: it
loads and runs what users will load and run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.process.workers import resident_bytes
from intarsia.settings import Settings
from intarsia.tuning.laboratory.plug_ins import PlugIns, load_all
from intarsia.tuning.laboratory.sampling import RUNS_TO_SETTLE, program_clock

if TYPE_CHECKING:
    from intarsia.runtime.context import Context
    from intarsia.runtime.executor import PlanExecutable


@dataclass(slots=True)
class _OpenedProgram:
    """A program that can run."""

    executable: PlanExecutable
    context: Context
    clock: Callable[[], float] | None


_programs: dict[str, _OpenedProgram] = {}


def open_program(
    file: str,
    num_threads: int,
    texts: Mapping[str, Sequence[str]],
    plug_ins: Mapping[str, Any],
    arrays: Mapping[str, Array] | None = None,
) -> None:
    """Load a package and run it a few times.

    Args:
        file: The package.
        num_threads: Threads that one run may use.
        texts: Elements of inputs of text, by name.
        plug_ins: `PlugIns` as a dictionary; without any, the package's backends are installed.
        arrays: The other inputs, by name.
    """
    from intarsia.runtime.loading import load

    described = msgspec.convert(plug_ins, PlugIns)
    backends = load_all(described, Settings.from_environment()) if described.backends else None
    executable = load(file, num_threads=num_threads, backends=backends, trust=True).latest
    feeds: dict[str, Any] = dict(arrays or {})
    for spec in executable.inputs:
        if spec.name in texts:
            feeds[spec.name] = np.array(texts[spec.name], object).reshape(spec.shape or ())
    context = executable.context()
    context.write_inputs([feeds[spec.name] for spec in executable.inputs])
    for _ in range(RUNS_TO_SETTLE):
        context.run()
    _programs[file] = _OpenedProgram(executable, context, program_clock(executable))


def time_runs(file: str, start: float, seconds: float) -> list[float]:
    """Run a program again and again for some time.

    Args:
        file: The package, which is open.
        start: When to begin, on the system's monotonic clock, which all processes share.
        seconds: For how long; the run that is going on then is finished.

    Returns:
        How many runs there were, and the seconds that they took: by the devices' own clocks where
        all of them have one.
    """
    opened = _programs[file]
    run, clock = opened.context.step(), opened.clock
    time.sleep(max(0.0, start - time.monotonic()))
    began = clock() if clock is not None else 0.0
    first = last = time.monotonic()
    count = 0
    while last - first < seconds:
        run()
        count += 1
        last = time.monotonic()
    return [count, last - first if clock is None else clock() - began]


def added_bytes(
    file: str,
    num_threads: int,
    texts: Mapping[str, Sequence[str]],
    plug_ins: Mapping[str, Any],
    arrays: Mapping[str, Array] | None = None,
) -> int:
    """Return by how many bytes this process grows when it loads and runs a package.

    Libraries that the package needs are counted, as nothing has loaded them before; so are its
    constants, as far as they were read, and its buffers.

    Args:
        file: The package.
        num_threads: Threads that one run may use.
        texts: Elements of inputs of text, by name.
        plug_ins: `PlugIns` as a dictionary; without any, the package's backends are installed.
        arrays: The other inputs, by name.
    """
    for array in (arrays or {}).values():
        array.tobytes()  # in memory before: they are the caller's, not the plan's
    gc.collect()
    before = resident_bytes()
    open_program(file, num_threads, texts, plug_ins, arrays)
    gc.collect()
    return max(0, resident_bytes() - before)
