# SPDX-License-Identifier: Apache-2.0
"""What serving costs on loopback: a public client against a bare loop over the same program.

One process serves packages; another asks with `tritonclient`, tensors as bytes. Three parts:

*Latency*: one client asks, one request after another: p50 and p99 in milliseconds, over HTTP and
gRPC, beside those of the bare loop `program.run(feeds)` in a process of its own. The three take
turns in blocks, in a new order each round; the figure is the difference of the medians, what the
way over the socket adds, and the ratio.

*Throughput*: 1, 4 and 16 clients at once: requests in a second over runs in a second of the bare
loop, with requests run alone and, of the network with a free batch, together (`--batch`). The
server's count of runs says how many requests a run had.

*Idle*: CPU seconds of the server in a second of wall time while nobody asks, with several models
loaded that have all been run, from `/proc/PID/stat`; the limit is `IDLE_LIMIT`.

CPU time of the server per request is printed too: on a busy machine it says more than wall time.

    python benchmarks/serving.py [--network squeezenet] [-t TARGET] [--threads N] [--rounds 7]
        [--seconds 2] [--part latency|throughput|idle] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

# A process for each client imports this module: what compiles is imported where it is used.

IDLE_LIMIT = 0.01
"""Most CPU seconds of an idle server in a second."""
CLIENTS = (1, 4, 16)
PARTS = ("latency", "throughput", "idle")
BATCH = 8
TICKS = os.sysconf("SC_CLK_TCK")


def free_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with its first dimension free, of inputs and outputs."""
    import onnx

    freed = onnx.ModelProto()
    freed.CopyFrom(model)
    del freed.graph.value_info[:]
    for value in (*freed.graph.input, *freed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return freed


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def serving(*arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield where a server listens."""
    command = [sys.executable, "-m", "intarsia", "serve", *map(str, arguments), "--json"]
    ports = ["--port", "0", "--grpc-port", "0", "--queue", "1024"]
    with subprocess.Popen(
        [*command, *ports], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def make_asker(
    protocol: str, told: dict[str, Any], name: str, feeds: dict[str, np.ndarray]
) -> Callable[[], Any]:
    """Return what sends one request and waits for its answer."""
    if protocol == "http":
        import tritonclient.http as module
    else:
        import tritonclient.grpc as module
    client = module.InferenceServerClient(f"127.0.0.1:{told[f'{protocol}_port']}")
    inputs = []
    for key, array in feeds.items():
        datatype = {"float32": "FP32", "int64": "INT64"}[array.dtype.name]
        inputs.append(module.InferInput(key, array.shape, datatype))
        inputs[-1].set_data_from_numpy(array)
    return lambda: client.infer(name, inputs)


def _time_block(ask: Callable[[], Any], seconds: float) -> list[float]:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return times


def _answer_blocks(pipe: Any, make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
    """Be a process that times a block whenever it is told to."""
    ask = make(*arguments)
    ask()
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        pipe.send(_time_block(ask, seconds))


def _make_loop(package: Path, threads: int, feeds: dict[str, np.ndarray]) -> Callable[[], Any]:
    import intarsia

    program = intarsia.load(package, num_threads=threads)
    return lambda: program.run(feeds)


class Subject:
    """A process that asks, or that runs a bare loop."""

    def __init__(self, make: Callable[..., Callable[[], Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_answer_blocks, args=(there, make, *arguments))
        self._process.start()
        self._pipe.recv()

    def start_block(self, seconds: float) -> None:
        """Have a block timed."""
        self._pipe.send(seconds)

    def times(self) -> list[float]:
        """Return the times of the block."""
        found: list[float] = self._pipe.recv()
        return found

    def close(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()


def percentile(times: list[float], share: float) -> float:
    """Return a percentile, in milliseconds."""
    return 1e3 * float(np.percentile(times, share))


def latency(told: dict[str, Any], name: str, package: Path, feeds: Any, options: Any) -> Any:
    """Time one client of either protocol and the bare loop, in turns."""
    subjects = {
        "loop": Subject(_make_loop, package, options.threads, feeds),
        "http": Subject(make_asker, "http", told, name, feeds),
        "grpc": Subject(make_asker, "grpc", told, name, feeds),
    }
    times: dict[str, list[float]] = {key: [] for key in subjects}
    medians: dict[str, list[float]] = {key: [] for key in subjects}
    cpu: dict[str, float] = dict.fromkeys(subjects, 0.0)
    for number in range(options.rounds):
        order = random.Random(number).sample(sorted(subjects), len(subjects))
        for key in order:
            before = cpu_seconds(told["pid"])
            subjects[key].start_block(options.seconds / len(subjects))
            block = subjects[key].times()
            cpu[key] += cpu_seconds(told["pid"]) - before
            times[key] += block
            medians[key].append(statistics.median(block))
    rows = {}
    for key, subject in subjects.items():
        subject.close()
        ratios = [one / bare for one, bare in zip(medians[key], medians["loop"], strict=True)]
        rows[key] = {
            "p50_ms": percentile(times[key], 50),
            "p99_ms": percentile(times[key], 99),
            "over_loop": statistics.median(ratios),
            "adds_ms": percentile(times[key], 50) - percentile(times["loop"], 50),
            "server_cpu_ms": 1e3 * cpu[key] / len(times[key]) if key != "loop" else None,
        }
        cells = ", ".join(f"{k} {v:.3g}" for k, v in rows[key].items() if v is not None)
        print(f"latency {key:5}: {cells}", flush=True)
    return rows


def count_runs(told: dict[str, Any], name: str) -> float:
    """Return how often a model has run."""
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{told['http_port']}/metrics") as answer:
        text = answer.read().decode()
    wanted = f'intarsia_run_seconds_count{{model="{name}"}} '
    return sum(float(line.removeprefix(wanted)) for line in text.splitlines() if wanted in line)


def throughput(told: dict[str, Any], name: str, package: Path, feeds: Any, options: Any) -> Any:
    """Count what several clients get in some seconds, beside the bare loop."""
    loop = Subject(_make_loop, package, options.threads, feeds)
    rows = {}
    for protocol in ("http", "grpc"):
        for count in CLIENTS:
            clients = [Subject(make_asker, protocol, told, name, feeds) for _ in range(count)]
            ratios, rates, runs, asked = [], [], 0.0, 0
            for _ in range(options.rounds):
                loop.start_block(options.seconds / 2)
                bare = loop.times()
                before, start = count_runs(told, name), time.perf_counter()
                for client in clients:
                    client.start_block(options.seconds / 2)
                done = sum(len(client.times()) for client in clients)
                rate = done / (time.perf_counter() - start)
                runs, asked = runs + count_runs(told, name) - before, asked + done
                rates.append(rate)
                ratios.append(rate * sum(bare) / len(bare))
            for client in clients:
                client.close()
            row = {
                "per_second": statistics.median(rates),
                "over_loop": statistics.median(ratios),
                "requests_per_run": asked / runs,
            }
            rows[f"{protocol} {count}"] = row
            cells = ", ".join(f"{k} {v:.3g}" for k, v in row.items())
            print(f"throughput {name} {protocol} {count:2} clients: {cells}", flush=True)
    loop.close()
    return rows


def idle(told: dict[str, Any], names: list[str], feeds: Any, seconds: float) -> float:
    """Return CPU seconds in a second while nobody asks, after every model has run."""
    for name in names:
        make_asker("http", told, name, feeds)()
    time.sleep(3)
    before, start = cpu_seconds(told["pid"]), time.perf_counter()
    time.sleep(seconds)
    used = (cpu_seconds(told["pid"]) - before) / (time.perf_counter() - start)
    verdict = "ok" if used <= IDLE_LIMIT else "too much"
    print(f"idle, {len(names)} models: {used:.4f} CPU seconds in a second ({verdict})", flush=True)
    return used


def main() -> int:
    """Measure what was asked for."""
    import intarsia
    from intarsia.cpus import available_cpus
    from intarsia.zoo import build

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="squeezenet")
    parser.add_argument("-t", "--target", default="llvm, onnxruntime")
    parser.add_argument("--threads", type=int, default=available_cpus())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = options.part or PARTS
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build(options.network)
        fixed, free = folder / "fixed.intarsia", folder / "free.intarsia"
        program = intarsia.compile(model, options.target, num_threads=options.threads)
        program.save(fixed)
        feeds = dict(program.sample_feeds())
        intarsia.compile(free_batch(model), options.target, num_threads=options.threads).save(free)
        common = ("--threads", options.threads)
        files = (fixed, free, f"fixed2={fixed}", f"free2={free}")
        with serving(*files, *common) as told:
            if "latency" in parts:
                found["latency"] = latency(told, "fixed", fixed, feeds, options)
            if "throughput" in parts:
                found["throughput"] = throughput(told, "fixed", fixed, feeds, options)
            if "idle" in parts:
                names = ["fixed", "free", "fixed2", "free2"]
                found["idle"] = idle(told, names, feeds, 5 * options.seconds)
        if "throughput" in parts:
            with serving(free, *common, "--batch", BATCH, "--wait", "2") as told:
                found["batched"] = throughput(told, "free", fixed, feeds, options)
    if options.json:
        print(json.dumps(found))
    return 1 if found.get("idle", 0.0) > IDLE_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
