# SPDX-License-Identifier: Apache-2.0
"""The smallest part of a graph that still disagrees, as a model with its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from intarsia.testing.differential.judging import GraphFinding, GraphVerdict, Judged
from intarsia.testing.graphs import draw_graph
from intarsia.testing.graphs.draft import info, tensor

if TYPE_CHECKING:
    import onnx

_SHRUNK = (GraphVerdict.DISAGREES, GraphVerdict.EXPLAINED, GraphVerdict.ERROR)


def shrink_seed(seed: int, target: str, threads: int, folder: str) -> dict[str, Any]:
    """Shrink what disagrees in a seed, write it and describe it: what a worker calls.

    Args:
        seed: Of the graph.
        target: Text of the target, or empty for the default.
        threads: How many.
        folder: Where `SEED-TARGET.onnx` and `.npz` go.
    """
    graph = draw_graph(seed)
    for feeds in graph.draws:
        judged = Judged(graph.model, (feeds,))
        finding = judged.judge(target, threads)
        if finding.verdict in _SHRUNK:
            break
    else:
        return {"seed": seed, "text": "it agrees when each draw is run alone"}
    model, feeds, finding = shrink(judged, finding)
    stem = f"{seed}-{(target or 'default').replace(', ', '+').split()[0]}"
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{stem}.onnx").write_bytes(model.SerializeToString())
    plain = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray)}
    np.savez(place / f"{stem}.npz", **plain)  # type: ignore[arg-type]
    return {**finding.row, "seed": seed, "file": f"{stem}.onnx", "graph": describe(model, feeds)}


def shrink(
    judged: Judged, finding: GraphFinding
) -> tuple[onnx.ModelProto, Mapping[str, Any], GraphFinding]:
    """Return the smallest run of nodes that still has the finding's verdict.

    Runs of nodes in the graph's order are tried, the short ones first; what they read is fed with
    what the reference makes of it, constants stay constant, all that they make is an output.

    Args:
        judged: The graph, with one draw.
        finding: What is wrong with it.
    """
    count = len(judged.model.graph.node)
    for length in range(1, count):
        for start in range(count - length + 1):
            model, feeds = _part(judged, range(start, start + length))
            try:
                smaller = Judged(model, (feeds,)).judge(finding.target, finding.threads)
            except Exception:  # this part cannot stand alone
                continue
            if smaller.verdict == finding.verdict:
                return model, feeds, smaller
    return judged.model, judged.feeds[0], finding


def _part(judged: Judged, span: Sequence[int]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    graph, values = judged.model.graph, judged.evaluations[0].values
    nodes = [graph.node[i] for i in span]
    outputs = [name for node in nodes for name in node.output if name]
    bodies = [a.g for node in nodes for a in node.attribute if a.HasField("g")]
    inner = [name for body in bodies for node in body.node for name in node.input]
    read = dict.fromkeys(name for node in nodes for name in node.input if name)
    read |= dict.fromkeys(name for name in inner if name in values)
    constants = {initializer.name for initializer in graph.initializer}
    feeds = {name: values[name] for name in read if name not in outputs and name not in constants}
    used = {name for node in nodes for name in node.input} | set(inner)
    outer = {output.name for output in graph.output}
    ends = [name for name in outputs if name not in used or name in outer] or outputs[-1:]
    part = helper.make_graph(
        nodes,
        "part",
        [info(name, value) for name, value in feeds.items()],
        [info(name, values[name]) for name in ends],
        [tensor(values[name], name) for name in read if name in constants],
    )
    model = helper.make_model(
        part, opset_imports=judged.model.opset_import, ir_version=judged.model.ir_version
    )
    return model, feeds


def describe(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> str:
    """Return a model in one line: `Conv(float32[1, 4], c:float32[3]){'group': 1} ; Relu(...)`."""
    types = {name: _type(value) for name, value in feeds.items()}
    for constant in model.graph.initializer:
        dtype = helper.tensor_dtype_to_np_dtype(constant.data_type)
        types[constant.name] = f"c:{np.dtype(dtype).name}{list(constant.dims)}"
    parts = []
    for node in model.graph.node:
        inputs = ", ".join(types.get(name, name or "_") for name in node.input)
        own = [attribute for attribute in node.attribute if not attribute.HasField("g")]
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in own}
        plain = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        parts.append(f"{node.op_type}({inputs}){plain or ''}")
    return f"opset {model.opset_import[0].version}: {' ; '.join(parts)}"


def _type(value: Any) -> str:
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype.name}{list(array.shape)}"
