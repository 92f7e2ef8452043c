# SPDX-License-Identifier: Apache-2.0
"""Times every call of a run, in the bodies of If, Loop and Scan too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from intarsia.backends.device import Step
from intarsia.backends.tracing import TracedStep
from intarsia.backends.values import KernelCall
from intarsia.plan.plan import Plan
from intarsia.plan.profile import CallPath, TimedCall
from intarsia.runtime.context import Context


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """What a recorder times.

    Attributes:
        plan: In which it is; of a whole body, the body's.
        position: Of its step in the plan; of a whole body, None.
        kernel: The kernel, if it is one.
    """

    plan: Plan
    position: int | None
    kernel: KernelCall | None = None


class RunRecorder:
    """Runs the steps of a context and times each, and inside of those that run bodies each of them.

    Bodies are bound once more for this, so that runs that nobody times ask no questions.

    Args:
        context: Whose steps; nothing else may run them meanwhile.
        by_kernel: Whether to time each kernel of a region that tells them.
        is_traced: Whether to run calls that tell of their work, where a backend has them.
        path: The way to the body that the context is of.
        log: Where calls are noted as they end; `start` is the clock's there.
        clock: Tells the time, in seconds.

    Attributes:
        calls: All calls, in the order of the plan: an operator, then its bodies.
        traced: By path, those that tell of their work; a body may be bound several times.
        began: When the last run did, by the clock.
    """

    def __init__(
        self,
        context: Context,
        *,
        by_kernel: bool = False,
        is_traced: bool = False,
        path: CallPath = (),
        log: list[TimedCall] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.calls: dict[CallPath, RecordedCall] = {}
        self.began = 0.0
        self.traced: dict[CallPath, list[TracedStep]] = {}
        self._context, self._path = context, path
        self._by_kernel, self._is_traced = by_kernel, is_traced
        self._clock = clock
        self._log: list[TimedCall] = [] if log is None else log
        self._steps: list[tuple[CallPath, int, Step]] = []
        calls = context.calls(self._time_body, by_kernel=by_kernel, is_traced=is_traced)
        for position, kernel, step in calls:
            self.calls[self._next] = RecordedCall(context.plan, position, kernel)
            if isinstance(step, TracedStep):
                self.traced.setdefault(self._next, []).append(step)
            self._steps.append((self._next, position, step))
        self.calls = dict(sorted(self.calls.items()))

    @property
    def _next(self) -> CallPath:
        """The path of the call that is bound next."""
        return (*self._path, len(self._steps))

    def run(self) -> list[TimedCall]:
        """Run once, and return all calls in the order in which they ended.

        Raises:
            ExecutionError: A backend failed; names the region.
            InputError: An input holds what the model does not allow, as an index that is too large.
        """
        self._log.clear()
        self.began = self._clock()
        self._run()
        return [replace(call, start=call.start - self.began) for call in self._log]

    def _run(self) -> None:
        for path, position, step in self._steps:
            start = self._clock()
            self._context.call(position, step)
            self._log.append(TimedCall(path, start, self._clock() - start))

    def _time_body(self, name: str, context: Context) -> Step:
        """Return the call that runs a body of the next call in a context, and times it."""
        path = (*self._next, name)
        inner = RunRecorder(
            context,
            by_kernel=self._by_kernel,
            is_traced=self._is_traced,
            path=path,
            log=self._log,
            clock=self._clock,
        )
        self.calls |= {path: RecordedCall(context.plan, None), **inner.calls}
        for inner_path, steps in inner.traced.items():
            self.traced.setdefault(inner_path, []).extend(steps)

        def run() -> None:
            start = self._clock()
            inner._run()
            self._log.append(TimedCall(path, start, self._clock() - start))

        return run
