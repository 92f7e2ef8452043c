# SPDX-License-Identifier: Apache-2.0
"""Whole random graphs: one operator alone, chains and diamonds, quantised networks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from intarsia.backends import corrections
from intarsia.testing.graphs import (
    movement,
    numbers,
    pointwise,
    quantised,
    structures,
    sums,
    windows,
)
from intarsia.testing.graphs.draft import Draft, Unfit, info, schema_of, tensor

OPSETS = range(9, 23)

RECIPES = {
    **pointwise.RECIPES,
    **movement.RECIPES,
    **windows.RECIPES,
    **sums.RECIPES,
    **quantised.RECIPES,
    **structures.RECIPES,
}

OPERATORS = tuple(sorted(RECIPES))
"""The operators that are drawn; seed `s` has `OPERATORS[s % len(OPERATORS)]` for its heart."""

LEFT_OUT = MappingProxyType(
    {
        **dict.fromkeys(
            ("Bernoulli", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
            "its numbers are random",
        ),
        "ImageDecoder": "it decodes files",
        "SequenceMap": "a function with a body, which few runtimes expand",
        "TfIdfVectorizer": "its tables are a model of their own",
    }
)
"""Operators that the reference evaluator knows and that are not drawn, with the reason."""

FUSED = (
    *("Conv", "Conv", "Conv", "MatMul", "MatMul", "Gemm", "Relu", "Add", "Mul", "Sub", "Max"),
    *("Sigmoid", "Tanh", "Clip", "BatchNormalization", "MaxPool", "AveragePool", "Concat"),
    *("Transpose", "Reshape", "Slice", "Split", "Softmax", "LayerNormalization", "ReduceMean"),
    *("Div", "Exp", "Erf", "HardSigmoid", "LeakyRelu", "PRelu", "Where", "Pad", "Cast"),
    *("ConvTranspose", "Resize", "Pow", "Sqrt", "ReduceSum", "Unsqueeze", "Squeeze", "Gather"),
    *("ReduceMax", "IsInf", "Equal", "Greater"),
)
"""Operators that backends fuse: what most of a longer graph is made of."""

_ATTEMPTS = 30
_LATEST_IR = 10
_UNFIT = (
    *(Unfit, ValueError, IndexError),  # empty dimensions have no elements to choose from
    *(onnx.checker.ValidationError, onnx.shape_inference.InferenceError),
)


@cache
def generation() -> str:
    """Return a digest of this package and of what nodes are evaluated with while drawing.

    Other sources draw other graphs from equal seeds.
    """
    digest = hashlib.sha256(np.__version__.encode())
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(corrections.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, eq=False)
class RandomGraph:
    """A model and numbers for it.

    Attributes:
        seed: What it was drawn from.
        heart: The operator that it was drawn for.
        model: Valid: it passes the full check of `onnx.checker`.
        feeds: An array per input, by name.
        others: The same inputs with other numbers, equal where a shape or an index depends on them.
        kind: Of numbers, a key of `numbers.KINDS`.
        dtype: That most values have.
    """

    seed: int
    heart: str
    model: onnx.ModelProto
    feeds: Mapping[str, Any]
    others: Mapping[str, Any]
    kind: str
    dtype: str

    @property
    def opset(self) -> int:
        """The version of its operator set."""
        return int(self.model.opset_import[0].version)


def draw_graph(seed: int, operators: tuple[str, ...] = OPERATORS) -> RandomGraph:
    """Return the graph of a seed; equal seeds give equal graphs everywhere.

    Args:
        seed: Any number from 0 on.
        operators: Which to draw from for the heart of graphs.

    Raises:
        RuntimeError: No valid graph came out, in many attempts.
    """
    heart = operators[seed % len(operators)]
    for attempt in range(_ATTEMPTS):
        try:
            return _draw(seed, heart, np.random.default_rng([seed, attempt]))
        except _UNFIT:
            continue
    raise RuntimeError(f"seed {seed}: no valid graph with {heart} in {_ATTEMPTS} attempts")


def _draw(seed: int, heart: str, rng: np.random.Generator) -> RandomGraph:
    opsets = [version for version in OPSETS if schema_of(heart, version) is not None]
    recent = [version for version in opsets if version >= 13] if rng.random() < 0.7 else opsets  # noqa: PLR2004
    kind = str(rng.choice(list(numbers.WEIGHTS), p=list(numbers.WEIGHTS.values())))
    dtype = str(rng.choice(["float32", "float16", "float64", "int32"], p=[0.66, 0.2, 0.1, 0.04]))
    d = Draft(rng, int(rng.choice(recent or opsets)), dtype, kind)
    style = rng.random()
    if style < 0.08:  # noqa: PLR2004
        quantised.network(d)
    count = 0 if style > 0.65 else d.between(0, 3)  # noqa: PLR2004
    _grow(d, count)
    RECIPES[heart](d, heart)
    _grow(d, 0 if style > 0.85 else d.between(0, 4 if count else 2))  # noqa: PLR2004
    model = _finish(d)
    onnx.checker.check_model(model, full_check=True)
    others = {name: d.redraws[name](rng) if name in d.redraws else array for name, array in _fed(d)}
    return RandomGraph(seed, heart, model, dict(_fed(d)), others, kind, dtype)


def _grow(d: Draft, count: int) -> None:
    """Add a few nodes of operators that are often fused; what does not fit is left out."""
    for _ in range(count):
        op_type = d.pick(FUSED)
        nodes, values = len(d.nodes), dict(d.values)
        try:
            RECIPES[op_type](d, op_type)
        except _UNFIT:
            del d.nodes[nodes:]
            d.values = values


def _read(d: Draft) -> set[str]:
    names = {name for node in d.nodes for name in node.input}
    for node in d.nodes:
        for attribute in node.attribute:
            names |= {name for inner in attribute.g.node for name in inner.input}
    return names


def _fed(d: Draft) -> list[tuple[str, Any]]:
    read = _read(d)
    return [(name, array) for name, array in d.feeds.items() if name in read]


def _finish(d: Draft) -> onnx.ModelProto:
    read = _read(d)
    made = [name for node in d.nodes for name in node.output if name]
    outputs = [name for name in made if name not in read or d.chance(0.12)]
    graph = helper.make_graph(
        d.nodes,
        "random",
        [info(name, array) for name, array in _fed(d)],
        [info(name, d.values[name], loose=name in d.loose) for name in outputs],
        [tensor(array, name) for name, array in d.constants.items() if name in read],
    )
    imports = [helper.make_opsetid("", d.opset)]
    ir_version = min(_LATEST_IR, helper.find_min_ir_version_for(imports) + 2)
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
