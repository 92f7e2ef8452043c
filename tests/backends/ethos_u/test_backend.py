# SPDX-License-Identifier: Apache-2.0
"""The kind `ethos-u`: what it takes and refuses, what it makes, and that none of it runs here."""

import msgspec
import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.declared import with_declared
from intarsia.backends.ethos_u.backend import BACKEND, CompiledNetwork
from intarsia.backends.values import ABOUT, Candidate
from intarsia.errors import BackendError, TargetError
from intarsia.place.machine import Machine
from intarsia.place.request import Request
from intarsia.place.setting import make_setting
from intarsia.target import CompilationConfig, Target
from intarsia.tuning.absent.absent import plan_absent
from intarsia.tuning.options import Options

pytest.importorskip("ethosu.regor", reason="ethos-u-vela is not installed")
pytest.importorskip("tflite", reason="the package tflite is not installed")

BOARD = "ethos-u -accelerator_config=ethos-u55-128, c -mcpu=cortex-m55"
NETWORK = """<ir_version: 9, opset_import: ["": 17]>
net (float[1, 32, 24, 24] data) => (float[1, 64, 8, 8] out)
<float s = {0.05}, int8 z = {3}, float t = {0.01}, int8 zero = {0}> {
 [quantise] x = QuantizeLinear(data, s, z)
 [dx] xf = DequantizeLinear(x, s, z)
 [dw] wf = DequantizeLinear(w, t, zero)
 [conv] c = Conv<strides = [3, 3], pads = [1, 1, 1, 1]>(xf, wf)
 [relu] r = Relu(c)
 [qc] a = QuantizeLinear(r, s, z)
 [da] af = DequantizeLinear(a, s, z)
 [dv] vf = DequantizeLinear(v, t, zero)
 [conv2] c2 = Conv<pads = [1, 1, 1, 1]>(af, vf)
 [qc2] b = QuantizeLinear(c2, s, z)
 [db] bf = DequantizeLinear(b, s, z)
 [sum] d = Add(af, bf)
 [qd] e = QuantizeLinear(d, s, z)
 [de] ef = DequantizeLinear(e, s, z)
 [erf] out = Erf(ef) }"""


@pytest.fixture(scope="module")
def model():
    """A quantised block whose sum reads what its convolution reads, and what has no codes."""
    parsed = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (64, 32, 3, 3)), ("v", (64, 64, 3, 3))):
        weights = rng.integers(-99, 99, shape).astype(np.int8)
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return onnx.shape_inference.infer_shapes(parsed)


def setting_of(model, text, backends, path=None):
    config = CompilationConfig.resolve(text)
    machine = Machine(config, with_declared(backends, config, path))
    return make_setting(Request(model=model, num_threads=1, is_here=False), machine)


@pytest.fixture(scope="module")
def board(model, backends):
    return setting_of(model, BOARD, backends)


def context_of(setting):
    return setting.capabilities[0].context


def taken(setting):
    graph, context = setting.graph, context_of(setting)
    (rule,) = BACKEND.rules(context)
    refusals = rule.refuse(graph, context)
    kept = [node.id for node in graph.nodes if node.id not in refusals]
    return kept, {graph.nodes[node].name: refusal for node, refusal in refusals.items()}


def test_layers_are_taken_and_the_rest_has_its_reason(board):
    kept, refusals = taken(board)
    names = {board.graph.nodes[node].name for node in kept}
    assert {"dx", "dw", "conv", "relu", "qc", "conv2", "qc2", "sum", "qd", "da", "da/2"} <= names
    assert refusals.keys() == {"quantise", "de", "erf"}
    assert "not between" in refusals["erf"].reason
    assert "numbers" in refusals["de"].reason


def test_a_region_is_one_command_stream(board):
    kept, _ = taken(board)
    region = board.graph.whole.of(board.graph, kept)
    candidate, context = Candidate.plain(region, board.targets[0]), context_of(board)
    assert BACKEND.check(candidate, context) is None
    artifact = BACKEND.compile(candidate, context)
    made = msgspec.msgpack.decode(artifact.payload, type=CompiledNetwork)
    assert made.commands[:4] == b"COP1"
    assert [size for _, size in made.inputs] == [spec.nbytes for spec in artifact.inputs]
    assert [size for _, size in made.outputs] == [spec.nbytes for spec in artifact.outputs]
    about = artifact.metadata[ABOUT]
    assert f"arena {made.arena_bytes} bytes" in about
    assert f"{made.cycles} cycles predicted" in about
    assert "not run here" in about
    cost = BACKEND.estimate(candidate, context)
    copies = cost.seconds - made.cycles / 500e6 - 2e-5
    nbytes = sum(spec.nbytes for spec in (*artifact.inputs, *artifact.outputs))
    assert 1e-10 * nbytes < copies < 1e-8 * nbytes
    graph = board.graph
    last = graph.whole.of(graph, [graph.node_named("qc").id])
    part = BACKEND.estimate(Candidate.plain(last, board.targets[0]), context)
    assert "cycles of its layers" in part.provenance
    assert 1e-6 < part.seconds < cost.seconds
    groups = {group.name: len(group.nodes) for group in BACKEND.groups(region, context)}
    assert groups == {"convolution": 4, "elementwise": 4}
    with pytest.raises(BackendError, match="runs on that processor alone"):
        BACKEND.load(artifact, BACKEND.open(board.targets[0], None))


def test_the_figures_place(model, backends, tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text("[c]\noperations_per_second = 1e8\nbytes_per_second = 1e9\nspread = 1.5\n")
    found = {}
    for macs in (32, 256):
        text = BOARD.replace("128", str(macs))
        setting = setting_of(model, text, backends)
        kept, _ = taken(setting)
        candidate = Candidate.plain(setting.graph.whole.of(setting.graph, kept), setting.targets[0])
        found[macs] = BACKEND.estimate(candidate, context_of(setting)).seconds
    assert found[32] > found[256]
    board = setting_of(model, BOARD, backends, file)
    calls, _ = plan_absent(board, Options())
    kinds = [placed.target.kind.name for placed in board.targets]
    placed = {board.graph.nodes[node].name: kinds[at] for at, nodes in calls for node in nodes}
    assert placed["conv"] == placed["conv2"] == "ethos-u"
    assert placed["erf"] == "c"
    file.write_text(file.read_text().replace("1e8", "1e13").replace("1e9", "1e13"))
    calls, _ = plan_absent(setting_of(model, BOARD, backends, file), Options())
    assert {kinds[at] for at, _ in calls} == {"c"}


def test_what_vela_leaves_to_a_cpu_goes_elsewhere(model, backends):
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    conv = next(node for node in changed.graph.node if node.name == "conv2")
    conv.attribute.append(onnx.helper.make_attribute("dilations", [1, 1]))
    conv = next(node for node in changed.graph.node if node.name == "conv")
    del conv.attribute[:]
    for name, numbers in (
        ("strides", [4, 4]), ("dilations", [2, 2]), ("pads", [7, 7, 6, 6]),
    ):  # fmt: skip
        conv.attribute.append(onnx.helper.make_attribute(name, numbers))
    del changed.graph.value_info[:]
    setting = setting_of(onnx.shape_inference.infer_shapes(changed), BOARD, backends)
    _, refusals = taken(setting)
    assert "Stride>3 is only supported IF" in refusals["conv"].reason
    assert refusals["conv"].reason.startswith("Vela leaves it to the CPU: CONV_2D")
    assert "conv2" not in refusals


def test_compiling_for_this_machine_is_one_clear_error(model):
    with pytest.raises(TargetError) as caught:
        intarsia.compile(model, BOARD)
    assert "ethos-u55-128 does not run programs of this machine" in str(caught.value)
    assert "plan absent" in caught.value.hint
    assert Target("ethos-u") not in BACKEND.detect().targets
