# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C is answered with a line and 130, however early it comes."""

import subprocess
import sys

import pytest

CODE = """
import sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupter())
from intarsia.__main__ import main
sys.exit(main(["doctor"]))
"""


@pytest.mark.parametrize(
    "module", ["intarsia.cli.program", "logging", "typer", "msgspec", "intarsia.report.health"]
)
def test_an_interrupted_import_shows_no_traceback(module):
    """The first second of a command is imports: whichever is under way, as a signal would."""
    code = CODE.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_nothing_of_size_is_imported_before_it_is_answered():
    code = (
        "import sys; before = set(sys.modules); import intarsia.__main__; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"typer", "click", "rich", "numpy", "onnx", "msgspec", "logging", "sqlalchemy"}
    assert not heavy & set(eval(done.stdout))
