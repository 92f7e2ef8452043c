# SPDX-License-Identifier: Apache-2.0
"""What kernels are parametrised by: layouts of tensors over a kernel's domain, and fused bodies.

Every kernel runs over a *domain*, a box of extents whose last dimension is the one that vectors go
along. A tensor takes part by a `Layout`: its dtype, and for each dimension of the domain how many
elements of memory one step is (0 where it is broadcast). A chain of elementwise operators is a
`Body`; attached to a kernel's result it is its epilogue, alone it is an elementwise kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import Buffer, Index, IrValue
from intarsia.codegen.scalar_ops import apply_scalar
from intarsia.extents import Size

Attributes: TypeAlias = tuple[tuple[str, "int | float | str"], ...]
Coordinates: TypeAlias = Sequence[Index]
"""A point of the domain; of the last dimension that of lane 0."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory over a domain.

    Attributes:
        dtype: Of its elements, by numpy's name.
        strides: Elements of memory for each dimension of the domain; 0 where it is broadcast.
        align: Bytes to which its first element is aligned; 0 means one element.
    """

    dtype: str
    strides: tuple[Size, ...]
    align: int = 0

    def without_last(self) -> Layout:
        """Return a layout over the domain without its last dimension."""
        return replace(self, strides=self.strides[:-1])

    def declare(
        self, builder: Builder, name: str, domain: Sequence[Size], *, is_written: bool = False
    ) -> Buffer:
        """Declare the tensor as the kernel's next argument, with the domain as its shape."""
        return builder.argument(
            name, self.dtype, domain, self.strides, is_written=is_written, align=self.align or None
        )


def load_lanes(
    builder: Builder, buffer: Buffer, at: Coordinates, lanes: int, count: int | None = None
) -> IrValue:
    """Read a vector along the last dimension of a buffer, splatting what is broadcast along it."""
    step = buffer.strides[-1]
    if lanes == 1 or step == 0:
        value = builder.load(buffer, tuple(at))
        return builder.splat(value, lanes)
    return builder.load(buffer, tuple(at), lanes, stride=step, count=count)


def store_lanes(
    builder: Builder, value: IrValue, buffer: Buffer, at: Coordinates, count: int | None = None
) -> None:
    """Write a vector along the last dimension of a buffer."""
    builder.store(value, buffer, tuple(at), stride=buffer.strides[-1] or 1, count=count)


@dataclass(frozen=True, slots=True)
class Apply:
    """One elementwise operator of a body.

    Attributes:
        op_type: Of ONNX's main domain, or `Identity`.
        arguments: Numbers of values: first the body's inputs, then the results of earlier steps;
            -1 for an absent optional input.
        attributes: Sorted by name; only those that matter.
        dtype: Of the result.
    """

    op_type: str
    arguments: tuple[int, ...]
    attributes: Attributes = ()
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Body:
    """Elementwise operators in order.

    Attributes:
        inputs: The dtype of each input.
        steps: Each reads inputs and results of earlier steps.
        outputs: Numbers of the values that it yields.
    """

    inputs: tuple[str, ...]
    steps: tuple[Apply, ...]
    outputs: tuple[int, ...]

    def evaluate(self, builder: Builder, values: Sequence[IrValue]) -> list[IrValue]:
        """Append the operators to a kernel; all values have the same number of lanes."""
        results = list(values)
        for step in self.steps:
            arguments = [None if number < 0 else results[number] for number in step.arguments]
            results.append(
                apply_scalar(builder, step.op_type, arguments, dict(step.attributes), step.dtype)
            )
        return [results[number] for number in self.outputs]

    def without_unread(self) -> Body:
        """Return the same without steps whose results nobody reads."""
        first, wanted = len(self.inputs), set(self.outputs)
        for number in reversed(range(len(self.steps))):
            if first + number in wanted:
                wanted.update(self.steps[number].arguments)
        kept = [*range(first), *sorted(number for number in wanted if number >= first)]
        new = {-1: -1} | {number: place for place, number in enumerate(kept)}
        steps = (self.steps[number - first] for number in kept[first:])
        return replace(
            self,
            steps=tuple(replace(s, arguments=tuple(new[i] for i in s.arguments)) for s in steps),
            outputs=tuple(new[number] for number in self.outputs),
        )


def identity(dtype: str) -> Body:
    """Return the body that yields its one input."""
    return Body((dtype,), (), (0,))


Epilogue: TypeAlias = Callable[[IrValue, Coordinates, "int | None"], IrValue]
"""Maps a result, its coordinates and its number of valid lanes (None: all) to the stored value."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A body attached to a kernel's result.

    Attributes:
        body: Its input 0 is the kernel's result, the others are `operands`; it yields one value.
        operands: Where the other inputs lie, over the kernel's domain.
    """

    body: Body
    operands: tuple[Layout, ...] = ()

    def over(self, operands: Iterable[Layout]) -> Fused:
        """Return the body with operands that lie otherwise."""
        return replace(self, operands=tuple(operands))

    def bind(self, builder: Builder, domain: Sequence[Size], prefix: str = "e") -> Epilogue:
        """Declare the operands as the kernel's next arguments, and return the epilogue.

        Single numbers are read here, so once for each call of the kernel: a compiler could not tell
        that no store of results changes them.
        """
        buffers = [
            layout.declare(builder, f"{prefix}{number}", domain)
            for number, layout in enumerate(self.operands)
        ]
        singles = {
            buffer: builder.load(buffer, (0,) * len(domain))
            for buffer in buffers
            if not any(buffer.strides) and 0 not in buffer.shape
        }

        def epilogue(value: IrValue, at: Coordinates, count: int | None = None) -> IrValue:
            lanes = value.type.lanes
            loaded = [
                builder.splat(singles[buffer], lanes)
                if buffer in singles
                else load_lanes(builder, buffer, at, lanes, count)
                for buffer in buffers
            ]
            (result,) = self.body.evaluate(builder, [value, *loaded])
            return result

        return epilogue


NOTHING = Fused(identity("float32"))
"""The epilogue that changes nothing."""
