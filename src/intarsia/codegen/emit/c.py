# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to C99 (ISO/IEC 9899:1999), without intrinsics or extensions.

A kernel becomes a function of its buffers, its sizes, and the turns of its parallel loop that the
call runs. Lanes are the iterations of short inner loops over arrays, which a compiler makes vectors
of. Neighbouring operations on as many lanes share one such loop, unless that would change the order
of a load and a store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from intarsia.codegen import ir
from intarsia.codegen.blocked_dots import without_blocks
from intarsia.codegen.emit import c_text as text
from intarsia.codegen.emit.c_family import CFamily, spell
from intarsia.codegen.emit.c_maths import helpers
from intarsia.codegen.emit.live import prune

_SPELLING = text.CSpelling()
_LANEWISE = (
    ir.Unary,
    ir.Binary,
    ir.Fma,
    ir.Compare,
    ir.Select,
    ir.Cast,
    ir.Bitcast,
    ir.Splat,
    ir.Load,
    ir.Store,
)


def emit_c(functions: Sequence[ir.Function]) -> str:
    """Return a C99 source with a static function for each kernel; it includes what they need.

    It needs no library: nothing but what a freestanding compiler has (ISO/IEC 9899:1999, 4).

    Args:
        functions: Kernels of different names: verified and expanded.
    """
    pruned = [prune(function) for function in functions]
    parts = [text.PRELUDE, *_helpers(pruned)]
    parts += [_Kernel(function).source() for function in pruned]
    return "\n".join(parts)


def parameters(function: ir.Function) -> list[tuple[str, str]]:
    """Return types and names of a kernel's parameters, in order."""
    return _Kernel(function).parameters()


def _helpers(functions: Sequence[ir.Function]) -> Iterator[str]:
    dtypes: set[str] = set()
    casts: set[tuple[str, str]] = set()
    calls: set[tuple[str, str]] = set()
    for function in functions:
        dtypes |= {buffer.dtype for buffer in (*function.buffers, *function.locals)}
        for operation in ir.walk(function.body):
            dtypes |= {value.type.dtype for value in ir.results(operation)}
            calls |= _called(operation)
            if isinstance(operation, ir.Bitcast):
                casts.add((operation.operand.type.dtype, operation.result.type.dtype))
            if isinstance(operation, ir.Dot) and operation.result.type.is_float:
                casts.add(("uint32", "float32"))
    yield helpers(calls, has_halves="float16" in dtypes)
    for source, target in sorted(casts):
        if f"{source}_bits" in _SPELLING.bitcast("x", source, target):
            yield text.bitcast_helper(source, target)


def _called(operation: ir.Operation) -> set[tuple[str, str]]:
    """Return the helpers that the spelling of an operation calls."""
    match operation:
        case ir.Unary(name=name, operand=value) if value.type.is_float:
            names = () if name in ("neg", "isnan", "not") else (name,)
        case ir.Binary(name=("copysign" | "rem") as name, left=value) if value.type.is_float:
            names = (name,)
        case ir.Fma(left=value) if value.type.dtype in ("float32", "float64"):
            names = ("fma",)
        case ir.Dot(result=value) if value.type.is_float:
            names = ("fma",)
        case ir.Constant(result=value, value=number) if value.type.is_float:
            names = () if math.isfinite(number) else ("special",)
        case _:
            return set()
    dtype = "float64" if value.type.dtype == "float64" else "float32"
    return {(name, dtype) for name in names}


@dataclass(slots=True)
class _Run:
    """Operations that will share a loop over lanes."""

    lanes: int = 0
    operations: list[ir.Operation] = field(default_factory=list)
    loaded: set[ir.Buffer] = field(default_factory=set)
    stored: set[ir.Buffer] = field(default_factory=set)

    def takes(self, operation: ir.Operation, lanes: int) -> bool:
        if lanes != self.lanes:
            return False
        if isinstance(operation, ir.Load):
            return operation.buffer not in self.stored
        if isinstance(operation, ir.Store):
            return operation.buffer not in self.stored | self.loaded
        return True

    def append(self, operation: ir.Operation) -> None:
        self.operations.append(operation)
        if isinstance(operation, ir.Load):
            self.loaded.add(operation.buffer)
        elif isinstance(operation, ir.Store):
            self.stored.add(operation.buffer)


class _Kernel(CFamily):
    integer = "ptrdiff_t"  # of 32 bits where addresses are
    reserved = text.KEYWORDS | {"begin", "end", "turn", "l"}

    def __init__(self, function: ir.Function) -> None:
        super().__init__(function)
        self._run = _Run()
        self._scalars: dict[ir.IrValue, str] = {}  # constants and splats: one text for every lane
        self._inside: dict[ir.IrValue, str] = {}  # variables of the loop over lanes that is written
        self._users: dict[ir.IrValue, list[int]] = {}
        self._homes: dict[ir.IrValue, int] = {}  # the block in which an array is declared
        self._targets: dict[ir.IrValue, tuple[str, ...]] = {}
        self._reused: set[ir.IrValue] = set()
        self._arrays: set[str] = set()
        for operation in ir.walk(function.body):
            for value in ir.operands(operation):
                self._users.setdefault(value, []).append(id(operation))
            if isinstance(operation, ir.Loop):
                for value in operation.yielded:
                    self._users.setdefault(value, []).append(id(operation))

    def parameters(self) -> list[tuple[str, str]]:
        """Return types and names of the parameters."""
        out = []
        for buffer in self.function.buffers:
            const = "" if buffer.is_written else "const "
            element = text.MEMORY[buffer.dtype]
            out.append((f"{const}{element} *restrict", self.buffers[buffer]))
        out += [("int64_t", name) for size in self.function.sizes for name in self.names[size]]
        return [*out, (self.integer, "begin"), (self.integer, "end")]

    def source(self) -> str:
        """Return the function."""
        function = self.function
        for buffer in function.locals:
            element = text.MEMORY[buffer.dtype]
            self.line(f"{element} {self.buffers[buffer]}[{buffer.span}];")
        self.body(function.body)
        body = "\n".join(self.lines)
        names = [name for _, name in self.parameters()]
        unused = [name for name in names if not re.search(rf"\b{name}\b", body)]
        ignored = "".join(f"    (void){name};\n" for name in unused)
        notes = "".join(f"/* {note} */\n" for note in function.notes)
        listed = ",\n    ".join(f"{type_} {name}" for type_, name in self.parameters())
        return f"{notes}KERNEL void {function.name}(\n    {listed})\n{{\n{ignored}{body}\n}}\n"

    # Statements: those on lanes wait until one comes that cannot share their loop

    def operation(self, operation: ir.Operation) -> None:
        lanes = _lanes(operation)
        if lanes > 1 and isinstance(operation, _LANEWISE):
            if not self._run.takes(operation, lanes):
                self._flush()
                self._run.lanes = lanes
            self._run.append(operation)
            if isinstance(operation, ir.Splat):
                self._scalars[operation.result] = self._one(operation.operand)
            return
        if self._must_flush(operation):
            self._flush()
        super().operation(operation)

    def _must_flush(self, operation: ir.Operation) -> bool:
        if isinstance(operation, ir.Loop | ir.Store):
            return True
        if isinstance(operation, ir.Load):
            return operation.buffer in self._run.stored
        waiting = {value for item in self._run.operations for value in ir.results(item)}
        return not waiting.isdisjoint(ir.operands(operation))

    def body(self, operations: Sequence[ir.Operation]) -> None:
        super().body(operations)
        self._flush()

    def parallel(self, loop: ir.Loop) -> None:
        assert loop.kind is ir.LoopKind.PARALLEL, "a kernel for a GPU"
        step = "++turn" if loop.step == 1 else f"turn += {loop.step}"
        self.names[loop.variable] = ("turn",)
        self.open(f"for ({self.integer} turn = begin; turn < end; {step})")
        self.body(loop.body)
        self.close()

    def _flush(self) -> None:
        """Write the loop over lanes of the operations that wait."""
        run, self._run = self._run, _Run()
        work = [item for item in run.operations if not isinstance(item, ir.Splat)]
        if not work:
            return
        together = {id(item) for item in work}
        for operation in work:
            for value in ir.results(operation):
                # What only this loop reads is a scalar of one iteration; else compilers write it to
                # the stack and read it again.
                if set(self._users[value]) <= together:
                    self._inside[value] = self.fresh()
                elif value in self._targets:
                    self.names[value] = self._targets[value]
                else:
                    self._array(value)
        self.open(f"for (int l = 0; l < {run.lanes}; ++l)")
        for operation in work:
            self._lane_of(operation)
        self.close()
        self._inside.clear()

    def _array(self, value: ir.IrValue) -> str:
        """Declare an array for a vector."""
        name = self.fresh()
        self.line(f"{text.ELEMENTS[value.type.dtype]} {name}[{value.type.lanes}];")
        self.names[value] = (name,)
        self._homes[value] = self._depth
        self._arrays.add(name)
        return name

    def _lane_of(self, operation: ir.Operation) -> None:
        """Write what an operation does in one lane."""
        if isinstance(operation, ir.Store):
            self._store_lane(operation)
            return
        (result,) = ir.results(operation)
        if isinstance(operation, ir.Load):
            value = self._loaded_lane(operation)
        else:
            value = spell(operation, lambda item: self._lane(item, "l"), _SPELLING)
        if result in self._inside:
            type_ = text.ELEMENTS[result.type.dtype]
            self.line(f"const {type_} {self._inside[result]} = {value};")
        else:
            self.line(f"{self.names[result][0]}[l] = {value};")

    def _lane(self, value: ir.IrValue, lane: str | int) -> str:
        """Return one lane of a value."""
        if value in self._scalars:
            return self._scalars[value]
        if value in self._inside:
            return self._inside[value]
        (name,) = self.names[value]
        return name if value.type.lanes == 1 else f"{name}[{lane}]"

    def _one(self, value: ir.IrValue) -> str:
        return self._scalars.get(value) or self.names[value][0]

    def _store_lane(self, store: ir.Store) -> None:
        value = text.to_memory(self._lane(store.value, "l"), store.buffer.dtype)
        if store.count < store.value.type.lanes:
            self.open(f"if (l < {store.count})")
        self.line(f"{self._element(store, 'l')} = {value};")
        if store.count < store.value.type.lanes:
            self.close()

    def _element(self, access: ir.Load | ir.Store, lane: str = "") -> str:
        place = self.offset(access)
        if lane and access.stride:
            step = lane if access.stride == 1 else f"{access.stride} * {lane}"
            place = step if place == "0" else f"{place} + {step}"
        return f"{self.buffers[access.buffer]}[{place}]"

    # Loops

    def loop(self, loop: ir.Loop) -> None:
        self._reused = set()
        for carried, first in zip(loop.carried, loop.initial, strict=True):
            # Its array is nobody else's any more, and declared in this block: it becomes the
            # carried one without a copy.
            is_last_use = self._users.get(first, []) == [id(loop)]
            if is_last_use and self._homes.get(first) == self._depth and first in self.names:
                self._reused.add(carried)
        super().loop(loop)
        for result in loop.results:
            if result.type.lanes > 1:
                self._homes[result] = self._depth

    def begin(self, carried: ir.IrValue, first: ir.IrValue) -> tuple[str, ...]:
        if carried in self._reused:
            return self.names[first]
        return self.copy(first)

    def inside(self, loop: ir.Loop) -> None:
        for carried in loop.carried:
            if carried.type.lanes > 1:
                self._homes[carried] = self._depth
        self._targets |= _in_place(loop, self.names)
        super().inside(loop)

    def copy(self, value: ir.IrValue) -> tuple[str, ...]:
        if value.type.lanes == 1:
            name = self.fresh()
            self.line(f"{text.ELEMENTS[value.type.dtype]} {name} = {self._one(value)};")
            return (name,)
        held = ir.IrValue(value.type)
        name = self._array(held)
        self._for_lanes(value.type.lanes, f"{name}[l] = {self._lane(value, 'l')};")
        return (name,)

    def sources(self, value: ir.IrValue) -> tuple[str, ...]:
        return (self._scalars[value],) if value in self._scalars else self.names[value]

    def assign(self, carried: ir.IrValue, names: tuple[str, ...]) -> None:
        (target,), (source,) = self.names[carried], names
        if carried.type.lanes == 1:
            self.line(f"{target} = {source};")
            return
        is_array = source in self._arrays
        self._for_lanes(carried.type.lanes, f"{target}[l] = {source}{'[l]' if is_array else ''};")

    def _for_lanes(self, lanes: int, statement: str) -> None:
        self.open(f"for (int l = 0; l < {lanes}; ++l)")
        self.line(statement)
        self.close()

    # Scalars, and operations across lanes

    def constant(self, operation: ir.Constant) -> None:
        value = text.literal(operation.value, operation.result.type.dtype)
        self._scalars[operation.result] = value
        self.names[operation.result] = (value,)

    def load(self, load: ir.Load) -> None:
        self._declare(load.result, text.from_memory(self._element(load), load.buffer.dtype))

    def store(self, store: ir.Store) -> None:
        value = text.to_memory(self._one(store.value), store.buffer.dtype)
        self.line(f"{self._element(store)} = {value};")

    def _declare(self, value: ir.IrValue, expression: str) -> None:
        name = self.fresh()
        self.line(f"const {text.ELEMENTS[value.type.dtype]} {name} = {expression};")
        self.names[value] = (name,)

    def compute(self, operation: ir.Operation) -> None:
        match operation:
            case ir.Shuffle():
                self._shuffle(operation)
            case ir.Reduce():
                self._reduce(operation)
            case ir.Dot(is_blocked=True):
                for part in without_blocks(operation):
                    self.compute(part)
            case ir.Dot():
                self._dot(operation)
            case ir.Extract(result=result, operand=a, lane=lane):
                self._declare(result, self._lane(a, lane))
            case _:
                (result,) = ir.results(operation)
                self._declare(result, spell(operation, self._one, _SPELLING))

    def _dot(self, dot: ir.Dot) -> None:
        """Add products of neighbours, the last one first."""
        group, lanes = dot.group, dot.result.type.lanes

        def total(lane: str) -> str:
            sums = self._lane(dot.addend, lane)
            for number in reversed(range(group)):
                place = f"{group} * {lane} + {number}" if lanes > 1 else str(number)
                x, y = (self._lane(item, place) for item in (dot.left, dot.right))
                sums = text.dot_step(x, y, sums, dot.left.type.dtype, dot.result.type.dtype)
            return sums

        if lanes == 1:
            self._declare(dot.result, total("0"))
        else:
            name = self._array(dot.result)
            self._for_lanes(lanes, f"{name}[l] = {total('l')};")

    def _loaded_lane(self, load: ir.Load) -> str:
        dtype = load.buffer.dtype
        item = text.from_memory(self._element(load, "l"), dtype)
        if load.count < load.result.type.lanes:
            return f"l < {load.count} ? {item} : {text.literal(0, dtype)}"
        return item

    def _shuffle(self, shuffle: ir.Shuffle) -> None:
        count, picks = shuffle.left.type.lanes, shuffle.lanes
        if len(picks) == 1:
            source = shuffle.left if picks[0] < count else shuffle.right
            self._declare(shuffle.result, self._lane(source, picks[0] % count))
            return
        name = self._array(shuffle.result)
        first = picks[0]
        is_straight = list(picks) == list(range(first, first + len(picks)))
        if is_straight and (first + len(picks) <= count or first >= count):
            source = shuffle.left if first < count else shuffle.right
            shift = first % count
            place = f"l + {shift}" if shift else "l"
            self._for_lanes(len(picks), f"{name}[l] = {self._lane(source, place)};")
            return
        for lane, pick in enumerate(picks):
            source = shuffle.left if pick < count else shuffle.right
            self.line(f"{name}[{lane}] = {self._lane(source, pick % count)};")

    def _reduce(self, reduce: ir.Reduce) -> None:
        """Combine the upper half with the lower one until one lane is left."""
        (name,) = self.copy(reduce.operand)
        lanes, dtype = reduce.operand.type.lanes, reduce.operand.type.dtype
        while lanes > 1:
            half = (lanes + 1) // 2
            combined = _SPELLING.binary(reduce.name, f"{name}[l]", f"{name}[l + {half}]", dtype)
            self._for_lanes(lanes - half, f"{name}[l] = {combined};")
            lanes = half
        self._declare(reduce.result, f"{name}[0]")


def _lanes(operation: ir.Operation) -> int:
    if isinstance(operation, ir.Store):
        return operation.value.type.lanes
    values = ir.results(operation)
    return values[0].type.lanes if len(values) == 1 and not isinstance(operation, ir.Loop) else 1


def _in_place(
    loop: ir.Loop, names: dict[ir.IrValue, tuple[str, ...]]
) -> dict[ir.IrValue, tuple[str, ...]]:
    """Return which values of a body may be written where the carried value was that they replace.

    That is so where nothing reads the carried value after them.
    """
    last: dict[ir.IrValue, int] = {}
    makers: dict[ir.IrValue, int] = {}
    for number, operation in enumerate(loop.body):
        for item in ir.walk((operation,)):
            for value in (*ir.operands(item), *(item.yielded if isinstance(item, ir.Loop) else ())):
                last[value] = number
        if isinstance(operation, _LANEWISE):
            makers |= dict.fromkeys(ir.results(operation), number)
    yielded = list(loop.yielded)
    return {
        following: names[carried]
        for carried, following in zip(loop.carried, yielded, strict=True)
        if carried.type.lanes > 1
        and yielded.count(following) == 1
        and carried not in yielded
        and last.get(carried, -1) <= makers.get(following, -2)
    }
