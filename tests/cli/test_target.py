# SPDX-License-Identifier: Apache-2.0
"""`intarsia target`."""

import ast
import itertools
import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
import pytest
from tests import opencl, webgpu

from intarsia.backends.ort_ep.providers import PROVIDERS
from intarsia.report.differences import find_differences
from intarsia.target import (
    CompilationConfig,
    PlacedTarget,
    Target,
    get_kind,
    list_kinds,
    list_tags,
)


def test_show_prints_the_canonical_text(call):
    answer = call("target", "show", "llvm  -mattr=+neon,-fp16 -mcpu=cortex-a72")
    assert answer.code == 0
    assert str(Target("llvm -mattr=+neon,-fp16 -mcpu=cortex-a72")) in answer.out


def test_show_as_json_makes_the_target_again(call):
    text = "openvino:1 -precision=bf16"
    view = call("target", "show", text, "--json").json["target"]
    assert view["text"] == text
    assert view["ordinal"] == 1
    assert not view["is_complete"]
    assert view["pipeline"]
    attributes = {item["name"]: item["value"] for item in view["attributes"]}
    assert attributes["precision"] == "bf16"
    assert attributes["num_threads"] is None


@pytest.mark.parametrize("text", ["openvino, onnxruntime", "acl", '["openvino", "onnxruntime"]'])
def test_show_of_several_targets_is_the_machine(call, text):
    view = call("target", "show", text, "--json").json["config"]
    config = CompilationConfig.resolve(text)
    assert view["text"] == config.text
    assert view["fallback"] == str(config.fallback)
    assert CompilationConfig.from_json(view["json"]) == config
    assert view["default_device"] == "cpu:0"
    assert call("target", "show", text).code == 0


def test_show_tells_which_backend_serves_a_target(call):
    answer = call("target", "show", "onnxruntime, rocm", "--json")
    first, second = (row["availability"] for row in answer.json["config"]["targets"])
    assert first["backend"] == "onnxruntime"
    assert first["version"]
    assert second["version"] is None
    assert "no backend" in second["reason"]


def test_show_of_an_unknown_target_suggests_one(call):
    answer = call("target", "show", "onnxrutime", "--json")
    assert answer.code == 2
    assert "did you mean 'onnxruntime'?" in answer.err
    error = answer.json["error"]
    assert error["type"] == "TargetError"
    assert error["target"] == "onnxrutime"


def test_show_of_an_unknown_attribute_names_it(call):
    answer = call("target", "show", "onnxruntime -threads=2")
    assert answer.code == 2
    assert "no attribute 'threads'" in answer.err


def test_list_hides_what_is_for_tests(call):
    shown = {kind["name"]: kind for kind in call("target", "list", "--json").json["kinds"]}
    every = [kind["name"] for kind in call("target", "list", "--all", "--json").json["kinds"]]
    assert shown["onnxruntime"]["is_complete"]
    assert shown["openvino"]["is_complete"] is False
    assert "fake" not in shown
    assert {"fake", "reference"} <= set(every) - set(shown)
    assert set(every) == set(list_kinds(all=True))


def test_list_shows_tags(call):
    answer = call("target", "list")
    assert answer.code == 0
    assert "raspberry-pi/4b-aarch64" in answer.out
    assert "…" not in answer.out


@pytest.mark.parametrize(
    ("options", "sections"),
    [
        ([], ["kinds", "tags", "labels"]),
        (["--kinds"], ["kinds"]),
        (["--tags"], ["tags"]),
        (["--labels", "--kinds"], ["kinds", "labels"]),
    ],
)
def test_list_of_kinds_tags_or_labels(call, options, sections):
    assert list(call("target", "list", *options, "--json").json) == sections
    titles = call("target", "list", *options).out.splitlines()
    shown = [title for title in titles if title in ("kinds", "tags", "labels")]
    assert shown == [name for name in sections if name != "labels" or options]


def test_list_of_what_is_usable_here(call):
    found = call("target", "list", "--usable", "--json").json
    names = [kind["name"] for kind in found["kinds"]]
    devices = [one.__name__.split(".")[-1] for one in (opencl, webgpu) if one.has_device()]
    cross = ["arm_acl", "c", "cmsis-nn", "ethos-u"]  # they compile for other machines
    here = ["dnnl", "llvm", "ncnn", "onnxruntime", *devices, "openvino", "xnnpack"]
    interfaces = {"vulkan", "metal"} & {one.backend for one in webgpu.every_device()}
    providers = {
        kind
        for kind, one in PROVIDERS.items()
        if one.name in onnxruntime.get_available_providers()
        or (one.module and find_spec(one.module) is not None)
    }
    assert set(names) - PROVIDERS.keys() == {*cross, *here, *interfaces}
    assert set(names) & PROVIDERS.keys() <= providers
    every = {tag["name"] for tag in call("target", "list", "--tags", "--json").json["tags"]}
    usable = {tag["name"] for tag in found["tags"]}
    assert usable < every
    assert "nvidia/v100" not in usable


@pytest.mark.parametrize(
    "text",
    ["openvino:1 -precision=bf16", "aws/p3", "openvino, onnxruntime", "acl, llvm -mattr=+neon"],
)
def test_show_as_toml_is_a_file_that_means_the_same(call, folder, text):
    answer = call("target", "show", text, "--toml")
    assert answer.code == 0
    (folder / "machine.toml").write_text(answer.out)
    (again,) = call("target", "show", "machine.toml", "--json").json.values()
    (shown,) = call("target", "show", text, "--json").json.values()
    assert again["json"] == shown["json"]
    assert again["text"] == shown["text"]


def test_toml_and_json_exclude_each_other(call):
    answer = call("target", "show", "llvm", "--toml", "--json")
    assert answer.code == 2
    assert "exclude each other" in answer.err


def test_show_lists_features_host_and_pipeline(call):
    answer = call("target", "show", "cuda -arch=sm_80 -host='llvm -mcpu=cortex-m55'")
    assert answer.code == 0
    assert "cortex-m55" in answer.out
    assert "pipeline\n  before placement: remove-unused" in answer.out
    features = call("target", "show", "llvm -mcpu=cortex-m55", "--json").json["target"]["features"]
    assert features["has_mve"] is True


def _fact(answer, name):
    (line,) = (line for line in answer.out.splitlines() if line.split(None, 1)[:1] == [name])
    return line.split(None, 1)[1].strip()


def test_show_tells_what_a_target_has_lacks_and_misses(call):
    answer = call("target", "show", "cuda -arch=sm_70")
    assert "compute_capability=70, has_integer_dot_product" in _fact(answer, "features")
    assert _fact(answer, "without") == "has_bf16, has_fp8"
    answer = call("target", "show", "cuda")
    assert _fact(answer, "missing") == "-arch= is needed before code can be generated"
    answer = call("target", "show", "llvm -mcpu=cake")
    assert "no table has this CPU" in _fact(answer, "unknown")
    assert "avx2, " in _fact(call("target", "show", "llvm -mcpu=haswell"), "isa")


def test_show_of_plain_llvm_is_what_is_compiled_on_this_machine(call, fixed_cpu):
    answer = call("target", "show", "llvm")
    assert _fact(answer, "target") == "llvm"
    assert _fact(answer, "resolved") == f"{fixed_cpu}, as on this machine"
    view = call("target", "show", "llvm", "--json").json["target"]
    assert view["resolved"] == fixed_cpu
    assert view["features"]["vector_width"] == 256
    assert view["json"] == {"kind": "llvm", "keys": ["cpu"], "device_id": 0}
    assert call("target", "show", "onnxruntime", "--json").json["target"]["resolved"] is None
    other = call("target", "show", "llvm -mattr=+neon")
    assert _fact(other, "unresolved") == "not this machine: only other architectures have neon"


def test_show_takes_a_host(call):
    old = call("target", "show", "cuda", "--target-host", "llvm -mcpu=haswell", "--json").json
    view = call("target", "show", "cuda", "--host", "llvm -mcpu=haswell", "--json").json["config"]
    assert old["config"] == view
    assert (view["text"], view["host"]) == ("cuda -host='llvm -mcpu=haswell'", "llvm -mcpu=haswell")


def test_show_writes_values_as_one_would_type_them(call):
    answer = call("target", "show", "cuda -arch=sm_80 -compiler=tensorrt")
    assert _fact(answer, "base").startswith("'cuda -arch=sm_80' ")
    assert _fact(answer, "use_fp16").startswith("false ")
    attributes = call("target", "show", "tensorrt -base=cuda", "--json").json["target"][
        "attributes"
    ]
    base = next(item for item in attributes if item["name"] == "base")
    assert (base["text"], base["value"]["kind"]) == ("cuda", "cuda")


def test_show_of_a_list_says_what_was_resolved_and_why(call):
    text = "openvino, onnxruntime"
    answer = call("target", "show", text)
    for line in str(CompilationConfig.resolve(text)).splitlines():
        assert line in answer.out


def test_diff_lists_what_differs_and_nothing_else(call):
    answer = call(
        "target",
        "diff",
        "cuda -arch=sm_80 -max_num_threads=512 -host='llvm -num-cores=4'",
        "cuda:1 -arch=sm_70 -max_num_threads=512 -host='llvm -num-cores=8 -opt-level=2'",
        "--json",
    )
    assert answer.code == 1
    found = {item["name"]: (item["left"], item["right"]) for item in answer.json["differences"]}
    assert {name: pair for name, pair in found.items() if "features" not in name} == {
        "device_id": (0, 1),
        "arch": ("sm_80", "sm_70"),
        "host.num-cores": (4, 8),
        "host.opt-level": (None, 2),
    }


def test_diff_prints_a_row_for_each_attribute(call):
    answer = call("target", "diff", "onnxruntime -num_threads=2", "onnxruntime")
    assert answer.code == 1
    first, *rest = filter(None, answer.out.splitlines())
    assert first.split() == ["attribute", "onnxruntime", "-num_threads=2", "onnxruntime"]
    assert [line.split() for line in rest if "num_threads" in line] == [["num_threads", "2", "-"]]


def test_diff_shows_of_two_lists_what_the_other_lacks(call):
    answer = call("target", "diff", "llvm -mattr=+neon,+fp16", "llvm -mattr=+fp16,+sve,+dotprod")
    rows = [line.split() for line in answer.out.splitlines()]
    assert ["mattr", "+neon", "+sve,", "+dotprod"] in rows
    order = call("target", "diff", "llvm -keys=a,b", "llvm -keys=b,a")
    assert ["keys", "a,", "b", "b,", "a"] in [line.split() for line in order.out.splitlines()]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("nvidia/v100", str(Target("nvidia/v100"))),
        ("llvm -libs=b,a", "llvm -libs=a,b"),
        ("cuda -compiler=tensorrt, llvm", "tensorrt -base=cuda, cuda, llvm"),
        ('{"kind": "opencl", "device_id": 1}', "opencl:1"),
    ],
)
def test_diff_of_equal_targets_prints_nothing(call, left, right):
    assert call("target", "diff", left, right) == (0, "", "")


def test_targets_differ_in_an_attribute_if_and_only_if_they_are_not_equal():
    names = [*list_tags()[::20], "openvino:1", "openvino -precision=bf16", "llvm -libs=b,a"]
    placed = [PlacedTarget.parse(name) for name in names]
    for left, right in itertools.product(placed, placed):
        assert (left == right) == (not find_differences(left, right)), (left, right)
    machines = [CompilationConfig.resolve([item, "llvm", "cuda"]) for item in placed[-2:]]
    for left, right in itertools.product(machines, machines):
        assert (left == right) == (not find_differences(left, right)), (left, right)


def test_diff_of_machines_goes_target_by_target(call):
    answer = call("target", "diff", "openvino, onnxruntime", "dnnl, onnxruntime", "--json")
    assert answer.code == 1
    names = [item["name"] for item in answer.json["differences"]]
    assert "targets[0].kind" in names
    assert not any(name.startswith("targets[1]") for name in names)


def test_detect_prints_one_line_that_a_shell_reads_as_one_word(call, model):
    answer = call("target", "detect")
    assert answer.code == 0
    (line,) = answer.out.splitlines()
    (text,) = shlex.split(line)
    kinds = [item.split()[0] for item in text.split(", ")]
    assert kinds == ["llvm", "openvino", "onnxruntime", "dnnl"]
    given = call("explain", model, "-t", text)
    assert given.code == 0
    assert given.out == call("explain", model).out


def test_detect_as_json(call):
    answer = call("target", "detect", "--json")
    assert answer.code == 0
    assert answer.json["text"] == answer.json["config"]["text"]
    assert answer.json["text"].endswith("openvino, onnxruntime, dnnl")
    missing = [backend["backend"] for backend in answer.json["missing"]]
    assert set(missing) - {"cublas", "cuda", "cudnn", "cutlass", "opencl", "webgpu"} == {
        "arm_acl",
        "c",
        "cmsis-nn",
        "ethos-u",
        "ort-ep",
    }
    assert ("opencl" in missing) == (not opencl.has_device())
    assert ("webgpu" in missing) == (not webgpu.has_device())


def test_an_error_points_at_the_column(call):
    text = "llvm -mcpu=cortex-a72 -matr=+neon, onnxruntime"
    answer = call("target", "show", text)
    assert answer.code == 2
    lines = answer.err.splitlines()
    carets = next(i for i, line in enumerate(lines) if set(line.strip()) == {"^"})
    shown = lines[carets - 1]
    start, end = lines[carets].index("^"), lines[carets].rindex("^") + 1
    assert text in shown
    assert "matr" in shown[start:end]
    assert any("did you mean 'mattr'" in line for line in lines)


class Completion:
    """What the shell is told at a tab, through the program's own entry for shells."""

    def __init__(self, capsys, monkeypatch):
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *words, shell="bash"):
        from intarsia.cli.program import app

        line = shlex.join(("intarsia", *words))
        self.monkeypatch.setenv("_INTARSIA_COMPLETE", f"complete_{shell}")
        self.monkeypatch.setenv("COMP_WORDS", line)
        self.monkeypatch.setenv("COMP_CWORD", str(len(words)))
        self.monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        self.monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            app([], prog_name="intarsia")
        assert caught.value.code in (0, None)
        return [line for line in self.capsys.readouterr().out.splitlines() if line]


@pytest.fixture
def complete(capsys, monkeypatch):
    return Completion(capsys, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        ("compile", "m.onnx", "-t"),
        ("run", "m.onnx", "--target"),
        ("explain", "m.onnx", "--host"),
        ("bench", "m.onnx", "-t"),
        ("target", "show"),
        ("target", "diff", "llvm"),
    ],
)
def test_kinds_are_completed_wherever_a_target_is_asked_for(complete, command):
    assert complete(*command, "onnxr") == ["onnxruntime"]


@pytest.mark.parametrize(
    ("begun", "ways"),
    [
        ("tensorr", ["tensorrt", "tensorrt-ort"]),
        ("nvidia/v", ["nvidia/v100"]),
        ("openvino, onnxr", ["openvino, onnxruntime"]),
        ("openvino -pre", ["openvino -precision="]),
        ("openvino -precision=b", ["openvino -precision=bf16"]),
        ("openvino:1 --pre", ["openvino:1 --precision="]),
        ("nvidia/v100 -ar", ["nvidia/v100 -arch="]),
        ("openvino, llvm -fast-math=f", ["openvino, llvm -fast-math=false"]),
        ("cuda -host=onnxr", ["cuda -host=onnxruntime"]),
        ("acl, cuda -host='llvm -mab", ["acl, cuda -host='llvm -mabi="]),
        ("cuda -host='llvm -mcpu=x' -ar", ["cuda -host='llvm -mcpu=x' -arch="]),
        ("acl, arm_cl -mod", ["acl, arm_cl -model="]),
        ("openvino -precision=bf16 -precision", []),
        ("nonsense -", []),
        ("openvino onnx", []),
        ("zzz", []),
    ],
)
def test_the_text_of_a_target_is_completed(complete, begun, ways):
    assert complete("compile", "m.onnx", "-t", begun) == ways


def test_kinds_and_tags_are_offered_and_what_is_hidden_is_not(complete):
    ways = complete("target", "show", "")
    assert ways == [*list_kinds(), *list_tags()]
    assert "fake" not in ways


def test_labels_of_the_project_are_completed(complete, folder):
    (folder / "intarsia.toml").write_text('[targets]\nboard-gpu = "opencl:1"\n')
    assert _completed_anew("board") == [("board-gpu", "opencl:1")]


def _completed_anew(begun):
    """Return how a text goes on in a process that has read no file of the user's yet."""
    program = (
        "import sys; from intarsia.cli.completion import complete_target; "
        "print(complete_target(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, begun], capture_output=True, text=True, check=True
    )
    return ast.literal_eval(done.stdout)


def test_a_broken_label_is_left_out_and_hides_nothing_else(complete, folder):
    (folder / "intarsia.toml").write_text(
        '[targets]\naaa = { inherits = "aab" }\naab = { inherits = "aaa" }\naac = "opencl:1"\n'
    )
    assert _completed_anew("aa") == [("aac", "opencl:1")]
    assert [way for way, _ in _completed_anew("onnxr")] == ["onnxruntime"]
    (folder / "intarsia.toml").write_text("[targets")
    assert [way for way, _ in _completed_anew("onnxr")] == ["onnxruntime"]
    assert [way for way, _ in _completed_anew("openvino -pre")] == ["openvino -precision="]


@pytest.mark.parametrize(
    ("begun", "ways"),
    [
        ("onnxr", ["onnxruntime:"]),
        ("openvino:pre", ["openvino:precision="]),
        ("openvino:precision=b", ["openvino:precision=bf16"]),
        ("nonsense:", []),
    ],
)
def test_attributes_of_kinds_are_completed(complete, begun, ways):
    for command in (("compile", "m.onnx"), ("bench", "m.onnx"), ("target", "show", "acl")):
        assert complete(*command, "--target-attr", begun) == ways


def test_every_completion_of_attributes_is_one_of_the_kind(complete):
    ways = complete("target", "show", "tensorrt -")
    names = {way.removeprefix("tensorrt -").removesuffix("=") for way in ways}
    assert names == set(get_kind("tensorrt").attrs)


def test_other_shells_are_shown_the_meaning(complete):
    lines = complete("target", "show", "onnxr", shell="fish")
    assert len(lines) == 1
    assert "onnxruntime" in lines[0]
    assert get_kind("onnxruntime").help in lines[0]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("word", "ways"),
    [("onnxr", ["onnxruntime"]), ('"openvino -prec', ["openvino -precision="])],
)
def test_bash_completes_by_the_script_that_the_program_prints(word, ways):
    script = """
        eval "$(intarsia --show-completion bash)"
        COMP_WORDS=(intarsia compile m.onnx -t "$WORD"); COMP_CWORD=4
        _intarsia_completion intarsia
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "WORD": word}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ways
