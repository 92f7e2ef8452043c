# SPDX-License-Identifier: Apache-2.0
"""Calls of a backend: its refined target is current, and what it raises is an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from intarsia.errors import BackendError, IntarsiaError

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
