# SPDX-License-Identifier: Apache-2.0
"""Rows 110 and 111: virtual devices as values; what follows for plans is in `placement`."""

from intarsia.target import CompilationConfig, DeviceType, Target, VirtualDevice
from rows import refused, row

CPU, CUDA = DeviceType.CPU, DeviceType.CUDA
T = Target("cuda -arch=sm_80")
DLPACK = {
    "CPU": 1, "CUDA": 2, "CUDA_HOST": 3, "OPENCL": 4, "VULKAN": 7, "METAL": 8, "VPI": 9, "ROCM": 10,
    "ROCM_HOST": 11, "EXT_DEV": 12, "CUDA_MANAGED": 13, "ONEAPI": 14, "WEBGPU": 15, "HEXAGON": 16,
    "MAIA": 17, "TRAINIUM": 18,
}  # fmt: skip
OLDER = {"AOCL": 32, "SDACCEL": 33, "OPENGL": 34, "MICRO_DEV": 35}


@row(110)
def joining_agrees_or_is_undefined():
    pairs = (
        (VirtualDevice(CUDA, 3), VirtualDevice(CUDA, None, T, "global"),
         VirtualDevice(CUDA, 3, T, "global")),
        (VirtualDevice(CUDA), VirtualDevice(CUDA, 2, T), VirtualDevice(CUDA, 2, T)),
        (VirtualDevice(), VirtualDevice(CUDA, 2, T, "s"), VirtualDevice(CUDA, 2, T, "s")),
        (VirtualDevice(), VirtualDevice(), VirtualDevice()),
        (VirtualDevice(CUDA), VirtualDevice(CPU), None),
        (VirtualDevice(CUDA, 3), VirtualDevice(CUDA, 4), None),
        (VirtualDevice(CUDA, 0, None, "local"), VirtualDevice(CUDA, 0, None, "global"), None),
        (VirtualDevice(target=T), VirtualDevice(target=Target("cuda -arch=sm_70")), None),
    )  # fmt: skip
    for left, right, joined in pairs:
        assert left.join(right) == joined
        assert right.join(left) == joined


@row(110)
def equal_targets_join():
    left = VirtualDevice(CUDA, 0, Target({"kind": "cuda", "arch": "sm_80"}))
    right = VirtualDevice(CUDA, 0, Target("cuda  -arch=sm_80"))
    assert left.join(right) == left == right


@row(110)
def defaults_fill_what_is_unknown():
    device = VirtualDevice(CUDA, None, None, "global")
    assert device.default(VirtualDevice(CUDA, 3, T, "local")) == VirtualDevice(CUDA, 3, T, "global")
    other = VirtualDevice(CPU).default(VirtualDevice(CUDA, 3, T, "local"))
    assert other == VirtualDevice(CPU, 3, None, "local")


@row(110)
def a_target_has_to_fit_its_device():
    assert "does not run on device type CPU" in refused(VirtualDevice, CPU, 0, T)
    assert "is not a device type" in refused(VirtualDevice, 5)
    assert "-1 is not a device type" in refused(VirtualDevice, -1)
    assert "negative" in refused(VirtualDevice, CPU, -1)
    assert VirtualDevice(target=T).device_type == CUDA


@row(110)
def device_types_are_those_of_dlpack():
    assert {item.name: item.value for item in DeviceType} == DLPACK | OLDER


@row(111)
def ordinal_and_scope_count():
    devices = {
        VirtualDevice(CUDA, 0, T), VirtualDevice(CUDA, 1, T), VirtualDevice(CUDA, 0, T, "local"),
    }  # fmt: skip
    assert len({device.memory_domain for device in devices}) == len(devices) == 3
    config = CompilationConfig.resolve("tensorrt -base='cuda -arch=sm_80', c")
    first, second = (config.device_of(item) for item in config.targets[:2])
    assert first.memory_domain == second.memory_domain  # a library on the same device: no copy
