# SPDX-License-Identifier: Apache-2.0
"""What README shows works as it is pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from intarsia import zoo

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for language, text in BLOCKS
    if language in ("console", "")
    for line in text.splitlines()
    if line.startswith("$ ")
]
PYTHON = [text for language, text in BLOCKS if language == "python"]


def test_there_is_something_to_paste():
    assert sum(command.startswith("intarsia ") for command in COMMANDS) >= 6
    assert len(PYTHON) >= 3


@pytest.mark.exhaustive
def test_the_commands_run_one_after_another(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)  # stands for the one of `make`
    (tmp_path / ".venv" / "bin" / "activate").write_text(
        f"export PATH='{Path(sys.executable).parent}':$PATH\n"
    )
    pasted = [command for command in COMMANDS if not command.startswith("make ")]
    pasted = [command.replace("--budget 120s", "--budget 20s") for command in pasted]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(pasted)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "resnet50.intarsia").is_file()
    assert "…" not in done.stdout  # no figure is cut at 80 columns


@pytest.mark.exhaustive
def test_the_programs_run_one_after_another(tmp_path, monkeypatch):
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
