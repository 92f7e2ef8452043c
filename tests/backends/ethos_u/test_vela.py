# SPDX-License-Identifier: Apache-2.0
"""Vela compiles what we write, and its own definitions of registers read what it makes of that."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from intarsia.backends.ethos_u import vela
from intarsia.backends.tflite.network import write_network
from intarsia.backends.tflite.operators import write_region
from intarsia.errors import BackendError
from intarsia.graph.graph import Graph
from intarsia.target import get_kind
from intarsia.testing.integers import LAYERS, draw_layer

pytest.importorskip("ethosu.regor", reason="ethos-u-vela is not installed")
pytest.importorskip("tflite", reason="the package tflite is not installed")

STRIDED = """<ir_version: 9, opset_import: ["": 17]>
net (int8[1, 4, 33, 33] x) => (int8[1, 4, 8, 8] y)
<float s = {1}, int8 z = {0}> {
 xf = DequantizeLinear(x, s, z)
 wf = DequantizeLinear(w, s, z)
 [conv] c = Conv<strides = [4, 4], dilations = [2, 2]>(xf, wf)
 y = QuantizeLinear(c, s, z) }"""
"""Vela takes strides above 3 without dilations alone."""


def written(model):
    graph = Graph.from_model(ir.serde.deserialize_model(model))
    return write_network(write_region(graph.whole).network)


@pytest.fixture(scope="module")
def strided():
    model = onnx.parser.parse_model(STRIDED)
    weights = np.ones((4, 4, 3, 3), np.int8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return onnx.shape_inference.infer_shapes(model)


def commands(stream):
    """Return the names of the commands of a stream, with their parameters: a disassembly."""
    from ethosu.vela.driver_actions import DACommands
    from ethosu.vela.ethos_u55_regs.ethos_u55_regs import cmd0, cmd1

    words = list(np.frombuffer(stream.commands.tobytes(), "<u4"))
    assert bytes(stream.commands[:4]) == b"COP1"
    words.pop(0)
    while words[0] & 0xFF != DACommands.CmdStream:
        words = words[3:] if words[0] & 0xFF == DACommands.Config else words[1:]
    length = int(words[0] >> 16) | int(words[0] >> 8 & 0xFF) << 16
    body, found = words[1 : 1 + length], []
    while body:
        word = int(body.pop(0))
        has_payload = word & 0xC000 == 0x4000
        payload = int(body.pop(0)) if has_payload else None
        names = cmd1 if has_payload else cmd0
        found.append((names(word & 0x3FF).name, word >> 16, payload))
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_the_processor_runs_every_layer(name):
    said = vela.forecast(written(draw_layer(name, 1, "uint8")), "ethos-u55-128")
    assert said.refusal == ""
    assert said.cycles > 0


def test_a_stream_reads_and_writes_its_arena_alone():
    network = written(draw_layer("conv", 1))
    stream = vela.compile_stream(network, "ethos-u55-128")
    found = commands(stream)
    names = [name for name, _, _ in found]
    assert names.count("NPU_OP_CONV") == 1
    assert names[-1] == "NPU_OP_STOP"
    regions = {param for name, param, _ in found if name.endswith("_REGION")}
    assert regions <= {0, 1}
    ends = {
        "NPU_SET_IFM_BASE0": stream.arena_bytes,
        "NPU_SET_OFM_BASE0": stream.arena_bytes,
        "NPU_SET_WEIGHT_BASE": len(stream.weights),
        "NPU_SET_SCALE_BASE": len(stream.weights),
    }
    seen = [(name, address) for name, _, address in found if name in ends]
    assert {name for name, _ in seen} == ends.keys()
    assert all(address < ends[name] for name, address in seen)
    for place in (*stream.inputs, *stream.outputs):
        assert 0 < place.size <= stream.arena_bytes - place.offset
    again = vela.compile_stream(network, "ethos-u55-128")
    assert again.commands.tobytes() == stream.commands.tobytes()


def test_every_processor_of_the_kind_has_a_system():
    network = written(draw_layer("conv", 3))
    names = get_kind("ethos-u").attrs["accelerator_config"].choices
    cycles = {name: vela.forecast(network, name).cycles for name in names}
    assert all(cycles.values())
    assert cycles["ethos-u55-32"] > cycles["ethos-u55-256"]
    macs = {name: vela.system_of(name) for name in names}
    assert all(one.macs * one.cores == int(name.rpartition("-")[2]) for name, one in macs.items())


def test_what_is_left_to_a_cpu_has_velas_words(strided):
    network = written(strided)
    said = vela.forecast(network, "ethos-u55-128")
    assert said.refusal == (
        "CONV_2D: Unsupported kernel stride: 4, 4 "
        "Stride>3 is only supported IF (dilation = 1 AND padding = VALID)"
    )
    with pytest.raises(BackendError, match="Unsupported kernel stride"):
        vela.compile_stream(network, "ethos-u55-128")


def test_a_crash_of_velas_is_a_refusal():
    said = vela.forecast(b"\0" * 64, "ethos-u55-128")
    assert said.refusal == "Vela fails on it: the process was ended by SIGSEGV"
    assert vela.forecast(written(draw_layer("relu", 2)), "ethos-u55-128").cycles > 0
