# SPDX-License-Identifier: Apache-2.0
"""Makes a shared library of one object file, without a linker: a machine need not have one.

For ELF on x86-64. The library has no data that is written and needs no other library: what it
refers to is found in the process that loads it, and is null where it is not there, so that
functions can ask. In the file come the tables of the dynamic linker, then the code, then on pages
of its own the table of addresses that the dynamic linker fills.

Source:
    System V Application Binary Interface, chapters 4 and 5; AMD64 supplement, section 4.4.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from intarsia.native.elf import (
    CALL,
    HEADER,
    PAGE,
    RELATIVE,
    RELOCATION,
    SYMBOL,
    TABLE,
    Image,
    NotLinkedError,
    ObjectFile,
)

_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<Qq")

_MAGIC = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_SHARED, _X86_64 = 3, 62
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_EXECUTE, _WRITE, _READ = 1, 2, 4
_HASH, _STRINGS, _SYMBOLS, _RELA, _RELA_BYTES, _RELA_SIZE = 4, 5, 6, 7, 8, 9
_STRINGS_BYTES, _SYMBOL_SIZE, _NAME, _NOW = 10, 11, 14, 24
_FUNCTION, _WEAK = 0x12, 0x20  # binding and type: global and function; weak and none
_GLOBAL_DATA = 6
_SEGMENTS = 4
_ANY_SECTION = 1
"""Of a symbol that is defined; the file has no table of sections."""


class _LibraryObject(ObjectFile):
    """One object in a library: what it refers to is behind the table of addresses.

    Attributes:
        needed: What it refers to, in the order of that table.
        image: The object, laid.

    Args:
        code: Its bytes.
        table: Where that table will be, from the start of the image.
    """

    def __init__(self, code: bytes, table: int) -> None:
        super().__init__(code, {})
        self._start = table
        self.needed: list[str] = []
        self.image = Image()
        self.lay(self.image)

    def _relocate(self, image: Image, place: int, kind: int, number: int, addend: int) -> None:
        label, _, _, section, value, _ = self._symbol(number)
        inside = self._places[section] + value if section in self._places else None
        if kind in TABLE and inside is None:
            name = self._text(label)
            if name not in self.needed:
                self.needed.append(name)
            where = self._start + 8 * self.needed.index(name)
        elif kind in (RELATIVE, CALL) and inside is not None:
            where = inside
        else:
            raise NotLinkedError
        struct.pack_into("<i", image.content, place, where + addend - place)


def make_library(code: bytes, name: str, exported: Sequence[str]) -> bytes:
    """Return a shared library.

    Args:
        code: An object file: functions and constants; calls of others by way of their addresses.
        name: How the library calls itself.
        exported: The functions that it offers.

    Raises:
        NotLinkedError: The object has something else, which takes a linker.
    """
    measured = _lay(code, 0)  # where the table comes depends on nothing but sizes
    strings, labels = bytearray(b"\0"), {}
    for text in (*measured.needed, *exported, name):
        labels[text] = len(strings)
        strings += text.encode() + b"\0"
    strings += bytes(-len(strings) % 8)
    count = 1 + len(measured.needed) + len(exported)
    symbols = HEADER.size + _SEGMENTS * _SEGMENT.size
    hashes = symbols + count * SYMBOL.size + len(strings)
    relocations = hashes + 4 * (3 + count) + -(3 + count) % 2 * 4
    start = relocations + len(measured.needed) * RELOCATION.size
    start += -start % 64  # as functions want it
    dynamic = start + len(measured.image.content)
    dynamic += -dynamic % PAGE
    table = dynamic + 12 * _ENTRY.size
    end = table + 8 * len(measured.needed)
    laid = _lay(code, table - start)
    symbol_table = bytes(SYMBOL.size)
    for text in laid.needed:
        symbol_table += SYMBOL.pack(labels[text], _WEAK, 0, 0, 0, 0)
    for text in exported:
        offset = start + laid.offset_of(text)
        symbol_table += SYMBOL.pack(labels[text], _FUNCTION, 0, _ANY_SECTION, offset, 0)
    # One chain of all symbols: whoever looks one up compares a handful of names.
    chains = struct.pack(f"<{3 + count}I", 1, count, 1, *((i + 1) % count for i in range(count)))
    wanted = b"".join(
        RELOCATION.pack(table + 8 * i, (i + 1) << 32 | _GLOBAL_DATA, 0)
        for i in range(len(laid.needed))
    )
    entries = (
        (_HASH, hashes),
        (_STRINGS, symbols + count * SYMBOL.size),
        (_SYMBOLS, symbols),
        (_STRINGS_BYTES, len(strings)),
        (_SYMBOL_SIZE, SYMBOL.size),
        (_NAME, labels[name]),
        (_NOW, 0),
        (_RELA, relocations),
        (_RELA_BYTES, len(wanted)),
        (_RELA_SIZE, RELOCATION.size),
        (0, 0),
        (0, 0),
    )
    writable = (dynamic, dynamic, dynamic, end - dynamic, end - dynamic)
    segments = (
        (_LOAD, _READ | _EXECUTE, 0, 0, 0, *[start + len(laid.image.content)] * 2, PAGE),
        (_LOAD, _READ | _WRITE, *writable, PAGE),
        (_DYNAMIC, _READ | _WRITE, *writable[:3], *[len(entries) * _ENTRY.size] * 2, 8),
        (_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16),
    )
    head = HEADER.pack(
        *(_MAGIC, _SHARED, _X86_64, 1, 0, HEADER.size, 0, 0, HEADER.size),
        *(_SEGMENT.size, _SEGMENTS, 64, 0, 0),
    )
    file = bytearray(end)
    for offset, content in (
        (0, head + b"".join(_SEGMENT.pack(*one) for one in segments)),
        (symbols, symbol_table + strings),
        (hashes, chains),
        (relocations, wanted),
        (start, laid.image.content),
        (dynamic, b"".join(_ENTRY.pack(*one) for one in entries)),
    ):
        file[offset : offset + len(content)] = content
    return bytes(file)


def _lay(code: bytes, table: int) -> _LibraryObject:
    """Return an object in an image.

    Raises:
        NotLinkedError: It has what takes a linker.
    """
    try:
        return _LibraryObject(code, table)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise NotLinkedError from error
