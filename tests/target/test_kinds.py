# SPDX-License-Identifier: Apache-2.0
"""The catalogue's kinds: attributes, aliases, what they refine, and their canonicalisers."""

import ctypes

import pytest

from intarsia.errors import TargetError
from intarsia.target import (
    AttrSpec,
    CompilationConfig,
    DeviceType,
    Target,
    TargetKind,
    derive,
    get_kind,
    list_kinds,
    register_kind,
    register_tag,
)
from intarsia.target.kind import BASE_ATTR, COMMON_ATTRS
from intarsia.target.registry import Registry

CPU_ATTRS = "mattr:array<string> mcpu:string"
GPU = "max_num_threads:int=1024 thread_warp_size:int=32"
SCHEMAS = {
    "llvm": f"{CPU_ATTRS} mtriple:string mfloat-abi:string mabi:string num-cores:int "
    "fast-math:bool fast-math-nnan:bool fast-math-ninf:bool fast-math-nsz:bool fast-math-arcp:bool "
    "fast-math-contract:bool fast-math-reassoc:bool opt-level:int cl-opt:array<string>",
    "c": "mcpu:string march:string workspace-byte-alignment:int constants-byte-alignment:int",
    "cuda": f"mcpu:string arch:string max_shared_memory_per_block:int max_threads_per_block:int "
    f"registers_per_block:int {GPU}",
    "nvptx": f"mcpu:string mtriple:string {GPU}",
    "rocm": f"{CPU_ATTRS} mtriple:string max_num_threads:int=256 max_threads_per_block:int=256 "
    "max_shared_memory_per_block:int=65536 thread_warp_size:int=64",
    "opencl": "max_num_threads:int=256 thread_warp_size:int=1 texture_spatial_limit:int=16384",
    "metal": "max_num_threads:int=256 max_threads_per_block:int=256 thread_warp_size:int=16 "
    "max_shared_memory_per_block:int=32768 max_function_args:int=31",
    "vulkan": "mattr:array<string> supports_float16:bool supports_float32:bool=True "
    "supports_float64:bool supports_int8:bool supports_int16:bool supports_int32:bool=True "
    "supports_int64:bool supports_8bit_buffer:bool supports_16bit_buffer:bool "
    "supports_storage_buffer_storage_class:bool supports_push_descriptor:bool "
    "supports_dedicated_allocation:bool supports_integer_dot_product:bool "
    "supported_subgroup_operations:int max_num_threads:int=256 max_threads_per_block:int=256 "
    "thread_warp_size:int=1 max_block_size_x:int max_block_size_y:int max_block_size_z:int "
    "max_push_constants_size:int max_uniform_buffer_range:int max_storage_buffer_range:int "
    "max_per_stage_descriptor_storage_buffer:int max_shared_memory_per_block:int "
    "driver_version:int vulkan_api_version:int max_spirv_version:int device_type:string "
    "device_name:string driver_name:string",
    "webgpu": "max_num_threads:int=256",
    "hexagon": f"{CPU_ATTRS} mtriple:string llvm-options:array<string> num-cores:int "
    "vtcm-capacity:int",
    "composite": "devices:array<target>",
    "cmsis-nn": CPU_ATTRS,
    "ccompiler": "header:string=",
    "cutlass": "sm:int=80 use_3xtf32:bool=True split_k_slices:array<int>=(1,) "
    "profile_all_alignments:bool=False find_first_valid:bool=False use_multiprocessing:bool=False "
    "threads:int=-1 use_fast_math:bool=False tmp_dir:string=./tmp",
    "tensorrt": "tensorrt_version:array<int>=() use_implicit_batch:bool=True "
    "remove_no_mac_subgraphs:bool=False max_workspace_size:int=1073741824 use_fp16:bool=False "
    "use_uint8:bool=False",
    "example_target_hook": "example_attribute:int=0",
}
COMMON = (
    "keys:array<string> tag:array<string> device:string model:string libs:array<string> "
    "host:target from_device:int target_device_type:int"
)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_kind_has_the_attributes_and_defaults_that_are_documented(name):
    attrs = get_kind(name).attrs
    for item in (SCHEMAS[name] + " " + COMMON).split():
        attr, _, rest = item.partition(":")
        type_name, equals, default = rest.partition("=")
        assert attrs[attr].type == type_name, attr
        assert str(attrs[attr].default) == (default if equals else "None"), attr


@pytest.mark.parametrize("name", Registry().kind_names())
def test_every_kind_and_attribute_is_explained(name):
    kind = get_kind(name)
    assert kind.help
    for attr in kind.attrs.values():
        assert attr.help, attr.name
    assert kind.is_complete == (not kind.refines)
    for refined in set(kind.refines) - {"*"}:
        assert get_kind(refined).is_complete
    target = Target(name)
    assert Target(str(target)) == target
    assert Target(target.to_json()) == target


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("arm_compute_lib", "arm_acl"),
        ("arm_cl", "arm_acl"),
        ("compute-library", "arm_acl"),
        ("ethosn", "ethos-n"),
        ("ethos-n77", "ethos-n -variant=n77"),
        ("ethos-n78 -tops=4", "ethos-n -tops=4 -variant=n78"),
        ("ethos-n77 -variant=n78", "ethos-n -variant=n78"),
        ("ethos-u55", "ethos-u -accelerator_config=ethos-u55-256"),
        ("mkldnn", "dnnl"),
        ("onednn", "dnnl"),
        ("vitis_ai", "vitis-ai"),
        ("cmsis_nn -mcpu=cortex-m55", "cmsis-nn -keys=arm_cpu,cpu -mcpu=cortex-m55"),
    ],
)
def test_an_alias_means_a_kind_and_is_printed_as_it(text, canonical):
    target = Target(text)
    assert str(target) == canonical
    assert Target(canonical) == target
    name, *options = text.split()
    if not options:
        assert Target({"kind": name}) == target
        assert get_kind(name).name == target.kind.name
        assert name not in list_kinds(all=True)


def test_aliases_work_wherever_a_target_is():
    nested = Target({"kind": "composite", "host": "c", "devices": [{"kind": "ethos-n77"}]})
    assert nested.attrs["devices"] == (Target("ethos-n -variant=n77"),)
    config = CompilationConfig.resolve("ethosn, arm_cl, llvm -mcpu=cortex-a72")
    assert [item.target.kind.name for item in config.targets] == ["ethos-n", "arm_acl", "llvm"]
    assert Target("cuda -compiler=tensorrt").kind.name == "tensorrt"
    with pytest.raises(TargetError, match=r"did you mean.*'ethos-n77'"):
        Target("ethos-n7")


def test_a_plug_in_declares_aliases_and_clashes_are_refused():
    kind = TargetKind(
        "alias-for-tests",
        DeviceType.CPU,
        attrs=(AttrSpec("size", "int"),),
        aliases={"alias-big": {"size": 9}},
    )
    register_kind(kind)
    assert str(Target("alias-big")) == "alias-for-tests -size=9"
    with pytest.raises(TargetError, match="'alias-big' means the kind 'alias-for-tests'"):
        register_kind(TargetKind("alias-big", DeviceType.CPU))
    with pytest.raises(TargetError, match="'llvm' means the kind 'llvm'"):
        register_kind(TargetKind("other-for-tests", DeviceType.CPU, aliases={"llvm": {}}))
    with pytest.raises(TargetError, match="name of a target kind"):
        register_tag("alias-big", "llvm")


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"a b": {}}, "'a b' is not an alias"),
        ({"x-for-tests": {}}, "'x-for-tests' is not an alias"),
        ({"y": 1}, "'y' is not an alias with attributes"),
        ({"y": {"nosuch": 1}}, "unknown attribute 'nosuch'"),
        ({"y": {"size": "big"}}, "size: expects type int"),
    ],
)
def test_an_alias_that_means_nothing_is_refused(aliases, words):
    with pytest.raises(TargetError, match=words):
        TargetKind("x-for-tests", DeviceType.CPU, attrs=(AttrSpec("size", "int"),), aliases=aliases)


def test_the_catalogue_does_not_contradict_itself():
    registry = Registry()
    names = set(registry.kind_names())
    assert not names & set(registry.alias_names())
    assert {"ethosn", "arm_cl", "arm_compute_lib"} <= set(registry.alias_names())


@pytest.mark.parametrize(
    ("arch", "capability", "facts"),
    [
        ("sm_53", 53, (False, False, False, False)),
        ("sm_61", 61, (True, False, False, False)),
        ("sm_75", 75, (True, True, False, False)),
        ("sm_86", 86, (True, True, True, False)),
        ("sm_90a", 90, (True, True, True, True)),
        ("sm_120", 120, (True, True, True, True)),
    ],
)
def test_an_nvidia_architecture_says_what_it_has(arch, capability, facts):
    for target in (Target(f"cuda -arch={arch}"), Target(f"nvptx -mcpu={arch}")):
        found = target.features
        assert (found.arch, found.compute_capability) == (arch, capability)
        names = ("has_integer_dot_product", "has_tensor_cores", "has_bf16", "has_fp8")
        assert tuple(found[name] for name in names) == facts
    assert Target("nvptx").features.missing == ("mcpu",)


@pytest.mark.parametrize(
    ("arch", "is_right"),
    [
        ("gfx900", True), ("gfx90a", True), ("gfx942", True), ("gfx1030", True),
        ("gfx90a:sramecc+:xnack-", True), ("gfx11-generic", True), ("gfx9-4-generic", True),
        ("gfx", False), ("90a", False), ("gfx90a:", False), ("gfx90A", False),
    ],
)  # fmt: skip
def test_the_form_of_an_amd_architecture_is_checked(arch, is_right):
    if is_right:
        target = Target({"kind": "rocm", "mcpu": arch})
        assert target.features.arch == arch.partition(":")[0]
    else:
        with pytest.raises(TargetError, match=r"mcpu: .* is not an AMD architecture"):
            Target({"kind": "rocm", "mcpu": arch})


def test_hexagon_is_spelled_as_llvm_does():
    target = Target("hexagon -mcpu=v69 -mattr=+hvxv69,+hvx-length64b")
    assert target.attrs["mcpu"] == "hexagonv69"
    assert target.attrs["mtriple"] == "hexagon"
    assert (target.features.has_hvx, target.features.vector_width) == (True, 512)
    assert Target("hexagon -mcpu=hexagonv69 -mattr=+hvxv69,+hvx-length64b") == target
    assert Target("hexagon -mcpu=v67t").features.has_hvx is False
    with pytest.raises(TargetError, match=r"mcpu: 'v1' is not a Hexagon processor[\s\S]*v68"):
        Target("hexagon -mcpu=v1")


def test_webgpu_counts_on_sub_groups_only_if_they_are_there():
    assert Target("webgpu -thread_warp_size=32 -supports_subgroups").features.arch is None
    with pytest.raises(TargetError, match="thread_warp_size: 32 needs sub-groups"):
        Target("webgpu -thread_warp_size=32")


class FakeDriver:
    """The driver of a machine with one Hopper GPU."""

    def __init__(self):
        self.values = {1: 1024, 8: 49152, 10: 32, 12: 65536, 75: 9, 76: 0}

    def cuInit(self, flags):  # noqa: N802 - the driver's names
        return 0

    def cuDeviceGet(self, device, ordinal):  # noqa: N802
        device._obj.value = ordinal
        return 0 if ordinal == 0 else 101

    def cuDeviceGetAttribute(self, value, number, device):  # noqa: N802
        assert isinstance(device, ctypes.c_int)
        value._obj.value = self.values[number]
        return 0


def test_a_device_is_asked_for_what_was_not_given(monkeypatch):
    monkeypatch.setattr(derive, "_load_cuda", FakeDriver)
    target = Target({"kind": "cuda", "from_device": 0, "max_threads_per_block": 512})
    assert target.attrs["arch"] == "sm_90a"
    assert "mcpu" not in target.attrs
    assert target.attrs["max_threads_per_block"] == 512
    assert target.attrs["registers_per_block"] == 65536
    assert "from_device" not in target.attrs
    assert "from_device" not in str(target)
    assert Target(str(target)) == target
    assert Target({"kind": "nvptx", "from_device": 0}).attrs["mcpu"] == "sm_90a"
    with pytest.raises(TargetError, match="from_device: there is no CUDA device 3"):
        Target({"kind": "cuda", "from_device": 3})
    with pytest.raises(TargetError, match=r"devices\[0\].from_device"):
        Target({"kind": "composite", "devices": [{"kind": "cuda", "from_device": 3}]})


def test_without_a_driver_or_a_way_to_ask_there_is_a_clear_error(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(TargetError, match=r"no CUDA device 0[\s\S]*driver is not installed"):
        Target({"kind": "cuda", "from_device": 0})
    with pytest.raises(TargetError, match="devices of type METAL cannot be asked"):
        Target("metal -from_device=0")


def test_a_target_without_an_architecture_is_quiet_until_it_is_compiled(recwarn):
    for text in ("cuda", "nvptx", "rocm"):
        assert Target(text).features.missing is not None
    assert not recwarn.list


@pytest.mark.parametrize(
    ("text", "sm"),
    [
        ("cutlass", 80),
        ("cutlass -base=cuda", 80),
        ("cutlass -base='cuda -arch=sm_90'", 90),
        ("cuda -arch=sm_90a -compiler=cutlass", 90),
        ("cutlass -base='nvptx -mcpu=sm_75'", 75),
        ("cutlass -base='cuda -arch=sm_90' -sm=80", 80),
        ("cutlass -base='cuda -arch=sm_80' -sm=90", 90),
        ("cutlass -sm=70", 70),
    ],
)
def test_a_default_may_follow_what_a_target_refines(text, sm):
    target = Target(text)
    assert target.attrs["sm"] == sm
    for again in (Target(str(target)), Target(target.to_json())):
        assert (again, again.attrs["sm"], str(again)) == (target, sm, str(target))


COMMON_NAMES = {spec.name for spec in (*COMMON_ATTRS, BASE_ATTR)}
WORDS = {"int": "1", "bool": "true", "string": "word", "target": "llvm", "map": "'{\"a\":1}'"}
OTHERS = {
    ("llvm", "cl-opt"): "-unroll-count:int=2", ("hexagon", "llvm-options"): "-unroll-count=2",
    ("hexagon", "mcpu"): "hexagonv68", ("rocm", "mcpu"): "gfx90a", ("nvptx", "mcpu"): "sm_80",
    ("cuda", "arch"): "sm_80", ("nvptx", "mtriple"): "nvptx64-nvidia-cuda",
    ("rocm", "mtriple"): "amdgcn-amd-amdhsa-hcc",
}  # fmt: skip
"""By kind and attribute, a value where the kind wants more of it than its type."""
KIND_ATTRS = [
    (kind, spec.name)
    for kind in Registry().kind_names()
    for spec in get_kind(kind).attrs.values()
    if spec.name not in COMMON_NAMES
]


def written_values(kind, spec):
    """Return texts of an attribute: each of its choices, or one of its type."""
    if spec.choices:
        return [str(choice) for choice in spec.choices]
    if spec.minimum is not None:
        return [str(spec.minimum)]
    element = spec.type.removeprefix("array<").removesuffix(">")
    return [OTHERS.get((kind, spec.name), WORDS[element])]


@pytest.mark.parametrize(("kind", "name"), KIND_ATTRS)
def test_an_attribute_is_parsed_and_printed(kind, name):
    spec = get_kind(kind).attrs[name]
    for word in written_values(kind, spec):
        try:
            target = Target(f"{kind} -{name}={word}")
        except TargetError as error:
            pytest.fail(f"{word}: {error}")
        value = target.attrs[name]
        items = value if spec.type.startswith("array<") else (value,)
        written = [str(item).lower().lstrip("+") for item in items]
        assert written == [word.lower().strip("'")], "the value is read as it was written"
        assert value == spec.default or f"-{name}" in str(target)
        for again in (Target(str(target)), Target(target.to_json())):
            assert (again, again.attrs[name]) == (target, value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ethos-n78 -tops=10", "1, 2, 4, 8"),
        ("ethos-n78 -ple_ratio=3", "2, 4"),
        ("arm_acl -tuner=fast", "rapid"),
    ],
)
def test_a_value_that_the_vendor_does_not_list_is_refused(text, hint):
    with pytest.raises(TargetError, match="is not one of its values") as caught:
        Target(text)
    assert hint in str(caught.value.hint)
