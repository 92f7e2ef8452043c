# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from intarsia.errors import TargetError
from intarsia.target import PlacedTarget, Target

RICH = {
    "kind": "llvm",
    "keys": ["arm_cpu", "cpu"],
    "device": "arm_cpu",
    "libs": ["cblas"],
    "mfloat-abi": "hard",
    "mattr": ["+neon", "-avx512f"],
}


def test_a_dictionary_and_its_json_text_are_one_target():
    target = Target(RICH)
    assert target == Target(json.dumps(RICH))
    assert target.keys == ("arm_cpu", "cpu")
    assert target.attrs["mattr"] == ("+neon", "-avx512f")
    assert target.attrs["mfloat-abi"] == "hard"


def test_device_is_a_key_once():
    target = Target({"kind": "llvm", "keys": ["cpu", "arm_cpu"], "device": "arm_cpu"})
    assert target.keys == ("cpu", "arm_cpu")
    assert dict(target.attrs) == {"device": "arm_cpu"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "needs a kind"),
        ({"mcpu": "x"}, "needs a kind"),
        ({"kind": "llvm", "nosuch": 1}, "no attribute 'nosuch'"),
        ({"kind": "llvm", "nosuch": None}, "no attribute 'nosuch'"),
        (
            {"kind": "llvm", "fast-math": "true"},
            "fast-math: expects type bool, but gets 'true' (string)",
        ),
        ({"kind": "llvm", "fast-math": 1}, "fast-math: expects type bool"),
        ({"kind": "llvm", "num-cores": "1"}, "num-cores: expects type int"),
        ({"kind": "llvm", "num-cores": True}, "num-cores: expects type int"),
        ({"kind": "llvm", "num-cores": 1.5}, "(float)"),
        ({"kind": "llvm", "num-cores": 2**63}, "does not fit in 64 bits"),
        ({"kind": "llvm", "libs": {"a": 1}}, "libs: expects type array<string>"),
        ({"kind": "llvm", "mattr": "+neon"}, "mattr: expects type array<string>"),
        ({"kind": "llvm", "mattr": ["a", 1]}, "mattr[1]: expects type string"),
        ({"kind": "llvm", "keys": "cpu"}, "keys: expects type array<string>"),
        ({"kind": "llvm", "keys": [1]}, "keys[0]: expects type string"),
        ({"kind": 1}, "kind has to be a string"),
        ({"kind": ["llvm"]}, "kind has to be a string"),
        ({"kind": "llvm", "tag": 1}, "tag has to be a string"),
        ({"kind": "llvm", "tag": [1]}, "tag has to be a string"),
        ({"kind": "llvm", 1: 2}, "has to be a string, not 1"),
        ({"kind": "llvm", "features": {}}, "features cannot be given"),
        ({"kind": "llvm", "mcpu": None}, "mcpu: expects type string, but gets None (null)"),
        ({"kind": "llvm", "host": None}, "host: expects type target"),
        ({"kind": "llvm", "host": 5}, "host: expects type target"),
        ({"kind": "cuda", "compiler": 5}, "compiler: expects type string"),
        (
            {"kind": "composite", "devices": ["cuda", {"kind": "cuda", "arch": "80"}]},
            "devices[1].arch",
        ),
        ({"kind": "llvm", "target_device_type": 5}, "5 is not a device type"),
        ('{"kind": "llvm", "mcpu": "a", "mcpu": "b"}', "mcpu: given twice"),
        ('{"kind": "llvm",\n "mcpu": }', "line 2 column 10"),
        ("{" * 100_000, "malformed JSON"),
        (5, "a target has to be text, a dictionary or a Target, not int: 5"),
        (None, "a target has to be"),
        (["llvm"], "a target has to be"),
        (object(), "a target has to be"),
        (PlacedTarget.parse("llvm"), "a target has to be"),
    ],
)
def test_a_malformed_object_is_refused_by_name(spec, words):
    with pytest.raises(TargetError) as caught:
        Target(spec)
    assert words in str(caught.value)


def test_deep_json_is_refused_not_a_crash():
    with pytest.raises(TargetError, match=r"nested too deeply|malformed JSON"):
        Target('{"a":' * 100_000)


@pytest.mark.parametrize("host", ["llvm -mcpu=x", {"kind": "llvm", "mcpu": "x"}])
def test_a_host_has_any_form(host):
    wanted = Target("cuda", Target("llvm -mcpu=x"))
    assert Target({"kind": "cuda", "host": host}) == wanted
    assert Target("cuda", host) == wanted
    assert Target({"kind": "cuda", "host": Target(host)}) == wanted


def test_toml_is_a_document_with_a_line_for_each_item():
    target = Target({"kind": "llvm", "model": 'a "b"\n\x7f', "libs": [], "host": {"kind": "c"}})
    assert target.to_toml() == (
        'kind = "llvm"\nkeys = ["cpu"]\nhost = { kind = "c", keys = ["cpu"] }\n'
        'libs = []\nmodel = "a \\"b\\"\\n\\u007f"\n'
    )
    assert Target.from_toml(target.to_toml()) == target
    for text, words in (("kind = ", "malformed TOML"), ('kind = "lvm"', "did you mean 'llvm'")):
        with pytest.raises(TargetError, match=words):
            Target.from_toml(text)


def test_json_says_everything_in_one_order():
    items = Target("cuda -model=b -arch=sm_80 -host=llvm").to_json()
    assert list(items) == [
        "kind", "keys", "host", "arch", "max_num_threads", "model", "thread_warp_size",
    ]  # fmt: skip
    assert items["max_num_threads"] == 1024
