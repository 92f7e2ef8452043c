# SPDX-License-Identifier: Apache-2.0
"""Rows 51 to 67 and 79: kinds, what their canonicalisers find out, and features."""

import pytest

from intarsia.target import (
    AttrSpec,
    Canonical,
    CompilationConfig,
    DeviceType,
    Target,
    TargetKind,
    get_kind,
    list_kinds,
    register_kind,
)
from rows import refused, row

COMPLETE = {
    "llvm": ("CPU", ("cpu",)),
    "c": ("CPU", ("cpu",)),
    "cuda": ("CUDA", ("cuda", "gpu")),
    "nvptx": ("CUDA", ("cuda", "gpu")),
    "rocm": ("ROCM", ("rocm", "gpu")),
    "opencl": ("OPENCL", ("opencl", "gpu")),
    "metal": ("METAL", ("metal", "gpu")),
    "vulkan": ("VULKAN", ("vulkan", "gpu")),
    "webgpu": ("WEBGPU", ("webgpu", "gpu")),
    "sdaccel": ("OPENCL", ("sdaccel", "hls")),
    "aocl": ("AOCL", ("aocl", "hls")),
    "aocl_sw_emu": ("AOCL", ("aocl", "hls")),
    "hexagon": ("HEXAGON", ("hexagon",)),
    "stackvm": ("CPU", ()),
    "hybrid": ("CPU", ()),
    "ext_dev": ("EXT_DEV", ()),
    "composite": ("CPU", ()),
    "onnxruntime": ("CPU", ("cpu",)),
}
PARTIAL = {
    "dnnl", "openvino", "arm_acl", "ethos-n", "ethos-u", "cmsis-nn", "tensorrt", "cutlass",
    "cublas", "cudnn", "clml", "vitis-ai", "coreml", "bnns", "ccompiler",
}  # fmt: skip


@row(51)
def kinds_are_listed_and_say_the_types_of_their_attributes():
    assert set(COMPLETE) | PARTIAL <= set(list_kinds())
    assert not {"test", "fake", "reference"} & set(list_kinds())
    attrs = get_kind("llvm").attrs
    assert attrs["mattr"].type == "array<string>"
    assert attrs["mcpu"].type == "string"
    assert attrs["num-cores"].type == "int"
    assert attrs["fast-math"].type == "bool"


@row(52)
def a_kind_has_one_device_type():
    for name, (device_type, keys) in COMPLETE.items():
        target = Target(name)
        assert target.device_type is DeviceType[device_type], name
        assert target.keys == keys, name
        assert target.kind.is_complete
    assert Target("cuda").device_type == Target("nvptx").device_type == 2
    assert Target("llvm").device_type == 1


@row(52)
def a_partial_kind_runs_where_what_it_refines_runs():
    for name in PARTIAL:
        kind = get_kind(name)
        assert not kind.is_complete
        refined = [get_kind(other) for other in list_kinds() if kind.can_refine(get_kind(other))]
        assert refined, name
        assert any(other.device_type == kind.device_type for other in refined), name
    config = CompilationConfig.resolve("arm_acl, opencl -device=mali")
    assert [item.device_type for item in config.targets] == [DeviceType.OPENCL] * 2


@row(53, "a target without an architecture is quiet, and has none; `features.missing` names it")
def cuda_without_an_architecture_has_none(recwarn):
    target = Target("cuda")
    assert "arch" not in target.attrs
    assert target.features.arch is None
    assert target.features.missing == ("arch",)
    assert Target("cuda -arch=sm_80").features.missing is None
    assert not recwarn.list


@row(54)
def the_form_of_a_cuda_architecture_is_checked():
    for wrong in ("80", "sm_", "sm_x", "compute_80", "sm_8", "gfx90a"):
        message = refused(Target, f"cuda -arch={wrong}")
        assert "arch" in message
        assert repr(wrong) in message
        assert "sm_80" in message
    for right in ("sm_90a", "sm_53", "sm_100f", "sm_120"):
        assert Target(f"cuda -arch={right}").attrs["arch"] == right


@row(55)
def nvptx_fills_in_its_triple():
    target = Target("nvptx -mcpu=sm_80")
    assert target.attrs["mtriple"] == "nvptx64-nvidia-cuda"
    assert Target("nvptx").attrs["mtriple"] == "nvptx64-nvidia-cuda"
    assert target == Target("nvptx -mcpu=sm_80 -mtriple=nvptx64-nvidia-cuda")
    assert "nvptx64-nvidia-cuda" in refused(Target, "nvptx -mtriple=other")
    assert "sm_80" in refused(Target, "nvptx -mcpu=80")


@row(56)
def rocm_accepts_letters_and_fills_in_its_triple():
    target = Target("rocm -mcpu=gfx90a")
    assert target.attrs["mcpu"] == "gfx90a"
    assert target.attrs["mtriple"] == "amdgcn-amd-amdhsa-hcc"
    assert Target("rocm -mtriple=amdgcn-amd-amdhsa -mcpu=gfx90a") == target
    assert "mtriple" in refused(Target, "rocm -mtriple=other")
    assert "gfx90a" in refused(Target, "rocm -mcpu=sm_80")


def _m_profile(options):
    """Return what both code generators for microcontrollers find out, which is the same."""
    targets = [Target(f"{kind} {options}") for kind in ("c", "llvm", "cmsis-nn")]
    found = {(t.features.has_mve, t.features.has_dsp, t.keys) for t in targets}
    assert len(found) == 1, found
    return found.pop()


ARM = ("arm_cpu", "cpu")


@row(57)
def cortex_m55_has_mve_and_dsp():
    assert _m_profile("-mcpu=cortex-m55") == (True, True, ARM)
    assert Target("llvm -keys=cpu -mcpu=cortex-m55").keys == ("cpu", "arm_cpu")
    assert Target("llvm -keys=cpu,arm_cpu -mcpu=cortex-m55").keys == ("cpu", "arm_cpu")


@row(58)
def other_microcontrollers_have_less_and_cake_is_none():
    for cpu in ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m35p"):
        assert _m_profile(f"-mcpu={cpu}") == (False, True, ARM), cpu
    for cpu in ("cortex-m0", "cortex-m3"):
        assert _m_profile(f"-mcpu={cpu}") == (False, False, ARM), cpu
    assert _m_profile("-mcpu=cake") == (None, None, ("cpu",))
    assert str(Target("llvm -mcpu=cake")) == "llvm -mcpu=cake"
    assert Target("llvm -mcpu=cake").features.cpu_known is False
    assert Target("llvm -mcpu=cortex-m3").features.cpu_known is True


@row(59)
def flags_take_mve_and_dsp_away():
    for options in (
        "-mcpu=cortex-m55+nomve",
        "-mcpu=cortex-m55 -mattr=+nomve",
        "-mcpu=cortex-m55 -mattr=+woofles,+nomve",
        "-mcpu=cortex-m55+nomve+junk -mattr=-junk",
    ):
        assert _m_profile(options) == (False, True, ARM), options
    for options in (
        "-mcpu=cortex-m55+nodsp",
        "-mcpu=cortex-m55 -mattr=+nodsp",
        "-mcpu=cortex-m55 -mattr=+nomve+nodsp",
        "-mcpu=cortex-m55 -mattr=+woofles,+nomve,+nodsp",
    ):
        assert _m_profile(options) == (False, False, ARM), options
    assert _m_profile("-mcpu=cortex-m55 -mattr=+woofles") == (True, True, ARM)


@row(60)
def aarch64_is_recognised_by_its_triple():
    for options in ("", " -mcpu=cortex-a53", " -mcpu=cake"):
        target = Target(f"llvm -mtriple=aarch64-linux-gnu{options}")
        assert target.features.is_aarch64 is True
        assert target.features.has_asimd is True
        assert target.keys == ARM
    assert Target("c -mtriple=aarch64-arm-none-eabi").features.is_aarch64 is True


@row(61)
def arm_of_32_bits_has_simd_if_asked_for():
    for triple in ("armv8a-arm-none-eabi", "armv7a-linux-gnueabihf", "arm-unknown-linux-gnu"):
        without = Target(f"llvm -mtriple={triple}")
        assert without.features.is_aarch64 is False
        assert without.features.has_asimd is False
        assert without.keys == ARM
        for flag in ("+neon", "+simd"):
            target = Target(f"llvm -mtriple={triple} -mattr={flag}")
            assert target.features.has_asimd is True
            assert target.features.is_aarch64 is False


def _a_profile(mattr):
    features = Target(f"llvm -mtriple=aarch64-arm-none-eabi -mattr={mattr}").features
    return features.has_dotprod, features.has_matmul_i8


@row(62)
def dot_products_follow_the_version_of_the_architecture():
    for mattr, expected in {
        "+v8.2a,+dotprod": True,
        "+v8.2a": False,
        "+v8.3a,+dotprod": True,
        "+v8.4a": True,
        "+v8.4a,+nodotprod": False,
        "+v8.4a,-dotprod": False,
        "+v8.0a,+dotprod": False,
        "+v8.4b": False,
        "+v9a": True,
    }.items():
        assert _a_profile(mattr)[0] is expected, mattr


@row(63)
def matrix_products_follow_the_version_of_the_architecture():
    for mattr, expected in {
        "+v8.6a": True,
        "+v8.6a,+noi8mm": False,
        "+v8.5a": False,
        "+v8.0a,+i8mm": False,
        "+v8.6b": False,
        **{f"+v8.{minor}a,+i8mm": True for minor in (2, 3, 4, 5)},
        **{f"+v8.{minor}a": False for minor in (2, 3, 4, 5)},
    }.items():
        assert _a_profile(mattr)[1] is expected, mattr


@row(64)
def apples_spelling_is_aarch64_too():
    for triple in ("arm64-apple-macosx14.0", "arm64e-apple-ios", "arm64-linux-android"):
        assert Target(f"llvm -mtriple={triple}").features.is_aarch64 is True
        assert Target(f"llvm -mtriple={triple}").features.has_asimd is True


@row(65)
def a_microcontroller_stays_one_under_any_arm_triple():
    for triple in ("arm-none-eabi", "armv8a-arm-none-eabi", "aarch64-arm-none-eabi"):
        features = Target(f"llvm -mcpu=cortex-m33 -mtriple={triple}").features
        assert features.is_m_profile is True
        assert features.has_dsp is True
        assert features.is_aarch64 is None
        assert features.has_asimd is None


@row(66)
def a_kind_is_registered_with_everything_it_has():
    def shout(attrs):
        return Canonical(attrs, features={"is_loud": attrs["volume"] > 5})

    kind = TargetKind(
        "row-66",
        DeviceType.EXT_DEV,
        attrs=(AttrSpec("volume", "int", default=3), AttrSpec("names", "array<string>")),
        default_keys=("loud", "dev"),
        canonicalizer=shout,
    )
    register_kind(kind)
    target = Target("row-66")
    assert (target.kind.name, target.device_type) == ("row-66", DeviceType.EXT_DEV)
    assert (target.keys, target.attrs["volume"]) == (("loud", "dev"), 3)
    assert target.features.is_loud is False
    assert Target("row-66 -volume=9 -names=a,b").features.is_loud is True
    assert "volume" in refused(Target, "row-66 -volume=x")
    other = TargetKind("row-66", DeviceType.CPU)
    assert "row-66" in refused(register_kind, other)


@row(67)
def a_canonicaliser_rewrites_sets_keys_and_adds_features():
    def woof(attrs):
        if attrs.get("mattr") == ("woof",):
            attrs = {**attrs, "mattr": ("super_woof",)}
        return Canonical(attrs, keys=("super",), features={"test": True})

    register_kind(
        TargetKind(
            "row-67",
            DeviceType.CPU,
            attrs=(AttrSpec("mattr", "array<string>"),),
            default_keys=("cpu",),
            canonicalizer=woof,
        )
    )
    target = Target("row-67 -mattr=woof")
    assert target.attrs["mattr"] == ("super_woof",)
    assert target.keys == ("super",)
    assert target.features.test is True
    assert Target(str(target)) == target
    assert str(Target(str(target))) == str(target)


@row(79)
def a_feature_that_is_absent_reads_as_none():
    assert Target("test").features.is_test is True
    assert Target("test").features.is_missing is None
    assert Target("cuda").features.is_test is None
    with pytest.raises(AttributeError, match="read-only"):
        Target("test").features.is_test = False
