# SPDX-License-Identifier: Apache-2.0
"""Many seeds in worker processes, with every verdict in a file that grows over runs.

A worker that crashes or hangs is a finding: the seed is judged again, target by target, and who
ends the process is named. Each line of the file is one seed, written when it is done; a line that
was cut off is done again. Where a seed was judged more than once, the last verdict counts; lines
of another version of the generator count for nothing, because its seeds are other graphs.
"""

from __future__ import annotations

import datetime
import itertools
import json
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import intarsia
from intarsia.backends.registry import load_backends
from intarsia.errors import ReasonCode
from intarsia.process.workers import Limits, Worker
from intarsia.report.health import backend_health
from intarsia.settings import Settings
from intarsia.testing.differential.judging import GraphVerdict
from intarsia.testing.graphs import OPERATORS, GraphFamily, generation

TARGETS = (
    *("llvm", "dnnl, llvm", "openvino, onnxruntime", "onnxruntime", "opencl", ""),
    *("webgpu", "xnnpack, llvm", "ncnn, llvm"),
)
"""Text of the targets; the empty one is the default target."""

BAD = (
    GraphVerdict.DISAGREES,
    GraphVerdict.ERROR,
    GraphVerdict.CRASHED,
    GraphVerdict.TIMEOUT,
)
"""Verdicts that a campaign must not have."""

JUDGE = "intarsia.testing.differential.judging:judge_seed"
JUDGE_TOGETHER = "intarsia.testing.differential.joining:judge_together"
KEYS = "intarsia.testing.differential.joining:keys_of"
_SECONDS = 120.0
LIMITS = Limits(seconds=_SECONDS, memory_bytes=8 << 30)
_MORE_SECONDS = 30.0
"""For each further graph of several together."""
_POOL = 64
"""Seeds that are drawn at a time, to find some that can be judged together."""
_RENEWED = 400
"""After so many seeds a worker process is replaced, because libraries keep what they compile."""

NOWHERE = "before any target"
"""Stands for the target of a finding if drawing or judging the graph itself failed."""

SOMEWHERE = "some target, of graphs together"
"""Stands for the target of what ends a process only if several graphs are judged together."""

SPARSE = {"opencl": 4, "webgpu": 16, "xnnpack, llvm": 4, "ncnn, llvm": 4}
"""Targets that take a share of the seeds only, because their compilers are slow: every so many."""

Plan = Sequence[tuple[str, int]]


def plan_of(seed: int, targets: Sequence[str] = TARGETS) -> Plan:
    """Return the targets of a seed, each with 1 or 2 threads by turns."""
    turn = seed % len(OPERATORS) + seed // len(OPERATORS)  # each operator comes to every turn
    return [
        (target, 1 + (turn + i) % 2)
        for i, target in enumerate(targets)
        if len(targets) == 1 or turn % SPARSE.get(target, 1) == 0
    ]


@dataclass
class Results:
    """What is known, by seed; and the file that it is written to.

    Attributes:
        folder: Holds `results.jsonl`; made if it is not there.
        records: The last verdicts on each seed.
        outdated: How many lines are about graphs that another version of the generator drew.
    """

    folder: Path
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    outdated: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "results.jsonl"
        for record in read_lines(self.path):
            self._take(record)
        self._mend()

    def _mend(self) -> None:
        """End a line that was cut off, so that the next one stands alone."""
        if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def begin(self, run: Mapping[str, Any]) -> None:
        """Write what the following lines were made with."""
        self._write({"run": dict(run)})

    def add(self, record: Mapping[str, Any]) -> None:
        """Write one seed's verdicts, at once."""
        record = {**record, "generation": generation()}
        self._write(record)
        self._take(record)

    def todo(self, count: int, families: Sequence[GraphFamily] = tuple(GraphFamily)) -> list[int]:
        """Return the first seeds that were never judged, of each family in turn.

        Args:
            count: How many.
            families: Which families of graphs.
        """
        turns = zip(*(family.seeds for family in families), strict=True)
        unseen = (seed for turn in turns for seed in turn if seed not in self.records)
        return list(itertools.islice(unseen, count))

    def seeds_with(self, verdicts: Iterable[GraphVerdict]) -> list[int]:
        """Return the seeds that have one of these verdicts on some target."""
        wanted = set(verdicts)
        return sorted(
            seed
            for seed, record in self.records.items()
            if any(finding["verdict"] in wanted for finding in record["findings"])
        )

    def counts(self) -> dict[str, Counter[str]]:
        """Return how often each target has each verdict."""
        by_target: dict[str, Counter[str]] = {}
        for finding in self.findings():
            by_target.setdefault(finding["target"] or "default", Counter())[finding["verdict"]] += 1
        return by_target

    def rules(self) -> Counter[tuple[str, str]]:
        """Return how often each explanation explains, by target and rule."""
        return Counter(
            (finding["target"] or "default", finding["rule"])
            for finding in self.findings()
            if finding.get("rule")
        )

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, with its seed and the operator at the heart of its graph."""
        for seed, record in sorted(self.records.items()):
            for finding in record["findings"]:
                yield {"seed": seed, "heart": record.get("heart", ""), **finding}

    def _take(self, record: dict[str, Any]) -> None:
        if "seed" not in record:
            return
        if record.get("generation") != generation():
            self.outdated += 1
            return
        self.records[record["seed"]] = renewed(self.records.get(record["seed"]), record)

    def _write(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def renewed(previous: Mapping[str, Any] | None, record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of a graph, with what an earlier one has of targets not judged since."""
    if previous is None:
        return record
    fresh = {NOWHERE, SOMEWHERE, *(finding["target"] for finding in record["findings"])}
    findings = [each for each in previous["findings"] if each["target"] not in fresh]
    return {**record, "findings": [*findings, *record["findings"]]}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; a line that was cut off is passed over.

    Args:
        path: The file; nothing if it is not there.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # cut off when it was written: the seed is done again
                continue
            if isinstance(record, dict):
                yield record


def run(
    results: Results,
    seeds: Iterable[int],
    *,
    targets: Sequence[str] = TARGETS,
    workers: int = 1,
    together: int = 1,
    done: Callable[[Mapping[str, Any]], None] = lambda record: None,
) -> None:
    """Judge seeds and write down what becomes of them.

    Args:
        results: Grows.
        seeds: Which graphs.
        targets: Their texts.
        workers: How many processes.
        together: How many graphs are compiled as one model, at most; the first says the plan.
        done: Called with each record that was written.
    """
    results.begin(circumstances())
    idle: SimpleQueue[_Judge] = SimpleQueue()
    judges = [_Judge() for _ in range(workers)]
    for judge in judges:
        idle.put(judge)

    def ask(pool: Sequence[int]) -> list[Any]:
        judge = idle.get()
        try:
            return judge.keys(pool)
        finally:
            idle.put(judge)

    def some(group: Sequence[int]) -> list[dict[str, Any]]:
        judge = idle.get()
        try:
            return judge.records(group, plan_of(group[0], targets))
        finally:
            idle.put(judge)

    try:
        with ThreadPoolExecutor(workers) as threads:
            waiting = iter(groups_of(seeds, together, ask))
            pending = [
                threads.submit(some, group)
                for _, group in zip(range(workers), waiting, strict=False)
            ]
            while pending:
                records = pending.pop(0).result()
                for record in records:  # before more are drawn: what is known is kept
                    results.add(record)
                    done(record)
                pending += [
                    threads.submit(some, group) for _, group in zip(range(1), waiting, strict=False)
                ]
    finally:
        for judge in judges:
            judge.close()


def groups_of(
    seeds: Iterable[int], together: int, ask: Callable[[Sequence[int]], Sequence[Any]]
) -> Iterator[list[int]]:
    """Yield seeds in groups that can be judged together, soon after they come.

    Args:
        seeds: Which graphs.
        together: How many at most; 1 asks nothing.
        ask: Returns a key for each of some seeds: equal ones fit, None is alone.
    """
    if together == 1:
        yield from ([seed] for seed in seeds)
        return
    unfinished: dict[Any, list[int]] = {}
    waiting = iter(seeds)
    while pool := list(itertools.islice(waiting, _POOL)):
        for seed, key in zip(pool, ask(pool), strict=True):
            if key is None:
                yield [seed]
                continue
            group = unfinished.setdefault(tuple(key), [])
            group.append(seed)
            if len(group) == together:
                yield unfinished.pop(tuple(key))
    yield from unfinished.values()


class _Judge:
    """A worker process that is replaced now and then."""

    def __init__(self) -> None:
        self._worker = Worker({"INTARSIA_LOG": "error", "OMP_WAIT_POLICY": "passive"})
        self._left = _RENEWED

    def close(self) -> None:
        """End the process."""
        self._worker.close()

    def keys(self, seeds: Sequence[int]) -> list[Any]:
        """Return what says which seeds can be judged together; none can if it cannot be told."""
        limits = replace(LIMITS, seconds=_MORE_SECONDS * len(seeds))
        outcome = self._worker.call(KEYS, list(seeds), limits=limits)
        return list(outcome.value) if outcome.is_ok else [None] * len(seeds)

    def records(self, seeds: Sequence[int], plan: Plan) -> list[dict[str, Any]]:
        """Return what becomes of seeds, judged together; alone if that fails."""
        if len(seeds) == 1:
            return [self.record(seeds[0], plan)]
        self._renew(len(seeds))
        limits = replace(LIMITS, seconds=_SECONDS + _MORE_SECONDS * len(seeds))
        outcome = self._worker.call(JUDGE_TOGETHER, list(seeds), list(plan), limits=limits)
        if outcome.is_ok:
            return list(outcome.value)
        records = [self.record(seed, plan) for seed in seeds]
        if not any(f["verdict"] in BAD for record in records for f in record["findings"]):
            failed = {**_finding("", 0, outcome), "target": SOMEWHERE}
            failed["text"] = f"only together with {list(seeds)}: {failed['text']}"[:300]
            records[0]["findings"].append(failed)
        return records

    def _renew(self, count: int) -> None:
        """Count seeds, and replace the process now and then."""
        if self._left <= 0:
            self._worker.close()
            self._left = _RENEWED
        self._left -= count

    def record(self, seed: int, plan: Plan) -> dict[str, Any]:
        """Return what becomes of a seed."""
        self._renew(1)
        outcome = self._worker.call(JUDGE, seed, list(plan), limits=LIMITS)
        if outcome.is_ok:
            return dict(outcome.value)
        if outcome.reason not in (ReasonCode.CRASHED, ReasonCode.TIMEOUT):
            failed = _finding("", 0, outcome)
            return {"seed": seed, "findings": [{**failed, "target": NOWHERE}]}
        records = [self._alone(seed, pair) for pair in plan]
        findings = [finding for record in records for finding in record["findings"]]
        return {**next((r for r in records if "heart" in r), {"seed": seed}), "findings": findings}

    def _alone(self, seed: int, pair: tuple[str, int]) -> dict[str, Any]:
        outcome = self._worker.call(JUDGE, seed, [pair], limits=LIMITS)
        if outcome.is_ok:
            return dict(outcome.value)
        return {"seed": seed, "findings": [_finding(*pair, outcome)]}


def _finding(target: str, threads: int, outcome: Any) -> dict[str, Any]:
    verdicts = {
        ReasonCode.CRASHED: GraphVerdict.CRASHED,
        ReasonCode.TIMEOUT: GraphVerdict.TIMEOUT,
    }
    verdict = verdicts.get(outcome.reason, GraphVerdict.ERROR)
    text = f"{outcome.error_type} {outcome.message}".strip()[:300]
    return {"target": target, "threads": threads, "verdict": str(verdict), "text": text}


def circumstances() -> dict[str, Any]:
    """Return date, machine, commit and versions: what verdicts were made with."""
    backends = load_backends(Settings.from_environment())
    healths = map(backend_health, backends.by_name.values())
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.platform(),
        "commit": _commit(),
        "versions": {health.name: health.version or f"none: {health.reason}" for health in healths},
    }


def _commit() -> str:
    folder = Path(intarsia.__file__).parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return intarsia.__version__
    return described.stdout.strip()
