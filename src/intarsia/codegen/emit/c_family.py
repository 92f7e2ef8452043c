# SPDX-License-Identifier: Apache-2.0
"""What the emitters of C-like languages share: names, subscripts, loops, literals.

A kernel is written statement by statement, a variable for each value; loops stay loops, and what
they carry are variables that are assigned at the end of a turn. Where an operation runs is left to
the language's own compiler. A dialect says how values lie in variables and how an operation on
them is spelt.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from intarsia.codegen import ir

_OURS = re.compile(r"[vi]\d+(_\d+)?|size\d+|\w+_at")
"""Names that the emitters give."""


class Spelling(ABC):
    """How a language spells an operation on variables; the defaults are C's on scalars."""

    @abstractmethod
    def unary(self, name: str, a: str, dtype: str) -> str:
        """Spell one of `ir.UNARY`."""

    @abstractmethod
    def binary(self, name: str, a: str, b: str, dtype: str) -> str:
        """Spell one of `ir.BINARY`."""

    @abstractmethod
    def fused(self, a: str, b: str, c: str, dtype: str) -> str:
        """Spell a multiply-add."""

    def compare(self, predicate: str, a: str, b: str, dtype: str) -> str:
        """Spell a comparison of elements of a dtype; yields a bool."""
        return f"{a} {ir.PREDICATES[predicate]} {b}"

    def choose(self, condition: str, a: str, b: str, dtype: str) -> str:
        """Spell a selection by a bool."""
        return f"{condition} ? {a} : {b}"

    @abstractmethod
    def cast(self, a: str, source: str, target: str) -> str:
        """Spell a conversion."""

    @abstractmethod
    def bitcast(self, a: str, source: str, target: str) -> str:
        """Spell taking bits as another dtype."""


def spell(operation: ir.Operation, text_of: Callable[[ir.IrValue], str], by: Spelling) -> str:
    """Return an operation that works lane by lane as an expression of its operands' texts."""
    match operation:
        case ir.Unary(name=name, operand=a):
            assert name != "bfloat16", "a kernel for tiles"
            return by.unary(name, text_of(a), a.type.dtype)
        case ir.Binary(name=name, left=a, right=b):
            return by.binary(name, text_of(a), text_of(b), a.type.dtype)
        case ir.Fma(left=a, right=b, addend=c):
            return by.fused(text_of(a), text_of(b), text_of(c), a.type.dtype)
        case ir.Compare(predicate=name, left=a, right=b):
            return by.compare(name, text_of(a), text_of(b), a.type.dtype)
        case ir.Select(condition=condition, left=a, right=b):
            return by.choose(text_of(condition), text_of(a), text_of(b), a.type.dtype)
        case ir.Cast(result=result, operand=a):
            return by.cast(text_of(a), a.type.dtype, result.type.dtype)
        case ir.Bitcast(result=result, operand=a):
            return by.bitcast(text_of(a), a.type.dtype, result.type.dtype)
        case ir.Splat(operand=a):
            return text_of(a)
        case _:
            raise AssertionError(operation)


class CFamily(ABC):
    """Writes the body of one kernel.

    Args:
        function: The kernel: verified, expanded, pruned.
    """

    integer: str
    """The type of subscripts."""
    reserved: frozenset[str]
    """Names that a buffer cannot have."""

    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.names: dict[ir.IrValue, tuple[str, ...]] = {}
        self.buffers: dict[ir.Buffer, str] = {}
        self.lines: list[str] = []
        self._depth = 1
        self._nest = 0
        self._count = 0
        for buffer in (*function.buffers, *function.locals):
            self.buffers[buffer] = self._buffer_name(buffer.name)
        for number, size in enumerate(function.sizes):
            self.names[size] = (f"size{number}",)

    def _buffer_name(self, hint: str) -> str:
        name = re.sub(r"\W", "_", hint, flags=re.ASCII) or "buffer"
        if name[0].isdigit() or name[0] == "_":
            name = f"b{name}"
        taken = {*self.buffers.values(), *self.reserved}
        while name in taken or _OURS.fullmatch(name):
            name += "_"
        return name

    # Lines

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append("    " * self._depth + text)

    def open(self, text: str) -> None:
        """Append a line that opens a block."""
        self.line(f"{text} {{")
        self._depth += 1

    def close(self) -> None:
        """End the innermost block."""
        self._depth -= 1
        self.line("}")

    def fresh(self) -> str:
        """Return a name that no other variable has."""
        self._count += 1
        return f"v{self._count}"

    # Statements

    def body(self, operations: Sequence[ir.Operation]) -> None:
        """Write operations in order."""
        for operation in operations:
            self.operation(operation)

    def operation(self, operation: ir.Operation) -> None:
        """Write one operation."""
        match operation:
            case ir.Loop():
                if operation.kind is ir.LoopKind.SERIAL:
                    self.loop(operation)
                else:
                    self.parallel(operation)
            case ir.Load():
                self.load(operation)
            case ir.Store():
                self.store(operation)
            case ir.Prefetch():
                pass
            case ir.IndexValue(result=result, index=index):
                name = self.fresh()
                self.variable(self.integer, name, self.index(index))
                self.names[result] = (name,)
            case ir.Constant():
                self.constant(operation)
            case _:
                self.compute(operation)

    def loop(self, loop: ir.Loop) -> None:
        """Write a serial loop."""
        for carried, first in zip(loop.carried, loop.initial, strict=True):
            self.names[carried] = self.begin(carried, first)
        self.started(loop)
        lower, step = self.turns(loop)
        name = f"i{self._nest}"
        self._nest += 1
        self.names[loop.variable] = (name,)
        self.open(self.head(name, lower, self.index(loop.upper), step))
        self.inside(loop)
        self.close()
        self._nest -= 1
        for result, carried in zip(loop.results, loop.carried, strict=True):
            self.names[result] = self.names[carried]

    def head(self, name: str, lower: str, upper: str, step: str) -> str:
        """Return the head of a loop that counts."""
        following = f"++{name}" if step == "1" else f"{name} += {step}"
        return f"for ({self.integer} {name} = {lower}; {name} < {upper}; {following})"

    def variable(self, type_: str, name: str, expression: str, *, is_const: bool = True) -> None:
        """Declare a variable."""
        self.line(f"{'const ' if is_const else ''}{type_} {name} = {expression};")

    def started(self, loop: ir.Loop) -> None:  # noqa: B027 - most dialects have nothing to add
        """Write what comes between the initial values and the first turn."""

    def turns(self, loop: ir.Loop) -> tuple[str, str]:
        """Return the first value of a loop's variable, and its step."""
        return self.index(loop.lower), str(loop.step)

    def inside(self, loop: ir.Loop) -> None:
        """Write one turn of a loop."""
        self.body(loop.body)
        self._carry(loop)

    def _carry(self, loop: ir.Loop) -> None:
        """Assign what the next turn gets; what would be overwritten too early is copied."""
        pairs = [
            (carried, self.sources(following), following)
            for carried, following in zip(loop.carried, loop.yielded, strict=True)
            if self.names[carried] != self.sources(following)
        ]
        written = {name for carried, _, _ in pairs for name in self.names[carried]}
        sources = [
            # All at once in the IR: of `a, b = b, a` the second assignment would read the new `a`.
            self.copy(following) if written.intersection(names) else names
            for _, names, following in pairs
        ]
        for (carried, _, _), names in zip(pairs, sources, strict=True):
            self.assign(carried, names)

    # Subscripts

    def index(self, index: ir.Index) -> str:
        """Return an affine subscript as an expression."""
        text = ""
        for value, scale in index.terms:
            (name,) = self.names[value]
            sign = "-" if scale < 0 else "+"
            term = name if abs(scale) == 1 else f"{abs(scale)} * {name}"
            if text:
                text += f" {sign} {term}"
            else:
                text = f"-{term}" if sign == "-" else term
        if not text:
            return str(index.const)
        if index.const:
            text += f" {'-' if index.const < 0 else '+'} {abs(index.const)}"
        return text

    def offset(self, access: ir.Load | ir.Store, lane: int = 0) -> str:
        """Return the offset of a lane from its buffer's first element, in elements."""
        flat = access.buffer.flatten(access.subscripts)
        return self.index(flat + lane * access.stride)

    def begin(self, _carried: ir.IrValue, first: ir.IrValue) -> tuple[str, ...]:
        """Return the variables of a carried value, which have the value of the first."""
        return self.copy(first)

    def sources(self, value: ir.IrValue) -> tuple[str, ...]:
        """Return what is assigned where a value is."""
        return self.names[value]

    # What a dialect says

    @abstractmethod
    def parallel(self, loop: ir.Loop) -> None:
        """Write the parallel loop, or one of those of a kernel for a GPU."""

    @abstractmethod
    def copy(self, value: ir.IrValue) -> tuple[str, ...]:
        """Declare a variable that may change and has the value of another."""

    @abstractmethod
    def assign(self, carried: ir.IrValue, names: tuple[str, ...]) -> None:
        """Assign variables to those of a carried value."""

    @abstractmethod
    def constant(self, operation: ir.Constant) -> None:
        """Take a number as a value."""

    @abstractmethod
    def load(self, load: ir.Load) -> None:
        """Write a load."""

    @abstractmethod
    def store(self, store: ir.Store) -> None:
        """Write a store."""

    @abstractmethod
    def compute(self, operation: ir.Operation) -> None:
        """Write an operation without effects."""
