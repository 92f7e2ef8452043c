# SPDX-License-Identifier: Apache-2.0
"""The file of a package: a zip of one form, in which every byte has one meaning.

Whatever reads zip files reads it. It is read here without their freedom, which is where files hide
what another reader would see: each byte that is not an entry's content must be the one that this
module writes. So there are no links, folders, comments, dates, hidden or repeated entries, no
compression, and nothing before, between or after entries.

Entries are stored plainly at multiples of 4096 bytes, to be used where they are mapped.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import PackageError
from intarsia.files import is_special, whole_file, writing_hint

# The file is mapped as a whole, so that any multiple of 64 would serve vectors; whole pages also
# let the system drop and read one constant without its neighbours.
PAGE_BYTES = 4096
MAX_ENTRIES = 200_000
MAGIC = b"PK\x03\x04"

_PIECE_BYTES = 4 << 20
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
"""No part is empty, hidden, `.` or `..`; no backslash, colon or control character."""

# PKWARE APPNOTE 6.3.10: local header 4.3.7, directory 4.3.12 to 4.3.16, 64-bit sizes 4.5.3.
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_EXTRA = struct.Struct("<HH")
_PADDING_ID = 0xD935
"""Extra field that aligns an entry (4.6.1, as mapped there)."""
_SIZES = struct.Struct("<HH2Q")
_SIZES_ID = 1
_IN_EXTRA = (1 << 32) - 1
"""Stands where 32 bits would not do."""
_VERSION, _VERSION_64 = 20, 45
_UNIX, _REGULAR_FILE = 3, 0o600 << 16
_DATE, _TIME = (1 << 5) | 1, 0
"""1 January 1980, the earliest: one model gives one sequence of bytes."""
_LIMIT = (1 << 31) - 1
"""What `zipfile` writes in 32 bits."""
_MANY = (1 << 16) - 1
_AGAIN = "get the file again"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One entry: its name, its size in bytes, the CRC-32 of its content, where its header is."""

    name: str
    nbytes: int
    crc: int
    position: int


@dataclass(frozen=True, slots=True)
class Archive:
    """A package's file, mapped.

    Attributes:
        status: Of the file, from before it was read.
        contents: Views of the entries by name, in their order.
        crcs: What the file says that the CRC-32 of each is.
    """

    status: os.stat_result
    contents: dict[str, memoryview]
    crcs: dict[str, int]

    def small(self, name: str) -> bytes:
        """Return an entry's bytes, checked.

        Raises:
            ValueError: They are not those that were written.
        """
        content = bytes(self.contents[name])
        if zlib.crc32(content) != self.crcs[name]:
            raise ValueError(f"the checksum of {name!r} is wrong")
        return content


def is_name(name: str) -> bool:
    """Tell whether an entry may have a name: relative, with nothing hidden, leading nowhere."""
    return _NAME.fullmatch(name) is not None


def write_archive(path: str | Path, contents: Iterable[tuple[str, memoryview]]) -> None:
    """Write a file with these entries; it appears whole or not at all.

    Raises:
        PackageError: It cannot be written.
    """
    entries = []
    try:
        with whole_file(path) as draft, draft.open("wb") as file:
            for name, content in contents:
                crc = 0
                for piece in _pieces(content):
                    crc = zlib.crc32(piece, crc)
                entries.append(ArchiveEntry(name, len(content), crc, file.tell()))
                file.write(_local_header(entries[-1]))
                for piece in _pieces(content):
                    file.write(piece)
            file.write(_directory(entries, file.tell()))
    except OSError as error:
        raise PackageError(
            f"cannot write {str(path)!r}: {error.strerror or error}", hint=writing_hint(error)
        ) from error


def open_archive(path: Path) -> Archive:
    """Map a file and check that it is what `write_archive` would write of these contents.

    Checksums of contents are left to the reader.

    Raises:
        PackageError: It cannot be read, or a byte is another.
        OSError: It cannot be read.
        ValueError: It does not begin as one.
    """
    if is_special(path):  # opening a pipe waits for its other end
        raise ValueError("it is not a regular file")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    entries: dict[str, ArchiveEntry] = {}
    contents: dict[str, memoryview] = {}
    position = 0
    while mapped[position : position + len(MAGIC)] == MAGIC:
        entry, start = _read_entry(path, mapped, position)
        if entry.name in entries:
            raise PackageError(f"{str(path)!r}: entry {entry.name!r} occurs twice")
        if len(entries) == MAX_ENTRIES:
            raise PackageError(f"{str(path)!r} has more than {MAX_ENTRIES} entries")
        position = start + entry.nbytes
        if position > len(mapped):
            raise PackageError(f"{str(path)!r}: entry {entry.name!r} is truncated", hint=_AGAIN)
        entries[entry.name] = entry
        contents[entry.name] = mapped[start:position]
    if not entries:
        raise ValueError("it does not begin with an entry")
    if mapped[position:] != _directory(list(entries.values()), position):
        raise PackageError(
            f"{str(path)!r}: what follows its entries is not their directory",
            hint="it is truncated, or something was added to it: get the file again",
        )
    return Archive(status, contents, {entry.name: entry.crc for entry in entries.values()})


def _read_entry(path: Path, mapped: memoryview, position: int) -> tuple[ArchiveEntry, int]:
    """Return an entry, and where its content starts.

    Raises:
        PackageError: Its header is not one that we write.
    """
    start = position + _LOCAL.size
    header = mapped[position:start]
    if len(header) < _LOCAL.size:
        raise PackageError(f"{str(path)!r}: the header of an entry is truncated", hint=_AGAIN)
    _, _, flags, method, _, _, crc, _, nbytes, of_name, of_extra = _LOCAL.unpack(header)
    raw = bytes(mapped[start : start + of_name])
    name = raw.decode("utf-8", "replace")
    if not is_name(name):
        raise PackageError(f"{str(path)!r}: entry {name!r} leaves the package, or is hidden")
    if method or flags:
        raise PackageError(f"{str(path)!r}: entry {name!r} is not stored plainly")
    start += of_name
    start += of_extra
    if nbytes == _IN_EXTRA and of_extra >= _SIZES.size:
        nbytes = _SIZES.unpack(mapped[start - _SIZES.size : start])[-1]
    entry = ArchiveEntry(name, nbytes, crc, position)
    if mapped[position:start] != _local_header(entry):
        raise PackageError(
            f"{str(path)!r}: the header of entry {name!r} has bytes that belong to nothing",
            hint="intarsia alone writes packages: compile the model again",
        )
    return entry, start


def _pieces(content: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(content), _PIECE_BYTES):
        yield content[start : start + _PIECE_BYTES]


def _padding(entry: ArchiveEntry, before: int) -> bytes:
    """Return the extra field behind so many bytes of header that ends at a multiple of a page."""
    nbytes = -(entry.position + before) % PAGE_BYTES
    if 0 < nbytes < _EXTRA.size:  # it takes at least its own header
        nbytes += PAGE_BYTES
    if not nbytes:
        return b""
    return _EXTRA.pack(_PADDING_ID, nbytes - _EXTRA.size) + bytes(nbytes - _EXTRA.size)


def _common(entry: ArchiveEntry) -> tuple[bytes, int, bytes]:
    """Return an entry's name, the version that is needed to read it, and its padding."""
    name = entry.name.encode()
    is_large = entry.nbytes > _LIMIT
    before = _LOCAL.size + len(name) + (20 if is_large else 0)
    version = _VERSION_64 if is_large else _VERSION
    return name, version, _padding(entry, before)


def _local_header(entry: ArchiveEntry) -> bytes:
    name, version, padding = _common(entry)
    extra, nbytes = padding, entry.nbytes
    if nbytes > _LIMIT:
        extra += _SIZES.pack(_SIZES_ID, 16, nbytes, nbytes)
        nbytes = _IN_EXTRA
    return (
        _LOCAL.pack(
            *(MAGIC, version, 0, 0, _TIME, _DATE, entry.crc, nbytes, nbytes),
            *(len(name), len(extra)),
        )
        + name
        + extra
    )


def _directory(entries: list[ArchiveEntry], start: int) -> bytes:
    """Return all that stands behind the entries.

    Args:
        entries: In their order.
        start: Where it begins.
    """
    records = b"".join(map(_central_header, entries))
    count, nbytes = len(entries), len(records)
    end_64 = b""
    if count > _MANY or start > _LIMIT or nbytes > _LIMIT:
        end_64 = _END_64.pack(
            *(b"PK\x06\x06", _END_64.size - 12, _VERSION_64, _VERSION_64, 0, 0),
            *(count, count, nbytes, start),
        ) + _LOCATOR_64.pack(b"PK\x06\x07", 0, start + nbytes, 1)
        count, nbytes, start = (
            min(count, _MANY),
            min(nbytes, _IN_EXTRA),
            min(start, _IN_EXTRA),
        )
    return records + end_64 + _END.pack(b"PK\x05\x06", 0, 0, count, count, nbytes, start, 0)


def _central_header(entry: ArchiveEntry) -> bytes:
    name, version, extra = _common(entry)
    nbytes, position = entry.nbytes, entry.position
    large = []
    if nbytes > _LIMIT:
        large, nbytes = [nbytes, nbytes], _IN_EXTRA
    if position > _LIMIT:
        large, position = [*large, position], _IN_EXTRA
    if large:
        version = _VERSION_64
        sizes = struct.pack(f"<{len(large)}Q", *large)
        extra = _EXTRA.pack(_SIZES_ID, len(sizes)) + sizes + extra
    return (
        _CENTRAL.pack(
            *(b"PK\x01\x02", version, _UNIX, version, 0, 0, 0, _TIME, _DATE, entry.crc),
            *(nbytes, nbytes, len(name), len(extra), 0, 0, 0, _REGULAR_FILE, position),
        )
        + name
        + extra
    )
