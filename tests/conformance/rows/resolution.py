# SPDX-License-Identifier: Apache-2.0
"""Rows 102 to 109: from a list of targets to a config."""

import pytest

from intarsia.target import CompilationConfig, DeviceType, Target, TargetKind, VirtualDevice
from intarsia.target import register_kind as register
from rows import refused, row

resolve = CompilationConfig.resolve

for name, device_type in (("row-ext1", "CUDA"), ("row-ext2", "CUDA"), ("row-ext-metal", "METAL")):
    register(TargetKind(name, DeviceType[device_type], is_complete=False, refines=["*"]))
register(TargetKind("row-hook-cpu", DeviceType.CPU, is_complete=False, refines=["c"]))


def kinds(spec, **options):
    return [item.target.kind.name for item in resolve(spec, **options).targets]


@row(102, "several targets of one kind are legal if they are not the same (DESIGN 5)")
def an_empty_list_is_an_error_and_one_kind_twice_is_not():
    assert "the list is empty" in refused(resolve, [])
    assert "the dictionary is empty" in refused(resolve, {})
    assert kinds("cuda:0, cuda:1, c") == ["cuda", "cuda", "c"]
    assert kinds("cuda -arch=sm_80, cuda:1 -arch=sm_70, c") == ["cuda", "cuda", "c"]
    assert "target 'cuda:1' is given twice" in refused(resolve, "cuda:1, cuda -device_id=1, c")


@row(103)
def the_first_host_is_for_all_and_the_override_is_reported():
    with pytest.warns(UserWarning, match="host 'c' is replaced by 'llvm -mcpu=skylake'") as warned:
        config = resolve(["cuda -host='llvm -mcpu=skylake'", "llvm -mcpu=cortex-a72 -host=c"])
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert config.host == Target("llvm -mcpu=skylake")
    assert config.fallback.target == Target("llvm -mcpu=cortex-a72")
    assert all(item.target.host is None for item in config.targets)
    assert "\nreplaced host c of llvm" in str(config)


@row(104, "the default host is `onnxruntime` until `llvm` can run a whole plan (DESIGN 5)")
def the_host_is_the_fallback_or_a_default():
    config = resolve("cuda, llvm -mcpu=cortex-a72")
    assert config.host == Target("llvm -mcpu=cortex-a72")
    assert "\nhost llvm -keys=arm_cpu,cpu -mcpu=cortex-a72: the fallback" in str(config)
    config = resolve("cuda")
    assert config.host == Target("onnxruntime")
    assert "\nhost onnxruntime: default, none was given" in str(config)


@row(105, "a partial target alone is an error (row 90)")
def partial_targets_stand_anywhere():
    expected = {"row-ext1", "row-ext2", "cuda"}
    for spec in (
        "cuda, row-ext1, row-ext2",
        "row-ext1, cuda, row-ext2",
        "row-ext1, row-ext2, cuda",
    ):
        config = resolve(spec)
        assert {item.target.kind.name for item in config.targets} == expected
        assert kinds(spec) == spec.split(", ")
        assert config.fallback.target == Target("cuda")
        for item in config.targets:
            refined = None if item.target.kind.is_complete else Target("cuda")
            assert config.refined(item) == refined
            assert config.device_of(item) == VirtualDevice(DeviceType.CUDA, 0)
    assert "no target given can run a whole model" in refused(resolve, "row-ext1")


@row(106, "several complete targets on one device are legal (DESIGN 5); the order decides")
def complete_targets_may_share_a_device():
    config = resolve("llvm -mcpu=cortex-a72, c, onnxruntime")
    assert config.fallback.target == Target("onnxruntime")
    assert config.least_specialised(DeviceType.CPU).target == Target("onnxruntime")
    assert kinds("cuda, nvptx") == ["cuda", "nvptx"]


@row(107, "the default device is the fallback's (DESIGN 5): the order says which, no setting does")
def the_default_device_is_the_fallbacks():
    assert resolve("cuda").default_device.device_type == DeviceType.CUDA
    assert resolve("c, cuda").default_device.device_type == DeviceType.CUDA
    assert resolve("cuda, c").default_device.device_type == DeviceType.CPU
    assert "default device cuda:0: the fallback's" in str(resolve("cuda"))
    config = resolve("cuda")
    assert "no complete target is on metal:0" in refused(config.least_specialised, DeviceType.METAL)
    assert "-1 is not a device type" in refused(config.least_specialised, -1)
    assert "-1 is not a device type" in refused(resolve, {-1: "cuda"})


@row(108)
def resolving_again_changes_nothing(fixed_cpu):
    for spec in ("acl, opencl", "cuda -host=llvm", "row-ext1, cuda, row-ext2, llvm",
                 {"gpu": "opencl:1", "cpu": "llvm"}, "cuda -compiler=tensorrt"):  # fmt: skip
        config = resolve(spec)
        assert resolve(config) == config
        assert str(resolve(config)) == str(config)
        assert resolve(config.targets, host=config.host) == config
        assert resolve(config.text) == config
        assert CompilationConfig.from_json(config.to_json()) == config


@row(109, "a partial kind is what is external: it is declared, and no hook can contradict it")
def a_partial_target_is_external_for_a_complete_one_on_its_device():
    cuda, ext1, ext2 = Target("cuda"), Target("row-ext1"), Target("row-ext2")
    assert ext1.is_external_for(cuda)
    assert ext2.is_external_for(cuda)
    assert not Target("row-ext-metal").is_external_for(cuda)
    assert not cuda.is_external_for(ext1)
    assert not ext1.is_external_for(ext2)
    assert not cuda.is_external_for(Target("cuda"))
    assert Target("row-hook-cpu").is_external_for(Target("llvm"))
    assert not Target("row-hook-cpu").refines(Target("llvm"))
    assert Target("row-hook-cpu").refines(Target("c"))
    assert Target("arm_acl").is_external_for(Target("opencl"))
    assert not Target("arm_acl").is_external_for(Target("cuda"))
    base = Target("tensorrt -base='cuda -arch=sm_80'")
    assert base.refines(Target("cuda -arch=sm_80"))
    assert not base.refines(Target("cuda -arch=sm_70"))
    assert not base.is_external_for(Target("cuda -arch=sm_70"))


@row(109)
def each_device_has_a_least_specialised_target():
    config = resolve("row-ext1, cuda, tensorrt:1, cuda:1 -arch=sm_80, c")
    assert config.least_specialised(DeviceType.CUDA).target == Target("cuda")
    assert config.least_specialised(DeviceType(2), 1).target == Target("cuda -arch=sm_80")
    assert config.least_specialised(DeviceType.CPU).target == Target("c")
    filled = config.canonical(VirtualDevice(DeviceType.CUDA, 1, None, "global"))
    assert filled == VirtualDevice(DeviceType.CUDA, 1, Target("cuda -arch=sm_80"), "global")
    assert config.canonical(VirtualDevice()) == VirtualDevice()
    assert config.canonical(filled) == filled
    gpu = resolve("arm_acl, opencl, c")
    filled = gpu.canonical(VirtualDevice(target=Target("arm_acl")))
    assert filled == VirtualDevice(DeviceType.OPENCL, None, Target("arm_acl"))
    assert "refines none" in refused(config.canonical, VirtualDevice(target=Target("arm_acl")))
    text = refused(config.canonical, VirtualDevice(DeviceType.METAL))
    assert "no complete target is on metal:0" in text
    assert "devices: cuda:0, cuda:1, cpu:0" in text
