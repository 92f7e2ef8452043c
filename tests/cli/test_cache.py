# SPDX-License-Identifier: Apache-2.0
"""`intarsia cache` shows and empties our own folder, and never touches another."""

import os

import pytest

from intarsia.cache import TAG_NAME, make_cache_folder


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
    from intarsia.errors import SettingError

    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingError, match="not a cache folder"):
        make_cache_folder(folder)
    assert not (folder / TAG_NAME).exists()


def test_an_entry_that_goes_away_meanwhile_does_not_count(call, cache, monkeypatch):
    real = os.walk
    monkeypatch.setattr(
        os, "walk", lambda top: ((path, dirs, [*files, "gone"]) for path, dirs, files in real(top))
    )
    assert call("cache", "info", "--json").json["entries"] == 3
