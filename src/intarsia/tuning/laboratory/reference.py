# SPDX-License-Identifier: Apache-2.0
"""One run of the model that keeps every value: what probes begin with, and are compared with.

It runs on one backend alone, which rewrites nothing of ours and keeps every intermediate value, so
that no candidate is compared with itself.

A border's inputs are those of the reference run, so that only a probe's own error counts. The
absolute tolerance follows the size of the numbers: small outputs are not excused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import tensor_spec
from intarsia.backends.registry import load_backends
from intarsia.backends.values import Piece
from intarsia.errors import InputError
from intarsia.graph.legal import legal_inputs
from intarsia.place.assign import Assignment, Policy
from intarsia.place.build import RegionBuilder
from intarsia.place.decide import Decision
from intarsia.place.machine import Machine
from intarsia.place.request import quiet
from intarsia.place.schedule import make_draft
from intarsia.place.setting import open_setting
from intarsia.runtime.feeds import check_array, sample_feeds
from intarsia.settings import Settings
from intarsia.target import CompilationConfig
from intarsia.tuning.laboratory.store import lay_out, map_values, open_model
from intarsia.tuning.laboratory.values import ReferenceRun

if TYPE_CHECKING:
    from intarsia.backends.values import TensorSpec
    from intarsia.graph.graph import Graph


def check_given(inputs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """Return the user's inputs as arrays, by name.

    Args:
        inputs: What the model takes.
        feeds: Some of them, or all.

    Raises:
        InputError: A feed has a wrong name, dtype or shape, or one is needed and missing.
    """
    specs = {spec.name: spec for spec in inputs}
    unknown = [name for name in feeds if name not in specs]
    if unknown:
        raise InputError(
            f"the model has no input {unknown[0]!r}", hint=f"it has {', '.join(sorted(specs))}"
        )
    shapeless = [spec for spec in inputs if spec.shape is None and spec.name not in feeds]
    sample_feeds(shapeless)  # says of the first one that it cannot be made up
    return {name: check_array(specs[name], value) for name, value in feeds.items()}


def make_feeds(graph: Graph, given: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
    """Return an array for every input: the user's, else one that the model can do with.

    Args:
        graph: The model.
        given: Inputs by name, some or all.
        seed: For what is made up.

    Raises:
        InputError: An input that is missing has no fixed shape.
    """
    specs = [tensor_spec(graph.values[position]) for position in graph.inputs]
    missing = [spec for spec in specs if spec.name not in given]
    feeds = {**given, **sample_feeds(missing, seed, legal_inputs(graph))}
    return {spec.name: feeds[spec.name] for spec in specs}


def list_texts(feeds: Mapping[str, Array]) -> dict[str, list[str]]:
    """Return the elements of inputs of text, by name; messages hold no such arrays."""
    return {
        name: [str(element) for element in array.flat]
        for name, array in feeds.items()
        if array.dtype == object
    }


def text_arrays(graph: Graph, texts: Mapping[str, Sequence[str]]) -> dict[str, Array]:
    """Return inputs of text as arrays, by name.

    Args:
        graph: The model.
        texts: The elements of each, by name.
    """
    arrays = {}
    for name, elements in texts.items():
        array = np.empty(len(elements), object)
        array[:] = elements
        arrays[name] = array.reshape(graph.value_named(name).shape or ())
    return arrays


def keep_values(
    folder: str,
    target: str,
    num_threads: int,
    seed: int,
    texts: Mapping[str, Sequence[str]],
    arrays: Mapping[str, Array] | None = None,
) -> dict[str, Any]:
    """Run the model in a folder on a target and write every value beside it. For a worker.

    Args:
        folder: Where `write_model` wrote it.
        target: Text of the one target.
        num_threads: Threads that it may use.
        seed: For inputs that are made up.
        texts: Elements of inputs of text that the user gave, by name.
        arrays: The other ones, by name.

    Returns:
        A `ReferenceRun` as a dictionary.
    """
    graph = open_model(Path(folder))
    feeds = make_feeds(graph, {**(arrays or {}), **text_arrays(graph, texts)}, seed)
    computed = [value for value in graph.values if value.producer >= 0]
    view = graph.with_ends(graph.inputs, (value.id for value in computed))
    config = CompilationConfig.resolve(target)
    backends = load_backends(Settings.from_environment())
    setting = open_setting(view, Machine(config, backends), num_threads)
    builder = RegionBuilder(setting, strict=True, tell=quiet)
    nodes = tuple(range(len(graph.nodes)))
    assignment = Assignment((), ("reference",) * len(nodes), ())
    pieces = (Piece(config.targets[0], nodes),)
    draft = make_draft(setting, Decision(assignment, pieces, (), Policy.MANUAL))
    builder.build(draft)
    executable = builder.finish(draft, ())
    stored = lay_out((*(graph.values[position] for position in graph.inputs), *computed))
    files = map_values(Path(folder), stored, is_new=True)
    outputs = {graph.values[i].name: file for i, file in files.items()}
    context = executable.context(
        outputs={
            spec.name: outputs[spec.name] for spec in executable.outputs if spec.name in outputs
        }
    )
    for name, array in feeds.items():
        if name in outputs:
            outputs[name][...] = array
    context.write_inputs([feeds[spec.name] for spec in executable.inputs])
    context.run()
    return dict(msgspec.to_builtins(ReferenceRun(stored, list_texts(feeds))))
