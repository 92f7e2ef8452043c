# SPDX-License-Identifier: Apache-2.0
"""Which models take several requests at once: those with a free dimension that is a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.extents import Expression, Symbol
from intarsia.graph.free_sizes import FreeSpec
from intarsia.measure.agreement import compare_outputs
from intarsia.runtime.device_array import to_host
from intarsia.runtime.free import FreeExecutable, Program


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How requests to a model are run together.

    Attributes:
        rows: Most rows of one run.
        wait: Seconds that the first request of a run waits for others.
    """

    rows: int
    wait: float


def limit_batch(program: Program, rule: BatchRule) -> BatchRule | str:
    """Return the rule for a model, or why its requests cannot be run together.

    Its numbers decide, not only its shapes: rows that are run together must give what they give
    alone, within the tolerance of `compare_outputs`.

    Args:
        program: The model's.
        rule: What was asked for.

    Raises:
        IntarsiaError: As of `Program.run`.
    """
    found = find_batch(program)
    if isinstance(found, str):
        return found
    if not isinstance(program, FreeExecutable):
        return "it has no free dimension"
    low, high = max(1, found.low), found.high
    if high is not None and high < 2 * low:
        return f"dimension {found.name!r} has at most {high} rows"
    one, other = (program.sample_feeds(seed, {found.name: low}) for seed in (0, 1))
    both = {name: np.concatenate([one[name], other[name]]) for name in one}
    alone = [to_host(program.run(feeds)) for feeds in (one, other)]
    together = to_host(program.run(both))
    joined = [np.concatenate([outputs[name] for outputs in alone]) for name in together]
    if not _agree(joined, list(together.values())):
        return "its rows give other numbers together than alone"
    return BatchRule(rule.rows if high is None else min(rule.rows, high), rule.wait)


def find_batch(program: Program) -> Symbol | str:
    """Return the free dimension that is the first of every input and output and of nothing else.

    If there is none, why.

    Args:
        program: The model's.
    """
    if not isinstance(program, FreeExecutable):
        return "it has no free dimension"
    if not program.inputs:
        return "it has no inputs"
    first = _first(program.inputs[0])
    if first is None:
        return f"the first dimension of input {program.inputs[0].name!r} is not free"
    for what, specs in (("input", program.inputs), ("output", program.outputs)):
        for spec in specs:
            if _first(spec) != first:
                return f"{what} {spec.name!r} has no first dimension {first.name!r}"
            if any(first in _symbols(extent) for extent in (spec.shape or ())[1:]):
                return f"{what} {spec.name!r} has {first.name!r} in other dimensions too"
    return first


def _first(spec: FreeSpec) -> Symbol | None:
    """Return the symbol that the first dimension is; None if it is another thing."""
    if not spec.shape or not isinstance(spec.shape[0], Expression):
        return None
    symbols = spec.shape[0].symbols
    (symbol,) = symbols if len(symbols) == 1 else (None,)
    return symbol if symbol is not None and str(spec.shape[0]) == symbol.name else None


def _symbols(extent: Any) -> frozenset[Symbol]:
    return extent.symbols if isinstance(extent, Expression) else frozenset()


def _agree(expected: Sequence[Array], actual: Sequence[Array]) -> bool:
    texts = [one.dtype.kind in "OUST" for one in expected]
    if any(
        one.tolist() != other.tolist()
        for one, other, is_text in zip(expected, actual, texts, strict=True)
        if is_text
    ):
        return False
    numbers = [
        (one, other)
        for one, other, is_text in zip(expected, actual, texts, strict=True)
        if not is_text
    ]
    return compare_outputs(*([pair[i] for pair in numbers] for i in (0, 1))).agrees


def batch_key(feeds: Mapping[str, Array]) -> tuple[int, tuple[tuple[int, ...], ...]] | None:
    """Return the rows of a request, and what others must share to be run with it.

    None if its inputs have different numbers of rows.

    Args:
        feeds: Its inputs, in the model's order.
    """
    rows = {array.shape[0] for array in feeds.values()}
    if len(rows) != 1:
        return None
    return rows.pop(), tuple(array.shape[1:] for array in feeds.values())


def join(requests: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the inputs of several requests as those of one."""
    return {name: np.concatenate([feeds[name] for feeds in requests]) for name in requests[0]}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """Return the outputs of each request.

    Args:
        outputs: Of all together.
        rows: How many each has.
    """
    ends = np.cumsum(rows)[:-1]
    parts = {name: np.split(array, ends) for name, array in outputs.items()}
    return [{name: parts[name][i] for name in parts} for i in range(len(rows))]
