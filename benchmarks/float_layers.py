# SPDX-License-Identifier: Apache-2.0
"""Layers of quantised networks in integers and in float32: what `intarsia tune` measures of them.

    python benchmarks/float_layers.py [NETWORK ...] [-t TARGET]

Networks of the zoo, quantised as in `quantised.py`. A row for each shape of a layer, with the Q and
DQ nodes around it: how often it is there, what it takes in integers, and how many times as fast
float32 is (median of the rounds, with the interval for 99 per cent; without one, the first seven
rounds showed no gain). Then the whole network as was measured, and with all of its layers in
float32, against the same with all in integers. CPU time of one thread, by turns; nothing is kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from quantised import quantise

from intarsia.backends.registry import Backends, load_backends
from intarsia.backends.values import LAYERS
from intarsia.compiler import read_setting
from intarsia.place.request import Request
from intarsia.settings import Settings
from intarsia.tuning.kernels.layers import RegionContest
from intarsia.tuning.kernels.tuner import compare
from intarsia.tuning.kernels.tuning import KernelResult, tune_model_layers

NETWORKS = ("resnet18", "mobilenet_v2", "detector")
_WAYS: Mapping[str, Mapping[str, str]] = {"as measured": {}, "float32": {LAYERS: "float32"}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows of each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("-t", "--target", default="llvm")
    options = parser.parse_args(arguments)
    for name in options.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            _, quantised, _ = quantise(name, Path(folder))
            schedules = str(Path(folder) / "schedules")
            settings = replace(Settings.from_environment(), schedules=schedules)
            measure(name, quantised, options.target, load_backends(settings))
    return 0


def measure(name: str, model: Path, target: str, backends: Backends) -> None:
    """Print the rows of one network."""
    setting = read_setting(Request(model=model, target=target, num_threads=1, backends=backends))
    print("| network | layer | there | us | float32 | taken |")
    print("|---|---|---:|---:|---|---|")
    results = tune_model_layers(setting, tell=lambda moment: None)
    for one in results:
        entry = one.entry
        if entry is not None:
            has_rounds = entry.low < entry.high
            ratio = f"{entry.ratio:.2f} [{entry.low:.2f}, {entry.high:.2f}]" if has_rounds else "-"
            shown = f"{one.calls} | {entry.microseconds:.0f} | {ratio} | {_taken(one)}"
            print(f"| {name} | {one.kernel} | {shown} |", flush=True)
    capability = setting.capabilities[0]
    for way, options in _WAYS.items():
        if not options and not any(_taken(one) == "float32" for one in results):
            print(f"{name}: no layer is faster in float32")
            continue
        ways = ({LAYERS: "integers"}, options)
        ratio = compare(partial(RegionContest, setting.graph.whole, capability, ways), Random(1))
        print(f"{name}: {way} {ratio} times as fast as integers", flush=True)


def _taken(result: KernelResult) -> str:
    return "float32" if result.entry is not None and result.entry.choice else "integers"


if __name__ == "__main__":
    sys.exit(main())
