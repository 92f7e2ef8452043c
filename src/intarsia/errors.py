# SPDX-License-Identifier: Apache-2.0
"""Every exception that Intarsia raises on purpose.

The class says whose fault it is::

    IntarsiaError                catch this; fields: node, target, hint
    ├ ModelError                 the ONNX model is invalid or uses what we cannot read
    ├ TargetError                a target description is unknown, malformed or contradictory
    ├ InputError                 a tensor given to `run` has the wrong name, dtype or shape
    ├ PlacementError             an annotation matches nothing, or constraints contradict
    ├ UnsupportedError           some node has no target; carries every refusal
    ├ PackageError               a package is damaged, of another format or unsafe
    ├ CostDatabaseError          the cost database is damaged, of another schema or out of reach
    ├ LockError                  a lock file is damaged, or the environment has changed since
    ├ SettingError               an environment variable or option has no such value
    ├ AccuracyError              a bound on the error of a model cannot be held
    ├ ServingError               a server cannot do what a request asks for
    ├ BackendError               a backend is missing, or failed to load, compile or detect
    ├ ExecutionError             a backend failed while running
    ├ LinkError                  the way to another machine failed; what was to run there did not
    └ InternalError              our bug

`exit_code` is what the command line returns: 1 the answer is no, 2 bad input, 3 a backend failed,
4 our bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

_SHOWN = 96


class ReasonCode(StrEnum):
    """Why a node did not go to a target."""

    UNSUPPORTED_OP = "unsupported-op"
    """The backend has no such operator, or not in this form."""
    UNSUPPORTED_DTYPE = "unsupported-dtype"
    """The backend does not have the operator for this element type."""
    DYNAMIC_SHAPE = "dynamic-shape"
    """The backend needs sizes that are not known."""
    COST = "cost"
    """A plan that was found by cost runs the node elsewhere."""
    USER = "user"
    """A pin or an exclusion."""
    CYCLE = "cycle"
    """Reserved: nothing gives this reason today."""
    MIN_SIZE = "min-size"
    """Reserved: nothing gives this reason today."""
    COMPILE_FAILED = "compile-failed"
    """The backend failed on the node although it had accepted it."""
    INTERNAL_ERROR = "internal-error"
    """The same by a mistake in Intarsia itself; please report it."""
    CRASHED = "crashed"
    """It ended its process when it was measured."""
    TIMEOUT = "timeout"
    """It took too long when it was measured."""
    NUMERICS = "numerics"
    """It gave wrong numbers when it was measured, or is known to."""
    UNAVAILABLE = "unavailable"
    """Reserved: nothing gives this reason today."""


class IntarsiaError(Exception):
    """The root of every error of ours.

    Args:
        message: What failed, with the names and values at fault.
        node: The ONNX node at fault, if one is.
        target: The text of the target at fault, if one is.
        hint: One thing to do about it.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        target: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.target = target
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ModelError(IntarsiaError, ValueError):
    """The ONNX model is invalid, incomplete, or uses what we cannot read."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a text something is wrong.

    Attributes:
        text: What was read.
        start: The first character at fault, counted from 0.
        length: How many are at fault.
    """

    text: str
    start: int
    length: int = 1

    def inside(self, text: str) -> Place:
        """Return the same place in a longer text, or all of that if it has this text not once."""
        if text.count(self.text) != 1:
            return Place(text, 0, len(text))
        return Place(text, text.index(self.text) + self.start, self.length)

    def __str__(self) -> str:
        """Two lines: the line of the text, or a part of it, and carets under what is wrong."""
        start = self.text.rfind("\n", 0, self.start) + 1
        line = self.text[start:].partition("\n")[0]
        column = self.start - start
        first = max(0, min(column - _SHOWN // 2, len(line) - _SHOWN))
        shown = "".join(char if char.isprintable() else " " for char in line[first:][:_SHOWN])
        column -= first
        carets = "^" * max(1, min(self.length, len(shown) - column))
        return f"  {shown}\n  {' ' * column}{carets}"


class TargetError(IntarsiaError, ValueError):
    """A target description is unknown, malformed or contradictory.

    Args:
        message: What is wrong, with the names and values at fault.
        node: The ONNX node at fault, if one is.
        target: The text of the target at fault, if one is.
        hint: One thing to do about it.
        place: Where in the text that was given it is, if it was text.
    """

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        target: str | None = None,
        hint: str | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(message, node=node, target=target, hint=hint)
        self.place = place

    def __str__(self) -> str:
        lines = (self.message, self.place and str(self.place), self.hint and f"hint: {self.hint}")
        return "\n".join(line for line in lines if line)


class InputError(IntarsiaError, ValueError):
    """A tensor given to `run` has the wrong name, dtype or shape."""


class PlacementError(IntarsiaError, ValueError):
    """An annotation matches nothing, or constraints contradict one another."""


class UnsupportedError(IntarsiaError):
    """Some node has no target that takes it; `refusals` says why, one by one.

    Args:
        message: What failed.
        refusals: Every refusal that led here, each with a readable `str`.
        node: The first node without a target.
        target: The target that had to take it, if one had to.
        hint: One thing to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        refusals: Sequence[object] = (),
        node: str | None = None,
        target: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, node=node, target=target, hint=hint)
        self.refusals = tuple(refusals)


class PackageError(IntarsiaError):
    """A package is damaged, of another format version, or unsafe to open."""


class CostDatabaseError(IntarsiaError):
    """The cost database is damaged, of another schema, or out of reach."""


class LockError(IntarsiaError):
    """A lock file is damaged, or the environment has changed since it was written."""


class SettingError(IntarsiaError, ValueError):
    """An environment variable or an option has no such value."""


class AccuracyError(IntarsiaError):
    """A bound on the error of a model cannot be held: the answer is no."""

    exit_code = 1


class ServingError(IntarsiaError):
    """A server cannot do what a request asks for.

    Args:
        message: What is wrong, with the names and values at fault.
        status: The status code of HTTP that says so.
        node: The ONNX node at fault, if one is.
        target: The text of the target at fault, if one is.
        hint: One thing to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        node: str | None = None,
        target: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, node=node, target=target, hint=hint)
        self.status = status


class BackendError(IntarsiaError):
    """A backend is not installed, or failed to load, compile or detect.

    Args:
        message: What failed.
        backend: The backend's name, with its version where known.
        node: The ONNX node at fault, if one is.
        target: The text of the target at fault, if one is.
        hint: One thing to do about it.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        backend: str | None = None,
        node: str | None = None,
        target: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, node=node, target=target, hint=hint)
        self.backend = backend


class ExecutionError(BackendError):
    """A backend failed while running, or returned what it must not."""


class TrialError(ExecutionError):
    """A region failed in a process of its own, where it was tried first.

    Attributes:
        code: Why it is to go elsewhere.
    """

    code: ReasonCode = ReasonCode.CRASHED


class RunTimeoutError(ExecutionError, TimeoutError):
    """A run took longer than its caller wanted to wait."""


class RunCancelledError(ExecutionError):
    """A run was cancelled by its caller."""


class LinkError(BackendError):
    """The way to another machine failed, or that machine ended what ran there.

    It says nothing about what was to run.
    """


class InternalError(IntarsiaError):
    """Our own bug: an invariant of the compiler does not hold."""

    exit_code = 4


def with_hint(error: IntarsiaError) -> str:
    """Return the message of an error on one line, with what to do about it in brackets."""
    return f"{error.message} ({error.hint})" if error.hint else error.message


def words(error: Exception) -> str:
    """Return what an exception says, with its name if it is not one of ours."""
    return error.message if isinstance(error, IntarsiaError) else f"{type(error).__name__}: {error}"
