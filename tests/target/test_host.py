# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest

from intarsia.errors import TargetError
from intarsia.target import CompilationConfig, Target

pytestmark = pytest.mark.usefixtures("fixed_cpu")
HERE = "llvm -mattr=-clflushopt -mcpu=skylake"
"""A plain `llvm`, on the machine of the fixture `fixed_cpu`."""


def host_of(*args: object, **options: object) -> str:
    return str(CompilationConfig.resolve(*args, **options).host)


def test_the_constructor_pairs_and_keeps_hosts():
    assert Target("cuda", "llvm").host == Target("llvm")
    target = Target("cuda --host='llvm -mcpu=x'")
    assert Target(target, None) == target
    assert Target(target, "llvm -mcpu=x") == target
    assert Target("cuda --host nvidia/jetson-nano").host.kind.name == "cuda"


def test_a_different_host_is_a_conflict_and_with_host_replaces():
    target = Target("cuda --host=llvm")
    with pytest.raises(TargetError, match="has another host"):
        Target(target, "c")
    assert target.with_host("c").host == Target("c")
    assert target.host == Target("llvm")
    assert target.without_host() == Target("cuda")
    assert Target("cuda").without_host() == Target("cuda")
    with pytest.raises(TargetError, match="the host is None"):
        target.with_host(None)


@pytest.mark.parametrize(
    ("spec", "host"),
    [
        ("llvm -mcpu=x", "llvm -mcpu=x"),
        (["cuda", "llvm"], HERE),
        (["cuda"], "onnxruntime"),
        (["llvm", "cuda"], "onnxruntime"),
        ("openvino, reference", "reference"),
        ("cuda -host='llvm -mcpu=x', c", "llvm -mcpu=x"),
        ("acl", HERE),
        ("acl, llvm -mattr=+neon", "llvm -mattr=+neon"),
        ("acl, opencl", HERE),
        ("opencl -device=mali, llvm -mcpu=skylake", "llvm -mcpu=skylake"),
    ],
)
def test_one_rule_finds_the_host(spec, host):
    assert host_of(spec) == host


def test_the_host_argument_wins_and_an_override_is_reported():
    assert host_of("cuda", host="llvm") == HERE
    with pytest.warns(UserWarning, match="host 'llvm' is replaced by 'c'"):
        assert host_of("cuda -host=llvm", host="c") == "c"
    with pytest.warns(UserWarning, match=f"host 'c' is replaced by '{HERE}'"):
        assert host_of(["cuda -host=llvm", "opencl -host=c"]) == HERE


def test_a_host_handed_back_does_not_warn():
    config = CompilationConfig.resolve("cuda -host=llvm, opencl -host=llvm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert CompilationConfig.resolve("cuda -host=llvm, opencl", host=config.host) == config
        assert CompilationConfig.resolve(config, host=config.host) == config
        assert CompilationConfig.resolve(config.targets, host=config.host) == config


def test_a_config_can_be_given_another_host():
    config = CompilationConfig.resolve("cuda")
    assert host_of(config, host="llvm") == HERE


@pytest.mark.parametrize("host", ["openvino", "cuda", "fake", "acl"])
def test_a_host_has_to_run_a_whole_model_on_a_cpu(host):
    with pytest.raises(TargetError, match="cannot be the host"):
        CompilationConfig.resolve("cuda", host=host)


@pytest.mark.parametrize(
    ("spec", "host", "inner"),
    [
        ("composite -host=llvm -devices='opencl -host=onnxruntime'", HERE, "onnxruntime"),
        ("composite -host=c -devices='opencl -host=onnxruntime'", "c", "onnxruntime"),
        (
            "composite -host=c -devices='composite -host=onnxruntime -devices=opencl'",
            "c",
            "onnxruntime",
        ),
        ("opencl -host='llvm -host=onnxruntime'", HERE, "onnxruntime"),
        ({"kind": "cuda", "host": {"kind": "llvm", "host": "c"}}, HERE, "c"),
        ("tensorrt -base='cuda -arch=sm_80 -host=c' -host=onnxruntime", "onnxruntime", "c"),
        (["opencl -host=c", "onnxruntime -host=reference"], "c", "reference"),
        ({"targets": ["opencl -host=c"], "host": "onnxruntime"}, "onnxruntime", "c"),
    ],
)
def test_an_inner_host_that_contradicts_the_outer_one_warns_and_the_outer_wins(spec, host, inner):
    with pytest.warns(UserWarning, match=f"host '{inner}' is replaced by '{host}'") as caught:
        config = CompilationConfig.resolve(spec)
    assert len(caught) == 1
    assert str(config.host) == host
    assert [text.split(" of ")[0] for text in config.reasons.replaced] == [f"host {inner}"]
    assert CompilationConfig.resolve(config.text) == config  # and says nothing again


@pytest.mark.parametrize(
    "spec",
    [
        "composite -host=llvm -devices='opencl -host=llvm'",
        "opencl -host='c -host=c'",
        "tensorrt -base='cuda -arch=sm_80 -host=c' -host=c",
        "acl, llvm -mattr=-avx2",
    ],
)
def test_hosts_that_agree_are_quiet(spec):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CompilationConfig.resolve(spec)
