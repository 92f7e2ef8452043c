# SPDX-License-Identifier: Apache-2.0
"""The packages that serving needs; every other module here imports them as it likes."""

from __future__ import annotations

from importlib.util import find_spec

from intarsia.errors import BackendError

_MODULES = {
    "serve": {
        "starlette": "starlette",
        "uvicorn": "uvicorn",
        "prometheus_client": "prometheus-client",
    },
    "serve-grpc": {"grpc": "grpcio", "google.protobuf": "protobuf"},
}
"""By extra, the modules that it brings, with the names of their packages."""


def require_extra(extra: str) -> None:
    """Check that the packages of an extra are installed.

    Args:
        extra: `serve` or `serve-grpc`.

    Raises:
        BackendError: One is not.
    """
    for module, package in _MODULES[extra].items():
        try:
            is_there = find_spec(module) is not None
        except ModuleNotFoundError:  # of a part, if the whole is not there
            is_there = False
        if not is_there:
            raise BackendError(
                f"serving needs the package {package}, which is not installed",
                backend=extra,
                hint=f"pip install 'intarsia[{extra}]'",
            )
