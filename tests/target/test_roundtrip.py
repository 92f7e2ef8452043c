# SPDX-License-Identifier: Apache-2.0
import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import TargetError
from intarsia.target import (
    AttrSpec,
    CompilationConfig,
    DeviceType,
    Target,
    TargetKind,
    VirtualDevice,
    register_kind,
)

register_kind(
    TargetKind(
        "awkward-for-tests",
        DeviceType.CPU,
        attrs=(
            AttrSpec("text", "string", default="a b"),
            AttrSpec("list", "array<string>", default=["x"]),
            AttrSpec("lists", "array<array<string>>"),
            AttrSpec("deep", "array<array<array<string>>>"),
            AttrSpec("set", "array<string>", order="unordered"),
            AttrSpec("numbers", "array<int>"),
            AttrSpec("flags", "array<bool>"),
            AttrSpec("table", "map"),
            AttrSpec("tables", "array<map>"),
            AttrSpec("targets", "array<target>"),
            AttrSpec("nested", "array<array<target>>"),
        ),
    )
)

strings = st.one_of(st.text(alphabet=" ,'\"\\-=:{}\nab", max_size=8), st.text(max_size=6))
numbers = st.integers(-(2**63), 2**63 - 1)
scalars = st.one_of(strings, numbers, st.booleans())
tables = st.dictionaries(
    strings,
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(strings, inner, max_size=2),
        max_leaves=3,
    ),
    max_size=2,
)


def lists(items):
    return st.lists(items, max_size=3)


def flat(extra):
    return st.fixed_dictionaries(
        {"kind": st.just("awkward-for-tests")},
        optional={
            "text": strings,
            "list": lists(strings),
            "lists": lists(lists(strings)),
            "deep": lists(lists(lists(strings))),
            "set": lists(strings),
            "numbers": lists(numbers),
            "flags": lists(st.booleans()),
            "table": tables,
            "tables": lists(tables),
            "device": strings,
            "model": strings,
            "libs": lists(strings),
            "keys": lists(strings),
            "tag": lists(strings),
        }
        | extra,
    )


def with_targets(inner):
    composite = st.fixed_dictionaries(
        {"kind": st.just("composite"), "devices": lists(inner)}, optional={"host": inner}
    )
    nested = {"host": inner, "targets": lists(inner), "nested": lists(lists(inner))}
    return composite | flat(nested)


targets = st.recursive(flat({}), with_targets, max_leaves=3).map(Target)


@settings(max_examples=100, deadline=None)
@given(targets)
def test_text_and_json_are_lossless_and_fixed_points(target):
    text = str(target)
    again = Target(text)
    assert again == target
    assert again.tags == target.tags
    assert str(again) == text
    assert text == text.strip()
    assert Target(target.identity).identity == target.identity
    items = json.loads(json.dumps(target.to_json()))
    assert Target.from_json(items) == target
    assert str(Target.from_json(items)) == text


@settings(max_examples=50, deadline=None)
@given(targets, st.integers(0, 3), strings)
def test_placed_targets_and_lists_of_them_are_lossless(target, ordinal, scope):
    placed = VirtualDevice(device_id=ordinal, target=target, memory_scope=scope)
    assert VirtualDevice.parse(str(placed)) == placed
    assert VirtualDevice.parse(placed.to_json()) == placed
    machine = [VirtualDevice(device_id=ordinal, target=target.without_host()), "fake"]
    if target.kind.name == "composite":
        return
    config = CompilationConfig.resolve(machine, host="reference")
    assert CompilationConfig.resolve(str(config)) == config
    assert CompilationConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.find(str(machine[0])) == config.targets[0]


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=" ,'\"\\-=:{}lvmcfake", max_size=30))
def test_any_text_resolves_to_a_lossless_value_or_is_refused_as_ours(text):
    for spec in (text, f"llvm -mcpu={text}", f"llvm, fake -ops={text}"):
        for read in (Target, VirtualDevice.parse, CompilationConfig.resolve):
            with contextlib.suppress(TargetError):
                value = read(spec)
                assert read(str(value)) == value
