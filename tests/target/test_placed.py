# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from intarsia.errors import TargetError
from intarsia.target import DeviceType, PlacedTarget, Target, VirtualDevice, load_labels

CPU, CUDA, OPENCL = DeviceType.CPU, DeviceType.CUDA, DeviceType.OPENCL
T = Target("cuda")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("opencl", "opencl"),
        ("opencl:0", "opencl"),
        ("opencl:1", "opencl:1"),
        ("opencl -device_id=1", "opencl:1"),
        ("fake:1 -ops=Mul,Add", "fake:1 -ops=Add,Mul"),
        ("opencl:1 -memory_scope='a b'", "opencl:1 -memory_scope='a b'"),
        ("opencl:1 -host=llvm -memory_scope=x", "opencl:1 -host=llvm -memory_scope=x"),
    ],
)
def test_a_placed_target_has_a_text(text, canonical):
    placed = PlacedTarget.parse(text)
    assert isinstance(placed, PlacedTarget)
    assert str(placed) == canonical
    assert PlacedTarget.parse(canonical) == placed
    assert PlacedTarget.parse(placed.to_json()) == placed


def test_a_target_is_the_same_on_every_ordinal():
    first, second = PlacedTarget.parse("cuda:0"), PlacedTarget.parse("cuda:1")
    assert first.target == second.target
    assert first != second
    assert first.memory_domain == (CUDA, 0, "")
    assert second.memory_domain == (CUDA, 1, "")
    assert first.memory_domain != VirtualDevice(CUDA, 0, T, "local").memory_domain


def test_the_device_type_follows_from_the_target_where_it_settles_it():
    assert VirtualDevice(target=T).device_type == CUDA
    assert PlacedTarget.parse("openvino").device_type == CPU
    assert PlacedTarget.parse("arm_acl").device_type is None
    assert PlacedTarget.parse("cuda -compiler=tensorrt").device_type == CUDA
    assert VirtualDevice(OPENCL, 0, Target("arm_acl")).device_type == OPENCL
    with pytest.raises(TargetError, match="not one device"):
        _ = PlacedTarget.parse("arm_acl").memory_domain


def test_a_contradiction_is_refused():
    with pytest.raises(TargetError, match="does not run on device type CPU"):
        VirtualDevice(CPU, 0, T)
    with pytest.raises(TargetError, match="negative"):
        VirtualDevice(CPU, -1)
    with pytest.raises(TargetError, match="5 is not a device type"):
        VirtualDevice(5)
    with pytest.raises(TargetError, match="'nosuch' is not known"):
        PlacedTarget.parse("nosuch:1")


@pytest.mark.parametrize(
    ("left", "right", "joined"),
    [
        (VirtualDevice(CUDA, 3), VirtualDevice(CUDA, None, T, "g"), VirtualDevice(CUDA, 3, T, "g")),
        (VirtualDevice(CUDA), VirtualDevice(CUDA, 2, T), VirtualDevice(CUDA, 2, T)),
        (VirtualDevice(), VirtualDevice(CUDA, 2, T, "g"), VirtualDevice(CUDA, 2, T, "g")),
        (VirtualDevice(CUDA, 0, T), VirtualDevice(CUDA, 0, Target("cuda")),
         VirtualDevice(CUDA, 0, T)),
        (VirtualDevice(CUDA), VirtualDevice(CPU), None),
        (VirtualDevice(CUDA, 3), VirtualDevice(CUDA, 4), None),
        (VirtualDevice(target=T), VirtualDevice(target=Target("cuda -arch=sm_80")), None),
        (VirtualDevice(memory_scope="l"), VirtualDevice(memory_scope="g"), None),
        (VirtualDevice(CUDA), VirtualDevice(target=Target("arm_acl")), None),
        (VirtualDevice(OPENCL), VirtualDevice(target=Target("arm_acl")),
         VirtualDevice(OPENCL, None, Target("arm_acl"))),
    ],
)  # fmt: skip
def test_join_agrees_both_ways_or_not_at_all(left, right, joined):
    assert left.join(right) == joined
    assert right.join(left) == joined


@pytest.mark.parametrize(
    "device",
    [
        VirtualDevice(),
        VirtualDevice(CUDA),
        VirtualDevice(CUDA, 3, None, "a b"),
        VirtualDevice(None, 1),
        VirtualDevice(target=T),
        VirtualDevice(CUDA, 2, T, "local"),
        VirtualDevice(OPENCL, 0, Target("arm_acl")),
        VirtualDevice(target=Target("arm_acl")),
        VirtualDevice(device_id=1, target=Target("vulkan -device_type=discrete")),
    ],
)
def test_a_device_is_the_same_after_json(device):
    assert VirtualDevice.from_json(json.loads(json.dumps(device.to_json()))) == device


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"device": 1}, "no field 'device'"),
        ([], r"has to be a dictionary, not \[\]"),
        ({"device_type": 5}, "5 is not a device type"),
        ({"device_type": "cuda"}, "'cuda' is not a device type"),
        ({"device_id": -1}, "expects an ordinal"),
        ({"memory_scope": 1}, "expects type string"),
        ({"kind": "arm_acl", "device_type": 99}, "99 is not a device type"),
        ({"kind": "cuda", "device_type": 1}, "does not run on device type CPU"),
    ],
)
def test_json_of_no_device_is_refused(items, words):
    with pytest.raises(TargetError, match=words):
        VirtualDevice.from_json(items)


def test_default_fills_what_is_unknown():
    device = VirtualDevice(CUDA, None, None, "global").default(VirtualDevice(CUDA, 3, T, "local"))
    assert device == VirtualDevice(CUDA, 3, T, "global")
    other = VirtualDevice(CPU).default(VirtualDevice(CUDA, 3, T, "local"))
    assert other == VirtualDevice(CPU, 3, None, "local")
    assert VirtualDevice().default(VirtualDevice(CUDA, 3, T)) == VirtualDevice(CUDA, 3, T)


def test_a_device_that_is_not_placed_prints_what_is_known():
    assert str(VirtualDevice(CUDA, 1, None, "local")) == "device(CUDA, 1, local)"
    assert str(VirtualDevice()) == "device(any, any, any)"
    assert VirtualDevice(CUDA, 1).to_json() == {"device_type": 2, "device_id": 1}
    assert not isinstance(VirtualDevice(CUDA, 1), PlacedTarget)


def test_labels_inherit(tmp_path):
    path = tmp_path / "labels.toml"
    path.write_text(
        '[labels]\ngpu = "opencl -device=mali"\ngpu2 = {inherits = "gpu", device_id = 1}\n'
        'gpu3 = {inherits = "gpu2", device_id = 2, model = "m"}\n'
    )
    labels = load_labels(path)
    assert labels["gpu"] == PlacedTarget.parse("opencl -device=mali")
    assert labels["gpu2"] == PlacedTarget.parse("opencl:1 -device=mali")
    assert labels["gpu3"] == PlacedTarget.parse("opencl:2 -device=mali -model=m")


def test_a_label_file_may_be_json(tmp_path):
    path = tmp_path / "labels.json"
    path.write_text('{"a": "cuda:1"}')
    assert load_labels(str(path)) == {"a": PlacedTarget.parse("cuda:1")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a = {inherits = "b"}\nb = {inherits = "a"}', "inherits from itself"),
        ('a = {inherits = "bee"}\nbe = "llvm"', "did you mean 'be'"),
        ('llvm = "cuda"', "is the name of a target kind"),
        ('acl = "cuda"', "is the name of a tag"),
        ('a = "nosuch"', "label 'a': target kind 'nosuch'"),
        ('a = "llvm"\nb = {inherits = "a", kind = "cuda"}', "has another kind"),
    ],
)
def test_a_bad_label_is_refused(tmp_path, text, words):
    path = tmp_path / "labels.toml"
    path.write_text(text)
    with pytest.raises(TargetError) as caught:
        load_labels(path)
    assert words in str(caught.value)


def test_a_label_takes_no_options(tmp_path):
    from intarsia.target import CompilationConfig

    labels = {"gpu": PlacedTarget.parse("cuda:1")}
    assert CompilationConfig.resolve("gpu, c", labels=labels).text == "cuda:1, c"
    with pytest.raises(TargetError, match="a label takes no options"):
        CompilationConfig.resolve("gpu -arch=sm_80, c", labels=labels)
