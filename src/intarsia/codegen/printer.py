# SPDX-License-Identifier: Apache-2.0
"""Writes a kernel as text that a person reads with pleasure.

    kernel gemm
      # 49x512x4608, tile 8x32
      x: const float32[49, 4608]
      y: float32[49, 512]
      parallel p in 0..16:
        ...
        v7 = fma(v3, v5, v6)
        y[i0, 16*p + 4] <- v7

Names are given in the order of appearance, so that equal kernels have equal texts: `fingerprint`
hashes it.
"""

from __future__ import annotations

import hashlib

from intarsia.codegen import ir

_KINDS = {kind: kind.value for kind in ir.LoopKind} | {ir.LoopKind.SERIAL: "for"}


def print_function(function: ir.Function) -> str:
    """Return the text of a kernel."""
    return _Printer().function(function)


def fingerprint(function: ir.Function) -> str:
    """Return a digest of what a kernel computes and how: of its text without name and notes."""
    buffers, own = function.buffers, function.locals
    tiles = function.tiles
    bare = ir.Function("kernel", buffers, own, function.sizes, function.body, tiles=tiles)
    return hashlib.sha256(print_function(bare).encode()).hexdigest()


class _Printer:
    def __init__(self) -> None:
        self._names: dict[ir.IrValue, str] = {}
        self._literals: dict[ir.IrValue, str] = {}
        self._loops = 0
        self._lines: list[str] = []

    def function(self, function: ir.Function) -> str:
        self._lines.append(f"kernel {function.name}")
        self._lines += [f"  # {note}" for note in function.notes]
        for buffer in function.buffers:
            access = "" if buffer.is_written else "const "
            self._lines.append(f"  {buffer.name}: {access}{_layout(buffer)}")
        self._lines += [
            f"  {buffer.scope} {buffer.name}: {_layout(buffer)}" for buffer in function.locals
        ]
        self._lines += [f"  tile {tile.name}: {tile.dtype}" for tile in function.tiles]
        for size in function.sizes:
            self._names[size] = size.name
            self._lines.append(f"  {size.name}: size")
        self._body(function.body, 1)
        return "\n".join(self._lines) + "\n"

    def _body(self, body: tuple[ir.Operation, ...], depth: int) -> None:
        for operation in body:
            if isinstance(operation, ir.Constant):
                self._literals[operation.result] = f"{operation.value!r}"
            elif isinstance(operation, ir.Loop):
                self._loop(operation, depth)
            else:
                self._lines.append("  " * depth + self._statement(operation))

    def _loop(self, loop: ir.Loop, depth: int) -> None:
        variable = self._names[loop.variable] = f"i{self._loops}"
        self._loops += 1
        span = f"{self._index(loop.lower)}..{self._index(loop.upper)}"
        step = f" step {loop.step}" if loop.step > 1 else ""
        pairs = [
            f"{self._name(inner)}: {inner.type} = {self._use(outer)}"
            for inner, outer in zip(loop.carried, loop.initial, strict=True)
        ]
        carried = f" with {', '.join(pairs)}" if pairs else ""
        self._lines.append(
            f"{'  ' * depth}{_KINDS[loop.kind]} {variable} in {span}{step}{carried}:"
        )
        self._body(loop.body, depth + 1)
        if loop.yielded:
            yielded = ", ".join(self._use(value) for value in loop.yielded)
            self._lines.append(f"{'  ' * (depth + 1)}next {yielded}")
            results = ", ".join(self._name(value) for value in loop.results)
            self._lines.append(f"{'  ' * depth}{results} = last")

    def _statement(self, operation: ir.Operation) -> str:
        match operation:
            case ir.Store(value=value, buffer=buffer):
                place = self._place(buffer, operation.subscripts)
                span = _lanes(value.type.lanes, operation.stride, operation.count)
                return f"{place}{span} <- {self._use(value)}"
            case ir.Prefetch(buffer=buffer, subscripts=subscripts, is_far=is_far):
                return f"prefetch{' far' * is_far} {self._place(buffer, subscripts)}"
            case ir.Barrier():
                return "barrier"
            case ir.TileZero(tile=tile):
                return f"tile {tile.name} <- 0"
            case ir.TileLoad(tile=tile, buffer=buffer, subscripts=subscripts, stride=stride):
                return f"tile {tile.name} <- {self._place(buffer, subscripts)}<rows by {stride}>"
            case ir.TileStore(tile=tile, buffer=buffer, subscripts=subscripts, stride=stride):
                return f"{self._place(buffer, subscripts)}<rows by {stride}> <- tile {tile.name}"
            case ir.TileDot(total=total, left=a, right=b):
                return f"tile {total.name} <- tile_dot({a.name}, {b.name}, {total.name})"
            case _:
                text = self._expression(operation)
                result = operation.result  # type: ignore[union-attr] # loops come elsewhere
                return f"{self._name(result)}: {result.type} = {text}"

    def _expression(self, operation: ir.Operation) -> str:  # noqa: PLR0911, PLR0912, C901 - cases
        use = self._use
        match operation:
            case ir.Unary(name=name, operand=a):
                return f"{name}({use(a)})"
            case ir.Binary(name=name, left=a, right=b):
                symbol = ir.SYMBOLS.get(name)
                return f"{use(a)} {symbol} {use(b)}" if symbol else f"{name}({use(a)}, {use(b)})"
            case ir.Fma(left=a, right=b, addend=c):
                return f"fma({use(a)}, {use(b)}, {use(c)})"
            case ir.Dot(left=a, right=b, addend=c, fits_pairs=fits, is_blocked=is_blocked):
                name = f"{'blocked_' * is_blocked}dot{'_fitting_pairs' * fits}"
                return f"{name}({use(a)}, {use(b)}, {use(c)})"
            case ir.Mma(left=a, right=b, addend=c):
                return f"mma({use(a)}, {use(b)}, {use(c)})"
            case ir.WarpShuffle(operand=a, mask=mask):
                return f"warp_shuffle({use(a)}, {mask})"
            case ir.Compare(predicate=predicate, left=a, right=b):
                return f"{use(a)} {ir.PREDICATES[predicate]} {use(b)}"
            case ir.Select(condition=condition, left=a, right=b):
                return f"{use(condition)} ? {use(a)} : {use(b)}"
            case ir.Cast(result=result, operand=a):
                return f"{result.type.dtype}({use(a)})"
            case ir.Bitcast(result=result, operand=a):
                return f"bits {result.type.dtype}({use(a)})"
            case ir.Splat(operand=a):
                return f"splat({use(a)})"
            case ir.Shuffle(left=a, right=b, lanes=lanes):
                return f"shuffle({use(a)}, {use(b)}, {list(lanes)})"
            case ir.Extract(operand=a, lane=lane):
                return f"{use(a)}.{lane}"
            case ir.Reduce(name=name, operand=a):
                return f"reduce {name}({use(a)})"
            case ir.IndexValue(index=index):
                return f"index {self._index(index)}"
            case ir.Load(result=result, buffer=buffer, subscripts=subscripts):
                span = _lanes(result.type.lanes, operation.stride, operation.count)
                return f"{self._place(buffer, subscripts)}{span}"
            case _:
                raise AssertionError(operation)

    def _place(self, buffer: ir.Buffer, subscripts: tuple[ir.Index, ...]) -> str:
        return f"{buffer.name}[{', '.join(self._index(index) for index in subscripts)}]"

    def _index(self, index: ir.Index) -> str:
        parts = []
        for value, scale in index.terms:
            name = self._use(value)
            parts.append(name if scale == 1 else f"{scale}*{name}")
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts).replace("+ -", "- ")

    def _name(self, value: ir.IrValue) -> str:
        name = self._names[value] = f"v{len(self._names)}"
        return name

    def _use(self, value: ir.IrValue) -> str:
        return self._literals.get(value) or self._names[value]


def _layout(buffer: ir.Buffer) -> str:
    shape = ", ".join(map(str, buffer.shape))
    strides = ""
    if buffer.strides != ir.row_major(buffer.shape):
        strides = f" strides [{', '.join(map(str, buffer.strides))}]"
    align = f" align {buffer.align}" if buffer.align != buffer.item_bytes else ""
    return f"{buffer.dtype}[{shape}]{strides}{align}"


def _lanes(lanes: int, stride: int, count: int) -> str:
    if lanes == 1:
        return ""
    part = f" of {lanes}" if count < lanes else ""
    step = f" by {stride}" if stride != 1 else ""
    return f"<{count}{part}{step}>"
