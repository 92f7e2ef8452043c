# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance kit through runners, and prints what applies there and what became of it.

    python scripts/examine_by_runner.py                 # llvm under qemu-aarch64, and by SSH
    python scripts/examine_by_runner.py --one-in 8      # every eighth case of an operator
    python scripts/examine_by_runner.py --way ssh       # one of the two
    python scripts/examine_by_runner.py --list          # the checks that apply, without a run
    python scripts/examine_by_runner.py -t "llvm -runner=ssh://board"
    python scripts/examine_by_runner.py --keep /tmp/trials.jsonl --page docs/machines.md

Without targets there are two: aarch64 under `qemu-aarch64-static`, and a host by SSH, for which a
server is started on the loopback. Each trial is printed as it ends, with its seconds. With `--keep`
it is written down at once, and the same command goes on where it was stopped: name a new file after
a change. `--page` writes what is kept there into a page, between two comments; `--no-run` does that
alone. A trial that the way to the machine failed is tried again, twice at once and whenever the
command goes on: it is `lost` until then. It returns 1 if a trial failed or was lost.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.ssh_server import SshServer

from intarsia.testing.cases import CASES
from intarsia.testing.kit import RUNNER_CHECKS, choose_trials, why_not_there
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import TOLERANCES
from intarsia.testing.trial import Status, judge

LLVM = "intarsia.backends.llvm:BACKEND"
EMULATED = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -runner=qemu-aarch64-static"

WAYS = {"qemu": "qemu-aarch64-static", "ssh": "SSH"}
"""The ways without targets, and what pages call them."""

BEGIN, END = "<!-- kit through runners: begin -->", "<!-- kit through runners: end -->"


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What became of one trial on one target, as a file keeps it.

    Attributes:
        way: One of `WAYS`, or the text of a target.
        check: Name of the trial's check.
        trial: Its id.
        status: Passed, skipped or failed; `left out`, where it does not apply; or `lost`, where
            the way to the machine failed.
        message: Why it was not passed.
        seconds: By the clock of whoever waited.
        backend: How it was found.
    """

    way: str
    check: str
    trial: str
    status: str
    message: str = ""
    seconds: float = 0.0
    backend: str = LLVM


LEFT_OUT, LOST = "left out", "lost"
ATTEMPTS = 3
"""At a trial that the way to the machine fails."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Give a target that is reached by SSH on this machine."""
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        server = SshServer(Path(folder))
        os.environ.update(server.environment)  # noqa: TID251 - handed on to the client
        tempfile.tempdir = None
        try:
            yield f"llvm -runner={server.text}"
        finally:
            server.close()


def list_checks() -> None:
    """Print what applies through a runner, and what does not."""
    for name, check in RUNNER_CHECKS.items():
        trials = tuple(check.trials(CASES))
        left_out = Counter(why for trial in trials if (why := why_not_there(trial)))
        print(f"{name}: {len(trials) - left_out.total()} trials. {check.sentence}")
        for why, count in left_out.items():
            print(f"    {count} do not apply: {why}")


def read_kept(file: Path) -> list[TrialRecord]:
    """Return what was written down, of each trial of a backend the last.

    A line that was not ended is cut off.
    """
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    records = [TrialRecord(**json.loads(line)) for line in whole.splitlines()]
    by_trial = {(record.backend, record.way, record.trial): record for record in records}
    return list(by_trial.values())


def run_trials(
    way: str, subject: Subject, options: argparse.Namespace, known: Sequence[TrialRecord]
) -> Iterator[TrialRecord]:
    """Yield what becomes of each trial that is not known yet, as it ends."""
    done = {record.trial for record in known if record.way == way and record.status != LOST}
    record_of = partial(TrialRecord, way, backend=options.backend)
    chosen, left_out = choose_trials(subject, options.check, CASES[:: options.one_in])
    for trial, why in left_out.items():
        if trial.id not in done:
            yield record_of(trial.check, trial.id, LEFT_OUT, why)
    left = [trial for trial in chosen if trial.id not in done]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(way, total=len(chosen), completed=len(chosen) - len(left))
        for trial in left:
            begin = time.perf_counter()
            for _ in range(ATTEMPTS):
                verdict = judge(subject, trial)
                if not verdict.is_lost:
                    break
            status = LOST if verdict.is_lost else str(verdict.status)
            seconds = round(time.perf_counter() - begin, 2)
            yield record_of(trial.check, trial.id, status, verdict.message, seconds)
            progress.advance(task)


def keep(file: TextIO | None, record: TrialRecord) -> None:
    """Write a line down, whole and at once."""
    if file is not None:
        file.write(f"{json.dumps(asdict(record))}\n")
        file.flush()


def table(records: Sequence[TrialRecord]) -> Iterator[str]:
    """Yield the lines of a table: by check, what became of its trials on each way."""
    ways = tuple(dict.fromkeys(record.way for record in records))
    counts = Counter((record.way, record.check, record.status) for record in records)
    yield "| check | " + " | ".join(WAYS.get(way, f"`{way}`") for way in ways) + " | promise |"
    yield "|---|" + "---|" * len(ways) + "---|"
    for name, check in RUNNER_CHECKS.items():
        cells = []
        for way in ways:
            found = [
                f"{counts[way, name, status]} {status}"
                for status in (*map(str, Status), LOST, LEFT_OUT)
                if counts[way, name, status]
            ]
            cells.append(", ".join(found) or "not tried")
        yield f"| `{name}` | {' | '.join(cells)} | {check.sentence} |"
    for way in ways:
        own = [record for record in records if record.way == way]
        every = Counter(record.status for record in own)
        said = ", ".join(f"{count} {status}" for status, count in every.items())
        yield f"\n{WAYS.get(way, way)}: {len(own)} trials, {said}."


def write_page(page: Path, records: Sequence[TrialRecord]) -> None:
    """Put the table between the two comments of a page."""
    put_between(page, BEGIN, END, "\n".join(table(records)))


def put_between(page: Path, begin: str, end: str, middle: str) -> None:
    """Replace what a page has between two comments; exit if it lacks them."""
    text = page.read_text(encoding="utf-8")
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        sys.exit(f"{page} lacks {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{middle}\n\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Run the kit; return 1 if a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-t", "--target", action="append", help="with a runner")
    parser.add_argument("--way", action="append", choices=WAYS, help="without targets: one of both")
    parser.add_argument("--backend", default=LLVM)
    parser.add_argument("--check", action="append", help="one of --list; all if left out")
    parser.add_argument("--one-in", type=int, default=1, help="of the cases of operators")
    parser.add_argument("--keep", metavar="FILE", type=Path, help="of trials, to go on from")
    parser.add_argument("--page", type=Path, help="that the table is written into")
    parser.add_argument("--no-run", action="store_true", help="only write what is kept")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        list_checks()
        return 0
    is_kept = options.keep and options.keep.exists()
    kept = read_kept(options.keep) if is_kept else []
    records = [record for record in kept if record.backend == options.backend]
    with contextlib.ExitStack() as stack:
        file = (
            stack.enter_context(options.keep.open("a", encoding="utf-8")) if options.keep else None
        )
        asked = () if options.no_run else options.target or ()
        targets = {text: text for text in asked}
        ways = () if options.target or options.no_run else options.way or tuple(WAYS)
        if "qemu" in ways:
            targets["qemu"] = EMULATED
        if "ssh" in ways:
            targets["ssh"] = stack.enter_context(serving())
        for way, target in targets.items():
            subject = Subject(options.backend, target, TOLERANCES)
            for record in run_trials(way, subject, options, tuple(records)):
                keep(file, record)
                records = [one for one in records if (one.way, one.trial) != (way, record.trial)]
                records.append(record)
                why = f": {record.message.splitlines()[0]}" if record.message else ""
                print(
                    f"{way} {record.trial} {record.status} {record.seconds:.2f} s{why}", flush=True
                )
    print(*table(records), sep="\n")
    if options.page:
        write_page(options.page, records)
    failed = [record for record in records if record.status in (str(Status.FAILED), LOST)]
    for record in failed:
        print(f"{record.way}: {record.trial}: {record.message}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
