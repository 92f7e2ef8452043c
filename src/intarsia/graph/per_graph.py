# SPDX-License-Identifier: Apache-2.0
"""Values derived from a graph once: owned by the deriving function, freed with the graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph

Fact = TypeVar("Fact")
Keys = ParamSpec("Keys")


def per_graph(
    derive: Callable[Concatenate[Graph, Keys], Fact],
) -> Callable[Concatenate[Graph, Keys], Fact]:
    """Let a function compute once for each graph and each combination of its other arguments.

    Those are hashable. Results live as long as the graph, so they must not refer to it. A function
    that returns an empty dictionary is a cache that its module fills.
    """
    facts: WeakKeyDictionary[Graph, dict[object, Fact]] = WeakKeyDictionary()

    @wraps(derive)
    def derived(graph: Graph, /, *keys: Keys.args, **named: Keys.kwargs) -> Fact:
        of_graph = facts.setdefault(graph, {})
        key = (keys, *named.items())
        if key not in of_graph:
            of_graph[key] = derive(graph, *keys, **named)
        return of_graph[key]

    return derived
