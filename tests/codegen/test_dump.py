# SPDX-License-Identifier: Apache-2.0
"""`INTARSIA_DUMP`: what was generated, in files for people."""

import numpy as np
import pytest

import intarsia
from intarsia.errors import SettingError

NAMES = ("stem/conv:0", "stem relu", "between", "head")


@pytest.fixture
def model(parse_model):
    shape = "float[1, 16, 6, 6]"
    model = parse_model(
        f"g ({shape} x) => ({shape} y) {{ a = Mul(x, x) b = Relu(a) c = Selu(b) y = Mul(c, c) }}"
    )
    for node, name in zip(model.graph.node, NAMES, strict=True):
        node.name = name
    return model


def dumped(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_each_region_has_a_folder(model, tmp_path, monkeypatch, backends):
    monkeypatch.setenv("INTARSIA_DUMP", str(tmp_path / "new" / "folder"))
    target = "llvm, onnxruntime"
    exe = intarsia.compile(model, target, exclude={"llvm": "Selu"}, backends=backends)
    assert len(exe.placement.regions) == 3
    folders = sorted((tmp_path / "new" / "folder").iterdir())
    assert [folder.name.rpartition("-")[0] for folder in folders] == ["head", "stem_conv_0"]
    for folder in folders:
        kinds = sorted(path.suffix for path in folder.iterdir())
        assert kinds == [".ll", ".loop", ".s", ".txt"]
    stem = folders[1]
    assert "stem/conv:0 + stem relu" in (stem / "program.txt").read_text()
    (loop,) = stem.glob("*.loop")
    assert loop.name.startswith("0000-stem_conv_0+stem_relu")
    assert "parallel" in loop.read_text()
    assert "define void @" in next(stem.glob("*.ll")).read_text()
    assert "ret" in next(stem.glob("*.s")).read_text()


def test_the_same_model_is_dumped_to_the_same_files(model, tmp_path, monkeypatch, backends):
    monkeypatch.setenv("INTARSIA_DUMP", str(tmp_path))
    intarsia.compile(model, "llvm", backends=backends)
    first = {name: (tmp_path / name).read_bytes() for name in dumped(tmp_path)}
    intarsia.compile(model, "llvm", backends=backends)
    assert {name: (tmp_path / name).read_bytes() for name in dumped(tmp_path)} == first
    intarsia.compile(model, "llvm -mcpu=haswell", backends=backends)
    assert len(dumped(tmp_path)) == 2 * len(first)  # of another CPU beside it


def test_nothing_is_written_unless_asked(model, tmp_path, monkeypatch, backends):
    monkeypatch.delenv("INTARSIA_DUMP", raising=False)
    monkeypatch.chdir(tmp_path)
    exe = intarsia.compile(model, "llvm", backends=backends)
    exe(np.ones((1, 16, 6, 6), np.float32))
    assert dumped(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_error(model, tmp_path, monkeypatch, backends):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("INTARSIA_DUMP", str(tmp_path / "file"))
    with pytest.raises(SettingError, match="INTARSIA_DUMP"):
        intarsia.compile(model, "llvm", backends=backends)
