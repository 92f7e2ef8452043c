# SPDX-License-Identifier: Apache-2.0
"""Build the documentation site with Sphinx: README, `docs/`, and what follows from code.

    python scripts/make_site.py build/site

A warning is an error: a link or an anchor that leads nowhere, a page that no menu leads to, a
docstring that cannot be read. Exits with Sphinx's exit code.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from make_reference import PAGES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

MENU = {
    "Start": ("quick_start", "why", "glossary", "from_scratch"),
    "Guides": (
        *("cnn", "transformer", "cpu_and_opencl", "wrong_runtime", "cross_compile", "fleet"),
        *("backends", "onnxruntime", "from_openvino", "from_tvm", "torch"),
        *("onnxruntime_provider", "serving"),
    ),
    "In depth": (
        *("guide", "targets", "two_devices", "collage", "costs", "search", "measuring"),
        *("verify", "numbers", "differential", "quantization", "free_sizes", "decoding"),
        *("isolation", "package", "emitters", "machines", "microcontrollers", "zoo", "benchmarks"),
        *("report", "pictures"),
    ),
    "Backends": (
        *("native_code", "opencl", "webgpu", "cuda", "dnnl", "ncnn", "xnnpack", "ort_ep"),
    ),
    "Reference": (
        *("reference/api", "reference/commands", "reference/json", "settings"),
        *("reference/errors", "reference_targets", "operators", "native_operators"),
        *("machine_operators", "onnx_conformance", "platforms", "target_rows"),
    ),
    "Project": ("architecture", "code_map", "decisions"),
}
"""The pages of each part of the menu: each page of the site is in one."""

CONFIGURATION = """\
project = "Intarsia"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "Intarsia"
html_show_sphinx = False
html_copy_source = False
default_role = "code"
myst_heading_anchors = 5
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
maximum_signature_line_length = 80
highlight_language = "text"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
"""
_TREE = "```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
_OF_README = re.compile(r"\[([^\]]+)\]\((?!https?:|#|docs/)[^)]+\)")


def write_sources(folder: Path) -> None:
    """Write what Sphinx reads: pages, schemas and its configuration.

    A link to a file of the sources, which the site does not have, becomes its text.
    """
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        (folder / page.name).write_text(_OUTSIDE.sub(r"\1", text), encoding="utf-8")
    shutil.copytree(DOCS / "schemas", folder / "schemas")
    for name, write in PAGES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(write(), encoding="utf-8")
    (folder / "index.md").write_text(home(), encoding="utf-8")
    (folder / "conf.py").write_text(CONFIGURATION, encoding="utf-8")


def home() -> str:
    """Return README as the first page, with the menu behind it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = _OF_README.sub(r"\1", text).replace("](docs/", "](")
    trees = [
        _TREE.format(caption=caption, pages="\n".join(pages)) for caption, pages in MENU.items()
    ]
    return "\n".join((text, *trees))


def main(arguments: list[str]) -> int:
    """Build the site and return the exit code."""
    from sphinx.cmd.build import main as build

    (target,) = map(Path, arguments)
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        write_sources(source)
        options = ["-b", "html", "-d", f"{folder}/read", "-q", "-W", "--keep-going"]
        return build([*options, str(source), str(target)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
