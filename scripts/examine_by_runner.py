# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance kit through runners, and prints what applies there and what became of it.

    python scripts/examine_by_runner.py                 # llvm under qemu-aarch64, and by SSH
    python scripts/examine_by_runner.py --every 8       # every eighth case of an operator
    python scripts/examine_by_runner.py --way ssh       # one of the two
    python scripts/examine_by_runner.py --list          # the checks that apply, without a run
    python scripts/examine_by_runner.py -t "llvm -runner=ssh://board"

Without targets there are two: aarch64 under `qemu-aarch64-static`, and a host by SSH, for which a
server is started on the loopback. It returns 1 if a trial failed.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.ssh_server import SshServer

from intarsia.testing.cases import CASES
from intarsia.testing.kit import RUNNER_CHECKS, examine, why_not_there

EMULATED = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76 -runner=qemu-aarch64-static"

WAYS = ("qemu", "ssh")


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


def main() -> int:
    """Run the kit; return 1 if a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-t", "--target", action="append", help="with a runner")
    parser.add_argument("--way", action="append", choices=WAYS, help="without targets: one of both")
    parser.add_argument("--backend", default="intarsia.backends.llvm:BACKEND")
    parser.add_argument("--check", action="append", help="one of --list; all if left out")
    parser.add_argument("--every", type=int, default=1, help="of the cases of operators")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        list_checks()
        return 0
    failures = 0
    with contextlib.ExitStack() as stack:
        ways = () if arguments.target else arguments.way or WAYS
        targets = [*(arguments.target or ()), *([EMULATED] if "qemu" in ways else [])]
        if "ssh" in ways:
            targets.append(stack.enter_context(serving()))
        for target in targets:
            begin, used = time.perf_counter(), time.process_time()
            report = examine(
                arguments.backend, target, checks=arguments.check, cases=CASES[:: arguments.every]
            )
            print(target, report, sep="\n")
            print(
                f"  {time.perf_counter() - begin:.0f} s, of which this process computed "
                f"{time.process_time() - used:.0f} s",
                flush=True,
            )
            failures += len(report.failures)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
