# SPDX-License-Identifier: Apache-2.0
"""From samples to a cost: ratios to an anchor of the same round, times what the anchor takes.

A machine drifts more slowly than a round lasts, so that a ratio within a round is steadier than
any time; the anchor's median over all rounds says how long its unit is.

Source:
    For the interval: David and Nagaraja, Order Statistics, 3rd edition, 2003, section 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, median

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.key import Sample, session_host

CONFIDENCE = 0.95
FLOOR = 1.02
"""No interval is narrower than this factor: sessions differ by more than their rounds do."""

FEW = 1.15
"""With too few samples for an interval: the factor for one sample; it falls with their root."""

# Above it the approximation gives the same ranks as the sum, or one more to each side (up to 400).
_MANY = 200


def estimate_cost(
    samples: Sequence[Sample], anchors: Mapping[str, Sequence[tuple[str, float]]], host: str
) -> Cost:
    """Return the cost of something that was measured.

    Args:
        samples: At least one; those of `host` are used if there are any, else all of them.
        anchors: The runs of every anchor on such machines: their session, and seconds.
        host: Which host asks, as `host_id` says.
    """
    here = [sample for sample in samples if sample.host == host]
    used = here or list(samples)
    units = {name: _unit(runs, host) for name, runs in anchors.items()}
    logs = []
    for sample in used:
        seconds = max(sample.seconds, 1e-12)  # a clock may give nothing for very short runs
        unit = units.get(sample.anchor, 0.0)
        if sample.anchor_seconds > 0 and unit > 0:
            seconds = seconds / sample.anchor_seconds * unit
        logs.append(math.log(seconds))
    middle, low, high = median_interval(logs)
    slack = math.log(FLOOR)
    return Cost(
        seconds=math.exp(middle),
        nbytes=0,
        source=CostSource.MEASURED if here else CostSource.FINGERPRINT,
        low_seconds=math.exp(min(low, middle - slack)),
        high_seconds=math.exp(max(high, middle + slack)),
        provenance=f"{len(used)} samples" if len(used) > 1 else "1 sample",
    )


def _unit(runs: Sequence[tuple[str, float]], host: str) -> float:
    """Return the long-run median of an anchor, of this host if it ran here."""
    every = [seconds for _, seconds in runs if seconds > 0]
    here = [seconds for session, seconds in runs if seconds > 0 and session_host(session) == host]
    return median(here or every) if every else 0.0


def median_interval(
    values: Sequence[float],
) -> tuple[float, float, float]:
    """Return the median of logarithms and the interval in which it lies.

    The interval is between two order statistics, which needs no distribution. With fewer than six
    values no two of them are that sure; then it spans all values and an allowance for those that
    were not drawn.

    Args:
        values: At least one.
    """
    ordered = sorted(values)
    count = len(ordered)
    middle = median(ordered)
    ranks = median_ranks(count, CONFIDENCE)
    if ranks is None:
        slack = math.log(FEW) / math.sqrt(count)
        return middle, min(ordered[0], middle - slack), max(ordered[-1], middle + slack)
    return middle, ordered[ranks[0]], ordered[ranks[1]]


def median_ranks(count: int, confidence: float) -> tuple[int, int] | None:
    """Return which two of so many ascending values enclose the median of what they are drawn from.

    The kth lowest and kth highest do with a probability of 1 - 2 P(B < k), B of the binomial
    distribution (count, 1/2).

    Args:
        count: How many values there are.
        confidence: At least how often they must, from 0 to 1.

    Returns:
        Positions counted from 0; nothing if even the extremes are not that sure.
    """
    if count > _MANY:  # the normal distribution is near enough
        half_width = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(count) / 2
        lowest = max(0, math.floor(count / 2 - half_width) - 1)
        return lowest, count - 1 - lowest
    tail, best = 0.0, -1
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if 1 - 2 * tail < confidence:
            break
        best = below
    return None if best < 0 else (best, count - 1 - best)
