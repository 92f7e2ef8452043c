# SPDX-License-Identifier: Apache-2.0
"""`intarsia costs`: every command, its JSON, and what it says when something is wrong."""

import io
import sys
import time

import pytest

from intarsia.cost.database import CostDatabase
from intarsia.cost.fingerprint import host_id, this_machine
from intarsia.cost.key import BoundaryKey, CostKey, Sample, new_session
from intarsia.cost.records import Weight
from intarsia.cost.weights import add_weights
from intarsia.settings import Settings

_MACHINE = this_machine().digest
_KEY = CostKey("a" * 32, "llvm -mcpu=x86-64-v3", "llvm 22.1", _MACHINE, "2")
_OTHER = CostKey("b" * 32, "openvino", "openvino 2026.4", "0" * 16, "2 shared")
_JUNCTION = BoundaryKey(
    *("a" * 32, "openvino", "b" * 32, "openvino", "openvino 2026.4", _MACHINE, "2")
)


@pytest.fixture
def costs(folder, monkeypatch):
    """A database that the setting names, with three keys."""
    file = folder / "costs.sqlite"
    monkeypatch.setenv("INTARSIA_COSTS", str(file))
    now = time.time()
    with CostDatabase.open(settings=Settings.from_environment()) as database:
        session = new_session()
        samples = [Sample(1e-3 + 1e-6 * i, 2e-3, "anchor", now, session) for i in range(50)]
        database.add(_KEY, samples)
        database.add(_JUNCTION, [Sample(-2e-6, taken_at=now)])
        database.poison(_OTHER, "crashed", "signal 11 [SIGSEGV]", taken_at=now - 1e7)
    return file


def test_ls_lists_every_key(call, costs):
    answer = call("costs", "ls")
    assert answer.code == 0
    assert f"{costs}: 3 keys" in answer.out
    for text in (_KEY.digest[:12], "llvm -mcpu=x86-64-v3", "crashed", "junction", "measured"):
        assert text in answer.out
    found = call("costs", "ls", "--json").json
    assert found["database"] == str(costs)
    by_region = {entry["region"]: entry for entry in found["entries"] if "next_region" not in entry}
    assert by_region["a" * 32]["samples"] == 50
    assert by_region["a" * 32]["seconds"] == pytest.approx(1.0245e-3)
    assert by_region["a" * 32]["target"] == _KEY.target
    assert by_region["b" * 32]["poison"]["code"] == "crashed"


def test_ls_can_choose(call, costs):
    def count(*options):
        return len(call("costs", "ls", "--json", *options).json["entries"])

    assert count("--target", "openvino") == 2
    assert count("--backend", "llvm 22") == 1
    assert count("--machine", "here") == 2
    assert count("--region", "bb") == 2
    assert "0 keys" in call("costs", "ls", "--target", "none").out


def test_a_long_list_is_cut_unless_all_is_asked_for(call, costs):
    with CostDatabase.open(settings=Settings.from_environment()) as database:
        for number in range(50):
            database.add(CostKey(f"r{number}", "t", "b", "m", "1"), [Sample(1.0)])
    assert "53 keys, the first 40 of them here" in call("costs", "ls").out
    assert call("costs", "ls", "--all").out.count(" fingerprint ") == 50


def test_show_tells_all_of_one_key(call, costs):
    answer = call("costs", "show", _KEY.digest[:10])
    assert answer.code == 0
    assert this_machine().text in answer.out
    assert "samples (last 40; --all lists 10 more)" in answer.out
    assert call("costs", "show", _KEY.digest, "--all").out.count(f"{host_id()}.") == 50
    assert len(call("costs", "show", _KEY.digest, "--json").json["all_samples"]) == 50
    assert "signal 11 [SIGSEGV]" in call("costs", "show", _OTHER.digest).out
    assert "next region" in call("costs", "show", _JUNCTION.digest).out
    answer = call("costs", "show", "zzz")
    assert answer.code == 2
    assert "no key begins with 'zzz'" in answer.err


def test_costs_travel_as_text(call, costs, folder, monkeypatch):
    assert call("costs", "export", "out.jsonl").code == 0
    text = call("costs", "export").out
    assert (folder / "out.jsonl").read_text() == text
    assert not list(folder.glob("*.part"))
    answer = call("costs", "import", "out.jsonl", "-d", "new.sqlite")
    assert answer.out == "out.jsonl: 3 keys, 51 samples, 1 failure, 0 verdicts added\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert call("costs", "import", "-", "-d", "new.sqlite", "--json").json["added"]["-"] == {
        "keys": 0, "samples": 0, "poisons": 0, "verdicts": 0, "weights": 0
    }  # fmt: skip
    assert call("costs", "export", "-d", "new.sqlite").out == text
    assert call("costs", "export", "--target", "llvm").out.count('"kind":"cost"') == 1


def test_databases_merge_and_compare(call, costs):
    answer = call("costs", "merge", costs, "-d", "new.sqlite")
    assert answer.out == f"{costs}: 3 keys, 51 samples, 1 failure, 0 verdicts added\n"
    assert call("costs", "diff", "new.sqlite").code == 0
    with CostDatabase.open("new.sqlite") as database:
        database.add(_OTHER, [Sample(1.0)])
        database.add(_KEY, [Sample(9e-3, session=new_session())] * 100)
    answer = call("costs", "diff", costs, "new.sqlite")
    assert answer.code == 1
    assert "0 only in the first, 1 only in the second, 1 alike, 0 faster and 1 slower" in answer.out
    assert _KEY.digest[:12] in answer.out
    found = call("costs", "diff", costs, "new.sqlite", "--json").json
    assert sorted(item["change"] for item in found) == ["alike", "right", "slower"]


def test_prune_asks_first(call, costs, monkeypatch):
    answer = call("costs", "prune", "--older-than", "30d", "--dry-run")
    assert answer.out == "1 key, 0 samples, 1 failure, 0 verdicts would be removed\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert call("costs", "prune", "--older-than", "30d").code == 1
    assert "3 keys" in call("costs", "ls").out
    assert call("costs", "prune", "--older-than", "30d", "-y").code == 0
    assert call("costs", "prune", "--keep", "5", "--yes", "--json").json == {
        "removed": {"keys": 0, "samples": 45, "poisons": 0, "verdicts": 0, "weights": 0},
        "dry_run": False,
    }
    assert "2 keys" in call("costs", "ls").out
    assert call("costs", "prune", "--key", _KEY.digest[:9], "-y").out.startswith("1 key, 5 samples")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prune",), "nothing says what to remove"),
        (("prune", "--older-than", "soon"), "'soon' is not an age"),
        (("import", "none.jsonl"), "cannot read 'none.jsonl'"),
        (("import", "wrong.jsonl"), "line 2 of 'wrong.jsonl' is not from `intarsia costs export`"),
        (("import", "costs.sqlite"), "it is not text"),
        (("export", "none/x.jsonl"), "cannot write"),
        (("merge", "none.sqlite"), "there is no cost database"),
        (("ls", "-d", "mysql://x/y"), "a cost database cannot be at"),
    ],
)
def test_what_is_wrong_is_one_line(call, costs, folder, arguments, message):
    (folder / "wrong.jsonl").write_text(
        '{"kind":"header","format":"intarsia-costs","schema":1}\n{"kind":"cost"}\n'
    )
    before = call("costs", "export").out
    answer = call("costs", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert call("costs", "export").out == before


def test_no_database_yet_is_said(call, folder, monkeypatch):
    monkeypatch.setenv("INTARSIA_COSTS", str(folder / "none.sqlite"))
    answer = call("costs", "ls")
    assert answer.code == 2
    assert "there is no cost database" in answer.err
    assert not (folder / "none.sqlite").exists()


def test_what_cannot_be_read_makes_no_database(call, folder):
    for command in (["import", "nothing.jsonl"], ["merge", "nothing.sqlite"]):
        answer = call("costs", *command, "--database", "new.sqlite")
        assert answer.code == 2
        assert not (folder / "new.sqlite").exists()


def test_an_export_to_a_file_can_be_told_as_json(call, costs):
    assert call("costs", "export", "c.jsonl", "--json").json == {"file": "c.jsonl", "lines": 5}
    assert call("costs", "import", "c.jsonl", "-d", "other.sqlite").code == 0
    assert call("costs", "diff", "other.sqlite").code == 0


def test_weights_are_listed_and_shown(call, costs):
    with CostDatabase.open(settings=Settings.from_environment()) as database:
        add_weights(database, {_KEY: [Weight(12_345_678, time.time(), new_session())]})
    assert "12346" in call("costs", "ls", "--target", "llvm").out
    assert "12,345,678 B, weighed once" in call("costs", "show", _KEY.digest[:12]).out
    shown = call("costs", "show", _KEY.digest[:12], "--json").json
    assert shown["nbytes"] == shown["all_weights"][0]["nbytes"] == 12_345_678
