# SPDX-License-Identifier: Apache-2.0
"""A backend in a package of its own is found by its entry point, and used like a built-in one.

The package is installed as an installer would leave it: its modules and its metadata, in a folder
of its own. No build tool and no network are needed.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the installed package."""
    folder = tmp_path_factory.mktemp("site")
    package = HERE / "src" / "intarsia_plugin_example"
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    metadata = folder / f"{package.name}-{project['version']}.dist-info"
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    return folder


@pytest.fixture(scope="module")
def run(site, tmp_path_factory):
    """A function that runs a Python module where the package is installed."""
    folder = tmp_path_factory.mktemp("away")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    return call


def test_the_kind_of_a_plugin_is_listed(run):
    listed = run("intarsia", "target", "list")
    assert listed.returncode == 0, listed.stderr
    assert "plugin-kind" in listed.stdout


def test_the_command_line_compiles_for_the_kind_of_a_plugin(run, chain_model, tmp_path):
    model, package = tmp_path / "chain.onnx", tmp_path / "chain.intarsia"
    model.write_bytes(chain_model.SerializeToString())
    target = "plugin-kind, onnxruntime"
    compiled = run("intarsia", "compile", model, "-t", target, "-o", package)
    assert compiled.returncode == 0, compiled.stderr
    explained = run("intarsia", "explain", package, "--json")
    assert explained.returncode == 0, explained.stderr
    assert "plugin-kind" in json.dumps(json.loads(explained.stdout))
    ran = run("intarsia", "run", package)
    assert ran.returncode == 0, ran.stderr


def test_the_kit_passes_where_only_an_entry_point_leads_to_the_backend(run):
    done = run("pytest", HERE / "conformance.py", "-q", "-p", "no:cacheprovider", "-r", "f")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert " skipped" in done.stdout


def test_the_kit_runs_a_plugin_in_a_fresh_process(run):
    name = "test_conformance[processes-save_and_run_in_a_fresh_process]"
    done = run("pytest", f"{HERE / 'conformance.py'}::{name}", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
