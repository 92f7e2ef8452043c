# SPDX-License-Identifier: Apache-2.0
"""Which code runs: the version of a backend's library, and ours where our sources decide it."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from intarsia.backends.api import Generating, Identifying, Tunable
from intarsia.codegen.sources import source_digest

if TYPE_CHECKING:
    from intarsia.backends.api import Backend
    from intarsia.backends.candidate import BuildContext


def code_version(backend: Backend, context: BuildContext) -> str:
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
    details = [backend.tuning(context)] if isinstance(backend, Tunable) else []
    if isinstance(backend, Generating):
        text += f", intarsia {version('intarsia')}"
        details.insert(0, f"sources {source_digest(tuple(backend.generators))}")
    if isinstance(backend, Identifying):
        details.append(f"device {backend.device_identity(context.target)}")
    what = ", ".join(filter(None, details))
    return f"{text} ({what})" if what else text
