# SPDX-License-Identifier: Apache-2.0
"""Einsum, as matrix products, sums and elementwise products over views of its operands."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import prod

from intarsia.codegen.body import Apply, Body, Fused, identity
from intarsia.codegen.kernels.elementwise import Elementwise
from intarsia.codegen.kernels.gemm import Gemm
from intarsia.codegen.kernels.reduce import Reduction
from intarsia.codegen.lower.assembler import Assembler
from intarsia.codegen.lower.grid import shared_reduction
from intarsia.codegen.lower.groups import KernelGroup
from intarsia.codegen.lower.operation import Operation
from intarsia.codegen.lower.products import choose_product, dots_key
from intarsia.codegen.lower.recipes import fuse
from intarsia.codegen.lower.reductions import in_settled_order
from intarsia.codegen.lower.views import View

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


class _EquationError(Exception):
    """What is in the way of an equation."""


@dataclass(frozen=True, slots=True)
class _Equation:
    """An equation over the shapes of its operands.

    Attributes:
        terms: The index of each dimension of each operand: a letter, or `.1` for the last but one
            that an ellipsis stands for. An operand may have one several times.
        output: The index of each dimension of the result, each once.
        sizes: The extent of each index.
    """

    terms: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    sizes: dict[str, int]


def _parse(text: str, shapes: Sequence[tuple[int, ...]]) -> _Equation:
    """Return what an equation means for operands of some shapes.

    Raises:
        _EquationError: It does not fit them, or what it means is not agreed on.
    """
    left, arrow, right = text.replace(" ", "").partition("->")
    texts = left.split(",")
    if not all(_TERM.fullmatch(term) for term in (*texts, right)):
        raise _EquationError(f"{text!r} is not an equation")
    if len(texts) != len(shapes):
        raise _EquationError(f"{text!r} is not of {len(shapes)} operands")
    hidden = 0
    terms = []
    sizes: dict[str, int] = {}
    for term, shape in zip(texts, shapes, strict=True):
        count = len(shape) - len(term.replace("...", ""))
        if count < 0 or (count and "..." not in term):
            raise _EquationError(f"{term!r} is not of rank {len(shape)}")
        hidden = max(hidden, count if "..." in term else 0)
        terms.append(_indices(term, count))
        extents: dict[str, int] = {}
        for name, extent in zip(terms[-1], shape, strict=True):
            if extents.setdefault(name, extent) != extent:
                raise _EquationError(f"{name!r} has two extents in {term!r}")
        for name, extent in extents.items():
            known = sizes.setdefault(name, extent)
            if known != extent and 1 not in (known, extent):
                raise _EquationError(f"{name!r} has extents {known} and {extent}")
            sizes[name] = extent if known == 1 else known
    output = _indices(right, hidden) if arrow else _implicit_output(left, hidden)
    if arrow and hidden and "..." not in right:
        raise _EquationError("its result leaves out the ellipsis")
    if len(set(output)) != len(output) or not set(output) <= set(sizes):
        raise _EquationError(f"{right!r} does not follow from the operands")
    return _Equation(tuple(terms), output, sizes)


def _implicit_output(left: str, hidden: int) -> tuple[str, ...]:
    """Return the indices of a result that is not told: those that occur once, by the alphabet."""
    letters = sorted(name for name in set(left) - set(",.") if left.count(name) == 1)
    if any(map(str.isupper, letters)) and any(map(str.islower, letters)):
        raise _EquationError("its result has letters of both cases in no order")
    return (*_indices("...", hidden), *letters)


def _indices(term: str, hidden: int) -> tuple[str, ...]:
    """Return the indices of a term whose ellipsis stands for some dimensions."""
    before, dots, after = term.partition("...")
    middle = (f".{number}" for number in reversed(range(hidden if dots else 0)))
    return (*before, *middle, *after)


def _equation_of(operation: Operation) -> _Equation:
    shapes = [value.shape or () for value in operation.inputs]
    return _parse(operation.attribute("equation"), shapes)


def refuse_einsum(operation: Operation) -> str | None:
    """Say why an Einsum is not taken."""
    dtypes = {value.dtype for value in (*operation.inputs, *operation.outputs)}
    if len(dtypes) > 1:
        return "its tensors are of several dtypes"
    try:
        equation = _equation_of(operation)
    except _EquationError as error:
        return str(error)
    shape = tuple(equation.sizes[name] for name in equation.output)
    return None if shape == operation.output_shape else f"its result is {shape} by its equation"


@dataclass(frozen=True, slots=True)
class _Factor:
    """A tensor with a name for each dimension, each once; it is the same along other indices.

    Attributes:
        view: Plain.
        names: Of its dimensions.
    """

    view: View
    names: tuple[str, ...]

    def step(self, name: str) -> int:
        """Return the elements from one entry to the next along an index."""
        return self.view.strides[self.names.index(name)] if name in self.names else 0

    def over(self, names: Sequence[str], sizes: dict[str, int]) -> View:
        """Return the tensor over some indices, those that it lacks read again."""
        shape = tuple(sizes[name] for name in names)
        return replace(self.view, shape=shape, strides=tuple(map(self.step, names)))


def _factor(
    view: View, names: tuple[str, ...], sizes: dict[str, int], wide: Collection[str]
) -> _Factor:
    """Return an operand as a factor: its diagonal where an index repeats, broadcast ones gone.

    Args:
        view: The operand.
        names: Of its dimensions.
        sizes: Of all indices.
        wide: The indices that count; the others are 1.
    """
    kept = tuple(
        name
        for name in dict.fromkeys(names)
        if name in wide and view.shape[names.index(name)] == sizes[name]
    )
    pairs = list(zip(names, view.strides, strict=True))
    strides = tuple(sum(step for other, step in pairs if other == name) for name in kept)
    shape = tuple(sizes[name] for name in kept)
    return _Factor(replace(view, shape=shape, strides=strides), kept)


def lower_einsum(assembler: Assembler, group: KernelGroup) -> None:
    """Append the sums and products of an Einsum, two operands at a time.

    An index of one operand alone is summed first. Then the two with the smallest product are
    multiplied, until one is left: a matrix product if they share an index that goes.
    """
    operation = group.anchor
    equation = _equation_of(operation)
    work = _Contraction(assembler, group, equation)
    wide = [name for name, size in equation.sizes.items() if size != 1]
    settled = assembler.settle(f"indices of {operation.node.name}", lambda: " ".join(wide))
    wide = wide if settled is None else settled.split()
    factors = [
        _factor(assembler.read(value_id), names, equation.sizes, wide)
        for value_id, names in zip(operation.node.inputs, equation.terms, strict=True)
    ]
    if len(factors) == 1:
        work.finish_one(factors[0])
        return
    factors = [work.summed(at, factors) for at in range(len(factors))]
    while len(factors) > 2:  # noqa: PLR2004 - a pair is left
        pairs = combinations(range(len(factors)), 2)
        pair = min(pairs, key=lambda pair: work.size_of_product(pair, factors))
        rest = [factor for at, factor in enumerate(factors) if at not in pair]
        factors = [*rest, work.multiplied(factors[pair[0]], factors[pair[1]], rest)]
    work.finish_product(*factors)


@dataclass(slots=True)
class _Contraction:
    """The calls of one Einsum.

    Attributes:
        assembler: Of the program.
        group: The Einsum, and what follows in the same kernel.
        equation: What it computes.
    """

    assembler: Assembler
    group: KernelGroup
    equation: _Equation

    def _needed(self, rest: Sequence[_Factor]) -> set[str]:
        """Return the indices that the result or other factors have."""
        return {*self.equation.output, *(name for factor in rest for name in factor.names)}

    def _scratch(self, names: Sequence[str]) -> _Factor:
        shape = [self.equation.sizes[name] for name in names]
        return _Factor(self.assembler.scratch(self._dtype, shape), tuple(names))

    @property
    def _dtype(self) -> str:
        return self.group.anchor.output.dtype

    def summed(self, at: int, factors: Sequence[_Factor]) -> _Factor:
        """Return a factor without the indices that nothing else has."""
        factor = factors[at]
        needed = self._needed([other for place, other in enumerate(factors) if place != at])
        if needed.issuperset(factor.names):
            return factor
        total = self._scratch([name for name in factor.names if name in needed])
        self._call_sum(factor, total, Fused(identity(self._dtype)), [])
        return total

    def _product_names(self, a: _Factor, b: _Factor, rest: Sequence[_Factor]) -> list[str]:
        """Return the indices of a product: those of both, then those of either."""
        needed = self._needed(rest)
        names = [name for name in dict.fromkeys((*a.names, *b.names)) if name in needed]
        return sorted(names, key=lambda name: not (name in a.names and name in b.names))

    def size_of_product(self, pair: tuple[int, int], factors: Sequence[_Factor]) -> int:
        """Return the entries of the product of two factors."""
        rest = [factor for at, factor in enumerate(factors) if at not in pair]
        names = self._product_names(factors[pair[0]], factors[pair[1]], rest)
        return prod(self.equation.sizes[name] for name in names)

    def multiplied(self, a: _Factor, b: _Factor, rest: Sequence[_Factor]) -> _Factor:
        """Return the product of two factors, without the indices that nothing else has."""
        product = self._scratch(self._product_names(a, b, rest))
        self._call_product(a, b, product, Fused(identity(self._dtype)), [])
        return product

    def finish_product(self, a: _Factor, b: _Factor) -> None:
        """Append the last product, to where the result is wanted, with what follows."""
        self._call_product(a, b, *self._finish())

    def finish_one(self, factor: _Factor) -> None:
        """Bring the only factor to where the result is wanted, with what follows."""
        output, sizes = self.equation.output, self.equation.sizes
        if not set(output).issuperset(factor.names):
            self._call_sum(factor, *self._finish())
        elif self.group.chain:
            result, fused, operands = self._finish()
            views = [item.over(output, sizes) for item in (factor, *operands, result)]
            self._call_elementwise(views, fused.body)
        else:
            self.assembler.alias(self.group.result, factor.over(output, sizes))

    def _finish(self) -> tuple[_Factor, Fused, list[_Factor]]:
        """Return the result, what is done to it, and the operands of that."""
        fused, operands = fuse(self.assembler, self.group, self._dtype)
        target, output = self.assembler.target(self.group.result), self.equation.output
        return _Factor(target, output), fused, [_Factor(view, output) for view in operands]

    def _call_sum(self, x: _Factor, y: _Factor, fused: Fused, operands: Sequence[_Factor]) -> None:
        """Append the sum over the indices that the result lacks."""
        axes = tuple(dim for dim, name in enumerate(x.names) if name not in y.names)
        kept = [name for name in x.names if name in y.names]
        y_view, *others = (item.over(kept, self.equation.sizes) for item in (y, *operands))
        spec = Reduction(
            x.view.domain,
            axes,
            "Sum",
            x.view.layout,
            y_view.layout,
            fused.over(view.layout for view in others),
            unit=self.assembler.unit,
        )
        name = f"{self.group.anchor.node.name}: {''.join(x.names)}"
        kernel = shared_reduction(self.assembler, in_settled_order(self.assembler, spec, name))
        self.assembler.call(kernel, (x.view, y_view, *others), self.group.names, "sum")

    def _call_product(
        self, a: _Factor, b: _Factor, c: _Factor, fused: Fused, operands: Sequence[_Factor]
    ) -> None:
        """Append a product: of matrices if an index goes, else element by element."""
        if not set(c.names).issuperset((*a.names, *b.names)):
            self._call_gemm(a, b, c, fused, operands)
            return
        views = [item.over(c.names, self.equation.sizes) for item in (a, b, *operands, c)]
        self._call_elementwise(views, _after_product(fused.body, self._dtype))

    def _call_elementwise(self, views: Sequence[View], body: Body) -> None:
        """Append a kernel from all views but the last to that."""
        *layouts, target = (view.layout for view in views)
        domain, unit = views[-1].domain, self.assembler.unit
        spec = Elementwise(domain, tuple(layouts), (target,), body, unit)
        self.assembler.call(spec, views, self.group.names)

    def _call_gemm(
        self, a: _Factor, b: _Factor, c: _Factor, fused: Fused, operands: Sequence[_Factor]
    ) -> None:
        """Append a product over stacks: indices of both operands, and what is no matrix's."""
        sizes = self.equation.sizes
        if c.names and c.names[-1] in a.names and c.names[-1] not in b.names:
            a, b = b, a  # columns are those that lie side by side in the result
        gone = [name for name in a.names if name in b.names and name not in c.names]
        gone.sort(key=a.step, reverse=True)
        a, b = (self._with_one_step(factor, gone) for factor in (a, b))
        of_a = [name for name in c.names if name in a.names and name not in b.names]
        of_b = [name for name in c.names if name in b.names and name not in a.names]
        columns = of_b[-1:]
        while len(columns) < len(of_b):
            wider = of_b[-len(columns) - 1 :]
            if not all(_is_even(factor, wider, sizes) for factor in (b, c, *operands)):
                break
            columns = wider
        # Rows last: the kernel joins them to the matrix's where all strides go on.
        stacks = [name for name in c.names if name not in (*columns, *of_a)] + of_a[:-1]
        rows = of_a[-1:]

        def matrices(factor: _Factor, down: Sequence[str], across: Sequence[str]) -> View:
            view = factor.over(stacks, sizes)
            shape = (prod(sizes[name] for name in names) for names in (down, across))
            steps = (factor.step(names[-1]) if names else 0 for names in (down, across))
            return replace(view, shape=(*view.shape, *shape), strides=(*view.strides, *steps))

        left, right = matrices(a, rows, gone), matrices(b, gone, columns)
        result, *others = (matrices(factor, rows, columns) for factor in (c, *operands))
        *batch, m, n = result.shape
        spec = Gemm(
            m,
            n,
            left.shape[-1],
            left.layout,
            right.layout,
            result.layout,
            tuple(batch),
            fused.over(view.layout for view in others),
            self.assembler.unit,
        )
        names = ",".join(map("".join, (a.names, b.names, c.names)))
        key = dots_key(self.group.anchor, f": {names}")
        product = choose_product(self.assembler, spec, key)
        self.assembler.call(product, (left, right, result, *others), self.group.names)

    def _with_one_step(self, factor: _Factor, names: list[str]) -> _Factor:
        """Return a factor in which some indices are as one, copied if they do not lie so."""
        if _is_even(factor, names, self.equation.sizes):
            return factor
        others = [name for name in factor.names if name not in names]
        dense = self._scratch([*others, *names])
        source = factor.over(dense.names, self.equation.sizes)
        self.assembler.copy(source, dense.view, self.group.names, "summed indices as one")
        return dense


def _is_even(factor: _Factor, names: Sequence[str], sizes: dict[str, int]) -> bool:
    """Tell whether a factor's entries lie at equal steps along some indices in order."""
    return all(
        factor.step(outer) == sizes[inner] * factor.step(inner) for outer, inner in pairwise(names)
    )


def _after_product(body: Body, dtype: str) -> Body:
    """Return what multiplies inputs 0 and 1, and then does what a body does to its input 0."""
    count = len(body.inputs)
    product = count + 1

    def number(old: int) -> int:
        if old <= 0:
            return product if old == 0 else old
        return old + 1 if old < count else old + 2

    steps = [Apply("Mul", (0, 1), (), dtype)]
    steps += [replace(step, arguments=tuple(map(number, step.arguments))) for step in body.steps]
    outputs = tuple(map(number, body.outputs))
    return Body((dtype, dtype, *body.inputs[1:]), tuple(steps), outputs)
