# SPDX-License-Identifier: Apache-2.0
"""`--target-KIND-ATTR=VALUE`."""

import pytest

from intarsia.cli.attributes import expand_attributes, read_attributes
from intarsia.errors import SettingError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--target-llvm-mcpu=x=y"], ["--target-attr", "llvm:mcpu=x=y"]),
        (["--target-llvm-num-cores", "2", "m"], ["--target-attr", "llvm:num-cores=2", "m"]),
        (["--target-cutlass-threads", "-1"], ["--target-attr", "cutlass:threads=-1"]),
        (["--target-ethos-u-accelerator_config=a"],
         ["--target-attr", "ethos-u:accelerator_config=a"]),
        (["--target-vulkan-supports_float16", "x"],
         ["--target-attr", "vulkan:supports_float16=true", "x"]),
        (["--target-file=a", "--target-file", "b", "--target", "c", "-t", "d"],
         ["--target-file=a", "--target-file", "b", "--target", "c", "-t", "d"]),
        (["--", "--target-llvm-mcpu=x"], ["--", "--target-llvm-mcpu=x"]),
    ],
)  # fmt: skip
def test_an_option_for_every_attribute_of_every_kind(given, expected):
    assert expand_attributes(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--target-lvm-mcpu=x"], "no option '--target-lvm-mcpu'\nhint: did you mean 'llvm'"),
        (["--target-llvm-mcpuu=x"], "no attribute 'mcpuu'\nhint: did you mean 'mcpu'"),
        (["--target-llvm-mcpu"], "--target-llvm-mcpu needs a value"),
        (["--target-llvm-mcpu", "-o", "x"], "--target-llvm-mcpu needs a value\nhint: write --t"),
    ],
)
def test_an_unknown_one_says_what_is_near(given, words):
    with pytest.raises(SettingError) as caught:
        expand_attributes(given)
    assert words in str(caught.value)


def test_attributes_are_grouped_by_kind():
    assert read_attributes(["llvm:mcpu=a:b=c", "c:mcpu=x", "llvm:num-cores=2"]) == {
        "llvm": {"mcpu": "a:b=c", "num-cores": "2"},
        "c": {"mcpu": "x"},
    }
    for texts, words in (
        (["llvm=x"], "is not KIND:ATTR=VALUE"),
        (["c:a=1", "c:a=2"], "given twice"),
    ):
        with pytest.raises(SettingError, match=words):
            read_attributes(texts)


def test_they_override_what_the_target_says(call, tmp_path, chain_model):
    model = tmp_path / "m.onnx"
    model.write_bytes(chain_model.SerializeToString())
    target = "fake -ops=Relu, onnxruntime -num_threads=2"
    done = call("explain", model, "-t", target, "--target-onnxruntime-num_threads=1", "--json")
    assert done.code == 0, done.err
    targets = done.json["placement"]["targets"]
    assert targets == ["fake -ops=Relu", "onnxruntime -num_threads=1"]
    done = call("explain", model, "-t", target, "--target-attr", "opencl:max_num_threads=404")
    assert done.code == 2
    assert "passed --target-opencl-max_num_threads but did not specify opencl target" in done.err


def test_show_and_bench_take_them_too(call, tmp_path, chain_model):
    view = call("target", "show", "acl", "--target-llvm-mcpu=cortex-a72", "--json").json["config"]
    assert view["host"] == "llvm -keys=arm_cpu,cpu -mcpu=cortex-a72"
    alone = call("target", "show", "openvino", "--target-openvino-precision=bf16", "--json")
    assert alone.json["target"]["text"] == "openvino -precision=bf16"
    assert call("target", "show", "openvino", "--target-llvm-mcpu=x").code == 2
    model = tmp_path / "m.onnx"
    model.write_bytes(chain_model.SerializeToString())
    quick = ("--rounds", "1", "--no-errors", "--json")
    done = call("bench", model, "-t", "onnxruntime", "--target-onnxruntime-num_threads=1", *quick)
    assert done.code == 0, done.err
    assert done.json["target"] == "onnxruntime -num_threads=1"
