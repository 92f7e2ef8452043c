# SPDX-License-Identifier: Apache-2.0
"""Whether the installed Python packages fit together, by what their metadata says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import PurePath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

RUNTIMES = ("onnxruntime", "openvino")
"""Import names that several distributions bring; each overwrites the files of the others."""

NEEDED = ("intarsia", "onnx", "onnx-ir", "onnxscript", "numpy", *RUNTIMES)
"""Distributions whose requirements are looked at; `-gpu` and other variants of a runtime too."""


@dataclass(frozen=True, slots=True)
class Clash:
    """Distributions that do not fit together, and what to do about it."""

    problem: str
    fix: str


def find_clashes(path: Sequence[str] | None = None) -> tuple[Clash, ...]:
    """Return what does not fit together among the installed distributions.

    Args:
        path: Folders to look in; None means those that Python imports from.
    """
    found = list(distributions() if path is None else distributions(path=list(path)))
    relevant = [dist for dist in found if _is_relevant(_name(dist))]
    return (*_doubles(relevant), *_overlaps(relevant), *_unmet(relevant, found))


def _name(dist: Distribution) -> str:
    return canonicalize_name(dist.metadata["Name"] or "")


def _is_relevant(name: str) -> bool:
    return name in NEEDED or name.startswith(tuple(f"{runtime}-" for runtime in RUNTIMES))


def _doubles(dists: Iterable[Distribution]) -> list[Clash]:
    versions: dict[str, dict[str, None]] = {}
    for dist in dists:
        versions.setdefault(_name(dist), {})[dist.version] = None
    return [
        Clash(
            f"{name} is installed {len(several)} times: {', '.join(several)}",
            f"pip uninstall -y {name} until it is gone, then pip install {name}",
        )
        for name, several in versions.items()
        if len(several) > 1
    ]


def _overlaps(dists: Iterable[Distribution]) -> list[Clash]:
    """Return the runtimes whose files two distributions claim."""
    owners: dict[str, dict[str, set[PurePath]]] = {}
    for dist in dists:
        for file in dist.files or ():
            if file.parts[0] in RUNTIMES:
                files = owners.setdefault(file.parts[0], {}).setdefault(_name(dist), set())
                files.add(PurePath(file))
    clashes = []
    for runtime, by_name in sorted(owners.items()):
        names = [
            name
            for name, files in sorted(by_name.items())
            if any(other != name and files & theirs for other, theirs in by_name.items())
        ]
        if names:
            clashes.append(
                Clash(
                    f"{' and '.join(names)} overwrite one another's files in {runtime}/",
                    f"pip uninstall -y {' '.join(names)}, then pip install only one of them",
                )
            )
    return clashes


def _unmet(dists: Iterable[Distribution], installed: Iterable[Distribution]) -> list[Clash]:
    """Return the requirements that no installed version meets."""
    versions = {_name(dist): dist.version for dist in installed}
    clashes = []
    for dist in dists:
        for text in dist.requires or ():
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                continue
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            have = versions.get(canonicalize_name(wanted.name))
            if have is not None and wanted.specifier.contains(have, prereleases=True):
                continue
            needs = f"{_name(dist)} {dist.version} needs {wanted.name}{wanted.specifier}"
            clashes.append(
                Clash(
                    f"{needs}, and {f'{have} is installed' if have else 'it is not installed'}",
                    f"pip install '{wanted.name}{wanted.specifier}'",
                )
            )
    return clashes
