# SPDX-License-Identifier: Apache-2.0
"""What of a package that nobody vouches for may run: nothing that it brings along.

Its numbers may be wrong, as any model's may. Its code is compiled again from its model; and what
its targets say may name no file and no command, which compiling would read, load or run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from intarsia.errors import PackageError
from intarsia.plan.placement import CONTROL_FLOW

if TYPE_CHECKING:
    from intarsia.backends.registry import Backends
    from intarsia.backends.values import Artifact
    from intarsia.runtime.package import Package
    from intarsia.target import CompilationConfig, Target

HARMLESS = frozenset(
    {
        *("mcpu", "mattr", "mtriple", "march", "mabi", "arch", "model", "libs", "keys"),
        *("device_name", "device_type", "driver_name", "disabled_ops", "dpu"),
        *("dev_force_block_config", "ops", "cost", "kept", "fusion", "call-cost", "copy-cost"),
        *("groups", "estimate", "fault-ops", "device", "tag"),
    }
)
"""Attributes in free text that only describe: whatever they say, nothing is opened or started."""

ADVICE = "load it with --trust (trust=True), or trust its signer's key: `intarsia keys trust`"


def describe_code(artifacts: Iterable[Artifact], backends: Backends) -> str:
    """Return which artifacts are code, and how many, in words; empty if none is.

    Args:
        artifacts: Of all regions.
        backends: Tell what of theirs is only data; of others nothing is taken to be.
    """
    counts = Counter(one.backend for one in artifacts if not _is_data(one, backends))
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))


def _is_data(artifact: Artifact, backends: Backends) -> bool:
    if artifact.backend == CONTROL_FLOW:
        return True
    backend = backends.by_name.get(artifact.backend)
    return backend is not None and backend.is_data is not None and backend.is_data(artifact)


def check_targets(config: CompilationConfig) -> None:
    """Refuse targets that name files or commands, wherever in them.

    Args:
        config: Resolved from what a package says, so that names of the user's are what they mean.

    Raises:
        PackageError: One does.
    """
    for target in (config.host, *(placed.target for placed in config.targets)):
        for one in _with_inner(target):
            _check_target(one)


def _with_inner(target: Target) -> Iterator[Target]:
    from intarsia.target import Target  # a start of what is trusted needs none

    yield target
    for value in target.attrs.values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Target):
                yield from _with_inner(inner)


def _check_target(target: Target) -> None:
    for spec in target.kind.attrs.values():
        is_free = spec.type in ("string", "array<string>", "map", "array<map>") and not spec.choices
        value = target.attrs.get(spec.name)
        if value and value != spec.default and is_free and spec.name not in HARMLESS:
            raise PackageError(
                f"nobody vouches for the package, and its target has -{spec.name}={value}, which "
                "may name a file or a command",
                target=str(target),
                hint=ADVICE,
            )


def refuse_code(name: str, package: Package, code: str, why: str) -> PackageError:
    """Return the error of a package whose code is not run, and cannot be compiled again.

    Args:
        name: Of its file.
        package: It.
        code: What of it is code, in words.
        why: Why it is not compiled.
    """
    old = "" if package.version > _UNSEALED_VERSION else f" (package format {package.version})"
    return PackageError(
        f"nobody vouches for {name!r}{old}, so that its code is not run: regions {code}; {why}",
        hint=ADVICE,
    )


_UNSEALED_VERSION = 3
