# SPDX-License-Identifier: Apache-2.0
"""Real inputs of a model: read from files, cut into runs, divided into two halves of a trial.

The first axis of an array counts samples. For an input that has a batch for its first dimension
that is this dimension, and each run takes as many as the model fixes, or one. Any other input gets
an axis in front.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import TensorSpec
from intarsia.errors import InputError
from intarsia.extents import free_symbols
from intarsia.hashing import digest
from intarsia.runtime.feeds import check_names, sample_feeds

if TYPE_CHECKING:
    from intarsia.graph.free_sizes import FreeSignature, FreeSpec

Feeds: TypeAlias = "Mapping[str, Array]"
"""What one run reads: an array for each input, by name."""

Given: TypeAlias = "str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]]"
"""Samples as a user has them: `.npz` files, folders of these, or arrays by input."""

_ONE_IN = 4
"""Of the samples for calibration, one in so many is held out."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Real inputs for two purposes.

    Attributes:
        calibration: What ranges are read from.
        trial: What the error is measured on.
        is_held_out: Whether the two have nothing in common.
    """

    calibration: tuple[Feeds, ...]
    trial: tuple[Feeds, ...]
    is_held_out: bool

    def digest(self) -> str:
        """Return a hash of all of them."""
        return digest(chain(_texts(self.calibration), ["trial"], _texts(self.trial)))


def divide(samples: Sequence[Feeds]) -> Samples:
    """Hold out every fourth sample for the trial; of fewer than four, all serve both purposes."""
    trial = tuple(samples[_ONE_IN - 1 :: _ONE_IN])
    if not trial:
        return Samples(tuple(samples), tuple(samples), is_held_out=False)
    calibration = tuple(one for i, one in enumerate(samples) if i % _ONE_IN != _ONE_IN - 1)
    return Samples(calibration, trial, is_held_out=True)


def read_samples(given: Given, signature: FreeSignature) -> tuple[Feeds, ...]:
    """Return what each run reads, in the order of the samples; files go by their names.

    Args:
        given: Where the samples are.
        signature: What the model takes.

    Raises:
        InputError: A file cannot be read, or an array does not fit its input.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    samples = [
        feeds
        for one in several
        for source, arrays in _sources(one)
        for feeds in _cut(source, arrays, signature)
    ]
    if not samples:
        raise InputError("there are no samples", hint="give at least one, better a hundred")
    return tuple(samples)


def make_samples(signature: FreeSignature, seed: int, count: int) -> tuple[Feeds, ...]:
    """Return made-up samples of nominal sizes.

    Args:
        signature: What the model takes.
        seed: For the first; the next has the next.
        count: How many.

    Raises:
        InputError: An input has no rank or is no tensor, or the seed is negative.
    """
    shapes = signature.shapes_at(signature.nominal_sizes())
    specs = [TensorSpec(one.name, one.dtype, shapes.get(one.name)) for one in signature.inputs]
    return tuple(sample_feeds(specs, seed + i, signature.info.legal) for i in range(count))


def _texts(samples: Iterable[Feeds]) -> Iterator[str]:
    for feeds in samples:
        for name in sorted(feeds):
            array = feeds[name]
            yield f"{name} {array.dtype} {array.shape}"
            yield array.tobytes().hex() if array.dtype != object else repr(array.tolist())


def _sources(given: str | Path | Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the arrays of each file, or those that are given, with what messages call them."""
    if isinstance(given, Mapping):
        yield "the samples", {name: np.asarray(array) for name, array in given.items()}
        return
    path = Path(given)
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"there is no .npz file in {str(path)!r}",
            hint="write samples there with numpy.savez(FILE, input=array)",
        )
    for file in files:
        yield repr(str(file)), _read(file)


def _read(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {str(file)!r}", hint="check the path") from None
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{str(file)!r} is not a .npz file of plain arrays: {error}",
            hint="write it with numpy.savez(FILE, input=array), a name for each input",
        ) from None


def _cut(
    source: str, arrays: Mapping[str, Array], signature: FreeSignature
) -> Iterator[dict[str, Array]]:
    """Yield what each run reads of the arrays of one source.

    Raises:
        InputError: An array is missing, unknown or of another type or shape, or the inputs are
            not given equally often.
    """
    check_names(signature.inputs, arrays)
    inner = free_symbols(
        extent
        for spec in signature.inputs
        for extent in (spec.shape or ())[1:]
        if extent is not None
    )
    pieces = {
        spec.name: _pieces(source, spec, arrays[spec.name], has_batch=_has_batch(spec, inner))
        for spec in signature.inputs
    }
    counts = {name: len(parts) for name, parts in pieces.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise InputError(
            f"{source}: not as many samples of each input: {said}",
            hint="the first axis of every array counts the samples",
        )
    for i in range(next(iter(counts.values()), 0)):
        feeds = {name: parts[i] for name, parts in pieces.items()}
        signature.find_sizes({name: array.shape for name, array in feeds.items()})
        yield feeds


def _has_batch(spec: FreeSpec, inner: frozenset[Any]) -> bool:
    """Whether samples lie along the input's own first dimension: no other input has it inside."""
    first = spec.shape[0] if spec.shape else None
    return isinstance(first, int) or (first is not None and not first.symbols & inner)


def _pieces(source: str, spec: FreeSpec, array: Array, *, has_batch: bool) -> list[Array]:
    """Return the array of each run."""
    if not spec.dtype or spec.shape is None:
        raise InputError(
            f"nothing says how samples of the input {spec} are counted",
            hint=f"give its shape: --shape {spec.name}=1x3x224x224",
        )
    if array.dtype != np_dtype(spec.dtype):
        raise InputError(
            f"{source}: {spec.name!r} is {array.dtype}, the model wants {spec.dtype}",
            hint=f"write array.astype({spec.dtype!r})",
        )
    if array.ndim == len(spec.shape) + 1:
        return [np.asarray(one) for one in array]
    first = spec.shape[0] if spec.shape else None
    size = first if isinstance(first, int) else 1
    if array.ndim != len(spec.shape) or not has_batch or len(array) % size:
        wanted = ",".join("?" if extent is None else str(extent) for extent in spec.shape)
        raise InputError(
            f"{source}: {spec.name!r} has shape {list(array.shape)}, and one run wants [{wanted}]",
            hint=f"give it the shape [samples,{wanted}]"
            + (f", or a multiple of {first} in front" if isinstance(first, int) else ""),
        )
    return [array[i : i + size] for i in range(0, len(array), size)]
