# SPDX-License-Identifier: Apache-2.0
"""Targets survive text, JSON and TOML, and what cannot be read is refused as ours."""

import contextlib
import json
import tomllib
import warnings

from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.errors import TargetError
from intarsia.target import (
    AttrSpec,
    CompilationConfig,
    DeviceType,
    PlacedTarget,
    Target,
    TargetKind,
    VirtualDevice,
    register_kind,
    register_tag,
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

TAGS = ("awkward/first", "awkward/second", "awkward/third")
for _tag, _config in zip(
    TAGS,
    (
        {"kind": "awkward-for-tests", "text": "of the tag", "list": ["x"], "host": "c -model=m"},
        {"kind": "awkward-for-tests", "numbers": [1], "keys": ["a", "b"]},
        {"tag": "awkward/first", "set": ["b", "a"], "device": "d"},
    ),
    strict=True,
):
    register_tag(_tag, _config)

AWKWARD = " ,'\"\\-=:{}\n\tab\x00\x7f\u2028é日"
strings = st.one_of(
    st.text(alphabet=AWKWARD, max_size=8),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6),
)
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
            "tag": lists(st.sampled_from(TAGS)),
        }
        | extra,
    )


def with_targets(inner):
    composite = st.fixed_dictionaries(
        {"kind": st.just("composite"), "devices": lists(inner)}, optional={"host": inner}
    )
    nested = {"host": inner, "targets": lists(inner), "nested": lists(lists(inner))}
    return composite | flat(nested)


fields = flat({})
for _ in range(3):  # three deep
    fields = fields | with_targets(fields)
targets = fields.map(Target)


@settings(max_examples=100, deadline=None)
@given(targets)
def test_text_json_and_toml_are_lossless_and_fixed_points(target):
    text = str(target)
    items = json.loads(json.dumps(target.to_json()))
    assert text == text.strip()
    for again in (Target(text), Target.from_json(items), Target.from_toml(target.to_toml())):
        assert again == target
        assert hash(again) == hash(target)
        assert again.tags == target.tags
        assert again.features == target.features
        assert str(again) == text
        assert again.to_json() == items
    assert Target(target.identity).identity == target.identity


@settings(max_examples=100, deadline=None)
@given(targets, targets)
def test_targets_are_equal_if_and_only_if_what_they_say_is(first, second):
    same = _said(first.to_json()) == _said(second.to_json())
    assert (first == second) is same
    assert (first.identity == second.identity) is same
    assert not same or hash(first) == hash(second)
    assert len({first, second}) == 2 - same


def _said(items):
    """Return what counts for equality: all but tags."""
    if isinstance(items, list):
        return [_said(item) for item in items]
    if not isinstance(items, dict):
        return items
    is_target = "keys" in items and isinstance(items.get("kind"), str)
    return {name: _said(item) for name, item in items.items() if not (is_target and name == "tag")}


@settings(max_examples=100, deadline=None)
@given(lists(strings), lists(strings), lists(lists(strings)), st.permutations(["a", "b", "c"]))
def test_order_is_kept(keys, items, nested, models):
    spec = {"kind": "awkward-for-tests", "keys": keys, "list": items, "lists": nested}
    composite = {"kind": "composite", "devices": [spec | {"model": model} for model in models]}
    target = Target(composite)
    for again in (target, Target(str(target)), Target.from_toml(target.to_toml())):
        devices = again.attrs["devices"]
        assert [device.attrs["model"] for device in devices] == models
        assert devices[0].attrs["list"] == tuple(items)
        assert devices[0].attrs["lists"] == tuple(map(tuple, nested))
        if keys:
            assert devices[0].keys == tuple(dict.fromkeys(keys))


@settings(max_examples=50, deadline=None)
@given(targets, st.integers(0, 3), strings)
def test_placed_targets_and_lists_of_them_are_lossless(target, ordinal, scope):
    placed = VirtualDevice(device_id=ordinal, target=target, memory_scope=scope)
    assert PlacedTarget.parse(str(placed)) == placed
    assert PlacedTarget.parse(placed.to_json()) == placed
    machine = [VirtualDevice(device_id=ordinal, target=target.without_host()), "fake"]
    if target.kind.name == "composite":
        return
    config = CompilationConfig.resolve(machine, host="reference")
    assert CompilationConfig.resolve(config.text) == config
    assert CompilationConfig.resolve(config.text).text == config.text
    assert CompilationConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert CompilationConfig.resolve(tomllib.loads(config.to_toml())) == config
    assert config.find(str(machine[0])) == config.targets[0]
    assert str(config).startswith(f"target {config.targets[0]}: complete")


@settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=" ,'\"\\-=:{}lvmcfake1\ud800", max_size=30)
    | st.text(alphabet=st.characters(), max_size=20)
)
def test_any_text_resolves_to_a_lossless_value_or_is_refused_as_ours(text):
    for spec in (text, f"c -mcpu={text}", f"c, fake -ops={text}", f"composite -devices={text}"):
        for read, show in (
            (Target, str),
            (PlacedTarget.parse, str),
            (CompilationConfig.resolve, lambda config: config.text),
        ):
            with contextlib.suppress(TargetError):
                value = read(spec)
                assert read(show(value)) == value


objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["c", "cuda", "composite", "acl", "nvidia/v100"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["kind", "tag", "host", "keys", "devices", "targets", "labels", "libs",
                         "model", "device_id", "base", "compiler", "gpu", "cpu:1", "target_host"])
        | st.text(max_size=3) | st.integers(-1, 3),
        inner,
        max_size=4,
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(objects)
def test_any_object_is_a_target_or_refused_as_ours(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for read in (Target, PlacedTarget.parse, CompilationConfig.resolve):
            with contextlib.suppress(TargetError):
                read(spec)
