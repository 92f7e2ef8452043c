# SPDX-License-Identifier: Apache-2.0
"""Several random graphs as one model, compiled once for a target: what each of them costs is less.

The graphs stay apart: none reads what another makes, so each has the numbers that it has alone, and
is judged by its own judges. Whatever is not in order together is judged alone, which says whose
fault it is; and what is in order alone is a finding about the graphs together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import onnx

from intarsia.errors import UnsupportedError
from intarsia.testing.differential.judging import (
    GraphFinding,
    GraphVerdict,
    Judged,
    compile_graph,
    facts,
)
from intarsia.testing.graphs import GraphFamily, draw_graph

_QUIET = (GraphVerdict.AGREES, GraphVerdict.EXPLAINED)
_drawn = lru_cache(256)(draw_graph)  # asked for its opset first, and judged soon after


def join_models(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Return models of one operator set as one, whose names begin with `g0_`, `g1_`, ...

    Args:
        models: Without functions of their own.
    """
    joined = onnx.ModelProto()
    joined.CopyFrom(models[0])
    joined.ClearField("graph")
    joined.graph.name = "joined"
    for number, model in enumerate(models):
        part = onnx.GraphProto()
        part.CopyFrom(model.graph)
        _rename(part, _prefix(number))
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(joined.graph, field).extend(getattr(part, field))
    return joined


def _prefix(number: int) -> str:
    return f"g{number}_"


def _rename(graph: onnx.GraphProto, prefix: str) -> None:
    """Put a prefix before every name, those in bodies and those of dimensions among them."""
    for node in graph.node:
        node.name = prefix + node.name
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name:  # an operand that is left out has none
                    names[position] = prefix + name
        for attribute in node.attribute:
            for body in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                _rename(body, prefix)
    for tensor in graph.initializer:
        tensor.name = prefix + tensor.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = prefix + value.name
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = prefix + dim.dim_param


class JoinedGraphs:
    """Graphs that are compiled together.

    Args:
        judged: Each, of one operator set and with equally many draws.
    """

    def __init__(self, judged: Sequence[Judged]) -> None:
        self.judged = judged
        self.model = join_models([each.model for each in judged])
        self.feeds = [
            {
                f"{_prefix(number)}{name}": array
                for number, each in enumerate(judged)
                for name, array in each.feeds[draw].items()
            }
            for draw in range(len(judged[0].feeds))
        ]

    @cached_property
    def _whole(self) -> Judged:
        return Judged(self.model, self.feeds)

    def judge(self, target: str, threads: int) -> list[GraphFinding]:
        """Return what becomes of each graph on a target.

        Args:
            target: As in `Judged.judge`.
            threads: How many.
        """
        try:
            with np.errstate(all="ignore"):
                program, is_whole = compile_graph(self.model, target, threads)
                differing = self._differing(program)
        except Exception as error:  # any of them may be at fault
            findings = [each.judge(target, threads) for each in self.judged]
            if isinstance(error, UnsupportedError):
                return findings
            return _blamed(findings, error)
        text = "" if is_whole else "with a fallback"
        findings = [
            each.judge(target, threads)
            if number in differing
            else GraphFinding(target, threads, GraphVerdict.AGREES, text=text)
            for number, each in enumerate(self.judged)
        ]
        together = [n for n in sorted(differing) if findings[n].verdict is GraphVerdict.AGREES]
        if together:
            whole = self._whole.judge(target, threads)
            if whole.verdict is not GraphVerdict.EXPLAINED:
                words = whole.text or "they differ, and the next time they do not"
                whole = replace(
                    whole, verdict=GraphVerdict.DISAGREES, text=f"only together: {words}"
                )
            findings[together[0]] = whole
        return findings

    def _differing(self, program: Any) -> set[int]:
        """Return which graphs agree with none of their judges in some run."""
        differing: set[int] = set()
        for draw in (*range(len(self.feeds)), 0):
            results = program.run(dict(self.feeds[draw]))
            for number, each in enumerate(self.judged):
                if number not in differing and each.differences(draw, _own(results, number)):
                    differing.add(number)
        return differing


def _own(results: Mapping[str, Any], number: int) -> dict[str, Any]:
    prefix = _prefix(number)
    return {
        name.removeprefix(prefix): array
        for name, array in results.items()
        if name.startswith(prefix)
    }


def _blamed(findings: list[GraphFinding], error: Exception) -> list[GraphFinding]:
    """Return the findings, the first with an error that no graph has alone."""
    if any(finding.verdict not in _QUIET for finding in findings):
        return findings
    first = next(iter(str(error).splitlines()), "")[:250]
    text = f"only together: {type(error).__name__}: {first}"
    return [replace(findings[0], verdict=GraphVerdict.ERROR, text=text), *findings[1:]]


def keys_of(seeds: Iterable[int]) -> list[list[int] | None]:
    """Return what graphs must have in common to be joined; None if one is to be alone.

    With free dimensions one is alone, because only a model whose nodes all allow it has a program
    for all sizes. What a worker calls.

    Args:
        seeds: Of the graphs.
    """
    keys: list[list[int] | None] = []
    for seed in seeds:
        try:
            graph = _drawn(seed)
        except Exception:  # judging it says why it cannot be drawn
            keys.append(None)
            continue
        is_alone = graph.family is GraphFamily.FREE
        keys.append(None if is_alone else [graph.opset, graph.model.ir_version, len(graph.draws)])
    return keys


def judge_together(seeds: Sequence[int], plan: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Draw graphs and judge them together on targets: what a worker calls.

    Args:
        seeds: Of graphs with one key.
        plan: Pairs of a target's text and a number of threads.
    """
    graphs = [_drawn(seed) for seed in seeds]
    judged = [Judged(graph.model, graph.draws) for graph in graphs]
    records = [{**facts(graph), "findings": []} for graph in graphs]
    for count in {len(each.feeds) for each in judged}:  # some draws may not fit their graph
        members = [n for n, each in enumerate(judged) if len(each.feeds) == count]
        joined = JoinedGraphs([judged[number] for number in members])
        for target, threads in plan:
            for number, finding in zip(members, joined.judge(target, threads), strict=True):
                records[number]["findings"].append(finding.row)
    for record, each in zip(records, judged, strict=True):
        doubts = {"peer": each.peer_error[:200], "dispute": each.dispute}
        record |= {k: v for k, v in doubts.items() if v}
        record["together"] = list(seeds)
    return records
