# SPDX-License-Identifier: Apache-2.0
"""The first node at which two ways of running a model part, and the smallest model for it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intarsia.backends.artifact import tensor_spec
from intarsia.graph.graph import Graph
from intarsia.graph.legal import legal_inputs
from intarsia.graph.load import load
from intarsia.runtime.feeds import check_feeds, sample_feeds
from intarsia.verifying.reducing import Reducer
from intarsia.verifying.references import evaluate_all
from intarsia.verifying.repro import write_repro
from intarsia.verifying.sides import REFERENCE, SideTrial
from intarsia.verifying.values import Bisection

if TYPE_CHECKING:
    from intarsia.tuning.laboratory.plug_ins import PlugIns

SIDE_SECONDS = 60.0
"""Of one model on both sides; what takes longer hangs."""


def bisect(  # noqa: PLR0913 - what the commands ask for
    model: Any,
    suspect: str,
    against: str = REFERENCE,
    *,
    feeds: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Any] | None = None,
    out: Path,
    threads: int = 1,
    runs: int = 1,
    seed: int = 0,
    seconds: float = math.inf,
    side_seconds: float = SIDE_SECONDS,
    plug_ins: PlugIns | None = None,
) -> Bisection:
    """Find the first node at which a suspect parts from another side; nothing is placed.

    Args:
        model: A path, the bytes of a model, or a model.
        suspect: The side that is doubted, as `check_side` returns it.
        against: The side that is right by assumption.
        feeds: Inputs by name; None makes them up.
        shapes: Of inputs whose dimensions are free.
        out: The folder for the smallest model.
        threads: Threads of one run.
        runs: How often each model is run.
        seed: Of inputs that are made up.
        seconds: How long to look.
        side_seconds: How long one model may take.
        plug_ins: Backends that are not installed.

    Raises:
        ModelError: The model cannot be read.
        InputError: An input does not fit.
        IntarsiaError: The side that is right by assumption cannot run the model.
    """
    start = time.monotonic()
    graph = Graph.from_model(load(model, shapes))
    specs = [tensor_spec(graph.values[i]) for i in graph.inputs]
    given = sample_feeds(specs, seed, legal_inputs(graph)) if feeds is None else feeds
    arrays = {
        spec.name: array for spec, array in zip(specs, check_feeds(specs, dict(given)), strict=True)
    }
    trial = SideTrial(
        suspect,
        against,
        threads=threads,
        runs=runs,
        seconds=side_seconds,
        plug_ins=plug_ins,
    )
    try:
        values = evaluate_all(graph, arrays)
        reduced = Reducer(graph, values, trial.judge, seconds).reduce()
    finally:
        trial.close()
    spent = time.monotonic() - start
    if reduced is None:
        return Bisection(against, suspect, trials=trial.trials, seconds=spent)
    smallest = write_repro(out, reduced, suspect, against, trial.trials, runs)
    return Bisection(
        against,
        suspect,
        reduced.fault,
        reduced.first,
        graph.node_named(reduced.first).op_type,
        smallest,
        trial.trials,
        spent,
    )
