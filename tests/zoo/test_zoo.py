# SPDX-License-Identifier: Apache-2.0
"""The zoo keeps its word: named, repeatable, valid networks that compute something."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from intarsia import zoo
from intarsia.errors import ModelError
from intarsia.zoo.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("densenet121", "resnet50", "squeezenet")
build = cache(zoo.build)


def names_of(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def test_models_lists_every_network() -> None:
    assert zoo.models() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_valid_and_holds_its_weights_as_initializers(name: str) -> None:
    model = build(name)
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["data"]
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}
    used = {value for node in model.graph.node for value in node.input}
    assert all(tensor.name in used for tensor in model.graph.initializer)


@pytest.mark.parametrize(("name", "megabytes"), [("densenet121", 32.7), ("resnet50", 102.5)])
def test_a_model_has_the_published_size(name: str, megabytes: float) -> None:
    assert build(name).ByteSize() / 1e6 == pytest.approx(megabytes, rel=0.01)


def test_a_seed_decides_every_byte() -> None:
    first = zoo.build("squeezenet", seed=3).SerializeToString()
    assert zoo.build("squeezenet", seed=3).SerializeToString() == first
    assert zoo.build("squeezenet", seed=4).SerializeToString() != first


@pytest.mark.parametrize(
    ("name", "pattern", "count"),
    [
        ("densenet121", r"block[1-4]/layer\d+/conv[12]", 2 * (6 + 12 + 24 + 16)),
        ("densenet121", r"transition[123]/(bn|conv|pool)", 9),
        ("densenet121", r"head/(bn|scale|shift|relu|pool|fc)", 6),
        ("resnet50", r"layer4/.*", 32),
        ("resnet50", r"layer[1-4]/\d/add", 3 + 4 + 6 + 3),
        ("resnet50", r"layer[1-4]/0/downsample/(conv|bn)", 8),
        ("resnet50", r"stem/(conv|bn|relu|pool)|head/(pool|flatten|fc|softmax)", 8),
        ("squeezenet", r"fire[2-9]/(squeeze1x1|expand1x1|expand3x3|concat)", 32),
        ("squeezenet", r"stem/(conv|relu|pool)|head/(conv|relu|pool|softmax)", 7),
    ],
)
def test_node_names_follow_the_structure(name: str, pattern: str, count: int) -> None:
    names = names_of(build(name))
    assert len(set(names)) == len(names)
    assert sum(re.fullmatch(pattern, node) is not None for node in names) == count


@pytest.mark.parametrize("name", NAMES)
def test_outputs_vary_over_classes_and_with_the_input(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        build(name).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(1)
    images = rng.standard_normal((2, 1, 3, 224, 224)).astype(np.float32)
    first, second = (session.run(None, {"data": image})[0].ravel() for image in images)
    if name != "densenet121":  # the two that end in a softmax are neither one-hot nor uniform
        assert first.sum() == pytest.approx(1, abs=1e-4)
        assert 2e-3 < first.max() < 0.5
        first, second = np.log(first), np.log(second)
    assert np.isfinite(first).all()
    assert 0.2 < first.std() < 5
    assert (first - second).std() > 0.3 * first.std()


def test_an_unknown_network_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelError, match="'lenet'") as caught:
        zoo.build("lenet")
    assert all(name in str(caught.value) for name in NAMES)


def test_a_negative_seed_is_an_error() -> None:
    with pytest.raises(ModelError, match="seed -1 is negative"):
        zoo.build("squeezenet", seed=-1)


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


def test_the_command_lists_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == list(NAMES)


def test_the_command_refuses_an_unknown_name_before_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["squeezenet", "lenet", "--out", str(tmp_path)]) == 2
    assert "hint: choose from densenet121" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_names_a_folder_that_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    assert main(["squeezenet", "--out", str(tmp_path / "taken")]) == 2
    assert "cannot write" in capsys.readouterr().err
