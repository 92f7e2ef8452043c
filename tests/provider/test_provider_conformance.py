# SPDX-License-Identifier: Apache-2.0
"""A sample of ONNX's node tests through our provider: as direct use, bit by bit."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime", minversion="1.24")

SCRIPT = Path(__file__).parents[2] / "scripts" / "provider_conformance.py"


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # numbers overflow on purpose
def test_node_tests_give_what_direct_use_gives():
    spec = importlib.util.spec_from_file_location("provider_conformance", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = {case.name: script.compare(case, "llvm") for case in script.chosen_cases(60, seed=1)}
    counts = Counter(outcome for outcome, _ in found.values())
    bad = {name: one for name, one in found.items() if one[0] in ("wrong", "unequal", "failed")}
    assert not bad
    assert counts["ours"] > 10
