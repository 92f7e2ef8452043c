# SPDX-License-Identifier: Apache-2.0
"""Rows 89, 90 and 92 to 101: composites, lists of targets, and what the command line adds."""

import json

import numpy as np
import pytest

import intarsia
from intarsia.errors import TargetError
from intarsia.target import CompilationConfig, DeviceType, Target, register_tag
from rows import refused, row

resolve = CompilationConfig.resolve
register_tag("rows/with,comma", "opencl -device=mali", override=True)


def texts(spec, **options):
    return [str(item) for item in resolve(spec, **options).targets]


@row(89)
def composite_devices_drive_compilation(parse_model):
    model = parse_model(
        "g (float[4] x) => (float[4] y) "
        "{ [a] p = Relu(x) [b] q = Tanh(p) [c] r = Neg(q) [d] y = Exp(r) }"
    )
    devices = ["fake -ops=Relu,Neg", "fake -ops=Relu,Tanh,Neg -model=second"]
    composite = Target({"kind": "composite", "host": "reference", "devices": devices})
    exe = intarsia.compile(model, composite)
    where = {node.name: region.target for region in exe.placement.regions for node in region.nodes}
    assert where["a"] == where["c"] == str(Target(devices[0]))
    assert where["b"] == str(Target(devices[1]))
    assert where["d"] == "reference"
    x = np.array([-1.0, 0.0, 0.5, 2.0], np.float32)
    expected = np.exp(-np.tanh(np.maximum(x, 0)))
    np.testing.assert_allclose(exe.run({"x": x})["y"], expected, rtol=1e-6)


@row(90)
def an_accelerator_alone_is_told_what_it_lacks(parse_model):
    text = refused(resolve, "ethos-n")
    assert "no target given can run a whole model" in text
    assert 'add a fallback at the end: ", llvm"' in text
    assert 'add a fallback at the end: ", cuda"' in refused(resolve, "tensorrt")
    model = parse_model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    with pytest.raises(TargetError, match="add a fallback"):
        intarsia.compile(model, "openvino")


@row(92)
def an_accelerator_a_gpu_and_a_host_work_together(fixed_cpu):
    composite = {"kind": "composite", "host": "llvm", "devices": ["ethos-n", "opencl"]}
    config = resolve(composite)
    assert [str(item) for item in config.targets] == ["ethos-n", "opencl", fixed_cpu]
    assert config.refined(config.targets[0]) == Target(fixed_cpu)
    assert config == resolve("ethos-n, opencl, llvm", host="llvm")
    text = refused(resolve, {"kind": "composite", "devices": ["ethos-n", "opencl"]})
    assert "'ethos-n' refines none of the complete targets given" in text


@row(93)
def a_list_means_the_same_as_a_composite(fixed_cpu):
    assert [str(item) for item in resolve("llvm").targets] == [fixed_cpu]  # an x86, without Neon
    listed = resolve("compute-library, llvm -mattr=+neon")
    composite = {"kind": "composite", "host": "llvm -mattr=+neon", "devices": ["compute-library"]}
    assert listed == resolve(composite)
    assert [item.target.kind.name for item in listed.targets] == ["arm_acl", "llvm"]
    assert listed.fallback == listed.targets[-1]
    assert listed.host == Target("llvm -mattr=+neon")


@row(94)
def a_comma_without_a_blank_stays_in_the_value():
    first, second = resolve("llvm -mattr=+test,+v, c -mcpu=cortex-m3").targets
    assert first.target.attrs["mattr"] == ("+test", "+v")
    assert second.target.attrs["mcpu"] == "cortex-m3"
    assert texts("ethos-u,cmsis-nn,c") == ["ethos-u", "cmsis-nn", "c"]


@row(95)
def quoted_values_keep_commas_and_blanks():
    for quote in ("'", '"'):
        first, second = resolve(f"opencl -model={quote}v, a, l{quote}, c -mcpu=cortex-m3").targets
        assert first.target.attrs["model"] == "v, a, l"
        assert second.target == Target("c -mcpu=cortex-m3")
    assert resolve(resolve("opencl -model='v, a', c").text) == resolve("opencl -model='v, a', c")


@row(96)
def nothing_is_dropped():
    spec = "nvidia/jetson-nano, opencl -model=a/b:(c)=d, llvm -cl-opt=-x:uint=1 -model={e}"
    first, second, third = resolve(spec).targets
    assert first.target == Target("nvidia/jetson-nano")
    assert second.target.attrs["model"] == "a/b:(c)=d"
    assert third.target.attrs["cl-opt"] == ("-x:uint=1",)
    assert third.target.attrs["model"] == "{e}"
    assert texts("rows/with,comma, c")[1] == "c"
    assert resolve("rows/with,comma, c").targets[0].target == Target("opencl -device=mali")


@row(97)
def a_list_is_checked_at_every_position():
    assert "target 'c' is given twice" in refused(resolve, "c, c")
    for spec in ("nosuch, c", "c, nosuch", "c, nosuch, opencl"):
        text = refused(resolve, spec)
        assert "target kind 'nosuch' is not known" in text
        line, carets = text.splitlines()[1:3]
        assert line[carets.index("^") : carets.rindex("^") + 1] == "nosuch"
    for spec in ("c,", ",c", "c, , opencl", "c,,opencl"):
        assert "a target is missing at a comma" in refused(resolve, spec)


@row(98, "the fallback is the last complete target, wherever it stands (DESIGN 5, row 105)")
def a_list_needs_a_fallback():
    assert "no target given can run a whole model" in refused(resolve, "openvino, dnnl")
    assert resolve("c, cmsis-nn").fallback.target == Target("c")


@row(99)
def the_last_target_is_the_host_of_the_device():
    config = resolve("opencl -device=mali, llvm -mtriple=aarch64-linux-gnu")
    assert config.targets[0].target == Target("opencl -device=mali")
    assert config.targets[0].device_type == DeviceType.OPENCL
    assert config.host == Target("llvm -mtriple=aarch64-linux-gnu")


@row(100)
def attributes_are_overridden_by_kind():
    spec = "opencl -device=mali -max_num_threads=1, llvm -mcpu=cortex-a72"
    changes = {"llvm": {"mcpu": "cortex-m3"}, "opencl": {"max_num_threads": "404"}}
    config = resolve(spec, overrides=changes)
    opencl, llvm = (item.target for item in config.targets)
    assert opencl.attrs["max_num_threads"] == 404
    assert str(llvm) == "llvm -keys=arm_cpu,cpu -mcpu=cortex-m3"
    assert config.host == llvm
    assert texts("llvm", overrides={"llvm": {"mcpu": "cortex-m3", "mattr": "+fp,+mve"}}) == [
        "llvm -keys=arm_cpu,cpu -mattr=+fp,+mve -mcpu=cortex-m3"
    ]
    text = refused(resolve, "llvm", overrides={"opencl": {"max_num_threads": "404"}})
    assert "passed --target-opencl-max_num_threads but did not specify opencl target" in text
    assert "no attribute 'nosuch'" in refused(resolve, "c", overrides={"c": {"nosuch": "1"}})


@row(101)
def json_files_and_tags_are_forms(tmp_path, fixed_cpu):
    wanted = resolve("arm_acl, llvm", host="llvm")
    composite = {"kind": "composite", "host": "llvm", "devices": ["arm_acl"]}
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(composite))
    toml = tmp_path / "machine.toml"
    toml.write_text(wanted.to_toml())
    forms = (json.dumps(composite), str(path), path, str(toml), "acl", '["arm_acl", "llvm"]')
    for form in forms:
        assert resolve(form) == wanted
    assert "cannot be int 5" in refused(resolve, "[5]")
    assert "cannot be int 5" in refused(resolve, 5)
