# SPDX-License-Identifier: Apache-2.0
"""The kinds of devices, numbered as in DLPack so that tensors can be exchanged."""

from __future__ import annotations

from enum import IntEnum


class DeviceType(IntEnum):
    """What executes; a target kind maps to one of these.

    Source:
        DLPack 1.1, `DLDeviceType`; 34 and 35 are not in DLPack.
    """

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    OPENCL = 4
    VULKAN = 7
    METAL = 8
    VPI = 9
    ROCM = 10
    ROCM_HOST = 11
    EXT_DEV = 12
    CUDA_MANAGED = 13
    ONEAPI = 14
    WEBGPU = 15
    HEXAGON = 16
    MAIA = 17
    TRAINIUM = 18
    AOCL = 32
    SDACCEL = 33
    OPENGL = 34
    MICRO_DEV = 35
