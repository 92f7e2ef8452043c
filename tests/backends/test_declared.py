# SPDX-License-Identifier: Apache-2.0
"""Kinds without a code generator: what is declared of them can be planned with, not compiled."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import intarsia
from intarsia.backends.declared import (
    Declaration,
    DeclaredBackend,
    known_declarations,
    read_declarations,
    with_declared,
)
from intarsia.backends.values import Candidate
from intarsia.errors import BackendError, TargetError
from intarsia.place.machine import Machine
from intarsia.place.request import Request
from intarsia.place.setting import make_setting
from intarsia.target import CompilationConfig, Target, get_kind
from intarsia.tuning.absent.absent import plan_absent
from intarsia.tuning.options import Options


@pytest.fixture(scope="module")
def model():
    """A quantised convolution, then what only a general processor takes."""
    parsed = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (uint8[1, 64, 32, 32] x) => (float[1, 10] y) {'
        " [conv] c = QLinearConv<pads = [1, 1, 1, 1]>(x, s, z, w, s, zw, s, z)"
        " [pool] p = MaxPool<kernel_shape = [32, 32]>(c)"
        " [out] d = DequantizeLinear(p, s, z)"
        " [flat] f = Flatten(d) [dense] h = MatMul(f, v) [erf] y = Erf(h) }"
    )
    rng = np.random.default_rng(0)
    for name, array in {
        "s": np.float32(0.1), "z": np.uint8(0), "zw": np.int8(0),
        "w": rng.integers(-9, 9, (64, 64, 3, 3)).astype(np.int8),
        "v": rng.standard_normal((64, 10)).astype(np.float32),
    }.items():  # fmt: skip
        parsed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return parsed


def plan(model, text, backends, path=None):
    """Return where each node is planned to be, and the report."""
    config = CompilationConfig.resolve(text)
    known = with_declared(backends, config, path)
    setting = make_setting(
        Request(model=model, num_threads=1, is_here=False), Machine(config, known)
    )
    calls, report = plan_absent(setting, Options())
    names = [node.name for node in setting.graph.nodes]
    kinds = [placed.target.kind.name for placed in setting.targets]
    found = {names[node]: kinds[position] for position, nodes in calls for node in nodes}
    return found, report


def test_a_composite_is_planned_for_a_machine_without_its_code_generators(model, backends):
    text = "ethos-n -variant=n78, acl, llvm -mcpu=cortex-a72"
    found, report = plan(model, text, backends)
    assert found["conv"] == "ethos-n"
    assert found["out"] in ("arm_acl", "llvm")
    assert found["erf"] == "llvm"
    assert report.is_mixed
    assert any("estimated" in note for note in report.notes)


@pytest.mark.parametrize(("runner", "is_declared"), [("", True), (" -runner=ssh://board", False)])
def test_a_backend_without_a_machine_to_ask_is_replaced(runner, is_declared, backends, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    config = CompilationConfig.resolve(f"acl, llvm -mtriple=aarch64-linux-gnu{runner}")
    found = with_declared(backends, config).by_kind["arm_acl"].value
    assert isinstance(found, DeclaredBackend) == is_declared


QUANTISED = """<ir_version: 8, opset_import: ["": 17]>
g (uint8[1, 16, 32, 32] x) => (uint8[1, 16, 4, 4] y)
<float s = {0.1}, uint8 z = {9}, int8 zero = {0}> {
 [dx] xf = DequantizeLinear(x, s, z) [dw] wf = DequantizeLinear(w, s, zero)
 [conv] c = Conv<strides = [2, 2]>(xf, wf) [relu] r = Relu(c) [qc] a = QuantizeLinear(r, s, z)
 [da] af = DequantizeLinear(a, s, z) [dw2] wf2 = DequantizeLinear(w, s, zero)
 [wide] c2 = Conv<strides = [3, 3]>(af, wf2) [qc2] b = QuantizeLinear(c2, s, z)
 [db] bf = DequantizeLinear(b, s, z)
 [sum] d = Add(bf, bf) [qd] e = QuantizeLinear(d, s, z) [pool] y = MaxPool<kernel_shape = [2, 2]>(e)
}"""


def test_layers_between_q_and_dq_are_planned_for(backends):
    model = onnx.parser.parse_model(QUANTISED)
    weights = np.ones((16, 16, 3, 3), np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    config = CompilationConfig.resolve("ethos-n78, llvm -mcpu=cortex-a72")
    machine = Machine(config, with_declared(backends, config))
    request = Request(model=model, num_threads=1, is_here=False)
    setting = make_setting(request, machine)
    capability, names = setting.capabilities[0], [node.name for node in setting.graph.nodes]
    refused = {names[number]: one.reason for number, one in capability.refusals.items()}
    assert {"wide", "qc2"} <= refused.keys()
    assert not refused.keys() & {"dx", "dw", "conv", "relu", "qc", "db", "sum", "qd"}
    assert "its strides are 3 x 3, and have to be of 1, 2" in refused["wide"]
    groups = capability.backend.groups(setting.graph.whole, capability.context)
    assert sorted(len(group.nodes) for group in groups) == [3, 5]
    region = setting.graph.whole.of(setting.graph, [names.index("conv")])
    candidate = Candidate.plain(region, setting.targets[0])
    refusal = capability.backend.check(candidate, capability.context)
    assert refusal.reason == "Conv is not between a DequantizeLinear and a QuantizeLinear"
    with pytest.raises(BackendError, match="needs a backend that calls Arm's Ethos-N driver"):
        intarsia.compile(model, "ethos-n78, llvm")


def test_declared_rates_decide(model, backends, tmp_path):
    file = tmp_path / "slow.toml"
    file.write_text(
        '[ethos-n]\noperators = ["QLinearConv"]\noperations_per_second = 1e6\nspread = 1.5\n'
    )
    text = "ethos-n, onnxruntime"
    assert plan(model, text, backends, file)[0]["conv"] == "onnxruntime"
    file.write_text(
        '[ethos-n]\noperators = ["*"]\noperations_per_second = 1e15\nbytes_per_second = 1e15\n'
        'call_seconds = 1e-9\n[ethos-n.when]\n"variant=n37" = { operations_per_second = 1e3 }\n'
    )
    assert set(plan(model, text, backends, file)[0].values()) == {"ethos-n"}
    slower = text.replace("ethos-n", "ethos-n -variant=n37")
    assert plan(model, slower, backends, file)[0]["conv"] == "onnxruntime"


def test_complete_kinds_take_every_operator(model, backends):
    found, _ = plan(model, "cuda -arch=sm_80", backends)
    assert set(found.values()) == {"cuda"}


def test_kinds_without_a_declaration_say_so(model, backends):
    with pytest.raises(BackendError, match="no backend generates code for target kind 'bnns'"):
        plan(model, "bnns, llvm", backends)


def test_compiling_says_what_is_missing(model):
    with pytest.raises(BackendError) as caught:
        intarsia.compile(model, "ethos-n, acl, llvm")
    assert "'ethos-n'; it needs a backend that calls Arm's Ethos-N driver stack" in str(
        caught.value
    )
    assert "plan absent" in caught.value.hint


def output_dtypes(operator):
    """Return the names of the dtypes that an operator's first output may have in ONNX."""
    schema = onnx.defs.get_schema(operator)
    output = schema.outputs[0].type_str
    allowed = {output} | {
        text
        for constraint in schema.type_constraints
        if constraint.type_param_str == output
        for text in constraint.allowed_type_strs
    }
    names = (text.removeprefix("tensor(").removesuffix(")") for text in allowed)
    return {"float32" if name == "float" else name for name in names}


@pytest.mark.parametrize("name", sorted(known_declarations()))
def test_what_comes_along_is_declared_of_kinds_and_operators_that_there_are(name):
    declaration, kind = known_declarations()[name], get_kind(name)
    assert not kind.is_complete, "it takes everything anyway"
    assert declaration.source, "who says so?"
    assert len(set(declaration.operators)) == len(declaration.operators)
    for operator in declaration.operators:
        assert onnx.defs.has(operator), operator
        reachable = output_dtypes(operator) & set(declaration.dtypes)
        assert reachable, f"{operator}: ONNX has it for none of the dtypes"
    for condition, _ in declaration.when:
        attribute, _, value = condition.partition("=")
        assert value in map(str, kind.attrs[attribute].choices), condition
    rates = [declaration.of(Target(f"{name} -{each}")) for each, _ in declaration.when]
    assert all(each != declaration for each in rates), "an entry that changes nothing"


@pytest.mark.parametrize(
    ("text", "tera"),
    [
        ("ethos-n", 1), ("ethos-n37", 1.024), ("ethos-n77", 4.096), ("ethos-n78", 1),
        ("ethos-n78 -tops=8", 8), ("ethos-n78 -tops=2", 2),
    ],
)  # fmt: skip
def test_an_attribute_changes_what_is_declared(text, tera):
    target = Target(text)
    rates = known_declarations()[target.kind.name].of(target)
    assert rates.operations_per_second == pytest.approx(1e12 * tera)
    assert Declaration().of(target) == Declaration()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[ethos-n]\noperator = ["Conv"]', "no field 'operator'\nhint: did you mean 'operators'"),
        ('[ethos-n]\noperators = "Conv"', "operators: 'Conv' is of the wrong type"),
        ("[ethos-n]\noperations_per_second = 0", "operations_per_second: 0 is not positive"),
        ("[ethos-n]\nspread = true", "spread: True is of the wrong type"),
        ("ethos-n = 1", "expects a table"),
        ("[ethos-n]\nwindows = 1", "windows: expects a table"),
        ("[ethos-n.windows]\nConv = {kernel = [1]}", "no field 'kernel'"),
        ("[ethos-n.windows]\nConv = {kernels = 1}", "1 is no list of integers"),
        ("[ethos-n]\nwhen = 1", "when: expects a table"),
        ("[ethos-n", "bad.toml"),
    ],
)
def test_a_malformed_file_is_refused(text, words, tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(TargetError) as caught:
        read_declarations(file)
    assert words in str(caught.value)
