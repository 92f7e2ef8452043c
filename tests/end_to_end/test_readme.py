# SPDX-License-Identifier: Apache-2.0
"""The programs of README run, and its links lead somewhere; its commands: `test_consoles.py`."""

import re
from pathlib import Path

import numpy as np
import pytest

from intarsia import zoo

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]


@pytest.mark.exhaustive
def test_the_programs_run_one_after_another(tmp_path, monkeypatch):
    assert len(PYTHON) >= 3
    monkeypatch.chdir(tmp_path)
    import onnx

    onnx.save(zoo.build("resnet50"), "resnet50.onnx")
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, 3, 224, 224), np.float32)
    names = {"image": image, "model": "resnet50.onnx"}
    for text in PYTHON:
        exec(compile(text, "README.md", "exec"), names)
    assert (tmp_path / "resnet50.intarsia").is_file()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", TEXT))))
def test_a_link_leads_somewhere(path):
    assert (ROOT / path).exists()
