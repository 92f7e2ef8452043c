# SPDX-License-Identifier: Apache-2.0
"""Rows 135 on: spellings that people use, each as they write it."""

import numpy as np
import pytest

import intarsia
from intarsia.target import CompilationConfig, DeviceType, PlacedTarget, Target, VirtualDevice
from rows import refused, row

resolve = CompilationConfig.resolve


@row(135)
def a_composite_with_target_host():
    with pytest.warns(FutureWarning, match="'target_host' is deprecated: it is now 'host'"):
        target = Target(
            {"kind": "composite", "target_host": "llvm", "devices": [{"kind": "arm_acl"}]}
        )
    assert target == Target("composite -host=llvm -devices=arm_acl")
    assert target == Target("acl")


@row(136)
def a_composite_with_accelerators():
    with pytest.warns(FutureWarning, match="'accelerators' is deprecated: it is now 'devices'"):
        target = Target({"kind": "composite", "host": "llvm", "accelerators": ["arm_acl"]})
    assert target == Target("acl")
    with pytest.warns(FutureWarning, match="is deprecated") as warned:
        target = Target("composite -target_host=llvm -accelerators=arm_acl")
    assert len(warned) == 2
    assert target == Target("acl")
    text = refused(Target, "composite -accelerators=cuda -devices=cuda")
    assert "'accelerators' and 'devices' are both given" in text


@row(137)
def ethosn():
    assert Target("ethosn") == Target("ethos-n")
    assert Target("ethosn").kind.name == "ethos-n"


@row(138)
def ethos_n77():
    target = Target("ethos-n77")
    assert target.kind.name == "ethos-n"
    assert target.attrs["variant"] == "n77"


@row(139)
def arm_cl():
    assert Target("arm_cl") == Target("arm_acl")
    assert Target("arm_compute_lib") == Target("arm_acl")


@row(140)
def acl(fixed_cpu):
    target = Target("acl")
    assert target.kind.name == "composite"
    assert target.host == Target("llvm")
    assert target.attrs["devices"] == (Target("arm_acl"),)
    assert target.tags == ("acl",)
    assert [str(item) for item in resolve("acl").targets] == ["arm_acl", fixed_cpu]


@row(141, "only in a list: a single target with the same mistake is the error of row 10")
def a_missing_dash_in_a_list(fixed_cpu):
    with pytest.warns(UserWarning, match=r"hint: write -mattr=\+neon"):
        config = resolve("ethos-n77, acl, llvm mattr=+neon")
    assert config == resolve("ethos-n77, acl, llvm -mattr=+neon")
    assert [item.target.kind.name for item in config.targets] == ["ethos-n", "arm_acl", "llvm"]
    assert config.host == Target("llvm -mattr=+neon") != Target(fixed_cpu)
    assert "an option starts with a dash" in refused(resolve, "llvm mattr=+neon")
    assert "an option starts with a dash" in refused(resolve, "acl, llvm nosuch=1")
    assert "an option starts with a dash" in refused(resolve, "acl, llvm mattr")


@row(142)
def features_without_a_sign_are_asked_for():
    target = Target("llvm -mtriple=armv7l-linux-gnueabihf -mattr=+neon,fp-armv8,thumb-mode")
    assert target.attrs["mattr"] == ("+neon", "+fp-armv8", "+thumb-mode")
    assert target.features.has_asimd is True


@row(143)
def the_second_gpu():
    for text in ("opencl 1", "opencl:1", "opencl -device_id=1"):
        assert PlacedTarget.parse(text) == VirtualDevice(DeviceType.OPENCL, 1, Target("opencl"))
    assert resolve("opencl 1, c") == resolve("opencl:1, c")
    assert (
        str(resolve("opencl 1 -max_num_threads=8, c").targets[0]) == "opencl:1 -max_num_threads=8"
    )
    assert "a placed target" in refused(Target, "opencl 1")
    assert "'2' is a second one" in refused(PlacedTarget.parse, "opencl:1 2")


@row(144)
def a_library_on_a_gpu():
    target = Target("cuda -arch=sm_80 -compiler=tensorrt")
    assert target.kind.name == "tensorrt"
    assert target.refines(Target("cuda -arch=sm_80"))
    assert not target.refines(Target("cuda -arch=sm_70"))
    config = resolve("cuda -arch=sm_80 -compiler=tensorrt")
    assert [item.target for item in config.targets] == [target, Target("cuda -arch=sm_80")]
    assert config.refined(config.targets[0]) == Target("cuda -arch=sm_80")
    assert "'dnnl' does not refine" in refused(Target, "cuda -compiler=dnnl")


@row(145)
def a_library_with_a_host():
    host = Target("c -mcpu=cortex-m55")
    target = Target("cmsis-nn", host)
    assert target.kind.name == "cmsis-nn"
    assert target.host == host
    config = resolve([target, host])
    assert config.host == host
    assert config.refined(config.targets[0]) == host


@row(146)
def aws_c5():
    target = Target("aws/c5")
    assert target.kind.name == "llvm"
    assert target.attrs["mcpu"] == "skylake-avx512"
    assert target.tags == ("aws/c5",)


@row(147)
def aws_p3():
    target = Target("aws/p3")
    assert target.kind.name == "cuda"
    assert target.tags == ("aws/p3", "nvidia/v100")
    assert target.host.kind.name == "llvm"
    assert target.without_host() == Target("nvidia/v100")
    assert Target(str(target)).tags == target.tags


@row(148)
def arm_rasp4b():
    target = Target("arm/rasp4b")
    assert target.kind.name == "llvm"
    assert target.attrs["mcpu"] == "cortex-a72"
    assert target.keys == ("arm_cpu", "cpu")


@row(149)
def nvidia_v100():
    target = Target("nvidia/v100")
    assert (target.kind.name, target.attrs["arch"]) == ("cuda", "sm_70")


@row(150)
def target_host_as_a_keyword(parse_model, fixed_cpu):
    with pytest.warns(FutureWarning, match="'target_host' is deprecated") as warned:
        assert Target("cuda", target_host="llvm") == Target("cuda", "llvm")
    assert warned[0].filename == __file__
    with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
        assert resolve("cuda", target_host="llvm") == resolve("cuda", host="llvm")
    with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
        assert resolve({"targets": ["cuda"], "target_host": "llvm"}) == resolve("cuda", host="llvm")
    with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
        assert Target({"kind": "cuda", "target_host": "llvm"}) == Target("cuda", "llvm")
    with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
        assert Target("cuda -target_host=llvm") == Target("cuda", "llvm")
    assert "both given" in refused(Target, "cuda", "llvm", target_host="llvm")
    model = parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
        exe = intarsia.compile(model, "reference", target_host="reference")
    with pytest.warns(FutureWarning, match="'target_host' is deprecated") as warned:
        intarsia.InferenceSession(model, targets="reference", target_host="reference")
    assert warned[0].filename == __file__
    np.testing.assert_array_equal(exe.run({"x": np.float32([-1, 2])})["y"], np.float32([0, 2]))


@row(151)
def a_dictionary_from_device_to_target():
    config = resolve({"cpu": "llvm -mcpu=cortex-a72", "gpu": "opencl -device=mali"})
    assert [item.device_type for item in config.targets] == [DeviceType.CPU, DeviceType.OPENCL]
    assert config.find("gpu") == config.targets[1]
    assert resolve({"gpu:1": "cuda", "cpu": "c"}).targets[0].device_id == 1
    assert resolve({"cl": "opencl", "llvm": "c"}).targets[0].device_type == DeviceType.OPENCL
    assert "does not run on device type CUDA" in refused(resolve, {"gpu": "c"})
    assert "does not run on device type CPU" in refused(resolve, {"llvm": "cuda"})
