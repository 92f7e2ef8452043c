# SPDX-License-Identifier: Apache-2.0
"""Attention by itself: `-precision=bf16` against our float32.

    python benchmarks/bf16_attention.py [--rounds 25]

Heads lie side by side, as in transformers. Errors, clock and ratios are those of
`bf16_convolutions.py`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import onnx
from bf16_convolutions import compared
from onnx import TensorProto, helper

SHAPES: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    # heads, queries, keys, entries of a head, attributes
    "MiniLM: 12 heads of 32, 128 tokens": (12, 128, 128, 32, {}),
    "BERT: 12 heads of 64, 128 tokens": (12, 128, 128, 64, {}),
    "BERT: 12 heads of 64, 384 tokens": (12, 384, 384, 64, {}),
    "ViT: 12 heads of 64, 197 patches": (12, 197, 197, 64, {}),
    "a prompt: 8 heads of 128, 512 tokens, causal": (8, 512, 512, 128, {"is_causal": 1}),
    "Whisper: 8 heads of 64, 1500 frames": (8, 1500, 1500, 64, {}),
}


def attention(heads: int, queries: int, keys: int, size: int, more: dict[str, Any]) -> Any:
    """Return a network of one attention."""
    shapes = {"q": (1, queries, heads * size), "k": (1, keys, heads * size)}
    shapes["v"] = shapes["k"]
    node = helper.make_node(
        "Attention", list("qkv"), ["y"], q_num_heads=heads, kv_num_heads=heads, **more
    )
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["q"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def main() -> None:
    """Print a Markdown table, a row for each shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    print("| attention | f32 us (error) | bf16 us (error) | times as fast | |")
    print("|---|---:|---:|---|---|")
    for name, sizes in SHAPES.items():
        model, rng = attention(*sizes), np.random.default_rng(0)
        feeds = {
            item.name: rng.standard_normal(
                [dim.dim_value for dim in item.type.tensor_type.shape.dim], np.float32
            )
            for item in model.graph.input
        }
        print(f"| {name} | {compared(model, feeds, options.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
