# SPDX-License-Identifier: Apache-2.0
"""Rules and groups made of a table of patterns, for backends that are libraries of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.artifact import refuse
from intarsia.backends.values import FusedGroup, Refusal, Rule
from intarsia.errors import ReasonCode
from intarsia.graph.pattern import (
    Pattern,
    PatternMatches,
    Table,
    Tier,
    find_patterns,
    match_region,
)

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region

    Refuse = Callable[[Graph, BuildContext], Mapping[int, Refusal]]


def pattern_rules(table: Table, refuse_nodes: Refuse | None = None) -> tuple[Rule, ...]:
    """Return a rule per pattern; the order of the table is their priority.

    Args:
        table: Patterns.
        refuse_nodes: Returns refusals of what the library does not compute whatever pattern it is
            of, such as what it refused when it was tried; they go before those of the table.
    """
    entries = tuple(table)
    names = dict.fromkeys(
        pattern.name
        for entry in entries
        for pattern in (entry.patterns if isinstance(entry, Tier) else (entry,))
    )
    return tuple(
        Rule(name, partial(_refuse_others, entries, refuse_nodes, name), f"pattern {name!r}")
        for name in names
    )


def pattern_groups(table: Table, region: Region) -> tuple[FusedGroup, ...]:
    """Return the matches of a table, for `groups` of a backend.

    Args:
        table: The patterns from which the rules are made.
        region: Where they are matched.
    """
    return tuple(
        FusedGroup(match.members, match.pattern.name)
        for match in match_region(region, tuple(table))
        if len(match.members) > 1
    )


def _refuse_others(
    table: tuple[Pattern | Tier, ...],
    refuse_nodes: Refuse | None,
    name: str,
    graph: Graph,
    context: BuildContext,
) -> Mapping[int, Refusal]:
    matches = find_patterns(graph, table)
    refusals = {} if refuse_nodes is None else dict(refuse_nodes(graph, context))
    for node in graph.nodes:
        if node.id not in refusals and matches.taken.get(node.id) != name:
            reason = _reason(matches, node.id)
            refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
    return refusals


def _reason(matches: PatternMatches, node: int) -> str:
    """Return why no pattern matches a node, or which other pattern does."""
    if node in matches.taken:
        return f"it is of pattern {matches.taken[node]!r}"
    declined = matches.declined.get(node)
    if declined is None:
        return "no pattern matches it"
    told = matches.reasons.get(node)
    return f"pattern {declined!r} matches, but " + (told or "its predicate rejects it")
