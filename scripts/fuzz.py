# SPDX-License-Identifier: Apache-2.0
"""Mutated inputs for a door by which a stranger's bytes come in: errors of ours, or a finding.

Inputs are numbered and always the same. They are tried in child processes of 2 GiB and 20 s for
each; one that dies, hangs or raises something else is printed and counted, and the next goes on.
What was tried is kept in a file, so that a run that is broken off goes on where it was.

    python scripts/fuzz.py --door onnx --inputs 100000 [--state FILE.json]
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fuzz"))

BATCH = 500
MEMORY_BYTES = 2 << 30
SECONDS = 20


def main() -> int:
    """Try inputs; return 1 if there is a finding."""
    from doors import DOORS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--door", choices=DOORS, required=True)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
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
    print(
        f"{parsed.door}: {state['next']} inputs, {counts}; findings: {len(state['findings'])}; "
        f"{state['next'] - first} of them in {seconds:.0f} s"
    )
    return 1 if state["findings"] else 0


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
        number, _, outcome = line.partition(" ")
        current = int(number) + 1
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
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for number in range(start, end):
            signal.alarm(SECONDS)
            try:
                door.enter(mutate(door, number), Path(folder) / "input")
                outcome = "taken"
            except InternalError as error:
                outcome = f"finding InternalError: {error}"
            except IntarsiaError:
                outcome = "refused"
            except BaseException as error:
                outcome = f"finding {type(error).__name__}: {error}"
            signal.alarm(0)
            text = outcome.encode("ascii", "backslashreplace").decode()
            print(number, " ".join(text.split()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
