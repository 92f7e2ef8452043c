# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from intarsia.errors import TargetError
from intarsia.target import (
    CompilationConfig,
    DeviceType,
    PlacedTarget,
    Target,
    VirtualDevice,
    get_kind,
    list_kinds,
    register_tag,
)
from intarsia.target.cpu import vector_bits

pytestmark = pytest.mark.usefixtures("fixed_cpu")
resolve = CompilationConfig.resolve
HERE = "llvm -mattr=-clflushopt -mcpu=skylake"
"""A plain `llvm`, on the machine of the fixture `fixed_cpu`."""
register_tag("tests/comma,128bit", "cuda -arch=sm_35")
COMMA = r"-arch=sm_35 -tag='\'tests/comma,128bit\''"


def texts(spec: object, **options: object) -> list[str]:
    return [str(placed) for placed in resolve(spec, **options).targets]


@pytest.mark.parametrize(
    "spec",
    [
        "openvino, onnxruntime",
        "openvino,onnxruntime",
        " openvino ,  onnxruntime ",
        ["openvino", "onnxruntime"],
        ("openvino", Target("onnxruntime")),
        [PlacedTarget.parse("openvino"), {"kind": "onnxruntime"}],
        ["openvino, onnxruntime"],
        '["openvino", {"kind": "onnxruntime"}]',
        {"targets": "openvino, onnxruntime"},
        {"targets": ["openvino", "onnxruntime"], "host": "onnxruntime"},
        {"cpu": "openvino", "CPU:0": "onnxruntime"},
        {"first": "openvino", "second": "onnxruntime"},
        "composite -host=onnxruntime -devices=openvino",
        {"kind": "composite", "host": "onnxruntime", "devices": ["openvino"]},
        Target("composite -host=onnxruntime -devices=openvino"),
        "composite -devices=openvino,onnxruntime",
        "composite -devices='composite -devices=openvino',onnxruntime",
    ],
)
def test_every_form_resolves_to_one_config(spec):
    assert resolve(spec) == resolve("openvino, onnxruntime")
    assert texts(spec) == ["openvino", "onnxruntime"]


@pytest.mark.parametrize(("file", "text"), [
    ("t.json", '["openvino", "onnxruntime"]'),
    ("t.json", '"openvino, onnxruntime"'),
    ("t.toml", 'kind = "composite"\nhost = "onnxruntime"\ndevices = ["openvino"]'),
    ("t.toml", 'targets = ["openvino", "mine"]\nlabels.mine = "onnxruntime"'),
    ("t.toml", '[[targets]]\nkind = "openvino"\n[[targets]]\nkind = "onnxruntime"'),
])  # fmt: skip
def test_a_file_is_a_form_too(tmp_path, file, text):
    path = tmp_path / file
    path.write_text(text)
    assert resolve(path) == resolve(str(path)) == resolve("openvino, onnxruntime")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acl, llvm -mattr=+neon", ["arm_acl", "llvm -mattr=+neon"]),
        ("acl", ["arm_acl", HERE]),
        ("ethos-u,cmsis-nn,c", ["ethos-u", "cmsis-nn", "c"]),
        ("ethos-u,cmsis-nn -mcpu=x, c -mcpu=x", ["ethos-u", "cmsis-nn -mcpu=x", "c -mcpu=x"]),
        ("c -libs=cblas,dnnl,c", ["c -libs=c,cblas,dnnl"]),
        ("llvm -mattr=+test,+v, c -mcpu=1", ["llvm -mattr=+test,+v", "c -mcpu=1"]),
        ("llvm -mcpu='v, a', c", ["llvm -mcpu='v, a'", "c"]),
        ('llvm -mcpu="v, a", c', ["llvm -mcpu='v, a'", "c"]),
        ("llvm -mcpu=a/b:c=(d), c", ["llvm -mcpu=a/b:c=(d)", "c"]),
        ("llvm -model=x.json", ["llvm -model=x.json"]),
        ("opencl:1, opencl, llvm", ["opencl:1", "opencl", HERE]),
        ("opencl -device_id=1, c", ["opencl:1", "c"]),
        ("opencl 1, c", ["opencl:1", "c"]),
        ("llvm, c", [HERE, "c"]),
        ("llvm -num-cores=2", [f"{HERE} -num-cores=2"]),
        ("llvm -mattr=+neon", ["llvm -mattr=+neon"]),
        ("llvm -mattr=+avx512f", ["llvm -mattr=-clflushopt,+avx512f -mcpu=skylake"]),
        ("llvm -mattr=-avx2", ["llvm -mattr=-clflushopt,-avx2 -mcpu=skylake"]),
        ("llvm -mattr=+prefer-256-bit", ["llvm -mattr=-clflushopt,+prefer-256-bit -mcpu=skylake"]),
        ("llvm -mattr=+avx2,+sve", ["llvm -mattr=+avx2,+sve"]),
        ("llvm, acl", [HERE, "arm_acl"]),
        ("llvm, acl, dnnl-cpu", [HERE, "arm_acl", "dnnl"]),
        ("openvino -base=llvm", [f"openvino -base='{HERE}'", HERE]),
        ("onnxruntime, openvino", ["onnxruntime", "openvino"]),
        ("cuda -compiler=tensorrt", ["tensorrt -base=cuda", "cuda"]),
        ("cuda:1 -compiler=tensorrt, c", ["tensorrt:1 -base=cuda", "cuda:1", "c"]),
        ("cuda -compiler=tensorrt, c, cuda", ["tensorrt -base=cuda", "c", "cuda"]),
        ("composite -host=llvm -devices=ethos-n,opencl", ["ethos-n", "opencl", HERE]),
        ("composite -host=llvm -devices=arm_acl,llvm", ["arm_acl", HERE]),
        ("llvm, llvm -mcpu=x", [HERE, "llvm -mcpu=x"]),
        ("tests/comma,128bit,c", [f"cuda {COMMA}", "c"]),
        ("tests/comma,128bit:1, c", [f"cuda:1 {COMMA}", "c"]),
        ("c, tests/comma,128bit", ["c", f"cuda {COMMA}"]),
    ],
)
def test_a_text_lists_targets_in_priority_order(text, expected):
    assert texts(text) == expected


def test_features_come_on_top_of_this_machine_unless_another_is_meant():
    config = resolve("llvm -mattr=+avx512f")
    assert vector_bits(config.host) == 512
    assert vector_bits(resolve("llvm -mattr=-avx").host) == 128
    assert "target llvm -mattr=-clflushopt,+avx512f -mcpu=skylake: complete, on cpu:0; this m" in (
        str(config)
    )
    assert config.find("llvm -mattr=+avx512f") == config.fallback
    assert "not this machine: only other architectures have neon, sve" in str(
        resolve("llvm -mattr=+neon,+avx2,+sve")
    )


@pytest.mark.parametrize(
    "spec",
    [
        "acl", "acl, llvm -mattr=+neon", "cuda -host=llvm", "cuda -compiler=tensorrt", "aws/p3",
        "openvino:0, arm_acl:1, opencl:1, onnxruntime -num_threads=2", "llvm, fake",
        "composite -host=reference -devices='llvm -mcpu=\\'a, b\\''",
        {"gpu1": "opencl:1", "cpu": "llvm"},
    ],
)  # fmt: skip
def test_resolving_again_changes_nothing(spec):
    config = resolve(spec)
    assert resolve(config) == config
    assert resolve(config.text) == config
    assert resolve(config.text).text == config.text
    assert resolve(config.targets, host=config.host) == config
    items = json.loads(json.dumps(config.to_json()))
    assert CompilationConfig.from_json(items) == config
    assert CompilationConfig.from_json(items).labels == config.labels
    assert hash(resolve(config)) == hash(config)


def test_the_last_complete_target_is_the_fallback():
    config = resolve("llvm, onnxruntime, openvino")
    assert str(config.fallback) == "onnxruntime"
    assert config.default_device == config.fallback


@pytest.mark.parametrize(
    ("text", "refined", "device_type"),
    [
        ("openvino, onnxruntime", "onnxruntime", DeviceType.CPU),
        ("openvino, reference", "reference", DeviceType.CPU),
        ("arm_acl, opencl, llvm", "opencl", DeviceType.OPENCL),
        ("arm_acl, llvm, opencl", HERE, DeviceType.CPU),
        ("tensorrt:1, cuda, cuda:1 -arch=sm_80", "cuda -arch=sm_80", DeviceType.CUDA),
        ("tensorrt -base='cuda -arch=sm_80', cuda, cuda:0 -arch=sm_80", "cuda -arch=sm_80",
         DeviceType.CUDA),
    ],
)  # fmt: skip
def test_a_partial_target_is_on_the_device_of_what_it_refines(text, refined, device_type):
    config = resolve(text)
    first = config.targets[0]
    assert config.refined(first) == Target(refined)
    assert first.device_type == device_type
    assert config.device_of(first) == VirtualDevice(device_type, first.device_id)
    assert config.refined(config.fallback) is None
    assert config.device_of(config.fallback).memory_domain == (
        config.fallback.device_type, config.fallback.device_id, "",
    )  # fmt: skip


def test_a_complete_target_first_is_refined_by_what_follows():
    config = resolve("onnxruntime -num_threads=1, openvino")
    assert config.refined(config.targets[1]) == Target("onnxruntime -num_threads=1")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (None, "no target is given"),
        ([], "the list is empty"),
        ({}, "the dictionary is empty"),
        ("", "no target is given"),
        ("  ", "no target is given"),
        (5, "a target cannot be int 5"),
        ([5], "a target cannot be int 5"),
        (object(), "a target cannot be object"),
        ("llvm,", "a target is missing"),
        (",llvm", "a target is missing"),
        ("llvm,, c", "a target is missing"),
        ("llvm, , c", "a target is missing"),
        ("llvm, llvm", f"target '{HERE}' is given twice"),
        (f"llvm, {HERE}", f"target '{HERE}' is given twice"),
        ("llvm, openvino, openvino, c", "target 'openvino' is given twice"),
        ("cuda:1, cuda -device_id=1, llvm", "target 'cuda:1' is given twice"),
        ("nosuch, llvm", "'nosuch' is not known"),
        ("llvm, nosuch", "'nosuch' is not known"),
        ("llvm -mattr=+a, +b", "kind '+b' is not known"),
        ("openvino", '", llvm"'),
        ("openvino, dnnl", '", llvm"'),
        ("arm_acl", '", llvm"'),
        ("ethos-u,cmsis-nn", '", c"'),
        ("composite -devices=arm_acl", '", llvm"'),
        ("composite", "'composite' lists no devices"),
        (
            "composite:1 -devices=llvm",
            "'composite:1 -devices=llvm': a composite has no device ordinal",
        ),
        ("tensorrt, onnxruntime", "refines none of the complete targets"),
        ("tensorrt, onnxruntime", '", cuda"'),
        ("tensorrt:1, cuda, llvm", '", cuda:1"'),
        ("openvino, cuda", '", llvm"'),
        ("opencl:x", "'x' is not a device ordinal"),
        ("opencl:1 -device_id=2", "contradicts"),
        ("opencl -device_id=-1", "expects an ordinal"),
        ({"kind": "opencl", "device_id": True}, "expects an ordinal"),
        ({"kind": "opencl", "memory_scope": 1}, "memory_scope: expects type string"),
        ({1: "cuda"}, "does not run on device type CPU"),
        ({99: "cuda"}, "99 is not a device type"),
        ({1.5: "cuda"}, "a device has to be"),
        ({"cuda:x": "cuda"}, "'x' is not a device ordinal"),
        ({"cpu": ["llvm", "c"]}, "one target, not to 2"),
        (Target("cmsis-nn", "c -mcpu=x"), 'add a fallback at the end: ", c -mcpu=x"'),
        ("acl, llvm -mattr=+neon +dotprod", "without blanks between: -mattr=+x,+dotprod"),
        ("", "no target is given\nhint: write one, such as onnxruntime"),
        (
            {"kind": "acl"},
            "'acl' is a tag, not a kind in {'kind': 'acl'}\nhint: write {\"tag\": \"acl\"}",
        ),
        ({("x",): "c"}, "a device has to be a name or a number"),
        ({"a": {"inherits": "b"}, 1: "c"}, "there is no label 'b' for 'a' to inherit from"),
        ({"llvm": "cuda"}, "does not run on device type CPU"),
        ({"gpu": "c"}, "'gpu': target 'c' does not run on device type CUDA"),
        ({"acl": "c"}, "is the name of a tag"),
        ({-1: "cuda"}, "-1 is not a device type"),
        ({"targets": "llvm", "hosts": "c"}, "no field 'hosts'"),
        ({"targets": "llvm", "labels": 1}, "labels have to be a table"),
        (VirtualDevice(DeviceType.CPU, 0), "has no target"),
        ("/no/such/file.json", "cannot read targets"),
        ("c, cuda -arch=80", "c, cuda -arch=80\n                ^^"),
        ("c,, cuda", "c,, cuda\n   ^"),
        ('{"kind": ', "malformed JSON"),
        (
            [VirtualDevice(DeviceType.CPU, 0, Target("arm_acl")), "opencl", "llvm"],
            "on another device",
        ),
    ],
)
def test_a_bad_list_is_refused_by_name(spec, words):
    with pytest.raises(TargetError) as caught:
        resolve(spec)
    assert words in str(caught.value)


def test_a_malformed_file_is_named(tmp_path):
    for name, text in (("a.json", "{"), ("a.toml", "= 1"), ("b.toml", "kind = 1")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(TargetError):
            resolve(path)
    with pytest.raises(TargetError, match=r"is not a \.json or \.toml file"):
        resolve(tmp_path / "c.yaml")


def test_a_dictionary_maps_devices_to_targets():
    assert texts({1: "c", 2: "cuda"}) == ["c", "cuda"]
    assert texts({"opencl:1": "opencl -device=mali", "cpu": "c"}) == [
        "opencl:1 -keys=mali,opencl,gpu -device=mali", "c",
    ]  # fmt: skip
    assert texts({"gpu:2": "vulkan", "llvm": "c"}) == ["vulkan:2", "c"]
    config = resolve({"fast": "cuda:1", "rest": "llvm", "gpu": "arm_acl", "cl": "opencl"})
    assert config.find("fast") == config.targets[0]
    assert str(config.find("rest")) == HERE
    assert config.find("gpu").device_type == DeviceType.OPENCL


OTHERS = ("row-", "test-")  # kinds that other tests register
PARTIAL = [
    name for name in list_kinds() if not get_kind(name).is_complete and not name.startswith(OTHERS)
]


@pytest.mark.parametrize(
    ("text", "host"),
    [
        *((name, None) for name in PARTIAL),
        *((f"{name}:1", None) for name in PARTIAL),
        ("openvino", "dnnl"), ("openvino", "composite -devices=dnnl,llvm"), ("dnnl", "llvm"),
        ("clml, openvino", None), ("ethos-n, arm_acl", None), ("tensorrt, llvm", None),
    ],
)  # fmt: skip
def test_following_hints_completes_a_list(text, host):
    for _ in range(5):
        try:
            config = resolve(text, host=None if text.count(",") > 1 else host)
        except TargetError as error:
            added = re.search(r'"(, [^"]+)"|write \'([^\']+)\'|(use onnxruntime)', error.hint)
            if added is None:
                pytest.fail(error.hint)
            text = f"{text}{added[1]}" if added[1] else added[2] or text
            host = None if added[3] else host
        else:
            assert config.fallback.target.kind.is_complete
            assert not any(item.device_type == 1 and item.device_id for item in config.targets)
            return
    pytest.fail(f"the hints do not complete {text!r}")


def test_a_config_says_what_it_is_and_why():
    with pytest.warns(UserWarning, match="host 'c' is replaced"):
        config = resolve("acl, cuda:1 -compiler=tensorrt -host=c, opencl", host="llvm")
    assert str(config).splitlines() == [
        "target arm_acl: partial, refines opencl on opencl:0; device 0 of composite 'acl'",
        "target tensorrt:1 -base=cuda: partial, refines cuda on cuda:1",
        "target cuda:1: complete, on cuda:1; what tensorrt refines",
        "target opencl: complete, on opencl:0",
        "fallback opencl: the last complete target given",
        f"host {HERE}: asked for as the host of all targets",
        "replaced host c of tensorrt: all targets of a config have one host",
        "default device opencl:0: the fallback's",
    ]
    labels = {"mine": PlacedTarget.parse("opencl")}
    assert str(resolve("acl, mine", labels=labels)).splitlines()[1:] == [
        "target opencl: complete, on opencl:0",
        "fallback opencl: the last complete target given",
        f"host {HERE}: carried by acl",
        "default device opencl:0: the fallback's",
        "label mine: opencl",
    ]
    assert str(resolve("acl")).splitlines()[1] == (
        f"target {HERE}: complete, on cpu:0; host of composite 'acl', on this machine"
    )
    assert f"\nhost {HERE}: the fallback, which runs on a CPU" in str(resolve("openvino, llvm"))
    assert "\nhost onnxruntime: default, none was given" in str(resolve("cuda"))


def test_a_plain_llvm_is_this_machine_wherever_it_stands():
    config = resolve({"mine": "llvm", "gpu": "opencl -host=llvm"})
    assert str(config.host) == str(config.targets[0]) == HERE
    assert config.find("llvm") == config.find("mine") == config.find(HERE) == config.targets[0]
    assert config.find(Target("llvm")) == config.targets[0]
    assert config.canonical(VirtualDevice(target=Target("llvm"))).target == Target(HERE)


def test_attributes_are_overridden_by_kind():
    overrides = {"llvm": {"num-cores": "2", "mattr": "+a,-b"}, "opencl": {"max_num_threads": 8}}
    config = resolve("acl, opencl", host="llvm", overrides=overrides)
    assert texts(config) == ["arm_acl", "opencl -max_num_threads=8"]
    assert str(config.host) == "llvm -mattr=+a,-b -num-cores=2"
    again = resolve(config, overrides={"opencl": {"max_num_threads": 16}})
    assert texts(again) == ["arm_acl", "opencl -max_num_threads=16"]
    for overrides, words in (
        ({"cuda": {"arch": "x"}}, "passed --target-cuda-arch but did not specify cuda target"),
        ({"opencl": {"nosuch": 1}}, "no attribute 'nosuch'"),
        ({"opencl": {"max_num_threads": "x"}}, "max_num_threads: expects type int"),
        ({"opencl": {"kind": "c"}}, "kind 'opencl' has no attribute 'kind'"),
        ({"opencl": {"compiler": "clml"}}, "kind 'opencl' has no attribute 'compiler'"),
        ({"opencl": {"tag": "x"}}, "'tag' cannot be given again"),
        ({"opencl": {"host": "c"}}, "'host' cannot be given again\nhint: with_host.. or --host"),
    ):
        with pytest.raises(TargetError, match=words):
            resolve("acl, opencl", overrides=overrides)


def test_labels_may_be_given_as_a_file_has_them():
    table = {"gpu": "opencl", "gpu2": {"inherits": "gpu", "device_id": 1}}
    config = resolve("gpu2, c", labels=table)
    assert texts(config) == ["opencl:1", "c"]
    assert config.find("gpu2").device_id == 1
    assert resolve("gpu2, c", labels=config.labels) == config
    with pytest.raises(TargetError, match="label 'x': a target has to be"):
        resolve("c", labels={"x": 1})


def test_a_config_is_a_toml_file(tmp_path):
    path = tmp_path / "machine.toml"
    config = resolve({"fast": "cuda:1 -host='llvm -model=\"a b\"'", "rest": "llvm"})
    path.write_text(config.to_toml())
    assert resolve(path) == config
    assert resolve(path).labels == config.labels


def test_find_takes_kind_ordinal_text_tag_and_label():
    spec = "opencl:1, opencl:2, cuda -arch=sm_75, onnxruntime, fake:1 -ops=Add, nvidia/v100"
    config = resolve(spec, labels={"cheap": PlacedTarget.parse("opencl:2")})
    assert str(config.find("opencl:2")) == "opencl:2"
    assert config.find("cheap") == config.find("opencl:2")
    assert str(config.find("cuda -arch=sm_75")) == "cuda -arch=sm_75"
    assert config.find("onnxruntime") == config.find(Target("onnxruntime"))
    assert str(config.find("fake")) == "fake:1 -ops=Add"
    assert config.find("nvidia/v100").target == Target("nvidia/v100")
    assert all(config.find(str(item)) == item for item in config.targets)
    assert all(config.find(item) == item for item in config.targets)


def test_a_full_text_wins_over_a_kind():
    config = resolve("cuda -host=llvm, cuda:1, llvm")
    assert config.find("cuda") == config.targets[0]
    assert config.find("cuda -host=llvm") == config.targets[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("opencl", "means 2 of the targets"),
        ("onnxrntime", "did you mean 'onnxruntime'? "),
        ("opencl:3", "means none of the targets"),
        ("openvino", "choices: gone, opencl:1, opencl:2, onnxruntime"),
        ("gone", "label 'gone' is not among the targets"),
    ],
)
def test_find_lists_the_choices(text, words):
    labels = {"gone": PlacedTarget.parse("cuda")}
    config = resolve("opencl:1, opencl:2, onnxruntime", labels=labels)
    with pytest.raises(TargetError) as caught:
        config.find(text)
    assert words in str(caught.value)


def test_a_partial_target_of_no_config_is_refused():
    with pytest.raises(TargetError, match="refines none"):
        resolve("llvm").device_of(PlacedTarget.parse("tensorrt"))
