# SPDX-License-Identifier: Apache-2.0
"""Injected faults: does `intarsia verify` find each, how fast, and how small is what it writes?

A fault is put into a random region of a network of BERT's size: the region is pinned to `fake`,
which computes as the reference does but for the fault; the rest runs on ONNX Runtime. It counts as
located if `verify` names that region and the right symptom, and the smallest model has the operator
at fault. Results add up in a file: a run goes on where the last one stopped.

Faults one after the other use the same two processes (`VerifyWorkers`) until one dies, so that
libraries are imported once; all else is done for each fault as `intarsia verify` does it: reading
and compiling the network, monitored runs, the reference of each region, each small model. A leak
has fresh processes, as memory that others have left would hide it. `--alone` gives each fault its
own, as a user's command has.

    python benchmarks/faults.py RESULTS.jsonl --faults 200 [--network bert_base] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from os import sysconf
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np
import onnx
from rich.console import Console

from intarsia.cli.output import show, show_json
from intarsia.compiler import read_setting
from intarsia.errors import IntarsiaError
from intarsia.graph.graph import Graph, Node
from intarsia.place.request import Request
from intarsia.report.tables import make_table
from intarsia.verifying.values import Symptom, Verification
from intarsia.verifying.verify import VerifyOptions, VerifyWorkers, verify
from intarsia.zoo.catalogue import build

KINDS = {
    "wrong": Symptom.WRONG,
    "nan": Symptom.NAN,
    "layout": Symptom.WRONG,
    "slow": Symptom.SLOW,
    "segfault": Symptom.CRASHED,
    "hang": Symptom.HUNG,
    "leak": Symptom.LEAK,
    "later-wrong": Symptom.WRONG,
    "later-nan": Symptom.NAN,
}
"""By fault of `fake`, how it shows; those that are later come in the third run alone."""

LONGEST = 40
"""Nodes of a region at fault, at most."""

BAR_SECONDS, BAR_NODES = 60.0, 10

LIMIT_SECONDS = 20.0
"""What takes longer hangs: a region of the network takes less than a second on an idle machine."""

_LEAST_ELEMENTS = 64


@dataclass(frozen=True)
class Injected:
    """A fault, and what became of it.

    Attributes:
        number: Seeds it.
        network: In which it is.
        kind: Of `fake`.
        operators: Which operators have it: one, or two in a row.
        nodes: How many nodes the region has.
        located: Whether `verify` named the region and the symptom.
        small: Nodes of the smallest model; 0 if there is none.
        has_operators: Whether they are in the smallest model.
        seconds: Wall-clock time of `verify`.
        cpu_seconds: Of this process and its children.
        text: What it said.
        alone: Whether it had processes of its own.
    """

    number: int
    network: str
    kind: str
    operators: str
    nodes: int
    located: bool
    small: int
    has_operators: bool
    seconds: float
    cpu_seconds: float
    text: str
    alone: bool = True

    @property
    def is_found(self) -> bool:
        """Whether it was located, and what was written shows it."""
        return self.located and self.has_operators and 0 < self.small <= BAR_NODES


def choose(graph: Graph, number: int) -> tuple[str, str, list[Node]]:
    """Return a kind of fault, its operators, and the nodes of a region that has them."""
    rng = np.random.default_rng(number)
    kind = list(KINDS)[number % len(KINDS)]
    while True:
        length = int(rng.integers(1, LONGEST + 1))
        start = int(rng.integers(0, len(graph.nodes) - length))
        nodes = list(graph.nodes[start : start + length])
        at = int(rng.integers(0, length))
        pair = nodes[at : at + 2] if rng.random() < 1 / 3 else nodes[at : at + 1]
        if all(is_plain(graph, node) for node in nodes):
            return kind, "+".join(node.op_type for node in pair), nodes


def is_plain(graph: Graph, node: Node) -> bool:
    """Tell whether a node makes one float tensor in which a fault is seen."""
    if any(value < 0 for value in node.outputs) or len(node.outputs) != 1:
        return False
    value = graph.values[node.outputs[0]]
    shape = value.shape or ()
    has_rows = sum(extent > 1 for extent in shape) > 1
    return value.dtype == "float32" and has_rows and int(np.prod(shape)) >= _LEAST_ELEMENTS


def inject(
    file: Path,
    network: str,
    graph: Graph,
    number: int,
    *,
    threads: int = 1,
    limit: float = LIMIT_SECONDS,
    workers: VerifyWorkers | None = None,
) -> Injected:
    """Inject one fault and look for it.

    Args:
        file: The network.
        network: Its name.
        graph: It, as it is placed.
        number: Seeds the fault.
        threads: Threads of one run.
        limit: Seconds that a call of a region may take.
        workers: Processes that were used before; None starts fresh ones.
    """
    kind, operators, nodes = choose(graph, number)
    target = f"fake -fault={kind} -fault-ops={operators}"
    request = Request(
        model=file,
        target=f"{target}, onnxruntime",
        pins={node.name: target for node in nodes},
        placement="manual",
        num_threads=threads,
        cache=False,
        probe=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        options = VerifyOptions(
            run_seconds=limit, side_seconds=5.0, reduce_seconds=40.0, out=Path(folder)
        )
        start, cpu = monotonic(), cpu_seconds(workers)
        try:
            found = verify(file, request, options=options, workers=workers)
            text = str(found.faults[0]) if found.faults else f"nothing; {found.note}"
        except IntarsiaError as error:
            found, text = Verification(str(file), 0), f"{type(error).__name__}: {error.message}"
        spent, cpu = monotonic() - start, cpu_seconds(workers) - cpu
    small, wanted = found.smallest, operators.split("+")
    return Injected(
        number,
        network,
        kind,
        operators,
        len(nodes),
        is_located(found, kind, [node.name for node in nodes]),
        0 if small is None else small.nodes,
        small is not None and set(wanted) <= set(small.operators),
        spent,
        cpu,
        f"{text} {found.note}".strip()[:300],
        workers is None,
    )


def is_located(found: Verification, kind: str, names: list[str]) -> bool:
    """Tell whether the first fault that was found is the one that was injected."""
    if not found.faults:
        return False
    first = found.faults[0]
    is_there = first.target.startswith("fake") and set(first.nodes) <= set(names)
    is_late = first.run == 2 if kind.startswith("later") else True
    return is_there and is_late and first.fault.symptom == KINDS[kind]


def cpu_seconds(workers: VerifyWorkers | None) -> float:
    """Return the CPU time of this process, of children that have ended, and of workers alive."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    alive = () if workers is None else (workers.watching.pid, workers.trying.pid)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        / sysconf("SC_CLK_TCK")
        for pid in alive
        if pid is not None
    )


def read(results: Path) -> list[Injected]:
    """Return what is known already."""
    if not results.exists():
        return []
    return [Injected(**json.loads(line)) for line in results.read_text("utf-8").splitlines()]


def report(rows: list[Injected], *, as_json: bool) -> None:
    """Print what became of all faults."""
    if as_json:
        show_json([asdict(row) for row in rows])
        return
    kinds = Counter(row.kind for row in rows)
    table = []
    for kind in (kind for kind in KINDS if kinds[kind]):
        own = [row for row in rows if row.kind == kind]
        table.append(
            (
                kind,
                len(own),
                sum(row.located for row in own),
                sum(row.is_found for row in own),
                max(row.small for row in own),
                f"{median(row.cpu_seconds for row in own):.1f}",
                f"{max(row.cpu_seconds for row in own):.1f}",
                f"{max(row.seconds for row in own):.1f}",
            )
        )
    columns = (
        *("fault", "injected", "located", f"and shown by <= {BAR_NODES} nodes", "most nodes"),
        *("CPU s, median", "CPU s, most", "wall s, most"),
    )
    show(make_table(f"{len(rows)} faults", columns, table))
    quick = sum(row.seconds < BAR_SECONDS for row in rows)
    found = sum(row.is_found for row in rows)
    show(f"{found} of {len(rows)} located and shown; {quick} within {BAR_SECONDS:g} s by the clock")
    for row in rows:
        if not row.is_found:
            show(f"not found: {row.number} {row.network} {row.kind} {row.operators}: {row.text}")


def main() -> None:
    """Inject faults, and print what is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="where results are kept")
    parser.add_argument("--faults", type=int, default=200, help="how many in all")
    parser.add_argument("--network", default="bert_base")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        help="seconds that a call of a region may take",
    )
    parser.add_argument("--alone", action="store_true", help="processes of its own for each fault")
    parser.add_argument("--again", action="store_true", help="those that were not found")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = read(options.results)
    if options.again:
        rows = [row for row in rows if row.is_found]
        options.results.write_text(
            "".join(f"{json.dumps(asdict(row))}\n" for row in rows), encoding="utf-8"
        )
    done = {row.number for row in rows}
    todo = [number for number in range(options.faults) if number not in done]
    console = Console(stderr=True)
    if todo:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "network.onnx"
            onnx.save(build(options.network), file)
            graph = read_setting(Request(model=file, target="onnxruntime")).graph
            workers = VerifyWorkers(options.threads)
            with contextlib.closing(workers):
                for number in todo:
                    if choose(graph, number)[0] == "leak":
                        workers.close()
                    row = inject(
                        file,
                        options.network,
                        graph,
                        number,
                        threads=options.threads,
                        limit=options.limit,
                        workers=None if options.alone else workers,
                    )
                    rows.append(row)
                    with options.results.open("a", encoding="utf-8") as opened:
                        opened.write(f"{json.dumps(asdict(row))}\n")
                    state = "found" if row.is_found else "NOT FOUND"
                    console.print(
                        f"{number} {row.kind} {row.operators}: {state}, {row.small} nodes, "
                        f"{row.seconds:.1f} s by the clock, {row.cpu_seconds:.1f} s of CPU",
                        markup=False,
                    )
    report(rows, as_json=options.json)
    sys.exit(not all(row.is_found for row in rows))


if __name__ == "__main__":
    main()
