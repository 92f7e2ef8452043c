# SPDX-License-Identifier: Apache-2.0
"""Links object files into this process without LLVM, whose import takes a tenth of a start.

For ELF on x86-64, and for what LLVM's small code model writes of kernels and routines: references
within an object, calls of other libraries (through a jump, as these may be far away) and addresses
of their data (through a table). Whatever else an object has is left to LLVM.

Source:
    System V Application Binary Interface, chapters 4 and 5; AMD64 supplement, section 4.4.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")

_MAGIC = b"\x7fELF\x02\x01\x01"
"""64 bits, little-endian, version 1."""
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _UNWIND = 1, 2, 4, 0x70000001
_WRITE, _ALLOC, _TLS = 1, 2, 0x400
_UNDEFINED, _SPECIAL = 0, 0xFF00

ABSOLUTE, RELATIVE, CALL = 1, 2, 4
TABLE = frozenset((9, 41, 42))  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_JUMP = b"\xff\x25\x00\x00\x00\x00"
"""`jmp *0(%rip)`: to the address that follows."""
_TABLE_ALIGNMENT = 16
PAGE = 4096
_FRAMES, _ADDRESSES = b".eh_frame\0", b".data.rel.ro"
"""Of sections: for exceptions; constants that have addresses."""


class NotLinkedError(Exception):
    """Something that only LLVM links, or another linker."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


@dataclass(slots=True)
class Image:
    """What will be in memory, at offsets from its start.

    Attributes:
        content: Its bytes.
        absolute: Where an address of the image goes, and which offset that is of.
    """

    content: bytearray = field(default_factory=bytearray)
    absolute: list[tuple[int, int]] = field(default_factory=list)

    def add(self, content: bytes, alignment: int) -> int:
        """Put something behind what there is, and return its offset."""
        self.content += bytes(-len(self.content) % max(alignment, 1))
        offset = len(self.content)
        self.content += content
        return offset


class LinkedImage:
    """Objects in memory; it is given back when this goes.

    Attributes:
        addresses: Of each object's function, by name.
    """

    __slots__ = ("_memory", "addresses")

    def __init__(self, image: Image, entries: Mapping[str, int]) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, max(len(image.content), 1), flags)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for place, offset in image.absolute:
            struct.pack_into("<Q", image.content, place, (start + offset) & (1 << 64) - 1)
        self._memory[: len(image.content)] = image.content
        if _protect()(start, len(self._memory), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "memory cannot be made executable")
        self.addresses = {name: start + offset for name, offset in entries.items()}


def link_objects(
    objects: Mapping[str, bytes], symbols: Mapping[str, int] | None = None
) -> LinkedImage | None:
    """Link objects, each of which defines a function of its key's name.

    Args:
        objects: Object files.
        symbols: Addresses of what they refer to beside this process's own libraries.

    Returns:
        The objects in memory; None if one of them, or this machine, needs LLVM.
    """
    if not can_link():
        return None
    image, entries = Image(), {}
    try:
        for name, code in objects.items():
            entries[name] = ObjectFile(code, symbols or {}).place(image, name)
        return LinkedImage(image, entries)
    except (NotLinkedError, struct.error, IndexError, KeyError, ValueError, OSError):
        return None  # LLVM does it, or says what is wrong


def can_link() -> bool:
    """Tell whether this machine is one that objects are linked for here."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 1 << 32


class ObjectFile:
    """One object file.

    Args:
        code: Its bytes.
        symbols: Addresses by name.
    """

    def __init__(self, code: bytes, symbols: Mapping[str, int]) -> None:
        self._code, self._symbols = code, symbols
        head = HEADER.unpack_from(code)
        magic, kind, machine, start, count = head[0], head[1], head[2], head[6], head[12]
        if not magic.startswith(_MAGIC) or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise NotLinkedError
        self._sections = [
            _Section(*_SECTION.unpack_from(code, start + number * _SECTION.size))
            for number in range(count)
        ]
        self._places: dict[int, int] = {}
        self._jumps: dict[int, int] = {}
        self._table: dict[int, int] = {}
        (self._names,) = (section for section in self._sections if section.kind == _SYMTAB)
        self._strings = self._sections[self._names.link].offset

    def place(self, image: Image, name: str) -> int:
        """Put the object into an image, and return where its function of this name is."""
        self.lay(image)
        return self.offset_of(name)

    def lay(self, image: Image) -> None:
        """Put the object into an image.

        Raises:
            NotLinkedError: It has what only LLVM links.
        """
        for number, section in enumerate(self._sections):
            if not section.flags & _ALLOC or self._is_unwinding(section):
                continue
            if section.flags & _WRITE and not self._is_called(section, _ADDRESSES):
                raise NotLinkedError
            if section.kind != _PROGBITS or section.flags & _TLS or section.alignment > PAGE:
                raise NotLinkedError
            content = self._code[section.offset : section.offset + section.size]
            self._places[number] = image.add(content, section.alignment)
        for section in self._sections:
            if section.kind == _RELA and section.info in self._places:
                for offset, info, addend in self._relocations(section):
                    place = self._places[section.info] + offset
                    self._relocate(image, place, info & 0xFFFFFFFF, info >> 32, addend)

    def offset_of(self, name: str) -> int:
        """Return where a function is in the image.

        Raises:
            NotLinkedError: There is none of this name.
        """
        for number in range(self._names.size // SYMBOL.size):
            label, _, _, section_number, value, _ = self._symbol(number)
            if section_number in self._places and self._text(label) == name:
                return self._places[section_number] + int(value)
        raise NotLinkedError

    def _is_unwinding(self, section: _Section) -> bool:
        """Tell whether a section is for exceptions; nothing throws any through our code."""
        return section.kind == _UNWIND or self._is_called(section, _FRAMES)

    def _is_called(self, section: _Section, name: bytes) -> bool:
        start = self._sections[HEADER.unpack_from(self._code)[13]].offset + section.name
        return self._code.startswith(name, start)

    def _relocations(self, section: _Section) -> Iterator[tuple[Any, ...]]:
        end = section.offset + section.size
        return RELOCATION.iter_unpack(self._code[section.offset : end])

    def _symbol(self, number: int) -> tuple[Any, ...]:
        return SYMBOL.unpack_from(self._code, self._names.offset + number * SYMBOL.size)

    def _text(self, label: int) -> str:
        start = self._strings + label
        return self._code[start : self._code.index(b"\0", start)].decode()

    def _relocate(self, image: Image, place: int, kind: int, number: int, addend: int) -> None:
        label, _, _, section, value, _ = self._symbol(number)
        if section >= _SPECIAL:
            raise NotLinkedError
        inside = None if section == _UNDEFINED else self._places[section] + value
        if kind == ABSOLUTE and inside is not None:
            image.absolute.append((place, inside + addend))
            return
        if kind in TABLE:
            where = self._table.get(number)
            if where is None:
                where = self._table[number] = image.add(bytes(8), _TABLE_ALIGNMENT)
                self._fill(image, where, inside, label)
        elif kind in (RELATIVE, CALL) and inside is not None:
            where = inside
        elif kind == CALL:
            where = self._jumps.get(number)
            if where is None:
                where = image.add(_JUMP + bytes(8), _TABLE_ALIGNMENT)
                self._jumps[number] = where
                self._fill(image, where + len(_JUMP), None, label)
        else:
            raise NotLinkedError
        struct.pack_into("<i", image.content, place, where + addend - place)

    def _fill(self, image: Image, where: int, inside: int | None, label: int) -> None:
        """Write the address of a symbol into the image."""
        if inside is not None:
            image.absolute.append((where, inside))
            return
        name = self._text(label)
        address = self._symbols[name] if name in self._symbols else _address(name)
        struct.pack_into("<Q", image.content, where, address)


@cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _protect() -> Callable[[int, int, int], int]:
    function = _process().mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


@cache
def _address(name: str) -> int:
    """Return where this process has a function or data.

    Raises:
        NotLinkedError: It has not.
    """
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(_process(), name))
    except ValueError:
        raise NotLinkedError from None
