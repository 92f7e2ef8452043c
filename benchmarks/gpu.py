# SPDX-License-Identifier: Apache-2.0
"""Networks and products on the first NVIDIA GPU against the peers that are on its machine.

A row without its peer says "not measured". Times are medians of runs that alternate; both sides get
inputs in the host's memory and return outputs there.

    python benchmarks/gpu.py [--runs N] [NAME ...]
"""

import argparse
import importlib.util
import statistics
import sys
from functools import partial
from time import perf_counter

import numpy as np
import onnx
import onnxruntime

import intarsia
from intarsia import zoo
from intarsia.backends.cuda.backend import BACKEND
from intarsia.backends.cuda.cublas.backend import BACKEND as CUBLAS
from intarsia.backends.cuda.cudnn.backend import BACKEND as CUDNN

NETWORKS = ("squeezenet", "mobilenet_v2", "resnet50")
SIDES = (256, 1024, 4096)
"""Of products of square matrices of float32."""
PAIRS = 32
"""Of steps of the plan whose overhead is measured."""
MOST = 1e-3
"""Largest error that agrees, relative to the largest number of an output."""
PEER = "CUDAExecutionProvider"


def product(side):
    """Return a model of one product of a square matrix with a constant one."""
    text = f"""<ir_version: 9, opset_import: ["" : 20]>
        g (float[{side},{side}] x) => (float[{side},{side}] y) {{ y = MatMul(x, w) }}"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(1).standard_normal((side, side)).astype(np.float32) / side
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


def median_seconds(calls, runs):
    """Return the median time of each of some calls, which alternate."""
    times = [[] for _ in calls]
    for _ in range(runs):
        for call, taken in zip(calls, times, strict=True):
            start = perf_counter()
            call()
            taken.append(perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def compare(name, model, runs):
    """Print a row, and return whether the numbers are those of ONNX Runtime on the CPU."""
    content = model.SerializeToString()
    cpu = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    feeds = {
        value.name: rng.standard_normal(value.shape).astype(np.float32)
        for value in cpu.get_inputs()
    }
    names = [output.name for output in cpu.get_outputs()]
    expected = dict(zip(names, cpu.run(names, feeds), strict=True))
    exe = intarsia.compile(model, "cuda, llvm", placement="greedy")
    found = exe.run(feeds)
    error = max(
        float(np.abs(found[key] - array).max() / np.abs(array).max())
        for key, array in expected.items()
    )
    calls = [lambda: exe.run(feeds)]
    if PEER in onnxruntime.get_available_providers():
        session = onnxruntime.InferenceSession(content, providers=[PEER, "CPUExecutionProvider"])
        session.run(names, feeds)
        calls.append(lambda: session.run(names, feeds))
    beside = [one for one in (CUBLAS, CUDNN) if one.detect().targets]
    for backend in beside:
        program = intarsia.compile(model, f"{backend.name}, cuda, llvm", placement="greedy")
        calls.append(partial(program.run, feeds))
    ours, *theirs = median_seconds(calls, runs)
    for backend in reversed(beside):
        last = theirs.pop()
        print(f"{name:14} with {backend.name} {1e3 * last:9.3f} ms  ratio {last / ours:5.2f}")
    peer = f"{1e3 * theirs[0]:9.3f} ms  ratio {theirs[0] / ours:5.2f}" if theirs else "not measured"
    on_gpu = sum(len(r.nodes) for r in exe.placement.regions if r.backend == "cuda")
    print(f"{name:14} {on_gpu:4} nodes  error {error:.1e}  {1e3 * ours:9.3f} ms  {PEER}: {peer}")
    return error <= MOST


def overhead(runs):
    """Print what a step of a plan takes whose kernels do next to nothing; return whether it ran.

    Steps are of two backends in turn, so that each is a region. What the kernels take is in it.
    """
    if not CUBLAS.detect().targets:
        print("plan overhead: not measured: cublas is not here")
        return True
    lines, value = [], "x"
    for number in range(PAIRS):
        lines.append(f"a{number} = MatMul({value}, w) b{number} = Sin(a{number})")
        value = f"b{number}"
    text = f"""<ir_version: 9, opset_import: ["" : 20]>
        g (float[16,16] x) => (float[16,16] {value}) {{ {" ".join(lines)} }}"""
    model = onnx.parser.parse_model(text)
    weight = np.eye(16, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    exe = intarsia.compile(model, "cublas, cuda, llvm", placement="greedy")
    x, y = np.ones((16, 16), np.float32), np.empty((16, 16), np.float32)
    step = exe.bind({"x": x}, {value: y})
    for _ in range(3):  # the second is captured
        step()
    (seconds,) = median_seconds([step], max(runs, 100))
    steps = len(exe.plan.steps)
    print(f"plan of {steps} steps: {1e6 * seconds / steps:.2f} us a step")
    print(*exe.explain().captures, sep="\n")
    return steps > 2 * PAIRS


def main():
    """Say what is here, and compare the networks that are named, or all, and products."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args()
    detection = BACKEND.detect()
    if not detection.targets:
        print(f"no GPU is here: {detection.reason}")
        return 1
    print(*detection.devices, BACKEND.version(), sep="\n")
    for peer in ("torch", "tensorrt", "cupy"):
        print(f"{peer}: {'here' if importlib.util.find_spec(peer) else 'not here: not measured'}")
    print("onnxruntime:", *onnxruntime.get_available_providers())
    models = [(name, zoo.build(name)) for name in asked.names or NETWORKS]
    models += [(f"product {side}", product(side)) for side in SIDES if not asked.names]
    verdicts = [compare(name, model, asked.runs) for name, model in models]
    if not asked.names:
        verdicts.append(overhead(asked.runs))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
