# SPDX-License-Identifier: Apache-2.0
"""The script that runs the kit through runners keeps what it has, and goes on from there."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from intarsia.errors import ExecutionError, LinkError

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


def test_what_is_kept_of_another_backend_is_neither_known_nor_shown(
    script, monkeypatch, tmp_path, capsys
):
    kept = tmp_path / "kept.jsonl"
    assert run(script, monkeypatch, "--keep", str(kept)) == 0
    other = ("--backend", "intarsia.backends.fake:BACKEND", "--no-run")
    capsys.readouterr()
    assert run(script, monkeypatch, "--keep", str(kept), *other) == 0
    assert "passed" not in capsys.readouterr().out
    assert {record.backend for record in script.read_kept(kept)} == {script.LLVM}


def test_nothing_runs_where_only_what_is_kept_is_asked_for(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script, "judge", lambda *_: pytest.fail("a trial ran"))
    assert run(script, monkeypatch, "--no-run", "--keep", str(tmp_path / "none.jsonl")) == 0
    assert "| `contract` |" in capsys.readouterr().out


def test_a_trial_that_the_way_failed_is_tried_again_at_once_and_whenever_it_goes_on(
    script, monkeypatch, tmp_path, capsys
):
    def fail(trial):
        def act(subject):
            tried.append(trial.id)
            with subject.calling("a step", "it"):
                raise error("the machine is gone")

        return replace(trial, act=act)

    def judge(subject, trial):
        is_first = trial.id == "contract-rules" and is_broken
        return trial_judge(subject, fail(trial) if is_first else trial)

    tried, error, is_broken = [], LinkError, True
    trial_judge = script.judge
    monkeypatch.setattr(script, "judge", judge)
    kept = tmp_path / "kept.jsonl"
    assert run(script, monkeypatch, "--keep", str(kept)) == 1
    assert tried == ["contract-rules"] * 3
    assert "contract-rules lost" in capsys.readouterr().out
    is_broken = False
    assert run(script, monkeypatch, "--keep", str(kept)) == 0
    told = capsys.readouterr().out
    assert "contract-rules passed" in told
    assert "lost" not in told
    is_broken, error, tried = True, ExecutionError, []
    assert run(script, monkeypatch, "--keep", str(tmp_path / "other.jsonl")) == 1
    assert tried == ["contract-rules"]  # what failed there is a verdict
    assert "contract-rules failed" in capsys.readouterr().out


def test_the_page_has_what_the_last_run_left(script):
    root = SCRIPTS.parent
    kept = script.read_kept(root / "benchmarks" / "kit_by_runner" / "ssh.jsonl")
    page = (root / "docs" / "machines.md").read_text(encoding="utf-8")
    shown = page.partition(script.BEGIN)[2].partition(script.END)[0]
    assert shown.strip() == "\n".join(script.table(kept))
    assert not {record.status for record in kept} & {"failed", script.LOST}
