# SPDX-License-Identifier: Apache-2.0
"""Tuning through SSH, disturbed at random moments and resumed: what was measured must stay.

Starts an SSH server on this machine's loopback, as the tests do, and tunes small networks on a
target that is reached through it, one after another. At random moments one of these happens:

    tuner  SIGKILL to the tuner alone; its workers have to end by themselves
    tree   SIGKILL to the tuner and to all that it has started here, in whatever session
    link   SIGKILL to the server's side of every connection; the tuner has to go on
    agent  SIGKILL to the programs on the machine; the tuner has to go on

Only moments at which a tuner was at work count; every second one is while it waits for the times
that it asked its worker for. After each, and whenever a tuner ends, the rows of
the cost database are read: none that was there may be gone or changed, none may be there twice,
no time may be far from the others of its key, and nothing may be filed as a failure. A tuner that
was not killed has to end well, with the numbers of ONNX Runtime, and soon. After a kill nothing may
be left on the machine (folders, processes), and no worker here.

Each tuner keeps a journal: when it asks its worker for times, when these have come, when they are
in the database. What a kill lost is what was asked for and did not get there: it may be one
question, which was under way. In the end another tuner, which nobody disturbs and which has a
database of its own, tunes the last network: both must have measured the same regions, boundaries
and plans.

    python benchmarks/tune_by_ssh.py [--moments 20] [--seed 0]
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from tests.ssh_server import SshServer  # noqa: E402

MODEL = """<ir_version: 8, opset_import: ["": 17]>
net (float[8, WIDTH] x) => (float[8, WIDTH] y) <float[WIDTH, WIDTH] w, float[WIDTH, WIDTH] v> {
    a = MatMul(x, w)
    b = Relu(a)
    c = MatMul(b, v)
    d = Softmax(c)
    y = Add(d, x)
}"""

TUNE = r"""
import os
import sys
import numpy as np
import onnxruntime
import intarsia
from intarsia.cost.database import CostDatabase
from intarsia.process.runner import insist
from intarsia.tuning.laboratory.laboratory import Laboratory

def journal(cls, name, before, after):
    unwatched = getattr(cls, name)
    def watched(*arguments, **options):
        os.write(file, before)
        result = unwatched(*arguments, **options)
        os.write(file, after)
        return result
    setattr(cls, name, watched)

if __name__ == "__main__":
    file = os.open(sys.argv[5], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    journal(Laboratory, "_race", b"asked\n", b"answered\n")
    journal(CostDatabase, "add_all", b"", b"kept\n")
    exe = intarsia.tune(sys.argv[1], sys.argv[2], budget=float(sys.argv[3]))
    print(exe.placement)
    x = np.random.default_rng(0).standard_normal((8, int(sys.argv[4]))).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(sys.argv[1]).run(None, {"x": x})
    result = insist(lambda: exe(x))  # what is struck costs a call, and this is one
    sys.exit(0 if np.allclose(result, expected, rtol=1e-4, atol=1e-5) else 9)
"""

KINDS = ("tuner", "tree", "link", "agent")
LETHAL = ("tuner", "tree")
VANISH_SECONDS = 60.0
MOST_WRONG = 10
"""It stops with more: tuners that end at once would be started for ever."""
FAR = 200.0
"""A sample that is so many times the median of its key, or less than that part, may be wrong:
waiting for a new connection would make it 10,000 times as long."""
PREEMPTED_SECONDS = 0.1
"""Other programs may have the CPU for so long in the middle of a sample: 8 ms were seen beside a
median of 26 microseconds. A new connection takes longer."""


def write_model(path: Path, width: int) -> None:
    """Write a small network of a width."""
    import numpy as np
    import onnx

    model = onnx.parser.parse_model(MODEL.replace("WIDTH", str(width)))
    rng = np.random.default_rng(0)
    for name in ("w", "v"):
        weights = (rng.standard_normal((width, width)) / 8).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    onnx.save(model, path)


def processes(is_one: Callable[[Path], bool]) -> Iterator[int]:
    """Give the processes of which something is so, by their folder in `/proc`."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.name != str(os.getpid()) and is_one(folder):
                yield int(folder.name)


def lost(journal: Path) -> int:
    """Return how many questions of a tuner that was killed left nothing in the database."""
    after_kept = journal.read_text().rpartition("kept\n")[2] if journal.exists() else ""
    return after_kept.count("asked\n")


@dataclass
class Board:
    """The machine as it is seen from there.

    Attributes:
        folder: What the runner's address names.
    """

    folder: Path

    def programs(self) -> list[int]:
        """Return the processes that run in a folder there, agents and their shells."""
        return list(processes(lambda at: self._is_inside(at / "cwd")))

    def agents(self) -> list[int]:
        """Return the processes whose program is there."""
        return list(processes(lambda at: self._is_inside(at / "exe")))

    def folders(self) -> set[str]:
        """Return the folders that were made there."""
        return {path.name for path in self.folder.glob("intarsia.*")}

    def _is_inside(self, link: Path) -> bool:
        return str(link.readlink()).startswith(str(self.folder))


@dataclass
class Costs:
    """What a database has, and what is wrong with it.

    Attributes:
        caches: The cache folder that it is in.
        seen: The rows of samples that were there when it was last read.
        wrong: What was found wrong so far.
    """

    caches: Path
    seen: set[tuple[object, ...]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read it, and compare with what was there."""
        found = sorted(self.caches.rglob("costs*.sqlite"))
        if not found:
            return
        with contextlib.closing(sqlite3.connect(f"file:{found[0]}?mode=ro", uri=True)) as database:
            (state,) = database.execute("pragma integrity_check").fetchone()
            rows = database.execute(
                "select digest, seconds, anchor_seconds, anchor, taken_at, session "
                "from intarsia_sample join intarsia_key on key_id = intarsia_key.id"
            ).fetchall()
            poison = database.execute("select code, reason from intarsia_poison").fetchall()
        if state != "ok":
            self.wrong.append(f"the database is damaged: {state}")
        gone = self.seen - set(rows)
        if gone:
            self.wrong.append(f"{len(gone)} samples are gone, {min(gone)} among them")
        twice = [row for row, times in Counter(rows).items() if times > 1]
        if twice:
            self.wrong.append(f"{len(twice)} samples are there twice, {min(twice)} among them")
        self.wrong += [f"a failure was filed: {code}: {reason}" for code, reason in poison]
        self.wrong += [far for far in self.outliers(set(rows)) if far not in self.wrong]
        self.seen = set(rows)

    def keys(self) -> set[tuple[str, ...]]:
        """Return what there are samples of: regions, boundaries and plans, with their targets."""
        found = sorted(self.caches.rglob("costs*.sqlite"))
        if not found:
            return set()
        with contextlib.closing(sqlite3.connect(f"file:{found[0]}?mode=ro", uri=True)) as database:
            rows = database.execute(
                "select distinct region, target, next_region, next_target "
                "from intarsia_sample join intarsia_key on key_id = intarsia_key.id"
            )
            return set(rows)

    @staticmethod
    def medians(rows: set[tuple[object, ...]]) -> list[tuple[float, float]]:
        """Return the seconds of each sample, and the median of its key."""
        by_key: dict[object, list[float]] = {}
        for digest, seconds, *_ in rows:
            by_key.setdefault(digest, []).append(float(str(seconds)))
        middle = {digest: statistics.median(every) for digest, every in by_key.items()}
        return [(one, middle[digest]) for digest, every in by_key.items() for one in every]

    @classmethod
    def spread(cls, rows: set[tuple[object, ...]]) -> list[float]:
        """Return of each sample how many times the median of its key it is."""
        return [seconds / middle for seconds, middle in cls.medians(rows)]

    @classmethod
    def outliers(cls, rows: set[tuple[object, ...]]) -> list[str]:
        """Return of those that cannot be right what is wrong with them."""
        return [
            f"a sample of {seconds:.3g} s, where the median of its key is {middle:.3g} s"
            for seconds, middle in cls.medians(rows)
            if seconds < middle / FAR or (seconds > middle * FAR and seconds > PREEMPTED_SECONDS)
        ]


class Trial:
    """One run of this program: a server, a tuner, and what happens to them."""

    def __init__(self, folder: Path, budget: float, late: float) -> None:
        self.folder = folder
        self.budget = budget
        self.late = late
        self.server = SshServer(folder)
        self.board = Board(folder / "there")
        self.costs = Costs(folder / "caches")
        self.told = folder / "told.txt"  # a pipe that nobody reads would stop it, once full
        self.journal = folder / "journal.txt"
        self.width = 24
        self.lost: list[int] = []
        """Of each tuner that was killed, how many questions left nothing in the database."""
        self.of_others = set[tuple[str, ...]]()
        """What was measured before the network that is tuned now."""
        self.left = set[str]()
        """Folders there that were told of."""
        (folder / "tune.py").write_text(TUNE)
        self.process = self.start(is_new=True)

    def start(self, *, is_new: bool) -> subprocess.Popen[bytes]:
        """Start a tuner, of a new network or of the one before."""
        if is_new:
            self.width += 8
            write_model(self.folder / "net.onnx", self.width)
            self.of_others = self.costs.keys()
        self.journal.unlink(missing_ok=True)
        target = f"llvm -runner={self.server.text}, onnxruntime"
        script, model = str(self.folder / "tune.py"), str(self.folder / "net.onnx")
        caches = {"INTARSIA_CACHE_DIR": str(self.costs.caches)}
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [
                *(sys.executable, script, model, target),
                *(str(self.budget), str(self.width), str(self.journal)),
            ],
            env={**os.environ, **self.server.environment, **caches},  # noqa: TID251 - handed on
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=self.told.open("ab"),
        )
        return self.process

    def ours(self) -> list[int]:
        """Return the processes here that the tuner has started, itself and SSH's master left out.

        They have its environment, whoever their parent is by now.
        """
        mark = f"INTARSIA_CACHE_DIR={self.costs.caches}".encode()

        def is_one(at: Path) -> bool:
            name = (at / "comm").read_text().strip()
            return name != "ssh" and mark in (at / "environ").read_bytes().split(b"\0")

        return [pid for pid in processes(is_one) if pid != self.process.pid]

    def is_at_work(self, seconds: float, kind: str, *, is_measuring: bool) -> bool:
        """Wait so long, and if need be for what is to be struck; tell whether it still runs.

        Args:
            seconds: How long.
            kind: With `agent`, it waits for a program on the machine.
            is_measuring: Whether it waits until the tuner waits for times.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            is_time = time.monotonic() > deadline
            is_there = kind != "agent" or bool(self.board.agents())
            if is_time and is_there and (not is_measuring or lost(self.journal)):
                return True
            time.sleep(0.005 if is_time else 0.2)
        return False

    def happen(self, kind: str) -> int:
        """Let something happen; return to how many processes."""
        if kind == "link":
            return len(self.server.cut())
        pids = self.board.agents() if kind == "agent" else [self.process.pid]
        if kind == "tree":
            pids += self.ours()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if kind in LETHAL:
            self.process.wait()
            self.lost.append(lost(self.journal))
            if self.lost[-1] > 1:
                self.costs.wrong.append(
                    f"a kill cost {self.lost[-1]} questions: {self.journal.read_text()}"
                )
        return len(pids)

    def check_vanished(self) -> float:
        """Check that nothing is left; return after how many seconds that was so."""
        begin = time.monotonic()
        while self.ours() or self.board.programs() or self.board.folders() - self.left:
            if time.monotonic() - begin > VANISH_SECONDS:
                self.costs.wrong.append(
                    f"left: processes here {self.ours()}, there {self.board.programs()}, "
                    f"folders there {self.board.folders() - self.left}"
                )
                self.left = self.board.folders()
                break
            time.sleep(0.1)
        return time.monotonic() - begin

    def check_end(self) -> None:
        """Wait for the end of a tuner that was not killed, and check it."""
        left = self.started + self.budget + self.late - time.monotonic()
        try:
            code = self.process.wait(max(1.0, left))
        except subprocess.TimeoutExpired:
            self.costs.wrong.append(f"a tuner hangs {self.late:g} s after its budget")
            self.happen("tree")
            return
        if code:
            last = self.told.read_text(errors="replace")[-2000:]
            self.costs.wrong.append(f"a tuner ended with {code}: {last}")
        self.check_vanished()
        self.costs.read()

    def check_same(self) -> int:
        """Tune the last network undisturbed, and compare what was measured; return how much."""
        ours = self.costs.keys() - self.of_others
        disturbed, self.costs = self.costs, Costs(self.folder / "undisturbed")
        self.start(is_new=False)
        self.check_end()
        alone = self.costs.keys()
        self.costs, wrong = disturbed, self.costs.wrong
        self.costs.wrong += wrong
        for what, where in ((ours - alone, "disturbed"), (alone - ours, "undisturbed")):
            if what:
                self.costs.wrong.append(f"measured only when {where}: {sorted(what)}")
        return len(ours & alone)


def main() -> int:
    """Disturb and resume; return 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--longest", type=float, default=25.0, help="seconds to the next moment")
    parser.add_argument(
        "--late", type=float, default=240.0,
        help="seconds that a tuner may take beyond its budget, on a machine with much to do",
    )  # fmt: skip
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    trial = Trial(Path(tempfile.mkdtemp(prefix="tune-by-ssh-")), arguments.budget, arguments.late)
    ended, kinds = 0, list[str]()
    for number in range(arguments.moments):
        kinds = kinds or chance.sample(KINDS, len(KINDS))
        kind = kinds.pop()
        struck = 0
        while not struck:  # else nothing was there to be struck
            while not trial.is_at_work(
                chance.uniform(0.5, arguments.longest), kind, is_measuring=number % 2 == 0
            ):
                trial.check_end()
                ended += 1
                if len(trial.costs.wrong) > MOST_WRONG:
                    sys.exit("\n".join(trial.costs.wrong))
                trial.start(is_new=True)
            before, age = len(trial.costs.seen), time.monotonic() - trial.started
            struck = trial.happen(kind)
        vanished = ""
        if kind in LETHAL:
            gone = trial.check_vanished()
            vanished = f", all gone after {gone:.1f} s, {trial.lost[-1]} questions lost"
            trial.costs.read()
            trial.start(is_new=False)
        else:
            trial.costs.read()
        print(
            f"{number + 1:2} {kind:5} {struck:2} processes, {age:5.1f} s after the start"
            f"{vanished}: {before} -> {len(trial.costs.seen)} samples, "
            f"{len(trial.costs.wrong)} wrong",
            flush=True,
        )
    trial.check_end()
    same = trial.check_same()
    trial.server.close()
    times = Costs.spread(trial.costs.seen)
    print(
        f"{arguments.moments} moments; {ended + 1} tuners came to their end; "
        f"{len(times)} samples, {min(times, default=1):.3g} to {max(times, default=1):.3g} times "
        f"the median of their key; {len(trial.lost)} kills lost {sum(trial.lost)} questions, at "
        f"most {max(trial.lost, default=0)} each; {same} keys of the last network as without "
        f"kills; {len(trial.board.folders())} folders and "
        f"{len(trial.board.programs())} processes left; {len(trial.costs.wrong)} wrong"
    )
    print("\n".join(trial.costs.wrong))
    if not trial.costs.wrong:
        shutil.rmtree(trial.folder)
    return int(bool(trial.costs.wrong))


if __name__ == "__main__":
    sys.exit(main())
