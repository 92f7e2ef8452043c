# SPDX-License-Identifier: Apache-2.0
"""What a library is known to compute otherwise than ONNX says, as data: a rule, never a case.

Where the graph decides, every node that a rule describes is refused (`refuse_defects`). Where the
numbers decide, which are only known while running, a rule is a statement: of classes of numbers, or
of a bound that errors keep to. It is listed in `docs/numbers.md` and explains a disagreement
(`benchmarks/differential.py`); one of special values refuses too if the target says
`-special_values=exact`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.artifact import refuse
from intarsia.backends.values import Refusal
from intarsia.errors import ReasonCode

if TYPE_CHECKING:
    from intarsia.backends.values import BuildContext
    from intarsia.graph.graph import Graph, Node

_ONNX = ("", "ai.onnx")
_FAR = 2.0**50
_FEW = 8.0
"""Sums of 64 products, the square of this, may overflow."""


Bound = Callable[[Sequence[Any], Array], "Array | float"]
"""From what a node reads and its first result to how far each element of that may be off."""


def off_by_zero_point(inputs: Sequence[Any], result: Array) -> float:
    """Return what DequantizeLinear is off by if it scales first: two units of the zero point.

    Args:
        inputs: What it reads.
        result: What it made.
    """
    if len(inputs) < 3 or not isinstance(inputs[2], np.ndarray):  # noqa: PLR2004
        return 0.0
    size = np.abs(inputs[2].astype(np.float64)) * np.abs(inputs[1].astype(np.float64))
    return 2 * float(np.finfo(result.dtype).eps) * float(np.max(size, initial=0))


def of_spectrum(inputs: Sequence[Any], result: Array) -> float:
    """Return what a Fourier transform may be off by: eight units of what all elements add up to.

    Args:
        inputs: What it reads; the signal is the first.
        result: What it made.
    """
    size = float(np.sum(np.abs(inputs[0].astype(np.float64))))
    return 8 * float(np.finfo(result.dtype).eps) * size


def of_three_halves(inputs: Sequence[Any], result: Array) -> Array:
    """Return what a few roundings to halves in between are off by.

    Args:
        inputs: What it reads.
        result: What it made.
    """
    return np.asarray(3 * float(np.finfo(np.float16).eps) * np.abs(result.astype(np.float64)))


class Values(StrEnum):
    """A class of floating-point numbers."""

    NAN = "NaN"
    INFINITE = "infinity"
    NEGATIVE_ZERO = "-0.0"
    SUBNORMAL = "subnormal"
    HUGE = "huge"
    FAR = "beyond 2**50"

    def occurs(self, arrays: Iterable[Array]) -> bool:
        """Tell whether some array of floats holds such a number; sums of huge ones overflow."""
        return any(_HOLDS[self](array) for array in arrays if is_float(array))


class Flushed(StrEnum):
    """Which subnormal numbers of float32 are taken for zeros."""

    CONSTANTS = "constants"
    """Those that follow from constants alone, which are known when compiling."""

    ALL = "all"


_SPECIAL = frozenset((Values.NAN, Values.INFINITE, Values.NEGATIVE_ZERO))
"""What `-special_values=exact` is about; flushed subnormals and overflowing sums are not."""


def is_float(array: Array) -> bool:
    """Tell whether an array holds floats, those of ml_dtypes among them."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _sizes(array: Array) -> tuple[Array, float, float]:
    """Return absolute values, the least normal one and the largest one of the type."""
    import ml_dtypes

    limits = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    least, largest = float(limits.smallest_normal), float(limits.max)
    return np.abs(array.astype(np.float64)), least, largest


def _holds_subnormal(array: Array) -> bool:
    sizes, least, _ = _sizes(array)
    return bool(((sizes > 0) & (sizes < least)).any())


def _holds_huge(array: Array) -> bool:
    sizes, _, largest = _sizes(array)
    return bool(((sizes > largest**0.5 / _FEW) & np.isfinite(sizes)).any())


_HOLDS: dict[Values, Callable[[Array], bool]] = {
    Values.NAN: lambda array: bool(np.isnan(array).any()),
    Values.INFINITE: lambda array: bool(np.isinf(array).any()),
    Values.NEGATIVE_ZERO: lambda array: bool((np.signbit(array) & (array == 0)).any()),
    Values.SUBNORMAL: _holds_subnormal,
    Values.HUGE: _holds_huge,
    Values.FAR: lambda array: bool((np.abs(array.astype(np.float64)) > _FAR).any()),
}


@dataclass(frozen=True, slots=True)
class KnownDefect:
    """One thing that a library gets wrong.

    Attributes:
        backend: Name of the backend.
        operators: Operators of ONNX's own domain; empty for all.
        says: What it does instead of what ONNX says: one clause, for people.
        source: How that is known: the release of the library that was tried, against what.
        values: Classes of numbers with which it happens, among what the node reads, makes or should
            make.
        bound: How far results may be off, if that is stated. A rule without classes of numbers and
            without a bound is one that the graph alone decides.
        dtypes: Element types of the first input with which it happens; empty for all.
        mended: The first release of the library that is right; empty while there is none.
        flushes: Which subnormal numbers it takes for zeros, if that is all that it does: then it
            explains only what that makes of a graph.
        where: Which nodes of these operators; None for all.
        code: The reason's code in a refusal.
        is_fatal: Whether the process dies or never comes back: nobody may run such a node, not
            even to see what it makes.
        is_rewritten: Whether the backend says such nodes otherwise where it can.
    """

    backend: str
    operators: frozenset[str]
    says: str
    source: str
    values: frozenset[Values] = frozenset()
    bound: Bound | None = None
    dtypes: frozenset[str] = frozenset()
    mended: str = ""
    flushes: Flushed | None = None
    where: Callable[[Graph, Node], bool] | None = None
    code: ReasonCode = ReasonCode.NUMERICS
    is_fatal: bool = False
    is_rewritten: bool = False

    @classmethod
    def of(  # noqa: PLR0913 - one for each field
        cls,
        backend: str,
        source: str,
        operators: str,
        says: str,
        *values: Values,
        bound: Bound | None = None,
        dtypes: str = "",
        flushes: Flushed | None = None,
        where: Callable[[Graph, Node], bool] | None = None,
        code: ReasonCode = ReasonCode.NUMERICS,
        is_fatal: bool = False,
        is_rewritten: bool = False,
    ) -> KnownDefect:
        """Return a rule; its operators and dtypes are words with spaces between."""
        return cls(
            backend,
            frozenset(operators.split()),
            says,
            source,
            frozenset(values),
            bound,
            frozenset(dtypes.split()),
            flushes=flushes,
            where=where,
            code=code,
            is_fatal=is_fatal,
            is_rewritten=is_rewritten,
        )

    @property
    def is_refused(self) -> bool:
        """Whether the graph alone decides, so that such nodes are not taken."""
        return not self.values and self.bound is None

    def describes(self, graph: Graph, node: Node, version: str) -> bool:
        """Tell whether a node is one of those that a release of the library may get wrong."""
        is_meant = not self.operators or node.op_type in self.operators
        if not is_meant or node.domain not in _ONNX or self in _FORGOTTEN:
            return False
        if self.mended and _numbers(version) >= _numbers(self.mended):
            return False
        if self.dtypes:
            first = next((graph.values[value].dtype for value in node.inputs if value >= 0), "")
            if first not in self.dtypes:
                return False
        return self.where is None or self.where(graph, node)

    def explains(self, arrays: Iterable[Array]) -> bool:
        """Tell whether numbers are such as make the defect show.

        Args:
            arrays: What a node that it describes reads, what it makes and what it should make; the
                elements in question are enough.
        """
        remaining = list(arrays)
        return not self.values or any(values.occurs(remaining) for values in self.values)


def finite_magnitudes(array: Array) -> Array:
    """Return magnitudes in float64, with 0 for what is not finite: no bound explains that."""
    magnitudes = np.abs(array.astype(np.float64))
    return np.where(np.isfinite(magnitudes), magnitudes, 0)


def draws(backend: str, source: str) -> KnownDefect:
    """Return the rule that a library draws random numbers of its own.

    Args:
        backend: Its name.
        source: How that is known.
    """
    return KnownDefect.of(
        backend,
        source,
        "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform "
        "RandomUniformLike",
        "it draws other random numbers",
        bound=lambda inputs, result: inf,
        where=lambda graph, node: node.op_type != "Dropout" or len(node.inputs) > 2,  # noqa: PLR2004
    )


_FORGOTTEN: set[KnownDefect] = set()


@contextmanager
def forgotten(defect: KnownDefect) -> Iterator[None]:
    """Disable the rule of a defect for a while: a search for defects must then find it.

    Args:
        defect: It describes no node until the end of the block, in all threads.
    """
    _FORGOTTEN.add(defect)
    try:
        yield
    finally:
        _FORGOTTEN.discard(defect)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def refuse_defects(
    graph: Graph,
    context: BuildContext,
    defects: Sequence[KnownDefect],
    version: str,
    is_rewritten: Callable[[Graph, Node], bool] = lambda graph, node: False,
) -> dict[int, Refusal]:
    """Refuse every node that a library gets wrong, by node id.

    Args:
        graph: Every node of it is looked at.
        context: Names the target, whose `special_values` decides about rules that numbers decide.
        defects: What is known of the library.
        version: The library's release.
        is_rewritten: Tells whether the backend says a node otherwise; asked of rules that say so.
    """
    is_exact = context.attrs.get("special_values") == "exact"
    refused = _SPECIAL if is_exact else frozenset()
    chosen = [defect for defect in defects if defect.is_refused or defect.values & refused]
    refusals = {}
    for node in graph.nodes:
        for defect in chosen:
            if defect.describes(graph, node, version):
                if defect.is_rewritten and is_rewritten(graph, node):
                    continue
                reason = defect.says
                if defect.values:
                    reason = f"{reason}, and -special_values=exact is set"
                refusals[node.id] = refuse(node, context, defect.code, reason)
                break
    return refusals
