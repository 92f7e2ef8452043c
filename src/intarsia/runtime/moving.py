# SPDX-License-Identifier: Apache-2.0
"""Runs of one region on the caller's arrays where they lie, with results in fresh memory.

Copies of large tensors into memory of our own, and out of it, take as long as a whole operator that
computes little: they push what it reads out of the second cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from numpy import ndarray

from intarsia.arrays import Array, address_of
from intarsia.backends.device import PutAddress, Step
from intarsia.graph.arena import aligned_array

PlainRun: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any] | None]
"""Runs on an array per input and returns fresh outputs, both by name; None if an array is not a
plain one of numpy that fits, so that nothing has run."""

_LARGE_BYTES = 1 << 16
"""From here on, to copy a tensor costs more than to tell a region where it lies."""


class MovableTensor(NamedTuple):
    """An input or output of a model.

    Attributes:
        name: Its name.
        own: Memory of the context, where it lies unless told otherwise.
        place: Tells the region where it lies.
    """

    name: str
    own: Array
    place: PutAddress


def is_worth_moving(array: Array) -> bool:
    """Tell whether a tensor is so large that it is not copied."""
    return array.nbytes >= _LARGE_BYTES


def moving_run(
    run: Step, inputs: Sequence[MovableTensor], outputs: Sequence[MovableTensor]
) -> PlainRun:
    """Return what runs on arrays as they come; behind each run, all is where it was.

    Args:
        run: Runs the region.
        inputs: All inputs.
        outputs: All outputs.
    """
    # All that a call looks at is looked up here.
    read = [(*one, one.own.dtype, one.own.shape, is_worth_moving(one.own)) for one in inputs]
    made = [(*one, one.own.dtype, one.own.shape, is_worth_moving(one.own)) for one in outputs]
    home = [
        (one.place, address_of(one.own)) for one in (*inputs, *outputs) if is_worth_moving(one.own)
    ]

    def run_moving(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        if len(feeds) != len(read):
            return None
        for name, _, _, dtype, shape, _ in read:
            array = feeds.get(name)
            if type(array) is not ndarray or array.dtype is not dtype or array.shape != shape:
                return None
        try:
            results = {
                name: aligned_array(shape, dtype) if is_moved else own
                for name, own, _, dtype, shape, is_moved in made
            }
        except MemoryError:
            return None  # the other way says for what
        try:
            for name, own, place, _, _, is_moved in read:
                array = feeds[name]
                if is_moved and array.flags.c_contiguous and array.flags.aligned:
                    place(address_of(array))
                else:
                    own[...] = array
            for name, _, place, _, _, is_moved in made:
                if is_moved:
                    place(address_of(results[name]))
            run()
        finally:
            for place, address in home:
                place(address)
        return {
            name: results[name] if is_moved else own.copy() for name, own, _, _, _, is_moved in made
        }

    return run_moving
