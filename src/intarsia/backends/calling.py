# SPDX-License-Identifier: Apache-2.0
"""Calls of a backend: its refined target is current, and what it raises is an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import TYPE_CHECKING

from intarsia.errors import BackendError, IntarsiaError, ReasonCode, TrialError

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext


@contextmanager
def calling(backend: str, context: BuildContext, doing: str) -> Iterator[None]:
    """Turn whatever a backend raises into an error of ours; the refined target is current.

    Args:
        backend: Its name.
        context: What it is given.
        doing: When it would fail, in words: `on a region`.

    Raises:
        BackendError: It raised something that is not an error of ours.
    """
    try:
        with context.refined:
            yield
    except IntarsiaError:
        raise
    except Exception as error:  # a plug-in may raise anything
        raise BackendError(
            f"backend {backend!r} failed {doing}: {type(error).__name__}: {error}",
            backend=backend,
            target=str(context.target),
            hint=f"leave {context.target} out, and report it to the backend's author",
        ) from error


_MISTAKES = (AssertionError, ArithmeticError, AttributeError, LookupError, NameError, TypeError)
"""What a mistake in a program raises; others are raised of things that are the matter."""


def failure_code(error: IntarsiaError) -> ReasonCode:
    """Return why a backend failed: by a mistake in our own code, or by anything else.

    A mistake is what Python raises of one, where the innermost function is of Intarsia: a library
    that a backend calls, or a plug-in, is not.

    Args:
        error: What `calling` raised.
    """
    if isinstance(error, TrialError):
        return error.code
    cause = error.__cause__
    if isinstance(error, BackendError) and isinstance(cause, _MISTAKES):
        frames = [frame for frame, _ in walk_tb(cause.__traceback__)]
        module = str(frames[-1].f_globals.get("__name__", "")) if frames else ""
        if module.partition(".")[0] == __name__.partition(".")[0]:
            return ReasonCode.INTERNAL_ERROR
    return ReasonCode.COMPILE_FAILED
