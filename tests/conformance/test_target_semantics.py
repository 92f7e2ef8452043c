# SPDX-License-Identifier: Apache-2.0
"""The contract of the target system, row by row: `pytest -k row-057` runs row 57."""

import inspect
import re
from pathlib import Path

import pytest
from rows import REQUIRED, load_rows

ROWS = load_rows()


@pytest.mark.parametrize("item", ROWS, ids=lambda item: item.id)
def test_row(item, request):
    names = inspect.signature(item.test).parameters
    item.test(**{name: request.getfixturevalue(name) for name in names})


def test_the_docs_list_every_row_that_we_do_not_follow():
    page = Path(__file__).parents[2] / "docs" / "target_rows.md"
    listed = re.findall(r"^\| (\d+) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number in listed] == sorted({r.number for r in ROWS if r.note})


def test_every_row_has_a_test():
    missing = sorted(set(REQUIRED) - {item.number for item in ROWS})
    assert not missing, f"rows without a test: {missing}"
