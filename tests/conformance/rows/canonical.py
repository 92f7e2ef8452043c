# SPDX-License-Identifier: Apache-2.0
"""Rows 40 to 50: canonical text, round trips, equality, immutability, the current target."""

import json
import threading

import pytest

from intarsia.target import (
    AttrSpec,
    Canonical,
    CompilationConfig,
    DeviceType,
    Target,
    TargetKind,
    list_kinds,
    list_tags,
    register_kind,
    register_tag,
)
from rows import refused, row


def _derive_parity(attrs):
    return Canonical(attrs, features={"parity": len(attrs.get("word", "")) % 2})


register_kind(
    TargetKind(
        "row-awkward",
        DeviceType.CPU,
        attrs=(
            AttrSpec("word", "string", default="a b"),
            AttrSpec("list", "array<string>", default=["x"]),
            AttrSpec("lists", "array<array<string>>"),
            AttrSpec("maps", "array<map>"),
            AttrSpec("targets", "array<target>"),
        ),
        canonicalizer=_derive_parity,
    )
)

TAGS = ("row/日本語", "row/a,b")
register_tag(TAGS[0], {"kind": "row-awkward", "word": "tagged", "host": "c -model=tagged"})
register_tag(TAGS[1], {"kind": "row-awkward", "keys": ["k"]})

AWKWARD = (
    "",
    " ",
    "a b",
    "a,b",
    "'",
    '"',
    "\\",
    "-x=1",
    "'a",
    'b"',
    "a\nb",
    "{}",
    "日本語",
    "a\\' b",
)


def every_target():
    """Return targets of each kind and tag, and awkward ones nested three deep."""
    inner = [
        Target({"kind": "row-awkward", "word": word, "list": [word, *AWKWARD], "model": word,
                "lists": [[], [word], [word, ""]], "maps": [{word: [word, {"n": -1}]}],
                "tag": TAGS, "keys": [word, "k"], "host": {"kind": "llvm", "model": word}})
        for word in AWKWARD
    ]  # fmt: skip
    middle = [Target({"kind": "composite", "devices": inner[:3], "host": inner[3]})]
    outer = [Target({"kind": "row-awkward", "targets": middle, "host": middle[0]})]
    deepest = [Target({"kind": "composite", "devices": [*outer, *middle], "host": outer[0]})]
    kinds = [Target(name) for name in list_kinds(all=True)]
    return [*inner, *middle, *outer, *deepest, *kinds, *(Target(tag) for tag in list_tags())]


@row(40)
def keys_that_are_not_the_kinds_own_are_printed():
    assert str(Target("llvm -mcpu=cortex-m3")) == "llvm -keys=arm_cpu,cpu -mcpu=cortex-m3"


@row(41)
def attributes_are_sorted():
    target = Target("opencl -thread_warp_size=4 -model=m -device=mali -max_num_threads=8")
    names = [word.partition("=")[0] for word in str(target).split()]
    assert names[1] == "-keys"
    assert names[2:] == sorted(names[2:])
    assert str(Target("llvm -num-cores=2 -model=m")) == str(Target("llvm -model=m -num-cores=2"))


@row(42)
def no_blank_trails():
    assert str(Target("llvm")) == "llvm"
    assert str(Target("stackvm")) == "stackvm"


@row(43)
def the_text_is_lossless():
    for target in every_target():
        again = Target(str(target))
        assert again == target
        assert again.host == target.host
        assert again.tags == target.tags
        assert again.attrs == target.attrs
        assert again.keys == target.keys
        assert again.features == target.features


@row(44)
def json_is_lossless_and_in_one_order():
    for target in every_target():
        text = json.dumps(target.to_json())
        again = Target.from_json(json.loads(text))
        assert again == target
        assert again.tags == target.tags
        assert json.dumps(again.to_json()) == text
    first = Target('{"kind": "opencl", "model": "m", "device": "mali"}').to_json()
    second = Target('{"device": "mali", "model": "m", "kind": "opencl"}').to_json()
    assert list(first) == list(second)


@row(44)
def toml_is_lossless_too():
    for target in every_target():
        again = Target.from_toml(target.to_toml())
        assert again == target
        assert again.tags == target.tags


@row(45)
def the_text_is_a_fixed_point():
    for target in every_target():
        text = str(target)
        assert str(Target(text)) == text
        assert str(Target(target.to_json())) == text


@row(46)
def equal_targets_are_interchangeable():
    first, second = Target("cuda -arch=sm_80"), Target({"kind": "cuda", "arch": "sm_80"})
    assert first == second
    assert hash(first) == hash(second)
    assert {first: "one"}[second] == "one"
    assert len({first, second}) == 1


@row(47, "tags and features are provenance and do not count (DESIGN 5)")
def targets_that_differ_are_unequal():
    target = Target("cuda -arch=sm_80 -keys=cuda,gpu -host=llvm")
    for text in (
        "nvptx -mcpu=sm_80 -keys=cuda,gpu -host=llvm",
        "cuda -arch=sm_80 -keys=cuda,gpu -host=c",
        "cuda -arch=sm_80 -keys=cuda,gpu",
        "cuda -arch=sm_80 -keys=gpu,cuda -host=llvm",
        "cuda -arch=sm_86 -keys=cuda,gpu -host=llvm",
    ):
        assert Target(text) != target
    assert target != "cuda -arch=sm_80 -keys=cuda,gpu -host=llvm"
    tagged = Target("nvidia/jetson-nano")
    assert tagged.tags
    assert tagged == Target(tagged.identity)
    assert not Target(tagged.identity).tags


@row(48)
def lists_keep_their_order():
    composite = Target("composite -devices=opencl,cuda,vulkan -host=llvm")
    order = [device.kind.name for device in composite.attrs["devices"]]
    for again in (Target(str(composite)), Target(composite.to_json())):
        assert [device.kind.name for device in again.attrs["devices"]] == order
    assert order == ["opencl", "cuda", "vulkan"]
    target = Target("llvm -keys=b,a -mattr=+neon,-fp16,+dotprod")
    for again in (target, Target(str(target)), Target(target.to_json())):
        assert again.keys == ("b", "a")
        assert again.attrs["mattr"] == ("+neon", "-fp16", "+dotprod")


@row(48, "libs are a set (DESIGN 5): they compare and print sorted, however they are given")
def libs_are_a_set():
    target = Target("cuda -libs=cudnn,cublas")
    assert target == Target("cuda -libs=cublas,cudnn")
    assert target.to_json()["libs"] == ["cublas", "cudnn"]


@row(49)
def targets_are_immutable():
    target = Target("cuda -arch=sm_80")
    with pytest.raises(AttributeError, match="immutable"):
        target.host = Target("llvm")
    with pytest.raises(AttributeError, match="immutable"):
        del target.kind
    with pytest.raises(TypeError):
        target.attrs["arch"] = "sm_86"
    paired = target.with_host("llvm")
    assert paired is not target
    assert paired.host == Target("llvm")
    assert target.host is None


def _fail_inside(target):
    with target:
        assert Target.current() is target
        raise ZeroDivisionError


@row(50)
def a_target_is_current_inside_with():
    assert Target.current() is None
    outer, inner = Target("llvm"), Target("cuda")
    with outer:
        with pytest.raises(ZeroDivisionError):
            _fail_inside(inner)
        assert Target.current() is outer
        seen = []
        thread = threading.Thread(target=lambda: seen.append(Target.current()))
        thread.start()
        thread.join()
        assert seen == [None]
    assert Target.current() is None
    assert "there is no current target" in refused(Target.current, allow_none=False)


@row(50)
def a_config_is_a_fixed_point_too(fixed_cpu):
    for spec in ("acl, llvm -mattr=+neon", "cuda -arch=sm_80 -host=llvm", "llvm"):
        config = CompilationConfig.resolve(spec)
        assert CompilationConfig.resolve(config.text) == config
        assert CompilationConfig.resolve(config.text).text == config.text
