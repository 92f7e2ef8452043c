# SPDX-License-Identifier: Apache-2.0
"""Random graphs through every target, against ONNX Runtime without optimisations and the reference.

Each seed is a graph (`intarsia.testing.graphs`). The results add up in a folder: a run goes on
where the last one stopped or was killed. Exit code 1 if anything disagrees without an explanation,
fails or crashes. `docs/differential.md` says what agreement means.

    python benchmarks/differential.py FOLDER --graphs 10000 [--workers 2] [--json]
    python benchmarks/differential.py FOLDER --again disagrees        # judge these seeds again
    python benchmarks/differential.py FOLDER --shrink                # smallest models of the bad
    python benchmarks/differential.py FOLDER --graphs 0               # print what is there
    python benchmarks/differential.py FOLDER --keep benchmarks/graph_rounds/NAME.jsonl
    python benchmarks/differential.py --rounds benchmarks/graph_rounds/*.jsonl
    python benchmarks/differential.py --defects                       # are known defects seen?

`--keep` writes a line for each commit that judged graphs of the folder, also when a run is broken
off; `--rounds` prints all that such files have together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    track,
)

from intarsia.cli.output import show
from intarsia.process.workers import Limits, Worker
from intarsia.report.tables import make_table
from intarsia.testing.differential.campaign import BAD, LIMITS, TARGETS, Results, run
from intarsia.testing.differential.judging import GraphVerdict
from intarsia.testing.differential.rounds import (
    GraphRound,
    keep_rounds,
    read_rounds,
    total_verdicts,
)
from intarsia.testing.differential.sight import switches
from intarsia.testing.graphs import GraphFamily, generation

SEEDS = Path(__file__).with_name("defect_seeds.json")
"""By defect, the seed that found it the last time: it is tried first, and has to find it again."""

FIND = "intarsia.testing.differential.sight:find"
SHRINK = "intarsia.testing.differential.shrinking:shrink_seed"
TOGETHER = 8
"""Beyond that, more of them are judged again because one is explained than it saves."""
_SHOWN = 12
_RANGES = 3
_QUIET = (GraphVerdict.AGREES, GraphVerdict.EXPLAINED, GraphVerdict.REFUSED)


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where results are kept")
    parser.add_argument("--graphs", type=int, default=1000, help="how many more")
    parser.add_argument(
        "--family",
        action="append",
        choices=[*GraphFamily],
        help="of graphs, instead of all by turns",
    )
    parser.add_argument("--seeds", help="these instead, such as 0:100 or 5,17")
    parser.add_argument(
        "--again", nargs="+", choices=[*GraphVerdict], help="seeds with these verdicts"
    )
    parser.add_argument("--target", action="append", dest="targets", help="instead of all")
    parser.add_argument("--shrink", action="store_true", help="smallest models of what is bad")
    parser.add_argument("--defects", action="store_true", help="put known defects back, find them")
    parser.add_argument("--tries", type=int, default=60, help="graphs for each defect")
    parser.add_argument("--keep", type=Path, help="where what the folder came to is kept")
    parser.add_argument("--rounds", type=Path, nargs="+", help="print what such files have")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--together", type=int, default=TOGETHER, help="graphs that are one model; 1: each alone"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.folder is None and not (options.defects or options.rounds):
        parser.error("name a folder for the results")
    return options


def chosen(options: argparse.Namespace, results: Results) -> list[int]:
    """Return the seeds to judge."""
    if options.again:
        return results.seeds_with(map(GraphVerdict, options.again))
    if options.seeds:
        parts = [part.split(":") for part in options.seeds.split(",")]
        return [s for part in parts for s in range(int(part[0]), int(part[-1]) + (len(part) == 1))]
    return results.todo(options.graphs, tuple(map(GraphFamily, options.family or GraphFamily)))


def main() -> None:
    """Judge, and print what is known."""
    options = arguments()
    if options.defects:
        sys.exit(not show_defects(options))
    if options.rounds:
        show_rounds([each for file in options.rounds for each in read_rounds(file)])
        return
    results = Results(options.folder)
    if options.shrink:
        shrink(results)
        return
    try:
        judge(options, results)
    finally:  # also what ^C breaks off
        if options.keep is not None:
            keep_rounds(options.keep, results.folder)
    report(results, as_json=options.json)
    sys.exit(any(finding["verdict"] in BAD for finding in results.findings()))


def judge(options: argparse.Namespace, results: Results) -> None:
    """Judge the graphs that were asked for."""
    seeds = chosen(options, results)
    if seeds:
        console = Console(stderr=True)
        with Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            TimeRemainingColumn(),
            console=console,
        ) as progress:
            task = progress.add_task("graphs", total=len(seeds))

            def done(record: Mapping[str, Any]) -> None:
                progress.advance(task)
                for finding in record["findings"]:
                    if finding["verdict"] in BAD:
                        progress.console.print(_line(record, finding), markup=False, style="red")

            run(
                results,
                seeds,
                targets=options.targets or TARGETS,
                workers=options.workers,
                together=options.together,
                done=done,
            )


def remembered_seeds() -> dict[str, int]:
    """Return the seeds that found defects the last time, unless another generator drew them."""
    if not SEEDS.exists():
        return {}
    seeds = json.loads(SEEDS.read_text(encoding="utf-8"))
    return dict(seeds["seeds"]) if seeds["generation"] == generation() else {}


def remember(seeds: Mapping[str, int]) -> None:
    """Keep seeds for the next time."""
    text = json.dumps({"generation": generation(), "seeds": dict(seeds)}, indent=1)
    SEEDS.write_text(f"{text}\n", encoding="utf-8")


def show_defects(options: argparse.Namespace) -> bool:
    """Put every known defect back, print the seed that finds it, and return whether all were."""
    rules, remembered = switches(), remembered_seeds()
    idle: SimpleQueue[Worker] = SimpleQueue()
    workers = [Worker({"INTARSIA_LOG": "error"}) for _ in range(options.workers)]
    for worker in workers:
        idle.put(worker)

    def look(index: int) -> dict[str, Any]:
        worker = idle.get()
        try:
            first = remembered.get(rules[index].name)
            outcome = worker.call(FIND, index, options.tries, first, limits=Limits(seconds=1800))
        finally:
            idle.put(worker)
        switch = rules[index]
        missing = {"name": switch.name, "seed": None, "text": outcome.message}
        row = outcome.value if outcome.is_ok else {**missing, "reproducers": switch.reproducers}
        print(f"{row['name']}: seed {row['seed']}", file=sys.stderr, flush=True)
        return dict(row)

    console = Console(stderr=True)
    try:
        with ThreadPoolExecutor(options.workers) as threads:
            looks = threads.map(look, range(len(rules)))
            rows = list(track(looks, "defects", total=len(rules), console=console))
    finally:
        for worker in workers:
            worker.close()
    rediscovered = [row for row in rows if row["seed"] is not None]
    remember({row["name"]: row["seed"] for row in rediscovered})
    if options.json:
        print(json.dumps({"known": len(rows), "found": len(rediscovered), "rows": rows}, indent=1))
        return len(rediscovered) == len(rows)
    cells = ((row["seed"], row.get("tried", ""), row["name"], row["reproducers"]) for row in rows)
    title = f"{len(rediscovered)} of {len(rows)} defects found"
    show(make_table(title, ("seed>", "tried>", "defect", "first shown by"), cells))
    shown = [row for row in rows if row["reproducers"]]
    models = sum(len(row["reproducers"]) for row in shown)
    seen = f"{sum(row in rediscovered for row in shown)} of {len(shown)}"
    print(f"{seen} that have reproducers, {models} models")
    return len(rediscovered) == len(rows)


def shrink(results: Results) -> None:
    """Write the smallest models of what is bad, and print a line for each."""
    folder = results.folder / "shrunk"
    bad = [finding for finding in results.findings() if finding["verdict"] in BAD]
    with Worker({"INTARSIA_LOG": "error"}) as worker:
        for finding in track(bad, "shrinking", console=Console(stderr=True)):
            place = (finding["seed"], finding["target"], finding["threads"])
            outcome = worker.call(SHRINK, *place, str(folder), limits=LIMITS)
            row = outcome.value if outcome.is_ok else {"text": outcome.message}
            words = f"{row.get('graph', '')}: {row['text']}"
            print(f"{finding['seed']} on {finding['target'] or 'default'}: {words}", flush=True)


def _line(record: Mapping[str, Any], finding: Mapping[str, Any]) -> str:
    where = f"{finding['target'] or 'default'} @{finding['threads']}"
    words = f"{finding['verdict']}: {finding.get('text', '')}"
    return f"{record['seed']} {record.get('heart', '')} on {where}: {words}"


def show_rounds(rounds: Sequence[GraphRound]) -> None:
    """Print what all rounds came to together: by target and kind of graph, and what is bad."""
    families = list(GraphFamily)
    count = sum(each.graphs for each in rounds)
    by_family = ", ".join(
        f"{sum(each.families.get(family, 0) for each in rounds)} {family}" for family in families
    )
    totals = total_verdicts(rounds)
    rows = []
    for target, verdicts in totals.items():
        every = sum(verdicts.values(), Counter())
        rows.append(
            (
                target,
                every.total(),
                *(verdicts.get(family, Counter()).total() for family in families),
                *(every[verdict] for verdict in _QUIET),
                sum(every[verdict] for verdict in BAD),
            )
        )
    columns = ("target", "graphs>", *(f"{family}>" for family in families))
    columns += (*(f"{verdict}>" for verdict in _QUIET), "bad>")
    show(make_table(f"{count} graphs: {by_family}", columns, rows))
    dtypes: Counter[str] = Counter()
    for each in rounds:
        dtypes.update(each.dtypes)
    print("by the type of most values:", ", ".join(f"{n} {t}" for t, n in dtypes.most_common()))
    where = ("commit", "from", "generation", "graphs>", "seeds", "bad>")
    lines = (
        (r.commit, r.start[:10], r.generation, r.graphs, _shortened(r.seeds), len(r.bad))
        for r in rounds
    )
    show(make_table("rounds", where, lines))
    for each in rounds:
        for finding in each.bad:
            place = f"{each.commit}: {finding['seed']} on {finding['target']}"
            print(f"{place}: {finding['verdict']}: {finding['text']}")


def _shortened(seeds: str) -> str:
    ranges = seeds.split(",")
    more = f" and {len(ranges) - _RANGES} more" if len(ranges) > _RANGES else ""
    return ", ".join(ranges[:_RANGES]) + more


def report(results: Results, *, as_json: bool) -> None:
    """Print counts by target and verdict, explanations, and what is bad."""
    counts, rules = results.counts(), results.rules()
    bad = [finding for finding in results.findings() if finding["verdict"] in BAD]
    if as_json:
        print(
            json.dumps(
                {
                    "graphs": len(results.records),
                    "counts": counts,
                    "explained": [[*key, count] for key, count in rules.most_common()],
                    "bad": bad,
                },
                indent=1,
            )
        )
        return
    columns = ("target", *(f"{verdict}>" for verdict in GraphVerdict))
    by_target = (
        (target, *(by_verdict.get(v, 0) for v in GraphVerdict))
        for target, by_verdict in counts.items()
    )
    show(make_table(f"{len(results.records)} graphs", columns, by_target))
    if rules:
        by_rule = ((*rule, count) for rule, count in rules.most_common())
        show(make_table("explained by", ("target", "rule", "graphs>"), by_rule))
    for finding in bad[:_SHOWN]:
        print(_line(finding, finding))
    if results.outdated:
        print(f"{results.outdated} lines of another version of the generator do not count")
    if len(bad) > _SHOWN:
        print(f"and {len(bad) - _SHOWN} more: --json prints all")


if __name__ == "__main__":
    main()
