# SPDX-License-Identifier: Apache-2.0
"""Routines: small functions of machine code that are part of Intarsia, written about as in C.

What runs kernels (the thread pool, calls from Python) waits, claims and calls what it is given,
which the loop-level IR cannot say. A `Routine` writes LLVM IR through llvmlite's builder. Its types
are those of `ctypes`, so that a record is declared once for Python and for machine code. Variables
are memory until LLVM's pipeline has put them into registers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, TypeAlias

from intarsia.native.machine import ir_layer

KERNEL = (None, c_void_p, c_uint64, c_uint64)
"""Result and parameters of a kernel: the table of its arguments, from and to which turn it runs."""

PARALLEL_FOR = (None, c_void_p, c_void_p, c_void_p, c_uint64, c_uint64)
"""Of what runs a kernel on several threads: (state, kernel, arguments, extent, chunks)."""


class ParallelCall(ctypes.Structure):
    """A call of a kernel: the turns of its parallel loop, and into how many chunks it is cut."""

    _fields_ = (
        ("kernel", c_void_p),
        ("arguments", c_void_p),
        ("extent", c_uint64),
        ("chunks", c_uint64),
    )


def new_module() -> Any:
    """Return an empty module of LLVM IR; `str` gives its text."""
    return ir_layer().Module(context=ir_layer().Context())


@dataclass(frozen=True, slots=True)
class Callee:
    """A function, or its address, and the type of its result."""

    value: Any
    result: Any


def declare(module: Any, name: str, *prototype: Any, is_variadic: bool = False) -> Callee:
    """Declare a function of another library.

    Args:
        module: That calls it, and has not declared it yet.
        name: The function.
        prototype: The types of its result and of its parameters.
        is_variadic: Whether more arguments may follow.
    """
    signature = _signature(prototype, is_variadic=is_variadic)
    return Callee(ir_layer().Function(module, signature, name), prototype[0])


def define_table(module: Any, name: str, routines: Sequence[Routine]) -> None:
    """Define an array of routines' addresses for others to find."""
    ir = ir_layer()
    entries = [routine.callee.value.bitcast(_type(c_void_p)) for routine in routines]
    table = ir.GlobalVariable(module, ir.ArrayType(_type(c_void_p), len(entries)), name)
    table.global_constant, table.initializer = True, ir.Constant(table.value_type, entries)


@dataclass(frozen=True, slots=True)
class Register:
    """A number or an address that a routine has computed, as `ctypes` types it."""

    routine: Routine
    value: Any
    kind: Any

    def __add__(self, other: Register | int) -> Register:
        return self._compute("add", other)

    def __sub__(self, other: Register | int) -> Register:
        return self._compute("sub", other)

    def __mul__(self, other: Register | int) -> Register:
        return self._compute("mul", other)

    def __floordiv__(self, other: Register | int) -> Register:
        """Divide numbers without sign."""
        return self._compute("udiv", other)

    def _compute(self, operation: str, other: Register | int) -> Register:
        operand = self.routine.operand(other, _type(self.kind))
        result = getattr(self.routine.builder, operation)(self.value, operand)
        return Register(self.routine, result, self.kind)

    def convert(self, kind: Any) -> Register:
        """Return the number as one of another size."""
        is_wider = ctypes.sizeof(kind) > ctypes.sizeof(self.kind)
        conversion = ("sext" if _is_signed(self.kind) else "zext") if is_wider else "trunc"
        result = getattr(self.routine.builder, conversion)(self.value, _type(kind))
        return Register(self.routine, result, kind)

    def offset(self, nbytes: Register | int) -> Register:
        """Return the address so many bytes on."""
        distance = nbytes if isinstance(nbytes, int) else nbytes.convert(c_int64)
        operands = [self.routine.operand(distance, _type(c_int64))]
        return Register(self.routine, self.routine.builder.gep(self.value, operands), c_void_p)

    def function(self, *prototype: Any) -> Callee:
        """Return the function at the address; see `declare`."""
        pointer = _signature(prototype).as_pointer()
        return Callee(self.routine.builder.bitcast(self.value, pointer), prototype[0])


@dataclass(frozen=True, slots=True)
class Cell:
    """A number or an address in memory; orders are LLVM's, None for memory of one thread."""

    address: Register
    kind: Any

    def load(self, order: str | None = None) -> Register:
        """Return what is there."""
        builder, nbytes = self.address.routine.builder, ctypes.sizeof(self.kind)
        if order is None:
            value = builder.load(self._pointer, align=nbytes)
        else:
            value = builder.load_atomic(self._pointer, order, nbytes)
        return Register(self.address.routine, value, self.kind)

    def store(self, value: Argument, order: str | None = None) -> None:
        """Put something there."""
        builder, nbytes = self.address.routine.builder, ctypes.sizeof(self.kind)
        operand = self.address.routine.operand(value, _type(self.kind))
        if order is None:
            builder.store(operand, self._pointer, align=nbytes)
        else:
            builder.store_atomic(operand, self._pointer, order, nbytes)

    def update(self, operation: str, number: int, order: str) -> Register:
        """Do one of `atomicrmw`'s operations; return what was there before."""
        routine = self.address.routine
        operand = routine.operand(number, _type(self.kind))
        before = routine.builder.atomic_rmw(operation, self._pointer, operand, order)
        return Register(routine, before, self.kind)

    def replace(self, expected: int, value: int, success: str, failure: str) -> Register:
        """Put a number there if the expected one is there; return what was there before."""
        routine = self.address.routine
        numbers = [routine.operand(number, _type(self.kind)) for number in (expected, value)]
        pair = routine.builder.cmpxchg(self._pointer, *numbers, success, failure)
        return Register(routine, routine.builder.extract_value(pair, 0), self.kind)

    @property
    def _pointer(self) -> Any:
        pointer = _type(self.kind).as_pointer()
        return self.address.routine.builder.bitcast(self.address.value, pointer)


@dataclass(frozen=True, slots=True)
class Record:
    """A structure of `ctypes` in memory, which others of its kind may follow."""

    address: Register
    layout: type[ctypes.Structure]

    def __getitem__(self, name: str) -> Cell:
        """Return a field."""
        kinds = {field[0]: field[1] for field in self.layout._fields_}
        return Cell(self.address.offset(getattr(self.layout, name).offset), kinds[name])

    def load(self) -> tuple[Register, ...]:
        """Return what is in all fields, in order."""
        return tuple(self[field[0]].load() for field in self.layout._fields_)

    def store(self, *values: Argument) -> None:
        """Fill all fields, in order."""
        for field, value in zip(self.layout._fields_, values, strict=True):
            self[field[0]].store(value)

    def item(self, index: Register | int) -> Record:
        """Return one of those that follow; 0 is this one."""
        return Record(self.address.offset(index * ctypes.sizeof(self.layout)), self.layout)

    def behind(self, layout: type[ctypes.Structure]) -> Record:
        """Return the structure of another kind that starts where this one ends."""
        return Record(self.address.offset(ctypes.sizeof(self.layout)), layout)


Argument: TypeAlias = "Cell | Record | Register | Routine | int | None"
"""What a function is given: memory and routines as addresses, None as the null pointer."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """A block that is run again and again; `next_if` starts it anew, `end_if` leaves it."""

    routine: Routine
    start: Any
    after: Any

    def next_if(self, left: Register, relation: str, right: Argument) -> None:
        """Start anew if two numbers compare so."""
        self._leave(self.start, left, relation, right)

    def end_if(self, left: Register, relation: str, right: Argument) -> None:
        """Go on behind the block if two numbers compare so."""
        self._leave(self.after, left, relation, right)

    def _leave(self, target: Any, left: Register, relation: str, right: Argument) -> None:
        with self.routine.when(left, relation, right):
            self.routine.builder.branch(target)

    def end(self) -> None:
        """Go on behind the block."""
        self.routine.builder.branch(self.after)


class Routine:
    """A function that is being written.

    Attributes:
        module: Where it is defined.
        builder: Llvmlite's, at the end of what is written.
        callee: What others call.
        parameters: What it is given.
    """

    def __init__(self, module: Any, name: str, *prototype: Any, is_exported: bool = False) -> None:
        """Begin a function; the prototype has the types of its result and parameters."""
        self.module = module
        self.callee = declare(module, name, *prototype)
        function = self.callee.value
        function.linkage = "" if is_exported else "internal"
        self.builder = ir_layer().IRBuilder(function.append_basic_block("entry"))
        self.parameters = tuple(
            Register(self, value, kind)
            for value, kind in zip(function.args, prototype[1:], strict=True)
        )

    def operand(self, value: Argument, expected_type: Any) -> Any:
        """Return a value of llvmlite: a register's, the address of memory, or a constant."""
        match value:
            case Register():
                return value.value
            case Cell() | Record():
                return value.address.value
            case Routine():
                return value.callee.value.bitcast(_type(c_void_p))
            case None:
                return ir_layer().Constant(_type(c_void_p), None)
            case _:
                return ir_layer().Constant(expected_type, value)

    def local(self, kind: Any, align: int = 8) -> Register:
        """Return the address of memory that lasts as long as the call."""
        ir = ir_layer()
        with self.builder.goto_entry_block():
            memory = self.builder.alloca(ir.ArrayType(ir.IntType(8), ctypes.sizeof(kind)))
            memory.align = align
            return Register(self, self.builder.bitcast(memory, _type(c_void_p)), c_void_p)

    def variable(self, kind: Any, value: Register | int) -> Cell:
        """Return a variable that has a value from here on."""
        cell = Cell(self.local(kind), kind)
        cell.store(value)
        return cell

    def data(self, name: str) -> Register:
        """Return the address of data of another library."""
        ir = ir_layer()
        return Register(self, ir.GlobalVariable(self.module, ir.IntType(8), name), c_void_p)

    def text(self, name: str, content: bytes) -> Register:
        """Return the address of a constant, which ends with a zero as in C."""
        ir = ir_layer()
        array = ir.ArrayType(ir.IntType(8), len(content) + 1)
        constant = ir.GlobalVariable(self.module, array, name)
        constant.linkage, constant.global_constant = "private", True
        constant.initializer = ir.Constant(array, bytearray(content + b"\0"))
        return Register(self, constant.bitcast(_type(c_void_p)), c_void_p)

    def instruct(self, instruction: str) -> None:
        """Write an instruction of the CPU that has no operands."""
        signature = _signature((None,))
        self.builder.asm(signature, instruction, "", [], side_effect=True)

    def call(self, function: Callee | Routine, *arguments: Argument) -> Register:
        """Call a function and return its result."""
        callee = function.callee if isinstance(function, Routine) else function
        parameters = callee.value.function_type.args
        variadic = [_type(c_int32)] * (len(arguments) - len(parameters))
        operands = map(self.operand, arguments, [*parameters, *variadic])
        return Register(self, self.builder.call(callee.value, list(operands)), callee.result)

    def give_back(self, value: Argument = None) -> None:
        """End the function with a result, which is the null pointer unless given, or with none."""
        if self.callee.result is None:
            self.builder.ret_void()
        else:
            self.builder.ret(self.operand(value, _type(self.callee.result)))

    def when(self, left: Register, relation: str, right: Argument) -> AbstractContextManager[Any]:
        """Run what is written inside only if two numbers, or addresses, compare so."""
        return self.builder.if_then(self._compare(left, relation, right))  # type: ignore[no-any-return]

    def choose(self, left: Register, relation: str, right: Argument) -> AbstractContextManager[Any]:
        """Give two contexts: what is written in the first is run if so, in the second if not."""
        return self.builder.if_else(self._compare(left, relation, right))  # type: ignore[no-any-return]

    def _compare(self, left: Register, relation: str, right: Argument) -> Any:
        compare = self.builder.icmp_signed if _is_signed(left.kind) else self.builder.icmp_unsigned
        return compare(relation, left.value, self.operand(right, left.value.type))

    @contextmanager
    def repeat(self) -> Iterator[Repetition]:
        """Run what is written inside until it is left."""
        start = self.builder.append_basic_block()
        after = self.builder.append_basic_block()
        self.builder.branch(start)
        self.builder.position_at_end(start)
        yield Repetition(self, start, after)
        if not self.builder.block.is_terminated:
            self.builder.branch(start)
        self.builder.position_at_end(after)

    @contextmanager
    def count(self, limit: Register) -> Iterator[Register]:
        """Run what is written inside for each number from 0 that is below a limit."""
        number = self.variable(limit.kind, 0)
        with self.repeat() as turn:
            index = number.load()
            turn.end_if(index, ">=", limit)
            yield index
            number.store(index + 1)


def _type(kind: Any) -> Any:
    ir = ir_layer()
    if kind is None:
        return ir.VoidType()
    return ir.IntType(8).as_pointer() if kind is c_void_p else ir.IntType(8 * ctypes.sizeof(kind))


def _signature(prototype: Sequence[Any], *, is_variadic: bool = False) -> Any:
    result, *parameters = map(_type, prototype)
    return ir_layer().FunctionType(result, parameters, var_arg=is_variadic)


def _is_signed(kind: Any) -> bool:
    return kind is not c_void_p and int(kind(-1).value) < 0
