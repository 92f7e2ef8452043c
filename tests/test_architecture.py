# SPDX-License-Identifier: Apache-2.0
"""What the page on architecture and the code map say is so, and two recipes lead where they say."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "intarsia"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")

RUNS_SOFTSIGN = """
import logging
import numpy as np, onnx
import intarsia
model = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 20]>'
    'g (float[4] x) => (float[4] y) { a = Neg(x) y = Softsign(a) }'
)
x = np.array([-2, -0.5, 0.5, 2], np.float32)
exe = intarsia.compile(model, "llvm, reference", num_threads=1, cache=False)
np.testing.assert_allclose(exe.run({"x": x})["y"], -x / (1 + abs(x)), 1e-6)
print([region.target.split()[0] for region in exe.placement.regions])
"""

SHOWS_A_TARGET = """
from intarsia.target import Target, list_kinds
target = Target("toaster -slices=2")
assert "toaster" in list_kinds(all=True)
assert Target(str(target)) == target
print(target.attrs["slices"], target.device_type.name, target.kind.refines)
"""

KIND = """
[toaster]
device_type = "CPU"
is_complete = false
refines = ["*"]
default_keys = ["cpu"]
help = "bread"
[toaster.attrs]
slices = { type = "int", minimum = 1, help = "at once" }
"""


@pytest.fixture
def scratch(tmp_path):
    """A copy of the sources."""
    shutil.copytree(SOURCE, tmp_path / "intarsia", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "intarsia"


def python(scratch, code):
    """Return what code prints that imports a copy of the sources, with caches of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(scratch.parent),
        "INTARSIA_CACHE_DIR": str(scratch.parent / "cache"),
    }
    check = f"import intarsia; assert intarsia.__file__.startswith({str(scratch)!r})\n"
    command = [sys.executable, "-c", check + code]
    done = subprocess.run(
        command, env=environment, cwd=scratch.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def recipe(title):
    """Return the part of the page under a recipe's title."""
    return PAGE.partition(f"**{title}**")[2].partition("\n**Add ")[0]


def test_an_operator_is_a_row(scratch):
    """The row of an operator is taken away, and put back as the recipe says."""
    name = "codegen/scalar_ops/arithmetic.py"
    assert f"`src/intarsia/{name}`" in recipe("Add an operator")
    file = scratch / name
    text = file.read_text("utf-8")
    (row,) = re.findall(r'^    "Softsign": .*\n', text, re.MULTILINE)
    file.write_text(text.replace(row, ""), "utf-8")
    assert python(scratch, RUNS_SOFTSIGN) == "['llvm', 'reference']"
    new = '    "Softsign": unary(lambda b, x: b.div(x, b.add(1.0, b.unary("abs", x))), FLOATS),\n'
    file.write_text(text.replace(row, new), "utf-8")
    assert python(scratch, RUNS_SOFTSIGN) == "['llvm']"


def test_a_target_kind_is_a_table(scratch):
    folder = "target/catalogue/kinds"
    assert f"`src/intarsia/{folder}/`" in recipe("Add a target kind")
    with (scratch / folder / "accelerators.toml").open("a", encoding="utf-8") as file:
        file.write(KIND)
    assert python(scratch, SHOWS_A_TARGET) == "2 CPU ('*',)"


@pytest.mark.parametrize("script", ["make_code_map.py", "measure_structure.py"])
def test_pages_that_scripts_write_are_up_to_date(script, tmp_path):
    arguments = {
        "make_code_map.py": ["--check", "docs/code_map.md"],
        "measure_structure.py": ["--check", "--page", "docs/architecture.md"],
    }
    command = [sys.executable, f"scripts/{script}", *arguments[script]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = f"run {' '.join(command[1:])} without --check\n{done.stderr[-2000:]}"
    assert done.returncode == 0, told


def test_the_page_draws_the_layers_of_the_contract():
    drawn = PAGE.partition("## Layers")[2].partition("```")[2].partition("```")[0]
    names = [
        re.split(r"\s{3,}", line)[0] for line in drawn.splitlines() if not line.startswith("-")
    ]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (layers,) = (item["layers"] for item in settings["contracts"] if item["type"] == "layers")
    rows = [re.findall(r"\w+", name) for name in names if name]
    assert rows == [re.findall(r"\w+", row) for row in layers]


def test_a_class_name_has_one_meaning():
    """Private and nested classes count too: who reads a name need not ask in which module."""
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in re.findall(r"^ *class (\w+)[(:\[]", path.read_text("utf-8"), re.MULTILINE):
            places[name].append(path.relative_to(SOURCE).as_posix())
    assert {"Target", "Graph", "_Scope"} <= places.keys()
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_path_of_the_page_is_there():
    paths = re.findall(r"`(\w+/[\w/]*(?:\.py|\.toml|\.md)?)`", PAGE)
    assert paths
    paths = [path for path in paths if "NAME" not in path]
    missing = [path for path in paths if not ((ROOT / path).exists() or (SOURCE / path).exists())]
    assert missing == []
    life = PAGE.partition("## The life")[2].partition("```")[2].partition("```")[0]
    for path in re.findall(r"[\w/]+\.py", life):
        assert (SOURCE / path).exists(), path
