# SPDX-License-Identifier: Apache-2.0
"""A sample of ONNX's node tests through our provider: as direct use, bit by bit."""

import importlib.util
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("onnxruntime", minversion="1.24")

SCRIPT = Path(__file__).parents[2] / "scripts" / "provider_conformance.py"


@pytest.fixture
def script():
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("provider_conformance", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_a_run_that_was_stopped_goes_on_where_it_was(script, tmp_path, monkeypatch, capsys):
    file = tmp_path / "results.jsonl"
    names = ("test_a", "test_b", "test_c")
    cases = [SimpleNamespace(name=name) for name in names]
    tried = []

    def compare(case, target):
        tried.append(case.name)
        if case.name == "test_b" and tried.count("test_b") == 1:
            raise KeyboardInterrupt
        return ("wrong", "as told") if case.name == "test_b" else ("ours", "")

    monkeypatch.setattr(script, "chosen_cases", lambda one_in, seed: cases)
    monkeypatch.setattr(script, "compare", compare)
    monkeypatch.setattr("sys.argv", ["provider_conformance", "--results", str(file)])
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert script.main() == 1
    assert tried == ["test_a", "test_b", "test_b", "test_c"]
    assert capsys.readouterr().out == "test_b: wrong: as told\n2 ours, 1 wrong\n"
    assert script.main() == 1  # of what the file has alone
    assert len(tried) == 4


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # numbers overflow on purpose
def test_node_tests_give_what_direct_use_gives(script):
    found = {case.name: script.compare(case, "llvm") for case in script.chosen_cases(60, seed=1)}
    counts = Counter(outcome for outcome, _ in found.values())
    bad = {name: one for name, one in found.items() if one[0] in ("wrong", "unequal", "failed")}
    assert not bad
    assert counts["ours"] > 10
