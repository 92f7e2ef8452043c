# SPDX-License-Identifier: Apache-2.0
"""Backends are found, indexed and refused by name; a plug-in's is as good as a built-in one."""

import logging
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import intarsia
from intarsia.backends import registry
from intarsia.backends.backend import Backend
from intarsia.backends.device import HostDevice
from intarsia.backends.entries import GROUP, list_entries
from intarsia.backends.registry import collect, load_backends
from intarsia.backends.values import Artifact, Detection, Refusal, Rule, TensorSpec
from intarsia.errors import BackendError, ReasonCode, TargetError
from intarsia.place.machine import resolve_targets
from intarsia.settings import Settings
from intarsia.target import Target

FUNCTIONS = {"Neg": np.negative, "Exp": np.exp, "Add": np.add}


class NumpyExecutable:
    """Runs a list of numpy calls; the payload is `op in... > out` per line."""

    scratch_bytes = 0

    def __init__(self, artifact):
        self.artifact = artifact
        self.lines = [line.split(" ") for line in artifact.payload.decode().splitlines()]

    def bind(self, inputs, outputs, scratch):
        del scratch
        values = dict(zip((spec.name for spec in self.artifact.inputs), inputs, strict=True))

        def step():
            for op, *arguments, result in self.lines:
                values[result] = FUNCTIONS[op](*(values[name] for name in arguments))
            for spec, buffer in zip(self.artifact.outputs, outputs, strict=True):
                np.copyto(buffer, values[spec.name])

        return step


class NumpyBackend:
    """A plug-in's backend: three operators on float32, computed by numpy."""

    name = "plug-in"
    kinds = ("bnns",)  # a kind that the catalogue describes and nobody serves

    def version(self):
        return "1.2"

    def detect(self):
        return Detection(reason="it is a test")

    def rules(self, context):
        return (Rule("functions", self.refuse),)

    def refuse(self, graph, context):
        return {
            node.id: Refusal(
                node.name,
                node.op_type,
                str(context.target),
                ReasonCode.UNSUPPORTED_OP,
                "it is not one of three",
            )
            for node in graph.nodes
            if node.op_type not in FUNCTIONS or any(graph.values[i].constant for i in node.inputs)
        }

    def check(self, candidate, context):
        return None

    def estimate(self, candidate, context):
        return None

    def compile(self, candidate, context):
        region = candidate.region
        values = region.graph.values

        def specs(ids):
            return tuple(TensorSpec(values[i].name, values[i].dtype, values[i].shape) for i in ids)

        nodes = [region.graph.nodes[i] for i in region.nodes]
        lines = [
            " ".join([node.op_type, *(values[i].name for i in (*node.inputs, *node.outputs))])
            for node in nodes
        ]
        return Artifact(
            backend=self.name,
            version=self.version(),
            target=str(candidate.target),
            payload="\n".join(lines).encode(),
            inputs=specs(region.inputs),
            outputs=specs(region.outputs),
        )

    def open(self, placed, options):
        return HostDevice(options)

    def load(self, artifact, device):
        return NumpyExecutable(artifact)


@pytest.fixture
def with_plug_in(backends):
    return collect([*backends.by_name.values(), NumpyBackend()])


@pytest.fixture
def mixed_model(parse_model):
    return parse_model("""
        g (float[3] x) => (float[3] y)
        { a = Neg(x) b = Exp(a) c = Tanh(b) d = Add(c, a) y = Relu(d) }""")


def test_a_plug_ins_backend_runs_a_part_of_the_model(
    mixed_model, with_plug_in, random_feeds, evaluate, assert_same
):
    assert isinstance(NumpyBackend(), Backend)
    exe = intarsia.compile(mixed_model, "bnns, onnxruntime", backends=with_plug_in)
    assert exe.placement.coverage() == {"bnns": 3, "onnxruntime": 2}
    feeds = random_feeds(mixed_model)
    assert_same(exe.run(feeds), evaluate(mixed_model, feeds))
    assert exe.explain().versions["plug-in"] == "1.2"


def test_a_plug_ins_region_survives_a_package(
    mixed_model, with_plug_in, backends, random_feeds, evaluate, assert_same, tmp_path
):
    path = tmp_path / "mixed.intarsia"
    intarsia.compile(mixed_model, "bnns, onnxruntime", backends=with_plug_in).save(path)
    feeds = random_feeds(mixed_model)
    again = intarsia.load(path, backends=with_plug_in)
    assert_same(again.run(feeds), evaluate(mixed_model, feeds))
    with pytest.raises(BackendError, match="'plug-in' is not available") as caught:
        intarsia.load(path, backends=backends)
    assert caught.value.hint


@pytest.mark.parametrize("method", ["compile", "load"])
def test_a_plug_ins_exception_demotes_its_region(
    method, mixed_model, backends, random_feeds, evaluate, assert_same, monkeypatch
):
    def fail(*arguments):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(NumpyBackend, method, fail)
    with_plug_in = collect([*backends.by_name.values(), NumpyBackend()])
    exe = intarsia.compile(mixed_model, "bnns, onnxruntime", backends=with_plug_in)
    assert exe.placement.coverage() == {"bnns": 0, "onnxruntime": 5}
    assert "ZeroDivisionError: oops" in str(exe.explain())
    feeds = random_feeds(mixed_model)
    assert_same(exe.run(feeds), evaluate(mixed_model, feeds))
    with pytest.raises(BackendError, match="ZeroDivisionError: oops"):
        intarsia.compile(
            mixed_model,
            "bnns, onnxruntime",
            exclude=["bnns:Tanh", "bnns:Relu"],
            strict=True,
            backends=with_plug_in,
        )


def test_a_plug_ins_check_is_heeded(mixed_model, backends, monkeypatch):
    def refuse(self, candidate, context):
        return Refusal("a", "Neg", "bnns", ReasonCode.MIN_SIZE, "too small")

    monkeypatch.setattr(NumpyBackend, "check", refuse)
    with_plug_in = collect([*backends.by_name.values(), NumpyBackend()])
    exe = intarsia.compile(mixed_model, "bnns, onnxruntime", backends=with_plug_in)
    assert exe.placement.coverage()["bnns"] == 0
    assert "too small" in str(exe.explain())


def test_two_backends_of_one_name_are_an_error():
    with pytest.raises(BackendError, match="named 'plug-in'"):
        collect([NumpyBackend(), NumpyBackend()])


def test_two_backends_of_one_kind_are_an_error_that_names_both():
    other = NumpyBackend()
    other.name = "newcomer"
    with pytest.raises(BackendError, match=r"'bnns' .* 'newcomer' and 'plug-in'"):
        collect([NumpyBackend(), other])


def test_a_kind_without_a_backend_is_an_error(chain_model, backends):
    with pytest.raises(BackendError, match="'rocm'") as caught:
        intarsia.compile(chain_model, "rocm", backends=backends)
    assert "onnxruntime" in caught.value.hint


def test_a_broken_plug_in_is_a_warning_and_the_reason_of_later_errors(monkeypatch, caplog):
    entries = [
        EntryPoint("cuda", "no_such_module_of_ours:BACKEND", GROUP),
        EntryPoint("number", "math:pi", GROUP),
        EntryPoint("reference", "intarsia.backends.reference:BACKEND", GROUP),
    ]
    monkeypatch.setattr(registry, "list_entries", lambda settings: entries)
    with caplog.at_level(logging.WARNING):
        found = load_backends(Settings.from_environment())
    assert list(found.by_name) == ["reference"]
    assert "'cuda' failed to load" in caplog.text
    assert "'number' is not a Backend" in caplog.text
    with pytest.raises(BackendError, match="its plug-in failed to load: ModuleNotFoundError"):
        found.for_target(Target("cuda"))
    with pytest.raises(BackendError, match="math:pi is not a Backend"):
        found.named("number")


@pytest.mark.parametrize(
    "import_line", ["backends.api import Artifact", "backends.values import Constant"]
)
def test_a_plug_in_of_an_older_contract_is_told_where_names_are_now(
    import_line, monkeypatch, caplog, tmp_path
):
    (tmp_path / "older_plug_in.py").write_text(f"from intarsia.{import_line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "older_plug_in", raising=False)
    entries = [EntryPoint("older", "older_plug_in:BACKEND", GROUP)]
    monkeypatch.setattr(registry, "list_entries", lambda settings: entries)
    with caplog.at_level(logging.WARNING):
        broken = load_backends(Settings.from_environment()).broken
    assert "intarsia.backends.values" in broken["older"]
    assert "update the plug-in" in broken["older"]
    assert broken["older"] in caplog.text
    assert "No module named" not in broken["older"]  # what `doctor` would tell to install


def test_without_a_target_the_machine_is_detected(chain_model, backends):
    exe = intarsia.compile(chain_model, backends=backends)
    kinds = [text.split()[0] for text in exe.placement.targets]
    assert kinds == ["llvm", "openvino", "onnxruntime", "dnnl"]
    assert exe.placement.fallback == "onnxruntime"
    assert str(resolve_targets(None, None, backends).host) == "onnxruntime"


def test_without_libraries_native_code_is_the_machine(chain_model, backends):
    few = collect([backends.named("llvm"), backends.named("reference")])
    exe = intarsia.compile(chain_model, backends=few)
    assert [text.split()[0] for text in exe.placement.targets] == ["llvm"]
    assert exe.placement.fallback.startswith("llvm")


def test_a_machine_without_a_complete_target_is_an_error(chain_model, backends):
    few = collect([backends.named("fake"), backends.named("reference")])
    with pytest.raises(TargetError, match="no complete one was found") as caught:
        intarsia.compile(chain_model, backends=few)
    assert "intarsia[onnxruntime]" in caught.value.hint


def test_a_missing_runtime_is_an_error_before_any_work(chain_model, backends, monkeypatch):
    def version(self):
        raise BackendError("ONNX Runtime is not available", hint="install it")

    monkeypatch.setattr(type(backends.named("onnxruntime")), "version", version)
    stages = []
    with pytest.raises(BackendError, match="is not available"):
        intarsia.compile(
            chain_model,
            "onnxruntime",
            backends=backends,
            progress=lambda *stage: stages.append(stage),
        )
    assert stages == []


def test_what_is_installed_is_read_again_once_something_else_is(own_cache, tmp_path, monkeypatch):
    settings = Settings.from_environment()
    first = list_entries(settings)
    remembered = list_entries(settings)
    assert {(one.name, one.value) for one in remembered} == {(one.name, one.value) for one in first}
    assert not any(isinstance(one, EntryPoint) for one in remembered)
    assert {one.name: one.load() for one in remembered}["llvm"].name == "llvm"
    installed = tmp_path / "plug_in-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(f"[{GROUP}]\nother = other_plug_in:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):  # what is not ours is not remembered: more is asked of it than its name
        assert "other" in {
            one.name for one in list_entries(settings) if isinstance(one, EntryPoint)
        }
