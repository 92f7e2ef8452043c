# SPDX-License-Identifier: Apache-2.0
"""Every attribute of every kind with a backend has an effect, or somebody says that it has none."""

import platform

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.backends.opencl.driver import find_device
from intarsia.backends.values import Candidate
from intarsia.errors import TargetError
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot
from intarsia.place.machine import check_attributes, make_contexts
from intarsia.settings import Settings
from intarsia.target import CompilationConfig, get_kind
from intarsia.target.cpu import host_triple

X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86 CPU")
KINDS = (
    "llvm",
    "opencl",
    "webgpu",
    "cuda",
    "nvptx",
    "onnxruntime",
    "openvino",
    "dnnl",
    "xnnpack",
    "ncnn",
    "reference",
    "fake",
)
ELSEWHERE = {
    "keys": "dispatch labels: test_canonical, test_kinds_and_tags",
    "device": "becomes a key: the same",
    "tag": "test_tags",
    "host": "test_host",
    "base": "test_config",
    "custom_ops": "files of libraries: tests of the session and of onnxruntime",
    "special_values": "the rules of each backend: test_defects",
    "quantize": "test_quantize_fused",
    "accuracy": "needs weights in blocks: test_block_products",
    "requantise": "needs codes: test_fixed_point",
    "runner": "test_native_remote",
    "backend": "checks the device: tests/backends/webgpu",
    "max_shared_memory_per_block": "bounds local_bytes of the device's limits: test_distribute",
    "from_device": "is replaced by what the device says: test_kinds",
}
EFFECTS = {
    "llvm": {
        "mattr": "-fma", "mcpu": "x86-64-v2", "mtriple": None, "num-cores": "1",
        "winograd": "off", "weights": "f16", "l2-cache": "4096", "precision": "bf16",
    },
    "opencl": {"max_num_threads": "1", "max_memory": "8"},
    "webgpu": {"max_num_threads": "1", "max_memory": "8"},
    "cuda": {
        "arch": "sm_60", "max_num_threads": "1", "max_threads_per_block": "1",
        "registers_per_block": "8192", "max_memory": "8", "precision": "tf32",
    },
    "nvptx": {
        "mcpu": "sm_60", "mtriple": None, "max_num_threads": "1", "max_memory": "8",
        "precision": "tf32",
    },
    "onnxruntime": {"num_threads": "1", "graph_optimization": "none"},
    "openvino": {"precision": "bf16", "num_threads": "1"},
    "dnnl": {"precision": "bf16", "fpmath": "any", "num-cores": "1"},
    "xnnpack": {"num_threads": "1"},
    "ncnn": {"num_threads": "1"},
    "reference": {},
    "fake": {
        "ops": "Conv", "cost": "*:1", "kept": "*:1", "fusion": "'0.5' -cost=*:1", "call-cost": "2",
        "copy-cost": "1,1", "groups": "Conv+Relu", "is-whole": "true -groups=Conv+Relu",
        "estimate": "0.5", "budget": "3", "fault": "nan", "fault-ops": "Mul -fault=nan",
        "max_memory": "8",
    },
}  # fmt: skip
"""By kind, a value of each attribute that changes what is compiled, priced or placed."""
BESIDE = {"fusion": "-cost=*:1", "is-whole": "-groups=Conv+Relu", "fault-ops": "-fault=nan"}
IN_VAIN = {
    "llvm": {
        "opt-level": "3", "fast-math": "true", "fast-math-nnan": "true", "fast-math-ninf": "true",
        "fast-math-nsz": "true", "fast-math-arcp": "true", "fast-math-contract": "true",
        "fast-math-reassoc": "true", "cl-opt": "-unroll-count:int=2",
    },
    "opencl": {"thread_warp_size": "8", "texture_spatial_limit": "1"},
    "webgpu": {"thread_warp_size": "8 -supports_subgroups", "supports_subgroups": "true"},
    "cuda": {"thread_warp_size": "16", "mcpu": "x"},
    "nvptx": {"thread_warp_size": "16"},
}  # fmt: skip
WRONG = {"llvm": {"mfloat-abi": "hard", "mabi": "lp64d"}}
"""On this CPU; on 32-bit Arm they change nothing."""
EVERYWHERE_IN_VAIN = {"libs": "cblas", "model": "m"}
EVERYWHERE_WRONG = {"target_device_type": "2"}


def resolved(text):
    rest = "" if get_kind(text.split()[0]).is_complete else ", reference"
    return CompilationConfig.resolve(f"{text}{rest}")


def check(text, backends):
    """Check the first target of a list; skip where its runtime is not here."""
    contexts = make_contexts(resolved(text), 2)
    first = next(iter(contexts))
    usable(first.target.kind.name, backends)
    check_attributes({first: contexts[first]}, backends)


def usable(kind, backends):
    found = backends.by_kind[kind].detect()
    if not found.targets:
        pytest.skip(f"{kind}: {found.reason}")


def plain(kind):
    """Return a target of a kind that means this machine, whatever else it says."""
    return "llvm -mcpu=native" if kind == "llvm" else kind


@pytest.fixture(scope="module")
def graph():
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 16, 12, 12] x) => (float[1, 300] y)'
        " { c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) f = Flatten(r) y = MatMul(f, v) }"
    )
    for name, shape in (("w", (16, 16, 3, 3)), ("v", (16 * 12 * 12, 300))):
        values = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return snapshot(load(model, None))


def outcome(text, graph, backends):
    """Return all that a backend answers for a model on a target."""
    contexts = make_contexts(resolved(text), 2)
    placed, context = next(iter(contexts.items()))
    backend = backends.for_target(placed.target)
    usable(placed.target.kind.name, backends)
    refused = [dict(rule.refuse(graph, context)) for rule in backend.rules(context)]
    nodes = [n.id for n in graph.nodes if any(n.id not in each for each in refused)]
    region = Region.of(graph, nodes or range(len(graph.nodes)))
    candidate = Candidate.plain(region, placed)
    part = Candidate.plain(Region.of(graph, nodes[:1]), placed)
    artifact = backend.compile(candidate, context)
    constants = [(c.name, c.data.dtype, c.data.tobytes()) for c in artifact.constants]
    groups = backend.groups(region, context) if backend.groups is not None else ()
    refusal = backend.check(part, context)
    cost = None if backend.estimate is None else backend.estimate(candidate, context)
    answers = (nodes, artifact.payload, artifact.metadata, constants, groups, cost)
    return (*answers, refusal and refusal.reason)


@pytest.mark.parametrize("kind", KINDS)
def test_every_attribute_is_accounted_for(kind):
    known = {*ELSEWHERE, *EVERYWHERE_IN_VAIN, *EVERYWHERE_WRONG}
    for table in (EFFECTS, IN_VAIN, WRONG):
        known |= table.get(kind, {}).keys()
    assert known >= set(get_kind(kind).attrs)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in EFFECTS.items() for name in names]
)
def test_an_attribute_changes_what_a_backend_answers(kind, name, graph, backends):
    usable(kind, backends)
    value = EFFECTS[kind][name]
    if name in ("mattr", "mcpu") and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the values are of x86")
    if value == "bf16" and "bf16" not in str(backends.by_kind["dnnl"].notes()):
        pytest.skip("this CPU has no bf16")
    if (
        name == "max_num_threads"
        and find_device(0, kind, Settings.from_environment()).limits.work_group == 1
    ):
        pytest.skip("this device has groups of one work-item")
    if name == "max_memory":  # the planner reads it
        small = f"{kind} -max_memory={value}, reference"
        exe = intarsia.compile(matmul(), small, backends=backends, num_threads=1)
        assert [region.backend for region in exe.placement.regions] == ["reference"]
        return
    if name == "mtriple":
        value = host_triple()
    before = outcome(f"{kind} {BESIDE.get(name, '')}", graph, backends)
    assert outcome(f"{kind} -{name}={value}", graph, backends) != before


def matmul():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 8] x) => (float[1, 8] y)'
        " { y = MatMul(x, w) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    return model


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind in IN_VAIN for name, value in IN_VAIN[kind].items()]
    + [(kind, name, value) for kind in KINDS for name, value in EVERYWHERE_IN_VAIN.items()],
)
def test_what_has_no_effect_is_said(kind, name, value, backends, caplog):
    with caplog.at_level("WARNING", logger="intarsia"):
        check(f"{plain(kind)} -{name}={value}", backends)
    (record,) = caplog.records
    assert "no effect on what is compiled for" in record.getMessage()
    assert f"-{name}" in record.getMessage()


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_an_effect_is_not_warned_of(kind, backends, caplog):
    check(plain(kind), backends)
    assert not caplog.records


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("llvm", name, value) for name, value in WRONG["llvm"].items()]
    + [(kind, "target_device_type", "2") for kind in KINDS],
)
def test_what_contradicts_is_an_error_that_names_it(kind, name, value, backends):
    with pytest.raises(TargetError, match=f"^{name}: ") as caught:
        check(f"{plain(kind)} -{name}={value}", backends)
    assert caught.value.hint


@X86
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llvm -mattr=+neon", "mattr: '+neon' is a feature of aarch64 and arm, not of x86"),
        ("llvm -mattr=+nosuch", "mattr: '+nosuch' is not a feature of x86"),
        ("llvm -mattr=+avx512", "did you mean 'avx512f'"),
        ("llvm -mcpu=x86-64+nosuch", "mcpu: '+nosuch' is not a feature of x86"),
        ("llvm -mattr=-64bit-mode", "mattr: '-64bit-mode' is not a feature of x86"),
        ("llvm -mattr=+soft-float", "mattr: '+soft-float' is not a feature of x86"),
        ("llvm -mattr=-sse", "mattr: '-sse' leaves code for x86 without sse2"),
        ("llvm -mcpu=cake", "mcpu: no CPU is called 'cake'"),
        ("llvm -mcpu=cortex-a72", "mcpu: the code could not run here: it is for aarch64"),
        ("llvm -mtriple=aarch64-linux-gnu", "mtriple: the code could not run here"),
        ("llvm -mtriple=x86_64-linux-gnu -mcpu=cortex-a72", "mcpu: 'cortex-a72' is a CPU of"),
        ("llvm -mcpu=diamondrapids", "mcpu: the code could not run here"),
        ("llvm -mattr=+avx10.2", "mattr: the code could not run here"),
        ("llvm -model=foo", "model: it may mean another machine"),
        ("llvm -device=arm_cpu", "device: it may mean another machine"),
        ("llvm -mfloat-abi=hard", "add -mcpu=native if it is this machine"),
        ("llvm -keys=mine", "keys: it may mean another machine"),
        ("llvm -mcpu=x86-64 -weights=f16", "-weights=f16 needs a CPU"),
    ],
)
def test_what_another_machine_is_cannot_be_compiled_for_this_one(text, words, backends, capfd):
    with pytest.raises(TargetError) as caught:
        intarsia.compile(matmul(), text, backends=backends)
    assert words in str(caught.value)
    assert caught.value.hint
    assert not capfd.readouterr().err


@X86
def test_features_for_tuning_pass_and_llvm_says_nothing(backends, capfd):
    exe = intarsia.compile(
        matmul(), "llvm -mattr=+nopl,-prefer-256-bit,+rdrnd", backends=backends, num_threads=1
    )
    assert "-mcpu=" in exe.placement.regions[0].target
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llvm -num-cores=0", "num-cores: 0 is less than 1"),
        ("dnnl -num-cores=-1", "num-cores: -1 is less than 1"),
        ("onnxruntime -num_threads=0", "num_threads: 0 is less than 1"),
        ("openvino -num_threads=-2", "num_threads: -2 is less than 1"),
        ("llvm -opt-level=7", "opt-level: 7 is more than 3"),
        ("opencl -max_num_threads=0", "max_num_threads: 0 is less than 1"),
    ],
)
def test_numbers_have_limits(text, words):
    with pytest.raises(TargetError, match=words):
        resolved(text)


def test_a_machine_that_is_not_here_may_be_anything():
    config = CompilationConfig.resolve("llvm -mtriple=aarch64-linux-gnu -mattr=+dotprod -model=m")
    assert "-mtriple=aarch64-linux-gnu" in config.text
