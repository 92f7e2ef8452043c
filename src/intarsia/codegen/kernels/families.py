# SPDX-License-Identifier: Apache-2.0
"""The kernel families: what each of them answers, and the one table of them.

A family is a module of this package, or a folder where that would be long. It describes its
kernels by frozen values (`SPECS`) and answers by functions on them; `family_of` finds the
family of a description, and nothing else tells classes of descriptions apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from intarsia.arrays import Array
from intarsia.codegen.ir import Function
from intarsia.codegen.kernels import (
    attention,
    block_gemm,
    bounds,
    cache,
    code_panels,
    code_softmax,
    code_sums,
    compaction,
    conv,
    conv_plain,
    depthwise,
    elementwise,
    entry_tables,
    fill,
    gather,
    gemm,
    global_pool,
    grid_attention,
    grid_conv,
    grid_gemm,
    grid_reduce,
    grid_rows,
    grid_strips,
    lookup,
    lrn,
    pair_conv,
    paired_codes,
    pool,
    recurrence,
    reduce,
    remap,
    resize,
    rows,
    sampling,
    scan,
    scatter,
    sizes,
    steering,
    suppression,
    tile_product,
    tile_rows,
    top_k,
    unique,
    warp_gemm,
    winograd,
)
from intarsia.codegen.unit import CpuModel


class KernelFamily(Protocol):
    """What every family answers."""

    @property
    def SPECS(self) -> tuple[type, ...]:  # noqa: N802 - a constant of a module
        """The classes of its descriptions."""

    def build(self, spec: Any) -> Function:
        """Return the kernel."""


class TunableFamily(KernelFamily, Protocol):
    """What a family answers whose kernels can be cut in several ways, to the same bits."""

    def key(self, spec: Any) -> str:
        """Say in words what decides which schedules a kernel can have, and which are fast."""

    def schedule(self, spec: Any) -> Any:
        """Return the schedule that a kernel has, or that the heuristic picks."""

    def candidates(self, spec: Any) -> Iterable[Any]:
        """Return schedules for a tuner to compare with that, some perhaps more than once.

        What decides in which order sums are made stays as it is.
        """

    def flops(self, spec: Any) -> int:
        """Return the operations of a kernel, by the definition of its operator."""


class WeightFamily(TunableFamily, Protocol):
    """What a family answers whose kernels read constant weights, packed for them."""

    def pack(self, spec: Any, weights: Array) -> Array:
        """Return weights as the kernel reads them."""

    def packing(self, spec: Any) -> str:
        """Name the order of packed weights: kernels of one name can share them."""


class TunableSpec(Protocol):
    """What the descriptions of tunable families have in common."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __hash__(self) -> int:
        """Tell it from others: it is frozen."""

    @property
    def unit(self) -> CpuModel:
        """What the kernel is shaped for."""

    @property
    def schedule(self) -> Any:
        """How it is cut; None leaves that to the heuristic."""

    @property
    def algorithm(self) -> str:
        """Which of the ways to the same result it is."""

    @property
    def is_measurable(self) -> bool:
        """Whether it does anything, on the numbers that a tuner makes up."""


Spec = TypeVar("Spec", bound=TunableSpec)

WEIGHTED: tuple[WeightFamily, ...] = (conv, conv_plain, depthwise, gemm, pair_conv, winograd)
TUNABLE: tuple[TunableFamily, ...] = (*WEIGHTED, pool)
FAMILIES: tuple[KernelFamily, ...] = (
    *TUNABLE,
    attention,
    block_gemm,
    bounds,
    cache,
    code_panels,
    code_softmax,
    code_sums,
    compaction,
    elementwise,
    entry_tables,
    fill,
    gather,
    global_pool,
    grid_attention,
    grid_conv,
    grid_gemm,
    grid_reduce,
    grid_rows,
    grid_strips,
    lookup,
    lrn,
    paired_codes,
    recurrence,
    reduce,
    remap,
    resize,
    rows,
    sampling,
    scan,
    scatter,
    sizes,
    steering,
    suppression,
    tile_product,
    tile_rows,
    top_k,
    unique,
    warp_gemm,
)

_BY_SPEC = {spec: family for family in FAMILIES for spec in family.SPECS}
_TUNABLE_BY_SPEC = {spec: family for family in TUNABLE for spec in family.SPECS}
_WEIGHTED_BY_SPEC = {spec: family for family in WEIGHTED for spec in family.SPECS}


def family_of(spec: object) -> KernelFamily:
    """Return the family of a kernel."""
    return _BY_SPEC[type(spec)]


def tunable_family(spec: TunableSpec) -> TunableFamily:
    """Return the family of a kernel whose schedule can be chosen."""
    return _TUNABLE_BY_SPEC[type(spec)]


def weight_family(spec: TunableSpec) -> WeightFamily:
    """Return the family of a kernel that reads packed weights."""
    return _WEIGHTED_BY_SPEC[type(spec)]


def candidates(spec: TunableSpec) -> tuple[Any, ...]:
    """Return schedules of a kernel that has none yet, the heuristic's first; each once."""
    family = tunable_family(spec)
    return tuple(dict.fromkeys((family.schedule(spec), *family.candidates(spec))))


def with_schedule(spec: Spec, schedule: Any) -> Spec:
    """Return a kernel that is cut as a schedule of its family says."""
    return replace(spec, schedule=schedule)
