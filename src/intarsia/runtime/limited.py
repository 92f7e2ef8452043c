# SPDX-License-Identifier: Apache-2.0
"""Runs that end in time, or when somebody says so.

No library's call can be ended from outside. So the run goes on another thread, and who waited for
it goes on without it; what is left of it ends before its next step, and its memory is free then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

from intarsia.errors import InputError, RunCancelledError, RunTimeoutError

_RESULT = TypeVar("_RESULT")
_End: TypeAlias = Callable[[], _RESULT]

IsOver: TypeAlias = Callable[[], bool]
"""Tells a run whether nobody waits for it any more."""


class Cancellation:
    """Ends runs that it was given to, from any thread; those that begin later end at once.

    Attributes:
        is_cancelled: Whether it was used.
    """

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._listeners: dict[int, Callable[[], None]] = {}

    def cancel(self) -> None:
        """End the runs: each raises `RunCancelledError` at once."""
        with self._lock:
            self.is_cancelled = True
            listeners = list(self._listeners.values())
        for tell in listeners:
            tell()

    def _listen(self, tell: Callable[[], None]) -> None:
        with self._lock:
            self._listeners[id(tell)] = tell
            is_cancelled = self.is_cancelled
        if is_cancelled:
            tell()

    def _leave(self, tell: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.pop(id(tell), None)


def run_limited(
    run: Callable[[IsOver], _RESULT], timeout: float | None, cancellation: Cancellation | None
) -> _RESULT:
    """Return what a run returns, if it ends in time and nobody cancels it.

    Args:
        run: It; it may ask whether it is over.
        timeout: Seconds; None means no limit.
        cancellation: What ends it; None means nothing does.

    Raises:
        RunTimeoutError: It took longer.
        RunCancelledError: It was cancelled.
        InputError: The timeout is not positive.
    """
    if timeout is not None and not timeout > 0:
        raise InputError(f"a timeout of {timeout} s is none", hint="give a positive one, or none")
    ends: SimpleQueue[_End[_RESULT]] = SimpleQueue()
    over = threading.Event()

    def work() -> None:
        try:
            result = run(over.is_set)
        except BaseException as error:
            failure = error  # the name of the clause is gone when it is raised
            ends.put(lambda: _fail(failure))
        else:
            ends.put(lambda: result)

    def cancelled() -> None:
        ends.put(lambda: _fail(RunCancelledError("the run was cancelled")))

    if cancellation is not None:
        cancellation._listen(cancelled)  # noqa: SLF001 - of this module
    try:
        if cancellation is None or not cancellation.is_cancelled:
            # Of a daemon no exit of the process waits for a library that hangs.
            threading.Thread(target=work, name="intarsia-run", daemon=True).start()
        return ends.get(timeout=timeout)()
    except Empty:
        raise RunTimeoutError(
            f"the run took longer than {timeout:g} s",
            hint="it goes on until its current step ends, and its memory is in use until then; "
            "a backend that hangs is ended where it is isolated (isolate=)",
        ) from None
    finally:
        over.set()
        if cancellation is not None:
            cancellation._leave(cancelled)  # noqa: SLF001 - of this module


def _fail(error: BaseException) -> _RESULT:  # type: ignore[type-var]
    raise error
