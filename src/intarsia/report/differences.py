# SPDX-License-Identifier: Apache-2.0
"""What differs between two targets or two machines, attribute by attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.target import CompilationConfig, PlacedTarget


@dataclass(frozen=True, slots=True)
class Difference:
    """An attribute that is not the same on both sides.

    Attributes:
        name: Its path: `mcpu`, `host.num-cores`, `targets[1].kind`, `features.has_mve`.
        left: Its value on the first side; None if it has none there.
        right: Its value on the second side, likewise.
    """

    name: str
    left: Any
    right: Any


def find_differences(
    left: PlacedTarget | CompilationConfig, right: PlacedTarget | CompilationConfig
) -> tuple[Difference, ...]:
    """Return what differs; names of tags and labels, which do not count for equality, are left out.

    A placed target is compared with a machine as the machine that it makes alone.
    """
    if isinstance(left, CompilationConfig) or isinstance(right, CompilationConfig):
        left, right = CompilationConfig.resolve(left), CompilationConfig.resolve(right)
    first, second = dict(_leaves(left)), dict(_leaves(right))
    names = (*first, *(name for name in second if name not in first))
    return tuple(
        Difference(name, first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    )


def _leaves(side: PlacedTarget | CompilationConfig) -> Iterator[tuple[str, Any]]:
    if isinstance(side, CompilationConfig):
        items = side.to_json()
        yield from _flatten("", {"host": items["host"], "targets": items["targets"]})
        return
    yield from _flatten("", {"device_id": 0, **side.to_json()})
    yield from _flatten("features", side.target.features)


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested mappings, and in lists of mappings; other lists are values."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if name != "tag" or "kind" not in value:
                yield from _flatten(f"{path}.{name}" if path else name, item)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(f"{path}[{index}]", item)
    else:
        yield path, value
