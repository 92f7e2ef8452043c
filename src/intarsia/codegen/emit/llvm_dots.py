# SPDX-License-Identifier: Apache-2.0
"""Dot products of narrow numbers as LLVM IR: by the instructions that a CPU has, else in parts.

A group of neighbours is 32 bits. Where no instruction takes it whole, its parts are taken from a
lane of 32 bits by shifts, so that nothing crosses lanes: of four bytes two pairs of int16, of which
`pmaddwd` adds the products exactly, where `pmaddubsw` saturates; or numbers of 32 bits. Parts of an
operand are made once, where it is known, for all products that it is in. Bytes are in the order of
little-endian CPUs.

Source:
    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: VPDPBUSD, VPDPBSSD,
    VPDPWSSD, PMADDWD, PMADDUBSW, VDPBF16PS; Arm Architecture Reference Manual: SDOT, UDOT, USDOT,
    BFDOT, SMMLA, UMMLA, USMMLA, BFMMLA.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

_XMM, _YMM, _ZMM = 4, 8, 16
"""Lanes of 32 bits in a register."""

_PAIRS = {
    _XMM: ("sse2", "llvm.x86.sse2.pmadd.wd"),
    _YMM: ("avx2", "llvm.x86.avx2.pmadd.wd"),
    _ZMM: ("avx512bw", "llvm.x86.avx512.pmaddw.d.512"),
}
_BYTE_PAIRS = {
    8: ("avx2", "llvm.x86.ssse3.pmadd.ub.sw.128"),
    16: ("avx2", "llvm.x86.avx2.pmadd.ub.sw"),
    32: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512"),
}
"""By lanes of 16 bits."""
_SIGNED = {_XMM: "llvm.x86.avx2.vpdpbssd.128", _YMM: "llvm.x86.avx2.vpdpbssd.256"}
_ARM_BYTES = {"int8": "sdot", "uint8": "udot"}
_ARM_BLOCKS = {
    ("int8", "int8"): ("i8mm", "smmla"),
    ("uint8", "uint8"): ("i8mm", "ummla"),
    ("uint8", "int8"): ("i8mm", "usmmla"),
    ("uint16", "uint16"): ("bf16", "bfmmla"),
}
"""By the dtypes of both operands, the feature that has an instruction for blocked ones, and it."""
_TOP = 128
"""What a byte differs by as a signed and as an unsigned number if its top bit is turned."""


@dataclass(frozen=True, slots=True)
class Lines:
    """How lines are written.

    Attributes:
        line: Appends an instruction in the block of a depth, and returns the name of its result.
        shared: The same, but an instruction that the block has already is not written again.
        declare: Declares a function by its name and signature, and returns what calls it.
    """

    line: Callable[[str, int], str]
    shared: Callable[[str, int], str]
    declare: Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class DotOperand:
    """An operand.

    Attributes:
        name: In LLVM IR; a vector of its elements, or of what takes their place.
        dtype: Of its elements.
        depth: Of the block that knows it.
    """

    name: str
    dtype: str
    depth: int


def spell_dot(
    lines: Lines,
    dots: Collection[str],
    lanes: int,
    left: DotOperand,
    right: DotOperand,
    addend: DotOperand,
    *,
    fits_pairs: bool = False,
) -> str:
    """Write a dot product, and return the name of its result.

    Args:
        lines: Where to.
        dots: The features of the CPU, of `unit.DOT_FEATURES`.
        lanes: Of the result.
        left: The left operand.
        right: The right operand.
        addend: What the products are added to.
        fits_pairs: See `ir.Dot`.
    """
    speller = _Speller(lines, frozenset(dots), lanes)
    return speller.dot(left, right, addend, fits_pairs=fits_pairs)


def has_blocked_dot(dots: Collection[str], lanes: int, left: str, right: str) -> bool:
    """Tell whether one instruction makes a blocked dot product.

    Args:
        dots: The features of the CPU, of `unit.DOT_FEATURES`.
        lanes: Of the result.
        left: The left operand's dtype.
        right: The right operand's dtype.
    """
    return lanes == _XMM and _ARM_BLOCKS.get((left, right), ("", ""))[0] in dots


def spell_blocked_dot(lines: Lines, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
    """Write a blocked dot product that is one instruction, and return the name of its result."""
    speller = _Speller(lines, frozenset(), _XMM)
    _, name = _ARM_BLOCKS[left.dtype, right.dtype]
    if left.dtype == "uint16":
        return speller.bfloats(f"llvm.aarch64.neon.{name}", left, right, addend)
    return speller.arm(name, left, right, addend)


@dataclass(frozen=True, slots=True)
class _Speller:
    lines: Lines
    dots: frozenset[str]
    lanes: int

    def dot(
        self, left: DotOperand, right: DotOperand, addend: DotOperand, *, fits_pairs: bool
    ) -> str:
        if addend.dtype == "int16":
            return self._byte_pairs(left, right, addend)
        if left.dtype in ("uint16", "int16"):
            write = self._halves if left.dtype == "uint16" else self._pairs
            return write(left, right, addend)
        if self._has_vnni:
            return self._vnni(left, right, addend)
        if "dotprod" in self.dots and self.lanes == _XMM:
            return self._arm_bytes(left, right, addend)
        feature, _ = _BYTE_PAIRS.get(2 * self.lanes, ("", ""))
        if fits_pairs and feature in self.dots and left.dtype != right.dtype:
            return self._small(left, right, addend)
        if self._has_pairs:
            even = self._pairs(self._half(left, 0), self._half(right, 0), addend)
            total = DotOperand(even, addend.dtype, self._depth(left, right, addend))
            return self._pairs(self._half(left, 1), self._half(right, 1), total)
        return self._sum(left, right, addend, 4)

    # What a CPU has

    @property
    def _has_vnni(self) -> bool:
        if self.lanes not in _PAIRS:
            return False
        is_evex = "avx512vnni" in self.dots and (self.lanes == _ZMM or "avx512vl" in self.dots)
        return is_evex or ("avxvnni" in self.dots and self.lanes < _ZMM)

    @property
    def _has_pairs(self) -> bool:
        return self.lanes in _PAIRS and _PAIRS[self.lanes][0] in self.dots

    # Whole groups

    def _vnni(self, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Return a product of bytes; the instruction's first operand is unsigned, the other signed.

        A byte with its top bit turned is 128 more as an unsigned number, or 128 less as a signed
        one; what that adds for one operand depends on the other alone.
        """
        is_signed = left.dtype == right.dtype == "int8"
        if is_signed and "avxvnniint8" in self.dots and self.lanes in _SIGNED:
            return self._words(_SIGNED[self.lanes], left, right, addend)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        if left.dtype != right.dtype:
            return self._words(name, *_by_sign(left, right), addend)
        top = DotOperand(_splat("i8", 4 * self.lanes, _TOP), left.dtype, 0)
        zero = DotOperand("zeroinitializer", addend.dtype, 0)
        if is_signed:
            more = self._words(name, top, right, zero, is_shared=True)
            total = self._words(name, self._turned(left), right, addend)
        else:
            more = self._words(name, left, top, zero, is_shared=True)
            total = self._words(name, left, self._turned(right), addend)
        depth = self._depth(left, right, addend)
        return self.lines.line(f"sub {self._vector('i32')} {total}, {more}", depth)

    def _arm_bytes(self, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Return a product of bytes; one of both signs is that of signed ones where it must be.

        A byte with its top bit turned is 128 less as a signed number; see `_vnni`.
        """
        if left.dtype == right.dtype:
            return self.arm(_ARM_BYTES[left.dtype], left, right, addend)
        unsigned, signed = _by_sign(left, right)
        if "i8mm" in self.dots:
            return self.arm("usdot", unsigned, signed, addend)
        top = DotOperand(_splat("i8", 4 * self.lanes, _TOP), signed.dtype, 0)
        zero = DotOperand("zeroinitializer", addend.dtype, 0)
        less = self.arm("sdot", top, signed, zero, is_shared=True)
        total = self.arm("sdot", self._turned(unsigned), signed, addend)
        depth = self._depth(left, right, addend)
        return self.lines.line(f"sub {self._vector('i32')} {total}, {less}", depth)

    def _turned(self, item: DotOperand) -> DotOperand:
        """Return bytes with their top bits turned."""
        vector = _vector("i8", 4 * self.lanes)
        text = f"xor {vector} {item.name}, {_splat('i8', 4 * self.lanes, _TOP)}"
        return DotOperand(self.lines.shared(text, item.depth), item.dtype, item.depth)

    def _words(
        self,
        name: str,
        left: DotOperand,
        right: DotOperand,
        addend: DotOperand,
        *,
        is_shared: bool = False,
    ) -> str:
        """Call an instruction that takes groups as 32 bits each."""
        vector = self._vector("i32")
        callee = self.lines.declare(name, f"{vector} ({vector}, {vector}, {vector})")
        words = [f"{vector} {addend.name}"]
        words += [f"{vector} {self._as_words(item)}" for item in (left, right)]
        write = self.lines.shared if is_shared else self.lines.line
        depth = self._depth(left, right, addend)
        return write(f"call {vector} {callee}({', '.join(words)})", depth)

    def arm(
        self,
        name: str,
        left: DotOperand,
        right: DotOperand,
        addend: DotOperand,
        *,
        is_shared: bool = False,
    ) -> str:
        """Call an instruction of NEON that takes bytes."""
        total, source = self._vector("i32"), _vector("i8", 4 * self.lanes)
        callee = self.lines.declare(
            f"llvm.aarch64.neon.{name}.v4i32.v16i8", f"{total} ({total}, {source}, {source})"
        )
        texts = (f"{total} {addend.name}", f"{source} {left.name}", f"{source} {right.name}")
        write = self.lines.shared if is_shared else self.lines.line
        depth = self._depth(left, right, addend)
        return write(f"call {total} {callee}({', '.join(texts)})", depth)

    def _halves(self, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Return a product of pairs of bfloat16."""
        is_x86 = "avx512bf16" in self.dots and (self.lanes == _ZMM or "avx512vl" in self.dots)
        is_x86 = is_x86 and self.lanes in _PAIRS
        if not is_x86 and not ("bf16" in self.dots and self.lanes == _XMM):
            return self._sum(left, right, addend, 2)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
        name = name if is_x86 else "llvm.aarch64.neon.bfdot.v4f32.v8bf16"
        return self.bfloats(name, left, right, addend)

    def bfloats(self, name: str, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Call an instruction that takes bfloat16."""
        total, source = self._vector("float"), _vector("bfloat", 2 * self.lanes)
        callee = self.lines.declare(name, f"{total} ({total}, {source}, {source})")
        texts = [f"{total} {addend.name}"]
        texts += [f"{source} {self._cast(item, 'bfloat', 2)}" for item in (left, right)]
        depth = self._depth(left, right, addend)
        return self.lines.line(f"call {total} {callee}({', '.join(texts)})", depth)

    def _byte_pairs(self, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Return pairs of bytes summed in int16, of which no sum is too large."""
        depth, total = self._depth(left, right, addend), self._vector("i16")
        feature, name = _BYTE_PAIRS.get(self.lanes, ("", ""))
        if feature in self.dots:
            source = _vector("i8", 2 * self.lanes)
            callee = self.lines.declare(name, f"{total} ({source}, {source})")
            texts = ", ".join(f"{source} {item.name}" for item in _by_sign(left, right))
            sums = self.lines.line(f"call {total} {callee}({texts})", depth)
            return self.lines.line(f"add {total} {sums}, {addend.name}", depth)
        current = addend.name
        for number in reversed(range(2)):
            x, y = (self._byte_of_pair(item, number) for item in (left, right))
            product = self.lines.line(f"mul {total} {x}, {y}", depth)
            current = self.lines.line(f"add {total} {current}, {product}", depth)
        return current

    # Parts of groups

    def _byte_of_pair(self, item: DotOperand, number: int) -> str:
        """Return every second byte in 16 bits."""
        source = _vector("i8", 2 * self.lanes)
        text = f"bitcast {source} {item.name} to {self._vector('i16')}"
        words = self.lines.shared(text, item.depth)
        return self._shifted(words, "i16", self.lanes, item, (number, 8, 16))

    def _pairs(self, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Return a product of pairs of int16."""
        if not self._has_pairs:
            return self._sum(left, right, addend, 2)
        depth = self._depth(left, right, addend)
        if self._has_vnni:
            name = f"llvm.x86.avx512.vpdpwssd.{32 * self.lanes}"
            return self._words(name, left, right, addend)
        total, source = self._vector("i32"), _vector("i16", 2 * self.lanes)
        callee = self.lines.declare(_PAIRS[self.lanes][1], f"{total} ({source}, {source})")
        sums = self.lines.line(
            f"call {total} {callee}({source} {left.name}, {source} {right.name})", depth
        )
        return self.lines.line(f"add {total} {sums}, {addend.name}", depth)

    def _small(self, left: DotOperand, right: DotOperand, addend: DotOperand) -> str:
        """Return a product of bytes whose products add up to int16 by twos."""
        depth, count = self._depth(left, right, addend), 2 * self.lanes
        nothing = DotOperand("zeroinitializer", "int16", 0)
        sums = replace(self, lanes=count).dot(left, right, nothing, fits_pairs=False)
        ones = DotOperand(_splat("i16", count, 1), "int16", 0)
        return self._pairs(DotOperand(sums, "int16", depth), ones, addend)

    def _half(self, item: DotOperand, number: int) -> DotOperand:
        """Return every second byte as int16."""
        count = 2 * self.lanes
        words = self._cast(item, "i16", 2)
        name = self._shifted(words, "i16", count, item, (number, 8, 16))
        return DotOperand(name, "int16", item.depth)

    def _sum(self, left: DotOperand, right: DotOperand, addend: DotOperand, group: int) -> str:
        """Return a product of groups, one neighbour after the other, the last one first."""
        depth, total = self._depth(left, right, addend), addend.name
        is_float = left.dtype == "uint16"
        vector = self._vector("float" if is_float else "i32")
        for number in reversed(range(group)):
            x, y = (self._element(item, number, group) for item in (left, right))
            if is_float:
                name = f"llvm.fmuladd.{_suffix('f32', self.lanes)}"
                callee = self.lines.declare(name, f"{vector} ({vector}, {vector}, {vector})")
                arguments = ", ".join(f"{vector} {text}" for text in (x, y, total))
                total = self.lines.line(f"call {vector} {callee}({arguments})", depth)
            else:
                product = self.lines.line(f"mul {vector} {x}, {y}", depth)
                total = self.lines.line(f"add {vector} {total}, {product}", depth)
        return total

    def _element(self, item: DotOperand, number: int, group: int) -> str:
        """Return one neighbour of each group in 32 bits."""
        words, bits = self._as_words(item), 32 // group
        if item.dtype != "uint16":
            return self._shifted(words, "i32", self.lanes, item, (number, bits, 32))
        vector = self._vector("i32")
        upper = f"shl {vector} {words}, {_splat('i32', self.lanes, 16)}"
        if number:
            upper = f"and {vector} {words}, {_splat('i32', self.lanes, -(1 << 16))}"
        name = self.lines.shared(upper, item.depth)
        text = f"bitcast {vector} {name} to {self._vector('float')}"
        return self.lines.shared(text, item.depth)

    def _shifted(
        self, words: str, element: str, count: int, item: DotOperand, place: tuple[int, int, int]
    ) -> str:
        """Return some bits of each word as its number: which, of how many, in how many."""
        number, bits, width = place
        vector, right = _vector(element, count), "ashr" if item.dtype[0] == "i" else "lshr"
        left = width - bits * (number + 1)
        if left:
            text = f"shl {vector} {words}, {_splat(element, count, left)}"
            words = self.lines.shared(text, item.depth)
        text = f"{right} {vector} {words}, {_splat(element, count, width - bits)}"
        return self.lines.shared(text, item.depth)

    # Texts

    def _as_words(self, item: DotOperand) -> str:
        return self._cast(item, "i32", 1)

    def _cast(self, item: DotOperand, element: str, per_lane: int) -> str:
        """Return an operand as other elements of the same bits."""
        bits = 8 if item.dtype.endswith("8") else 16
        source = _vector(f"i{bits}", 32 // bits * self.lanes)
        target = _vector(element, per_lane * self.lanes)
        if source == target or item.name == "zeroinitializer":
            return item.name
        return self.lines.shared(f"bitcast {source} {item.name} to {target}", item.depth)

    def _vector(self, element: str) -> str:
        return _vector(element, self.lanes)

    def _depth(self, *items: DotOperand) -> int:
        return max(item.depth for item in items)


def _by_sign(left: DotOperand, right: DotOperand) -> tuple[DotOperand, DotOperand]:
    """Return the unsigned operand first."""
    return (right, left) if right.dtype == "uint8" else (left, right)


def _vector(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def _suffix(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"v{lanes}{element}"


def _splat(element: str, lanes: int, number: int) -> str:
    return str(number) if lanes == 1 else f"splat ({element} {number})"
