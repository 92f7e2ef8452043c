# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to the text of LLVM IR.

A kernel becomes `void name(ptr arguments, i64 begin, i64 end)`: the table of its arguments (8 bytes
each: the buffers' addresses, then the sizes) and the turns of its parallel loop that the call runs.
Operations move to the outermost block that knows their operands, so that LLVM needs no pass for
that; text is written directly, which is several times faster than building objects.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache
from math import gcd

from intarsia.codegen import ir
from intarsia.codegen.emit.llvm_dots import DotOperand, Lines, spell_dot
from intarsia.codegen.emit.llvm_remainder import by_lanes, remainder_function
from intarsia.codegen.unit import VectorUnit

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
_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


_UNIT = VectorUnit()
STACK_BYTES = 64 << 10
"""Local buffers above are taken from the C library's heap: threads may have small stacks."""


@dataclass(slots=True)
class _Block:
    """The lines of one loop body, or of the function; whether that loop carries values."""

    label: str
    is_carrying: bool = False
    lines: list[str] = field(default_factory=list)
    computed: dict[object, str] = field(default_factory=dict)


def emit_llvm(function: ir.Function, unit: VectorUnit = _UNIT) -> str:
    """Return an LLVM IR module with one kernel.

    Args:
        function: The kernel, verified and expanded.
        unit: The CPU's. Where it does not multiply and add in one instruction, `fma` rounds twice,
            because a library call for each lane would be far too slow; `dots` says which
            instructions `dot` may become.
    """
    return _Emitter(function, unit).module()


class _Emitter:
    def __init__(self, function: ir.Function, unit: VectorUnit) -> None:
        self._function = function
        self._size = "i32" if unit.is_32_bit else "i64"
        self._dots = unit.dots
        self._fma = "fma" if unit.has_fma else "fmuladd"
        self._has_calls = unit.calls_with_floats
        self._names: dict[ir.IrValue, str] = {}
        self._rounded: dict[ir.IrValue, ir.IrValue] = {}  # what was rounded, by the result
        self._operands: dict[ir.IrValue, str] = {}  # with their types
        self._depths: dict[ir.IrValue, int] = {}
        self._blocks: list[_Block] = []
        self._count = 0
        self._declared: dict[str, str] = {}
        self._callees: dict[tuple[str, ir.Type], str] = {}
        self._pointers: dict[ir.Buffer, str] = {}

    def module(self) -> str:
        """Return the module: the kernel with typed arguments, and the entry that unpacks them."""
        function = self._function
        parameters = []
        for number, buffer in enumerate(function.buffers):
            self._pointers[buffer] = f"%b{number}"
            access = "" if buffer.is_written else " readonly"
            parameters.append(f"ptr noalias{access} align {buffer.align} %b{number}")
        for number, size in enumerate(function.sizes):
            self._set(size, f"%s{number}", 0)
            parameters.append(f"i64 %s{number}")
        parameters += ["i64 %begin", "i64 %end"]
        self._blocks.append(_Block("entry"))
        freed = [self._local(number, buffer) for number, buffer in enumerate(function.locals)]
        self._body(function.body)
        for line in filter(None, freed):
            self._line(line)
        (block,) = self._blocks
        body = "\n".join(("entry:", *block.lines, "  ret void"))
        # `noalias` holds for arguments of a function, not for pointers loaded from a table: hence a
        # function inside, which must not be inlined.
        kernel = (
            f"define internal void @{function.name}.body({', '.join(parameters)}) #0 {{\n{body}\n}}"
        )
        declarations = "\n".join(self._declared.values())
        attributes = 'attributes #0 = { nounwind noinline "prefer-vector-width"="512" }'
        return "\n".join((kernel, self._entry(), declarations, attributes, ""))

    def _local(self, number: int, buffer: ir.Buffer) -> str:
        """Make a local buffer; return the line that gives it back, if it needs one."""
        count, element = buffer.span, _memory(buffer.dtype)
        self._pointers[buffer] = f"%l{number}"
        nbytes = count * buffer.item_bytes
        if nbytes <= STACK_BYTES:
            self._line(f"%l{number} = alloca [{count} x {element}], align {buffer.align}")
            return ""
        word, size = self._size, -(-nbytes // buffer.align) * buffer.align
        self._declared["aligned_alloc"] = f"declare noalias ptr @aligned_alloc({word}, {word})"
        sizes = f"{word} {buffer.align}, {word} {size}"
        self._line(f"%l{number} = call ptr @aligned_alloc({sizes})")
        return f"call void {self._declare('free', 'void (ptr)')}(ptr %l{number})"

    def _entry(self) -> str:
        function = self._function
        lines = [f"define void @{function.name}(ptr %arguments, i64 %begin, i64 %end) {{"]
        passed = []
        for number in range(len(function.buffers) + len(function.sizes)):
            type_ = "ptr" if number < len(function.buffers) else "i64"
            lines.append(f"  %p{number} = getelementptr i8, ptr %arguments, i64 {8 * number}")
            lines.append(f"  %a{number} = load {type_}, ptr %p{number}, align 8")
            passed.append(f"{type_} %a{number}")
        passed += ["i64 %begin", "i64 %end"]
        lines.append(f"  call void @{function.name}.body({', '.join(passed)})")
        return "\n".join((*lines, "  ret void", "}"))

    # Names, blocks and lines

    def _set(self, value: ir.IrValue, name: str, depth: int) -> None:
        self._names[value] = name
        self._operands[value] = f"{_type(value.type)} {name}"
        self._depths[value] = depth

    def _fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def _line(self, text: str, depth: int = -1) -> None:
        self._blocks[depth].lines.append(f"  {text}")

    def _define(self, result: ir.IrValue, text: str, depth: int) -> None:
        self._count += 1
        name = f"%v{self._count}"
        self._blocks[depth].lines.append(f"  {name} = {text}")
        self._set(result, name, depth)

    def _declare(self, name: str, signature: str) -> str:
        if name not in self._declared:
            result, arguments = signature.split(" ", 1) if signature[0] != "<" else _cut(signature)
            self._declared[name] = f"declare {result} @{name}{arguments}"
        return f"@{name}"

    def _typed(self, value: ir.IrValue) -> str:
        return self._operands[value]

    # Statements

    def _body(self, body: tuple[ir.Operation, ...]) -> None:
        for operation in body:
            match operation:
                case ir.Loop():
                    self._loop(operation)
                case ir.Store():
                    self._store(operation)
                case ir.Load():
                    self._load(operation)
                case ir.Prefetch(buffer=buffer, subscripts=subscripts, is_far=is_far):
                    pointer = self._address(buffer, buffer.flatten(subscripts))
                    callee = self._declare("llvm.prefetch.p0", "void (ptr, i32, i32, i32)")
                    near = 2 if is_far else 3
                    self._line(f"call void {callee}(ptr {pointer}, i32 0, i32 {near}, i32 1)")
                case ir.Constant(result=result, value=value):
                    self._set(result, _literal(value, result.type), 0)
                case _:
                    self._pure(operation)

    def _loop(self, loop: ir.Loop) -> None:
        outer = self._blocks[-1]
        is_parallel = loop.kind is ir.LoopKind.PARALLEL
        lower = "%begin" if is_parallel else self._index(loop.lower)
        upper = "%end" if is_parallel else self._index(loop.upper)
        # Loops test at their end; only one that may not turn at all has a test in front.
        is_sure = not is_parallel and (loop.trip_count or 0) > 0
        self._count += 1
        number = self._count
        head, tail = f"head{number}", f"tail{number}"
        block = _Block(head, bool(loop.carried))
        self._blocks.append(block)
        depth = len(self._blocks) - 1
        self._set(loop.variable, self._fresh(), depth)
        for value in loop.carried:
            self._set(value, self._fresh(), depth)
        self._body(loop.body)
        self._blocks.pop()
        step = f"%n{number}"
        if is_sure:
            outer.lines.append(f"  br label %{head}")
        else:
            outer.lines.append(f"  %g{number} = icmp slt i64 {lower}, {upper}")
            outer.lines.append(f"  br i1 %g{number}, label %{head}, label %{tail}")
        outer.lines.append(f"{head}:")
        phis = [(self._names[loop.variable], "i64", lower, step)]
        for carried, first, following in zip(loop.carried, loop.initial, loop.yielded, strict=True):
            names = (self._names[carried], self._names[first], self._names[following])
            phis.append((names[0], _type(carried.type), names[1], names[2]))
        for name, type_, first_name, next_name in phis:
            outer.lines.append(
                f"  {name} = phi {type_} [ {first_name}, %{outer.label} ], "
                f"[ {next_name}, %{block.label} ]"
            )
        outer.lines += block.lines
        outer.lines += [
            f"  {step} = add nuw nsw i64 {self._names[loop.variable]}, {loop.step}",
            f"  %c{number} = icmp slt i64 {step}, {upper}",
            f"  br i1 %c{number}, label %{head}, label %{tail}",
            f"{tail}:",
        ]
        before, outer.label = outer.label, tail
        depth = len(self._blocks) - 1
        for result, first, following in zip(loop.results, loop.initial, loop.yielded, strict=True):
            if is_sure:
                self._set(result, self._names[following], depth)
                continue
            text = (
                f"phi {_type(result.type)} [ {self._names[first]}, %{before} ], "
                f"[ {self._names[following]}, %{block.label} ]"
            )
            self._define(result, text, depth)

    def _load(self, load: ir.Load) -> None:
        depth = len(self._blocks) - 1
        lanes, element = load.result.type.lanes, _memory(load.buffer.dtype)
        is_bool = load.buffer.dtype == "bool"
        if lanes > 1 and load.stride != 1:
            name = self._gathered(load, element)
        else:
            flat = load.buffer.flatten(load.subscripts)
            pointer = self._address(load.buffer, flat)
            align = _alignment(load.buffer, flat)
            name = self._fresh()
            type_ = element if lanes == 1 else f"<{load.count} x {element}>"
            self._line(f"{name} = load {type_}, ptr {pointer}, align {align}")
            if load.count < lanes:
                # A shorter vector is loaded and widened: nothing is read beyond the last lane that
                # counts.
                mask = [min(lane, load.count) for lane in range(lanes)]
                wide = self._fresh()
                self._line(
                    f"{wide} = shufflevector {type_} {name}, {type_} zeroinitializer, {_mask(mask)}"
                )
                name = wide
        if is_bool:
            type_ = _vector(element, lanes)
            wide = self._fresh()
            zero = "0" if lanes == 1 else "zeroinitializer"
            self._line(f"{wide} = icmp ne {type_} {name}, {zero}")
            name = wide
        self._set(load.result, name, depth)

    def _gathered(self, load: ir.Load, element: str) -> str:
        """Read lanes one by one."""
        lanes, flat = load.result.type.lanes, load.buffer.flatten(load.subscripts)
        align = load.buffer.item_bytes
        current = "zeroinitializer"
        for lane in range(load.count):
            pointer = self._address(load.buffer, flat + lane * load.stride)
            scalar, name = self._fresh(), self._fresh()
            self._line(f"{scalar} = load {element}, ptr {pointer}, align {align}")
            self._line(
                f"{name} = insertelement <{lanes} x {element}> {current}, "
                f"{element} {scalar}, i32 {lane}"
            )
            current = name
        return current

    def _store(self, store: ir.Store) -> None:
        value, lanes = store.value, store.value.type.lanes
        element, flat = _memory(store.buffer.dtype), store.buffer.flatten(store.subscripts)
        name = self._names[value]
        if store.buffer.dtype == "bool":
            wide = self._fresh()
            self._line(f"{wide} = zext {self._typed(value)} to {_vector(element, lanes)}")
            name = wide
        type_ = _vector(element, lanes)
        if lanes > 1 and store.stride != 1:
            for lane in range(store.count):
                pointer = self._address(store.buffer, flat + lane * store.stride)
                scalar = self._fresh()
                self._line(f"{scalar} = extractelement {type_} {name}, i32 {lane}")
                self._line(
                    f"store {element} {scalar}, ptr {pointer}, align {store.buffer.item_bytes}"
                )
            return
        if store.count < lanes:
            narrow = self._fresh()
            mask = _mask(list(range(store.count)))
            self._line(f"{narrow} = shufflevector {type_} {name}, {type_} poison, {mask}")
            name, type_ = narrow, f"<{store.count} x {element}>"
        pointer = self._address(store.buffer, flat)
        align = _alignment(store.buffer, flat)
        self._line(f"store {type_} {name}, ptr {pointer}, align {align}")

    # Subscripts

    def _address(self, buffer: ir.Buffer, flat: ir.Index) -> str:
        """Return a pointer; each term is added in the outermost block that knows its value.

        How a pointer came about is hidden from LLVM's loop strength reduction: else that pass may
        prefer a pointer of its own for every entry of an inner loop to displacements from one, and
        run out of registers; and on long bodies it takes a fifth of the time of compiling. Loops
        that carry values, all of a register tile, are left to it: it adds to fewer pointers there.
        """
        element = _memory(buffer.dtype)
        pointer, depth = self._pointers[buffer], 0
        key: tuple[object, ...] = (buffer,)
        terms = sorted(flat.terms, key=lambda term: self._depths[term[0]])
        for number, (value, scale) in enumerate(terms):
            depth = max(depth, self._depths[value])
            if number + 1 < len(terms):
                is_hidden = self._depths[terms[number + 1][0]] > depth
            else:
                is_hidden = not self._blocks[depth].is_carrying
            key = (*key, value, scale, is_hidden)
            address = self._blocks[depth].computed.get(key)
            if address is None:
                scaled = self._scaled(value, scale)
                address = self._fresh()
                self._line(
                    f"{address} = getelementptr inbounds {element}, ptr {pointer}, i64 {scaled}",
                    depth,
                )
                if is_hidden:
                    address = self._hidden(address, depth)
                self._blocks[depth].computed[key] = address
            pointer = address
        if flat.const == 0:
            return pointer
        name = self._fresh()
        self._line(f"{name} = getelementptr inbounds {element}, ptr {pointer}, i64 {flat.const}")
        return name

    def _hidden(self, pointer: str, depth: int) -> str:
        """Return a pointer of which LLVM does not know how it came about."""
        name = self._fresh()
        callee = self._declare("llvm.launder.invariant.group.p0", "ptr (ptr)")
        self._line(f"{name} = call ptr {callee}(ptr {pointer})", depth)
        return name

    def _scaled(self, value: ir.IrValue, scale: int) -> str:
        if scale == 1:
            return self._names[value]
        depth = self._depths[value]
        computed = self._blocks[depth].computed
        key = (value, scale)
        if key not in computed:
            name = self._fresh()
            self._line(f"{name} = mul nsw i64 {self._names[value]}, {scale}", depth)
            computed[key] = name
        return computed[key]

    def _index(self, index: ir.Index) -> str:
        """Return an int64 operand, computed in the outermost block that can."""
        if not index.terms:
            return str(index.const)
        depth = max(self._depths[value] for value, _ in index.terms)
        computed = self._blocks[depth].computed
        if index in computed:
            return computed[index]
        total = ""
        for value, scale in index.terms:
            scaled = self._scaled(value, scale)
            if total:
                name = self._fresh()
                self._line(f"{name} = add nsw i64 {total}, {scaled}", depth)
                total = name
            else:
                total = scaled
        if index.const:
            name = self._fresh()
            self._line(f"{name} = add nsw i64 {total}, {index.const}", depth)
            total = name
        computed[index] = total
        return total

    # Operations without effects

    def _pure(self, operation: ir.Operation) -> None:
        if isinstance(operation, ir.IndexValue):
            name = self._index(operation.index)
            depths = [self._depths[value] for value, _ in operation.index.terms]
            self._set(operation.result, name, max(depths, default=0))
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
        return max(map(self._depths.__getitem__, ir.operands(operation)), default=0)

    def _splat(self, splat: ir.Splat, depth: int) -> None:
        lanes, source = splat.result.type.lanes, self._names[splat.operand]
        if not source.startswith("%"):  # a number
            self._set(splat.result, _repeat(source, splat.result.type), 0)
            return
        type_ = _type(splat.result.type)
        one = self._fresh()
        self._line(
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
            rest = _repeat(_neutral(name, vector.type), vector.type)
        type_ = _type(vector.type)
        self._define(part, f"shufflevector {typed}, {type_} {rest}, {_mask(mask)}", depth)
        return part

    def _extremum(self, operation: ir.Binary, depth: int) -> None:
        type_ = operation.left.type
        # minps and maxps of x86 do just this, NaN included; `llvm.maxnum` without `nnan` becomes a
        # maximum, a comparison and a blend.
        predicate = "gt" if operation.name == "max" else "lt"
        condition = self._fresh()
        left, right = self._names[operation.left], self._names[operation.right]
        text = f"{_comparison(predicate, type_)} {_type(type_)} {left}, {right}"
        self._line(f"{condition} = {text}", depth)
        bools = _type(type_.with_dtype("bool"))
        text = f"select {bools} {condition}, {_type(type_)} {left}, {_type(type_)} {right}"
        self._define(operation.result, text, depth)

    def _dot(self, dot: ir.Dot, depth: int) -> None:
        parts = [
            DotOperand(self._names[value], value.type.dtype, self._depths[value])
            for value in (dot.left, dot.right, dot.addend)
        ]
        lines = Lines(self._appended, self._shared, self._declare)
        lanes, fits_pairs = dot.result.type.lanes, dot.fits_pairs
        name = spell_dot(lines, self._dots, lanes, *parts, fits_pairs=fits_pairs)
        self._set(dot.result, name, depth)

    def _appended(self, text: str, depth: int) -> str:
        name = self._fresh()
        self._line(f"{name} = {text}", depth)
        return name

    def _shared(self, text: str, depth: int) -> str:
        computed = self._blocks[depth].computed
        if text not in computed:
            computed[text] = self._appended(text, depth)
        return computed[text]

    def _expression(self, operation: ir.Operation) -> str:  # noqa: PLR0911 - one case a line
        names = self._names
        match operation:
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
                return f"bitcast {self._typed(operand)} to {_type(result.type)}"
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
            return f"fcmp uno {text}, {self._names[operand]}"
        if operation.name == "not":
            return f"xor {text}, {_repeat('true' if type_.dtype == 'bool' else '-1', type_)}"
        if operation.name == "neg":
            if type_.is_float:
                return f"fneg {text}"
            return f"sub {_type(type_)} {_repeat('0', type_)}, {self._names[operand]}"
        if operation.name == "abs" and not type_.is_float:
            if not type_.is_signed:
                return f"or {text}, {_repeat('0', type_)}"
            name = f"llvm.abs.{_suffix(type_)}"
            vector = _type(type_)
            callee = self._declare(name, f"{vector} ({vector}, i1)")
            return f"call {vector} {callee}({text}, i1 false)"
        if operation.name in _ROUNDED and not self._has_calls:
            return f"call {_type(type_)} {self._rounding(operation.name, type_)}({text})"
        if operation.name == "rint":
            self._rounded[operation.result] = operand
        return self._call(_INTRINSICS[operation.name], type_, (operand,))

    def _rounding(self, name: str, type_: ir.Type) -> str:
        """Return what calls a function of the module that rounds numbers to whole ones.

        Numbers up to two to the bits of a significand are rounded as that power of two is added to
        them; larger ones are whole.
        """
        vector, suffix = _type(type_), _suffix(type_)
        rounding = f"intarsia.{name}.{suffix}"
        if rounding not in self._declared:
            magnitude = self._declare(f"llvm.fabs.{suffix}", f"{vector} ({vector})")
            copysign = self._declare(f"llvm.copysign.{suffix}", f"{vector} ({vector}, {vector})")
            flags = _type(ir.Type("bool", type_.lanes))
            power = _literal(float(1 << _SIGNIFICANDS[type_.dtype]), type_)
            one, zero = _literal(1.0, type_), _literal(0.0, type_)
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
            self._declared[rounding] = (
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
                function, vector = self._remainder(type_), _type(type_)
                return f"call {vector} {function}({self._typed(left)}, {self._typed(right)})"
            instruction = f"f{operation.name}"
        elif operation.name in _SIGNLESS:
            instruction = operation.name
        elif operation.name == "shr":
            instruction = "ashr" if type_.is_signed else "lshr"
        else:
            instruction = f"{'s' if type_.is_signed else 'u'}{operation.name}"
        return f"{instruction} {self._typed(left)}, {self._names[right]}"

    def _remainder(self, type_: ir.Type) -> str:
        """Return the name of a function of the module's own."""
        scalar = f"intarsia.rem.{_suffix(ir.Type(type_.dtype))}"
        if scalar not in self._declared:
            self._declared[scalar] = remainder_function(scalar, type_.dtype)
        if type_.lanes == 1:
            return f"@{scalar}"
        name = f"intarsia.rem.{_suffix(type_)}"
        if name not in self._declared:
            self._declared[name] = by_lanes(name, scalar, type_.dtype, type_.lanes)
        return f"@{name}"

    def _call(self, intrinsic: str, type_: ir.Type, arguments: tuple[ir.IrValue, ...]) -> str:
        key = (intrinsic, type_)
        if key not in self._callees:
            vector = _type(type_)
            name = f"llvm.{intrinsic}.{_suffix(type_)}"
            callee = self._declare(name, f"{vector} ({', '.join([vector] * len(arguments))})")
            self._callees[key] = f"call {vector} {callee}"
        return f"{self._callees[key]}({', '.join(map(self._typed, arguments))})"

    def _cast(self, result: ir.Type, operand: ir.IrValue) -> str:
        source, text = operand.type, self._typed(operand)
        if operand in self._rounded and (source.dtype, result.dtype) == ("float32", "int32"):
            # CPUs round and convert at once, which LLVM does not find by itself.
            vector, suffixes = _type(result), f"{_suffix(result)}.{_suffix(source)}"
            callee = self._declare(f"llvm.lrint.{suffixes}", f"{vector} ({_type(source)})")
            return f"call {vector} {callee}({self._typed(self._rounded[operand])})"
        if result.dtype == "bool":
            if source.is_float:
                return f"fcmp une {text}, {_repeat(_literal(0.0, ir.Type(source.dtype)), source)}"
            return f"icmp ne {text}, {_repeat('0', source)}"
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
        return f"{instruction} {text} to {_type(result)}"


def _cut(signature: str) -> tuple[str, str]:
    """Split the signature of a function that returns a vector."""
    end = signature.index(">") + 1
    return signature[:end], signature[end + 1 :]


def _alignment(buffer: ir.Buffer, flat: ir.Index) -> int:
    """Return the bytes of which an entry's address is a multiple, a power of two."""
    align = gcd(flat.const, *(scale for _, scale in flat.terms)) * buffer.item_bytes
    align = gcd(buffer.align, align)
    return align & -align


def _memory(dtype: str) -> str:
    return "i8" if dtype == "bool" else _ELEMENTS[dtype]


def _vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


@cache
def _type(type_: ir.Type) -> str:
    return _vector(_ELEMENTS[type_.dtype], type_.lanes)


def _suffix(type_: ir.Type) -> str:
    element = _ELEMENTS[type_.dtype]
    element = _SUFFIXES.get(element, element)
    return element if type_.lanes == 1 else f"v{type_.lanes}{element}"


def _mask(lanes: list[int] | tuple[int, ...]) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


def _literal(value: float | bool, type_: ir.Type) -> str:
    """Return a number as an operand of a type."""
    if type_.dtype == "bool":
        return _repeat("true" if value else "false", type_)
    if not type_.is_float:
        return _repeat(str(int(value)), type_)
    if type_.dtype == "float64":
        number = value
    else:
        import numpy as np

        number = float(np.dtype(type_.dtype).type(value))  # what a float32 or float16 can hold
    if type_.dtype == "float16":
        import numpy as np

        return _repeat(f"0xH{int(np.float16(number).view(np.uint16)):04X}", type_)
    # LLVM writes float32 as the float64 of the same value, in hexadecimal.
    return _repeat(f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", type_)


def _repeat(literal: str, type_: ir.Type) -> str:
    """Return a scalar's literal in every lane of a type."""
    if type_.lanes == 1 or literal.startswith(("<", "splat", "zeroinit")):
        return literal
    return f"splat ({_ELEMENTS[type_.dtype]} {literal})"


def _neutral(name: str, type_: ir.Type) -> str:
    assert name in ("add", "mul"), f"reduce {name} over an odd number of lanes"
    return _literal(0 if name == "add" else 1, ir.Type(type_.dtype))


def _comparison(predicate: str, type_: ir.Type) -> str:
    if type_.is_float:
        return f"fcmp {_FLOAT_PREDICATES[predicate]}"
    if predicate in ("eq", "ne"):
        return f"icmp {predicate}"
    return f"icmp {'s' if type_.is_signed else 'u'}{predicate}"
