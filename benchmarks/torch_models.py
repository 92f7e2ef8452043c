# SPDX-License-Identifier: Apache-2.0
"""Models of transformers through `torch.compile`: our backend beside Inductor and PyTorch itself.

    python -P benchmarks/torch_models.py [MODEL ...] [--dynamic] [--no-inductor] [--json FILE]

It needs torch and transformers (`-P`, as transformers would import what else is in this folder);
Inductor needs a C++ compiler. Each model is made of its configuration with two layers, or two
blocks, and seeded random weights. A row says how many graphs PyTorch found and how many of them
are programs of ours, the largest difference to PyTorch's own numbers over the largest number,
the CPU seconds until the first result, and the median CPU milliseconds of a call on one thread,
in turns.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}
VISION = {
    **{name: value for name, value in SMALL.items() if name != "vocab_size"},
    "image_size": 64,
    "patch_size": 8,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SMALL),
    "roberta": ("Roberta", SMALL),
    "gpt2": ("GPT2", {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000}),
    "llama": ("Llama", {**SMALL, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {**SMALL, "num_key_value_heads": 2}),
    "mistral": ("Mistral", {**SMALL, "num_key_value_heads": 2}),
    "vit": ("ViT", VISION),
    "deit": ("DeiT", VISION),
    "resnet": ("ResNet", {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [2, 2]}),
    "convnext": ("ConvNext", {"hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2}),
    "mobilenet_v2": ("MobileNetV2", {"image_size": 64, "depth_multiplier": 0.35}),
}
"""By name, what transformers calls the family, and the fields of its configuration."""


@dataclass
class Row:
    """What became of a model.

    Attributes:
        model: Its name.
        graphs: Graphs that PyTorch found.
        programs: Those of them that are programs of ours.
        difference: To PyTorch's numbers, over the largest of them.
        first: CPU seconds until the first result, by backend.
        call: Median CPU milliseconds of a call, by backend.
        why: The lines that say why PyTorch runs a graph.
    """

    model: str
    graphs: int
    programs: int
    difference: float
    first: dict[str, float]
    call: dict[str, float]
    why: list[str]


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def make(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a model and what it is called with."""
    import torch
    import transformers

    family, fields = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**fields)
    model = getattr(transformers, f"{family}Model")(config).eval()
    if "vocab_size" in fields:  # it reads text
        ids = torch.randint(0, 1000, (2, 32))
        return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return model, {"pixel_values": torch.randn(2, 3, 64, 64)}


def measure(name: str, rounds: int, *, dynamic: bool | None, with_inductor: bool) -> Row:
    """Return what becomes of a model."""
    import torch

    from intarsia.torch import backend

    model, inputs = make(name)
    expected = model(**inputs)[0]
    made: list[backend.CompiledGraph] = []
    count = 0

    def ours(graph: Any, examples: Any) -> Callable[..., Any]:
        nonlocal count
        count += 1
        run = backend.intarsia(graph, examples, options={"num_threads": 1})
        if isinstance(run, backend.CompiledGraph):
            made.append(run)
        return run

    lines = Lines()
    logging.getLogger("intarsia").addHandler(lines)
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    first: dict[str, float] = {}
    difference = 0.0
    for label, kind in (("intarsia", ours), ("inductor", "inductor")):
        if label == "inductor" and not with_inductor:
            continue
        compiled = torch.compile(model, backend=kind, dynamic=dynamic)
        begin = time.process_time()
        result = compiled(**inputs)[0]
        first[label] = time.process_time() - begin
        calls[label] = compiled
        if label == "intarsia":
            difference = ((result - expected).abs().max() / expected.abs().max()).item()
    logging.getLogger("intarsia").removeHandler(lines)
    times: dict[str, list[float]] = {label: [] for label in calls}
    for _ in range(rounds):
        for label, call in calls.items():
            begin = time.process_time()
            call(**inputs)
            times[label].append(1e3 * (time.process_time() - begin))
    programs = sum(bool(one.programs) for one in made)
    call_times = {label: median(some) for label, some in times.items()}
    return Row(name, count, programs, difference, first, call_times, lines.lines)


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--dynamic", action="store_true", help="leave sizes open")
    parser.add_argument("--no-inductor", action="store_true", help="measure no Inductor")
    parser.add_argument("--rounds", type=int, default=30, help="calls of each backend")
    parser.add_argument("--json", type=Path, help="write the rows here, too")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    print("model         graphs programs difference  first s (us/inductor)  ms eager/us/inductor")
    for name in args.models:
        with torch.no_grad():
            row = measure(
                name,
                args.rounds,
                dynamic=True if args.dynamic else None,
                with_inductor=not args.no_inductor,
            )
        torch._dynamo.reset()  # noqa: SLF001 - the only way to begin anew
        rows.append(row)
        nan = float("nan")
        print(
            f"{row.model:13} {row.graphs:6} {row.programs:8} {row.difference:10.1e}  "
            f"{row.first['intarsia']:9.1f} /{row.first.get('inductor', nan):9.1f}  "
            f"{row.call['eager']:7.2f} /{row.call['intarsia']:7.2f} /"
            f"{row.call.get('inductor', nan):7.2f}",
            flush=True,
        )
        for line in row.why:
            print(f"    {line}")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), "utf-8")


if __name__ == "__main__":
    main()
