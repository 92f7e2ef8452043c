# SPDX-License-Identifier: Apache-2.0
"""Labels: names for placed targets that inherit, in files, and wherever a target is."""

import pytest

import intarsia
from intarsia.errors import TargetError
from intarsia.target import (
    CompilationConfig,
    PlacedTarget,
    Target,
    add_target_file,
    load_labels,
    register_tag,
)
from intarsia.target.labels import list_labels

LABELS = """\
[targets.gpu]
kind = "opencl"
device = "mali"

[targets.gpu2]
inherits = "gpu"
device_id = 1

[targets]
cpu = "llvm -mcpu=haswell"
"""


@pytest.fixture
def labels(project):
    """A project with two GPUs and a CPU."""
    (project / "intarsia.toml").write_text(LABELS)
    return project


def refused(call, *args, **options):
    with pytest.raises(TargetError) as caught:
        call(*args, **options)
    return str(caught.value)


def test_a_label_inherits_all_but_what_it_says_itself(labels):
    config = CompilationConfig.resolve("gpu2, gpu, cpu")
    assert config.targets == tuple(
        PlacedTarget.parse(text)
        for text in ("opencl:1 -device=mali", "opencl -device=mali", "llvm -mcpu=haswell")
    )
    assert list_labels() == ("cpu", "gpu", "gpu2")


def test_labels_are_usable_wherever_a_target_is(labels):
    text = CompilationConfig.resolve("gpu2, cpu")
    assert CompilationConfig.resolve(["gpu2", "cpu"]) == text
    assert CompilationConfig.resolve(["gpu2", Target("llvm -mcpu=haswell")]) == text
    assert CompilationConfig.resolve('["gpu2", "cpu"]') == text
    assert CompilationConfig.resolve({"targets": ["gpu2", "cpu"]}) == text
    assert CompilationConfig.resolve({"opencl:1": "gpu", "cpu": "cpu"}) == text
    assert CompilationConfig.resolve("gpu2, llvm", host="cpu").host == Target("llvm -mcpu=haswell")


def test_pins_and_annotations_may_name_a_label(labels):
    config = CompilationConfig.resolve("opencl -device=mali, opencl:1 -device=mali, llvm")
    assert config.find("gpu2") == config.targets[1]
    assert config.find("gpu") == config.targets[0]
    assert "label 'cpu' is not among the targets" in refused(config.find, "cpu")
    assert "'gpu3' means none of the targets" in refused(config.find, "gpu3")


def test_annotations_and_pins_of_a_compiled_model_may_name_a_label(project, chain_model):
    (project / "intarsia.toml").write_text(
        '[targets]\nbasic = "onnxruntime -graph_optimization=basic"\n'
        '[targets.plain]\ninherits = "basic"\ngraph_optimization = "none"\n'
    )
    first = chain_model.graph.node[0].name
    annotated = intarsia.on_device(chain_model, {first: "plain"})
    for model, pins in ((annotated, {}), (chain_model, {first: "plain"})):
        exe = intarsia.compile(model, "basic, plain", pins=pins)
        used = {str(region.target) for region in exe.placement.regions}
        assert used == {
            "onnxruntime -graph_optimization=basic", "onnxruntime -graph_optimization=none",
        }  # fmt: skip


def test_the_second_of_two_gpus_needs_no_label():
    config = CompilationConfig.resolve("opencl:1, opencl, llvm")
    assert [item.device_id for item in config.targets] == [1, 0, 0]
    assert config.targets[0] == PlacedTarget.parse("opencl -device_id=1")


def test_labels_given_by_the_program_win(labels):
    own = {"gpu2": PlacedTarget.parse("cuda:3")}
    config = CompilationConfig.resolve("gpu2, llvm", labels=own)
    assert str(config.targets[0]) == "cuda:3"


def test_a_label_takes_no_options(labels):
    message = refused(CompilationConfig.resolve, "gpu2 -model=x, llvm")
    assert "a label takes no options: 'gpu2 -model=x'" in message


def test_a_label_is_no_target_of_its_own(labels):
    message = refused(Target, "gpu2")
    assert "'gpu2' is a label" in message
    assert "'gpu' is a label" in refused(CompilationConfig.resolve, "gpu:1, llvm")
    assert "'gpu2' is a label, defined at " in refused(register_tag, "gpu2", "cuda")


def test_a_file_of_labels_is_a_machine_too(labels):
    assert CompilationConfig.resolve("intarsia.toml").targets == (
        PlacedTarget.parse("opencl -device=mali"),
        PlacedTarget.parse("opencl:1 -device=mali"),
        PlacedTarget.parse("llvm -mcpu=haswell"),
    )
    assert load_labels("intarsia.toml")["gpu2"] == PlacedTarget.parse("opencl:1 -device=mali")


def test_files_inherit_from_one_another(labels):
    more = labels / "more.toml"
    more.write_text('[targets.gpu3]\ninherits = "gpu2"\ndevice_id = 2\n')
    CompilationConfig.resolve("gpu, cpu")  # reads the project's file
    add_target_file(more)
    config = CompilationConfig.resolve("gpu3, cpu")
    assert config.targets[0] == PlacedTarget.parse("opencl:2 -device=mali")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            '[targets.a]\ninherits = "b"\n[targets.b]\ninherits = "d"\n[targets.d]\ninherits = "a"',
            6,
            "label 'a' inherits from itself: a -> b -> d -> a",
        ),
        ('[targets.a]\n\ninherits = "a"', 3, "label 'a' inherits from itself: a -> a"),
        (
            '[targets]\nbe = "llvm"\n[targets.a]\ndevice_id = 1\ninherits = "bee"',
            5,
            "there is no label 'bee' for 'a' to inherit from\nhint: did you mean 'be'",
        ),
        ('[targets.a]\ninherits = ["b"]', 2, "there is no label ['b']"),
        ('[targets]\ncuda = "llvm"', 2, "label 'cuda' is the name of a target kind"),
        ('[targets]\n"aws/c5" = "llvm"', 2, "label 'aws/c5' is the name of a tag"),
        ('[targets]\n"a,b" = "llvm"', 2, "label 'a,b' cannot be a name\nhint: avoid commas"),
        ('[targets]\n"a:1" = "llvm"', 2, "label 'a:1' cannot be a name"),
        ('[targets.a]\nkind = "llvm"\ndevice_id = -1', 1, "label 'a': device_id: expects"),
        ('[targets]\na = "llvm"\n\nb = "nosuch"', 4, "label 'b': target kind 'nosuch'"),
        (
            '[targets]\na = "llvm"\n[targets.b]\ninherits = "a"\nkind = "cuda"',
            5,
            "label 'b' has another kind than 'a', which it inherits from",
        ),
        (
            '[targets]\na = "cuda"\n[targets.b]\ninherits = "a"\ntag = "nvidia/v100"',
            5,
            "label 'b' builds on a label and on a tag",
        ),
        (
            '[targets]\na = "cuda"\n[targets.b]\ninherits = "a"\nmattr = ["+x"]',
            3,
            "label 'b': kind 'cuda' has no attribute 'mattr'",
        ),
        ('[targets]\na = "llvm"\n[labels]\na = "llvm"', 4, "in [targets] and in [labels]"),
    ],
)
def test_a_bad_label_is_refused_at_its_line(project, text, line, words):
    file = project / "bad.toml"
    file.write_text(text)
    message = refused(add_target_file, file)
    assert message.startswith(f"{file}:{line}: ")
    assert words in message


def test_a_bad_label_of_a_machine_s_file_is_refused_at_its_line(project):
    (project / "machine.toml").write_text(
        'targets = ["a"]\n[labels]\na = "llvm"\nb = {inherits = "c"}\n'
    )
    message = refused(CompilationConfig.resolve, "machine.toml")
    assert message.startswith("machine.toml:4: there is no label 'c'")
    (project / "table.toml").write_text('[targets.a]\ninherits = "b"\n')
    message = refused(CompilationConfig.resolve, "table.toml")
    assert message.startswith("table.toml:2: there is no label 'b'")


def test_two_files_cannot_define_one_label(labels):
    more = labels / "more.toml"
    more.write_text('[targets]\ngpu = "cuda"\n')
    CompilationConfig.resolve("gpu, cpu")
    message = refused(add_target_file, more)
    assert message.startswith(f"{more}:2: label 'gpu' is defined at ")
    assert f"{labels / 'intarsia.toml'}:1 already" in message


def test_a_saved_config_needs_no_file(labels):
    config = CompilationConfig.resolve("gpu2, cpu")
    items = config.to_json()
    (labels / "intarsia.toml").unlink()
    assert CompilationConfig.from_json(items) == config
    assert set(items["labels"]) == {"gpu2", "cpu"}  # those that were used
