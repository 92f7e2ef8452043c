# SPDX-License-Identifier: Apache-2.0
"""A mapping that does not change."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any


class FrozenMap(Mapping[str, Any]):
    """A read-only, hashable mapping in the order of its names."""

    __slots__ = ("_items",)
    _items: dict[str, Any]

    def __init__(self, items: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_items", dict(sorted(items.items())) if items else {})

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, or the default."""
        return self._items.get(name, default)

    def items(self) -> ItemsView[str, Any]:
        """Return names and values."""
        return self._items.items()

    def values(self) -> ValuesView[Any]:
        """Return the values."""
        return self._items.values()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is read-only: {name} cannot be set")

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._items,)
