# SPDX-License-Identifier: Apache-2.0
"""The models of a server: those that are loaded, and those that may be."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.arrays import Array
from intarsia.backends.values import TensorSpec
from intarsia.errors import IntarsiaError, ServingError, SettingError
from intarsia.garbage import give_memory_back
from intarsia.serving.batching import limit_batch
from intarsia.serving.datatypes import DATATYPES
from intarsia.serving.metrics import ServerMetrics
from intarsia.serving.queue import RunQueue
from intarsia.serving.values import (
    VERSION,
    IndexEntry,
    ModelMetadata,
    ModelState,
    ServingLimits,
    TensorMetadata,
)

if TYPE_CHECKING:
    from intarsia.graph.free_sizes import FreeSpec
    from intarsia.runtime.free import Program

logger = logging.getLogger("intarsia")

SUFFIXES = (".onnx", ".intarsia")
"""Of the files of a folder that are models."""

NOTHING = "not loaded"
"""The reason of a model that nobody has loaded yet."""


class ServedModel:
    """A model that is loaded, with its queue.

    Args:
        name: By which it is asked for.
        program: What runs.
        limits: How much it takes on.
        metrics: Told of each run.

    Attributes:
        metadata: It, as the protocol describes it.
        no_batch: Why its requests are not run together, although that was asked for; else "".
        queue: Where its requests wait.

    Raises:
        ServingError: The protocol has no name for the type of an input or output.
        IntarsiaError: As of `limit_batch`.
    """

    def __init__(
        self, name: str, program: Program, limits: ServingLimits, metrics: ServerMetrics
    ) -> None:
        self.metadata = ModelMetadata(
            name,
            tuple(_describe(name, spec) for spec in program.inputs),
            tuple(_describe(name, spec) for spec in program.outputs),
        )
        self.no_batch, rule = "", None
        if limits.batch is not None:
            found = limit_batch(program, limits.batch)
            if isinstance(found, str):
                self.no_batch = found
            else:
                rule = found
        self.queue = RunQueue(
            name,
            program,
            workers=limits.workers,
            most=limits.queue,
            rule=rule,
            on_run=lambda requests, seconds: metrics.ran(name, requests, seconds),
        )

    def check(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of a request in the model's order, if they are what it takes.

        Args:
            inputs: By name.

        Raises:
            ServingError: One is missing, unknown, or of another type or shape.
        """
        names = {spec.name for spec in self.metadata.inputs}
        problems = [f"unknown input {name!r}" for name in inputs if name not in names]
        problems += [f"input {name!r} is missing" for name in sorted(names - inputs.keys())]
        if problems:
            takes = ", ".join(map(_tensor_text, self.metadata.inputs)) or "nothing"
            raise ServingError("; ".join(problems), hint=f"the model takes {takes}")
        for spec in self.metadata.inputs:
            array = inputs[spec.name]
            given = "string" if array.dtype.kind == "O" else array.dtype.name
            if DATATYPES[given] != spec.datatype:
                raise ServingError(
                    f"input {spec.name!r} is {DATATYPES[given]}, the model takes {spec.datatype}"
                )
            fits = len(spec.shape) == array.ndim and all(
                wanted in (-1, size) for wanted, size in zip(spec.shape, array.shape, strict=False)
            )
            if not fits:
                raise ServingError(
                    f"input {spec.name!r} has shape {list(array.shape)}, the model takes "
                    f"{list(spec.shape)}"
                )
        return {spec.name: inputs[spec.name] for spec in self.metadata.inputs}

    def check_outputs(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the names of the outputs that a request asks for.

        Args:
            wanted: None for all.

        Raises:
            ServingError: There is no such output.
        """
        names = tuple(spec.name for spec in self.metadata.outputs)
        if wanted is None:
            return names
        for name in wanted:
            if name not in names:
                raise ServingError(
                    f"the model has no output {name!r}", hint=f"it has {', '.join(names)}"
                )
        return wanted


def _describe(model: str, spec: TensorSpec | FreeSpec) -> TensorMetadata:
    datatype = DATATYPES.get(spec.dtype)
    if datatype is None or spec.shape is None:
        what = "is no tensor" if not spec.dtype else f"is {spec.dtype}"
        if datatype is not None:
            what = "has no rank"
        raise ServingError(
            f"model {model!r} cannot be served: {spec.name!r} {what}, for which the protocol has "
            "no words"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in spec.shape)
    return TensorMetadata(spec.name, datatype, shape)


def _tensor_text(spec: TensorMetadata) -> str:
    return f"{spec.name}: {spec.datatype}{list(spec.shape)}"


@dataclass(slots=True, eq=False)
class _Entry:
    """A model that may be loaded.

    Attributes:
        path: Its file.
        state: Whether it answers.
        reason: Why it does not.
        model: It, if it is loaded.
        changing: Held by who loads or unloads it.
    """

    path: Path
    state: ModelState
    reason: str
    model: ServedModel | None
    changing: threading.Lock


class ModelRepository:
    """The models of a server, by name; they are loaded and unloaded while others run.

    Args:
        files: The file of each model, by name.
        open_program: Makes a program of a file, slowly.
        limits: How much each model takes on.
        metrics: Told of each run.
        folder: Whose models may be loaded as well, by their file's name without its ending.
    """

    def __init__(
        self,
        files: Mapping[str, Path],
        open_program: Callable[[Path], Program],
        limits: ServingLimits,
        metrics: ServerMetrics,
        folder: Path | None = None,
    ) -> None:
        self._open, self._limits, self._metrics = open_program, limits, metrics
        self._folder = folder
        self._lock = threading.Lock()
        self._entries = {name: _new(path) for name, path in files.items()}

    def index(self) -> list[IndexEntry]:
        """Return all models that there are, by name."""
        self._look()
        return [
            IndexEntry(name, VERSION, entry.state, entry.reason)
            for name, entry in sorted(self._entries.items())
        ]

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a model that is loaded.

        Args:
            name: Of the model.
            version: Which one; empty for any.

        Raises:
            ServingError: There is none, or it is not loaded.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise ServingError(f"there is no model {_shown(name)}", status=404)
        if version not in ("", VERSION):
            raise ServingError(
                f"model {name!r} has no version {_shown(version)}",
                status=404,
                hint=f"its version is {VERSION}",
            )
        if entry.model is None:
            raise ServingError(f"model {name!r} does not answer: {entry.reason}", status=503)
        return entry.model

    def load(self, name: str) -> ServedModel:
        """Load a model from its file, and then put it into the place of what it was before.

        Args:
            name: Of the model.

        Raises:
            ServingError: There is no such model.
            IntarsiaError: It cannot be loaded; the one that was there before stays.
        """
        entry = self._known(name)
        with entry.changing:
            before = entry.model
            if before is None:
                entry.state, entry.reason = ModelState.LOADING, "it is being loaded"
            try:
                model = ServedModel(name, self._open(entry.path), self._limits, self._metrics)
            except BaseException as error:
                if before is None:
                    words = error.message if isinstance(error, IntarsiaError) else repr(error)
                    entry.state, entry.reason = ModelState.UNAVAILABLE, words
                raise
            entry.model, entry.state, entry.reason = model, ModelState.READY, ""
            self._metrics.watch(name, model.queue)
            if model.no_batch:
                logger.warning("requests to %r run alone: %s", name, model.no_batch)
            if before is not None:
                self._drain(name, before, time.monotonic() + self._limits.grace)
            return model

    def unload(self, name: str) -> None:
        """Let a model end what it was asked for, and forget it.

        Args:
            name: Of the model.

        Raises:
            ServingError: There is no such model.
        """
        entry = self._known(name)
        with entry.changing:
            model = entry.model
            if model is None:
                return
            entry.model, entry.state = None, ModelState.UNLOADING
            entry.reason = "it is being unloaded"
            self._drain(name, model, time.monotonic() + self._limits.grace)
            self._metrics.forget(name)
            entry.state, entry.reason = ModelState.UNAVAILABLE, "unloaded"
        del model
        gc.collect()
        give_memory_back()

    def has(self, name: str) -> bool:
        """Tell whether there is a model of a name, loaded or not.

        Args:
            name: Of the model.
        """
        return name in self._entries

    def close(self, end: float) -> bool:
        """Let all models end what they were asked for.

        Args:
            end: When to wait no longer, by `time.monotonic`.

        Returns:
            Whether all of it has ended.
        """
        models = [(name, each.model) for name, each in self._entries.items() if each.model]
        have_ended = [self._drain(name, model, end) for name, model in models]
        return all(have_ended)

    def _drain(self, name: str, model: ServedModel, end: float) -> bool:
        has_ended = model.queue.close(max(0.0, end - time.monotonic()))
        if not has_ended:
            logger.warning("model %r still runs, and is left alone", name)
        return has_ended

    def _known(self, name: str) -> _Entry:
        self._look()
        entry = self._entries.get(name)
        if entry is None:
            raise ServingError(
                f"there is no model {_shown(name)} in the repository",
                status=404,
                hint="the index lists those that there are",
            )
        return entry

    def _look(self) -> None:
        """Add the models of the folder that have come, forget those that have gone unloaded."""
        if self._folder is None:
            return
        found = find_models(self._folder)
        with self._lock:
            for name, path in found.items():
                if name not in self._entries:
                    self._entries = {**self._entries, name: _new(path)}
            self._entries = {
                name: entry
                for name, entry in self._entries.items()
                if name in found
                or entry.path.parent != self._folder
                or entry.model is not None
                or entry.changing.locked()
            }


def _new(path: Path) -> _Entry:
    return _Entry(path, ModelState.UNAVAILABLE, NOTHING, None, threading.Lock())


def find_models(folder: Path) -> dict[str, Path]:
    """Return the models of a folder by the names of their files; a package before its model.

    Args:
        folder: It; what is inside other folders is not looked at.

    Raises:
        SettingError: It cannot be read.
    """
    try:
        paths = sorted(
            path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file()
        )
    except OSError as error:
        raise SettingError(f"the folder {str(folder)!r} cannot be read: {error.strerror}") from None
    found: dict[str, Path] = {}
    for path in paths:
        if path.suffix == SUFFIXES[1] or path.stem not in found:
            found[path.stem] = path
    return found


def name_models(texts: Iterable[str]) -> dict[str, Path]:
    """Return files by the names of the models in them: `NAME=FILE`, or by the file's own name.

    Args:
        texts: As users write them.

    Raises:
        SettingError: Two have one name, or a name is none.
    """
    files: dict[str, Path] = {}
    for text in texts:
        name, sign, file = text.partition("=")
        path = Path(file) if sign and not Path(text).exists() else Path(text)
        if path == Path(text):
            name = path.stem
        if not name or "/" in name or not name.isprintable():
            raise SettingError(
                f"{name!r} is no name of a model", hint="write NAME=FILE, as in resnet=r50.onnx"
            )
        if name in files:
            raise SettingError(
                f"two models have the name {name!r}: {files[name]} and {path}",
                hint=f"write another name, as in {name}2={path}",
            )
        files[name] = path
    return files


_SHOWN = 80


def _shown(text: str) -> str:
    """Return a text of a stranger's for a message: not more of it than people read."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
