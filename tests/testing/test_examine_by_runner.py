# SPDX-License-Identifier: Apache-2.0
"""The script that runs the kit through runners keeps what it has, and goes on from there."""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import examine_by_runner

    return examine_by_runner


def run(script, monkeypatch, *arguments):
    command = ("examine", "-t", "llvm -runner=here", "--check", "contract", *arguments)
    monkeypatch.setattr(sys, "argv", list(command))
    return script.main()


def test_what_is_kept_is_not_tried_again_and_a_broken_line_is(
    script, monkeypatch, tmp_path, capsys
):
    kept, page = tmp_path / "kept.jsonl", tmp_path / "page.md"
    page.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    assert run(script, monkeypatch, "--keep", str(kept)) == 0
    whole = kept.read_text()
    records = [json.loads(line) for line in whole.splitlines()]
    assert {record["status"] for record in records} == {"passed", "left out"}
    assert "contract-rules passed" in capsys.readouterr().out
    lines = whole.splitlines(keepends=True)
    kept.write_text("".join(lines[:-1]) + lines[-1][:20])  # as if it had been killed there
    assert run(script, monkeypatch, "--keep", str(kept), "--page", str(page)) == 0
    (tried,) = [one for one in capsys.readouterr().out.splitlines() if one.endswith(" s")]
    assert records[-1]["trial"] in tried
    text = page.read_text()
    passed = sum(record["status"] == "passed" for record in records)
    row = f"| `contract` | {passed} passed, {len(records) - passed} left out |"
    assert row in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text


def test_a_page_without_the_comments_is_refused(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(SystemExit, match="lacks"):
        script.write_page(page, [])
    assert page.read_text() == "nothing\n"
