# SPDX-License-Identifier: Apache-2.0
"""What Ctrl-C in the first moments of a command leaves: one line, nothing, or a traceback.

    python benchmarks/interrupts.py                 a signal each 10 ms from 0 to 500
    python benchmarks/interrupts.py --times 5       five of each

A command is started, and so many milliseconds later it gets SIGINT. Counted are `one line` (ours,
with exit code 130), `ended` (it was done before), `killed` (Python had no handler yet: the system
ended it without a word), and tracebacks, by what was at work: `site` (Python's own start), `script`
(the first line of what pip installed, which looks for our package: Python's own too), and `ours`.
The times are those of this machine with what it has to do; for the windows, start-up with a clock
on each module is `python -X importtime -m intarsia --version`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("intarsia")


def outcome(program: str, milliseconds: int) -> str:
    """Return what became of a command that is interrupted after so long."""
    with subprocess.Popen(
        [program, "target", "list"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        time.sleep(milliseconds / 1e3)
        running.send_signal(signal.SIGINT)
        try:
            _, said = running.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            running.kill()
            return "did not end within 120 s"
        code = running.returncode
    if "Traceback" not in said:
        if code == 130 and said == "interrupted\n":
            return "one line"
        return {0: "ended", -signal.SIGINT: "killed"}.get(code, f"code {code}: {said!r}")
    if "site module" in said:
        return "traceback: site"
    is_ours = any(f"{name}.py" in said for name in ("intarsia/__init__", "intarsia/__main__"))
    return "traceback: ours" if is_ours else "traceback: script"


def main() -> None:
    """Print how often each came, and when."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=str(PROGRAM), help="another installation's")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--step", type=int, default=10, metavar="MS")
    parser.add_argument("--until", type=int, default=500, metavar="MS")
    given = parser.parse_args()
    moments: dict[str, list[int]] = defaultdict(list)
    for _ in range(given.times):
        for milliseconds in range(0, given.until + 1, given.step):
            moments[outcome(given.program, milliseconds)].append(milliseconds)
    for what, when in sorted(moments.items()):
        print(f"{what:20} {len(when):4}  at {min(when)} to {max(when)} ms")
    print(dict(Counter({what: len(when) for what, when in moments.items()})))


if __name__ == "__main__":
    main()
