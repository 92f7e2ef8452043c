# SPDX-License-Identifier: Apache-2.0
"""Runtimes that are packages of Python: tried in a process of their own, then imported."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.errors import BackendError
from intarsia.process.selftest import package_facts, require_library

if TYPE_CHECKING:
    from intarsia.backends.values import Artifact


@dataclass(frozen=True, slots=True)
class PythonRuntime:
    """A runtime that is imported.

    Attributes:
        title: Its name for people.
        package: The name of its package, of our extra for it, and of its backend.
        files: A pattern of its libraries inside the package.
        backend: The name of the extra and the backend where these have one of their own.
        module_name: The module of the backend under `intarsia.backends`; empty if it is its name.
        variables: Of the environment, by name, which are set while it is imported if they are not.
    """

    title: str
    package: str
    files: str
    backend: str = ""
    module_name: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def owner(self) -> str:
        """The name of the backend, and of our extra for it."""
        return self.backend or self.package

    def module(self) -> Any:
        """Import the package; `require` comes first, so that it has been tried.

        Raises:
            BackendError: It is not installed, or does not load.
        """
        return _import(self)

    def require(self, caches: Path) -> tuple[str, ...]:
        """Return facts on its files; none if it is not installed. Nothing is loaded.

        Args:
            caches: Where verdicts on self-tests are kept.

        Raises:
            BackendError: It has not passed its self-test.
        """
        return _require(self, caches)

    def installed_version(self, caches: Path) -> str:
        """Return its version as its package says; "" if that does not say. Nothing is loaded.

        Raises:
            BackendError: It has not passed its self-test.
        """
        return _installed(self.package) if self.require(caches) else ""

    def error(self, problem: str, artifact: Artifact) -> BackendError:
        """Return what to raise of a region.

        Args:
            problem: What the runtime did: the rest of a sentence.
            artifact: The region.
        """
        return BackendError(
            f"{self.title} {problem}",
            backend=f"{self.owner} {artifact.version}",
            target=artifact.target,
        )


@cache
def _import(runtime: PythonRuntime) -> Any:
    try:
        with _set(runtime.variables):
            return import_module(runtime.package)
    except ImportError as error:
        raise BackendError(
            f"{runtime.title} is not available: {error}",
            backend=runtime.owner,
            hint=f"pip install 'intarsia[{runtime.owner}]'",
        ) from error


@contextmanager
def _set(variables: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Set variables for a while; those that are set stay as they are."""
    added = [(name, text) for name, text in variables if name not in os.environ]  # noqa: TID251
    os.environ.update(added)  # noqa: TID251 - variables of others
    try:
        yield
    finally:
        for name, _ in added:
            os.environ.pop(name, None)  # noqa: TID251


@cache
def _installed(package: str) -> str:
    """Return the version of an installed package; "" if there is none. It is read once.

    A compilation asks a dozen times, and each time its metadata would be parsed, which takes 5 ms.
    """
    with suppress(PackageNotFoundError):  # importing it takes longer than asking
        return version(package)
    return ""


@cache
def _require(runtime: PythonRuntime, caches: Path) -> tuple[str, ...]:
    package = runtime.package
    facts = package_facts(package, runtime.files)
    hint = f"pip install --force-reinstall {package}, or another version of it"
    spelling = f"intarsia.backends.{runtime.module_name or runtime.owner}:BACKEND"
    require_library(runtime.title, spelling, facts, hint, caches)
    return facts
