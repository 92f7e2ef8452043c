# SPDX-License-Identifier: Apache-2.0
"""`intarsia cache` shows and empties our own folder, and never touches another."""

import os
import subprocess
import sys

import pytest

from intarsia.cache import TAG_NAME, cache_info, make_cache_folder
from intarsia.errors import SettingError


@pytest.fixture
def cache(folder, monkeypatch):
    """A cache folder with three entries of two kinds."""
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder / "cache"))
    made = make_cache_folder(folder / "cache")
    (made / "kernels" / "a").mkdir(parents=True)
    (made / "costs").mkdir()
    (made / "kernels" / "a" / "one").write_bytes(bytes(10))
    (made / "kernels" / "two").write_bytes(bytes(5))
    (made / "costs" / "db").write_bytes(bytes(7))
    return made


def test_info_counts_entries_and_bytes_by_kind(call, cache):
    answer = call("cache", "info", "--json")
    assert answer.code == 0
    assert (answer.json["entries"], answer.json["nbytes"]) == (3, 22)
    assert answer.json["kinds"] == [
        {"kind": "costs", "entries": 1, "nbytes": 7},
        {"kind": "kernels", "entries": 2, "nbytes": 15},
    ]
    assert "kernels" in call("cache", "info").out


def test_a_folder_that_is_not_there_is_empty(call, folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder / "none"))
    assert call("cache", "info", "--json").json["entries"] == 0
    assert call("cache", "clear", "--yes").code == 0
    assert not (folder / "none").exists()


def test_clear_removes_the_entries_and_keeps_the_tag(call, cache):
    answer = call("cache", "clear", "--yes")
    assert answer.code == 0
    assert "3 entries" in answer.out
    assert [item.name for item in cache.iterdir()] == [TAG_NAME]


def test_clear_asks_unless_told(call, cache, monkeypatch):
    monkeypatch.setattr("typer.confirm", _refuse)
    assert call("cache", "clear").code == 1
    assert (cache / "costs" / "db").exists()


def _refuse(question, **options):
    import typer

    assert "3 entries" in question
    assert options["abort"]
    raise typer.Abort


def test_clear_refuses_a_folder_of_somebody_else(call, folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder))
    (folder / "thesis.txt").write_text("years of work")
    answer = call("cache", "clear", "--yes")
    assert answer.code == 2
    assert "not a cache folder" in answer.err
    assert (folder / "thesis.txt").exists()


def test_clear_refuses_a_folder_with_another_programs_tag(call, folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(folder))
    (folder / TAG_NAME).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of ccache\n")
    (folder / "object").write_bytes(b"x")
    assert call("cache", "clear", "--yes").code == 2
    assert (folder / "object").exists()


def test_clear_does_not_follow_links_out_of_the_folder(call, cache, folder):
    outside = folder / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"x")
    (cache / "kernels" / "link").symlink_to(outside)
    (cache / "linked").symlink_to(outside)
    assert call("cache", "clear", "--yes").code == 0
    assert (outside / "kept").exists()
    assert not (cache / "linked").is_symlink()


def test_a_folder_with_other_things_does_not_become_ours(folder):
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingError, match="not a cache folder"):
        make_cache_folder(folder)
    assert not (folder / TAG_NAME).exists()


@pytest.mark.parametrize("left", ["", "Signature: 8a477f59"], ids=["empty", "begun"])
def test_a_tag_that_was_cut_short_is_written_anew(folder, left):
    (folder / TAG_NAME).write_text(left)
    (folder / f"{TAG_NAME}.x.part").touch()
    make_cache_folder(folder)
    assert cache_info(folder).is_ours


@pytest.mark.parametrize("name", [TAG_NAME, f"{TAG_NAME}.part", "film.part"])
def test_the_tag_of_another_program_stays(folder, name):
    (folder / name).write_text("Signature: 8a477f597d28d172789f06886806bc55\n# of another program")
    with pytest.raises(SettingError, match="not a cache folder"):
        make_cache_folder(folder)
    assert not cache_info(folder).is_ours


def test_several_processes_may_make_it_at_once(folder):
    code = (
        "import sys\nfrom pathlib import Path\nfrom intarsia.cache import make_cache_folder\n"
        "for number in range(200):\n"
        "    made = make_cache_folder(Path(sys.argv[1], str(number)))\n"
        "    (made / 'kernels').mkdir(exist_ok=True)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate()[1] for process in started] == [""] * 6


def test_an_entry_that_goes_away_meanwhile_does_not_count(call, cache, monkeypatch):
    real = os.walk
    monkeypatch.setattr(
        os, "walk", lambda top: ((path, dirs, [*files, "gone"]) for path, dirs, files in real(top))
    )
    assert call("cache", "info", "--json").json["entries"] == 3
