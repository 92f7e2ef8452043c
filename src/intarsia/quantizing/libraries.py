# SPDX-License-Identifier: Apache-2.0
"""The libraries that quantise: imported late, kept quiet, their failures made errors of ours."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.metadata import version
from typing import Any

from intarsia.backends.artifact import first_line
from intarsia.errors import BackendError, IntarsiaError

_EXTRAS = {"onnxruntime": "onnxruntime", "nncf": "nncf"}
"""By package, our extra that installs it."""

_TELEMETRY_SWITCH = "NNCF_CI"
"""NNCF's own variable: where it is set when NNCF is imported, NNCF reports to nobody."""


def import_library(module: str) -> Any:
    """Import a module of a library.

    Raises:
        BackendError: It is not installed, or does not load.
    """
    package = module.partition(".")[0]
    try:
        with _quietly():
            return import_module(module)
    except ImportError as error:
        raise BackendError(
            f"{module} cannot be imported: {error}",
            backend=package,
            hint=f"pip install 'intarsia[{_EXTRAS[package]}]'",
        ) from error


def describe_library(package: str) -> str:
    """Return an installed package and its version."""
    return f"{package} {version(package)}"


@contextmanager
def at_work(package: str) -> Iterator[None]:
    """Run a library's quantiser: what it prints and logs goes nowhere, what it raises is ours.

    Raises:
        BackendError: It failed.
    """
    try:
        with _quietly():
            yield
    except IntarsiaError:
        raise
    except Exception as error:
        raise BackendError(
            f"the quantiser failed: {first_line(error)}",
            backend=describe_library(package),
            hint="try the other one with --quantizer",
        ) from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep logging as it is, and standard output for data.

    ONNX Runtime's quantiser sets up the root logger, unless that has been done; NNCF writes bars
    to standard output.
    """
    root, stand_in = logging.getLogger(), logging.NullHandler()
    nncf, was_disabled = logging.getLogger("nncf"), logging.getLogger("nncf").disabled
    os.environ.setdefault(_TELEMETRY_SWITCH, "1")  # noqa: TID251 - another library's variable
    root.addHandler(stand_in)
    nncf.disabled = True
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(stand_in)
        nncf.disabled = was_disabled
