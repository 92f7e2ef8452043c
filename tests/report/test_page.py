# SPDX-License-Identifier: Apache-2.0
"""The HTML report as text: what is in it, and that names are data there."""

import gzip
import json
import re
from html.parser import HTMLParser

import pytest

import intarsia
from intarsia.errors import SettingError
from intarsia.report.page import PageContent, write_page
from intarsia.report.page import page as page_module
from intarsia.report.page.page import embed_json, load_bundle, page_text

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028'\""
PROGRAM = "console.log(1)"


class Reader(HTMLParser):
    """What a browser makes of a page: elements, texts of cells, and what stands in scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.scripts, self.attributes = [], [], [], []
        self._into = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self._into = {"td": self.cells, "script": self.scripts}.get(tag)
        if self._into is not None:
            self._into.append("")

    def handle_endtag(self, tag):
        if tag in ("td", "script"):
            self._into = None

    def handle_data(self, data):
        if self._into is not None:
            self._into[-1] += data


@pytest.fixture
def hostile(parse_model):
    """An explanation of a model whose names try to be markup."""
    model = parse_model("m (float[2] x) => (float[2] y) { [n] h = Relu(x) [o] y = Tanh(h) }")
    model.graph.node[0].name = HOSTILE
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = f"{HOSTILE}h"
    return intarsia.compile(model, target="fake -ops=Relu, onnxruntime").explain()


@pytest.mark.parametrize("program", [None, PROGRAM])
def test_names_are_data_whatever_they_hold(hostile, program):
    page = Reader(page_text(PageContent(HOSTILE, hostile), program))
    assert HOSTILE in page.cells
    assert "img" not in page.tags
    assert page.scripts[1:] == ([PROGRAM] if program else [])
    assert len(page.scripts) == (2 if program else 0)


def test_the_page_holds_what_json_prints(hostile):
    page = Reader(page_text(PageContent("t", hostile), PROGRAM))
    assert "\u2028" not in page.scripts[0]
    held = json.loads(page.scripts[0])["explanation"]
    names = [node["name"] for region in held["placement"]["regions"] for node in region["nodes"]]
    assert names == [HOSTILE, "o"]
    assert held["copies"][0]["nbytes"] == hostile.copies[0].nbytes == 8


def test_embedded_json_is_the_same_value():
    value = {"a": [1.5, None, HOSTILE, "<!--", "]]>"]}
    text = embed_json(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]", text)


def test_the_plain_page_has_the_figures_and_no_program(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "load_bundle", lambda: None)
    assert write_page(PageContent("t", hostile), tmp_path / "r.html") is False
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Reader(text)
    assert "make report-bundle" in text
    assert "script" not in page.tags
    for copy in hostile.copies:
        assert str(copy.nbytes) in page.cells
    for step in hostile.steps:
        assert step in page.cells
    for refusal in hostile.placement.refusals:
        assert refusal.reason in page.cells
    values = [value for value in hostile.wiring.values if value.name == "y"]
    assert f"y {values[0].dtype}[2]" in page.cells


@pytest.mark.parametrize("program", [None, PROGRAM])
def test_the_page_asks_for_nothing_from_elsewhere(hostile, program):
    page = Reader(page_text(PageContent("t", hostile), program))
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    names = {name for _, name, _ in page.attributes}
    assert not {"src", "href", "srcset", "action"} & names
    assert not any(name.startswith("on") for name in names)
    (policy,) = (
        value for _, name, value in page.attributes if name == "content" and "src" in value
    )
    assert "default-src 'none'" in policy
    assert ("script-src 'none'" in policy) is (program is None)


def test_the_bundle_is_read_where_it_was_built(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "files", lambda _: tmp_path)
    assert load_bundle() is None
    (tmp_path / "report.js.gz").write_bytes(gzip.compress(PROGRAM.encode()))
    assert load_bundle() == PROGRAM


def test_a_file_that_cannot_be_written_is_an_error_of_ours(hostile, tmp_path):
    with pytest.raises(SettingError, match="cannot write"):
        write_page(PageContent("t", hostile), tmp_path / "none" / "r.html")
