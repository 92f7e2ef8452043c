# SPDX-License-Identifier: Apache-2.0
"""Measures what lies between regions: copies by size, calls of nothing, and borders in place.

Probes of copies are the floor. What a border really costs, with lost fusions, reorders and the
threads of the runtime before, shows only where regions run next to each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from intarsia.cost.key import Sample
from intarsia.cost.transition import PROBE_BYTES, TransitionTable
from intarsia.measure.racing import LOOKS
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import Probe, Race

_BORDERS = "intarsia.tuning.laboratory.border_probe"
ROUNDS = LOOKS[1]


def measure_copies(
    laboratory: Laboratory, *, sizes: Sequence[int] = PROBE_BYTES, rounds: int = ROUNDS
) -> dict[tuple[str, str], TransitionTable]:
    """Return the cost of copies by size, for every ordered pair of memory domains.

    Args:
        laboratory: Of the machine.
        sizes: In bytes.
        rounds: Samples of each.

    Raises:
        BackendError: A device could not be opened or copied to.
    """
    rows = laboratory.ask(f"{_BORDERS}:time_copies", list(sizes), rounds, laboratory.seed)
    probes: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for source, destination, nbytes, seconds in rows:
        taken = [(nbytes, one) for one in seconds if one > 0]
        probes.setdefault((source, destination), []).extend(taken)
    return {pair: TransitionTable.from_probes(taken) for pair, taken in probes.items() if taken}


def measure_calls(laboratory: Laboratory, *, rounds: int = 2 * ROUNDS) -> dict[int, float]:
    """Return the seconds of a call that computes next to nothing, by position of the target.

    Args:
        laboratory: Of the machine.
        rounds: Samples of each.

    Raises:
        BackendError: The worker failed.
    """
    rows = laboratory.ask(f"{_BORDERS}:time_calls", rounds, laboratory.seed)
    found = {}
    for position, row in enumerate(rows):
        taken = [one for one in row if math.isfinite(one)]
        if taken:
            found[position] = median(taken)
    return found


@dataclass(frozen=True, slots=True)
class Junction:
    """The border between two regions that run one after another, round by round.

    Attributes:
        before: The first region.
        after: The second.
        change_seconds: What running one right after the other adds to their own times: caches,
            copies, and what the threads of the one do to the other. It may be negative.
        cut_seconds: What the two cost beyond the one region that they would be on one target;
            empty if their targets differ, or the union cannot be compiled.
        race: All samples.
    """

    before: Probe
    after: Probe
    change_seconds: tuple[float, ...]
    cut_seconds: tuple[float, ...]
    race: Race

    @property
    def seconds(self) -> float:
        """The median of what the border costs: of the cut if there is one, else of the change."""
        taken = [one for one in self.cut_seconds or self.change_seconds if math.isfinite(one)]
        return median(taken) if taken else math.nan

    def samples(self, session: str = "") -> tuple[Sample, ...]:
        """Return the samples for the cost database: of the cut if there is one."""
        seconds = self.cut_seconds or self.change_seconds
        return self.race.as_samples(seconds, (self.before, self.after), session)


def measure_junctions(
    laboratory: Laboratory, pairs: Sequence[tuple[Probe, Probe]], *, rounds: int = ROUNDS
) -> Mapping[tuple[Probe, Probe], Junction]:
    """Measure borders in place: both regions, both in sequence, and as one, in the same rounds.

    Args:
        laboratory: Of the model.
        pairs: Of regions, of which the second may run right after the first.
        rounds: Samples of each.

    Raises:
        BackendError: The worker failed.
    """
    found = {}
    for before, after in pairs:
        together = in_sequence(before, after)
        field = [before, after, together]
        union = _union(before, after)
        if union is not None and laboratory.prepare([union])[union].refusal is None:
            field.append(union)
        race = laboratory.race(field, rounds=rounds)
        rows = [race.seconds[probe] for probe in field]
        change = tuple(both - (one + other) for one, other, both in zip(*rows[:3], strict=True))
        cut: tuple[float, ...] = ()
        if len(rows) > 3:  # noqa: PLR2004 - the union took part
            cut = tuple(one + other - whole for one, other, _, whole in zip(*rows, strict=True))
        found[before, after] = Junction(before, after, change, cut, race)
    return found


def in_sequence(before: Probe, after: Probe) -> Probe:
    """Return two regions one after another; even all of a model counts as a part, as they do."""
    return Probe((*before.calls, *after.calls), is_part=True)


def _union(before: Probe, after: Probe) -> Probe | None:
    """Return both regions as one, if they are on one target."""
    positions = {position for position, _ in (*before.calls, *after.calls)}
    if len(positions) > 1:
        return None
    nodes = [node for _, members in (*before.calls, *after.calls) for node in members]
    return replace(Probe.region(positions.pop(), nodes), is_part=True)
