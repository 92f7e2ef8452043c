# SPDX-License-Identifier: Apache-2.0
"""What units cost inside a region, fitted to regions that were measured.

A region is not the sum of its units: each measured alone pays for its call and for its border,
which inside a larger region cost nothing. For each target

    seconds(region) = call + byte_seconds * bytes of its border + sum of its units' marginals.

A unit measured alone gives its marginal; regions of several units give `byte_seconds`, and correct
the marginals of their units, the largest regions first, so that the last word has what is closest
to the unit. It is an estimate: whatever the best plan uses is measured as the region that it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Units = tuple[int, ...]

LEAST_BYTE_SECONDS = 0.02e-9
MOST_BYTE_SECONDS = 10e-9
TYPICAL_BYTE_SECONDS = 0.3e-9
"""Of a border's bytes: a copy that stays in the cache; a slow device; blocked layouts on a CPU."""

LEAST_SHARE = 0.05
"""Part of a unit's own time that is not its border's, at least."""

OPTIMISM = 0.7
"""Of the best time through bound seen so far: what is not measured may be better."""


@dataclass(frozen=True, slots=True)
class TargetModel:
    """What regions cost on one target.

    Attributes:
        call_seconds: Overhead of one call.
        byte_seconds: Of each byte that enters or leaves a region.
        marginals: By unit, its seconds inside a region.
        measured: Units whose marginal comes from a measurement of the unit alone.
    """

    call_seconds: float
    byte_seconds: float
    marginals: Mapping[int, float]
    measured: frozenset[int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one target.

    Attributes:
        units: Units that the target may have.
        regions: Seconds of regions that were measured, by their units.
        border: Bytes that enter and leave a region.
        bound: Seconds that a unit needs at least: the roofline.
        family: What a unit is likened to where it was not measured: its heaviest operator.
        call_seconds: Overhead of one call, where it was measured.
    """

    units: Sequence[int]
    regions: Mapping[Units, float]
    border: Callable[[Units], int]
    bound: Callable[[int], float]
    family: Callable[[int], str]
    call_seconds: float | None = None
    _borders: dict[Units, int] = field(default_factory=dict)

    def bytes_of(self, units: Units) -> int:
        """Return the border's bytes, computed once."""
        if units not in self._borders:
            self._borders[units] = self.border(units)
        return self._borders[units]


def fit(evidence: Evidence) -> TargetModel:
    """Return the model that fits what was measured of one target."""
    alone = {units[0]: s for units, s in evidence.regions.items() if len(units) == 1}
    call = _fit_call(evidence, alone)
    marginals = _unmeasured(evidence, alone, call)
    byte_seconds = _fit_bytes(evidence, alone, marginals, call)
    for unit, seconds in alone.items():
        border = byte_seconds * evidence.bytes_of((unit,))
        marginals[unit] = max(LEAST_SHARE * seconds, seconds - call - border)
    _correct(evidence, alone, marginals, call, byte_seconds)
    return TargetModel(call, byte_seconds, marginals, frozenset(alone))


def _fit_call(evidence: Evidence, alone: Mapping[int, float]) -> float:
    """Return the overhead of a call: as measured, but no more than regions save by having one.

    What is measured is a call that computes next to nothing, which is something. While there is
    no region whose units are all measured, the overhead is taken to be a small part of a unit.
    """
    shares = [seconds / len(units) for units, seconds in evidence.regions.items()]
    typical = statistics.median(alone.values() or shares or (0.0,))
    call = evidence.call_seconds
    for units, seconds in _by_size(evidence.regions)[:1]:
        if len(units) > 1 and alone.keys() >= set(units):
            saved = max(0.0, sum(alone[unit] for unit in units) - seconds) / (len(units) - 1)
            return saved if call is None else min(call, saved)
    return min(typical * _TYPICAL_CALL_SHARE, *([] if call is None else [call]), math.inf)


_TYPICAL_CALL_SHARE = 0.25


def _unmeasured(evidence: Evidence, alone: Mapping[int, float], call: float) -> dict[int, float]:
    """Return optimistic marginals: the bound times the best efficiency seen of the like."""
    ratios: dict[str, float] = {}
    for unit, seconds in alone.items():
        bound = evidence.bound(unit)
        if bound > 0:
            family = evidence.family(unit)
            ratio = max(seconds - call, LEAST_SHARE * seconds) / bound
            ratios[family] = min(ratio, ratios.get(family, ratio))
    usual = statistics.median(ratios.values()) if ratios else 1.0
    found = {}
    for unit in evidence.units:
        ratio = ratios.get(evidence.family(unit), usual)
        found[unit] = evidence.bound(unit) * max(1.0, OPTIMISM * ratio)
    if not alone:  # nothing but large regions: each unit has its share by the bound
        for units, seconds in _by_size(evidence.regions):
            total = sum(found[unit] for unit in units)
            if total > 0 and seconds > call:
                for unit in units:
                    found[unit] *= (seconds - call) / total
    return found


def _fit_bytes(
    evidence: Evidence,
    alone: Mapping[int, float],
    marginals: Mapping[int, float],
    call: float,
) -> float:
    """Return what a border's byte costs: what units cost more alone than in their regions."""
    excess = inner_bytes = 0.0
    for units, seconds in evidence.regions.items():
        if len(units) == 1:
            continue
        known = [unit for unit in units if unit in alone]
        if 2 * len(known) < len(units):
            continue
        others = sum(marginals[unit] for unit in units if unit not in alone)
        apart = sum(alone[unit] - call for unit in known) + others
        excess += apart - (seconds - call)
        inner_bytes += sum(evidence.bytes_of((unit,)) for unit in known)
        inner_bytes -= evidence.bytes_of(units)
    if inner_bytes <= 0:
        return TYPICAL_BYTE_SECONDS
    return min(max(excess / inner_bytes, LEAST_BYTE_SECONDS), MOST_BYTE_SECONDS)


def _correct(
    evidence: Evidence,
    alone: Mapping[int, float],
    marginals: dict[int, float],
    call: float,
    byte_seconds: float,
) -> None:
    """Scale marginals so that the regions measured cost what they cost.

    Where some units of a region were not measured, the difference is theirs.
    """
    for units, seconds in _by_size(evidence.regions):
        if len(units) == 1:
            continue
        inner = seconds - call - byte_seconds * evidence.bytes_of(units)
        inner = max(inner, LEAST_SHARE * seconds)
        guessed = [unit for unit in units if unit not in alone]
        left = inner - sum(marginals[unit] for unit in units if unit in alone)
        if not guessed or left <= 0:
            guessed, left = list(units), inner
        total = sum(marginals[unit] for unit in guessed)
        for unit in guessed if total > 0 else ():
            marginals[unit] *= left / total


def _by_size(regions: Mapping[Units, float]) -> list[tuple[Units, float]]:
    return sorted(regions.items(), key=lambda item: (-len(item[0]), item[0]))


def predict(model: TargetModel, units: Units, border_bytes: int) -> float:
    """Return what a region that was not measured costs as one call."""
    inside = sum(model.marginals[unit] for unit in units)
    return model.call_seconds + model.byte_seconds * border_bytes + inside
