# SPDX-License-Identifier: Apache-2.0
"""Rules and groups made of a table of patterns, for backends that are libraries of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.artifact import refuse
from intarsia.backends.values import FusedGroup, Refusal, Rule
from intarsia.errors import ReasonCode
from intarsia.graph.pattern import Pattern, find_patterns

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph
    from intarsia.graph.region import Region


def pattern_rules(patterns: Sequence[Pattern]) -> tuple[Rule, ...]:
    """Return a rule per pattern; the order of the table is their priority."""
    table = tuple(patterns)
    return tuple(
        Rule(pattern.name, partial(_refuse_others, table, pattern), f"pattern {pattern.name!r}")
        for pattern in table
    )


def pattern_groups(patterns: Sequence[Pattern], region: Region) -> tuple[FusedGroup, ...]:
    """Return the matches of a table, for `groups` of a backend.

    Args:
        patterns: The table from which the rules are made.
        region: Where whole matches count.
    """
    return tuple(
        FusedGroup(nodes, name)
        for name, nodes in find_patterns(region.graph, tuple(patterns)).matches
        if len(nodes) > 1 and all(node in region for node in nodes)
    )


def _refuse_others(
    table: tuple[Pattern, ...], pattern: Pattern, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    matches = find_patterns(graph, table)
    refusals = {}
    for node in graph.nodes:
        if matches.taken.get(node.id) == pattern.name:
            continue
        declined = matches.declined.get(node.id)
        reason = (
            f"pattern {declined!r} matches, but its predicate rejects it"
            if declined
            else "no pattern matches it"
        )
        refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
    return refusals
