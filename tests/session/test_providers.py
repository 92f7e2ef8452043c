# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's providers stand for targets, as docs/onnxruntime.md lists them."""

import logging
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import intarsia.session
from intarsia.backends.registry import collect, load_backends
from intarsia.backends.values import Detection
from intarsia.errors import SettingError
from intarsia.place.machine import resolve_targets
from intarsia.session.options import RunOptions, SessionOptions
from intarsia.session.providers import CPU, PROVIDERS, choose
from intarsia.settings import Settings
from intarsia.target import DeviceType, Target, get_kind

DOCS = Path(__file__).parents[2] / "docs" / "onnxruntime.md"


@pytest.fixture
def model(parse_model):
    return parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")


def test_every_provider_of_onnx_runtime_is_known():
    assert set(onnxruntime.get_all_providers()) <= set(PROVIDERS)
    assert intarsia.session.get_all_providers()[-1] == CPU
    assert set(intarsia.session.get_available_providers()) <= set(PROVIDERS)
    assert intarsia.session.get_available_providers()[-1] == CPU
    assert intarsia.session.get_device() in ("CPU", "GPU")


def test_every_provider_stands_for_a_kind_with_its_attributes():
    for provider in PROVIDERS.values():
        if provider.kind is not None:
            known = get_kind(provider.kind).attrs.keys() | {"device_id"}
            assert {attr for attr, _ in provider.options.values()} <= known


def test_the_documented_table_is_the_table():
    rows = dict(re.findall(r"^\| `(\w+ExecutionProvider)` \| ([^|]+) \|", DOCS.read_text(), re.M))
    assert "found on this machine" in rows.pop(CPU)
    expected = {name: one.kind for name, one in PROVIDERS.items() if name != CPU}
    assert rows == {name: f"`{kind}`" if kind else "none" for name, kind in expected.items()}


def test_every_option_is_documented():
    text = DOCS.read_text()
    for options in (SessionOptions, RunOptions):
        names = [name for name in vars(options) if name[0] != "_"]
        hidden = "free_|initializers|files_in_memory|custom_ops_libraries"
        missing = [n for n in names if f"`{n}`" not in text and not re.match(hidden, n)]
        assert not missing


def test_the_cpu_alone_is_what_is_found_here(model):
    ours = intarsia.session.InferenceSession(model, providers=[CPU])
    default = intarsia.session.InferenceSession(model)
    assert ours.executable.placement == default.executable.placement
    assert ours.get_providers() == [CPU]
    assert ours.get_provider_options() == {CPU: {}}


class _Gpu:
    """Finds a GPU that is not there."""

    name = "gpu"
    kinds = ("cuda", "tensorrt")

    def version(self):
        return "1"

    def detect(self):
        return Detection((Target("tensorrt"), Target("cuda")))

    def never(self, *_):
        raise AssertionError("nothing is compiled for it")

    rules = check = compile = open = load = never


def test_the_cpu_is_no_gpu_and_two_providers_of_one_kind_are_one_target():
    own = load_backends(Settings.from_environment()).by_name
    backends = collect([*(one for name, one in own.items() if name != "cuda"), _Gpu()])
    assert "cuda" in map(str, resolve_targets(None, None, backends).targets)
    alone = choose([CPU], None, backends).targets
    assert alone
    assert {target.kind.device_type for target in alone} == {DeviceType.CPU}
    gpu = ["NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider", "CUDAExecutionProvider"]
    targets = choose([*gpu, CPU], None, backends).targets
    assert targets == ["tensorrt", "cuda", *alone]
    assert resolve_targets(targets, None, backends)
    assert choose([], None, backends).targets is None


def test_providers_come_in_their_order_and_the_cpu_last(model):
    session = intarsia.session.InferenceSession(
        model,
        None,
        ["OpenVINOExecutionProvider"],
        [{"num_of_threads": 1, "precision": "FP32"}],
    )
    assert session.get_providers() == ["OpenVINOExecutionProvider", CPU]
    targets = session.executable.placement.targets
    assert targets[0] == "openvino -num_threads=1 -precision=f32"
    assert any(text.startswith("llvm") for text in targets[1:])
    assert sum(text.startswith("openvino") for text in targets) == 1
    assert session.run(None, {"x": np.array([-1, 1], np.float32)})[0].tolist() == [0, 1]
    assert session.get_provider_options()["OpenVINOExecutionProvider"] == {
        "num_of_threads": "1",
        "precision": "FP32",
    }


def test_a_provider_that_is_not_here_is_left_out_with_one_line(model, caplog):
    providers = [("RknpuExecutionProvider", {"any": 1}), "CPUExecutionProvider"]
    with caplog.at_level(logging.WARNING, "intarsia"):
        session = intarsia.session.InferenceSession(model, providers=providers)
    assert session.get_providers() == [CPU]
    assert len(caplog.records) == 1
    assert "RknpuExecutionProvider" in caplog.text


def test_options_go_with_names_or_beside_them():
    backends = load_backends(Settings.from_environment())
    given = {"precision": "BF16"}
    pair = choose([("OpenVINOExecutionProvider", given)], None, backends)
    beside = choose(["OpenVINOExecutionProvider"], [given], backends)
    assert pair == beside
    assert pair.targets[0] == "openvino -precision=bf16"


@pytest.mark.parametrize(
    ("providers", "options", "message"),
    [
        (["InvalidProvider"], None, "Unknown Provider Type: InvalidProvider"),
        ("CPUExecutionProvider", None, "not a list"),
        (3, None, "not a list"),
        ([3], None, "3 is neither a provider"),
        ([("CPUExecutionProvider",)], None, "neither a provider nor a tuple"),
        ([["CPUExecutionProvider", {}]], None, "neither a provider nor a tuple"),
        ([{"CPUExecutionProvider": {}}], [{}], "neither a provider nor a tuple"),
        (["CPUExecutionProvider"], 3, "one dictionary per provider"),
        (["CPUExecutionProvider"], ["no"], "dictionary"),
        (["CPUExecutionProvider"], [{}, {}], "one dictionary per provider"),
        ([("CPUExecutionProvider", {"a": 1})], [{"b": 2}], "both"),
        ([("CPUExecutionProvider", {"a": 1})], None, "no option 'a'"),
        ([("OpenVINOExecutionProvider", {"cache_dir": "."})], None, "no option 'cache_dir'"),
        ([("OpenVINOExecutionProvider", {"precision": "FP9"})], None, "no value 'FP9'"),
        ([("OpenVINOExecutionProvider", {"num_of_threads": "x"})], None, "no value 'x'"),
        (None, [{}], "no providers"),
    ],
)
def test_what_is_not_a_list_of_providers_is_an_error_that_says_why(
    providers, options, message, model
):
    with pytest.raises(SettingError, match=re.escape(message)):
        intarsia.session.InferenceSession(model, providers=providers, provider_options=options)


def test_a_provider_that_is_listed_twice_counts_once(model, caplog):
    session = intarsia.session.InferenceSession(model, providers=[CPU, CPU])
    assert session.get_providers() == [CPU]
    assert "listed twice" in caplog.text


def test_targets_and_providers_contradict(model):
    with pytest.raises(SettingError, match="give one of them") as caught:
        intarsia.session.InferenceSession(model, providers=[CPU], targets="llvm")
    assert "targets=" in caught.value.message


def test_the_short_name_of_a_provider_leads_to_the_whole(model):
    with pytest.raises(SettingError) as caught:
        intarsia.session.InferenceSession(model, providers=["cpu"])
    assert caught.value.hint.startswith(f"did you mean {CPU!r}? ")


def test_a_session_moves_to_other_providers_or_stays_as_it_was(model):
    session = intarsia.session.InferenceSession(model, targets="reference")
    with pytest.raises(SettingError, match="Unknown Provider Type"):
        session.set_providers(["InvalidProvider"])
    assert session.get_providers() == ["reference"]
    session.set_providers(["OpenVINOExecutionProvider"])
    assert session.get_providers() == ["OpenVINOExecutionProvider", CPU]
    assert session.run(None, {"x": np.array([-1, 1], np.float32)})[0].tolist() == [0, 1]


def test_a_package_takes_no_providers(model, tmp_path):
    intarsia.compile(model, "llvm").save(tmp_path / "m.intarsia")
    with pytest.raises(SettingError, match="compiled already"):
        intarsia.session.InferenceSession(tmp_path / "m.intarsia", providers=[CPU])


def test_every_test_in_the_check_list_exists():
    rows = [
        line.split("|") for line in DOCS.read_text().splitlines() if line.startswith("| `test_")
    ]
    ours = {name for row in rows for name in re.findall(r"`(test_\w+)`", row[2])}
    tests = Path(__file__).parents[1]
    files = (*tests.glob("session/test_*.py"), tests / "backends" / "test_custom_ops.py")
    code = "".join(path.read_text() for path in files)
    assert {name for name in ours if f"def {name}(" not in code} == set()
    assert len(rows) > 40
    assert all("none" in row[2] or "`test_" in row[2] for row in rows)
