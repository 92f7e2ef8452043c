# SPDX-License-Identifier: Apache-2.0
"""Whole random graphs: one operator alone, chains and diamonds, quantised networks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from intarsia.backends import corrections
from intarsia.testing.graphs import free, narrow, numbers, quantised
from intarsia.testing.graphs.draft import Draft, Unfit, info, schema_of, tensor
from intarsia.testing.graphs.growing import RECIPES, UNFIT, grow

OPSETS = range(9, 23)

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

_ATTEMPTS = 60
_NARROW_SHARE = 0.3
_LATEST_IR = 10

_FAMILY_SEEDS = 1_000_000


class GraphFamily(StrEnum):
    """What is drawn from a seed: each family has a million seeds of its own."""

    PLAIN = "plain"
    NARROW = "narrow"
    FREE = "free"

    @classmethod
    def of(cls, seed: int) -> GraphFamily:
        """Return the family of a seed; there is none beyond the last."""
        return list(cls)[min(seed // _FAMILY_SEEDS, len(cls) - 1)]

    @property
    def seeds(self) -> range:
        """The seeds of the family."""
        start = list(GraphFamily).index(self) * _FAMILY_SEEDS
        return range(start, start + _FAMILY_SEEDS)


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
        more: Further numbers, which may have other sizes in dimensions that are free.
    """

    seed: int
    heart: str
    model: onnx.ModelProto
    feeds: Mapping[str, Any]
    others: Mapping[str, Any]
    kind: str
    dtype: str
    more: tuple[Mapping[str, Any], ...] = ()

    @property
    def family(self) -> GraphFamily:
        """What it was drawn as."""
        return GraphFamily.of(self.seed)

    @property
    def draws(self) -> tuple[Mapping[str, Any], ...]:
        """All its numbers."""
        return self.feeds, self.others, *self.more

    @property
    def opset(self) -> int:
        """The version of its operator set."""
        return int(self.model.opset_import[0].version)


def draw_graph(seed: int, operators: tuple[str, ...] = OPERATORS) -> RandomGraph:
    """Return the graph of a seed; equal seeds give equal graphs everywhere.

    Args:
        seed: Any number from 0 on; its family is `GraphFamily.of` it.
        operators: Which to draw from for the heart of graphs.

    Raises:
        RuntimeError: No valid graph came out, in many attempts.
    """
    heart = operators[seed % len(operators)]
    for attempt in range(_ATTEMPTS):
        try:
            return _draw(seed, heart, np.random.default_rng([seed, attempt]))
        except UNFIT:
            continue
    raise RuntimeError(f"seed {seed}: no valid graph with {heart} in {_ATTEMPTS} attempts")


def _draw(seed: int, heart: str, rng: np.random.Generator) -> RandomGraph:
    family = GraphFamily.of(seed)
    if family is GraphFamily.PLAIN:
        return _plain(seed, heart, rng)[0]
    if family is GraphFamily.NARROW:
        return _narrow(seed, rng)[0]
    graph, draft = _narrow(seed, rng) if rng.random() < _NARROW_SHARE else _plain(seed, heart, rng)
    freed = free.free(draft, graph.model)
    model, sizes = freed
    feeds = [dict(graph.feeds), *(free.feeds_of(draft, graph.feeds, each) for each in sizes)]
    return replace(graph, model=model, feeds=feeds[0], others=feeds[1], more=tuple(feeds[2:]))


def _plain(seed: int, heart: str, rng: np.random.Generator) -> tuple[RandomGraph, Draft]:
    opsets = [version for version in OPSETS if schema_of(heart, version) is not None]
    recent = [version for version in opsets if version >= 13] if rng.random() < 0.7 else opsets  # noqa: PLR2004
    kind = str(rng.choice(list(numbers.WEIGHTS), p=list(numbers.WEIGHTS.values())))
    dtype = str(rng.choice(["float32", "float16", "float64", "int32"], p=[0.66, 0.2, 0.1, 0.04]))
    d = Draft(rng, int(rng.choice(recent or opsets)), dtype, kind)
    style = rng.random()
    if style < 0.08:  # noqa: PLR2004
        quantised.network(d)
    count = 0 if style > 0.65 else d.between(0, 3)  # noqa: PLR2004
    grow(d, FUSED, count)
    RECIPES[heart](d, heart)
    grow(d, FUSED, 0 if style > 0.85 else d.between(0, 4 if count else 2))  # noqa: PLR2004
    return _whole(d, seed, heart), d


def _narrow(seed: int, rng: np.random.Generator) -> tuple[RandomGraph, Draft]:
    forms = list(narrow.FORMS)
    form = forms[seed % len(forms)]
    d = Draft(rng, int(rng.integers(13, OPSETS[-1] + 1)))
    if form == "blocks":
        d.opset = max(d.opset, narrow.BLOCKS)
    narrow.FORMS[form](d)
    if not d.nodes:
        raise Unfit("nothing fits")
    _widen(d)
    return _whole(d, seed, form), d


def _widen(d: Draft) -> None:
    """Cast to float32 what is not read and of a type that no runtime gives back."""
    read = _read(d)
    for name in [name for node in d.nodes for name in node.output if name and name not in read]:
        if d.values[name].dtype == "bfloat16":
            d.op("Cast", [name], to=onnx.TensorProto.FLOAT)


def _whole(d: Draft, seed: int, heart: str) -> RandomGraph:
    model = _finish(d)
    onnx.checker.check_model(model, full_check=True)
    fed = dict(_fed(d))
    others = {n: d.redraws[n](d.rng) if n in d.redraws else array for n, array in fed.items()}
    return RandomGraph(seed, heart, model, fed, others, d.kind, d.dtype)


def _read(d: Draft) -> set[str]:
    names = {name for node in d.nodes for name in node.input}
    for node in d.nodes:
        for attribute in node.attribute:
            names |= {name for inner in attribute.g.node for name in inner.input}
    return names


def _fed(d: Draft) -> list[tuple[str, Any]]:
    read = _read(d)
    return [(name, array) for name, array in d.feeds.items() if name in read]


def _is_narrower(value: Any) -> bool:
    """Tell whether numpy lacks the type of a value, so that no output may be of it."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "V"


def _finish(d: Draft) -> onnx.ModelProto:
    read = _read(d)
    made = [name for node in d.nodes for name in node.output if name]
    outputs = [name for name in made if name not in read or d.chance(0.12)]
    outputs = [name for name in outputs if not _is_narrower(d.values[name])]
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
