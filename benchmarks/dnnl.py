# SPDX-License-Identifier: Apache-2.0
"""The convolutional zoo on oneDNN against ONNX Runtime and OpenVINO.

    python benchmarks/dnnl.py [MODEL ...] [--rounds 7] [--threads 2] [--out .zoo]
    python benchmarks/dnnl.py resnet50 --log

Each runtime has a process of its own, and they take turns; a ratio is the peer's time through ours.
`--log` prints instead what oneDNN says of each primitive of one run: implementation, layouts, time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import intarsia
from intarsia.backends.dnnl.library import driver
from intarsia.zoo import build
from zoo import measure, print_rows  # the script beside this one

TARGETS = ("dnnl, onnxruntime", "dnnl, llvm")
PEERS = ("onnxruntime", "openvino")
MODELS = (
    *("alexnet", "densenet121", "inception_v1", "inception_v2", "mobilenet_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)


def main() -> int:
    """Print a Markdown table, or oneDNN's log."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--log", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    if not options.log:
        print(
            "| model | target | ours ms | peer | peer ms | ratio | interval | error ours / peer |"
        )
        print("|---|---|---:|---|---:|---:|---|---|")
    for name in options.names or MODELS:
        path = options.out / f"{name}.onnx"
        if not path.exists():
            path.write_bytes(build(name).SerializeToString())
        if options.log:
            log(path, options.threads)
            continue
        for target in TARGETS:
            print_rows(name, measure(path, target, PEERS, options.threads, options.rounds))
    return 0


def log(path: Path, threads: int) -> None:
    """Have oneDNN print the primitives of one run, after one that warms up."""
    exe = intarsia.compile(path, TARGETS[0], num_threads=threads)
    feeds = {spec.name: np.zeros(spec.shape or (), np.float32) for spec in exe.inputs}
    exe.run(feeds)
    driver().call("dnnl_set_verbose", 1)
    exe.run(feeds)
    driver().call("dnnl_set_verbose", 0)


if __name__ == "__main__":
    sys.exit(main())
