# SPDX-License-Identifier: Apache-2.0
"""Rows 80 to 88: hosts."""

import warnings

import pytest

from intarsia.target import CompilationConfig, Target, register_tag
from rows import refused, row

resolve = CompilationConfig.resolve
register_tag("rows/some-host", "llvm -mcpu=skylake", override=True)


@row(80)
def the_second_argument_is_the_host():
    for host in ("llvm", {"kind": "llvm"}, Target("llvm"), '{"kind": "llvm"}'):
        assert Target("cuda", host).host.kind.name == "llvm"
    assert Target("cuda", "rows/some-host").host == Target("llvm -mcpu=skylake")
    assert Target("cuda --host nvidia/jetson-nano").host.kind.name == "cuda"


@row(81)
def a_host_is_kept_and_may_be_given_again():
    target = Target("cuda --host 'llvm -mcpu=skylake'")
    assert Target(target, None).host == Target("llvm -mcpu=skylake")
    assert Target(target, "llvm -mcpu=skylake") == target
    assert Target(target, target.host) == target


@row(82)
def a_different_host_is_a_conflict():
    target = Target("cuda --host=llvm")
    text = refused(Target, target, "c")
    assert "has another host than 'c'" in text
    assert "with_host() replaces" in text
    assert target.with_host("c").host == Target("c")
    assert "the host is None" in refused(target.with_host, None)
    with pytest.warns(UserWarning, match="host 'llvm' is replaced by 'c'"):
        assert resolve(target, host="c").host == Target("c")


@row(83, "no target is an error for a config; `compile` takes what is found on this machine")
def no_target_is_an_error():
    assert "no target is given" in refused(resolve, None)
    assert "no target is given" in refused(resolve, None, "llvm")
    with pytest.raises(ValueError, match="a target has to be"):
        Target(None, "llvm")


@row(84)
def a_host_is_set_or_taken_from_the_target():
    config = resolve("cuda", host="llvm -mcpu=skylake")
    assert config.host == Target("llvm -mcpu=skylake")
    assert Target("cuda", "llvm -mcpu=skylake").host == config.host
    config = resolve("cuda --host='llvm -mcpu=skylake'")
    assert config.host == Target("llvm -mcpu=skylake")
    assert all(item.target.host is None for item in config.targets)


@row(85)
def several_targets_have_several_forms():
    for spec, count in (
        (["llvm", "cuda"], 2),
        ({1: "llvm", 2: "cuda"}, 2),
        ({"cpu": "llvm", "gpu": "cuda"}, 2),
        ("llvm", 1),
        ({"kind": "llvm"}, 1),
    ):
        config = resolve(spec)
        assert len(config.targets) == count
        kinds = [item.target.kind.name for item in config.targets]
        assert kinds == ["llvm", "cuda"][:count]
    assert "no target is given" in refused(resolve, None)


@row(86, "a config has one host for all its targets; one that gives way is a warning, and in `str`")
def one_host_is_for_all():
    with pytest.warns(UserWarning, match="host 'c' is replaced by 'llvm -mcpu=skylake'"):
        config = resolve(["cuda -host=c", "opencl"], host="llvm -mcpu=skylake")
    assert config.host == Target("llvm -mcpu=skylake")
    assert "replaced host c of cuda" in str(config)
    assert Target("cuda", "llvm").host == Target("llvm")  # lacking one, it gets it
    assert "has another host" in refused(Target, "cuda -host=c", "llvm")


@row(87)
def a_host_handed_back_does_not_warn(fixed_cpu):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = resolve("cuda -host=llvm, opencl -host=llvm")
        assert resolve("cuda -host=llvm, opencl", host=config.host) == config
        assert resolve(config, host=config.host) == config
        assert resolve(config.targets, host=config.host) == config
        for item in config.targets:
            paired = Target(item.target, config.host)
            assert Target(paired, paired.host) == paired
            assert resolve(paired, host=paired.host).host == config.host


@row(88)
def one_algorithm_finds_the_host():
    forms = ("cuda", ["cuda"], {"kind": "cuda"}, Target("cuda"), '["cuda"]', {"gpu": "cuda"})
    configs = [resolve(form) for form in forms]
    assert len({config.host for config in configs}) == 1
    assert "default, none was given" in str(configs[0])
    assert all(str(config).splitlines()[2] == str(configs[0]).splitlines()[2] for config in configs)
    assert resolve("cuda, reference").host == resolve("cuda, opencl, reference").host
