# SPDX-License-Identifier: Apache-2.0
"""Forty networks of transformers and timm through `torch.compile`: ours beside Inductor.

    python -P benchmarks/torch_models.py [MODEL ...] [--keep FILE] [--dynamic] [--no-inductor]
    python -P benchmarks/torch_models.py --keep FILE --table

It needs torch, torchvision, timm and transformers (`-P`, as transformers would import what else is
in this folder); Inductor needs a C++ compiler. The networks are those of `torch_exports.py`: made
of their configurations, with two layers where that says so, and seeded random weights. One thread
runs each; Inductor's caches are off, and of ours `INTARSIA_CACHE_DIR` should name a new folder. A
row says how many graphs PyTorch itself makes (its backend `eager`), how many each backend got from
it, how many of ours became programs, the
largest difference from PyTorch's own numbers over the largest number, the CPU seconds of the
process and of its compilers until the first result, and a call's CPU time by turns: the median of
Inductor's over ours, with its interval of 95 %. A network that is done is written to
`--keep`, and the same command goes on: it does those anew that lack what is asked for now, so that
numbers can be had first (`--no-inductor --rounds 0`) and times on a quiet machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import resource
import runpy
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from intarsia.measure.racing import paired_ratio

# fmt: off
MODELS = (
    "bert", "distilbert", "roberta", "electra", "albert", "deberta_v2", "mpnet", "modernbert",
    "t5_encoder", "gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "mistral", "gemma2", "phi", "opt",
    "falcon", "whisper_encoder", "clip_text", "clip_vision", "vit", "dinov2", "swin", "segformer",
    "convnextv2", "timm_vit", "timm_swin", "timm_mobilevit", "timm_convnext", "timm_efficientnet",
    "timm_mixer", "timm_levit", "timm_poolformer", "timm_pvt", "timm_hiera", "timm_repvit",
    "timm_coatnet", "timm_mobilenetv4",
)
# fmt: on
EXPORTS = runpy.run_path(str(Path(__file__).with_name("torch_exports.py")))
"""That file; its folder is not where modules are looked for."""
SIZES = {"batch": 2, "seq": 32}
BLOCK_SECONDS = 0.1
"""How long a backend's turn is: calls of networks of two layers take a few milliseconds."""


@dataclass
class Row:
    """What became of a model.

    Attributes:
        model: Its name.
        dynamic: Whether sizes were left open.
        graphs: Graphs that PyTorch made for a backend, by backend; `eager` is PyTorch's own.
        programs: Those of ours that are programs.
        difference: From PyTorch's numbers, over the largest of them, by backend.
        first: CPU seconds until the first result, those of compilers included, by backend.
        calls: CPU seconds of a call in each round, by backend.
        why: The lines that say why PyTorch runs a graph, and what else went wrong.
    """

    model: str
    dynamic: bool
    graphs: dict[str, int] = field(default_factory=dict)
    programs: int = 0
    difference: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    calls: dict[str, list[float]] = field(default_factory=dict)
    why: list[str] = field(default_factory=list)


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def cpu_seconds() -> float:
    """Return what this process and those that it has waited for have used."""
    parts = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def first_line(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"


def tells_something(result: Any) -> bool:
    """Tell whether tensors have numbers that another result can be compared with."""
    parts = [result] if hasattr(result, "shape") else result
    return all(bool(part.isfinite().all()) and bool(part.any()) for part in parts)


def distance(result: Any, expected: Any) -> float:
    """Return the largest difference over the largest number, of a tensor or of several."""
    pairs = [(result, expected)] if hasattr(result, "shape") else zip(result, expected, strict=True)
    return max(float((ours - want).abs().max() / want.abs().max()) for ours, want in pairs)


def measure(name: str, rounds: int, *, dynamic: bool, with_inductor: bool) -> Row:
    """Return what becomes of a model."""
    import torch

    from intarsia.torch import backend

    EXPORTS["let_torchvision_in"]()
    spec = EXPORTS["SPECS"][name]
    row = Row(name, dynamic)
    torch.manual_seed(0)
    try:
        model = spec.make(spec.variants[-1], False)
    except Exception as error:  # whatever those libraries raise
        row.why.append(f"not made: {first_line(error)}")
        return row
    feeds = EXPORTS["make_feeds"](spec.inputs, SIZES, 0)
    inputs = [torch.from_numpy(array) for array in feeds.values()]
    expected = model(*inputs)
    if not tells_something(expected):
        row.why.append("not made: PyTorch's own numbers are zero or not finite")
        return row
    compiled: list[backend.CompiledGraph] = []

    def ours(graph: Any, examples: Any) -> Callable[..., Any]:
        run = backend.intarsia(graph, examples, options={"num_threads": 1})
        if isinstance(run, backend.CompiledGraph):
            compiled.append(run)
        return run

    lines = Lines()
    logging.getLogger("intarsia").addHandler(lines)
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    for label, kind in (("eager", "eager"), ("intarsia", ours), ("inductor", "inductor")):
        if label == "inductor" and not with_inductor:
            continue
        torch._dynamo.reset()  # noqa: SLF001 - the only way to begin anew
        torch._dynamo.utils.counters.clear()  # noqa: SLF001 - only there are graphs counted
        call = torch.compile(model, backend=kind, dynamic=True if dynamic else None)
        begin = cpu_seconds()
        try:
            result = call(*inputs)
        except Exception as error:  # whatever a backend raises is what a row is to say
            row.why.append(f"{label}: {first_line(error)}")
            continue
        row.graphs[label] = torch._dynamo.utils.counters["stats"]["unique_graphs"]  # noqa: SLF001
        if label == "eager":
            continue  # it is there for its graphs; what is timed is the model without it
        row.first[label] = cpu_seconds() - begin
        row.difference[label] = distance(result, expected)
        calls[label] = call
    logging.getLogger("intarsia").removeHandler(lines)
    row.why += lines.lines
    row.programs = sum(bool(each.programs) for each in compiled)
    for _ in range(rounds):
        for label, call in calls.items():
            call(*inputs)  # what another backend left in the caches is not its fault
            begin, count = time.process_time(), 0
            while not count or time.process_time() - begin < BLOCK_SECONDS:
                call(*inputs)
                count += 1
            row.calls.setdefault(label, []).append((time.process_time() - begin) / count)
    return row


def is_done(row: Row, rounds: int, *, with_inductor: bool) -> bool:
    """Tell whether a row has what is asked for, or says why it cannot."""
    missing = {"intarsia"} | ({"inductor"} if with_inductor else set())
    missing -= {line.partition(":")[0] for line in row.why} | row.graphs.keys()
    is_timed = all(len(row.calls.get(label, ())) >= rounds for label in row.graphs)
    return "not made" in str(row.why) or (not missing and is_timed)


def print_table(rows: list[Row]) -> None:
    """Print a row for each model as Markdown, and the geometric means."""
    print(
        "| model | graphs: PyTorch's, ours, Inductor's | programs | difference "
        "| first result, s: ours, Inductor | a call, ms: PyTorch, ours, Inductor "
        "| Inductor over ours |"
    )
    print("|---|---:|---:|---:|---:|---:|---|")
    means: dict[str, list[float]] = {}
    for row in rows:
        both = {"intarsia", "inductor"} <= row.calls.keys()
        ratio = paired_ratio(row.calls["inductor"], row.calls["intarsia"]) if both else None
        if ratio is not None:
            means.setdefault("a call", []).append(ratio.value)
            first = row.first["inductor"] / row.first["intarsia"]
            means.setdefault("the first result", []).append(first)
        times = [
            f"{1e3 * statistics.median(row.calls[label]):.2f}" if label in row.calls else "-"
            for label in ("eager", "intarsia", "inductor")
        ]
        seconds = [
            f"{row.first[label]:.1f}" if label in row.first else "-"
            for label in ("intarsia", "inductor")
        ]
        graphs = [str(row.graphs.get(label, "-")) for label in ("eager", "intarsia", "inductor")]
        off = row.difference.get("intarsia", float("nan"))
        print(
            f"| {row.model} | {', '.join(graphs)} | {row.programs} | {off:.1e} "
            f"| {', '.join(seconds)} | {', '.join(times)} | {ratio or '-'} |"
        )
    for what, ratios in means.items():
        print(
            f"\nInductor over ours, {what}: {statistics.geometric_mean(ratios):.2f} (geometric "
            f"mean of {len(ratios)}), worst {min(ratios):.2f}."
        )
    for row in rows:
        for line in row.why:
            print(f"\n{row.model}: {line}")


def main() -> None:
    """Measure what is not done, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--dynamic", action="store_true", help="leave sizes open")
    parser.add_argument("--no-inductor", action="store_true", help="measure no Inductor")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="lines of JSON; goes on there")
    parser.add_argument("--table", action="store_true", help="only print what is kept")
    options = parser.parse_args()
    import torch
    import torch._inductor.config

    torch.set_num_threads(1)
    # Inductor compiles anew, in this process and in programs that it waits for.
    torch._inductor.config.force_disable_caches = True  # noqa: SLF001 - options of the interface
    torch._inductor.config.compile_threads = 1  # noqa: SLF001
    warnings.simplefilter("ignore")
    rows: dict[tuple[str, bool], Row] = {}
    if options.keep and options.keep.exists():
        kept = [Row(**json.loads(line)) for line in options.keep.read_text().splitlines()]
        rows = {(row.model, row.dynamic): row for row in kept}
    with_inductor = not options.no_inductor
    for name in () if options.table else options.models:
        row = rows.get((name, options.dynamic))
        if row is not None and is_done(row, options.rounds, with_inductor=with_inductor):
            continue
        with torch.no_grad():
            row = measure(
                name, options.rounds, dynamic=options.dynamic, with_inductor=with_inductor
            )
        gc.collect()
        rows[name, options.dynamic] = row
        print(json.dumps({**asdict(row), "calls": {}}), flush=True)
        if options.keep:
            with options.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    print_table(list(rows.values()))


if __name__ == "__main__":
    main()
