# SPDX-License-Identifier: Apache-2.0
"""From the loop-level IR to LLVM IR for CPUs.

A kernel becomes `void name(ptr arguments, i64 begin, i64 end)`: the table of its arguments (8 bytes
each: the buffers' addresses, then the sizes) and the turns of its parallel loop that the call runs.

Tiles are registers by their numbers, so that LLVM allocates none of them; a call configures them
when it begins, and gives them up when it ends.

Source:
    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18 (tiles and
    their configuration), volume 2: LDTILECFG, TILELOADD, TDPBF16PS, TDPBSSD and others.
"""

from __future__ import annotations

from intarsia.codegen import ir
from intarsia.codegen.emit.llvm_core import Bounds, CodeBlock, LlvmCore, memory_type
from intarsia.codegen.unit import CpuModel

_UNIT = CpuModel()
STACK_BYTES = 64 << 10
"""Local buffers above are taken from the C library's heap: threads may have small stacks."""


def emit_llvm(function: ir.Function, unit: CpuModel = _UNIT) -> str:
    """Return an LLVM IR module with one kernel.

    Args:
        function: The kernel, verified and expanded.
        unit: The CPU's. Where it does not multiply and add in one instruction, `fma` rounds twice,
            because a library call for each lane would be far too slow; `dots` says which
            instructions `dot` may become.
    """
    return _Cpu(function, unit).module()


class _Cpu(LlvmCore):
    def __init__(self, function: ir.Function, unit: CpuModel) -> None:
        super().__init__(function, unit)
        self._size = "i32" if unit.is_32_bit else "i64"

    def module(self) -> str:
        """Return the module: the kernel with typed arguments, and the entry that unpacks them."""
        function = self.function
        parameters = []
        for number, buffer in enumerate(function.buffers):
            self.pointers[buffer] = f"%b{number}"
            access = "" if buffer.is_written else " readonly"
            parameters.append(f"ptr noalias{access} align {buffer.align} %b{number}")
        for number, size in enumerate(function.sizes):
            self.keep(size, f"%s{number}", 0)
            parameters.append(f"i64 %s{number}")
        parameters += ["i64 %begin", "i64 %end"]
        self.blocks.append(CodeBlock("entry"))
        freed = [self._local(number, buffer) for number, buffer in enumerate(function.locals)]
        if function.tiles:  # for this call, which may be of another thread than the one before
            callee = self.declare("llvm.x86.ldtilecfg", "void (ptr)")
            self.line(f"call void {callee}(ptr @{function.name}.tiles)")
        self.body(function.body)
        if function.tiles:  # else the system saves them whenever the thread waits
            self.line(f"call void {self.declare('llvm.x86.tilerelease', 'void ()')}()")
        for line in filter(None, freed):
            self.line(line)
        (block,) = self.blocks
        body = "\n".join(("entry:", *block.lines, "  ret void"))
        # `noalias` holds for arguments of a function, not for pointers loaded from a table: hence a
        # function inside, which must not be inlined.
        kernel = (
            f"define internal void @{function.name}.body({', '.join(parameters)}) #0 {{\n{body}\n}}"
        )
        declarations = "\n".join(self.declared.values())
        if function.tiles:
            declarations += f"\n{_configuration(function)}"
        attributes = 'attributes #0 = { nounwind noinline "prefer-vector-width"="512" }'
        return "\n".join((kernel, self._entry(), declarations, attributes, ""))

    def _local(self, number: int, buffer: ir.Buffer) -> str:
        """Make a local buffer; return the line that gives it back, if it needs one."""
        count, element = buffer.span, memory_type(buffer.dtype)
        self.pointers[buffer] = f"%l{number}"
        nbytes = count * buffer.item_bytes
        if nbytes <= STACK_BYTES:
            self.line(f"%l{number} = alloca [{count} x {element}], align {buffer.align}")
            return ""
        word, size = self._size, -(-nbytes // buffer.align) * buffer.align
        self.declared["aligned_alloc"] = f"declare noalias ptr @aligned_alloc({word}, {word})"
        sizes = f"{word} {buffer.align}, {word} {size}"
        self.line(f"%l{number} = call ptr @aligned_alloc({sizes})")
        return f"call void {self.declare('free', 'void (ptr)')}(ptr %l{number})"

    def _entry(self) -> str:
        function = self.function
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

    # What this half says

    def prefetch(self, prefetch: ir.Prefetch) -> None:
        pointer = self.address(prefetch.buffer, prefetch.buffer.flatten(prefetch.subscripts))
        callee = self.declare("llvm.prefetch.p0", "void (ptr, i32, i32, i32)")
        near = 2 if prefetch.is_far else 3
        self.line(f"call void {callee}(ptr {pointer}, i32 0, i32 {near}, i32 1)")

    def tile(self, operation: ir.TileOperation) -> None:
        match operation:
            case ir.TileZero(tile=tile):
                callee = self.declare("llvm.x86.tilezero", "void (i8)")
                self.line(f"call void {callee}(i8 {self._tile_number(tile)})")
            case ir.TileDot(total=total, left=left, right=right):
                kind = "bf16ps" if left.dtype == "uint16" else _byte_kind(left, right)
                callee = self.declare(f"llvm.x86.tdp{kind}", "void (i8, i8, i8)")
                numbers = [f"i8 {self._tile_number(tile)}" for tile in (total, left, right)]
                self.line(f"call void {callee}({', '.join(numbers)})")
            case ir.TileLoad(tile=tile) | ir.TileStore(tile=tile):
                buffer = operation.buffer
                pointer = self.address(buffer, buffer.flatten(operation.subscripts))
                name = "tileloadd64" if isinstance(operation, ir.TileLoad) else "tilestored64"
                callee = self.declare(f"llvm.x86.{name}", "void (i8, ptr, i64)")
                stride = operation.stride * buffer.item_bytes
                number = self._tile_number(tile)
                self.line(f"call void {callee}(i8 {number}, ptr {pointer}, i64 {stride})")

    def _tile_number(self, tile: ir.TileRegister) -> int:
        return self.function.tiles.index(tile)

    def bounds(self, loop: ir.Loop) -> Bounds:
        if loop.kind is ir.LoopKind.PARALLEL:
            return Bounds("%begin", "%end", loop.step, is_sure=False)
        assert loop.kind is ir.LoopKind.SERIAL, "a kernel for a GPU"
        return super().bounds(loop)

    def hidden(self, pointer: str, depth: int) -> str:
        name = self.fresh()
        callee = self.declare("llvm.launder.invariant.group.p0", "ptr (ptr)")
        self.line(f"{name} = call ptr {callee}(ptr {pointer})", depth)
        return name


def _byte_kind(left: ir.TileRegister, right: ir.TileRegister) -> str:
    """Return which product of bytes it is, by the signs of both."""
    return f"b{left.dtype[0].replace('i', 's')}{right.dtype[0].replace('i', 's')}d"


def _configuration(function: ir.Function) -> str:
    """Return the constant that says how large each tile is."""
    content = bytearray(64)
    content[0] = 1  # the palette
    for number in range(len(function.tiles)):
        content[16 + 2 * number] = ir.TILE_BYTES
        content[48 + number] = ir.TILE_ROWS
    text = "".join(f"\\{byte:02x}" for byte in content)
    return f'@{function.name}.tiles = internal constant [64 x i8] c"{text}", align 64'
