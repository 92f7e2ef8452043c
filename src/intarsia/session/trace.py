# SPDX-License-Identifier: Apache-2.0
"""The file that `end_profiling` writes: events of Chrome's trace format, one a line."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import SettingError
from intarsia.plan.plan import Plan, RegionStep


class Trace:
    """The runs of a session so far; may be added to from many threads."""

    def __init__(self) -> None:
        self.start_ns = time.monotonic_ns()
        self._events: list[dict[str, Any]] = []

    def add_run(self, plan: Plan, start_ns: int, seconds: Sequence[float]) -> None:
        """Add a run.

        Args:
            plan: What was run.
            start_ns: When, by the monotonic clock.
            seconds: How long each step took, in the plan's order.
        """
        at = (start_ns - self.start_ns) / 1e3
        total = sum(seconds) * 1e6
        events = [self._event("Session", "model_run", at, total, {})]
        for step, taken in zip(plan.steps, seconds, strict=True):
            if isinstance(step, RegionStep):
                region = plan.placement.regions[step.region]
                args: dict[str, Any] = {"op_name": region.operators, "provider": region.target}
                name = f"region {step.region}"
            else:
                source, destination = (
                    plan.devices[plan.tensors[i].device] for i in (step.source, step.destination)
                )
                args = {"bytes": step.nbytes, "from": source, "to": destination}
                name = f"copy {plan.tensors[step.source].name}"
            events.append(self._event("Node", name, at, taken * 1e6, args))
            at += taken * 1e6
        self._events += events

    def write(self, prefix: str) -> str:
        """Write the file and return its name.

        Args:
            prefix: What its name begins with; the time follows.

        Raises:
            SettingError: The file cannot be written.
        """
        stamp = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{time.monotonic_ns() % 10**9:09}"
        path = Path(f"{prefix}_{stamp}.json")
        try:
            path.write_text("[\n" + ",\n".join(map(json.dumps, self._events)) + "\n]\n")
        except OSError as error:
            raise SettingError(
                f"the profile {str(path)!r} cannot be written: {error.strerror}",
                hint="set SessionOptions.profile_file_prefix to a folder that can be",
            ) from error
        return str(path)

    @staticmethod
    def _event(
        category: str, name: str, at: float, duration: float, args: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_ident(),
            "dur": round(duration, 3),
            "ts": round(at, 3),
            "ph": "X",
            "name": name,
            "args": dict(args),
        }
