# SPDX-License-Identifier: Apache-2.0
"""Check: regions compute the same in every border that a backend lists, and in mixes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from intarsia.backends.values import Border, ListStates
from intarsia.errors import BackendError
from intarsia.graph.graph import Value
from intarsia.graph.region import Region
from intarsia.graph.state import BLOCKS, PLAIN, TensorState, can_block
from intarsia.place.order import cut_regions
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import Move, random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

SENTENCE = "What `states` lists is taken, and any mix of it, with the same numbers; no other is."

SEEDS = 6
MIXES = 2
"""Borders that are drawn for each region, beside those that are listed."""

SHAPE = (1, 32, 6, 6)
"""Of every value: whole blocks of any shared layout."""
_MORE = 4
"""How often a convolution is drawn for another move."""


def trials() -> Iterator[Trial]:
    """Yield random graphs, and what no backend can be given."""
    for seed in range(SEEDS):
        yield Trial("borders", f"random_graph_{seed}", partial(drawn, seed=seed))
    yield Trial("borders", "impossible_layouts", refuse_layouts)


def drawn(subject: Subject, seed: int) -> None:
    """Run each region of a random graph in the borders that are listed for it, and in mixes."""
    _states_of(subject)
    problem = random_problem(_moves(subject), seed, SHAPE)
    graph = subject.graph(problem.model)
    refused = subject.refusals(graph, problem.title)
    rng = np.random.default_rng(seed)
    has_any = False
    for side, nodes in cut_regions(graph, [-(node in refused) for node in range(len(graph.nodes))]):
        region = Region.of(graph, nodes)
        operators = ", ".join(graph.nodes[node].op_type for node in nodes)
        title = f"{problem.title}, region of {operators}"
        listed = list_borders(subject, region, title) if side == 0 else ()
        for border in (*listed, *_mixes(subject, region, listed, rng)):
            has_any = True
            about = f"{title}, border {_text(border)}"
            subject.verify_region(region, problem.values, about, REGION_FACTOR, border)
    if not has_any:
        raise NotApplicable("no border in shared layouts is listed")


def list_borders(subject: Subject, region: Region, title: str) -> tuple[Border, ...]:
    """Return what `states` lists, judged; in place of private layouts it has plain ones.

    Args:
        subject: The backend.
        region: What is asked about.
        title: Names it in messages.
    """
    states = _states_of(subject)
    plain = subject.candidate(region)
    with subject.calling("states", title):
        borders, again = (tuple(states(plain, subject.context)) for _ in range(2))
    if borders != again:
        raise ConformanceError(f"{title}: states lists other borders when it is asked again")
    found: dict[Border, None] = {}
    for border in borders:
        if border == (plain.inputs, plain.outputs):
            raise ConformanceError(f"{title}: states lists the plain border, which all take")
        inputs = _judge_side(region, border[0], region.inputs, plain.inputs, title)
        outputs = _judge_side(region, border[1], region.outputs, plain.outputs, title)
        if (inputs, outputs) != (plain.inputs, plain.outputs):
            found[inputs, outputs] = None
    return tuple(found)


def _judge_side(
    region: Region,
    states: Sequence[TensorState],
    values: Sequence[int],
    plain: Sequence[TensorState],
    title: str,
) -> tuple[TensorState, ...]:
    """Return the states of a side, with private ones as plain ones."""
    if len(states) != len(values):
        raise ConformanceError(
            f"{title}: {len(states)} states are listed for {len(values)} tensors"
        )
    found = []
    for state, value_id, own in zip(states, values, plain, strict=True):
        value = region.graph.values[value_id]
        if replace(state, layout=own.layout, runtime=own.runtime) != own:
            raise ConformanceError(f"{title}: {value.name!r} is {own}, and is listed as {state}")
        if state.runtime:
            found.append(own)
            continue
        if not _has_layout(value, state.layout):
            raise ConformanceError(
                f"{title}: {value.name!r} is listed as {state.layout}, which {value.dtype}"
                f"{list(value.shape or ())} cannot be"
            )
        found.append(state)
    return tuple(found)


def _has_layout(value: Value, layout: str) -> bool:
    """Tell whether a value can lie in a shared layout."""
    if layout == PLAIN:
        return True
    return value.is_static and can_block(value.dtype, value.shape or (), BLOCKS.get(layout, 0))


def _mixes(
    subject: Subject, region: Region, listed: Sequence[Border], rng: np.random.Generator
) -> Iterator[Border]:
    """Yield borders in which each tensor is plain, or as in one that is listed."""
    plain = subject.candidate(region)
    known = {*listed, (plain.inputs, plain.outputs)}
    for _ in range(MIXES if listed else 0):
        choices = (*listed, (plain.inputs, plain.outputs))
        inputs, outputs = (
            tuple(states[int(rng.integers(len(states)))] for states in zip(*sides, strict=True))
            for sides in zip(*choices, strict=True)
        )
        if (inputs, outputs) not in known:
            known.add((inputs, outputs))
            yield inputs, outputs


def refuse_layouts(subject: Subject) -> None:
    """Require a `BackendError` for layouts that there are not, or that a tensor cannot have."""
    _states_of(subject)
    problem = random_problem(taken_moves(subject, 1)[:1], seed=0)  # 4 channels are no block
    region = subject.take(subject.graph(problem.model), problem.title)
    plain = subject.candidate(region)
    shape = list(region.graph.values[region.inputs[0]].shape or ())
    for layout in ("nchw8c", "nchw16c", "unheard-of"):
        given = (replace(plain.inputs[0], layout=layout), *plain.inputs[1:])
        made = (replace(plain.outputs[0], layout=layout), *plain.outputs[1:])
        for side, border in (
            ("an input", (given, plain.outputs)),
            ("an output", (plain.inputs, made)),
        ):
            title = f"compile with {side} of shape {shape} as {layout}"
            try:
                subject.backend.compile(subject.candidate(region, border), subject.context)
            except BackendError:
                continue
            except Exception as error:
                raise ConformanceError(
                    f"{title} raised {type(error).__name__}: {error}; raise a BackendError"
                ) from error
            raise ConformanceError(f"{title} raised nothing; raise a BackendError")


def _states_of(subject: Subject) -> ListStates:
    states = subject.registered.states
    if states is None:
        raise NotApplicable("the backend has no borders but the plain one: it has no `states`")
    return states


def _moves(subject: Subject) -> tuple[Move, ...]:
    """Return what graphs are drawn of: convolutions more often than the rest."""
    moves = taken_moves(subject)
    return moves + _MORE * tuple(move for move in moves if move.name.startswith("Conv"))


def _text(border: Border) -> str:
    return " -> ".join(", ".join(state.layout for state in side) for side in border)
