# SPDX-License-Identifier: Apache-2.0
"""The documentation leads nowhere that is not there, and its reference has all that the code has.

`make docs` builds the site, where a warning is an error; here nothing is built.
"""

import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.invocations import list_commands

import intarsia
from intarsia.errors import ReasonCode
from intarsia.settings import Settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ("README.md", *(f"docs/{file.name}" for file in sorted(DOCS.glob("*.md"))))
WORDS = (
    *("Target", "Kind", "Tag", "Label", "Composite", "Fallback", "Host", "Device", "Graph"),
    *("Region", "Rule", "Refusal", "Candidate", "Cost", "Placement", "Pin", "Plan", "Backend"),
    *("Executable", "Package", "Runner", "Fingerprint", "Verdict"),
)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_MEASURED = re.compile(
    r"\d\s?(?:ms|us|µs|GFLOP/s|GB/s|tokens a second)\b"
    r"|\d\s(?:of\s(?:the|its)\stime|times\sas\s(?:fast|long|much))\b"
)
_COMMAND = re.compile(r"\b(?:benchmarks|scripts)/\w+\.py\b")
_PRINTS = re.compile(r"benchmarks/|scripts/|\bintarsia (?:bench|run|explain|tune|plan)\b")
"""What measures: a script, or a command of ours."""


def _script(name, monkeypatch):
    """Return a script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(monkeypatch):
    """What builds the site."""
    _script("make_reference", monkeypatch)
    return _script("make_site", monkeypatch)


def _text(page):
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    found, counts = set(), {}
    for heading in _HEADING.findall(_text(page)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = counts.get(slug, 0)
        counts[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_link_of_a_page_leads_somewhere(name):
    page = ROOT / name
    for path, anchor in _LINK.findall(_text(page)):
        target = page if not path else page.parent / path
        assert target.exists(), f"{name}: {path}"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{name}: {path}#{anchor}"


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_what_was_measured_has_its_command_beside_it(name):
    """In a section of a page, or an entry of the changelog; a code span is an example."""
    text = (ROOT / name).read_text(encoding="utf-8")
    scripts = set(_COMMAND.findall(text))
    assert [script for script in scripts if not (ROOT / script).exists()] == []
    if name == "docs/decisions.md":  # its head says what its figures are
        return
    parts = re.split(r"^(?=#+ |- )" if name == "CHANGELOG.md" else r"^(?=#+ )", text, flags=re.M)
    figures = (re.sub(r"`[^`]*`", "", _FENCE.sub("", part)) for part in parts)
    bare = [
        part.splitlines()[0]
        for part, words in zip(parts, figures, strict=True)
        if _MEASURED.search(words) and not _PRINTS.search(part)
    ]
    assert bare == []


def test_a_heading_has_the_anchor_that_links_name(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One: `two` (three)\n\n## Same\n\n## Same\n\n```console\n# no\n```\n")
    assert _anchors(page) == {"one-two-three", "same", "same-1"}


def test_every_page_is_in_one_part_of_the_menu(site):
    listed = [page for pages in site.MENU.values() for page in pages]
    assert len(listed) == len(set(listed))
    there = {file.stem for file in DOCS.glob("*.md")}
    assert set(listed) == there | {name.removesuffix(".md") for name in site.PAGES}


def test_the_sources_of_the_site_are_all_there(site, tmp_path):
    site.write_sources(tmp_path)
    home = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "docs/" not in re.findall(r"\]\(([^)]*)\)", home)
    for name in ("quick_start.md", "reference/api.md", "schemas/run.json", "conf.py"):
        assert (tmp_path / name).is_file()
    assert "](../benchmarks" not in (tmp_path / "verify.md").read_text(encoding="utf-8")


def test_the_reference_has_every_name_command_and_error(site):
    pages = {name: write() for name, write in site.PAGES.items()}
    for name in intarsia.__all__:
        assert f"## intarsia.{name}\n" in pages["reference/api.md"]
    for command in list_commands():
        assert f"## intarsia {command}\n" in pages["reference/commands.md"]
        assert f"`intarsia {command} --json`" in pages["reference/json.md"]
    for code in ReasonCode:
        assert re.search(rf"^\| `{code}` \| \w.*\.( \|)$", pages["reference/errors.md"], re.M), code
    for kind in ("IntarsiaError", "TargetError", "LinkError", "InternalError"):
        assert f"| `{kind}` |" in pages["reference/errors.md"]


def test_the_page_on_settings_has_what_the_code_has():
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip().strip("`") for cell in row.split(" | ")]
        for row in re.findall(r"^\| (`INTARSIA_\w+`.*) \|$", text, re.MULTILINE)
    ]
    by_variable = {one.metadata["variable"]: one for one in fields(Settings)}
    assert sorted(row[0] for row in rows) == sorted(by_variable)
    for row in rows:
        one = by_variable[row[0]]
        assert row[-1] == ("yes" if one.metadata["in_cache_keys"] else "no"), row[0]
        if isinstance(one.default, int):
            assert row[2] == str(int(one.default)), row[0]


def test_every_word_of_the_design_has_a_section():
    sections = _HEADING.findall((DOCS / "glossary.md").read_text(encoding="utf-8"))
    assert set(WORDS) <= set(sections)
