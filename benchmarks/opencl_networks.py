# SPDX-License-Identifier: Apache-2.0
"""Networks of the zoo on an OpenCL device against ONNX Runtime: numbers, times.

PoCL compiles a kernel when it first runs, which takes minutes for the large networks, once.

    python benchmarks/opencl_networks.py [--kind webgpu] [--cpu] [NAME ...]

`--kind` names another kind of device; `--cpu` counts the CPU time of the process.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import onnx
import onnxruntime

import intarsia
from intarsia import zoo

NETWORKS = (
    *("squeezenet", "shufflenet", "mobilenet_v2", "resnet50", "alexnet", "zfnet512"),
    *("inception_v1", "inception_v2", "densenet121", "vgg19"),
)
RUNS = 3
MOST = 1e-3
"""Largest error that agrees, relative to the largest number of an output."""


def seconds(call, clock):
    """Return what a call returns, and how long it took."""
    start = clock()
    result = call()
    return result, clock() - start


def compare(name, folder, kind, clock):
    """Run a network on both, print a row, and return whether they agree."""
    path = Path(folder) / "model.onnx"
    model = zoo.build(name)
    onnx.save(model, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    feeds = {
        value.name: rng.standard_normal(value.shape).astype(np.float32)
        if value.type == "tensor(float)"
        else rng.integers(0, 2, value.shape)  # of tokens, masks and kinds: all have these
        for value in session.get_inputs()
    }
    names = [output.name for output in session.get_outputs()]
    expected = dict(zip(names, session.run(names, feeds), strict=True))
    exe, compiling = seconds(lambda: intarsia.compile(model, f"{kind}, llvm"), clock)
    outputs, first = seconds(lambda: exe.run(feeds), clock)
    run = min(seconds(lambda: exe.run(feeds), clock)[1] for _ in range(RUNS))
    peer = min(seconds(lambda: session.run(names, feeds), clock)[1] for _ in range(RUNS))
    error = max(
        float(np.abs(outputs[key] - array).max() / np.abs(array).max())
        for key, array in expected.items()
    )
    view = exe.explain().devices[-1]
    print(
        f"{name:14} {view.nodes:5} nodes  error {error:.1e}  memory {view.peak_bytes >> 20:5} MiB  "
        f"compile {compiling:6.1f} s  first {first:6.1f} s  run {run:7.3f} s  ort {peer:7.3f} s",
        flush=True,
    )
    return error <= MOST and view.device == f"{kind}:0"


def main():
    """Compare the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--kind", default="opencl")
    parser.add_argument("--cpu", action="store_true")
    asked = parser.parse_args()
    clock = process_time if asked.cpu else perf_counter
    with tempfile.TemporaryDirectory() as folder:
        verdicts = [compare(name, folder, asked.kind, clock) for name in asked.names or NETWORKS]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
