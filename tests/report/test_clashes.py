# SPDX-License-Identifier: Apache-2.0
"""The installation is described as it is."""

import pytest

from intarsia.report.health import find_clashes


@pytest.fixture
def install(tmp_path):
    """A function that lays down the metadata of a distribution."""

    def lay(name, version, requires=(), files=(), folder=tmp_path):
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
        return str(folder)

    return lay


def test_two_distributions_that_overwrite_one_another_clash(install):
    path = install("onnxruntime", "1.30.0", files=["onnxruntime/__init__.py"])
    install("onnxruntime-gpu", "1.30.0", files=["onnxruntime/__init__.py", "onnxruntime/cuda.so"])
    (clash,) = find_clashes([path])
    assert clash.problem == (
        "onnxruntime and onnxruntime-gpu overwrite one another's files in onnxruntime/"
    )
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in clash.fix


def test_distributions_with_files_of_their_own_do_not_clash(install):
    path = install("openvino", "2026.1", files=["openvino/__init__.py"])
    install("openvino-telemetry", "2025.1", files=["openvino_telemetry/__init__.py"])
    assert find_clashes([path]) == ()


def test_one_distribution_installed_twice_clashes(install, tmp_path):
    first = install("openvino", "2026.1", folder=tmp_path / "one")
    second = install("openvino", "2026.4", folder=tmp_path / "two")
    (clash,) = find_clashes([first, second])
    assert clash.problem == "openvino is installed 2 times: 2026.1, 2026.4"


def test_a_requirement_that_is_not_met_clashes(install):
    requires = ("numpy>=1.21.6,<2", "gone; extra == 'gpu'", "pandas; python_version < '3'")
    path = install("onnxruntime", "1.17.0", requires)
    install("numpy", "2.4.6")
    (clash,) = find_clashes([path])
    assert clash.problem == ("onnxruntime 1.17.0 needs numpy<2,>=1.21.6, and 2.4.6 is installed")
    assert clash.fix == "pip install 'numpy<2,>=1.21.6'"


def test_a_requirement_that_is_not_installed_clashes(install):
    (clash,) = find_clashes([install("onnxruntime", "1.17.0", ("numpy",))])
    assert "it is not installed" in clash.problem


def test_this_installation_fits_together():
    assert find_clashes() == ()
