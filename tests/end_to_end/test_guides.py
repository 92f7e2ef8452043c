# SPDX-License-Identifier: Apache-2.0
"""A guide runs from top to bottom, and prints what it says that it prints."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from tests.opencl import first_device

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("two_devices.md", "from_scratch.md")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_runs(name, backends, tmp_path, monkeypatch):
    if "opencl" in (DOCS / name).read_text(encoding="utf-8"):
        first_device()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", "0,0")  # the guide's own setting is undone too
    printed, names = "", {}
    for language, text in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8")):
        if language == "toml":
            file = re.match(r"# (\S+)\n", text).group(1)
            (tmp_path / file).write_text(text, encoding="utf-8")
        elif language == "python":
            assert not printed, "what the block before printed is not shown"
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(text, name, "exec"), names)
            printed = output.getvalue()
        else:
            assert language == "text"
            assert printed == text
            printed = ""
    assert not printed
