# SPDX-License-Identifier: Apache-2.0
"""`python -m intarsia.zoo`: files, lists, errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from intarsia import zoo
from intarsia.zoo.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_command_writes_a_file_and_prints_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "made" / "squeezenet.onnx"
    assert main(["squeezenet", "--out", str(path.parent), "--seed", "3"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes() == zoo.build("squeezenet", seed=3).SerializeToString()


def test_the_command_reports_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["squeezenet", "--out", str(tmp_path), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    path = tmp_path / "squeezenet.onnx"
    size = path.stat().st_size
    assert entry == {"name": "squeezenet", "path": str(path), "seed": 0, "bytes": size}


def test_the_command_writes_a_random_network_under_a_portable_name(tmp_path: Path) -> None:
    assert main(["random:7", "--out", str(tmp_path)]) == 0
    data = (tmp_path / "random_7.onnx").read_bytes()
    assert data == zoo.build("random:7").SerializeToString()


def test_the_command_lists_names_parameters_and_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*zoo.models(), "random:SEED"]
    assert ["resnet50", "25,610,152", "data", "1x3x224x224"] in [line.split() for line in lines]
    (llama,) = (line for line in lines if line.startswith("llama_decode"))
    assert llama.endswith("input_ids 1x1, position_ids 1x1, past.0.key 1x4x128x64, 15 more")


def test_the_command_lists_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert tuple(entries) == zoo.models()
    assert entries["gpt2"]["inputs"] == {"input_ids": [1, 64]}


def test_the_command_refuses_a_random_network_without_a_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["random:x", "--out", str(tmp_path)]) == 2
    assert "'x' in 'random:x' is not the seed" in capsys.readouterr().err


def test_the_command_refuses_an_unknown_name_before_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["squeezenet", "lenet", "--out", str(tmp_path)]) == 2
    assert "choose from alexnet" in capsys.readouterr().err
    assert main(["squeeznet", "--out", str(tmp_path)]) == 2
    assert "hint: did you mean squeezenet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_names_a_folder_that_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    assert main(["squeezenet", "--out", str(tmp_path / "taken")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_command_writes_nothing_where_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path)]) == 2
    assert "hint: --list prints the names; --all writes all (3 GB)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_interrupted_command_says_so_and_leaves_no_half_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("intarsia.zoo.__main__.build", interrupt)
    assert main(["squeezenet", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.endswith("\ninterrupted\n")
    assert not list(tmp_path.iterdir())
