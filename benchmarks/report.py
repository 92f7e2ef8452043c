# SPDX-License-Identifier: Apache-2.0
"""How large HTML reports are, and how long they take to open in headless Chromium.

*resnet50* is compiled for ONNX Runtime, its pooling for `llvm`; its page may have 2 MB. *blocks* is
a made-up transformer of 2,000 nodes, each of whose blocks reads one mask, first in one region, then
with every Softmax elsewhere. It has to open in two seconds: until the picture stands still, as the
wall clock says, and as the clock of the page's thread does (`busy`), which is what counts on a
machine that does other things beside.

    python benchmarks/report.py [--chromium chromium] [--rounds 5]

It needs node, Chromium and `make report-bundle`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import intarsia
from intarsia.report.page import PageContent, write_page
from intarsia.zoo import build

SIZE_LIMIT = 2_000_000
"""Bytes of the page of ResNet-50."""
SECONDS_LIMIT = 2.0
"""Until a page of 2,000 nodes stands still."""

LOOK = Path(__file__).parents[1] / "web" / "look.mjs"


def blocks(count: int = 126, width: int = 16) -> onnx.ModelProto:
    """Return a transformer's structure: `count` blocks, each of 16 nodes that differ.

    Args:
        count: How many blocks.
        width: Features of each of the four rows.
    """
    nodes: list[onnx.NodeProto] = []
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((width, width), np.float32) / width, "w")

    def add(block: int, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"block{block}/{op.lower()}{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    x = add(0, "Identity", "x")
    for number in range(count):
        make = partial(add, number)
        q, k, v = (make("MatMul", x, "w") for _ in range(3))
        scores = make("MatMul", make("Tanh", q), make("Transpose", make("Tanh", k), perm=[1, 0]))
        weights = make("Softmax", make("Add", make("Mul", scores, "half"), "mask"), axis=-1)
        x = make("Add", x, make("MatMul", make("MatMul", weights, v), "w"))
        up = make("MatMul", x, "w")
        x = make("Add", x, make("MatMul", make("Mul", make("Sigmoid", up), up), "w"))
        x = make("Tanh", x)
    nodes.append(helper.make_node("Identity", [x], ["y"], "last"))
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "blocks",
        [
            helper.make_tensor_value_info("x", floats, [4, width]),
            helper.make_tensor_value_info("mask", floats, [4, 4]),
        ],
        [helper.make_tensor_value_info("y", floats, [4, width])],
        [weight, numpy_helper.from_array(np.float32(0.5), "half")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def open_page(file: Path, node: str, chromium: str, folder: Path) -> dict[str, Any]:
    """Open a page in a browser of its own, and return what `web/look.mjs` saw."""
    with tempfile.TemporaryDirectory(dir=folder) as profile:
        command = [node, str(LOOK), str(file), chromium, profile]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    if seen["errors"] or not seen["hasPicture"]:
        raise SystemExit(f"{file.name} does not open: {seen['errors'] or 'no picture'}")
    return seen


def main() -> int:
    """Write the pages, open each several times, and hold them to their limits."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    node, chromium = shutil.which("node"), shutil.which(arguments.chromium)
    if node is None or chromium is None:
        raise SystemExit("node or Chromium is not here")
    models = {
        "resnet50": (build("resnet50"), ("onnxruntime:MaxPool",)),
        "blocks": (blocks(), ()),
        "blocks, cut": (blocks(), ("onnxruntime:Softmax",)),
    }
    is_good = True
    print("page          nodes  regions    bytes  opens  (busy, layout), medians in seconds")
    with tempfile.TemporaryDirectory(prefix="intarsia-report-") as folder:
        pages = {}
        for name, (model, exclude) in models.items():
            program = intarsia.compile(
                model, target="onnxruntime, llvm", exclude=exclude, num_threads=1
            )
            file = Path(folder) / f"{name}.html"
            if not write_page(PageContent(name, program.explain()), file):
                raise SystemExit("there is no program that draws: make report-bundle")
            pages[name] = (file, program.placement)
        seen: dict[str, list[dict[str, Any]]] = {name: [] for name in pages}
        for _ in range(arguments.rounds):
            for name, (file, _) in pages.items():
                seen[name].append(open_page(file, node, chromium, Path(folder)))
        for name, (file, placement) in pages.items():
            wall = statistics.median(one["openMilliseconds"] / 1e3 for one in seen[name])
            busy = statistics.median(one["busySeconds"] for one in seen[name])
            layout = statistics.median(one["spent"]["layout"] / 1e3 for one in seen[name])
            nbytes = file.stat().st_size
            print(
                f"{name:12} {placement.node_count:6} {len(placement.regions):8} {nbytes:8} "
                f"{wall:6.2f}  ({busy:.2f}, {layout:.2f})"
            )
            is_good &= nbytes <= SIZE_LIMIT or name != "resnet50"
            is_good &= wall <= SECONDS_LIMIT
    print("within the limits" if is_good else "beyond a limit")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
