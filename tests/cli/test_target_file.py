# SPDX-License-Identifier: Apache-2.0
"""`--target-file`, `INTARSIA_TARGETS` and `intarsia.toml` on the command line."""

import pytest

from intarsia.target.registry import REGISTRY
from intarsia.target.user_files import UserFiles

LABELS = """\
[tags]
"lab/quick" = "onnxruntime -graph_optimization=basic"

[targets]
here = "lab/quick"

[targets.alone]
inherits = "here"
num_threads = 1
"""


@pytest.fixture
def labels(folder, monkeypatch):
    """`labels.toml` in the current folder of a process that has read no file of the user's."""
    monkeypatch.delenv("INTARSIA_TARGETS", raising=False)
    monkeypatch.setattr(REGISTRY.tags, "files", UserFiles(REGISTRY.tags.check_new))
    (folder / "labels.toml").write_text(LABELS)
    return folder / "labels.toml"


ALONE = "onnxruntime -graph_optimization=basic -num_threads=1"


@pytest.mark.parametrize("command", ["compile", "run", "explain"])
def test_a_label_of_a_file_is_compiled_for(call, model, labels, command):
    arguments = (command, model, "-t", "alone", "--target-file", labels, "--json")
    answer = call(*arguments)
    assert answer.code == 0, answer.err
    assert ALONE in call("explain", model, "-t", "alone", "--target-file", labels, "--all").out


def test_pins_may_name_labels(call, model, labels):
    arguments = ("explain", model, "-t", "alone, here", "--target-file", labels)
    assert "5 on onnxruntime -graph_optimization=basic -num_threads=1" in call(*arguments).out
    answer = call(*arguments, "--pin", "*=here")
    assert answer.code == 0, answer.err
    assert "5 on onnxruntime -graph_optimization=basic\n" in answer.out


def test_target_commands_know_the_file(call, labels):
    shown = call("target", "show", "lab/quick", "--target-file", labels, "--json")
    assert shown.json["target"]["tags"] == ["lab/quick"]
    rows = call("target", "list", "--tags", "--target-file", labels, "--json").json["tags"]
    assert "lab/quick" in [row["name"] for row in rows]
    same = call("target", "diff", "alone", f"{ALONE} -host=llvm", "--target-file", labels)
    assert same.code == 1
    assert "host" in same.out


def test_the_environment_and_the_project_need_no_option(call, labels, monkeypatch):
    monkeypatch.setenv("INTARSIA_TARGETS", "labels.toml")
    (labels.parent / "intarsia.toml").write_text('[targets]\ntwo = "onnxruntime"\n')
    assert call("target", "show", "lab/quick").code == 0
    assert call("target", "show", "two").code == 0


def test_a_bad_file_is_bad_input_with_its_line(call, labels):
    labels.write_text('[targets.a]\ninherits = "b"\n')
    answer = call("target", "show", "llvm", "--target-file", labels)
    assert answer.code == 2
    assert f"error: {labels}:2: there is no label 'b' for 'a' to inherit from" in answer.err
    assert call("target", "show", "llvm", "--target-file", "missing.toml").code == 2


def test_doctor_reads_the_files(call, labels, monkeypatch):
    monkeypatch.setenv("INTARSIA_TARGETS", "labels.toml")
    settings = {row["name"]: row for row in call("doctor", "--json").json["settings"]}
    assert settings["target_files"]["value"] == "labels.toml"
    monkeypatch.setattr(REGISTRY.tags, "files", UserFiles(REGISTRY.tags.check_new))
    labels.write_text('[targets]\nllvm = "cuda"\n')
    problems = [row["problem"] for row in call("doctor", "--json").json["problems"]]
    assert "labels.toml:2: label 'llvm' is the name of a target kind" in problems


def test_doctor_says_how_to_name_the_second_gpu(call, folder):
    assert "opencl:1 is the second" in call("doctor").out


def test_a_file_may_inherit_from_one_given_after_it(call, labels):
    heir = labels.parent / "heir.toml"
    heir.write_text('[targets.heir]\ninherits = "alone"\nnum_threads = 3\n')
    files = ("--target-file", heir, "--target-file", labels)
    view = call("target", "show", "heir", *files, "--json").json["target"]
    assert "-num_threads=3" in view["text"]


def test_labels_are_listed(call, labels):
    labels.write_text(f'{LABELS}\n[targets.far]\nkind = "cuda"\ndevice_id = 1\n')
    listing = ("target", "list", "--labels", "--target-file", labels)
    texts = {row["name"]: row["target"] for row in call(*listing, "--json").json["labels"]}
    assert texts["far"] == "cuda:1"
    assert texts["here"].startswith("onnxruntime -graph_optimization=basic")
    usable = call(*listing, "--usable", "--json").json["labels"]
    assert [row["name"] for row in usable] == ["alone", "here"]
    assert ["far", "cuda:1"] in [line.split() for line in call(*listing).out.splitlines()]
