# SPDX-License-Identifier: Apache-2.0
"""Runs the kit's checks of endurance on every backend that can run here, and prints a table.

    python scripts/examine_backends.py --keep /tmp/trials.jsonl --page docs/backends.md
    python scripts/examine_backends.py --backend ncnn --backend xnnpack
    python scripts/examine_backends.py --check contract --check memory

Each backend has a process of its own, because memory is counted by process. With `--keep` each
trial is written down as it ends, and the same command goes on where it was stopped; name a new file
after a change. `--page` writes what is kept there into a page, between two comments. What cannot
run here is skipped, and the table says why. It returns 1 if a trial failed.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from examine_by_runner import LEFT_OUT, TrialRecord, put_between, read_kept

from intarsia.testing.kit import CHECKS
from intarsia.testing.trial import Status

ROOT = Path(__file__).parents[1]
STANDIN = "tests/backends/cmsis_nn/cmsis_nn_standin"
TARGETS = {
    "llvm": ("intarsia.backends.llvm", "llvm"),
    "dnnl": ("intarsia.backends.dnnl.backend", "dnnl, onnxruntime"),
    "onnxruntime": ("intarsia.backends.onnxruntime", "onnxruntime"),
    "openvino": ("intarsia.backends.openvino", "openvino, onnxruntime"),
    "xnnpack": ("intarsia.backends.xnnpack.backend", "xnnpack, onnxruntime"),
    "ncnn": ("intarsia.backends.ncnn.backend", "ncnn, onnxruntime"),
    "opencl": ("intarsia.backends.opencl.backend", "opencl, llvm"),
    "webgpu": ("intarsia.backends.webgpu.backend", "webgpu, llvm"),
    "cuda": ("intarsia.backends.cuda.backend", "cuda, llvm"),
    "cmsis-nn": (
        "intarsia.backends.cmsis_nn.backend",
        f"cmsis-nn -cmsis_nn_path={STANDIN}, llvm",
    ),
    "arm_acl": (
        "intarsia.backends.arm_acl.backend",
        "arm_acl -acl_root=.foreign/arm64 -runner=qemu-aarch64-static",
    ),
    "c": ("intarsia.backends.plain_c", "c -runner=here"),
    "reference": ("intarsia.backends.reference", "reference"),
    "fake": ("intarsia.backends.fake", "fake"),
}
"""By backend: its module, and the target with which it is tried."""

ENDURANCE = ("threads", "loads", "limits", "faults")
BEGIN, END = "<!-- kit on every backend: begin -->", "<!-- kit on every backend: end -->"


def examine(name: str, checks: Sequence[str], kept: Path) -> None:
    """Try one backend in a process of its own, which writes down what becomes of each trial."""
    module, target = TARGETS[name]
    command = [sys.executable, str(ROOT / "scripts" / "examine_by_runner.py"), "-t", target]
    command += ["--backend", f"{module}:BACKEND", "--keep", str(kept.resolve())]
    command += [argument for check in checks for argument in ("--check", check)]
    code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"{name}: the process ended with {code}")


def words_of(records: Sequence[TrialRecord], notes: dict[str, str]) -> str:
    """Return what became of a check on one backend, for a cell of the table.

    Args:
        records: Of its trials.
        notes: Letters by the reason for which trials were skipped; more are added.
    """
    if not records:
        return "not tried"
    counts = Counter(record.status for record in records)
    reasons = {record.message for record in records}
    if len(counts) > 1 or len(reasons) > 1:
        return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    (status,), (reason,) = counts, reasons
    words = status if len(records) == 1 else f"{len(records)} {status}"
    if status in (Status.SKIPPED, LEFT_OUT):
        return f"{words} ({notes.setdefault(reason, chr(ord('a') + len(notes)))})"
    return f"{words}: {reason}" if reason else words


def table(records: Sequence[TrialRecord], checks: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table: by backend, what became of each check; reasons are below."""
    notes: dict[str, str] = {}
    yield "| backend | " + " | ".join(f"`{check}`" for check in checks) + " |"
    yield "|---|" + "---|" * len(checks)
    for name, (_, target) in TARGETS.items():
        own = [record for record in records if record.way == target]
        if own:
            cells = [
                words_of([one for one in own if one.check == check], notes).replace("|", r"\|")
                for check in checks
            ]
            yield f"| `{name}` | {' | '.join(cells)} |"
    for reason, letter in notes.items():
        yield f"\n({letter}) {reason}"


def main() -> int:
    """Run the checks; return 1 if a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", choices=TARGETS, help="all if left out")
    parser.add_argument("--check", action="append", choices=CHECKS, help="those of endurance")
    parser.add_argument("--keep", metavar="FILE", type=Path, help="of trials, to go on from")
    parser.add_argument("--page", type=Path, help="that the table is written into")
    parser.add_argument("--no-run", action="store_true", help="only write what is kept")
    options = parser.parse_args()
    checks = options.check or ENDURANCE
    with tempfile.TemporaryDirectory() as folder:
        kept = options.keep or Path(folder) / "trials.jsonl"
        for name in () if options.no_run else options.backend or tuple(TARGETS):
            print(name, file=sys.stderr, flush=True)
            examine(name, checks, kept)
        records = read_kept(kept) if kept.exists() else []
    lines = list(table(records, checks))
    print(*lines, sep="\n")
    if options.page:
        put_between(options.page, BEGIN, END, "\n".join(lines))
    failed = [record for record in records if record.status == Status.FAILED]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
