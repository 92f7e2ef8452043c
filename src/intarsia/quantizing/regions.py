# SPDX-License-Identifier: Apache-2.0
"""Which parts of a model quantising hurts, and the fewest that have to stay in f32.

A region is a run of quantised nodes in the model's order. Its error is that of the model's outputs
if nothing else is quantised. Large models begin with a few long regions, of which the worst are
halved; the worst regions are then left in f32, as many as bisection finds the bound to need.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Measure: TypeAlias = Callable[[frozenset[str]], float]
"""Returns the error of the outputs with these nodes left in f32."""

MOST_REGIONS = 32
"""Up to so many nodes each is a region; more begin with half as many regions."""


@dataclass(frozen=True, slots=True)
class QuantizedRegion:
    """Nodes that are quantised, or left in f32, together.

    Attributes:
        nodes: Their names, in the model's order.
        error: Of the model's outputs if they alone are quantised.
    """

    nodes: tuple[str, ...]
    error: float


def count_measurements(nodes: int) -> int:
    """Return how often `find_regions` measures for so many nodes."""
    return nodes if nodes <= MOST_REGIONS else MOST_REGIONS // 2 + 2 * (MOST_REGIONS // 2)


def find_regions(nodes: Sequence[str], measure: Measure) -> tuple[QuantizedRegion, ...]:
    """Return the regions of a model, the worst first.

    Args:
        nodes: Those that can be quantised, in the model's order.
        measure: Runs the model.
    """
    everything, places = frozenset(nodes), {node: i for i, node in enumerate(nodes)}

    def rate(part: Sequence[str]) -> tuple[float, int, tuple[str, ...]]:
        return -measure(everything - set(part)), places[part[0]], tuple(part)

    count = len(nodes) if len(nodes) <= MOST_REGIONS else MOST_REGIONS // 2
    bounds = [len(nodes) * i // count for i in range(count + 1)] if count else []
    rated = [rate(nodes[low:high]) for low, high in itertools.pairwise(bounds)]
    heapq.heapify(rated)
    single: list[tuple[float, int, tuple[str, ...]]] = []
    while rated and len(rated) + len(single) < MOST_REGIONS:
        worst = heapq.heappop(rated)
        part = worst[2]
        if len(part) == 1:
            single.append(worst)
            continue
        middle = len(part) // 2
        heapq.heappush(rated, rate(part[:middle]))
        heapq.heappush(rated, rate(part[middle:]))
    return tuple(QuantizedRegion(part, -error) for error, _, part in sorted([*single, *rated]))


def fewest_left(
    regions: Sequence[QuantizedRegion], holds: Callable[[frozenset[str]], bool]
) -> int | None:
    """Return how many of the regions have to stay in f32; None if all of them.

    That it holds with one region less was tried and is not so; with fewer still it may.

    Args:
        regions: The worst first; all of them quantised is too many.
        holds: Whether the bound holds with these nodes left in f32.
    """
    low, high = 0, len(regions)  # known not to hold; known to be of no use
    while high - low > 1:
        middle = (low + high) // 2
        if holds(nodes_of(regions[:middle])):
            high = middle
        else:
            low = middle
    return high if high < len(regions) else None


def nodes_of(regions: Sequence[QuantizedRegion]) -> frozenset[str]:
    """Return the names of all nodes in some regions."""
    return frozenset(node for region in regions for node in region.nodes)
