# SPDX-License-Identifier: Apache-2.0
"""What units cost inside a region, fitted to regions that were measured.

A region is not the sum of its units: each measured alone pays for its call and for its border,
which inside a larger region cost nothing. For each target

    seconds(region) = call + byte_seconds * bytes of its border + sum of its units' marginals.

A unit measured alone gives its marginal; regions of several units give `byte_seconds`, and correct
the marginals of their units, the largest regions first, so that the last word has what is closest
to the unit. Units that a backend runs as one are one piece here: what that saves is theirs
together, and no reason to take one of them without the others. It is an estimate: whatever the
best plan uses is measured as the region that it is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Units = tuple[int, ...]

LEAST_BYTE_SECONDS = 0.02e-9
MOST_BYTE_SECONDS = 10e-9
TYPICAL_BYTE_SECONDS = 0.3e-9
"""Seconds per byte of a border: in the cache; on a slow device; in blocks on a CPU."""

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
        groups: By units that run as one, their seconds inside a region, where they were measured.
    """

    call_seconds: float
    byte_seconds: float
    marginals: Mapping[int, float]
    measured: frozenset[int]
    groups: Mapping[Units, float] = field(default_factory=dict)


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
        groups: Units that run as one: such a region says nothing about each of them.
    """

    units: Sequence[int]
    regions: Mapping[Units, float]
    border: Callable[[Units], int]
    bound: Callable[[int], float]
    family: Callable[[int], str]
    call_seconds: float | None = None
    groups: frozenset[Units] = frozenset()
    _borders: dict[Units, int] = field(default_factory=dict)

    def bytes_of(self, units: Units) -> int:
        """Return the border's bytes, computed once."""
        if units not in self._borders:
            self._borders[units] = self.border(units)
        return self._borders[units]

    @property
    def alone(self) -> dict[Units, float]:
        """Seconds of the pieces that were measured by themselves: units, and groups of them."""
        return {
            units: seconds
            for units, seconds in self.regions.items()
            if len(units) == 1 or units in self.groups
        }

    @property
    def larger(self) -> list[tuple[Units, float]]:
        """The other regions, the largest first."""
        pieces = self.alone.keys()
        return _by_size({u: s for u, s in self.regions.items() if u not in pieces})


def fit(evidence: Evidence) -> TargetModel:
    """Return the model that fits what was measured of one target."""
    alone, larger = evidence.alone, evidence.larger
    call = _fit_call(evidence, alone, larger)
    marginals = _unmeasured(evidence, alone, larger, call)
    byte_seconds = _fit_bytes(evidence, alone, larger, marginals, call)
    for piece, seconds in alone.items():
        border = byte_seconds * evidence.bytes_of(piece)
        # Never 0 or less: what seems free would be taken wherever it lies.
        marginals[piece] = max(LEAST_SHARE * seconds, seconds - call - border)
    _correct(evidence, alone, larger, marginals, call, byte_seconds)
    return TargetModel(
        call,
        byte_seconds,
        {piece[0]: seconds for piece, seconds in marginals.items() if len(piece) == 1},
        frozenset(piece[0] for piece in alone if len(piece) == 1),
        {piece: seconds for piece, seconds in marginals.items() if len(piece) > 1},
    )


def pieces_of(units: Units, groups: Iterable[Units]) -> list[Units]:
    """Return the groups that some units hold, the largest first, and the other units one by one."""
    left, pieces = set(units), []
    for group in sorted(groups, key=lambda every: (-len(every), every)):
        if left.issuperset(group):
            left.difference_update(group)
            pieces.append(group)
    return [*pieces, *((unit,) for unit in sorted(left))]


def _fit_call(
    evidence: Evidence, alone: Mapping[Units, float], larger: Sequence[tuple[Units, float]]
) -> float:
    """Return the overhead of a call: as measured, but no more than regions save by having one.

    What is measured is a call that computes next to nothing, which is something. While there is
    no region whose units are all measured, the overhead is taken to be a small part of a unit.
    """
    shares = [seconds / len(units) for units, seconds in evidence.regions.items()]
    singles = [seconds for piece, seconds in alone.items() if len(piece) == 1]
    typical = statistics.median(singles or shares or (0.0,))
    call = evidence.call_seconds
    # The largest: it saves the most calls at once, so noise counts least.
    for units, seconds in larger[:1]:
        pieces = pieces_of(units, (piece for piece in alone if len(piece) > 1))
        if len(pieces) > 1 and alone.keys() >= set(pieces):
            saved = max(0.0, sum(alone[piece] for piece in pieces) - seconds) / (len(pieces) - 1)
            return saved if call is None else min(call, saved)
    return min(typical * _TYPICAL_CALL_SHARE, *([] if call is None else [call]), math.inf)


_TYPICAL_CALL_SHARE = 0.25


def _unmeasured(
    evidence: Evidence,
    alone: Mapping[Units, float],
    larger: Sequence[tuple[Units, float]],
    call: float,
) -> dict[Units, float]:
    """Return optimistic marginals: the bound times the best efficiency seen of the like."""
    ratios: dict[str, float] = {}
    for piece, seconds in alone.items():
        bound = evidence.bound(piece[0]) if len(piece) == 1 else 0.0
        if bound > 0:
            family = evidence.family(piece[0])
            ratio = max(seconds - call, LEAST_SHARE * seconds) / bound
            ratios[family] = min(ratio, ratios.get(family, ratio))
    usual = statistics.median(ratios.values()) if ratios else 1.0
    marginals: dict[Units, float] = {}
    for unit in evidence.units:
        ratio = ratios.get(evidence.family(unit), usual)
        marginals[unit,] = evidence.bound(unit) * max(1.0, OPTIMISM * ratio)
    if not alone:  # nothing but large regions: each unit has its share by the bound
        for units, seconds in larger:
            total = sum(marginals[unit,] for unit in units)
            if total > 0 and seconds > call:
                for unit in units:
                    marginals[unit,] *= (seconds - call) / total
    return marginals


def _fit_bytes(
    evidence: Evidence,
    alone: Mapping[Units, float],
    larger: Sequence[tuple[Units, float]],
    marginals: Mapping[Units, float],
    call: float,
) -> float:
    """Return the cost of a border's byte: the extra cost of units alone over in regions."""
    groups = [piece for piece in alone if len(piece) > 1]
    excess = inner_bytes = 0.0
    for units, seconds in larger:
        pieces = pieces_of(units, groups)
        measured = [piece for piece in pieces if piece in alone]
        # Where most of a region is guessed, it says nothing of bytes.
        if 2 * sum(map(len, measured)) < len(units):
            continue
        others = sum(marginals[piece] for piece in pieces if piece not in alone)
        apart = sum(alone[piece] - call for piece in measured) + others
        excess += apart - (seconds - call)
        inner_bytes += sum(evidence.bytes_of(piece) for piece in measured)
        inner_bytes -= evidence.bytes_of(units)
    if inner_bytes <= 0:
        return TYPICAL_BYTE_SECONDS
    return min(max(excess / inner_bytes, LEAST_BYTE_SECONDS), MOST_BYTE_SECONDS)


def _correct(
    evidence: Evidence,
    alone: Mapping[Units, float],
    larger: Sequence[tuple[Units, float]],
    marginals: dict[Units, float],
    call: float,
    byte_seconds: float,
) -> None:
    """Scale marginals so that the regions measured cost what they cost.

    Where some pieces of a region were not measured, the difference is theirs.
    """
    groups = [piece for piece in alone if len(piece) > 1]
    for units, seconds in larger:
        pieces = pieces_of(units, groups)
        inner = seconds - call - byte_seconds * evidence.bytes_of(units)
        inner = max(inner, LEAST_SHARE * seconds)
        guessed = [piece for piece in pieces if piece not in alone]
        left = inner - sum(marginals[piece] for piece in pieces if piece in alone)
        if not guessed or left <= 0:
            guessed, left = pieces, inner
        total = sum(marginals[piece] for piece in guessed)
        for piece in guessed if total > 0 else ():
            marginals[piece] *= left / total


def _by_size(regions: Mapping[Units, float]) -> list[tuple[Units, float]]:
    return sorted(regions.items(), key=lambda item: (-len(item[0]), item[0]))


def predict(model: TargetModel, units: Units, border_bytes: int) -> float:
    """Return what a region that was not measured costs as one call."""
    inside = sum(
        model.marginals[piece[0]] if len(piece) == 1 else model.groups[piece]
        for piece in pieces_of(units, model.groups)
    )
    return model.call_seconds + model.byte_seconds * border_bytes + inside
