# SPDX-License-Identifier: Apache-2.0
"""Tuning through SSH, killed at random moments and resumed: what was measured must stay.

Starts an SSH server on this machine's loopback, as the tests do, and tunes a small network on a
target that is reached through it. Half of the rounds kill the tuner (SIGKILL to it and all that it
started), the others break its connection in the middle, which it has to survive. After each, the
samples in the cost database are counted: there may never be fewer, and nothing may be filed as a
failure. Every four moments there is another network to tune. In the end a last run has to finish,
and no folder may be left on the machine.

    python benchmarks/tune_by_ssh.py [--moments 20] [--seed 0]
"""

import argparse
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
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

TUNE = """
import sys
import intarsia
if __name__ == "__main__":
    exe = intarsia.tune(sys.argv[1], sys.argv[2], budget=float(sys.argv[3]))
    print(exe.placement)
"""


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


def count(database: Path) -> tuple[int, int]:
    """Return how many samples and how many failures a database has."""
    if not database.exists():
        return 0, 0
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = ("intarsia_sample", "intarsia_poison")
        samples, failures = (
            connection.execute(f"select count(*) from {table}").fetchone()[0] for table in tables
        )
    return samples, failures


def count_told(said: str) -> int:
    """Return how many losses a tuner has told of."""
    return said.count("a measurement was lost") + said.count("trying again")


def main() -> int:
    """Kill and resume; return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--longest", type=float, default=25.0, help="seconds before a kill")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="tune-by-ssh-"))
    server = SshServer(folder)
    caches = folder / "caches"
    environment = {**os.environ, **server.environment, "INTARSIA_CACHE_DIR": str(caches)}  # noqa: TID251 - handed on
    script = folder / "tune.py"
    script.write_text(TUNE)
    target = f"llvm -runner={server.text}, onnxruntime"
    command = [sys.executable, str(script), str(folder / "net.onnx"), target]
    command.append(str(arguments.budget))

    told = folder / "told.txt"  # a pipe that nobody reads would stop it, once full

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, start_new_session=True, stderr=told.open("wb")
        )

    before, lost = 0, 0
    for number in range(arguments.moments):
        write_model(folder / "net.onnx", 32 + 16 * (number // 4))  # four moments for each network
        seconds = chance.uniform(0.5, arguments.longest)
        is_kill = number % 2 == 0
        process = start()
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        has_ended = process.poll() is not None
        if has_ended:
            what = f"had ended with {process.returncode}"
        elif is_kill:
            os.killpg(process.pid, signal.SIGKILL)
            what = "killed"
        else:
            server.cut()
            what = "connection cut"
        code = process.wait(600)
        if code and (has_ended or not is_kill):
            print(told.read_text(errors="replace")[-2000:])
            lost += 1
        databases = sorted(caches.rglob("costs*.sqlite"))
        samples, failures = count(databases[0]) if databases else (0, 0)
        lost += samples < before or failures > 0
        print(
            f"{number + 1:2} after {seconds:4.1f} s: {what}, ended with {code}: {before} -> "
            f"{samples} samples, {failures} failures, "
            f"{count_told(told.read_text(errors='replace'))} told",
            flush=True,
        )
        before = samples
    last = start()
    code = last.wait(600)
    folders = list((folder / "there").glob("intarsia.*"))
    print(f"last run ended with {code}; {lost} wrong; {len(folders)} folders left on the machine")
    server.close()
    return int(bool(lost or code or folders))


if __name__ == "__main__":
    sys.exit(main())
