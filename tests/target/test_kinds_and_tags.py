# SPDX-License-Identifier: Apache-2.0
import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from intarsia.errors import TargetError
from intarsia.target import (
    AttrSpec,
    DeviceType,
    KeyTable,
    Target,
    TargetKind,
    get_kind,
    get_tag,
    list_kinds,
    list_tags,
    register_kind,
    register_tag,
)
from intarsia.target.registry import Registry, read_kind


def test_kinds_are_listed_without_the_hidden_ones():
    assert {"llvm", "c", "cuda", "opencl", "onnxruntime", "openvino", "composite"} <= set(
        list_kinds()
    )
    assert not {"reference", "fake"} & set(list_kinds())
    assert {"reference", "fake"} <= set(list_kinds(all=True))
    assert list(list_kinds()) == sorted(list_kinds())


@pytest.mark.parametrize(
    ("name", "device_type", "is_complete"),
    [
        ("llvm", DeviceType.CPU, True),
        ("onnxruntime", DeviceType.CPU, True),
        ("reference", DeviceType.CPU, True),
        ("cuda", DeviceType.CUDA, True),
        ("opencl", DeviceType.OPENCL, True),
        ("fake", DeviceType.EXT_DEV, True),
        ("openvino", DeviceType.CPU, False),
        ("tensorrt", DeviceType.CUDA, False),
        ("arm_acl", DeviceType.CPU, False),
    ],
)
def test_a_kind_has_one_device_type(name, device_type, is_complete):
    kind = get_kind(name)
    assert (kind.device_type, kind.is_complete) == (device_type, is_complete)
    assert Target(name).device_type == device_type


def test_a_schema_lists_types_and_common_attributes():
    attrs = get_kind("llvm").attrs
    assert attrs["mattr"].type == "array<string>"
    assert attrs["mcpu"].type == "string"
    assert {"keys", "tag", "device", "model", "libs", "host"} <= set(attrs)
    assert not attrs["libs"].is_ordered
    assert attrs["mattr"].is_ordered


def test_defaults_are_filled_in():
    assert Target("cuda").attrs["max_num_threads"] == 1024
    assert Target("tensorrt").attrs["max_workspace_size"] == 2**30


def test_the_device_type_can_be_replaced():
    assert Target("opencl -target_device_type=2").device_type == DeviceType.CUDA


@pytest.mark.parametrize(
    ("partial", "complete", "expected"),
    [
        ("openvino", "onnxruntime", True),
        ("openvino", "reference", True),
        ("dnnl", "llvm", True),
        ("openvino", "cuda", False),
        ("openvino", "fake", False),
        ("arm_acl", "opencl", True),
        ("arm_acl", "llvm", True),
        ("tensorrt", "cuda -arch=sm_80", True),
        ("cuda -arch=sm_80 -compiler=tensorrt", "cuda -arch=sm_80", True),
        ("cuda -arch=sm_80 -compiler=tensorrt", "cuda -host=llvm -arch=sm_80", True),
        ("cuda -arch=sm_80 -compiler=tensorrt", "cuda", False),
        ("llvm", "llvm", False),
        ("openvino", "dnnl", False),
    ],
)
def test_a_partial_target_refines_complete_ones(partial, complete, expected):
    assert Target(partial).refines(Target(complete)) is expected


def test_compiler_spells_the_partial_kind_and_keeps_the_host():
    target = Target("cuda -arch=sm_80 -host=llvm -compiler=tensorrt")
    assert target.kind.name == "tensorrt"
    assert target.attrs["base"] == Target("cuda -arch=sm_80")
    assert target.host == Target("llvm")
    assert Target({"kind": "cuda", "compiler": "tensorrt"}) == Target("cuda -compiler=tensorrt")


@pytest.mark.parametrize("name", ["openvino", "cuda", "llvm"])
def test_a_compiler_that_does_not_refine_the_kind_is_refused(name):
    with pytest.raises(TargetError, match="does not refine a target of kind 'cuda'"):
        Target(f"cuda -compiler={name}")


def test_a_kind_is_registered_once():
    def make(keys):
        return TargetKind("once-for-tests", DeviceType.CPU, default_keys=keys)

    register_kind(make(("a",)))
    register_kind(make(("a",)))
    assert Target("once-for-tests").keys == ("a",)
    with pytest.raises(TargetError, match="different target kind 'once-for-tests'"):
        register_kind(make(("b",)))
    with pytest.raises(TargetError, match="name of a tag"):
        register_kind(TargetKind("acl", DeviceType.CPU))
    with pytest.raises(TargetError, match="did you mean 'openvino'"):
        get_kind("openvnio")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "a b"}, "not a kind name"),
        ({"name": "a", "refines": ("llvm",)}, "is complete and refines"),
        ({"name": "a", "attrs": (AttrSpec("host", "string"),)}, "clashes"),
        ({"name": "a", "attrs": (AttrSpec("device_id", "int"),)}, "clashes"),
        ({"name": "a", "attrs": (AttrSpec("x", "int"), AttrSpec("x", "int"))}, "declared twice"),
    ],
)
def test_a_kind_that_contradicts_itself_is_refused(values, words):
    with pytest.raises(TargetError, match=words):
        TargetKind(device_type=DeviceType.CPU, **values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "a b", "type": "int"}, "not an attribute name"),
        ({"name": "a", "type": "float"}, "not an attribute type"),
        ({"name": "a", "type": "array<float>"}, "not an attribute type"),
        ({"name": "a", "type": "int", "order": "unordered"}, "only an array<string>"),
        ({"name": "a", "type": "array<string>", "order": "sorted"}, "not an order"),
        ({"name": "a", "type": "int", "default": 1.5}, "a: expects type int"),
        ({"name": "a", "type": "target", "default": "llvm"}, "cannot be a default"),
    ],
)
def test_an_attribute_that_contradicts_itself_is_refused(values, words):
    with pytest.raises(TargetError, match=words):
        AttrSpec(**values)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (1, "expects a table"),
        ({}, "device_type is missing"),
        ({"nosuch": 1}, "no field 'nosuch'"),
        ({"help": 1}, "help has to be of type str"),
        ({"device_type": "TPU", "is_complete": True, "help": ""}, "no device type 'TPU'"),
        (
            {"device_type": "CPU", "is_complete": True, "help": "", "canonicalizer": "x"},
            "no canonicaliser 'x'",
        ),
    ],
)
def test_a_malformed_catalogue_is_refused(table, words):
    with pytest.raises(TargetError, match=words):
        read_kind("x", table)


def test_a_plug_in_is_found_by_name_and_a_broken_one_only_warns(monkeypatch):
    plugin = TargetKind("plug-in-for-tests", DeviceType.EXT_DEV)
    module = SimpleNamespace(BACKEND=SimpleNamespace(kinds=(plugin, "llvm")))
    monkeypatch.setitem(sys.modules, "plug_in_for_tests", module)
    entries = [
        EntryPoint(name, f"{name}_for_tests:BACKEND", "intarsia.backends")
        for name in ("plug_in", "broken")
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    registry = Registry()
    with pytest.warns(RuntimeWarning, match="'broken'.*No module.*left out"):
        assert registry.find_kind("plug-in-for-tests") is plugin
    assert registry.find_kind("nosuch") is None


def test_every_built_in_tag_constructs_and_remembers_its_name():
    for name in list_tags():
        target = get_tag(name)
        assert target.tags[0] == name
        assert Target(name) == target == Target(str(target))


def test_nvidia_tags_say_what_the_board_has():
    attrs = Target("nvidia/geforce-rtx-2080-ti").attrs
    assert attrs["arch"] == "sm_75"
    names = (
        "max_shared_memory_per_block", "max_threads_per_block", "thread_warp_size",
        "registers_per_block",
    )  # fmt: skip
    assert [attrs[name] for name in names] == [49152, 1024, 32, 65536]
    nano = Target("nvidia/jetson-nano").attrs
    assert (nano["arch"], nano["registers_per_block"]) == ("sm_53", 32768)


def test_a_tag_may_carry_a_host_be_a_composite_or_build_on_a_tag():
    xavier = Target("nvidia/jetson-agx-xavier")
    assert xavier.host.attrs["mtriple"] == "aarch64-linux-gnu"
    assert Target("acl") == Target("composite -host=llvm -devices=arm_acl")
    assert Target("aws/p3").tags == ("aws/p3", "nvidia/v100")
    assert Target("cuda -host=nvidia/jetson-nano").host.tags == ("nvidia/jetson-nano",)


def test_a_tag_can_be_overridden_in_both_forms():
    target = Target({"tag": "nvidia/v100", "arch": "sm_72"})
    assert target.attrs["arch"] == "sm_72"
    assert target.attrs["max_threads_per_block"] == 1024
    assert target.tags == ("nvidia/v100",)
    assert Target("nvidia/v100 -arch=sm_72") == target


def test_a_tag_is_defined_once_unless_overridden():
    register_tag("tests/mine", "llvm -mcpu=a")
    assert Target("tests/mine") == Target("llvm -mcpu=a")
    with pytest.raises(TargetError, match="defined before"):
        register_tag("tests/mine", "llvm -mcpu=b")
    assert register_tag("tests/mine", Target("llvm -mcpu=b"), override=True).attrs["mcpu"] == "b"
    register_tag("tests/yours", {"tag": "tests/mine", "mcpu": "c"})
    assert get_tag("tests/yours").tags == ("tests/yours", "tests/mine")
    with pytest.raises(TargetError, match="'tests/mine' would build on itself"):
        register_tag("tests/mine", {"tag": "tests/yours"}, override=True)
    assert get_tag("tests/yours").attrs["mcpu"] == "c"


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("llvm", "llvm", "name of a target kind"),
        ("a b", "llvm", "cannot be a name"),
        ("-a", "llvm", "cannot be a name"),
        ("a:1", "llvm", "cannot be a name"),
        (5, "llvm", "cannot be a name"),
        ("tests/bad", "nosuch", "not known"),
        ("tests/bad", "opencl:1", "placed target"),
    ],
)
def test_a_bad_tag_is_refused(name, config, words):
    with pytest.raises(TargetError, match=words):
        register_tag(name, config)


def test_an_unknown_tag_is_named():
    with pytest.raises(TargetError, match="did you mean 'aws/c6"):
        get_tag("aws/c6")


def test_dispatch_takes_the_first_key_that_has_an_implementation():
    table = KeyTable("default")
    table.register("rocm", "one key")
    assert table.find(Target("rocm")) == "one key"
    assert table.find(Target("hexagon")) == "default"
    table = KeyTable("default")
    table.register(("cuda", "gpu"), "gpu code")
    table.register(("cpu",), "cpu code")
    assert table.find(Target("cuda")) == "gpu code"
    assert table.find(Target("opencl")) == "gpu code"
    assert table.find(Target("llvm -mcpu=cortex-m3")) == "cpu code"
    assert table.find(Target("fake")) == "default"
    with pytest.raises(TargetError, match="'cpu' has an implementation"):
        table.register(("cpu",), "other")
    table.register(("cpu",), "other", override=True)
    assert table.find(Target("llvm")) == "other"
