# SPDX-License-Identifier: Apache-2.0
"""What a package index shows of the project, and what its extras bring."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXTS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "src").rglob("*.py")),
)


@pytest.fixture
def page(monkeypatch):
    """README as the wheel carries it; what builds the wheel is not installed here."""
    interface = "hatchling.metadata.plugin.interface"
    parts = interface.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[interface].MetadataHookInterface = object
    spec = importlib.util.spec_from_file_location("hook", ROOT / "scripts" / "readme_hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook, metadata = module.ReadmeHook(), {}
    hook.root = str(ROOT)
    hook.update(metadata)
    return metadata["readme"]["text"]


def test_the_page_on_an_index_leads_nowhere_that_is_not_there(page):
    assert not re.findall(r"\]\((?!https?:)[^)]+\)", page)
    assert "Providers stand for targets" in page  # the words of a link stay


def test_the_page_says_of_each_command_for_a_checkout_that_it_is_one(page):
    for paragraph in page.split("\n\n"):
        if "'.[" in paragraph or "pip install ." in paragraph or ".venv" in paragraph:
            assert "checkout" in paragraph or "make demo" in paragraph, paragraph
    before_make = page.partition("$ make demo")[0]
    assert "In a checkout:" in before_make
    assert "pip install 'intarsia[all]'" in page


def test_an_extra_that_is_named_is_there():
    named = re.compile(r"pip install [^`\n]*'(?:intarsia|\.)\[([\w,]+)\]'")
    found = {
        (path, extra)
        for path in TEXTS
        for names in named.findall(path.read_text(encoding="utf-8"))
        for extra in names.split(",")
    }
    assert len(found) > 10
    assert {extra for _, extra in found} <= EXTRAS.keys(), found


def test_every_backend_of_a_library_has_an_extra_and_all_brings_them():
    (everything,) = EXTRAS["all"]
    brought = set(re.search(r"\[(.+)\]", everything)[1].split(","))
    # A server is not for everybody, and NNCF makes models: no backend, and a dozen packages.
    # `cross` and `ethos-u` compile for other machines: `all` is for what runs on this one.
    # `xnnpack` and `ncnn` are weighed where they are named, and not chosen by themselves; `cuda`,
    # `cublas`, `cudnn` and `cutlass` need a GPU, and PyTorch is large. `plot` draws figures.
    # A server of requests is for those who serve.
    others = {
        "nncf",
        "postgresql",
        "serve",
        "serve-grpc",
        "cross",
        "cublas",
        "cuda",
        "cudnn",
        "cutlass",
        "ethos-u",
        "xnnpack",
        "ncnn",
        "torch",
        "plot",
    }
    assert others < EXTRAS.keys()
    assert brought == EXTRAS.keys() - {"all"} - others


def test_the_extras_can_be_had_together():
    """With what is installed here; what is missing would have to be downloaded."""
    installed = {one.metadata["Name"] for one in distributions()}
    large = {
        "torch": "torch",
        "cublas": "nvidia-cublas-cu12",
        "cudnn": "nvidia-cudnn-cu12",
        "cutlass": "nvidia-cutlass",
    }
    extras = [name for name in EXTRAS if large.get(name) in {None, *installed}]
    wanted = f"intarsia[{','.join(extras)}]"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", wanted]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Would install" not in done.stdout
    assert "does not provide the extra" not in done.stdout + done.stderr
