# SPDX-License-Identifier: Apache-2.0
"""One run of the model that keeps every value: what probes begin with, and are compared with.

It runs on one backend alone, which rewrites nothing of ours and keeps every intermediate value, so
that no candidate is compared with itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import tensor_spec
from intarsia.backends.registry import Backends, load_backends
from intarsia.backends.values import Piece
from intarsia.errors import BackendError, InputError, ReasonCode
from intarsia.graph.legal import legal_inputs
from intarsia.place.assign import Assignment, Policy
from intarsia.place.build import RegionBuilder
from intarsia.place.capability import Capability, make_contexts
from intarsia.place.devices import DevicePlan, memory_domains
from intarsia.place.pipeline import Pipeline
from intarsia.place.schedule import make_draft
from intarsia.place.setting import quiet
from intarsia.process.workers import Limits, Worker
from intarsia.runtime.feeds import check_feeds
from intarsia.runtime.samples import sample_feeds
from intarsia.target import CompilationConfig
from intarsia.tuning.laboratory.store import StoredValue, lay_out, map_values, open_model

if TYPE_CHECKING:
    from intarsia.graph.graph import Graph

REFERENCES = ("onnxruntime", "reference")
"""Targets that may run the whole model for comparison, best first: fast, then always there."""


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """What the run gave.

    Attributes:
        target: What it ran on.
        stored: Where the values are.
        texts: The elements of inputs of text, by name; files hold none.
    """

    target: str
    stored: tuple[StoredValue, ...]
    texts: Mapping[str, list[str]] = field(default_factory=dict)


def run_reference(
    worker: Worker,
    graph: Graph,
    folder: Path,
    backends: Backends,
    feeds: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    num_threads: int = 1,
    limits: Limits | None = None,
) -> ReferenceRun:
    """Run a model once in a worker and keep every value of it.

    Args:
        worker: Where it runs.
        graph: The prepared model, which `write_model` has written.
        folder: Where it was written, and where the values go.
        backends: Which are installed.
        feeds: Inputs by name; those that are missing are made up.
        seed: For inputs that are made up.
        num_threads: Threads that the run may use.
        limits: Of the run.

    Raises:
        InputError: A feed has a wrong name, dtype or shape.
        BackendError: Nothing here can run the model.
    """
    arrays = make_feeds(graph, feeds or {}, seed)
    carried = {name: array for name, array in arrays.items() if array.dtype != object}
    texts = {
        name: [str(element) for element in array.flat]
        for name, array in arrays.items()
        if array.dtype == object
    }
    problems = []
    for name in REFERENCES:
        if name not in backends.by_name or not backends.named(name).detect().targets:
            continue
        outcome = worker.call(
            "intarsia.tuning.laboratory.reference:keep_values",
            *(str(folder), name, num_threads, texts),
            arrays=carried,
            limits=limits,
        )
        if outcome.is_ok:
            stored = tuple(msgspec.convert(outcome.value, list[StoredValue]))
            return ReferenceRun(name, stored, texts)
        problems.append(f"{name}: {outcome.message}")
        if outcome.reason is ReasonCode.TIMEOUT:  # the next one is slower
            break
    raise BackendError(
        f"the model could not be run once for comparison: {'; '.join(problems)}",
        hint="give inputs that are legal for it: feeds=, or --input NAME=FILE",
    )


def make_feeds(graph: Graph, feeds: Mapping[str, Any], seed: int = 0) -> dict[str, Array]:
    """Return an array for every input: the user's, else one that the model can do with.

    Args:
        graph: The model.
        feeds: Inputs by name, some or all.
        seed: For what is made up.

    Raises:
        InputError: A feed has a wrong name, dtype or shape.
    """
    specs = [tensor_spec(graph.values[position]) for position in graph.inputs]
    known = {spec.name for spec in specs}
    unknown = [name for name in feeds if name not in known]
    if unknown:
        raise InputError(
            f"the model has no input {unknown[0]!r}", hint=f"it has {', '.join(sorted(known))}"
        )
    missing = [spec for spec in specs if spec.name not in feeds]
    made = sample_feeds(missing, seed, legal_inputs(graph))
    checked = check_feeds(specs, {**made, **feeds})
    return dict(zip((spec.name for spec in specs), checked, strict=True))


def text_arrays(graph: Graph, texts: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Return inputs of text as arrays, by name.

    Args:
        graph: The model.
        texts: The elements of each, by name.
    """
    found = {}
    for name, elements in texts.items():
        array = np.empty(len(elements), object)
        array[:] = elements
        found[name] = array.reshape(graph.value_named(name).shape or ())
    return found


def keep_values(
    folder: str,
    target: str,
    num_threads: int,
    texts: Mapping[str, Sequence[str]],
    arrays: Mapping[str, Array] | None = None,
) -> list[dict[str, Any]]:
    """Run the model in a folder on a target and write every value beside it. For a worker.

    Args:
        folder: Where `write_model` wrote it.
        target: Text of the one target.
        num_threads: Threads that it may use.
        texts: Elements of inputs of text, by name.
        arrays: The other inputs, by name.

    Returns:
        `StoredValue`s as dictionaries.
    """
    graph = open_model(Path(folder))
    made = [value for value in graph.values if value.producer >= 0]
    view = graph.with_ends(graph.inputs, (value.id for value in made))
    config = CompilationConfig.resolve(target)
    backends = load_backends()
    contexts = make_contexts(config, num_threads)
    builder = RegionBuilder(
        *(view, backends, Pipeline.of(config, contexts, backends), num_threads),
        strict=True,
        tell=quiet,
    )
    capabilities = [
        Capability(placed, backends.for_target(placed.target), context, {})
        for placed, context in contexts.items()
    ]
    nodes = tuple(range(len(graph.nodes)))
    draft = make_draft(
        *(view, config, capabilities, DevicePlan(memory_domains(config, backends))),
        Assignment((), ("reference",) * len(nodes), ()),
        *([Piece(config.targets[0], nodes)], Policy.MANUAL, ()),
    )
    builder.build(draft)
    executable = builder.finish(draft, ())
    stored = lay_out((*(graph.values[position] for position in graph.inputs), *made))
    files = map_values(Path(folder), stored, is_new=True)
    outputs = {graph.values[i].name: file for i, file in files.items()}
    context = executable.context(
        outputs={
            spec.name: outputs[spec.name] for spec in executable.outputs if spec.name in outputs
        }
    )
    feeds = {**(arrays or {}), **text_arrays(graph, texts)}
    for name, array in feeds.items():
        if name in outputs:
            outputs[name][...] = array
    context.write_inputs([feeds[spec.name] for spec in executable.inputs])
    context.run()
    return [msgspec.to_builtins(one) for one in stored]
