# SPDX-License-Identifier: Apache-2.0
"""Schedules that were measured to be faster than those that heuristics pick, for lowering to use.

Kernels of one key have the same shape and may have the same schedules. What follows in their
epilogues and where their tensors lie does not count: it changes little of what is fastest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from intarsia.codegen.body import Layout
from intarsia.codegen.kernels.candidates import Schedule, Spec, candidates, schedule_of
from intarsia.codegen.kernels.conv import Conv
from intarsia.codegen.kernels.conv_plain import PlainConv
from intarsia.codegen.kernels.conv_window import Window
from intarsia.codegen.kernels.depthwise import Depthwise
from intarsia.codegen.kernels.gemm_spec import Gemm, Panels
from intarsia.codegen.kernels.pool_spec import Pool
from intarsia.codegen.kernels.winograd_spec import Winograd

logger = logging.getLogger(__name__)

_BY = " by "


class Choice(msgspec.Struct, frozen=True):
    """What was measured to be fastest: one of the algorithms of a kernel, and its schedule."""

    algorithm: str
    schedule: dict[str, Any]


class Chooser(Protocol):
    """Says how a kernel is to run."""

    def choose(self, first: Spec, others: Callable[[], Sequence[Spec]]) -> Spec:
        """Return a description of a kernel, with a schedule unless heuristics are to pick it.

        Args:
            first: What heuristics take.
            others: Returns what may be taken as well: other algorithms for the same result.
        """


def none() -> Sequence[Spec]:
    """Return no other algorithm."""
    return ()


@dataclass(frozen=True, slots=True)
class Schedules:
    """Choices by key; without any, heuristics pick everything."""

    choices: Mapping[str, Choice] = field(default_factory=dict)

    def choose(self, first: Spec, others: Callable[[], Sequence[Spec]]) -> Spec:
        """Return a kernel with the schedule that was found for its key, if one was."""
        if not self.choices:
            return first
        shape = shape_of(first)
        if not any(key.startswith(f"{shape}{_BY}") for key in self.choices):
            return first
        specs = (first, *others())
        choice = self.choices.get(key_of(specs))
        return first if choice is None else _apply(choice, specs) or first


HEURISTICS = Schedules()


@dataclass(slots=True)
class Recorder:
    """Chooses what heuristics do, and notes what there was to choose, and how often."""

    found: dict[str, tuple[Spec, ...]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def choose(self, first: Spec, others: Callable[[], Sequence[Spec]]) -> Spec:
        """Return what heuristics take."""
        if _is_tunable(first):
            specs = (first, *others())
            key = key_of(specs)
            self.found.setdefault(key, specs)
            self.counts[key] = self.counts.get(key, 0) + 1
        return first


def _is_tunable(spec: Spec) -> bool:
    """Tell whether a kernel does anything, on the numbers that a tuner makes up."""
    if isinstance(spec, Gemm):
        dtypes = {spec.a.dtype, spec.b.dtype, spec.c.dtype}
        return dtypes == {"float32"} and 0 not in (*spec.batch, spec.m, spec.n, spec.k)
    return spec.x.dtype == "float32" and 0 not in (spec.batch, *spec.window.out)


def _apply(choice: Choice, specs: Sequence[Spec]) -> Spec | None:
    """Return the kernel that was chosen; nothing if it is none that would be compared today."""
    for spec in specs:
        if algorithm_of(spec) == choice.algorithm:
            found = next((s for s in candidates(spec) if fields_of(s) == choice.schedule), None)
            if found is not None:
                return replace(spec, schedule=found)  # type: ignore[arg-type] # of its own kind
    logger.info("a tuned schedule is not known any more: %s", choice)
    return None


def choice_of(spec: Spec) -> Choice:
    """Return what a kernel is, as a choice."""
    return Choice(algorithm_of(spec), fields_of(schedule_of(spec)))


def fields_of(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as plain data."""
    data: dict[str, Any] = msgspec.to_builtins(schedule)
    return data


def algorithm_of(spec: Spec) -> str:
    """Return which of the ways to the same result a kernel is."""
    return f"F({spec.outputs})" if isinstance(spec, Winograd) else "direct"


def key_of(specs: Sequence[Spec]) -> str:
    """Return the shape of a kernel, and the algorithms there are to choose from."""
    names = sorted(map(algorithm_of, specs))
    return f"{shape_of(specs[0])}{_BY}{', '.join(names)}"


def shape_of(spec: Spec) -> str:
    """Return in words what decides which schedules a kernel can have, and which are fast."""
    match spec:
        case Conv():
            block, groups = spec.x_block, spec.groups
            extents = (spec.batch, spec.in_channels, spec.out_channels)
            return _convolution("conv", extents, spec.window, f"{groups} groups, x{block}", spec.y)
        case Winograd():
            block = spec.unit.lanes()
            extents = (spec.batch, spec.in_channels, spec.out_channels)
            return _convolution("conv", extents, spec.window, f"1 groups, x{block}", spec.y)
        case PlainConv():
            extents = (spec.batch, spec.in_channels, spec.out_channels)
            return _convolution("plain conv", extents, spec.window, f"{spec.groups} groups", spec.y)
        case Depthwise():
            extents = (spec.batch, spec.channels, spec.channels)
            return _convolution("depthwise conv", extents, spec.window, "", spec.y)
        case Gemm():
            batch = "x".join(map(str, spec.batch))
            if isinstance(spec.b, Panels):
                right = f"panels {'x'.join(map(str, spec.b.batch))}"
            else:
                right = f"strides {spec.b.strides}"
            return (
                f"gemm {batch} {spec.m}x{spec.k}x{spec.n}, {spec.a.dtype}, rows "
                f"{spec.a.strides[-2:]}, {right}, to {spec.c.dtype} {spec.c.strides[-2:]}"
            )
        case Pool():
            extents = (spec.batch, spec.channels, spec.block)
            more = f"{spec.kind} {spec.extents} {spec.pads} {spec.indices is not None}"
            return _convolution("pool", extents, spec.window, more, spec.y)


def _convolution(name: str, extents: Sequence[int], window: Window, more: str, y: Layout) -> str:
    """Return the shape of what a window slides over."""
    numbers = (extents, window.out, window.kernel, window.strides, window.dilations)
    shape, out, taps, strides, dilations = ("x".join(map(str, item)) for item in numbers)
    return f"{name} {shape} at {out}, taps {taps} by {strides} / {dilations}, {more}, {y.dtype}"
