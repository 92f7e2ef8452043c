# SPDX-License-Identifier: Apache-2.0
"""The file of a package: any zip reader reads it, and each of its bytes has one meaning."""

import os
import random
import stat
import zipfile

import pytest

from intarsia.errors import PackageError
from intarsia.runtime import archive

CONTENTS = [("manifest.json", b"{}"), ("regions/0.onnx", b"abc" * 3000), ("constants/1", b"")]


def make(path, contents=CONTENTS):
    archive.write_archive(path, [(name, memoryview(data)) for name, data in contents])
    return path


def by_zipfile(path, contents=CONTENTS, change=lambda info: None, **options):
    """Write the same entries by another program, which this one has to tell from its own."""
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, data in contents:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            change(info)
            file.writestr(info, data)
    return path


def read(path):
    return {name: bytes(view) for name, view in archive.open_archive(path).contents.items()}


def test_others_read_it_and_it_is_read_at_whole_pages(tmp_path):
    path = make(tmp_path / "a")
    assert read(path) == dict(CONTENTS)
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert {name: file.read(name) for name in file.namelist()} == dict(CONTENTS)
    views = archive.open_archive(path).contents
    start = path.read_bytes().index(b"abc")
    assert start % archive.PAGE_BYTES == 0
    assert len(views["regions/0.onnx"]) == 9000


def test_large_files_have_sizes_of_64_bits_as_others_read_and_write_them(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_LIMIT", 4000)
    path = make(tmp_path / "a")
    assert read(path) == dict(CONTENTS)
    with zipfile.ZipFile(path) as file:
        assert {name: file.read(name) for name in file.namelist()} == dict(CONTENTS)
        extras = [info.extra for info in file.infolist()]
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 4000)
    with (tmp_path / "b").open("wb") as raw, zipfile.ZipFile(raw, "w") as file:
        for (name, data), extra in zip(CONTENTS, extras, strict=True):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            padding = extra[extra.index(b"\x35\xd9") :]
            info.extra, info.file_size = padding, len(data)
            with file.open(info, "w", force_zip64=len(data) > 4000) as entry:
                entry.write(data)
    assert (tmp_path / "b").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:evil", ".hidden", "a/.hidden"),
        *("", "folder/", "a//b", "a/.", "a\nb", "a\x00b", "ausgäng"),
    ],
)
def test_a_name_that_leads_elsewhere_or_hides_is_refused(name, tmp_path):
    path = make(tmp_path / "a", [*CONTENTS, (name, b"evil")])
    with pytest.raises(PackageError, match="leaves the package, or is hidden"):
        read(path)


def link(info):
    info.external_attr = (stat.S_IFLNK | 0o777) << 16


def run(info):
    info.external_attr = (stat.S_IFREG | 0o755) << 16


def date(info):
    info.date_time = (2026, 11, 27, 0, 0, 0)


def comment(info):
    info.comment = b"not hashed"


def extra(info):
    info.extra = b"\x34\x12\x04\x00evil"


@pytest.mark.parametrize("change", [link, run, date, comment, extra, lambda info: None])
def test_what_no_digest_covers_is_refused(change, tmp_path):
    path = by_zipfile(tmp_path / "a", change=change)
    with pytest.raises(PackageError, match="bytes that belong to nothing"):
        read(path)


def test_what_is_compressed_is_refused(tmp_path):
    path = by_zipfile(
        tmp_path / "a", change=lambda info: setattr(info, "compress_type", zipfile.ZIP_DEFLATED)
    )
    with pytest.raises(PackageError, match="not stored plainly"):
        read(path)


def test_an_entry_that_stands_twice_is_refused(tmp_path):
    path = make(tmp_path / "a", [*CONTENTS, CONTENTS[0]])
    with pytest.raises(PackageError, match="occurs twice"):
        read(path)


def prepend(data):
    return b"#!/bin/sh\n" + data


def append(data):
    return data + b"evil"


def say_a_comment(data):
    return data[:-2] + b"\x04\x00evil"


def fill_a_gap(data):
    start = data.index(b"PK\x01\x02")
    return data[:start] + b"gap!" + data[start:]


def write_into_padding(data):
    return data[:100] + b"!" + data[101:]


def lie_about_a_size(data):
    return data[:18] + b"\x01" + data[19:]


def rename_in_the_directory(data):
    start = data.rindex(b"regions/0.onnx")
    return data[:start] + b"regions/1.onnx" + data[start + 14 :]


def rename_in_the_header(data):
    return data.replace(b"regions/0.onnx", b"regions/1.onnx", 1)


def drop_from_the_directory(data):
    start, end = data.rindex(b"PK\x01\x02"), data.rindex(b"PK\x05\x06")
    return data[:start] + data[end:]


ODD = [prepend, append, say_a_comment, fill_a_gap, write_into_padding, lie_about_a_size]
ODD += [rename_in_the_directory, rename_in_the_header, drop_from_the_directory]


@pytest.mark.parametrize("change", ODD)
def test_a_file_that_has_two_meanings_is_refused(change, tmp_path):
    path = make(tmp_path / "a")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises((PackageError, ValueError)):
        read(path)


def test_every_byte_beside_contents_is_checked(tmp_path):
    path = make(tmp_path / "a")
    data = path.read_bytes()
    inside = set()
    for _, content in CONTENTS:
        start = data.index(content) if content else 0
        inside |= set(range(start, start + len(content)))
    rng = random.Random(0)
    for _ in range(300):
        position = rng.choice([i for i in (rng.randrange(len(data)),) if i not in inside] or [0])
        odd = bytearray(data)
        odd[position] ^= 1 << rng.randrange(8)
        path.write_bytes(odd)
        with pytest.raises((PackageError, ValueError)):
            read(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a")
    with pytest.raises(ValueError, match="not a regular file"):
        read(tmp_path / "a")
