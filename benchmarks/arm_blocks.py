# SPDX-License-Identifier: Apache-2.0
"""How many instructions products take by Arm's instructions for blocks of two by two sums.

    python benchmarks/arm_blocks.py [--cpu neoverse-v1] [--only TEXT]

Products and convolutions of bytes (`smmla`, `usmmla`, `ummla`) and of bfloat16 (`bfmmla`) as
objects of `llvm` under `qemu-system-aarch64 -icount shift=0` with `-cpu max`, which takes a
nanosecond for each instruction: the second run is counted. Beside them are the same by dot products
(`sdot`, `usdot`, `udot`, `bfdot`) of the same CPU, for which lowering is told that it has no
blocks. These are instructions, no seconds: how many of either start in a cycle is up to the core.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.estimates import run_on_virt

from intarsia.codegen.unit import CpuModel

_BFLOAT16 = " -precision=bf16"


@dataclass(frozen=True)
class Case:
    """A layer: dtypes of its input and weights, shapes of input, weights and output."""

    left: str
    right: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def operator(self) -> str:
        """What it computes."""
        kind = "Conv" if len(self.x) > 2 else "MatMul"
        pads = f"<pads = {[self.w[-1] // 2] * 4}>" if kind == "Conv" else ""
        return f"{kind}{'' if self.left == 'float' else 'Integer'}{pads}(x, w)"

    @property
    def name(self) -> str:
        """What it is called."""
        kinds = "bfloat16" if self.left == "float" else f"{self.left} by {self.right}"
        shapes = " by ".join("x".join(map(str, shape)) for shape in (self.x, self.w))
        return f"{kinds:15} {shapes}"

    def model(self) -> onnx.ModelProto:
        """Return it as a model."""
        result = "float" if self.left == "float" else "int32"
        x, y = (",".join(map(str, shape)) for shape in (self.x, self.y))
        model = onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["" : 17]> layer ({self.left}[{x}] x) => '
            f"({result}[{y}] y) {{ y = {self.operator} }}"
        )
        drawn = np.random.default_rng(0)
        if self.left == "float":
            weights = drawn.standard_normal(self.w, np.float32)
        else:
            limits = np.iinfo(self.right)
            weights = drawn.integers(limits.min, limits.max, self.w, self.right, endpoint=True)
        model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
        onnx.checker.check_model(model)
        return model


CASES = [
    *(
        Case(*dtypes, (m, k), (k, n), (m, n))
        for dtypes in (("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("float", "float"))
        for m, k, n in ((1, 768, 768), (49, 512, 512), (128, 768, 768), (128, 768, 3072))
    ),
    *(
        Case("uint8", "int8", (1, c, h, h), (n, c, k, k), (1, n, h, h))
        for c, h, n, k in ((64, 14, 64, 3), (256, 14, 64, 1), (128, 7, 512, 1))
    ),
]


def count(model: onnx.ModelProto, target: str, folder: Path) -> int:
    """Return the instructions of one run of a model."""
    path = folder / "layer.onnx"
    onnx.save(model, path)
    said = run_on_virt(path, f"llvm -mtriple=aarch64-none-elf {target}", "max", folder)
    found = re.search(r"instructions: +(\d+)", said)
    assert found is not None, said
    return int(found[1])


def main() -> None:
    """Print the instructions of each layer, by blocks and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", default="neoverse-v1", help="with i8mm and bf16")
    parser.add_argument("--only", default="", help="layers whose names have this in them")
    options = parser.parse_args()
    print(f"{'layer':52}{'dots':>12}{'blocks':>12}{'part':>7}")
    for case in CASES:
        if options.only not in case.name:
            continue
        target = f"-mcpu={options.cpu}{_BFLOAT16 if case.left == 'float' else ''}"
        counted = []
        with tempfile.TemporaryDirectory() as folder:
            without: Callable[..., bool] = lambda *_: False  # noqa: E731
            with mock.patch.object(CpuModel, "has_blocked_dots", without):
                counted.append(count(case.model(), target, Path(folder)))
            counted.append(count(case.model(), target, Path(folder)))
        dots, blocks = counted
        print(f"{case.name:52}{dots:12}{blocks:12}{blocks / dots:7.2f}", flush=True)


if __name__ == "__main__":
    main()
