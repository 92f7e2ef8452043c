# SPDX-License-Identifier: Apache-2.0
"""Checks: nodes, regions and blocked borders that are not refused give the reference's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from intarsia.backends.values import Border, ListStates
from intarsia.errors import BackendError
from intarsia.graph.graph import Value
from intarsia.graph.region import Region
from intarsia.graph.state import BLOCKS, PLAIN, TensorState, can_block
from intarsia.place.decide import cut_regions
from intarsia.testing.case import EvaluatedModel, OperatorCase, problem_of
from intarsia.testing.judging import ConformanceError, NotApplicable
from intarsia.testing.sketch import Sketch, SketchMove, random_problem, taken_moves
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import REGION_FACTOR
from intarsia.testing.trial import Trial

SEEDS = 12
_CHAIN = 12

Writer = Callable[[Subject, Sketch], list[str]]


def region_trials() -> Iterator[Trial]:
    """Yield hand-written regions and random graphs."""
    for name, write in WRITTEN.items():
        yield Trial("regions", name, partial(written, name=name, write=write))
    for seed in range(SEEDS):
        yield Trial("regions", f"random_graph_{seed}", partial(drawn, seed=seed))


def written(subject: Subject, name: str, write: Writer) -> None:
    """Try a region written by hand."""
    sketch = Sketch(np.random.default_rng(len(name)))
    outputs = write(subject, sketch)
    verify_cut(subject, sketch.finish(name, outputs), halves=False)


def drawn(subject: Subject, seed: int) -> None:
    """Try a random graph of operators that the backend takes alone, whole and in two halves."""
    verify_cut(subject, random_problem(taken_moves(subject), seed), halves=True)


def verify_cut(subject: Subject, problem: EvaluatedModel, *, halves: bool) -> None:
    """Run every region that the backend takes on values from the reference.

    Args:
        subject: The backend.
        problem: The graph.
        halves: Whether to try the earlier and the later half of the nodes as well.
    """
    graph = subject.graph(problem.model)
    refused = subject.refusals(graph, problem.title)
    count = len(graph.nodes)
    taken = [-1 if node in refused else 0 for node in range(count)]
    cuts = [taken]
    if halves and count > 1:
        cuts.append([side if side < 0 else int(i >= count // 2) for i, side in enumerate(taken)])
    has_any = False
    for cut in cuts:
        for side, nodes in cut_regions(graph, cut):
            if side < 0:
                continue
            has_any = True
            region = Region.of(graph, nodes)
            operators = ", ".join(graph.nodes[node].op_type for node in nodes)
            title = f"{problem.title}, region of {operators}"
            subject.verify_region(region, problem.values, title, REGION_FACTOR)
    if not has_any:
        first = next(iter(refused.values()))
        raise NotApplicable(f"refused: {first.code}: {first.reason}")


def _one(subject: Subject, s: Sketch, x: str, which: int = 0) -> str:
    moves = taken_moves(subject, 1)
    return moves[which % len(moves)].write(s, x)


def _two(subject: Subject, s: Sketch, x: str, z: str) -> str:
    return taken_moves(subject, 2)[0].write(s, x, z)


def _two_outputs(subject: Subject, s: Sketch) -> list[str]:
    first = _one(subject, s, "x")
    return [first, _one(subject, s, first, 1)]  # one of them is read inside as well


def _shared_input(subject: Subject, s: Sketch) -> list[str]:
    return [_one(subject, s, "x"), _one(subject, s, "x", 1)]


def _diamond(subject: Subject, s: Sketch) -> list[str]:
    first = _one(subject, s, "x")
    return [_two(subject, s, _one(subject, s, first, 1), first)]


def _same_value_twice(subject: Subject, s: Sketch) -> list[str]:
    return [_two(subject, s, "x", "x")]


def _two_inputs(subject: Subject, s: Sketch) -> list[str]:
    return [_two(subject, s, "z", "x"), _two(subject, s, "x", "z")]


def _unconnected(subject: Subject, s: Sketch) -> list[str]:
    return [_one(subject, s, "z", 1), _one(subject, s, "x")]


def _chain(subject: Subject, s: Sketch) -> list[str]:
    last = "x"
    for position in range(_CHAIN):
        last = _one(subject, s, last, position)
    return [last]


WRITTEN: dict[str, Writer] = {
    "two_outputs": _two_outputs,
    "shared_input": _shared_input,
    "diamond": _diamond,
    "same_value_twice": _same_value_twice,
    "two_inputs": _two_inputs,
    "unconnected": _unconnected,
    "chain": _chain,
}
"""Regions whose borders are easily got wrong."""


def number_trials(cases: Sequence[OperatorCase]) -> Iterator[Trial]:
    """Yield one trial per case and dtype."""
    for case in cases:
        for dtype in case.dtypes:
            yield Trial("numbers", f"{case}-{dtype}", partial(compute, case=case, dtype=dtype))


def compute(subject: Subject, case: OperatorCase, dtype: str) -> None:
    """Run one operator on two draws of its inputs."""
    problem = problem_of(case, dtype)
    region = subject.take(subject.graph(problem.model), problem.title)
    subject.verify_region(region, problem.values, problem.title)


BORDER_SEEDS = 6
MIXES = 2
"""Borders that are drawn for each region, beside those that are listed."""

SHAPE = (1, 32, 6, 6)
"""Shape of every value: whole blocks in any shared layout."""
_MORE = 4
"""How often a convolution is drawn for each other move."""


def border_trials() -> Iterator[Trial]:
    """Yield random graphs, and what no backend can be given."""
    for seed in range(BORDER_SEEDS):
        yield Trial("borders", f"random_graph_{seed}", partial(drawn_borders, seed=seed))
    yield Trial("borders", "impossible_layouts", refuse_layouts)


def drawn_borders(subject: Subject, seed: int) -> None:
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
    listed: dict[Border, None] = {}
    for border in borders:
        if border == (plain.inputs, plain.outputs):
            raise ConformanceError(f"{title}: states lists the plain border, which all take")
        inputs = _judge_side(region, border[0], region.inputs, plain.inputs, title)
        outputs = _judge_side(region, border[1], region.outputs, plain.outputs, title)
        if (inputs, outputs) != (plain.inputs, plain.outputs):
            listed[inputs, outputs] = None
    return tuple(listed)


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
    judged = []
    for state, value_id, own in zip(states, values, plain, strict=True):
        value = region.graph.values[value_id]
        if replace(state, layout=own.layout, runtime=own.runtime) != own:
            raise ConformanceError(f"{title}: {value.name!r} is {own}, and is listed as {state}")
        if state.runtime:
            judged.append(own)
            continue
        if not _has_layout(value, state.layout):
            raise ConformanceError(
                f"{title}: {value.name!r} is listed as {state.layout}, which {value.dtype}"
                f"{list(value.shape or ())} cannot be"
            )
        judged.append(state)
    return tuple(judged)


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
    yielded = {*listed, (plain.inputs, plain.outputs)}
    for _ in range(MIXES if listed else 0):
        choices = (*listed, (plain.inputs, plain.outputs))
        inputs, outputs = (
            tuple(states[int(rng.integers(len(states)))] for states in zip(*sides, strict=True))
            for sides in zip(*choices, strict=True)
        )
        if (inputs, outputs) not in yielded:
            yielded.add((inputs, outputs))
            yield inputs, outputs


def refuse_layouts(subject: Subject) -> None:
    """Require a `BackendError` for layouts that there are not, or that a tensor cannot have."""
    _states_of(subject)
    problem = random_problem(taken_moves(subject, 1)[:1], seed=0)  # 4 channels are not a block
    region = subject.take(subject.graph(problem.model), problem.title)
    plain = subject.candidate(region)
    shape = list(region.graph.values[region.inputs[0]].shape or ())
    for layout in ("nchw8c", "nchw16c", "unheard-of"):
        inputs = (replace(plain.inputs[0], layout=layout), *plain.inputs[1:])
        outputs = (replace(plain.outputs[0], layout=layout), *plain.outputs[1:])
        for side, border in (
            ("an input", (inputs, plain.outputs)),
            ("an output", (plain.inputs, outputs)),
        ):
            title = f"compile with {side} of shape {shape} as {layout}"
            try:
                subject.backend.compile(subject.candidate(region, border), subject.context)
            except BackendError:  # as it should be
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


def _moves(subject: Subject) -> tuple[SketchMove, ...]:
    """Return what graphs are drawn of: convolutions more often than the rest."""
    moves = taken_moves(subject)
    return moves + _MORE * tuple(move for move in moves if move.name.startswith("Conv"))


def _text(border: Border) -> str:
    return " -> ".join(", ".join(state.layout for state in side) for side in border)
