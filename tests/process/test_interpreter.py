# SPDX-License-Identifier: Apache-2.0
"""A fresh Python imports what this one would, and nothing of the current folder."""

import subprocess
import sys
from ast import literal_eval

import pytest

from intarsia.process.interpreter import fresh_python
from intarsia.process.workers import Worker

SHADOWED = ("json", "platform", "signal", "socket", "numpy", "msgspec", "intarsia")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder: full of modules that must not be imported; this process does not."""
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_a_worker_does_not_import_from_the_current_folder():
    with Worker() as worker:
        assert worker.call("platform:system").value


def test_it_has_this_path_in_this_order_and_what_its_environment_adds(folder, monkeypatch):
    module = folder / "мод ü" / "shown.py"
    module.parent.mkdir()
    module.write_text("import sys\ndef show(*words):\n    print(ascii((sys.path, words)))\n")
    monkeypatch.setattr(sys, "path", [str(module.parent), *sys.path])
    done = subprocess.run(
        fresh_python("shown:show", "a word", "ü"),
        env={"PYTHONPATH": str(folder / "more")},
        capture_output=True,
        check=True,
        text=True,
    )
    path, words = literal_eval(done.stdout)
    assert path[: len(sys.path)] == sys.path
    assert str(folder / "more") in path[len(sys.path) :]
    assert str(folder) not in path
    assert "" not in path
    assert words == ("a word", "ü")
