# SPDX-License-Identifier: Apache-2.0
"""The script that tries every backend keeps what it has, and writes one table of all."""

import json
import sys
from pathlib import Path

import pytest

from intarsia.testing.kit import CHECKS

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import examine_backends

    return examine_backends


def test_a_backend_is_tried_in_a_process_of_its_own_and_the_table_is_written(
    script, monkeypatch, tmp_path, capfd
):
    page, kept = tmp_path / "page.md", tmp_path / "kept.jsonl"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    command = ["examine", "--check", "faults", "--check", "contract"]
    command += ["--backend", "fake", "--backend", "onnxruntime"]
    monkeypatch.setattr(sys, "argv", [*command, "--keep", str(kept), "--page", str(page)])
    assert script.main() == 0
    records = [json.loads(line) for line in kept.read_text().splitlines()]
    by_way = {way: [one for one in records if one["way"] == way] for way in script.TARGETS}
    assert sum(map(len, by_way.values())) == len(records)
    passed, others = (
        sum(record["status"] == "passed" for record in by_way[way])
        for way in ("fake", "onnxruntime")
    )
    assert passed
    assert others
    text = page.read_text()
    assert f"| `fake` | skipped (a) | {passed} passed, 1 skipped |" in text
    assert "\n(a) only what lies in the host's memory is tried\n" in text
    assert "| `onnxruntime` |" in text
    assert "old" not in text
    assert "| `fake` |" in capfd.readouterr().out


def test_what_is_tried_are_checks_and_backends_that_there_are(script):
    import importlib

    assert set(script.ENDURANCE) <= set(CHECKS)
    for name, (module, target) in script.TARGETS.items():
        assert importlib.import_module(module).BACKEND.name == name
        assert target.split()[0].strip(",") == name


def test_a_failure_is_in_the_table_with_its_words(script):
    record = script.TrialRecord("fake", "loads", "loads-1000_loads", "failed", "it leaks | a lot")
    lines = list(script.table([record], ["loads", "threads"]))
    assert r"| `fake` | failed: it leaks \| a lot | not tried |" in lines
