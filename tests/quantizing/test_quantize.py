# SPDX-License-Identifier: Apache-2.0
"""Models quantised by each library run alike in Intarsia and ONNX Runtime, within their bound."""

import logging

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import intarsia
from intarsia.errors import AccuracyError, BackendError, InputError, ModelError, SettingError
from intarsia.quantizing import journal
from intarsia.quantizing.accuracy import AccuracyTrial
from intarsia.zoo import build

SCHEMES = {
    "static": {},
    "per-tensor": {"per_channel": False, "reduce_range": True},
    "entropy": {"ranges": "entropy"},
    "percentile": {"ranges": "percentile"},
    "dynamic": {"dynamic": True},
    "nncf": {"quantizer": "nncf"},
    "int4": {"to": "int4", "block": 16, "max_error": 0.3},
    "int4-standard": {"to": "int4", "block": 16, "form": "DequantizeLinear", "max_error": 0.3},
    "int4-nncf": {"to": "int4", "block": 16, "quantizer": "nncf", "max_error": 0.3},
}
OPERATORS = {
    "static": "QuantizeLinear",
    "per-tensor": "QuantizeLinear",
    "entropy": "QuantizeLinear",
    "percentile": "QuantizeLinear",
    "dynamic": "MatMulInteger",
    "nncf": "QuantizeLinear",
    "int4": "MatMulNBits",
    "int4-standard": "DequantizeLinear",
    "int4-nncf": "DequantizeLinear",
}

TEXT = """
net (float[N,3,12,12] x) => (float[N,10] y)
<float[8,3,3,3] w1, float[8] b1, float[8] scale, float[8] shift, float[8] mean, float[8] spread,
 float[32,8,3,3] w2, float[32,10] w3> {
    [conv1] a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
    [norm] n = BatchNormalization(a, scale, shift, mean, spread)
    [relu1] b = Relu(n)
    [conv2] c = Conv<pads = [1, 1, 1, 1]>(b, w2)
    [relu2] d = Relu(c)
    [pool] e = GlobalAveragePool(d)
    [flat] f = Flatten(e)
    [fc] y = MatMul(f, w3)
}
"""


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def network():
    """A small convolutional network of opset 11 with a free batch, a batch norm and metadata."""
    model = onnx.parser.parse_model('<ir_version: 7, opset_import: ["" : 11]>' + TEXT)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (32, 8, 3, 3), "w3": (32, 10)}
    shapes |= dict.fromkeys(("scale", "shift", "mean", "spread"), (8,))
    for name, shape in shapes.items():
        values = draw(*shape) / np.sqrt(np.prod(shape[1:]))
        array = np.abs(values) + 0.5 if name in ("scale", "spread") else values
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    model.metadata_props.add(key="labels", value="ten")
    return model


@pytest.fixture
def quantize(own_cache):
    """`intarsia.quantize`, on twelve samples unless others are given."""

    def run(model, **options):
        options.setdefault("calibrate", {"x": draw(12, 3, 12, 12, seed=1)})
        return intarsia.quantize(model, **options)

    return run


def right_session(model):
    """A session of ONNX Runtime whose sums do not saturate where there is no VNNI."""
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")
    return ort.InferenceSession(model.SerializeToString(), settings)


def relative(actual, expected):
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


SLOW = pytest.mark.exhaustive
"""NNCF takes seconds to import, and for each model."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if name == "nncf" else ()) for name in SCHEMES]
)
def test_a_quantised_model_runs_alike_everywhere_within_its_bound(name, network, quantize):
    quantized = quantize(network, **SCHEMES[name])
    model, report = quantized.model, quantized.report
    onnx.checker.check_model(model)
    assert report.error <= report.max_error
    assert report.left == ()
    assert OPERATORS[name] in {node.op_type for node in model.graph.node}
    assert [value.name for value in model.graph.input] == ["x"]
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert {one.key: one.value for one in model.metadata_props} == {"labels": "ten"}
    x = draw(5, 3, 12, 12, seed=2)
    f32 = ort.InferenceSession(network.SerializeToString()).run(None, {"x": x})[0]
    theirs = right_session(model).run(None, {"x": x})[0]
    ours = intarsia.compile(model, target="llvm, onnxruntime").run({"x": x})["y"]
    assert relative(ours, f32) <= 2 * report.max_error
    assert relative(theirs, f32) <= 2 * report.max_error
    assert relative(ours, theirs) <= 0.02


def test_the_error_is_that_of_the_outputs_over_the_samples_held_out(network, quantize):
    samples = draw(12, 3, 12, 12, seed=1)
    quantized = quantize(network)
    held_out = samples[3::4]
    expected = ort.InferenceSession(network.SerializeToString()).run(None, {"x": held_out})[0]
    actual = right_session(quantized.model).run(None, {"x": held_out})[0]
    (output,) = quantized.report.outputs
    assert output.error == pytest.approx(relative(actual, expected), rel=1e-3)
    assert output.decibels == pytest.approx(-20 * np.log10(output.error))
    assert (quantized.report.samples, quantized.report.trial) == (9, 3)


def test_samples_for_the_trial_leave_all_others_to_the_ranges(network, quantize):
    report = quantize(network, validate={"x": draw(5, 3, 12, 12, seed=3)}).report
    assert (report.samples, report.trial, report.is_held_out) == (12, 5, True)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"quantizer": "nncf"}, marks=SLOW), {"dynamic": True}]
)
def test_the_worst_nodes_stay_in_f32_until_the_bound_holds(options, network, quantize):
    loose = quantize(network, **options).report
    assert loose.regions[0].nodes[0] == "fc"
    bound = 0.9 * loose.error
    quantized = quantize(network, max_error=bound, **options)
    report = quantized.report
    assert report.left == ("fc",)
    assert report.error <= bound < report.error_at_first == loose.error
    assert [one.is_left for one in report.regions][:2] == [True, False]
    products = [node for node in quantized.model.graph.node if node.name == "fc"]
    assert products[0].op_type == "MatMul"
    weights = {tensor.name: tensor.data_type for tensor in quantized.model.graph.initializer}
    assert [weights.get(name) for name in products[0].input][1] == onnx.TensorProto.FLOAT


def test_a_bound_that_nothing_quantised_holds_is_an_error_that_names_the_worst(network, quantize):
    with pytest.raises(AccuracyError, match=r"nothing quantised only; alone: fc 0\.0") as caught:
        quantize(network, max_error=1e-5)
    assert caught.value.exit_code == 1


def test_the_same_call_gives_the_same_bytes(network, quantize, monkeypatch):
    monkeypatch.setattr(journal, "write_entry", lambda *_: None)  # nothing is recalled
    one, other = (quantize(network, max_error=0.008) for _ in range(2))
    assert one.report == other.report
    assert one.model.SerializeToString(deterministic=True) == other.model.SerializeToString(
        deterministic=True
    )


def test_what_was_measured_before_it_was_killed_is_not_measured_again(
    network, quantize, monkeypatch
):
    compared, compare = [], AccuracyTrial.compare

    def die_at(count):
        def run(self, model):
            compared.append(model)
            if len(compared) > count:
                raise KeyboardInterrupt
            return compare(self, model)

        return run

    monkeypatch.setattr(AccuracyTrial, "compare", die_at(3))
    with pytest.raises(KeyboardInterrupt):
        quantize(network)
    compared.clear()
    monkeypatch.setattr(AccuracyTrial, "compare", die_at(100))
    regions = quantize(network).report.regions
    assert len(compared) == 1 + len(regions) - 3
    compared.clear()
    assert quantize(network).report.regions == regions
    assert compared == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"calibrate": None}, InputError, "ranges of activations are read from real inputs"),
        ({"to": "int2"}, SettingError, "--to 'int2' is none of int8, int4"),
        ({"quantizer": "other"}, SettingError, "--quantizer 'other'"),
        ({"to": "int4", "dynamic": True}, SettingError, "only ONNX Runtime quantises with ranges"),
        ({"to": "int4", "block": 24}, SettingError, "--block 24"),
        ({"max_error": 0.0}, SettingError, "--max-error 0.0 is not above 0"),
        ({"max_error": float("nan")}, SettingError, "--max-error nan"),
    ],
)
def test_what_cannot_be_done_is_refused(options, error, message, network, quantize):
    with pytest.raises(error, match=message) as caught:
        quantize(network, **options)
    assert caught.value.hint


def test_a_model_without_anything_to_quantise_is_refused(parse_model, quantize):
    model = parse_model("net (float[N,3,12,12] x) => (float[N,3,12,12] y) { y = Sin(x) }")
    for options in ({}, {"to": "int4"}, {"quantizer": "nncf"}):
        with pytest.raises(ModelError, match="quantises nothing in this model"):
            quantize(model, **options)


def test_a_library_that_is_missing_is_named_with_its_extra(network, quantize, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nncf", None)
    with pytest.raises(BackendError, match="nncf cannot be imported") as caught:
        quantize(network, quantizer="nncf")
    assert caught.value.hint == "pip install 'intarsia[nncf]'"


def test_what_fails_inside_a_library_is_our_error(network, quantize, monkeypatch):
    from onnxruntime.quantization import QDQQuantizer

    def fail(self):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(QDQQuantizer, "quantize_model", fail)
    with pytest.raises(BackendError, match=r"the quantiser failed: first line\n") as caught:
        quantize(network)
    assert caught.value.backend.startswith("onnxruntime 1.")


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"quantizer": "nncf"}, marks=SLOW),
        {"to": "int4", "max_error": 0.3},
        {"to": "int4", "max_error": 0.3, "quantizer": "nncf"},
    ],
)
def test_libraries_print_nothing_and_leave_logging_alone(options, network, quantize, capfd):
    before = (list(logging.root.handlers), logging.root.level)
    quantize(network, **options)
    assert capfd.readouterr() == ("", "")
    assert (list(logging.root.handlers), logging.root.level) == before


def test_an_output_that_is_wrong_everywhere_is_never_good_enough(parse_model):
    text = "net (float[2] x) => (float[2] y) {{ y = {}(x) }}"
    roots, lines = (parse_model(text.format(name)) for name in ("Sqrt", "Identity"))
    trial = AccuracyTrial(roots, [{"x": np.array([-1, 4], np.float32)}], 1)
    assert trial.compare(roots)[0].error == 0
    assert trial.compare(lines)[0].error == np.inf


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("squeezenet", {}),
        ("mobilenet_v2", {}),
    ],
)
def test_networks_hold_the_bound(name, options, quantize):
    model = build(name)
    generator = np.random.default_rng(0)
    samples = []
    for _ in range(4):
        feeds = {}
        for value in model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            drawn = (
                generator.standard_normal(shape) if is_float else generator.integers(0, 2, shape)
            )
            feeds[value.name] = drawn.astype(np.float32 if is_float else np.int64)
        samples.append(feeds)
    quantized = quantize(model, calibrate=samples, **options)
    assert quantized.report.error <= quantized.report.max_error
    theirs = right_session(quantized.model).run(None, samples[3])[0]
    ours = next(
        iter(intarsia.compile(quantized.model, target="llvm, onnxruntime").run(samples[3]).values())
    )
    f32 = ort.InferenceSession(model.SerializeToString()).run(None, samples[3])[0]
    assert relative(theirs, f32) <= 1.5 * quantized.report.max_error
    assert relative(ours, f32) <= 1.5 * quantized.report.max_error
