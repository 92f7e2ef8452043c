# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: found, made anew when damaged, shared by processes, pruned."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intarsia.errors import BackendError
from intarsia.native.entries import prune
from intarsia.native.loading import LoadedCode
from intarsia.native.machine import NativeCpu, host_machine
from intarsia.native.objects import KIND, ObjectCache, _parts

TEXT = "define i64 @f(i64 %x) {{ %y = add i64 %x, {number}\n ret i64 %y }}"
HOST = NativeCpu()


def text(number=1):
    return TEXT.format(number=number)


def entries(folder):
    return sorted((folder / KIND).iterdir())


def test_an_object_is_compiled_once(tmp_path):
    cache = ObjectCache(tmp_path)
    first = cache.object_of(text(), HOST)
    assert (cache.hits, cache.misses) == (0, 1)
    assert cache.object_of(text(), HOST) == first
    assert (cache.hits, cache.misses) == (1, 1)
    another = ObjectCache(tmp_path)
    assert another.object_of(text(), HOST) == first
    assert (another.hits, another.misses) == (1, 0)
    assert LoadedCode({"f": first}).addresses["f"]


KEYS = {
    "the text": (text(2), HOST),
    "the CPU": (text(), NativeCpu(name="haswell")),
    "the features": (text(), NativeCpu(features="-avx")),
    "the triple": (text(), NativeCpu("aarch64-unknown-linux-gnu")),
}


@pytest.mark.parametrize("key", KEYS)
def test_what_an_object_depends_on_tells_entries_apart(key, tmp_path):
    cache = ObjectCache(tmp_path)
    cache.object_of(text(), HOST)
    cache.object_of(*KEYS[key])
    assert (cache.hits, cache.misses) == (0, 2)
    assert len(entries(tmp_path)) == 2


def test_another_llvm_makes_another_entry(tmp_path, monkeypatch):
    cache = ObjectCache(tmp_path)
    cache.object_of(text(), HOST)
    monkeypatch.setattr("intarsia.native.objects.generator_version", lambda: "0.0.1")
    cache.object_of(text(), HOST)
    assert cache.misses == 2


DAMAGE = {
    "a flipped bit": lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
    "a flipped bit of the digest": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "cut short": lambda content: content[:-1],
    "cut in the digest": lambda content: content[:7],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_made_anew(damage, tmp_path, caplog):
    cache = ObjectCache(tmp_path)
    good = cache.object_of(text(), HOST)
    (path,) = entries(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.INFO, "intarsia"):
        assert cache.object_of(text(), HOST) == good
    assert "damaged" in caplog.text
    assert cache.misses == 2
    assert cache.object_of(text(), HOST) == good
    assert cache.hits == 1


def test_the_object_of_another_kernel_is_not_taken_nor_kept(tmp_path):
    cache = ObjectCache(tmp_path)
    one, other = (text().replace("@f", f"@kernel_{name}") for name in ("one", "other"))
    wrong = cache.object_of(other, HOST)
    cache.keep(_parts(one, HOST), wrong)
    assert cache.find_object(one, HOST) is None
    assert LoadedCode({"kernel_one": cache.object_of(one, HOST)}).addresses["kernel_one"]
    cache.keep_object(one, HOST, wrong)
    assert cache.find_object(one, HOST) not in (None, wrong)


def test_an_entry_that_is_a_folder_does_no_harm(tmp_path, caplog):
    cache = ObjectCache(tmp_path)
    good = cache.object_of(text(), HOST)
    (path,) = entries(tmp_path)
    path.unlink()
    path.mkdir()
    assert cache.object_of(text(), HOST) == good
    assert "are not kept" in caplog.text


def test_without_a_folder_nothing_is_kept(tmp_path):
    cache = ObjectCache(None)
    assert cache.object_of(text(), HOST) == cache.object_of(text(), HOST)
    assert (cache.hits, cache.misses) == (0, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    caches = [ObjectCache(tmp_path / "file") for _ in range(2)]
    for cache in caches:
        for number in range(3):
            assert cache.object_of(text(number), HOST)
    assert [cache.misses for cache in caches] == [3, 0], "remembered as long as the process lives"
    assert caplog.text.count("compiled kernels are not kept") == 1


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_still_serves_what_it_has(tmp_path):
    good = ObjectCache(tmp_path).object_of(text(), HOST)
    (tmp_path / KIND).chmod(0o500)
    try:
        cache = ObjectCache(tmp_path)
        assert cache.object_of(text(), HOST) == good
        assert cache.object_of(text(2), HOST)
        assert (cache.hits, cache.misses) == (1, 1)
    finally:
        (tmp_path / KIND).chmod(0o700)


def test_the_cache_folder_says_what_it_is(tmp_path):
    ObjectCache(tmp_path / "cache").object_of(text(), HOST)
    assert (tmp_path / "cache" / "CACHEDIR.TAG").is_file()


def test_the_oldest_entries_go_first(tmp_path):
    now = time.time()
    for age in range(10):
        path = tmp_path / f"{age}.o"
        path.write_bytes(bytes(100))
        os.utime(path, (now - age, now - age))
    prune(tmp_path, 1000)
    assert len(list(tmp_path.iterdir())) == 10
    prune(tmp_path, 999)
    assert sorted(path.stem for path in tmp_path.iterdir()) == list("0123456")  # three quarters


def test_writing_prunes(tmp_path):
    ObjectCache(tmp_path).object_of(text(2), HOST)
    folder = tmp_path / KIND
    old = folder / "old.o"
    old.write_bytes(bytes(5000))
    os.utime(old, (0, 0))
    cache = ObjectCache(tmp_path, limit_bytes=4000)
    cache.object_of(text(), HOST)
    assert not old.exists()
    assert len(entries(tmp_path)) == 2


def test_what_was_used_last_stays(tmp_path):
    cache = ObjectCache(tmp_path)
    cache.object_of(text(), HOST)
    (path,) = entries(tmp_path)
    os.utime(path, (0, 0))
    cache.object_of(text(), HOST)
    assert path.stat().st_mtime > time.time() - 60


WRITER = """
import sys
from pathlib import Path
from intarsia.native.machine import NativeCpu
from intarsia.native.objects import ObjectCache
folder, text = sys.argv[1:]
for round in range(10):
    cache = ObjectCache(Path(folder))
    for number in range(8):
        print(hash(cache.object_of(text.format(number=number), NativeCpu())) and cache.hits)
"""


def test_processes_share_a_folder(tmp_path):
    """Several write the same entries at once while another damages them."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), TEXT], stdout=subprocess.DEVNULL
        )
        for _ in range(3)
    ]
    while any(writer.poll() is None for writer in writers):
        for path in (tmp_path / KIND).glob("*.o"):
            try:
                path.write_bytes(path.read_bytes()[:50])
            except OSError:
                continue
        time.sleep(0.02)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    cache = ObjectCache(tmp_path)
    for number in range(8):
        assert cache.object_of(text(number), HOST) == ObjectCache(None).object_of(
            text(number), HOST
        )
    assert not list((tmp_path / KIND).glob("*.part"))


def test_a_bad_module_is_refused_and_not_kept(tmp_path):
    cache = ObjectCache(tmp_path)
    with pytest.raises(BackendError, match="LLVM refused a kernel"):
        cache.object_of("define nonsense", HOST)
    assert not (tmp_path / KIND).exists()


def test_the_host_has_a_name():
    assert host_machine().name
    assert isinstance(ObjectCache(Path()).folder, Path)
