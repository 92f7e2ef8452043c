# SPDX-License-Identifier: Apache-2.0
"""A file appears whole or not at all, and takes the place of nothing but a file."""

import os

import pytest

import intarsia
from intarsia.accepted.programs import copy_package
from intarsia.errors import IntarsiaError
from intarsia.files import whole_file
from intarsia.plan.lock import lock_plan, write_lock


def write(path, text="new"):
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def test_it_appears_at_the_end_or_not_at_all(tmp_path):
    file = tmp_path / "file"
    write(file)
    with pytest.raises(UnicodeEncodeError):
        write(file, "half\ud800")
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_stays(tmp_path):
    (tmp_path / "there").mkdir()
    link, file = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to(file)
    for text in ("first", "second"):
        write(link, text)
        assert link.is_symlink()
        assert file.read_text() == text


def test_what_was_private_stays_so(tmp_path):
    file = tmp_path / "file"
    write(file)
    file.chmod(0o600)
    write(file)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.fixture(params=["pipe", "a link to it", "a device"])
def special(tmp_path, request):
    """What has a name and is not a file; nothing of it may be lost."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    if request.param == "a device":
        try:
            os.mknod(tmp_path / "zero", 0o600 | 0o020000, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
        return tmp_path / "zero"
    return pipe if request.param == "pipe" else link


def test_no_writer_takes_the_place_of_a_device_or_a_pipe(special, parse_model, tmp_path):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    executable = intarsia.compile(model, "reference")
    executable.save(tmp_path / "m.intarsia")
    before = special.lstat()
    for writer in (
        executable.save,
        lambda path: copy_package(tmp_path / "m.intarsia", path),
        lambda path: write_lock(lock_plan(executable.plan), path),
    ):
        with pytest.raises(IntarsiaError, match="is not a regular file"):
            writer(special)
    with pytest.raises(OSError, match="is not a regular file"):
        write(special)
    after = special.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
