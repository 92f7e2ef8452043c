# SPDX-License-Identifier: Apache-2.0
"""Rows 27 to 39: dictionaries and JSON text."""

import json

import pytest

from intarsia.target import AttrSpec, DeviceType, Target, TargetKind, register_kind, register_tag
from rows import refused, row

register_kind(
    TargetKind(
        "row-maps",
        DeviceType.CPU,
        attrs=(
            AttrSpec("your_names", "array<string>"),
            AttrSpec("her_maps", "map"),
            AttrSpec("my_bool", "bool"),
        ),
    )
)
register_tag("rows/json-host", "llvm -num-cores=3", override=True)

RICH = {
    "kind": "llvm",
    "keys": ["arm_cpu", "cpu"],
    "device": "arm_cpu",
    "libs": ["cblas"],
    "mfloat-abi": "hard",
    "mattr": ["+neon", "-avx512f"],
}


@row(27)
def a_dictionary_and_its_json_text_are_one_target():
    target = Target(RICH)
    assert Target(json.dumps(RICH)) == target
    assert target.kind.name == "llvm"
    assert target.keys == ("arm_cpu", "cpu")
    assert target.attrs["device"] == "arm_cpu"
    assert target.attrs["libs"] == ("cblas",)
    assert target.attrs["mfloat-abi"] == "hard"
    assert target.attrs["mattr"] == ("+neon", "-avx512f")


@row(28)
def the_kind_is_needed():
    assert "a target needs a kind" in refused(Target, {"mcpu": "x"})
    assert "a target needs a kind" in refused(Target, "{}")


@row(29)
def an_unknown_key_is_an_error():
    assert "no attribute 'nosuch'" in refused(Target, {"kind": "llvm", "nosuch": 1})


@row(30)
def nothing_is_coerced():
    text = refused(Target, {"kind": "row-maps", "my_bool": "true"})
    assert "my_bool: expects type bool, but gets 'true' (string)" in text
    text = refused(Target, {"kind": "llvm", "mattr": "+neon"})
    assert "mattr: expects type array<string>, but gets '+neon' (string)" in text
    assert "num-cores: expects type int" in refused(Target, {"kind": "llvm", "num-cores": "1"})
    assert "num-cores: expects type int" in refused(Target, {"kind": "llvm", "num-cores": 1.0})
    assert "num-cores: expects type int" in refused(Target, {"kind": "llvm", "num-cores": True})


@row(31)
def libs_are_no_object():
    with pytest.raises(ValueError, match="libs: expects type array<string>"):
        Target({"kind": "llvm", "libs": {"a": 1}})


@row(32)
def keys_kind_and_tag_have_their_types():
    assert "keys: expects type array" in refused(Target, {"kind": "llvm", "keys": "cpu"})
    assert "keys[0]: expects type string" in refused(Target, {"kind": "llvm", "keys": [1]})
    assert "kind has to be a string" in refused(Target, {"kind": 1})
    assert "tag has to be a string" in refused(Target, {"kind": "llvm", "tag": 1})


@row(33)
def a_map_nests_where_the_schema_has_one():
    maps = {"a": 1, "b": {"c": [True, "d", {"e": -2}]}}
    target = Target({"kind": "row-maps", "her_maps": maps, "your_names": ["junru", "jian"]})
    assert target.attrs["her_maps"]["b"]["c"][2]["e"] == -2
    assert target.to_json()["her_maps"] == maps
    assert Target(str(target)) == target
    assert "your_names" in refused(Target, {"kind": "row-maps", "your_names": maps})


@row(34)
def features_are_derived():
    text = refused(Target, {"kind": "llvm", "features": {"has_asimd": True}})
    assert "features cannot be given" in text
    assert "features cannot be given" in refused(Target, "llvm -features=x")


@row(35)
def null_is_an_error_that_names_the_key():
    assert "mcpu: expects type string, but gets None" in refused(
        Target, '{"kind": "llvm", "mcpu": null}'
    )
    assert "host: expects type target" in refused(Target, {"kind": "llvm", "host": None})
    assert "no attribute 'nosuch'" in refused(Target, {"kind": "llvm", "nosuch": None})


@row(36)
def a_key_given_twice_is_an_error():
    assert "mcpu: given twice" in refused(Target, '{"kind": "llvm", "mcpu": "a", "mcpu": "b"}')


@row(37)
def malformed_json_is_located():
    text = refused(Target, '{"kind": "llvm",\n "mcpu": }')
    assert "malformed JSON" in text
    assert "at line 2 column 10" in text
    assert ' "mcpu": }\n           ^' in text
    with pytest.raises(ValueError, match="malformed JSON"):
        Target("{")


@row(38)
def a_host_may_have_any_form():
    wanted = Target("cuda -arch=sm_80 -host='llvm -num-cores=3'")
    forms = (
        "llvm -num-cores=3",
        "rows/json-host",
        {"kind": "llvm", "num-cores": 3},
        '{"kind": "llvm", "num-cores": 3}',
        Target("llvm -num-cores=3"),
    )
    for form in forms:
        assert Target({"kind": "cuda", "arch": "sm_80", "host": form}) == wanted
        assert Target("cuda -arch=sm_80", form) == wanted


@row(39)
def a_number_or_a_list_is_no_target():
    for spec in (5, 1.5, ["llvm"], None):
        with pytest.raises(ValueError, match="a target has to be text, a dictionary or a Target"):
            Target(spec)
    with pytest.raises(ValueError, match="a target has to be text, a dictionary or a Target"):
        Target("llvm", 5)
