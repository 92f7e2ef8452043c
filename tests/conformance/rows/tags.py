# SPDX-License-Identifier: Apache-2.0
"""Rows 68 to 78 and 91: keys and tags."""

import itertools

from intarsia.target import (
    CompilationConfig,
    DeviceType,
    KeyTable,
    Target,
    TargetKind,
    get_tag,
    list_tags,
    register_tag,
)
from intarsia.target import register_kind as register
from rows import refused, row

_numbers = itertools.count()


def new_name(start="rows/tag"):
    """Return a name that no tag has."""
    return f"{start}-{next(_numbers)}"


@row(68)
def the_device_is_not_added_to_keys_that_have_it():
    target = Target({"kind": "llvm", "keys": ["cpu", "arm_cpu"], "device": "arm_cpu"})
    assert target.keys == ("cpu", "arm_cpu")
    assert {name for name in target.attrs if name not in ("mcpu", "mattr", "mtriple")} == {"device"}
    assert target.attrs["device"] == "arm_cpu"
    listed = CompilationConfig.resolve([target]).targets[0].target
    assert listed.keys == ("cpu", "arm_cpu")


@row(69)
def the_device_comes_before_the_kind_s_keys():
    assert Target("opencl -device=mali").keys == ("mali", "opencl", "gpu")
    assert Target("opencl").keys == ("opencl", "gpu")


@row(70)
def keys_of_the_user_s_replace_those_of_the_kind():
    assert Target("cuda -keys=mine").keys == ("mine",)
    assert Target("opencl -keys=mine -device=mali").keys == ("mine", "mali")
    assert Target({"kind": "llvm", "keys": ["x86", "cpu"]}).keys == ("x86", "cpu")


@row(71)
def dispatch_takes_the_first_key_with_an_implementation():
    register(TargetKind("row-071", DeviceType.CPU, default_keys=("other",)))
    table = KeyTable("default")
    table.register(("cuda", "gpu"), "cuda code")
    table.register(("rocm",), "rocm code")
    table.register(("cpu",), "cpu code")
    found = {
        "cuda": "cuda code",
        "rocm": "rocm code",
        "metal": "cuda code",
        "llvm": "cpu code",
        "llvm -mtriple=aarch64-linux-gnu": "cpu code",
        "row-071": "default",
        "row-071 -keys=other,cpu,gpu": "cpu code",
        "row-071 -keys=gpu,cpu": "cuda code",
    }
    assert {text: table.find(Target(text)) for text in found} == found
    assert "'rocm' has an implementation already" in refused(table.register, ("rocm",), "again")
    assert table.find(Target("rocm")) == "rocm code"
    table.register(("rocm",), "again", override=True)
    assert table.find(Target("rocm")) == "again"


@row(72)
def a_board_s_tag_says_what_the_board_has():
    target = Target("nvidia/geforce-rtx-2080-ti")
    assert target.kind.name == "cuda"
    assert target.keys == ("cuda", "gpu")
    assert target.attrs["arch"] == "sm_75"
    assert target.attrs["max_shared_memory_per_block"] == 49152
    assert target.attrs["max_threads_per_block"] == 1024
    assert target.attrs["thread_warp_size"] == 32
    assert target.attrs["registers_per_block"] == 65536


@row(73)
def a_jetson_nano_has_half_the_registers():
    target = Target("nvidia/jetson-nano")
    assert target.attrs["arch"] == "sm_53"
    assert target.attrs["registers_per_block"] == 32768


@row(74)
def a_tag_may_carry_a_host():
    target = Target("nvidia/jetson-agx-xavier")
    assert (target.kind.name, target.attrs["arch"]) == ("cuda", "sm_72")
    assert target.host.kind.name == "llvm"
    assert target.host.attrs["mtriple"].startswith("aarch64")
    assert target.host.attrs["mcpu"] == "carmel"
    assert CompilationConfig.resolve(target).host == target.host


@row(74)
def a_tag_may_be_a_composite():
    target = Target("trt")
    assert target.kind.name == "composite"
    assert [str(device) for device in target.attrs["devices"]] == ["tensorrt", "cuda"]
    names = [item.target.kind.name for item in CompilationConfig.resolve("trt").targets]
    assert names[:2] == ["tensorrt", "cuda"]


@row(75)
def a_target_remembers_its_tags():
    target = Target("nvidia/jetson-nano")
    assert target.tags == ("nvidia/jetson-nano",)
    assert Target("aws/p3").tags == ("aws/p3", "nvidia/v100")
    assert Target({"tag": "aws/p3"}).tags == ("aws/p3", "nvidia/v100")
    for copy in (Target(str(target)), Target(target.to_json()), target.with_host("llvm")):
        assert copy.tags == target.tags
    placed = CompilationConfig.resolve("aws/p3:1").targets[0]
    assert (placed.device_id, placed.target.tags) == (1, ("aws/p3", "nvidia/v100"))
    assert CompilationConfig.from_json(CompilationConfig.resolve("aws/p3:1").to_json()).targets[
        0
    ].target.tags == ("aws/p3", "nvidia/v100")


@row(76)
def attributes_of_a_tag_can_be_overridden():
    plain = Target("nvidia/v100")
    target = Target({"tag": "nvidia/v100", "max_num_threads": 512})
    assert target.attrs == {**plain.attrs, "max_num_threads": 512}
    assert target.tags == ("nvidia/v100",)
    assert target == Target("nvidia/v100 -max_num_threads=512")
    assert Target('{"tag": "nvidia/v100", "max_num_threads": 512}') == target
    assert plain == Target("nvidia/v100")
    assert "no attribute 'mattr'" in refused(Target, {"tag": "nvidia/v100", "mattr": ["+x"]})
    replaced = Target({"tag": "aws/p3", "host": "llvm -mcpu=haswell"})
    assert replaced.host.attrs["mcpu"] == "haswell"


@row(77)
def a_tag_is_registered_once():
    name = new_name()
    first = register_tag(name, {"kind": "cuda", "arch": "sm_70"})
    assert first == Target(name) == Target("cuda -arch=sm_70")
    assert f"tag '{name}' has been defined before" in refused(
        register_tag, name, "cuda -arch=sm_80"
    )
    assert Target(name) == first
    assert register_tag(name, "cuda -arch=sm_80", override=True).attrs["arch"] == "sm_80"
    assert Target(name).attrs["arch"] == "sm_80"
    assert "has been defined before" in refused(register_tag, "nvidia/v100", "cuda -arch=sm_80")
    assert name in list_tags()


@row(77)
def every_built_in_tag_constructs():
    names = list_tags()
    assert len(names) >= 250
    for name in names:
        assert get_tag(name).tags[0] == name


@row(78)
def a_tag_cannot_be_named_as_a_kind():
    for name in ("llvm", "composite", "arm_acl", "arm_cl"):
        assert f"'{name}' is the name of a target kind" in refused(register_tag, name, "cuda")
    assert Target("llvm").kind.name == "llvm"


@row(91)
def acl_stands_for_a_composite():
    target = Target("acl")
    assert target.kind.name == "composite"
    assert target == Target({"kind": "composite", "host": "llvm", "devices": [{"kind": "arm_acl"}]})
    assert target.tags == ("acl",)
    config = CompilationConfig.resolve("acl")
    assert [item.target.kind.name for item in config.targets] == ["arm_acl", "llvm"]
    assert config == CompilationConfig.resolve("composite -host=llvm -devices=arm_acl")


@row(91)
def users_define_aliases_of_composites():
    name = new_name("rows-alias")
    register_tag(name, {"kind": "composite", "host": "llvm", "devices": ["tensorrt", "cuda"]})
    assert Target(name) == Target("composite -host=llvm -devices=tensorrt,cuda")
    config = CompilationConfig.resolve(name)
    assert [item.target.kind.name for item in config.targets] == ["tensorrt", "cuda", "llvm"]
    assert config == CompilationConfig.resolve("tensorrt, cuda, llvm", host="llvm")


@row(91)
def users_define_aliases_in_a_file(tmp_path):
    name = new_name("rows-alias")
    file = tmp_path / "machine.toml"
    file.write_text(
        f'targets = ["{name}"]\n[tags.{name}]\nkind = "composite"\nhost = "llvm"\n'
        'devices = ["dnnl"]\n'
    )
    config = CompilationConfig.resolve(file)
    assert [item.target.kind.name for item in config.targets] == ["dnnl", "llvm"]
    assert config == CompilationConfig.resolve("dnnl-cpu")
