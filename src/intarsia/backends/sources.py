# SPDX-License-Identifier: Apache-2.0
"""Which code runs: the version of a backend's library, and ours where our sources decide it."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from intarsia.backends.values import CodeIdentity
from intarsia.codegen.sources import source_digest

if TYPE_CHECKING:
    from intarsia.backends.backend import RegisteredBackend
    from intarsia.backends.values import BuildContext


def code_identity(backend: RegisteredBackend, context: BuildContext) -> CodeIdentity:
    """Return what decides beside a backend's version which code it runs; it need not say."""
    return CodeIdentity() if backend.identity is None else backend.identity(context)


def code_version(backend: RegisteredBackend, context: BuildContext) -> str:
    """Return a backend's name and all that decides which code it runs.

    What a library does follows from its version: `openvino 2026.4.1`. What we generate changes with
    our sources too, and with what was tuned here: `llvm 22.1.0, intarsia 0.1.0 (sources 5f0c2a11,
    schedules 77aa01bc)`. Where devices of a kind are not alike, the device stands there too.

    Args:
        backend: Which one.
        context: Of its target.

    Raises:
        BackendError: The runtime is not installed, or there is no such device.
    """
    text = f"{backend.name} {backend.version()}"
    identity = code_identity(backend, context)
    details = []
    if identity.generators:
        text += f", intarsia {version('intarsia')}"
        details.append(f"sources {source_digest(identity.generators)}")
    details.append(identity.tuning)
    if identity.device:
        details.append(f"device {identity.device}")
    what = ", ".join(filter(None, details))
    return f"{text} ({what})" if what else text
