"""The contract is declared in one place, and the documentation says the same."""

import re
from pathlib import Path

import pytest

from intarsia.backends.backend import MEMBERS, Backend, RegisteredBackend
from intarsia.backends.reference import ReferenceBackend

DOCS = Path(__file__).parents[2] / "docs" / "backends.md"


def test_the_table_of_the_documentation_has_every_member():
    rows = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \| (yes|no) \|", DOCS.read_text(), re.MULTILINE)
    assert {name: required == "yes" for name, required in rows} == MEMBERS
    assert len(rows) == len(MEMBERS)


def test_what_is_required_is_the_protocol():
    public = {*Backend.__annotations__, *vars(Backend)}
    assert {name for name in public if not name.startswith("_")} == {
        name for name, is_required in MEMBERS.items() if is_required
    }


def test_the_registry_reads_what_is_there_and_nothing_else():
    backend = ReferenceBackend()
    registered = RegisteredBackend.of(backend)
    assert registered.value is backend
    assert registered.compile == backend.compile
    assert registered.states is None
    assert registered.passes == ()
    assert registered.is_default
    assert RegisteredBackend.of(registered) is registered


def test_what_lacks_a_required_member_is_not_registered():
    with pytest.raises(TypeError, match="compile"):
        RegisteredBackend.of(object())
