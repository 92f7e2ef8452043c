# SPDX-License-Identifier: Apache-2.0
"""Tags in the user's files: `--target-file`, `INTARSIA_TARGETS` and a project's `intarsia.toml`."""

import os

import pytest

from intarsia.errors import TargetError
from intarsia.target import CompilationConfig, Target, add_target_file, list_tags
from intarsia.target.source import read_source

TAGS = """\
# ours
[tags]
"lab/board" = "cuda -arch=sm_86"

[tags."lab/big"]
tag = "nvidia/v100"
max_num_threads = 512
"""


def refused(call, *args):
    with pytest.raises(TargetError) as caught:
        call(*args)
    return str(caught.value)


def test_a_project_s_file_is_found_above_the_working_directory(project, monkeypatch):
    (project / "intarsia.toml").write_text(TAGS)
    (project / "models" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "models" / "deep")
    assert Target("lab/board") == Target("cuda -arch=sm_86")
    big = Target("lab/big -registers_per_block=1")
    assert (big.attrs["max_num_threads"], big.attrs["registers_per_block"]) == (512, 1)
    assert big.tags == ("lab/big", "nvidia/v100")
    assert "lab/big" in list_tags()
    assert Target({"tag": "lab/board"}).tags == ("lab/board",)


def test_the_environment_lists_files(project, monkeypatch):
    (project / "a.toml").write_text('[tags]\n"a/one" = "llvm -mcpu=haswell"\n')
    (project / "b.json").write_text('{"tags": {"b/two": {"tag": "a/one", "num-cores": 2}}}')
    monkeypatch.setenv("INTARSIA_TARGETS", os.pathsep.join(("a.toml", "b.json")))
    assert Target("b/two").tags == ("b/two", "a/one")
    assert Target("b/two") == Target("llvm -mcpu=haswell -num-cores=2")


def test_a_file_can_be_added_and_read_again(project):
    file = project / "more.toml"
    file.write_text(TAGS)
    add_target_file(file)
    assert Target("lab/board").attrs["arch"] == "sm_86"
    file.write_text(TAGS.replace("sm_86", "sm_89"))
    add_target_file(str(file))
    assert Target("lab/board").attrs["arch"] == "sm_89"
    file.write_text('[tags]\n"lab/board" = "llvm"\n')
    add_target_file("more.toml")
    assert "lab/big" not in list_tags()


def test_the_project_s_file_may_be_added_too(project):
    file = project / "intarsia.toml"
    file.write_text(TAGS)
    add_target_file(file)
    assert Target("lab/board").kind.name == "cuda"
    assert "tag 'no/such' is not known" in refused(Target, "no/such")


def test_files_are_read_only_when_a_name_is_not_known_otherwise(project):
    (project / "intarsia.toml").write_text("broken [")
    assert Target("llvm -mcpu=haswell").kind.name == "llvm"
    assert Target("nvidia/v100").kind.name == "cuda"
    assert CompilationConfig.resolve("acl, llvm -mattr=+neon").fallback.target.kind.name == "llvm"
    for _ in range(2):  # it does not pass for read
        assert "intarsia.toml" in refused(Target, "lab/board")
        assert "line 1" in refused(CompilationConfig.resolve, "lab")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[tags]\nllvm = "cuda"', 2, "'llvm' is the name of a target kind"),
        ('[tags]\narm_cl = "cuda"', 2, "'arm_cl' is the name of a target kind"),
        ('[tags]\n\n"nvidia/v100" = "cuda"', 3, "'nvidia/v100' is the name of a tag"),
        ('[tags]\nacl = "cuda"', 2, "'acl' is the name of a tag"),
        ('[tags]\n"a b" = "cuda"', 2, "'a b' cannot be a name"),
        ('[tags]\nx = "cuda"\n\n[targets.x]\nkind = "llvm"', 4, "label 'x' is defined at"),
        ('[tags.x]\nkind = "cuda"\n[tags.y]\nkind = "nosuch"', 3, "kind 'nosuch' is not known"),
        ('[tags.x]\ntag = "y"\n[tags.y]\ntag = "x"', 3, "builds on itself: x -> y -> x"),
        ('[tags.x]\n# s\nkind = "cuda"\narchh = "sm_80"', 1, "no attribute 'archh'"),
        ('[tags.x]\nkind = "cuda"\ndevice_id = 1', 1, "device_id belongs to a placed target"),
        ('[tags]\nx = """\ncuda\n[tags.y]"""', 2, "'[tags.y]' at position"),
        ("[tags]\nx = 1", 2, "not int"),
        ('[tag.x]\nkind = "cuda"', 1, "there is no table 'tag'\nhint: did you mean 'tags'"),
        ('targets = ["llvm"]', 1, "'targets' has to be a table"),
        ('[tags]\nx = "cuda"\n[tags]\ny = "cuda"', None, "at line 3"),
    ],
)
def test_a_bad_file_is_refused_at_its_line(project, text, line, words):
    file = project / "bad.toml"
    file.write_text(text)
    message = refused(add_target_file, file)
    assert words in message
    assert line is None or message.startswith(f"{file}:{line}: ")


def test_two_files_cannot_define_one_name(project):
    for name in ("one.toml", "two.toml"):
        (project / name).write_text('[tags]\n"lab/x" = "llvm"\n')
    add_target_file("one.toml")
    message = refused(add_target_file, "two.toml")
    assert message.startswith("two.toml:2: tag 'lab/x' is defined at one.toml:2 already")
    assert Target("lab/x").kind.name == "llvm"


def test_a_machine_s_file_may_define_tags(project):
    (project / "machine.toml").write_text(
        'targets = ["lab/gpu:1", "here"]\nhost = "here"\n'
        '[tags]\n"lab/gpu" = "cuda -arch=sm_86"\n[labels]\nhere = "llvm -mcpu=haswell"\n'
    )
    config = CompilationConfig.resolve("machine.toml")
    assert [str(item.target.kind) for item in config.targets] == ["cuda", "llvm"]
    assert config.targets[0].target.tags == ("lab/gpu",)
    assert config.host.attrs["mcpu"] == "haswell"


@pytest.mark.parametrize("name", ["missing.toml", "wrong.txt"])
def test_a_file_that_cannot_be_read_is_named(project, name):
    (project / "wrong.txt").write_text("")
    assert name in refused(add_target_file, name)


def test_a_place_is_the_line_where_a_thing_begins(tmp_path):
    file = tmp_path / "lines.toml"
    file.write_text(
        'a = """\n[targets.b]\n"""\n\n[targets]\nc = [ # many\n  1,\n]\n'
        "[targets.b]\nd.e = 1\n[targets.b.f]\ng = 2\n"
    )
    source = read_source(file)
    lines = {
        ("a",): 1, ("targets",): 5, ("targets", "c"): 6, ("targets", "b"): 9,
        ("targets", "b", "d", "e"): 10, ("targets", "b", "f"): 11,
        ("targets", "b", "f", "g"): 12,
    }  # fmt: skip
    assert {names: source.place(*names) for names in lines} == {
        names: f"{file}:{line}" for names, line in lines.items()
    }
    assert source.place("nosuch") == str(file)
    file.write_text('a = "\u2028"\r\nb = 1\r\n', encoding="utf-8", newline="")
    assert read_source(file).place("b") == f"{file}:2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"targets": {"a": {"inherits": "b"}}}', "bad.json: there is no label 'b' for 'a'"),
        ('{"tags": {"lab/x": "nosuch"}}', "bad.json: target kind 'nosuch' is not known"),
        ('{"tags": {"a": "llvm", "a": "c"}}', "a: given twice"),
        ("[1]", "bad.json: expects tables tags, targets, labels"),
        ("{", "malformed JSON"),
    ],
)
def test_a_bad_json_file_is_refused_without_a_line(project, text, words):
    (project / "bad.json").write_text(text)
    assert words in refused(add_target_file, "bad.json")


def test_a_working_directory_that_is_gone_has_no_project(project, monkeypatch):
    gone = project / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "tag 'lab/x' is not known" in refused(Target, "lab/x")
    monkeypatch.chdir(project)


def test_a_missing_file_of_the_environment_is_named_when_it_matters(project, monkeypatch):
    monkeypatch.setenv("INTARSIA_TARGETS", "missing.toml")
    assert Target("aws/c5").kind.name == "llvm"
    assert "cannot read targets from 'missing.toml'" in refused(Target, "lab/x")
