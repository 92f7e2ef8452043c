# SPDX-License-Identifier: Apache-2.0
"""Mutated inputs for a door by which a stranger's bytes come in: errors of ours, or a finding.

Inputs are numbered and always the same. They are tried in child processes of 2 GiB and 20 s of CPU
time for each (200 s by the clock, whatever else the machine does); one that dies, hangs or raises
something else is printed and counted, and the next goes on. What was tried is kept in a file, so
that a run that is broken off goes on where it was. The slowest input is named.

    python scripts/fuzz.py --door onnx --inputs 100000 [--state FILE.json]

Where atheris is installed (the dependency group `fuzz`), coverage of our own code guides what is
tried, until the time is over or something is found. What reached new code is kept in a folder:

    python scripts/fuzz.py --door onnx --guided 600 [--corpus FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

BATCH = 2000
MEMORY_BYTES = 2 << 30
SECONDS = 20
"""Of CPU time, an input."""

CLOCK_SECONDS = 200
"""By the clock: what waits for ever uses no CPU."""


def main() -> int:
    """Try inputs; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--door", required=True)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--guided", type=int, metavar="SECONDS", help="let coverage guide it")
    parser.add_argument("--corpus", type=Path, help="where --guided keeps what reached new code")
    parser.add_argument("--guided-child", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.guided_child:  # before anything of ours is imported: it is instrumented
        _guide(parsed.door, parsed.guided, parsed.corpus)
    from doors import DOORS

    if parsed.door not in DOORS:
        parser.error(f"there is no door {parsed.door!r}; doors: {', '.join(DOORS)}")
    if parsed.guided is not None:
        return _guided(parsed.door, parsed.guided, parsed.corpus)
    if parsed.child is not None:
        _try(parsed.door, *parsed.child)
        return 0
    state = {"door": parsed.door, "next": 0, "counts": {}, "findings": []}
    if parsed.state is not None and parsed.state.exists():
        state = json.loads(parsed.state.read_text())
    start, first = time.monotonic(), state["next"]
    while state["next"] < parsed.inputs:
        _batch(state, min(state["next"] + BATCH, parsed.inputs))
        if parsed.state is not None:
            parsed.state.write_text(json.dumps(state))
        done = state["next"] / parsed.inputs
        bar = "#" * int(30 * done)
        print(f"\r{parsed.door} [{bar:30}] {state['next']}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for finding in state["findings"]:
        print("finding:", finding)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(state["counts"].items()))
    seconds = time.monotonic() - start
    slowest, number = state.get("slowest", (0.0, None))
    print(
        f"{parsed.door}: {state['next']} inputs, {counts}; findings: {len(state['findings'])}; "
        f"slowest: input {number}, {slowest:.2f} s of CPU time; "
        f"{state['next'] - first} of them in {seconds:.0f} s"
    )
    return 1 if state["findings"] else 0


def _guided(door: str, seconds: int, corpus: Path | None) -> int:
    """Let coverage guide what is tried; return 1 if there is a finding, 2 without atheris."""
    if find_spec("atheris") is None:
        print("atheris is not installed: pip install atheris, or leave --guided out")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        kept = corpus or Path(folder) / "corpus"
        kept.mkdir(parents=True, exist_ok=True)
        settings = ["INTARSIA_PROGRAMS=0", f"INTARSIA_KEYS_DIR={folder}"]
        arguments = ["--guided", str(seconds), "--corpus", str(kept), "--guided-child"]
        child = subprocess.run(
            ["env", *settings, sys.executable, __file__, "--door", door, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            check=False,
        )
        count = len(list(kept.iterdir()))
    lines = child.stderr.splitlines()
    tried = next((line.split()[-1] for line in lines if _TRIED in line), "an unknown number of")
    said = [line for line in lines if line.startswith(("finding", "ERROR", "=="))]
    if child.returncode:
        print("finding:", " ".join(said[:3]) or f"the process ended with {child.returncode}")
    print(
        f"{door}: {tried} inputs that coverage guided, {count} of them reached new code; "
        f"findings: {int(child.returncode != 0)}"
    )
    return int(child.returncode != 0)


_TRIED = "stat::number_of_executed_units"


def _guide(name: str, seconds: int, corpus: Path) -> NoReturn:
    """Run libFuzzer on a door in this process, which it ends."""
    import atheris

    with atheris.instrument_imports(include=["intarsia"]):  # late imports too
        from doors import make_door

        import intarsia.errors

        warnings.simplefilter("ignore")
        with tempfile.TemporaryDirectory() as folder:
            door = make_door(name, folder)
            for number, seed in enumerate(door.seeds):
                (corpus / f"seed{number}").write_bytes(seed)

            def enter(data: bytes) -> None:
                try:
                    door.enter(data, Path(folder) / "input")
                except intarsia.errors.InternalError as error:
                    print(f"finding InternalError: {error}", file=sys.stderr, flush=True)
                    raise
                except intarsia.errors.IntarsiaError:
                    return
                except Exception as error:
                    print(f"finding {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    raise

            options = [
                *(f"-max_total_time={seconds}", f"-timeout={SECONDS}", "-print_final_stats=1"),
                *(
                    f"-rss_limit_mb={MEMORY_BYTES >> 20}",
                    f"-artifact_prefix={folder}/",
                    str(corpus),
                ),
            ]
            atheris.Setup([sys.argv[0], *options], enter)
            atheris.Fuzz()
    raise SystemExit(0)


def _batch(state: dict, end: int) -> None:
    """Try inputs up to a number; a child that ends early is followed by another one."""
    with tempfile.TemporaryDirectory() as keys:
        settings = ["INTARSIA_PROGRAMS=0", f"INTARSIA_KEYS_DIR={keys}"]
        child = subprocess.run(
            [
                *("env", *settings, sys.executable, __file__, "--door", state["door"]),
                *("--child", str(state["next"]), str(end)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
    counts = Counter(state["counts"])
    current = state["next"]
    for line in child.stdout.splitlines():
        number, seconds, outcome = line.split(" ", 2)
        current = int(number) + 1
        state["slowest"] = max(state.get("slowest", [0.0, 0]), [float(seconds), int(number)])
        kind = outcome.partition(" ")[0]
        counts[kind] += 1
        if kind == "finding":
            state["findings"].append(f"input {number}: {outcome}")
    if current < end:
        counts["finding"] += 1
        state["findings"].append(f"input {current}: the process ended with {child.returncode}")
        current += 1
    state["counts"], state["next"] = dict(counts), current


def _try(name: str, start: int, end: int) -> None:
    """Try some inputs, and print a line for each."""
    warnings.simplefilter("ignore")
    from doors import make_door, mutate

    from intarsia.errors import IntarsiaError, InternalError

    with tempfile.TemporaryDirectory() as folder:
        door = make_door(name, folder)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for ending in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(ending, signal.SIG_DFL)
        first = Path(folder) / "first"
        with contextlib.suppress(IntarsiaError):  # what is imported late counts for no input
            door.enter(door.seeds[0], first)
        for number in range(start, end):
            signal.alarm(CLOCK_SECONDS)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            begin = time.process_time()
            try:
                door.enter(mutate(door, number), Path(folder) / "input")
                outcome = "taken"
            except InternalError as error:
                outcome = f"finding InternalError: {error}"
            except IntarsiaError:
                outcome = "refused"
            except BaseException as error:
                outcome = f"finding {type(error).__name__}: {error}"
            seconds = time.process_time() - begin
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            text = outcome.encode("ascii", "backslashreplace").decode()
            print(number, f"{seconds:.3f}", " ".join(text.split()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
