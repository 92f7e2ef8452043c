# SPDX-License-Identifier: Apache-2.0
"""`intarsia verify` and `intarsia reduce`, through their workers."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

from intarsia.errors import BackendError, ExecutionError, LinkError, TrialError
from intarsia.process.workers import CallOutcome
from intarsia.verifying.verify import _failed


@pytest.mark.exhaustive
def test_a_region_that_ends_the_process_is_named_and_cut_down(call, folder, model):
    target = "fake -ops=Relu -fault=later-segfault, onnxruntime"
    answer = call("verify", model, "-t", target, "--out", "small", "--json")
    assert answer.code == 1
    (fault,) = answer.json["faults"]
    assert (fault["fault"]["symptom"], fault["run"]) == ("crashed", 2)
    assert fault["target"].startswith("fake")
    small = answer.json["smallest"]
    assert small["operators"] == ["Relu"]
    assert "--runs 3" in small["command"]
    nodes = onnx.load(folder / "small" / "model.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Relu"]


def test_what_cannot_be_asked_is_bad_input(call, folder, model):
    assert "--suspect" in call("verify", model, "--against", "openvino").err
    assert "nothing is doubted" in call("reduce", model).err
    answer = call("verify", model, "--inputs", "none.npz", "--suspect", "openvino")
    assert (answer.code, "no file" in answer.err) == (2, True)
    (folder / "text.npz").write_text("text")
    assert "not an .npz file" in call("reduce", model, "--inputs", "text.npz", "--suspect", "x").err
    np.savez(folder / "wrong.npz", other=np.ones(3))
    answer = call("verify", model, "--inputs", "wrong.npz", "--suspect", "openvino")
    assert (answer.code, "'other'" in answer.err) == (2, True)


DYING = """
import os

from intarsia.backends.reference import ReferenceBackend, ReferenceExecutable
from intarsia.backends.values import Detection
from intarsia.target import Target


class Dying(ReferenceExecutable):
    def bind(self, inputs, outputs, scratch):
        step, runs = super().bind(inputs, outputs, scratch), []

        def die_later():
            runs.append(None)
            if len(runs) > 1 and getattr(inputs[0], "shape", None) == (2, 4):  # no self-test
                os.abort()
            step()

        return die_later


class DyingBackend(ReferenceBackend):
    name = "dying"
    kinds = ("bnns",)

    def detect(self):
        return Detection((Target("bnns"),))

    def load(self, artifact, device):
        return Dying(artifact)


BACKEND = DyingBackend()
"""


@pytest.fixture
def dying(tmp_path_factory):
    """The environment of a plug-in whose regions abort the process when they run again."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / "dying_plugin-1.dist-info"
    metadata.mkdir(parents=True)
    (site / "dying_plugin.py").write_text(DYING)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dying-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[intarsia.backends]\ndying = dying_plugin:BACKEND\n"
    )
    return {**os.environ, "PYTHONPATH": str(site)}


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_isolated", [True, False])
def test_a_backend_in_a_process_of_its_own_dies_alone(is_isolated, dying, model):
    """Then it is a region that failed, and the worker goes on to compare the others."""
    isolate = ["--isolate", "dying"] if is_isolated else []
    options = ["-t", "bnns, onnxruntime", "--pin", "second=bnns", *isolate, "--json"]
    command = [sys.executable, "-m", "intarsia", "verify", model, *options]
    answer = subprocess.run(command, env=dying, capture_output=True, text=True, check=False)
    assert answer.returncode == 1, answer.stderr
    (fault,) = json.loads(answer.stdout)["faults"]
    assert fault["fault"]["symptom"] == ("failed" if is_isolated else "crashed")
    assert fault["target"].startswith("bnns")


def test_what_cannot_be_isolated_is_said(call, model):
    answer = call("verify", model, "-t", "onnxruntime", "--isolate", "onxruntime")
    assert answer.code == 2
    assert "no backend 'onxruntime' to isolate" in answer.err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        *((kind.__name__, 3) for kind in (BackendError, ExecutionError, LinkError, TrialError)),
        ("InternalError", 4),
        ("ModelError", 2),
        ("ValueError", 2),
    ],
)
def test_what_fails_in_the_worker_has_the_exit_code_of_other_commands(raised, code):
    error = _failed(CallOutcome(error_type=raised, message="it is not here", hint="bring it"))
    assert (error.exit_code, error.message, error.hint) == (code, "it is not here", "bring it")
