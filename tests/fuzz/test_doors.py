# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes come in, a value comes out or an error of ours; `scripts/fuzz.py` tries more."""

import sys
import warnings
from pathlib import Path

import onnx
import pytest

from intarsia.errors import IntarsiaError, InternalError, TargetError
from intarsia.graph.load import load
from intarsia.target import CompilationConfig, Target

sys.path.insert(0, str(Path(__file__).parent))
from doors import DOORS, make_door, mutate

_MODEL = '<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { y = Neg(x) }'


@pytest.mark.parametrize("name", DOORS)
def test_what_is_mutated_is_sound(name, tmp_path):
    """Else what is behind the first check would never be reached."""
    if name == "gguf":
        pytest.importorskip("gguf", reason="gguf")
    door = make_door(name, tmp_path)
    for seed in door.seeds:
        door.enter(seed, tmp_path / "input")


@pytest.mark.parametrize("name", DOORS)
def test_mutated_inputs_give_values_or_errors_of_ours(name, tmp_path):
    if name == "gguf":
        pytest.importorskip("gguf", reason="gguf")
    door = make_door(name, tmp_path)
    for number in range(60):
        data = mutate(door, number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                door.enter(data, tmp_path / "input")
            except Exception as error:
                if not isinstance(error, IntarsiaError) or isinstance(error, InternalError):
                    pytest.fail(f"input {number} of {name}: {type(error).__name__}: {error}")


def petabytes(model):
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT)
    tensor.dims.extend([1 << 20, 1 << 30])


def overflow(model):
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT)
    tensor.dims.extend([(1 << 63) - 1, (1 << 63) - 1])


def negative(model):
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT)
    tensor.dims.extend([-4, -4])


def cycle(model):
    model.graph.node.add(op_type="Neg", input=["b"], output=["a"])
    model.graph.node.add(op_type="Neg", input=["a"], output=["b"])


def twice(model):
    model.graph.node.add(op_type="Neg", input=["x"], output=["y"])


def recurse(model):
    model.opset_import.add(domain="own", version=1)
    function = model.functions.add(name="F", domain="own", input=["a"], output=["b"])
    function.opset_import.add(domain="own", version=1)
    function.node.add(op_type="F", domain="own", input=["a"], output=["b"])
    model.graph.node[0].op_type, model.graph.node[0].domain = "F", "own"


def outside(model):
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")


@pytest.mark.parametrize("change", [petabytes, overflow, negative, cycle, twice, recurse, outside])
def test_a_hostile_model_is_refused(change, tmp_path):
    model = onnx.parser.parse_model(_MODEL)
    change(model)
    path = tmp_path / "folder" / "m.onnx"
    path.parent.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(IntarsiaError):
        load(path)


def test_external_data_through_a_link_is_refused(tmp_path):
    model = onnx.parser.parse_model(_MODEL)
    outside(model)
    model.graph.initializer[0].external_data[0].value = "link.bin"
    (tmp_path / "folder").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    (tmp_path / "folder" / "link.bin").symlink_to(tmp_path / "secret.bin")
    path = tmp_path / "folder" / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(IntarsiaError):
        load(path)


def test_ten_thousand_levels_are_refused(tmp_path):
    """As protobuf, as JSON and as a target."""
    from intarsia.plan.lock import decode_lock
    from intarsia.target import CompilationConfig

    def varint(number):
        data = b""
        while number > 127:
            data, number = data + bytes([number & 127 | 128]), number >> 7
        return data + bytes([number])

    graph = b""
    for _ in range(10_000):  # graph.node.attribute.g
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            graph = tag + varint(len(graph)) + graph
    data = b"\x08\x09\x3a" + varint(len(graph)) + graph
    for enter in (
        lambda: load(data),
        lambda: decode_lock(b"[" * 10_000, "lock"),
        lambda: CompilationConfig.resolve('{"host":' * 10_000),
        lambda: CompilationConfig.resolve("[" * 10_000),
    ):
        with pytest.raises(IntarsiaError):
            enter()


@pytest.mark.parametrize("levels", [20, 40, 200, 450, 900])
@pytest.mark.parametrize(
    ("start", "end"),
    [("[", "]"), ('{"host":', "}"), ('{"kind":"composite","devices":[', "]}"), ('{"a":[', "]}")],
)
def test_a_target_that_is_nested_deeply_is_refused(start, end, levels, tmp_path):
    """Also where a parser takes it, and what comes behind is recursive."""
    from intarsia.target.source import read_source

    text = start * levels + '"llvm"' + end * levels
    with pytest.raises(IntarsiaError, match="nested too deeply") as caught:
        CompilationConfig.resolve(text)
    assert not isinstance(caught.value, InternalError)
    (tmp_path / "labels.toml").write_text(f"[targets]\na = {'[' * levels}{']' * levels}\n")
    with pytest.raises(IntarsiaError):
        read_source(tmp_path / "labels.toml")


def test_a_dictionary_that_is_nested_deeply_is_refused():
    spec = {"kind": "llvm"}
    for _ in range(200):
        spec = {"kind": "llvm", "host": spec}
    for read in (Target, CompilationConfig.resolve):
        with pytest.raises(TargetError, match="nested too deeply"):
            read(spec)


_LONG = {
    "attributes": "llvm {}".format,
    "commas": "llvm{}".format,
    "features": "llvm -mattr={}".format,
    "list": '["llvm"{}]'.format,
    "quotes": "llvm -device='{}".format,
    "spaces": "llvm{}x".format,
}
_PARTS = {
    "attributes": "-mcpu=a ",
    "commas": ", llvm",
    "features": "+neon,",
    "list": ', "llvm"',
    "quotes": "\\'\"",
    "spaces": "  ",
}


@pytest.mark.parametrize("form", _LONG)
def test_what_a_target_costs_grows_with_its_length(form):
    """Calls of functions are counted, which no other work of the machine moves."""
    from intarsia.target import CompilationConfig

    def calls(count):
        counted = 0

        def note(frame, event, argument):
            nonlocal counted
            counted += event in ("call", "c_call")

        text = _LONG[form](_PARTS[form] * count)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            CompilationConfig.resolve(text)
        except IntarsiaError:
            pass
        finally:
            sys.setprofile(before)
        return counted

    calls(10)  # what is read once
    short, long = calls(100), calls(400)
    assert long < 6 * short
