# SPDX-License-Identifier: Apache-2.0
"""What runs of random graphs came to, in a small file beside the sources that adds up.

A folder of results has a line for each seed; here each commit that judged some of them has one. It
is made of the folder anew whenever it is asked for, so a run that was killed loses nothing. As in
the folder, the last verdict on a seed counts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from intarsia.files import whole_file
from intarsia.testing.differential.campaign import BAD, read_lines, renewed
from intarsia.testing.graphs import GraphFamily

_MOST_TEXT = 200


@dataclass(frozen=True, slots=True)
class GraphRound:
    """What one commit made of some seeds.

    Attributes:
        commit: As `git describe` names it.
        machine: On which.
        generation: Of the generator: equal seeds of another one are other graphs.
        start: Date of the first run.
        end: Date of the last run's start.
        seeds: Ranges without their ends, such as `0:57,1000000:1000057`.
        families: Graphs by family.
        dtypes: Graphs by the type that most of their values have.
        verdicts: By target and family, how often each verdict.
        bad: Findings that a campaign must not have, with seed and target.
        versions: Of backends.
    """

    commit: str
    machine: str
    generation: str
    start: str
    end: str
    seeds: str
    families: dict[str, int]
    dtypes: dict[str, int]
    verdicts: dict[str, dict[str, dict[str, int]]]
    bad: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def graphs(self) -> int:
        """How many graphs."""
        return sum(self.families.values())


def rounds_of(folder: Path) -> list[GraphRound]:
    """Return what a folder of results has, by commit, machine and generation.

    Args:
        folder: Of `Results`.
    """
    last: dict[tuple[str, int], tuple[dict[str, Any], dict[str, Any]]] = {}
    runs: list[dict[str, Any]] = []
    for line in read_lines(folder / "results.jsonl"):
        if "run" in line:
            runs.append(line["run"])
        elif "seed" in line and runs:
            key = (line.get("generation", ""), line["seed"])
            last[key] = runs[-1], renewed(last[key][1] if key in last else None, line)
    by_key: dict[tuple[str, str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for (generation, _), (run, record) in last.items():
        by_key.setdefault((run["commit"], run["machine"], generation), []).append((run, record))
    return [_round(*key, judged) for key, judged in by_key.items()]


def _round(
    commit: str,
    machine: str,
    generation: str,
    judged: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> GraphRound:
    dates: set[str] = set()
    seeds: list[int] = []
    families: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    verdicts: dict[str, dict[str, dict[str, int]]] = {}
    bad: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    for run, record in judged:
        dates.add(run["date"])
        versions |= run.get("versions", {})
        seed = record["seed"]
        family = str(GraphFamily.of(seed))
        seeds.append(seed)
        families[family] += 1
        dtypes[record.get("dtype", "unknown")] += 1
        for finding in record["findings"]:
            target = finding["target"] or "default"
            own = verdicts.setdefault(target, {}).setdefault(family, {})
            own[finding["verdict"]] = own.get(finding["verdict"], 0) + 1
            if finding["verdict"] in BAD:
                text = finding.get("text", "")[:_MOST_TEXT]
                bad.append(
                    {"seed": seed, "target": target, "verdict": finding["verdict"], "text": text}
                )
    return GraphRound(
        commit,
        machine,
        generation,
        min(dates),
        max(dates),
        ",".join(_ranges(seeds)),
        dict(families),
        dict(dtypes.most_common()),
        verdicts,
        bad,
        versions,
    )


def _ranges(seeds: Iterable[int]) -> Iterator[str]:
    """Yield runs of seeds, as `START:END`."""
    for _, run in groupby(enumerate(sorted(seeds)), lambda pair: pair[1] - pair[0]):
        numbers = [seed for _, seed in run]
        yield f"{numbers[0]}:{numbers[-1] + 1}"


def read_rounds(file: Path) -> list[GraphRound]:
    """Return what is kept in a file; nothing if it is not there."""
    return [GraphRound(**line) for line in read_lines(file)]


def keep_rounds(file: Path, folder: Path) -> list[GraphRound]:
    """Write what a folder has to a file, in the place of what was kept of it before.

    Args:
        file: Has those of other folders too; made if it is not there.
        folder: Of `Results`.

    Returns:
        All that the file has now, by date.
    """
    lines = read_lines(folder / "results.jsonl")
    dates = {line["run"]["date"] for line in lines if "run" in line}
    others = [each for each in read_rounds(file) if each.start not in dates]
    kept = sorted([*others, *rounds_of(folder)], key=lambda each: each.start)
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = [json.dumps(asdict(each), ensure_ascii=False) for each in kept]
    with whole_file(file) as draft:
        draft.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return kept


def total_verdicts(rounds: Iterable[GraphRound]) -> dict[str, dict[str, Counter[str]]]:
    """Return how often each target has each verdict, by family, in all rounds together."""
    totals: dict[str, dict[str, Counter[str]]] = {}
    for each in rounds:
        for target, by_family in each.verdicts.items():
            for family, counts in by_family.items():
                own = totals.setdefault(target, {}).setdefault(family, Counter())
                own.update(counts)
    return totals
