# SPDX-License-Identifier: Apache-2.0
"""What targets cost: parsing, printing, comparing, importing, resolving.

Each figure is the mean of a block of calls, without garbage collection, as `timeit` does it: the
least and the median over rounds, or for imports over fresh processes. The least is what the work
takes, and what the limits are for; the rest is what the machine did beside.

*Cold* is a text of which no part was seen before, in a process where everything else is loaded;
*cached* the same text again. Where `apache-tvm` is installed, its `Target` does the same work
beside, as far as it has it: it keeps nothing, and takes dictionaries and JSON only.

    python benchmarks/target.py [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

from intarsia.target import CompilationConfig, Target

CPU = "llvm -mcpu=skylake-avx512 -mattr=+avx512f"
COMPOSITE = (
    f"composite -host='{CPU}' -devices=dnnl,'cuda -arch=sm_80','opencl -max_num_threads=128'"
)
JSON: dict[str, Any] = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_num_threads": 512,
    "host": {"kind": "llvm", "mcpu": "skylake-avx512", "mattr": ["+avx512f"]},
}
TEXTS = {"cpu": CPU, "composite of three": COMPOSITE, "json": json.dumps(JSON)}
RESOLVED = 1000

LIMITS = {
    "parse cpu, cached": 2.0,
    "parse composite of three, cached": 2.0,
    "parse json, cached": 2.0,
    "parse cpu, cold": 100.0,
    "parse composite of three, cold": 100.0,
    "parse json, cold": 100.0,
    "import": 50_000.0,
    f"resolve {RESOLVED} targets": 50_000.0,
}
"""Microseconds."""


class Figure(NamedTuple):
    """Microseconds: the least and the median."""

    least: float
    median: float


def microseconds(call: Callable[[], Any], rounds: int, calls: int) -> Figure:
    """Return the mean of a block of calls, over rounds."""
    call()
    means = []
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        means.append(1e6 * (time.perf_counter() - start) / calls)
    gc.enable()
    return Figure(min(means), statistics.median(means))


def unseen(name: str) -> Iterator[str]:
    """Yield spellings of a text of which no part was ever parsed: `model` differs everywhere."""
    for number in itertools.count():
        yield _unseen(name, f"{name[:4]}{number}")


def _unseen(name: str, model: str) -> str:
    if name == "cpu":
        return f"{CPU} -model={model}"
    if name == "json":
        return json.dumps({**JSON, "model": model, "host": {**JSON["host"], "model": model}})
    devices = f"'dnnl -model={model}','cuda -arch=sm_80 -model={model}','opencl -model={model}'"
    return f"composite -host='{CPU} -model={model}' -devices={devices}"


def import_microseconds(module: str, rounds: int) -> Figure:
    """Return the time of an import in fresh processes, byte code compiled before."""
    program = (
        "import time; start = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", program]
    times = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}  # noqa: TID251 - passed on
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(rounds + 1):
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, env=environment
            )
            times.append(float(done.stdout.split()[-1]))
    return Figure(1e6 * min(times[1:]), 1e6 * statistics.median(times[1:]))


def measure(rounds: int) -> dict[str, Figure]:
    """Return our figures."""
    figures: dict[str, Figure] = {}
    for name, text in TEXTS.items():
        figures[f"parse {name}, cached"] = microseconds(
            lambda text=text: Target(text), rounds, 2000
        )
        texts = unseen(name)
        figures[f"parse {name}, cold"] = microseconds(
            lambda texts=texts: Target(next(texts)), rounds, 100
        )
    target, same = Target(CPU), Target(json.dumps(Target(CPU).to_json()))
    assert target == same
    assert target is not same
    figures["str"] = microseconds(lambda: str(target), rounds, 2000)
    figures["hash"] = microseconds(lambda: hash(target), rounds, 2000)
    figures["equality"] = microseconds(lambda: target == same, rounds, 2000)
    figures["import"] = import_microseconds("intarsia.target", rounds)
    numbers = itertools.count()
    figures[f"resolve {RESOLVED} targets"] = microseconds(
        lambda: CompilationConfig.resolve(many(next(numbers))), min(rounds, 5), 1
    )
    return figures


def many(number: int) -> list[str]:
    """Return a list of texts, all different and none seen before; the last can be the host."""
    accelerators = [
        f"opencl:{index} -max_num_threads={index + 1} -model=m{number}"
        for index in range(RESOLVED - 1)
    ]
    return [*accelerators, "llvm -mcpu=skylake-avx512"]


def measure_tvm(rounds: int) -> dict[str, Figure]:
    """Return the same figures of TVM's `Target`, where it can do the work; empty without TVM."""
    try:
        from tvm.target import Target as Peer
    except ImportError:
        return {}
    figures: dict[str, Figure] = {}
    cpu = {"kind": "llvm", "mcpu": "skylake-avx512", "mattr": ["+avx512f"]}
    devices = ["llvm", {"kind": "cuda", "arch": "sm_80"}, "opencl"]
    forms = {
        "cpu": cpu,  # it takes no text with options any more
        "composite of three": {"kind": "composite", "host": cpu, "devices": devices},
        "json": json.dumps(JSON),
    }
    for name, form in forms.items():
        figures[f"parse {name}, cold"] = microseconds(lambda form=form: Peer(form), rounds, 200)
        figures[f"parse {name}, cached"] = figures[f"parse {name}, cold"]  # it has no cache
    target, same = Peer(cpu), Peer(cpu)
    figures["str"] = microseconds(lambda: str(target), rounds, 200)
    figures["hash"] = microseconds(lambda: hash(target), rounds, 200)
    figures["equality"] = microseconds(lambda: target == same, rounds, 200)
    figures["import"] = import_microseconds("tvm.target", min(rounds, 5))
    return figures


def peer_version() -> str | None:
    """Return the version of TVM, or None."""
    try:
        return version("apache-tvm")
    except ModuleNotFoundError:
        return None


def _text(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.least:.2f} ({figure.median:.2f})"


def main() -> int:
    """Measure, print, and return 1 if a figure is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours, peer = measure(options.rounds), measure_tvm(options.rounds)
    tvm = peer_version()
    machine = f"{platform.platform()}, {platform.machine()}, Python {platform.python_version()}"
    worst = [name for name, limit in LIMITS.items() if ours[name].least > limit]
    if options.json:
        figures = {
            who: {name: figure._asdict() for name, figure in rows.items()}
            for who, rows in (("ours", ours), ("tvm", peer))
        }
        print(json.dumps({"machine": machine, "apache-tvm": tvm, **figures}, indent=2))
        return 1 if worst else 0
    print(machine)
    print(f"apache-tvm {tvm}" if tvm else "apache-tvm is not installed: nothing to compare with")
    print(f"{'microseconds, least (median)':34s} {'ours':>22s} {'limit':>7s} {'tvm':>22s}")
    for name, figure in ours.items():
        limit = f"{LIMITS[name]:.0f}" if name in LIMITS else "-"
        print(f"{name:34s} {_text(figure):>22s} {limit:>7s} {_text(peer.get(name)):>22s}")
    print(f"above the limit: {', '.join(worst)}" if worst else "passed: all within the limits")
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
