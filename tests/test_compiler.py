# SPDX-License-Identifier: Apache-2.0
"""The pipeline as a whole: options, determinism, failures that move work elsewhere."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

import intarsia
from intarsia.backends.registry import collect
from intarsia.errors import ReasonCode, SettingError, TargetError, UnsupportedError
from intarsia.settings import Settings
from intarsia.target import Target, register_tag
from intarsia.target.registry import REGISTRY, TagTable

COMPILE_AND_SAVE = """
import sys
import intarsia
exe = intarsia.compile(sys.argv[1], sys.argv[2], pins={"third": "openvino"}, num_threads=1)
print(exe.plan)
print(exe.explain())
exe.save(sys.argv[3])
"""


def test_the_same_input_gives_the_same_plan_and_bytes_in_every_process(chain_model, tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(chain_model.SerializeToString())
    target = "fake:0 -ops=Relu,Tanh, fake:1 -ops=Add, openvino, onnxruntime"
    results = []
    for seed in ("1", "77"):
        package = tmp_path / f"{seed}.intarsia"
        done = subprocess.run(
            [sys.executable, "-c", COMPILE_AND_SAVE, str(model), target, str(package)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results.append((done.stdout, package.read_bytes()))
    assert "run 0 on" in results[0][0]
    assert results[0] == results[1]


def test_a_package_and_a_lock_file_name_no_tag(chain_model, tmp_path, monkeypatch):
    monkeypatch.setattr(REGISTRY, "tags", TagTable(REGISTRY._is_kind))
    register_tag("lab/node", "onnxruntime -num_threads=1")
    package = tmp_path / "m.intarsia"
    exe = intarsia.compile(chain_model, "fake -ops=Relu, lab/node", pins={"third": "lab/node"})
    exe.save(package)
    assert "lab/node" not in exe.plan.identity.targets
    monkeypatch.setattr(REGISTRY, "tags", TagTable(REGISTRY._is_kind))
    with pytest.raises(TargetError, match="tag 'lab/node' is not known"):
        Target("lab/node")
    targets = [region.target for region in intarsia.load(package).placement.regions]
    assert "onnxruntime -num_threads=1" in targets


@pytest.mark.parametrize("form", ["path", "text path", "bytes", "proto"])
def test_a_model_comes_in_any_form(
    form, chain_model, random_feeds, evaluate, assert_same, tmp_path
):
    path = tmp_path / "m.onnx"
    path.write_bytes(chain_model.SerializeToString())
    forms = {
        "path": path,
        "text path": str(path),
        "bytes": path.read_bytes(),
        "proto": chain_model,
    }
    exe = intarsia.compile(forms[form], "onnxruntime")
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))


@pytest.mark.parametrize(
    "target",
    [
        "fake -ops=Relu, reference",
        ["fake -ops=Relu", "reference"],
        [intarsia.Target("fake -ops=Relu"), intarsia.Target("reference")],
        [{"kind": "fake", "ops": ["Relu"]}, "reference"],
        intarsia.CompilationConfig.resolve("fake -ops=Relu, reference"),
    ],
)
def test_a_machine_comes_in_any_form(target, chain_model, backends):
    exe = intarsia.compile(chain_model, target, backends=backends)
    assert exe.placement.targets == ("fake -ops=Relu", "reference")
    assert exe.placement.coverage() == {"fake -ops=Relu": 1, "reference": 4}


def test_free_dimensions_are_fixed_by_shapes(parse_model, backends):
    model = parse_model("g (float[n,3] x) => (float[n,3] y) { a = Neg(x) y = Exp(a) }")
    for shapes in ({"x": (5, 3)}, {"n": 5}, {"n": "5..5"}):
        exe = intarsia.compile(model, "reference", shapes=shapes, backends=backends)
        assert [spec.shape for spec in exe.inputs] == [(5, 3)]
        assert exe(np.zeros((5, 3), np.float32)).shape == (5, 3)


def test_the_first_target_that_takes_a_node_gets_it(chain_model, backends):
    target = "fake:0 -ops=Relu, fake:1 -ops=Relu,Add, reference"
    coverage = intarsia.compile(chain_model, target, backends=backends).placement.coverage()
    assert list(coverage.values()) == [1, 1, 3]


def test_a_shortfall_is_one_visible_line(chain_model, backends, caplog):
    with caplog.at_level(logging.WARNING, logger="intarsia"):
        exe = intarsia.compile(chain_model, "fake -ops=Relu, reference", backends=backends)
    assert [record.getMessage() for record in caplog.records] == [exe.placement.shortfall]
    caplog.clear()
    intarsia.compile(chain_model, "reference", backends=backends)
    assert not caplog.records


def test_progress_tells_every_stage(chain_model, backends):
    stages = []
    intarsia.compile(
        chain_model,
        "fake -ops=Relu, reference",
        backends=backends,
        progress=lambda *stage: stages.append(stage),
    )
    assert list(dict.fromkeys(stage for stage, _, _ in stages)) == [
        *("load", "prepare", "place", "compile")
    ]
    assert stages[-1] == ("compile", 3, 3)


def test_only_what_fails_alone_leaves_a_failed_region(
    chain_model, random_feeds, evaluate, assert_same, backends, monkeypatch
):
    fake = backends.named("fake").value
    compile_region = type(fake).compile

    def fail_on_tanh(self, candidate, context):
        nodes = [candidate.region.graph.nodes[i] for i in candidate.region.nodes]
        if any(node.op_type == "Tanh" for node in nodes):
            raise RuntimeError("no Tanh today")
        return compile_region(self, candidate, context)

    monkeypatch.setattr(type(fake), "compile", fail_on_tanh)
    patched = collect([fake, backends.named("reference")])
    exe = intarsia.compile(chain_model, "fake, reference", backends=patched)
    assert exe.placement.coverage() == {"fake": 4, "reference": 1}
    (refusal,) = exe.placement.refusals
    assert (refusal.node, refusal.code) == ("fourth", ReasonCode.COMPILE_FAILED)
    assert "no Tanh today" in refusal.reason
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))


def test_when_the_fallback_fails_too_every_reason_is_told(chain_model, backends):
    known = collect([backends.named("fake")])  # nothing to run what they refuse on the host
    with pytest.raises(UnsupportedError, match="compile-failed") as caught:
        intarsia.compile(chain_model, "fake:0 -fault=compile, fake:1 -fault=load", backends=known)
    assert {refusal.code for refusal in caught.value.refusals} == {ReasonCode.COMPILE_FAILED}
    assert len(caught.value.refusals) == 10


def test_an_unknown_placement_is_an_error(chain_model, backends):
    with pytest.raises(SettingError, match="'magic' is unknown") as caught:
        intarsia.compile(chain_model, "reference", placement="magic", backends=backends)
    assert "greedy" in caught.value.hint


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_threads_is_positive(count, chain_model):
    with pytest.raises(SettingError, match=f"num_threads={count}"):
        intarsia.compile(chain_model, "reference", num_threads=count)


def test_the_number_of_threads_comes_from_the_option_before_the_setting(monkeypatch):
    monkeypatch.setenv("INTARSIA_NUM_THREADS", "3")
    assert Settings.from_environment().threads(None) == 3
    assert Settings.from_environment().threads(5) == 5


def test_an_unknown_target_is_an_error_that_suggests(chain_model):
    with pytest.raises(TargetError, match="onnxruntim") as caught:
        intarsia.compile(chain_model, "onnxruntim")
    assert "onnxruntime" in caught.value.hint


def test_a_partial_target_alone_is_an_error_that_says_what_to_add(chain_model):
    with pytest.raises(TargetError) as caught:
        intarsia.compile(chain_model, "openvino")
    assert caught.value.hint


def test_a_pinned_batch_normalisation_is_obeyed_or_folded(parse_model, backends, random_feeds):
    model = parse_model("""
        g (float[1,2,4,4] x) => (float[1,2,4,4] y)
        <float[2,2,1,1] w = {0.5, 1.0, -1.0, 0.25}, float[2] s = {1.5, 0.5},
         float[2] b = {0.1, 0.2}, float[2] m = {0.3, -0.3}, float[2] v = {1.0, 2.0}>
        { [conv] c = Conv(x, w) [norm] n = BatchNormalization(c, s, b, m, v) [act] y = Relu(n) }""")
    target = "fake, onnxruntime"
    free = intarsia.compile(model, target, backends=backends)
    apart = intarsia.compile(
        model, target, pins={"conv": "fake", "norm": "onnxruntime"}, backends=backends
    )
    homes = {
        origin: region.target
        for region in apart.placement.regions
        for node in region.nodes
        for origin in node.origins or (node.name,)
    }
    assert free.placement.node_count == 2
    assert (homes["conv"], homes["norm"]) == ("fake", "onnxruntime")
    feeds = random_feeds(model)
    np.testing.assert_allclose(free.run(feeds)["y"], apart.run(feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("door", [intarsia.compile, intarsia.tune])
def test_every_door_takes_the_old_name_of_the_host(door, chain_model):
    with pytest.raises(TargetError, match="'target_host' and 'host' are both given"):
        door(chain_model, "fake", host="reference", target_host="reference")
    with (
        pytest.warns(FutureWarning, match="'target_host' is deprecated"),
        pytest.raises(TargetError, match="cannot be the host"),
    ):
        door(chain_model, "fake", target_host="openvino")
