# SPDX-License-Identifier: Apache-2.0
"""Rules made of a table of patterns, for backends that are libraries of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from intarsia.backends.api import ReasonCode, Refusal, Rule
from intarsia.backends.artifact import refuse
from intarsia.graph.pattern import Pattern, find_patterns

if TYPE_CHECKING:
    from intarsia.backends.candidate import BuildContext
    from intarsia.graph.graph import Graph


def pattern_rules(patterns: Sequence[Pattern]) -> tuple[Rule, ...]:
    """Return a rule per pattern; the order of the table is their priority."""
    table = tuple(patterns)
    return tuple(
        Rule(pattern.name, partial(_refuse_others, table, pattern), f"pattern {pattern.name!r}")
        for pattern in table
    )


def _refuse_others(
    table: tuple[Pattern, ...], pattern: Pattern, graph: Graph, context: BuildContext
) -> Mapping[int, Refusal]:
    found = find_patterns(graph, table)
    refusals = {}
    for node in graph.nodes:
        if found.taken.get(node.id) == pattern.name:
            continue
        declined = found.declined.get(node.id)
        reason = (
            f"pattern {declined!r} fits, but its predicate says no"
            if declined
            else "it is part of no pattern"
        )
        refusals[node.id] = refuse(node, context, ReasonCode.UNSUPPORTED_OP, reason)
    return refusals
