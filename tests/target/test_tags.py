# SPDX-License-Identifier: Apache-2.0
"""The catalogue of tags: what it holds, that it is right, and that little of it is read."""

from pathlib import Path

import pytest

from intarsia.errors import TargetError
from intarsia.target import CompilationConfig, Target, get_tag, list_tags, register_tag, registry
from intarsia.target.cpu_tables import load_table
from intarsia.target.registry import REGISTRY, TagTable, read_catalogue

VENDORS = (
    "amd", "apple", "arm", "aws", "intel", "micro", "nvidia", "qualcomm", "raspberry-pi", "riscv",
)  # fmt: skip

FAMILIES = {
    "x86_64": "x86", "aarch64": "aarch64", "arm64": "aarch64", "arm": "arm", "thumb": "arm",
    "riscv": "riscv",
}  # fmt: skip
FOLDER = Path(registry.__file__).parent / "catalogue" / "tags"
CATALOGUE = sorted(name for file in FOLDER.glob("*.toml") for name in read_catalogue(file))


def within(target):
    """Yield the target, its host and its devices, and so on."""
    yield target
    if target.host is not None:
        yield from within(target.host)
    for device in target.attrs.get("devices", ()):
        yield from within(device)


@pytest.fixture
def table():
    """The tags of a process that has looked nothing up yet."""
    return TagTable(lambda name: name in ("llvm", "cuda"))


def test_there_are_tags_of_every_vendor():
    names = list_tags()
    assert set(CATALOGUE) <= set(names)
    assert len(CATALOGUE) >= 250
    assert len([name for name in names if name.startswith("nvidia/")]) >= 200
    assert {name.partition("/")[0] for name in names if "/" in name} >= set(VENDORS)
    assert {"aws/c5", "aws/p3", "arm/rasp4b", "nvidia/v100", "acl", "trt", "dnnl-cpu"} <= set(names)
    assert list(names) == sorted(names)


@pytest.mark.parametrize("vendor", [*VENDORS, "aliases"])
def test_every_tag_constructs_remembers_its_name_and_survives_printing(vendor):
    start = "" if vendor == "aliases" else f"{vendor}/"
    for name in CATALOGUE:
        if name.startswith(start) and ("/" in name) == bool(start):
            target = Target(name)
            assert target.tags[0] == name
            assert get_tag(name) == target
            printed = Target(str(target))
            assert (printed, printed.tags) == (target, target.tags)
            assert Target(target.to_json()) == target


@pytest.mark.parametrize("name", [name for name in CATALOGUE if "/" not in name])
def test_an_alias_resolves_alone_or_before_a_fallback(name):
    fallback = "c" if name.startswith(("ethos", "cmsis")) else "llvm"
    config = CompilationConfig.resolve(f"{name}, {fallback}" if "-u" in name else name)
    assert config.fallback.target.kind.is_complete


def test_every_cpu_is_known_to_llvm():
    unknown = []
    for name in CATALOGUE:
        for target in within(Target(name)):
            if target.kind.name in ("llvm", "c") and "mcpu" in target.attrs:
                triple = target.attrs.get("mtriple", "thumb")
                family = next(f for start, f in FAMILIES.items() if triple.startswith(start))
                if target.attrs["mcpu"] not in load_table(family).cpus:
                    unknown.append((name, target.attrs["mcpu"]))
    assert not unknown


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("tesla-c2050", "sm_20"), ("geforce-gtx-480", "sm_20"), ("geforce-gt-430", "sm_21"),
        ("geforce-gtx-680", "sm_30"), ("jetson-tk1", "sm_32"), ("geforce-gtx-titan", "sm_35"),
        ("tesla-k80", "sm_37"), ("geforce-gtx-750-ti", "sm_50"), ("geforce-gtx-980", "sm_52"),
        ("jetson-nano", "sm_53"), ("tesla-p100", "sm_60"), ("geforce-gtx-1080-ti", "sm_61"),
        ("jetson-tx2", "sm_62"), ("v100", "sm_70"), ("jetson-agx-xavier", "sm_72"),
        ("nvidia-t4", "sm_75"), ("nvidia-a100", "sm_80"), ("geforce-rtx-3090", "sm_86"),
        ("jetson-orin-nano", "sm_87"), ("geforce-rtx-4090", "sm_89"), ("nvidia-h100", "sm_90a"),
        ("b200", "sm_100a"), ("nvidia-b300", "sm_103a"), ("gb300", "sm_103a"),
        ("jetson-t5000", "sm_110a"), ("geforce-rtx-5090", "sm_120a"),
        ("l4", "sm_89"), ("a10g", "sm_86"), ("h200", "sm_90a"), ("p100", "sm_60"), ("m60", "sm_52"),
        ("jetson-agx-orin", "sm_87"), ("jetson-agx-thor", "sm_110a"), ("gb10", "sm_121a"),
        ("geforce-gt-730-ddr3,128bit", "sm_21"),
    ],
)  # fmt: skip
def test_boards_have_the_capability_that_nvidia_lists(name, arch):
    assert Target(f"nvidia/{name}").attrs["arch"] == arch


def test_accelerators_need_no_name_of_their_line():
    for short, full in (
        ("nvidia/h200", "nvidia/nvidia-h200"),
        ("amd/mi300x", "amd/instinct-mi300x"),
    ):
        assert Target(short) == Target(full)


def test_a_block_of_nvidia_s_small_chips_has_half_the_registers():
    small = {"sm_20", "sm_21", "sm_32", "sm_53", "sm_62"}
    for name in CATALOGUE:
        if not name.startswith("nvidia/"):
            continue
        attrs = Target(name).attrs
        expected = 32768 if attrs["arch"] in small else 65536
        assert attrs["registers_per_block"] == expected, name
        assert attrs["max_shared_memory_per_block"] == 49152
        assert (attrs["max_threads_per_block"], attrs["thread_warp_size"]) == (1024, 32)


def test_amd_s_wavefronts_follow_the_architecture():
    for name in CATALOGUE:
        target = Target(name)
        if target.kind.name == "rocm":
            is_rdna = target.attrs["mcpu"].startswith(("gfx10", "gfx11", "gfx12"))
            assert target.attrs["thread_warp_size"] == (32 if is_rdna else 64), name


@pytest.mark.parametrize(
    ("name", "cores", "cpu"),
    [
        ("large", 1, "skylake-avx512"), ("xlarge", 2, "skylake-avx512"),
        ("2xlarge", 4, "skylake-avx512"), ("4xlarge", 8, "skylake-avx512"),
        ("9xlarge", 18, "skylake-avx512"), ("12xlarge", 24, "cascadelake"),
        ("18xlarge", 36, "skylake-avx512"), ("24xlarge", 48, "cascadelake"),
    ],
)  # fmt: skip
def test_the_sizes_of_c5_have_their_cores(name, cores, cpu):
    target = Target(f"aws/cpu/c5.{name}")
    assert (target.attrs["num-cores"], target.attrs["mcpu"]) == (cores, cpu)
    assert target.keys == ("x86", "cpu")
    assert target.tags == (f"aws/cpu/c5.{name}", "aws/c5")


def test_a_tag_may_build_on_a_tag_carry_a_host_or_be_a_composite():
    p3 = Target("aws/p3")
    assert p3.tags == ("aws/p3", "nvidia/v100")
    assert p3.without_host() == Target("nvidia/v100")
    assert p3.host.attrs["mcpu"] == "broadwell"
    assert Target("aws/g4ad").attrs["mcpu"] == "gfx1011"
    assert Target("apple/m1-gpu").host == Target("apple/m1")
    assert Target("acl") == Target("composite -host=llvm -devices=arm_acl")
    assert Target("trt") == Target("composite -host=llvm -devices=tensorrt,cuda")
    assert Target("dnnl-cpu") == Target("composite -host=llvm -devices=dnnl")
    board = CompilationConfig.resolve("arm/corstone-300")
    assert [item.target.kind.name for item in board.targets] == ["ethos-u", "cmsis-nn", "c"]


def test_attributes_of_a_tag_can_be_overridden():
    target = Target({"tag": "nvidia/v100", "max_num_threads": 512})
    assert target.attrs["max_num_threads"] == 512
    assert target.attrs["arch"] == "sm_70"
    assert target.tags == ("nvidia/v100",)
    assert target == Target("nvidia/v100 -max_num_threads=512")
    assert target != Target("nvidia/v100")


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "cuda", "tag": ["aws/p3", "nvidia/v100"]},
        {"kind": "cuda", "tag": ["nvidia/v100", "aws/p3"]},
        {"tag": ["aws/p3", "nvidia/v100"]},
        '{"tag": ["aws/p3"]}',
        "cuda -tag=aws/p3",
        "cuda -arch=sm_70 -tag=aws/p3,nvidia/v100",
    ],
)
def test_tags_that_are_given_apply_their_configuration(spec):
    target = Target(spec)
    assert target == Target("aws/p3")
    assert target.tags == ("aws/p3", "nvidia/v100")


def test_what_tags_say_together_is_the_sum_of_what_they_say(monkeypatch):
    monkeypatch.setattr(REGISTRY, "tags", TagTable(REGISTRY._is_kind))
    register_tag("lab/big", "cuda -registers_per_block=65536 -max_num_threads=256")
    register_tag("lab/new", {"kind": "cuda", "arch": "sm_90", "registers_per_block": 65536})
    target = Target({"tag": ["lab/big", "lab/new"]})
    assert target == Target("cuda -arch=sm_90 -max_num_threads=256 -registers_per_block=65536")
    assert Target({"tag": ["lab/big", "lab/new"], "max_num_threads": 8}).attrs == {
        **target.attrs, "max_num_threads": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("llvm -tag=nvidia/v100", "tag 'nvidia/v100' is of kind 'cuda', not 'llvm'"),
        ("llvm -tag=nvidia/v100", "\n       ^^^^^^^^^^^^^^^^\n"),
        ({"kind": "llvm", "tag": "nvidia/v100"}, "write the tag as the target: nvidia/v100"),
        ({"tag": ["nvidia/v100", "aws/c5"]}, "tag 'aws/c5' is of kind 'llvm', not 'cuda'"),
        ("cuda -tag=nosuch/tag", "tag 'nosuch/tag' is not known"),
        ("cuda -host='llvm -tag=nosuch/tag'", "host: tag 'nosuch/tag' is not known"),
        ({"kind": "cuda", "tag": ["nvidia/v10"]}, "did you mean 'nvidia/v100'"),
        ({"tag": ["nvidia/v100", "nvidia/a100"]},
         "arch: tag 'nvidia/v100' says sm_70, and tag 'nvidia/a100' says sm_80"),
        ("cuda -tag=nvidia/v100,nvidia/a100", "give arch as well, or keep one of the tags"),
        ({"kind": "cuda", "tag": ["aws/p3", "aws/p3dn"]}, "host: tag 'aws/p3' says 'llvm "),
    ],
)  # fmt: skip
def test_tags_that_contradict_something_are_named(spec, words):
    with pytest.raises(TargetError) as caught:
        Target(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"tag": "aws/p3", "host": ""},
        {"tag": ["aws/p3", "aws/p3dn"], "host": "llvm -mcpu=haswell"},
        {"tag": ["nvidia/v100", "nvidia/a100"], "arch": "sm_80"},
        {"tag": "aws/c5", "keys": []},
        {"tag": "apple/m1-gpu", "max_num_threads": 256, "thread_warp_size": 16},
    ],
)
def test_what_a_tag_says_and_the_target_does_not_survives_printing(spec):
    target = Target(spec)
    for again in (
        Target(str(target)),
        Target(target.to_json()),
        Target.from_toml(target.to_toml()),
    ):
        assert (again, again.tags, str(again)) == (target, target.tags, str(target))
    assert (target.without_tags(), target.without_tags().tags) == (target, ())


@pytest.mark.parametrize(
    ("short", "meaning"),
    [
        ("rasp4b", "arm/rasp4b"), ("v100", "nvidia/v100"), ("nvidia-gpu", "cuda"),
        ("x86-cpu", "llvm -keys=x86,cpu -mtriple=x86_64-linux-gnu"),
        ("arm-cpu", "llvm -mtriple=aarch64-linux-gnu"),
    ],
)  # fmt: skip
def test_short_spellings_are_tags(short, meaning):
    assert Target(short) == Target(meaning)
    assert Target(short).tags[0] == short


def test_a_tag_with_a_comma_in_its_name_stands_in_lists():
    name = "nvidia/geforce-gt-730-ddr3,128bit"
    for text in (f"{name}, llvm", f"{name},llvm", f"{name}:1, llvm"):
        first = CompilationConfig.resolve(text).targets[0]
        assert first.target.tags == (name,)
    assert first.device_id == 1


def test_only_the_vendor_s_file_is_read(table, project):
    assert table.find("llvm") is None
    assert not table._vendors
    assert table.find("nvidia/v100") is not None
    assert table._vendors == {"nvidia"}
    assert table.find("acl") is not None
    assert table._vendors == {"nvidia", "aliases"}
    assert table.find("../kinds/cpu") is None
    assert table.find("nosuchvendor/board") is None
    assert not project.joinpath("intarsia.toml").exists()


def test_a_file_of_the_catalogue_does_not_define_a_tag_twice(tmp_path):
    file = tmp_path / "vendor.toml"
    file.write_text('[tags]\na = "llvm"\n[[families]]\nkind = "c"\nnames = ["b", "a"]\n')
    with pytest.raises(TargetError, match="tag 'vendor/a' is defined twice"):
        read_catalogue(file)


def test_a_registered_tag_may_replace_one_of_the_catalogue(monkeypatch):
    table = TagTable(REGISTRY._is_kind)
    monkeypatch.setattr(REGISTRY, "tags", table)
    with pytest.raises(TargetError, match="'nvidia/t4' has been defined before"):
        register_tag("nvidia/t4", "cuda -arch=sm_80")
    register_tag("nvidia/t4", "cuda -arch=sm_80", override=True)
    assert Target("nvidia/t4").attrs["arch"] == "sm_80"
    assert Target("nvidia/nvidia-t4").attrs["arch"] == "sm_75"


def test_a_registered_configuration_is_a_copy(monkeypatch):
    monkeypatch.setattr(REGISTRY, "tags", TagTable(REGISTRY._is_kind))
    config = {"kind": "llvm", "mattr": ["+neon"]}
    register_tag("tests/copied", config)
    config["mattr"].append("-neon")
    assert Target("tests/copied").attrs["mattr"] == ("+neon",)


@pytest.mark.parametrize(
    ("name", "near"),
    [("nvidia/v10", "nvidia/v100"), ("aws/c6", "aws/c"), ("arm/rasp4", "arm/rasp4b")],
)
def test_an_unknown_tag_names_the_near_ones(name, near):
    for call in (Target, get_tag, CompilationConfig.resolve):
        with pytest.raises(TargetError) as caught:
            call(name)
        assert f"tag '{name}' is not known" in str(caught.value)
        assert f"did you mean '{near}" in str(caught.value)
