# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to the text of LLVM IR: what CPUs and GPUs have in common.

Operations move to the outermost block that knows their operands, so that LLVM needs no pass for
that; text is written directly, which is several times faster than building objects. The halves for
CPUs (`llvm`) and for NVIDIA's GPUs (`nvptx`) say how a kernel begins, who runs which turns of its
loops, and where buffers lie.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache
from math import gcd
from typing import NamedTuple

from intarsia.codegen import ir
from intarsia.codegen.blocked_dots import without_blocks
from intarsia.codegen.emit.llvm_dots import (
    DotOperand,
    Lines,
    has_blocked_dot,
    spell_blocked_dot,
    spell_dot,
)
from intarsia.codegen.emit.llvm_remainder import by_lanes, remainder_function
from intarsia.codegen.unit import CpuModel

_ELEMENTS = {"bool": "i1", "float16": "half", "float32": "float", "float64": "double"}
_ELEMENTS |= {f"{sign}int{bits}": f"i{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")}
_SUFFIXES = {"i1": "i1", "half": "f16", "float": "f32", "double": "f64"}
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64}
_SIGNLESS = frozenset(("add", "sub", "mul", "and", "or", "xor", "shl"))
"""Operations that one instruction does for signed and unsigned numbers."""
_INTRINSICS = {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}
_INTRINSICS |= {"rint": "rint", "copysign": "copysign"}
_ROUNDED = frozenset(("rint", "floor", "ceil", "trunc"))
_SIGNIFICANDS = {"float16": 10, "float32": 23, "float64": 52}
"""Bits of a significand after the point."""
_NARROWED = ("float32", "uint16", "uint32")
"""What bfloat16 is made of, what it becomes, and what is between."""
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


@dataclass(slots=True)
class CodeBlock:
    """The lines of one loop body, or of the function; whether that loop carries values."""

    label: str
    is_carrying: bool = False
    lines: list[str] = field(default_factory=list)
    computed: dict[object, str] = field(default_factory=dict)


class Bounds(NamedTuple):
    """Which turns of a loop are run.

    Attributes:
        lower: The first value of its variable.
        upper: Where it ends.
        step: From one value to the next; a number, or the name of one.
        is_sure: Whether there is a turn for sure.
    """

    lower: str
    upper: str
    step: int | str
    is_sure: bool


class LlvmCore:
    """Writes the body of one kernel.

    Args:
        function: The kernel: verified, expanded.
        unit: What it is shaped for.
    """

    rounds_at_once = True
    """Whether rounding and converting to an integer are one instruction, to be asked for."""

    def __init__(self, function: ir.Function, unit: CpuModel) -> None:
        self.function = function
        self._dots = unit.dots
        self._has_bfloat16 = unit.has_bf16_tiles
        self._fma = "fma" if unit.has_fma else "fmuladd"
        self._has_calls = unit.calls_with_floats
        self.names: dict[ir.IrValue, str] = {}
        self._rounded: dict[ir.IrValue, ir.IrValue] = {}  # what was rounded, by the result
        self._operands: dict[ir.IrValue, str] = {}  # with their types
        self.depths: dict[ir.IrValue, int] = {}
        self.blocks: list[CodeBlock] = []
        self._count = 0
        self.declared: dict[str, str] = {}
        self._callees: dict[tuple[str, ir.Type], str] = {}
        self.pointers: dict[ir.Buffer, str] = {}

    # What a half says

    def pointer_type(self, buffer: ir.Buffer) -> str:
        """Return the type of pointers into a buffer."""
        return "ptr"

    def write(self, text: str) -> None:
        """Write an instruction that stores."""
        self.line(text)

    def prefetch(self, prefetch: ir.Prefetch) -> None:
        """Write what brings memory near."""

    def tile(self, operation: ir.TileOperation) -> None:
        """Write an operation on tiles, where there are any."""
        raise AssertionError(operation)

    def barrier(self) -> None:
        """Write that work-items wait for each other, where there are any."""
        raise AssertionError("a barrier of a CPU")

    def hidden(self, pointer: str, depth: int) -> str:
        """Return a pointer of which LLVM does not know how it came about, if that is of use."""
        return pointer

    def bounds(self, loop: ir.Loop) -> Bounds:
        """Return which turns of a loop are run."""
        is_sure = (loop.trip_count or 0) > 0
        return Bounds(self.index(loop.lower), self.index(loop.upper), loop.step, is_sure)

    def initial(self, loop: ir.Loop) -> list[str]:
        """Return what a loop's carried values start from."""
        return [self.names[value] for value in loop.initial]

    def turned(self, loop: ir.Loop) -> None:
        """Write what comes at the end of each turn of a loop."""

    # Names, blocks and lines

    def keep(self, value: ir.IrValue, name: str, depth: int) -> None:
        """Take a name as a value, which blocks of a depth and inside know."""
        self.names[value] = name
        self._operands[value] = f"{llvm_type(value.type)} {name}"
        self.depths[value] = depth

    def fresh(self) -> str:
        """Return a name that no other value has."""
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str, depth: int = -1) -> None:
        """Append a line to a block."""
        self.blocks[depth].lines.append(f"  {text}")

    def _define(self, result: ir.IrValue, text: str, depth: int) -> None:
        self._count += 1
        name = f"%v{self._count}"
        self.blocks[depth].lines.append(f"  {name} = {text}")
        self.keep(result, name, depth)

    def declare(self, name: str, signature: str) -> str:
        """Return how a function is called; it is declared, in LLVM's words."""
        if name not in self.declared:
            result, arguments = signature.split(" ", 1) if signature[0] != "<" else _cut(signature)
            self.declared[name] = f"declare {result} @{name}{arguments}"
        return f"@{name}"

    def _typed(self, value: ir.IrValue) -> str:
        return self._operands[value]

    # Statements

    def body(self, body: tuple[ir.Operation, ...]) -> None:
        """Write operations in order."""
        for operation in body:
            self.operation(operation)

    def operation(self, operation: ir.Operation) -> None:
        """Write one operation."""
        match operation:
            case ir.Loop():
                self.loop(operation)
            case ir.Store():
                self._store(operation)
            case ir.Load():
                self._load(operation)
            case ir.Prefetch():
                self.prefetch(operation)
            case ir.TileZero() | ir.TileLoad() | ir.TileStore() | ir.TileDot():
                self.tile(operation)
            case ir.Barrier():
                self.barrier()
            case ir.Constant(result=result, value=value):
                self.keep(result, llvm_literal(value, result.type), 0)
            case _:
                self.pure(operation)

    def loop(self, loop: ir.Loop) -> None:
        """Write a loop; it tests at its end, and in front only if it may not turn at all."""
        outer = self.blocks[-1]
        lower, upper, stride, is_sure = self.bounds(loop)
        initial = self.initial(loop)
        self._count += 1
        number = self._count
        head, tail = f"head{number}", f"tail{number}"
        block = CodeBlock(head, bool(loop.carried))
        self.blocks.append(block)
        depth = len(self.blocks) - 1
        self.keep(loop.variable, self.fresh(), depth)
        for value in loop.carried:
            self.keep(value, self.fresh(), depth)
        self.body(loop.body)
        self.turned(loop)
        self.blocks.pop()
        step = f"%n{number}"
        if is_sure:
            outer.lines.append(f"  br label %{head}")
        else:
            outer.lines.append(f"  %g{number} = icmp slt i64 {lower}, {upper}")
            outer.lines.append(f"  br i1 %g{number}, label %{head}, label %{tail}")
        outer.lines.append(f"{head}:")
        phis = [(self.names[loop.variable], "i64", lower, step)]
        for carried, first, following in zip(loop.carried, initial, loop.yielded, strict=True):
            names = (self.names[carried], first, self.names[following])
            phis.append((names[0], llvm_type(carried.type), names[1], names[2]))
        for name, type_, first_name, next_name in phis:
            outer.lines.append(
                f"  {name} = phi {type_} [ {first_name}, %{outer.label} ], "
                f"[ {next_name}, %{block.label} ]"
            )
        outer.lines += block.lines
        outer.lines += [
            f"  {step} = add nuw nsw i64 {self.names[loop.variable]}, {stride}",
            f"  %c{number} = icmp slt i64 {step}, {upper}",
            f"  br i1 %c{number}, label %{head}, label %{tail}",
            f"{tail}:",
        ]
        before, outer.label = outer.label, tail
        depth = len(self.blocks) - 1
        for result, first, following in zip(loop.results, initial, loop.yielded, strict=True):
            if is_sure:
                self.keep(result, self.names[following], depth)
                continue
            text = (
                f"phi {llvm_type(result.type)} [ {first}, %{before} ], "
                f"[ {self.names[following]}, %{block.label} ]"
            )
            self._define(result, text, depth)

    def _load(self, load: ir.Load) -> None:
        depth = len(self.blocks) - 1
        lanes, element = load.result.type.lanes, memory_type(load.buffer.dtype)
        is_bool = load.buffer.dtype == "bool"
        if lanes > 1 and load.stride != 1:
            name = self._gathered(load, element)
        else:
            flat = load.buffer.flatten(load.subscripts)
            pointer = self.address(load.buffer, flat)
            align = _alignment(load.buffer, flat)
            name = self.fresh()
            type_ = element if lanes == 1 else f"<{load.count} x {element}>"
            where = f"{self.pointer_type(load.buffer)} {pointer}"
            self.line(f"{name} = load {type_}, {where}, align {align}")
            if load.count < lanes:
                # A shorter vector is loaded and widened: nothing is read beyond the last lane that
                # counts.
                mask = [min(lane, load.count) for lane in range(lanes)]
                wide = self.fresh()
                self.line(
                    f"{wide} = shufflevector {type_} {name}, {type_} zeroinitializer, {_mask(mask)}"
                )
                name = wide
        if is_bool:
            type_ = vector_type(element, lanes)
            wide = self.fresh()
            zero = "0" if lanes == 1 else "zeroinitializer"
            self.line(f"{wide} = icmp ne {type_} {name}, {zero}")
            name = wide
        self.keep(load.result, name, depth)

    def _gathered(self, load: ir.Load, element: str) -> str:
        """Read lanes one by one."""
        lanes, flat = load.result.type.lanes, load.buffer.flatten(load.subscripts)
        align, where = load.buffer.item_bytes, self.pointer_type(load.buffer)
        current = "zeroinitializer"
        for lane in range(load.count):
            pointer = self.address(load.buffer, flat + lane * load.stride)
            scalar, name = self.fresh(), self.fresh()
            self.line(f"{scalar} = load {element}, {where} {pointer}, align {align}")
            self.line(
                f"{name} = insertelement <{lanes} x {element}> {current}, "
                f"{element} {scalar}, i32 {lane}"
            )
            current = name
        return current

    def _store(self, store: ir.Store) -> None:
        value, lanes = store.value, store.value.type.lanes
        element, flat = memory_type(store.buffer.dtype), store.buffer.flatten(store.subscripts)
        name = self.names[value]
        if store.buffer.dtype == "bool":
            wide = self.fresh()
            self.line(f"{wide} = zext {self._typed(value)} to {vector_type(element, lanes)}")
            name = wide
        type_, where = vector_type(element, lanes), self.pointer_type(store.buffer)
        if lanes > 1 and store.stride != 1:
            for lane in range(store.count):
                pointer = self.address(store.buffer, flat + lane * store.stride)
                scalar = self.fresh()
                self.line(f"{scalar} = extractelement {type_} {name}, i32 {lane}")
                align = store.buffer.item_bytes
                self.write(f"store {element} {scalar}, {where} {pointer}, align {align}")
            return
        if store.count < lanes:
            narrow = self.fresh()
            mask = _mask(list(range(store.count)))
            self.line(f"{narrow} = shufflevector {type_} {name}, {type_} poison, {mask}")
            name, type_ = narrow, f"<{store.count} x {element}>"
        pointer = self.address(store.buffer, flat)
        align = _alignment(store.buffer, flat)
        self.write(f"store {type_} {name}, {where} {pointer}, align {align}")

    # Subscripts

    def address(self, buffer: ir.Buffer, flat: ir.Index) -> str:
        """Return a pointer; each term is added in the outermost block that knows its value.

        How a pointer came about is hidden from LLVM's loop strength reduction: else that pass may
        prefer a pointer of its own for every entry of an inner loop to displacements from one, and
        run out of registers; and on long bodies it takes a fifth of the time of compiling. Loops
        that carry values, all of a register tile, are left to it: it adds to fewer pointers there.
        """
        element, where = memory_type(buffer.dtype), self.pointer_type(buffer)
        pointer, depth = self.pointers[buffer], 0
        key: tuple[object, ...] = (buffer,)
        terms = sorted(flat.terms, key=lambda term: self.depths[term[0]])
        for number, (value, scale) in enumerate(terms):
            depth = max(depth, self.depths[value])
            if number + 1 < len(terms):
                is_hidden = self.depths[terms[number + 1][0]] > depth
            else:
                is_hidden = not self.blocks[depth].is_carrying
            key = (*key, value, scale, is_hidden)
            address = self.blocks[depth].computed.get(key)
            if address is None:
                scaled = self._scaled(value, scale)
                address = self.fresh()
                place = f"{where} {pointer}, i64 {scaled}"
                self.line(f"{address} = getelementptr inbounds {element}, {place}", depth)
                if is_hidden:
                    address = self.hidden(address, depth)
                self.blocks[depth].computed[key] = address
            pointer = address
        if flat.const == 0:
            return pointer
        name = self.fresh()
        place = f"{where} {pointer}, i64 {flat.const}"
        self.line(f"{name} = getelementptr inbounds {element}, {place}")
        return name

    def _scaled(self, value: ir.IrValue, scale: int) -> str:
        if scale == 1:
            return self.names[value]
        depth = self.depths[value]
        computed = self.blocks[depth].computed
        key = (value, scale)
        if key not in computed:
            name = self.fresh()
            self.line(f"{name} = mul nsw i64 {self.names[value]}, {scale}", depth)
            computed[key] = name
        return computed[key]

    def index(self, index: ir.Index) -> str:
        """Return an int64 operand, computed in the outermost block that can."""
        if not index.terms:
            return str(index.const)
        depth = max(self.depths[value] for value, _ in index.terms)
        computed = self.blocks[depth].computed
        if index in computed:
            return computed[index]
        total = ""
        for value, scale in index.terms:
            scaled = self._scaled(value, scale)
            if total:
                name = self.fresh()
                self.line(f"{name} = add nsw i64 {total}, {scaled}", depth)
                total = name
            else:
                total = scaled
        if index.const:
            name = self.fresh()
            self.line(f"{name} = add nsw i64 {total}, {index.const}", depth)
            total = name
        computed[index] = total
        return total

    # Operations without effects

    def pure(self, operation: ir.Operation) -> None:
        """Write an operation without effects."""
        if isinstance(operation, ir.IndexValue):
            name = self.index(operation.index)
            depths = [self.depths[value] for value, _ in operation.index.terms]
            self.keep(operation.result, name, max(depths, default=0))
            return
        depth = self._depth_of(operation)
        if isinstance(operation, ir.Splat):
            self._splat(operation, depth)
        elif isinstance(operation, ir.Reduce):
            self._reduce(operation, depth)
        elif isinstance(operation, ir.Binary) and operation.name in ("min", "max"):
            self._extremum(operation, depth)
        elif isinstance(operation, ir.Dot):
            self._dot(operation, depth)
        else:
            text = self._expression(operation)
            self._define(operation.result, text, depth)  # type: ignore[union-attr]

    def _depth_of(self, operation: ir.Operation) -> int:
        return max(map(self.depths.__getitem__, ir.operands(operation)), default=0)

    def _splat(self, splat: ir.Splat, depth: int) -> None:
        lanes, source = splat.result.type.lanes, self.names[splat.operand]
        if not source.startswith("%"):  # a number
            self.keep(splat.result, repeated(source, splat.result.type), 0)
            return
        type_ = llvm_type(splat.result.type)
        one = self.fresh()
        self.line(
            f"{one} = insertelement {type_} poison, {self._typed(splat.operand)}, i32 0", depth
        )
        mask = f"<{lanes} x i32> zeroinitializer"
        self._define(splat.result, f"shufflevector {type_} {one}, {type_} poison, {mask}", depth)

    def _reduce(self, reduce: ir.Reduce, depth: int) -> None:
        """Combine the upper half with the lower one until one lane is left."""
        current, lanes = reduce.operand, reduce.operand.type.lanes
        # Not `llvm.vector.reduce.fadd`: without `reassoc` that is a chain of additions one after
        # another, and with it the order is LLVM's.
        while lanes > 1:
            half = (lanes + 1) // 2
            type_ = current.type
            lower = self._lanes_of(current, 0, half, reduce.name, depth)
            upper = self._lanes_of(current, half, half, reduce.name, depth)
            result = reduce.result if half == 1 else ir.IrValue(type_.with_lanes(half))
            step = ir.Binary(result, reduce.name, lower, upper)
            if reduce.name in ("min", "max"):
                self._extremum(step, depth)
            else:
                self._define(result, self._binary(step), depth)
            current, lanes = result, half

    def _lanes_of(
        self, vector: ir.IrValue, first: int, count: int, name: str, depth: int
    ) -> ir.IrValue:
        """Return `count` lanes; beyond the last one, what changes nothing."""
        part = ir.IrValue(vector.type.with_lanes(count))
        typed, lanes = self._typed(vector), vector.type.lanes
        if count == 1:
            self._define(part, f"extractelement {typed}, i32 {first}", depth)
            return part
        mask = [min(first + lane, lanes) for lane in range(count)]
        rest = "poison"
        if lanes in mask:
            rest = repeated(_neutral(name, vector.type), vector.type)
        type_ = llvm_type(vector.type)
        self._define(part, f"shufflevector {typed}, {type_} {rest}, {_mask(mask)}", depth)
        return part

    def _extremum(self, operation: ir.Binary, depth: int) -> None:
        type_ = operation.left.type
        # minps and maxps of x86 do just this, NaN included; `llvm.maxnum` without `nnan` becomes a
        # maximum, a comparison and a blend.
        predicate = "gt" if operation.name == "max" else "lt"
        condition = self.fresh()
        left, right = self.names[operation.left], self.names[operation.right]
        text = f"{_comparison(predicate, type_)} {llvm_type(type_)} {left}, {right}"
        self.line(f"{condition} = {text}", depth)
        bools = llvm_type(type_.with_dtype("bool"))
        text = f"select {bools} {condition}, {llvm_type(type_)} {left}, {llvm_type(type_)} {right}"
        self._define(operation.result, text, depth)

    def _dot(self, dot: ir.Dot, depth: int) -> None:
        parts = [
            DotOperand(self.names[value], value.type.dtype, self.depths[value])
            for value in (dot.left, dot.right, dot.addend)
        ]
        lines = Lines(self._appended, self._shared, self.declare)
        lanes, fits_pairs = dot.result.type.lanes, dot.fits_pairs
        if not dot.is_blocked:
            name = spell_dot(lines, self._dots, lanes, *parts, fits_pairs=fits_pairs)
        elif has_blocked_dot(self._dots, lanes, dot.left.type.dtype, dot.right.type.dtype):
            name = spell_blocked_dot(lines, *parts)
        else:
            for part in without_blocks(dot):
                self.pure(part)
            return
        self.keep(dot.result, name, depth)

    def _appended(self, text: str, depth: int) -> str:
        name = self.fresh()
        self.line(f"{name} = {text}", depth)
        return name

    def _shared(self, text: str, depth: int) -> str:
        computed = self.blocks[depth].computed
        if text not in computed:
            computed[text] = self._appended(text, depth)
        return computed[text]

    def _expression(self, operation: ir.Operation) -> str:  # noqa: PLR0911 - one case a line
        names = self.names
        match operation:
            case ir.Unary(name="bfloat16", result=result, operand=a):
                bits = llvm_type(result.type)
                return f"call {bits} {self._narrowing(a.type)}({self._typed(a)})"
            case ir.Unary():
                return self._unary(operation)
            case ir.Binary():
                return self._binary(operation)
            case ir.Fma(result=result, left=left, right=right, addend=addend):
                arguments = (left, right, addend)
                return self._call(self._fma, result.type, arguments)
            case ir.Compare(predicate=predicate, left=left, right=right):
                kind = _comparison(predicate, left.type)
                return f"{kind} {self._typed(left)}, {names[right]}"
            case ir.Select(condition=condition, left=left, right=right):
                parts = (condition, left, right)
                return f"select {', '.join(self._typed(part) for part in parts)}"
            case ir.Cast(result=result, operand=operand):
                return self._cast(result.type, operand)
            case ir.Bitcast(result=result, operand=operand):
                return f"bitcast {self._typed(operand)} to {llvm_type(result.type)}"
            case ir.Shuffle(left=left, right=right, lanes=lanes):
                return f"shufflevector {self._typed(left)}, {self._typed(right)}, {_mask(lanes)}"
            case ir.Extract(operand=operand, lane=lane):
                return f"extractelement {self._typed(operand)}, i32 {lane}"
            case _:
                raise AssertionError(operation)

    def _unary(self, operation: ir.Unary) -> str:
        operand, type_ = operation.operand, operation.operand.type
        text = self._typed(operand)
        if operation.name == "isnan":
            return f"fcmp uno {text}, {self.names[operand]}"
        if operation.name == "not":
            return f"xor {text}, {repeated('true' if type_.dtype == 'bool' else '-1', type_)}"
        if operation.name == "neg":
            if type_.is_float:
                return f"fneg {text}"
            return f"sub {llvm_type(type_)} {repeated('0', type_)}, {self.names[operand]}"
        if operation.name == "abs" and not type_.is_float:
            if not type_.is_signed:
                return f"or {text}, {repeated('0', type_)}"
            name = f"llvm.abs.{_suffix(type_)}"
            vector = llvm_type(type_)
            callee = self.declare(name, f"{vector} ({vector}, i1)")
            return f"call {vector} {callee}({text}, i1 false)"
        if operation.name in _ROUNDED and not self._has_calls:
            return f"call {llvm_type(type_)} {self._rounding(operation.name, type_)}({text})"
        if operation.name == "rint":
            self._rounded[operation.result] = operand
        return self._call(_INTRINSICS[operation.name], type_, (operand,))

    def _narrowing(self, type_: ir.Type) -> str:
        """Return what calls a function of the module that makes bfloat16 of float32."""
        name = f"intarsia.bfloat16.{_suffix(type_)}"
        if name in self.declared:
            return f"@{name}"
        vector, bits, wide = (llvm_type(type_.with_dtype(d)) for d in _NARROWED)
        if self._has_bfloat16:  # one instruction
            narrow = bits.replace("i16", "bfloat")
            lines = [
                f"%n = fptrunc {vector} %x to {narrow}",
                f"%r = bitcast {narrow} %n to {bits}",
            ]
        else:
            numbers = (0x7FFF, 16, 1, 0x40)
            half, shift, one, quiet = (
                llvm_literal(number, type_.with_dtype("uint32")) for number in numbers
            )
            lines = [
                f"%b = bitcast {vector} %x to {wide}",
                f"%u = lshr {wide} %b, {shift}",
                f"%o = and {wide} %u, {one}",
                f"%h = add {wide} %b, {half}",
                f"%s = add {wide} %h, %o",
                f"%e = lshr {wide} %s, {shift}",
                f"%q = or {wide} %u, {quiet}",
                f"%c = fcmp uno {vector} %x, %x",
                f"%w = select {llvm_type(type_.with_dtype('bool'))} %c, {wide} %q, {wide} %e",
                f"%r = trunc {wide} %w to {bits}",
            ]
        body = "\n".join(f"  {line}" for line in (*lines, f"ret {bits} %r"))
        self.declared[name] = (
            f"define internal {bits} @{name}({vector} %x) alwaysinline nounwind {{\n{body}\n}}"
        )
        return f"@{name}"

    def _rounding(self, name: str, type_: ir.Type) -> str:
        """Return what calls a function of the module that rounds numbers to whole ones.

        Numbers up to two to the bits of a significand are rounded as that power of two is added to
        them; larger ones are whole.
        """
        vector, suffix = llvm_type(type_), _suffix(type_)
        rounding = f"intarsia.{name}.{suffix}"
        if rounding not in self.declared:
            magnitude = self.declare(f"llvm.fabs.{suffix}", f"{vector} ({vector})")
            copysign = self.declare(f"llvm.copysign.{suffix}", f"{vector} ({vector}, {vector})")
            flags = llvm_type(ir.Type("bool", type_.lanes))
            power = llvm_literal(float(1 << _SIGNIFICANDS[type_.dtype]), type_)
            one, zero = llvm_literal(1.0, type_), llvm_literal(0.0, type_)
            nearest, than = ("%c", "%a") if name == "trunc" else ("%n", "%x")
            step, predicate = ("fadd", "olt") if name == "ceil" else ("fsub", "ogt")
            lines = [
                f"%a = call {vector} {magnitude}({vector} %x)",
                f"%b = fadd {vector} %a, {power}",
                f"%c = fsub {vector} %b, {power}",
                f"%n = call {vector} {copysign}({vector} %c, {vector} %x)",
                f"%over = fcmp {predicate} {vector} {nearest}, {than}",
                f"%by = select {flags} %over, {vector} {one}, {vector} {zero}",
                f"%s = {step} {vector} {nearest}, %by",
                f"%w = call {vector} {copysign}({vector} %s, {vector} %x)",
                f"%few = fcmp olt {vector} %a, {power}",
                f"%r = select {flags} %few, {vector} {'%n' if name == 'rint' else '%w'}, "
                f"{vector} %x",
                f"ret {vector} %r",
            ]
            body = "\n".join(f"  {line}" for line in lines)
            self.declared[rounding] = (
                f"define internal {vector} @{rounding}({vector} %x) alwaysinline nounwind "
                f"{{\n{body}\n}}"
            )
        return f"@{rounding}"

    def _binary(self, operation: ir.Binary) -> str:
        left, right, type_ = operation.left, operation.right, operation.left.type
        if operation.name == "copysign":
            return self._call("copysign", type_, (left, right))
        if type_.is_float:
            if operation.name == "rem":  # LLVM's would be a call of the C library
                function, vector = self._remainder(type_), llvm_type(type_)
                return f"call {vector} {function}({self._typed(left)}, {self._typed(right)})"
            instruction = f"f{operation.name}"
        elif operation.name in _SIGNLESS:
            instruction = operation.name
        elif operation.name == "shr":
            instruction = "ashr" if type_.is_signed else "lshr"
        else:
            instruction = f"{'s' if type_.is_signed else 'u'}{operation.name}"
        return f"{instruction} {self._typed(left)}, {self.names[right]}"

    def _remainder(self, type_: ir.Type) -> str:
        """Return the name of a function of the module's own."""
        scalar = f"intarsia.rem.{_suffix(ir.Type(type_.dtype))}"
        if scalar not in self.declared:
            self.declared[scalar] = remainder_function(scalar, type_.dtype)
        if type_.lanes == 1:
            return f"@{scalar}"
        name = f"intarsia.rem.{_suffix(type_)}"
        if name not in self.declared:
            self.declared[name] = by_lanes(name, scalar, type_.dtype, type_.lanes)
        return f"@{name}"

    def _call(self, intrinsic: str, type_: ir.Type, arguments: tuple[ir.IrValue, ...]) -> str:
        key = (intrinsic, type_)
        if key not in self._callees:
            vector = llvm_type(type_)
            name = f"llvm.{intrinsic}.{_suffix(type_)}"
            callee = self.declare(name, f"{vector} ({', '.join([vector] * len(arguments))})")
            self._callees[key] = f"call {vector} {callee}"
        return f"{self._callees[key]}({', '.join(map(self._typed, arguments))})"

    def _cast(self, result: ir.Type, operand: ir.IrValue) -> str:
        source, text = operand.type, self._typed(operand)
        is_rounded = self.rounds_at_once and operand in self._rounded
        if is_rounded and (source.dtype, result.dtype) == ("float32", "int32"):
            # CPUs round and convert at once, which LLVM does not find by itself.
            vector, suffixes = llvm_type(result), f"{_suffix(result)}.{_suffix(source)}"
            callee = self.declare(f"llvm.lrint.{suffixes}", f"{vector} ({llvm_type(source)})")
            return f"call {vector} {callee}({self._typed(self._rounded[operand])})"
        if result.dtype == "bool":
            if source.is_float:
                return (
                    f"fcmp une {text}, {repeated(llvm_literal(0.0, ir.Type(source.dtype)), source)}"
                )
            return f"icmp ne {text}, {repeated('0', source)}"
        old, new = _BITS[_ELEMENTS[source.dtype]], _BITS[_ELEMENTS[result.dtype]]
        if source.is_float and result.is_float:
            instruction = "fpext" if new > old else "fptrunc"
        elif source.is_float:
            instruction = "fptosi" if result.is_signed else "fptoui"
        elif result.is_float:
            instruction = "sitofp" if source.is_signed else "uitofp"
        elif new == old:
            instruction = "bitcast"
        elif new < old:
            instruction = "trunc"
        else:
            instruction = "sext" if source.is_signed else "zext"
        return f"{instruction} {text} to {llvm_type(result)}"


def _cut(signature: str) -> tuple[str, str]:
    """Split the signature of a function that returns a vector."""
    end = signature.index(">") + 1
    return signature[:end], signature[end + 1 :]


def _alignment(buffer: ir.Buffer, flat: ir.Index) -> int:
    """Return the bytes of which an entry's address is a multiple, a power of two."""
    align = gcd(flat.const, *(scale for _, scale in flat.terms)) * buffer.item_bytes
    align = gcd(buffer.align, align)
    return align & -align


def memory_type(dtype: str) -> str:
    """Return LLVM's type of an element in memory."""
    return "i8" if dtype == "bool" else _ELEMENTS[dtype]


def vector_type(element: str, lanes: int) -> str:
    """Return LLVM's type of some lanes."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


@cache
def llvm_type(type_: ir.Type) -> str:
    """Return LLVM's type of a value."""
    return vector_type(_ELEMENTS[type_.dtype], type_.lanes)


def _suffix(type_: ir.Type) -> str:
    element = _ELEMENTS[type_.dtype]
    element = _SUFFIXES.get(element, element)
    return element if type_.lanes == 1 else f"v{type_.lanes}{element}"


def _mask(lanes: list[int] | tuple[int, ...]) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


def llvm_literal(value: float | bool, type_: ir.Type) -> str:
    """Return a number as an operand of a type."""
    if type_.dtype == "bool":
        return repeated("true" if value else "false", type_)
    if not type_.is_float:
        return repeated(str(int(value)), type_)
    if type_.dtype == "float64":
        number = value
    else:
        import numpy as np

        number = float(np.dtype(type_.dtype).type(value))  # what a float32 or float16 can hold
    if type_.dtype == "float16":
        import numpy as np

        return repeated(f"0xH{int(np.float16(number).view(np.uint16)):04X}", type_)
    # LLVM writes float32 as the float64 of the same value, in hexadecimal.
    return repeated(f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", type_)


def repeated(literal: str, type_: ir.Type) -> str:
    """Return a scalar's literal in every lane of a type."""
    if type_.lanes == 1 or literal.startswith(("<", "splat", "zeroinit")):
        return literal
    return f"splat ({_ELEMENTS[type_.dtype]} {literal})"


def _neutral(name: str, type_: ir.Type) -> str:
    assert name in ("add", "mul"), f"reduce {name} over an odd number of lanes"
    return llvm_literal(0 if name == "add" else 1, ir.Type(type_.dtype))


def _comparison(predicate: str, type_: ir.Type) -> str:
    if type_.is_float:
        return f"fcmp {_FLOAT_PREDICATES[predicate]}"
    if predicate in ("eq", "ne"):
        return f"icmp {predicate}"
    return f"icmp {'s' if type_.is_signed else 'u'}{predicate}"
