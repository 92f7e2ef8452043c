# SPDX-License-Identifier: Apache-2.0
"""How exact native code is on whole networks: its errors and ONNX Runtime's against float64.

    python benchmarks/native_accuracy.py                     # the convolutional networks of the zoo
    python benchmarks/native_accuracy.py resnet50 random:3 --images 4

Errors are relative to the largest output (max) and to the root of their mean square (rms), over all
images.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import intarsia
from intarsia import zoo
from intarsia.backends import float64

NETWORKS = (
    *("alexnet", "vgg19", "zfnet512", "inception_v1", "inception_v2", "resnet50", "densenet121"),
    *("squeezenet", "shufflenet", "mobilenet_v2", "detector"),
    *(f"random:{seed}" for seed in range(5)),
)


def main() -> None:
    """Print a table, a row for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--target", "-t", default="llvm")
    options = parser.parse_args()
    print("| network | max | of ONNX Runtime | times | rms | of ONNX Runtime | times |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in options.networks:
        ours, theirs = errors(zoo.build(name), options.images, options.target)
        cells = [f"{a:.2e} | {b:.2e} | {a / b:.2f}" for a, b in zip(ours, theirs, strict=True)]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def errors(
    model: onnx.ModelProto, images: int, target: str
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the errors of a target's outputs, and of ONNX Runtime's."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        onnx.save(model, path)
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        exe = intarsia.compile(model, target, num_threads=1)
        names = [output.name for output in session.get_outputs()]
        rng = np.random.default_rng(0)
        exact, ours, theirs = [], [], []
        for _ in range(images):
            feeds = {
                value.name: rng.standard_normal(value.shape).astype(np.float32)
                for value in session.get_inputs()
            }
            exact += float64.evaluate(model, feeds)
            outputs = exe.run(feeds)
            ours += [outputs[name] for name in names]
            theirs += session.run(names, feeds)
    return _errors(ours, exact), _errors(theirs, exact)


def _errors(computed: list[np.ndarray], exact: list[np.ndarray]) -> tuple[float, float]:
    """Return the largest error, and the root of their mean square, both relative."""
    wanted = np.concatenate([array.reshape(-1) for array in exact])
    off = np.concatenate([array.reshape(-1) for array in computed]) - wanted
    largest = float(np.abs(off).max() / np.abs(wanted).max())
    return largest, float(np.sqrt(np.square(off).sum() / np.square(wanted).sum()))


if __name__ == "__main__":
    main()
