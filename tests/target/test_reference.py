# SPDX-License-Identifier: Apache-2.0
"""The generated page of kinds, attributes and tags."""

import os
import subprocess
import sys
from pathlib import Path

from intarsia.target import get_kind

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference_targets.md"


def make(*arguments):
    """Run the script in a process of its own, which knows only what is built in."""
    script = ROOT / "scripts" / "make_target_reference.py"
    variables = {**os.environ, "INTARSIA_TARGETS": ""}
    command = [sys.executable, script, *arguments]
    return subprocess.run(
        command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_page_is_up_to_date():
    made = make("--check", PAGE)
    assert made.returncode == 0, made.stderr


def test_an_old_page_is_noticed(tmp_path):
    old = tmp_path / "page.md"
    old.write_text(PAGE.read_text().replace("`cuda`", "`cudo`", 1))
    made = make("--check", old)
    assert made.returncode == 1
    assert "is out of date" in made.stderr


def test_the_page_has_every_kind_attribute_and_a_board():
    text = PAGE.read_text()
    listing = "import intarsia.target as t; print(*t.list_kinds())"  # without those of other tests
    listed = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        assert all(f"| `{attr}` |" in text for attr in get_kind(name).attrs), name
    assert "`nvidia/geforce-rtx-2080-ti`" in text
    assert "`nvidia/geforce-gt-730-ddr3,128bit`" in text
