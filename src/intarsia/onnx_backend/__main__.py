# SPDX-License-Identifier: Apache-2.0
"""`python -m intarsia.onnx_backend`: ONNX's backend tests through us and through ONNX Runtime.

Exit code 1 if something passes in ONNX Runtime and not through us.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
from collections.abc import Sequence

from intarsia.onnx_backend.conformance import (
    KINDS,
    Conformance,
    Outcome,
    load_cases,
    prepare_onnxruntime,
    prepare_ours,
    run_cases,
)

OURS, PEER = "intarsia", "onnxruntime"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests, print what became of them and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m intarsia.onnx_backend", description=__doc__)
    parser.add_argument("--target", "-t", help="default: what is found here")
    parser.add_argument("--filter", metavar="REGEX", default="", help="of the names of tests")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--json", action="store_true", help="print every result")
    parser.add_argument("--table", action="store_true", help="print the counts by operator")
    options = parser.parse_args(argv)
    logging.getLogger("intarsia").setLevel(logging.ERROR)
    pattern = re.compile(options.filter)
    cases = (case for case in load_cases(options.kind or KINDS) if pattern.search(case.name))
    conformance = run_cases(
        cases,
        {OURS: prepare_ours(options.target, num_threads=1), PEER: prepare_onnxruntime()},
        progress=_tell,
    )
    missing = conformance.missing(OURS, PEER)
    if options.json:
        answer = {
            "results": {
                name: [
                    {"test": r.test, "operator": r.operator, "outcome": r.outcome, "why": r.why}
                    for r in results
                ]
                for name, results in conformance.results.items()
            },
            "missing": [result.test for result in missing],
        }
        sys.stdout.write(f"{json.dumps(answer, indent=1)}\n")
    else:
        sys.stdout.write(
            "\n".join((*_summary(conformance), *(_table(conformance) if options.table else ())))
        )
        sys.stdout.write("\n")
    for result in missing:
        sys.stderr.write(f"only in {PEER}: {result.test}: {result.why}\n")
    return 1 if missing else 0


def _tell(done: int, name: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{done} {name}")


def _summary(conformance: Conformance) -> list[str]:
    lines = ["| backend | passed | failed | refused |", "|---|---:|---:|---:|"]
    for name in conformance.results:
        counts = conformance.counts(name)
        cells = " | ".join(str(counts[outcome]) for outcome in Outcome)
        lines.append(f"| {name} | {cells} |")
    return lines


def _table(conformance: Conformance) -> list[str]:
    heads = [f"{name} {outcome}" for name in conformance.results for outcome in Outcome]
    lines = ["", f"| operator | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for operator, row in conformance.by_operator().items():
        cells = [str(counts[outcome] or "") for counts in row.values() for outcome in Outcome]
        lines.append(f"| {operator} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
