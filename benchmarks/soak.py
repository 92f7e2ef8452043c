# SPDX-License-Identifier: Apache-2.0
"""Minutes of random use of one process: models, loads, unloads, threads, kills and faults.

At each step one thing is drawn from a seed: a program is run from some threads, loaded from its
package, or thrown away; or a fault is injected: the process of an isolated backend is killed while
threads run its regions, a run gets too little time, is cancelled or gets a wrong input, a package
is damaged, a device fails. A fault is survived if it is the error that is documented, and the next
run of the same program is right. All outputs are compared with ONNX Runtime's on the model.

In the end everything is thrown away, and what is left is counted: memory beyond that after a third
of the time, open files, threads, processes, names in /dev/shm and in the folder for temporary
files, which is one of its own.

    python benchmarks/soak.py [--minutes 10] [--seed 0] [--megabytes 64]
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import intarsia
from intarsia.backends.isolated import IsolatedExecutable
from intarsia.errors import (
    ExecutionError,
    InputError,
    IntarsiaError,
    PackageError,
    RunCancelledError,
    RunTimeoutError,
)
from intarsia.garbage import give_memory_back
from intarsia.process.workers import resident_bytes
from intarsia.zoo import build

MODELS = 8
SLOTS = 6
"""Programs that are there at once."""
TARGETS = ("llvm", "onnxruntime", "openvino, onnxruntime", "dnnl, llvm")
ISOLATED = ("onnxruntime", "openvino")
OF_ONNXRUNTIME = ".ses"
"""A file of one name that ONNX Runtime's own telemetry keeps in the folder for temporary files."""


class Soak:
    """What is tried, and what came of it.

    Args:
        seed: For what is drawn.
        folder: For packages.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.cases: list[tuple[dict[str, Any], dict[str, Any], Path]] = []
        self.slots: list[tuple[int, Any]] = []
        for number in range(MODELS):
            self._prepare(f"random:{seed + number}", TARGETS[number % len(TARGETS)])

    def _prepare(self, network: str, target: str) -> None:
        model = build(network)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        program = intarsia.compile(model, target, num_threads=2)
        feeds = program.sample_feeds()
        names = [one.name for one in session.get_outputs()]
        expected = dict(zip(names, session.run(None, feeds), strict=True))
        path = self.folder / f"{len(self.cases)}.intarsia"
        program.save(path)
        self.cases.append((feeds, expected, path))

    def step(self) -> None:
        """Do one thing."""
        if len(self.slots) < SLOTS:
            self.load()
            return
        actions: list[tuple[int, Callable[[], None]]] = [
            (60, self.run),
            (15, self.unload),
            (12, self.kill),
            (5, self.hurry),
            (5, self.cancel),
            (5, self.misfeed),
            (5, self.damage),
            (2, self.fail),
        ]
        weights, choices = zip(*actions, strict=True)
        self.draw.choices(choices, weights)[0]()

    def load(self) -> None:
        """Load a package; some backends in processes of their own."""
        number = self.draw.randrange(MODELS)
        isolate = ISOLATED if self.draw.random() < 0.4 else ()
        threads = self.draw.choice((1, 2))
        program = intarsia.load(self.cases[number][2], num_threads=threads, isolate=isolate)
        self.slots.append((number, program))
        self.counts["loads"] += 1

    def unload(self) -> None:
        """Throw a program away."""
        self.slots.pop(self.draw.randrange(len(self.slots)))
        self.counts["unloads"] += 1

    def compare(self, number: int, outputs: dict[str, Any]) -> None:
        """Compare outputs with ONNX Runtime's."""
        self.counts["runs"] += 1
        for name, right in self.cases[number][1].items():
            if not np.allclose(outputs[name], right, rtol=1e-3, atol=1e-4, equal_nan=True):
                self.wrong.append(f"model {number}, {name}")

    def run(self) -> None:
        """Run a program from some threads."""
        number, program = self.draw.choice(self.slots)
        feeds = self.cases[number][0]
        callers = self.draw.choice((1, 1, 2, 8))
        with ThreadPoolExecutor(callers) as pool:
            for outputs in pool.map(program.run, [feeds] * (2 * callers)):
                self.compare(number, outputs)

    def expect(self, what: str, kind: type[IntarsiaError], fault: Callable[[], object]) -> None:
        """Inject a fault, which is to be an error of a kind, and see that the process survives."""
        self.counts["faults"] += 1
        self.counts[f"faults: {what}"] += 1
        try:
            fault()
        except kind:
            self.counts["survived"] += 1

    def kill(self) -> None:
        """Kill the process of an isolated backend while threads run its regions."""
        hosts = [
            (number, program, one.host)
            for number, program in self.slots
            for one in getattr(program, "executables", ())
            if isinstance(one, IsolatedExecutable) and one.host.pid is not None
        ]
        if not hosts:
            return
        number, program, host = self.draw.choice(hosts)
        feeds, ending = self.cases[number][0], self.draw.choice((signal.SIGKILL, signal.SIGSEGV))

        def work(_: int) -> dict[str, Any] | None:
            try:
                return dict(program.run(feeds))
            except ExecutionError:
                return None

        self.counts["faults"] += 1
        self.counts["faults: a killed process"] += 1
        with ThreadPoolExecutor(3) as pool:
            runs = [pool.submit(work, i) for i in range(12)]
            runs[2].result()
            if host.pid is not None:
                os.kill(host.pid, ending)
            for one in runs:
                outputs = one.result()
                if outputs is not None:
                    self.compare(number, outputs)
        work(0)  # may find that it is gone
        outputs = work(0)
        if outputs is not None:
            self.counts["survived"] += 1
            self.compare(number, outputs)

    def hurry(self) -> None:
        """Give a run too little time."""
        number, program = self.draw.choice(self.slots)
        feeds = self.cases[number][0]
        self.expect("too little time", RunTimeoutError, lambda: program.run(feeds, timeout=1e-6))
        self.compare(number, program.run(feeds))

    def cancel(self) -> None:
        """Cancel a run, before it begins or while it runs."""
        number, program = self.draw.choice(self.slots)
        feeds, cancellation = self.cases[number][0], intarsia.Cancellation()
        timer = threading.Timer(self.draw.random() * 1e-3, cancellation.cancel)

        def run_on() -> None:
            while True:
                self.compare(number, program.run(feeds, cancellation=cancellation))

        timer.start()
        self.expect("cancelled", RunCancelledError, run_on)
        timer.join()
        self.compare(number, program.run(feeds))

    def misfeed(self) -> None:
        """Give a run an input of another shape."""
        number, program = self.draw.choice(self.slots)
        feeds = dict(self.cases[number][0])
        name = self.draw.choice(sorted(feeds))
        feeds[name] = np.zeros((*feeds[name].shape, 3), feeds[name].dtype)
        self.expect("a wrong input", InputError, lambda: program.run(feeds))
        self.compare(number, program.run(self.cases[number][0]))

    def damage(self) -> None:
        """Load a package of which a byte is another, or some are missing."""
        content = bytearray(self.draw.choice(self.cases)[2].read_bytes())
        path = self.folder / "damaged.intarsia"
        place = self.draw.randrange(len(content))
        if self.draw.random() < 0.5:
            content[place] ^= 1 + self.draw.randrange(255)
        else:
            del content[place:]
        path.write_bytes(content)
        self.expect("a damaged package", PackageError, lambda: intarsia.load(path))
        path.unlink()

    def fail(self) -> None:
        """Run on a device that fails."""
        model = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
        )
        program = intarsia.compile(model, "fake -fault=run", num_threads=1)
        feeds = {"x": np.zeros(4, np.float32)}
        self.expect("a failing device", ExecutionError, lambda: program.run(feeds))


def named() -> list[str]:
    """Return the names of segments of shared memory and of temporary files."""
    places = [*Path("/dev/shm").glob("*intarsia*"), *Path(tempfile.gettempdir()).iterdir()]
    return sorted(str(place) for place in places if place.name != OF_ONNXRUNTIME)


def left() -> dict[str, int]:
    """Return what the process has that others would see, once garbage is gone."""
    gc.collect()
    give_memory_back()
    children = 0
    for task in Path("/proc/self/task").iterdir():
        children += len((task / "children").read_text().split())
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "processes": children,
        "segments and temporary files": len(named()),
    }


def main() -> int:
    """Print what was tried and what is left; return 1 if that is not nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--megabytes", type=int, default=64, help="that memory may grow by")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, tempfile.TemporaryDirectory() as own:
        os.environ["TMPDIR"] = tempfile.tempdir = own  # noqa: TID251 - of processes too
        soak = Soak(options.seed, Path(name))
        # Everything once, so that what stays as long as the process does is there before.
        for _ in range(SLOTS):
            soak.load()
        for action in (soak.run, soak.hurry, soak.cancel, soak.misfeed, soak.damage, soak.fail):
            action()
        soak.slots.clear()
        before = left()
        start, seconds = time.monotonic(), 60 * options.minutes
        third = 0
        while (passed := time.monotonic() - start) < seconds:
            soak.step()
            if not third and passed > seconds / 3:
                kept, soak.slots = soak.slots, []
                del kept
                left()
                third = resident_bytes()
        soak.slots.clear()
        after = left()
        grown = resident_bytes() - third
        names = named()
    counts = soak.counts
    print(f"{options.minutes:g} minutes, seed {options.seed}")
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    print(f"wrong results: {len(soak.wrong)} {soak.wrong[:5] or ''}")
    print(f"memory after a third: {third >> 20} MB; at the end {grown / 2**20:+.1f} MB")
    over = {what: after[what] - before[what] for what in after}
    print("left: " + ", ".join(f"{what} {count}" for what, count in over.items()))
    if names:
        print("names: " + ", ".join(names))
    is_fine = (
        not soak.wrong
        and counts["survived"] == counts["faults"]
        and grown <= options.megabytes << 20
        and not any(count > 0 for count in over.values())
    )
    print("holds" if is_fine else "missed")
    return int(not is_fine)


if __name__ == "__main__":
    sys.exit(main())
