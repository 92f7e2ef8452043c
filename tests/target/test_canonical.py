# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
import threading

import pytest

from intarsia.errors import TargetError
from intarsia.target import (
    AttrSpec,
    Canonical,
    DeviceType,
    Target,
    TargetKind,
    register_kind,
)
from intarsia.target.registry import REGISTRY


def woof(attrs):
    bark = attrs.get("bark", "")
    if bark == "woof":
        attrs = {**attrs, "bark": "super_woof"}
    return Canonical(attrs, keys=("super",), features={"test": bark.endswith("woof")})


register_kind(
    TargetKind(
        "dog-for-tests",
        DeviceType.CPU,
        attrs=(AttrSpec("bark", "string"),),
        default_keys=("cpu",),
        canonicalizer=woof,
    )
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("llvm -mcpu=cortex-m3", "llvm -keys=arm_cpu,cpu -mcpu=cortex-m3"),
        ("opencl -device=mali", "opencl -keys=mali,opencl,gpu -device=mali"),
        ("llvm -mtriple=t -mcpu=x", "llvm -mcpu=x -mtriple=t"),
        ("llvm -keys=cpu", "llvm"),
        ("llvm -keys=cpu -mcpu=cortex-m3", "llvm -keys=cpu,arm_cpu -mcpu=cortex-m3"),
        ("cuda -max_num_threads=1024", "cuda"),
        ("cuda -max_num_threads=7", "cuda -max_num_threads=7"),
        ("llvm -fast-math", "llvm -fast-math=true"),
        ("llvm -mattr=+a,-b,-a", "llvm -mattr=-b,-a"),
        ("cuda -host='llvm -mcpu=x'", "cuda -host='llvm -mcpu=x'"),
        ("llvm -mcpu=''", "llvm -mcpu=''"),
        ("acl", "composite -devices=arm_acl -host=llvm -tag=acl"),
        ("cuda -compiler=tensorrt", "tensorrt -base=cuda"),
    ],
)
def test_the_text_is_short_sorted_and_a_fixed_point(text, canonical):
    target = Target(text)
    assert str(target) == canonical
    assert str(Target(canonical)) == canonical
    assert Target(canonical) == target


def test_equal_targets_are_one_dictionary_key():
    left, right = Target("llvm -mcpu=x -mtriple=t"), Target("llvm -mtriple=t -mcpu=x")
    assert left is not right
    assert {left: 1}[right] == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("llvm", "c"),
        ("llvm", "llvm -mcpu=x"),
        ("cuda", "cuda -host=llvm"),
        ("llvm -keys=a,b", "llvm -keys=b,a"),
        ("llvm -mcpu=''", "llvm"),
        ("composite -devices=cuda,opencl", "composite -devices=opencl,cuda"),
    ],
)
def test_targets_that_say_different_things_differ(left, right):
    assert Target(left) != Target(right)
    assert Target(left) != left


def test_tags_do_not_count_for_equality_even_when_nested():
    tagged, plain = Target("acl"), Target("composite -host=llvm -devices=arm_acl")
    assert tagged == plain
    assert hash(tagged) == hash(plain)
    assert tagged.tags == ("acl",)
    assert Target("cuda", "aws/c5") == Target("cuda", Target("aws/c5").identity)


def test_targets_are_immutable():
    target = Target("llvm -mcpu=x")
    with pytest.raises(AttributeError, match="immutable"):
        target.kind = Target("c").kind
    with pytest.raises(AttributeError, match="immutable"):
        del target.kind
    with pytest.raises(TypeError):
        target.attrs["mcpu"] = "y"
    with pytest.raises(AttributeError, match="read-only"):
        target.attrs.mcpu = "y"


@pytest.mark.parametrize("text", ["acl", "aws/p3", "llvm -mcpu=cortex-m55"])
def test_targets_survive_copy_and_pickle(text):
    target = Target(text)
    for other in (copy.deepcopy(target), pickle.loads(pickle.dumps(target))):
        assert other == target
        assert other.tags == target.tags
        assert dict(other.features) == dict(target.features)
    assert eval(repr(target)) == target


def test_the_current_target_is_restored_on_exceptions_too():
    outer, inner = Target("llvm"), Target("c")
    assert Target.current() is None
    with outer:
        assert Target.current() is outer
        with inner:
            assert Target.current(allow_none=False) is inner
        with pytest.raises(TargetError, match="nosuch"), inner:
            Target("nosuch")
        assert Target.current() is outer
    assert Target.current() is None
    with pytest.raises(TargetError, match="no current target"):
        Target.current(allow_none=False)


def test_the_current_target_belongs_to_a_thread():
    seen = []
    with Target("llvm"):
        thread = threading.Thread(target=lambda: seen.append(Target.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_canonicaliser_rewrites_sets_keys_and_adds_features():
    target = Target("dog-for-tests -bark=woof")
    assert target.attrs["bark"] == "super_woof"
    assert target.keys == ("super",)
    assert target.features.test is True
    assert target.features.missing is None
    assert Target(str(target)) == target


def test_the_keys_of_the_user_win():
    assert Target("dog-for-tests -keys=a").keys == ("a",)
    assert Target("opencl -keys=a -device=mali").keys == ("a", "mali")


def test_a_canonicaliser_that_is_not_idempotent_is_refused(monkeypatch):
    def longer(attrs):
        return Canonical({**attrs, "bark": attrs.get("bark", "") + "x"})

    kind = TargetKind(
        "longer-for-tests",
        DeviceType.CPU,
        attrs=(AttrSpec("bark", "string"),),
        canonicalizer=longer,
    )
    monkeypatch.setitem(REGISTRY._kinds, kind.name, kind)  # gone afterwards: others list the kinds
    with pytest.raises(TargetError, match="not idempotent"):
        Target("longer-for-tests -bark=y")


def test_a_canonicaliser_may_set_only_declared_attributes(monkeypatch):
    kind = TargetKind(
        "stray-for-tests",
        DeviceType.CPU,
        canonicalizer=lambda attrs: Canonical({**attrs, "nosuch": 1}),
    )
    monkeypatch.setitem(REGISTRY._kinds, kind.name, kind)
    with pytest.raises(TargetError, match="sets 'nosuch'"):
        Target("stray-for-tests")


@pytest.mark.parametrize("kind", ["c", "llvm", "cmsis-nn"])
@pytest.mark.parametrize(
    ("options", "features", "keys"),
    [
        ("-mcpu=cortex-m55", (True, True), ("arm_cpu", "cpu")),
        ("-mcpu=cortex-m7", (True, False), ("arm_cpu", "cpu")),
        ("-mcpu=cortex-m3", (False, False), ("arm_cpu", "cpu")),
        ("-mcpu=cortex-m55+nomve", (True, False), ("arm_cpu", "cpu")),
        ("-mcpu=cortex-m55 -mattr=+nomve,+junk", (True, False), ("arm_cpu", "cpu")),
        ("-mcpu=cortex-m55+nodsp+junk", (False, False), ("arm_cpu", "cpu")),
        ("-mcpu=cortex-m55 -mattr=+nodsp", (False, False), ("arm_cpu", "cpu")),
        ("-mcpu=cake", (None, None), ("cpu",)),
    ],
)
def test_arm_m_profile_is_recognised(kind, options, features, keys):
    target = Target(f"{kind} {options}")
    assert (target.features.has_dsp, target.features.has_mve) == features
    assert target.keys == keys


@pytest.mark.parametrize(
    "option",
    [
        "---unroll-factor:uint=0", "-option:", "-option:=", "-option:bool", "-option:bool=",
        "-option:invalidtype=xyz", "-option=2", "-option=fred", "-option:bool=2",
        "-option:int=haha", "-option:uint=haha",
    ],
)  # fmt: skip
def test_a_malformed_llvm_option_is_refused(option):
    with pytest.raises(TargetError, match=r"cl-opt\[0\]"):
        Target({"kind": "llvm", "cl-opt": [option]})


def test_well_formed_llvm_options_are_kept():
    target = Target("llvm -cl-opt='-unroll-threshold:uint=100,-unroll-count:uint=3,-x,-y=true'")
    assert target.attrs["cl-opt"][:2] == ("-unroll-threshold:uint=100", "-unroll-count:uint=3")


def test_cuda_architectures_with_a_letter_are_accepted():
    assert Target("cuda -arch=sm_90a").attrs["arch"] == "sm_90a"
