# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs in a device's memory: no copy, what is there is read and written in place."""

import threading

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.errors import InputError, PlacementError, TargetError
from intarsia.target import DeviceType, PlacedTarget, Target, VirtualDevice

TARGETS = "fake, reference"
GRAPH = "g (float[2,3] x, float[2,3] h) => (float[2,3] y, float[2,3] z) {"
NODES = ' ["one"] a = Neg(x) ["two"] y = Add(a, h) ["three"] z = Tanh(y) }'


def devices():
    """Return targets whose memory the host cannot read."""
    from intarsia.backends.registry import load_backends
    from intarsia.settings import Settings

    opencl = load_backends(Settings.from_environment()).by_name["opencl"].detect().targets
    return ["fake, reference", *(["opencl, onnxruntime"] if opencl else [])]


@pytest.fixture(params=devices())
def targets(request):
    return request.param


@pytest.fixture
def model(parse_model):
    return parse_model(GRAPH + NODES)


@pytest.fixture
def feeds(model, random_feeds):
    return random_feeds(model)


def copies_of(exe):
    tensors = exe.plan.tensors
    return {tensors[step.source].name for step in exe.plan.copies}


def on(model, targets, *names):
    return intarsia.on_device(model, dict.fromkeys(names, targets.partition(",")[0]))


def test_what_is_on_a_device_is_not_copied(model, targets):
    assert copies_of(intarsia.compile(model, targets)) == {"x", "h", "y", "z"}
    exe = intarsia.compile(on(model, targets, "h", "output:z"), targets)
    assert copies_of(exe) == {"x", "y"}


def test_a_result_stays_on_its_device_from_run_to_run(model, targets, feeds, evaluate, assert_same):
    exe = intarsia.compile(on(model, targets, "input:h", "output:y", "output:z"), targets)
    first = exe.run(feeds)
    assert isinstance(first["y"], intarsia.DeviceArray)
    expected = evaluate(model, feeds)
    assert_same({name: np.asarray(one) for name, one in first.items()}, expected)
    second = exe.run({"x": feeds["x"], "h": first["y"]})  # read where it is
    again = evaluate(model, {"x": feeds["x"], "h": expected["y"]})
    assert_same({name: np.asarray(one) for name, one in second.items()}, again)
    assert_same({name: np.asarray(one) for name, one in first.items()}, expected)  # fresh memory


def test_a_loop_is_bound_once(model, targets, feeds, evaluate, assert_same):
    exe = intarsia.compile(on(model, targets, "h", "output:z"), targets)
    state, result = exe.device_array("h"), exe.device_array("z")
    y = np.zeros((2, 3), np.float32)
    step = exe.bind({"x": feeds["x"], "h": state}, {"z": result, "y": y})
    for scale in (1, 2):
        state.write(feeds["h"] * np.float32(scale))
        step()
        expected = evaluate(model, {**feeds, "h": feeds["h"] * np.float32(scale)})
        assert_same({"y": y, "z": result.numpy()}, expected)


def test_out_may_be_on_the_device(model, targets, feeds, evaluate, assert_same):
    exe = intarsia.compile(on(model, targets, "output:z"), targets)
    result, y = exe.device_array("z"), np.zeros((2, 3), np.float32)
    returned = exe(feeds["x"], feeds["h"], out=(y, result))
    assert returned[1] is result
    assert_same({"y": y, "z": result.numpy()}, evaluate(model, feeds))


def test_it_is_so_in_a_package_and_in_a_saved_model(
    model, targets, feeds, evaluate, assert_same, tmp_path
):
    annotated = on(model, targets, "h", "output:z")
    path = tmp_path / "m.onnx"
    import onnx_ir

    onnx_ir.save(annotated, path)
    exe = intarsia.compile(onnx.load(path), targets)
    exe.save(tmp_path / "m.intarsia")
    loaded = intarsia.load(tmp_path / "m.intarsia")
    assert copies_of(loaded) == {"x", "y"}
    outputs = loaded.run(feeds)
    assert isinstance(outputs["z"], intarsia.DeviceArray)
    assert_same({name: np.asarray(one) for name, one in outputs.items()}, evaluate(model, feeds))


def test_a_pin_says_the_same(model, targets, feeds):
    kind = targets.partition(",")[0]
    exe = intarsia.compile(model, targets, pins={"h": kind, "output:z": kind, "one": kind})
    assert copies_of(exe) == {"x", "y"}


def test_threads_have_results_of_their_own(model, targets, feeds, evaluate, assert_same):
    exe = intarsia.compile(on(model, targets, "output:z"), targets)
    expected, found = evaluate(model, feeds), []
    threads = [threading.Thread(target=lambda: found.append(exe.run(feeds))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outputs in found:
        assert_same({name: np.asarray(one) for name, one in outputs.items()}, expected)


def test_a_session_returns_arrays_of_the_host(model, targets, feeds, evaluate):
    session = intarsia.InferenceSession(on(model, targets, "output:z"), targets=targets)
    (z,) = session.run(["z"], feeds)
    assert isinstance(z, np.ndarray)
    np.testing.assert_allclose(z, evaluate(model, feeds)["z"], rtol=1e-5)


def test_an_output_that_the_host_makes_is_copied_to_its_device(model, feeds, evaluate, assert_same):
    annotated = intarsia.on_device(
        model, {"output:y": "fake", "h": "fake", "one": "reference", "two": "reference"}
    )
    exe = intarsia.compile(annotated, TARGETS)
    outputs = exe.run(feeds)
    assert isinstance(outputs["y"], intarsia.DeviceArray)
    assert_same({name: np.asarray(one) for name, one in outputs.items()}, evaluate(model, feeds))


def test_a_device_on_which_nothing_runs_is_opened(
    model, targets, feeds, evaluate, assert_same, tmp_path
):
    device, host = targets.split(", ")
    annotated = on(model, targets, "input:h", "output:y")
    exe = intarsia.compile(annotated, targets, pins=dict.fromkeys(("one", "two", "three"), host))
    exe.save(tmp_path / "m.intarsia")
    for program in (exe, intarsia.load(tmp_path / "m.intarsia")):
        assert {region.device for region in program.placement.regions} == {"cpu:0"}
        outputs = program.run(feeds)
        owner = type(outputs["y"].owner)
        assert owner.__module__.startswith(f"intarsia.backends.{device}")
        assert_same({name: np.asarray(a) for name, a in outputs.items()}, evaluate(model, feeds))


def test_an_input_that_is_an_output_is_in_one_memory(parse_model):
    model = parse_model("g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }")
    exe = intarsia.compile(intarsia.on_device(model, {"input:x": "fake"}), TARGETS)
    outputs = exe.run({"x": np.ones(2, np.float32)})
    assert np.asarray(outputs["x"]).tolist() == [1, 1]
    with pytest.raises(PlacementError, match="two memories"):
        intarsia.compile(
            intarsia.on_device(model, {"input:x": "fake:0", "output:x": "fake:1"}),
            "fake:0, fake:1, reference",
        )


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ({"input:nosuch": "fake"}, PlacementError, "no input 'nosuch'"),
        ({"output:x": "fake"}, PlacementError, "no output 'x'"),
        ({"x": "metal"}, TargetError, "input 'x'"),
    ],
)
def test_what_cannot_be_is_an_error_that_names_it(devices, error, message, model):
    with pytest.raises(error, match=message):
        intarsia.compile(intarsia.on_device(model, devices), TARGETS)


def test_a_string_stays_with_the_host(parse_model):
    model = parse_model("g (string[2] x) => (string[2] y) { y = Identity(x) }")
    with pytest.raises(PlacementError, match="input 'x' cannot be on fake: only dense tensors"):
        intarsia.compile(model, TARGETS, pins={"x": "fake"})


def test_a_pin_against_an_annotation_is_an_error(model):
    annotated = intarsia.on_device(model, {"x": "fake:0"})
    with pytest.raises(PlacementError, match=r"pin 'x=fake:1' contradicts annotation 'fake:0'"):
        intarsia.compile(annotated, "fake:0, fake:1, reference", pins={"x": "fake:1"})


def test_arrays_that_do_not_fit_are_refused(model, feeds):
    annotated = intarsia.on_device(model, {"h": "fake", "output:z": "fake"})
    exe, other = (intarsia.compile(annotated, TARGETS) for _ in range(2))
    with pytest.raises(InputError, match="another program's"):
        exe.run({"x": feeds["x"], "h": other.device_array("h")})
    with pytest.raises(InputError, match="'h' is on ext_dev:0/fake: a host's array"):
        exe.bind({"x": feeds["x"], "h": feeds["h"]}, {})
    with pytest.raises(InputError, match="no input or output 'x' on a device"):
        exe.device_array("x")
    with pytest.raises(InputError, match="'h' has shape"):
        exe.device_array("h").write(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="has to be copied"):
        np.asarray(exe.device_array("h"), copy=False)


@pytest.mark.parametrize(
    "device",
    [
        VirtualDevice(device_type=DeviceType.EXT_DEV, device_id=0),
        VirtualDevice(device_type=DeviceType.EXT_DEV),
        PlacedTarget.parse("fake"),
        Target("fake"),
        "fake:0",
    ],
    ids=["device", "type", "placed", "target", "text"],
)
def test_a_device_may_be_said_in_any_form(device, model):
    exe = intarsia.compile(
        intarsia.on_device(model, {"h": device, "output:z": device, "two": device}), TARGETS
    )
    assert copies_of(exe) == {"x", "y"}


def test_a_virtual_device_that_says_nothing_is_no_device(model):
    with pytest.raises(PlacementError, match="neither text nor a target or device"):
        intarsia.on_device(model, {"h": VirtualDevice()})
