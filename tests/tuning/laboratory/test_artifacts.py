# SPDX-License-Identifier: Apache-2.0
"""Artifacts that outlive their worker."""

import numpy as np
import pytest

from intarsia.backends.values import Artifact, ArtifactConstant, TensorSpec
from intarsia.place.build import RegionBuilder
from intarsia.place.decide import decide_in_order
from intarsia.place.schedule import make_draft
from intarsia.place.setting import quiet
from intarsia.tuning.laboratory.store import LEAST_KEPT_SECONDS, ArtifactStore


@pytest.fixture
def artifact():
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    return Artifact(
        *("llvm", "1", "llvm", b"code"),
        (TensorSpec("x", "float32", (3,)),),
        (TensorSpec("y", "float32", None),),
        (
            ArtifactConstant("w", weights),
            ArtifactConstant("s", np.array(7, np.int64)),
            ArtifactConstant("e", weights[:0]),
        ),
        {"about": "this"},
    )


def test_what_was_kept_comes_back_the_same(tmp_path, artifact):
    store = ArtifactStore(tmp_path)
    assert store.read("llvm", 5, "") is None
    store.write("llvm", 5, "", artifact, seconds=10)
    found = store.read("llvm", 5, "")
    for one, other in zip(found.constants, artifact.constants, strict=True):
        assert one.name == other.name
        assert one.data.dtype == other.data.dtype
        np.testing.assert_array_equal(one.data, other.data)
        assert one.data.ctypes.data % 64 == 0
    for name in ("backend", "version", "target", "payload", "inputs", "outputs", "metadata"):
        assert getattr(found, name) == getattr(artifact, name)
    assert store.read("llvm", 4, "") is None
    assert store.read("dnnl", 5, "") is None
    assert store.read("llvm", 5, "plain -> nchw16c") is None


def test_what_compiles_fast_is_not_kept(tmp_path, artifact):
    store = ArtifactStore(tmp_path)
    store.write("llvm", 5, "", artifact, seconds=LEAST_KEPT_SECONDS / 2)
    assert store.read("llvm", 5, "") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["llvm", "openvino, onnxruntime", "reference"])
def test_a_region_that_was_kept_is_loaded_and_not_compiled(
    target, tmp_path, chain_model, setting_of, random_feeds, evaluate, assert_same, monkeypatch
):
    setting = setting_of(chain_model, target)
    draft = make_draft(setting, decide_in_order(setting))

    def make_builder():
        return RegionBuilder(
            setting,
            strict=True,
            tell=quiet,
            store=ArtifactStore(tmp_path, least_seconds=0),
        )

    make_builder().build(draft)
    for capability in setting.capabilities:
        backend = type(capability.backend.value)
        monkeypatch.setattr(backend, "compile", lambda *_: pytest.fail("compiled again"))
    builder = make_builder()
    builder.build(draft)
    feeds = random_feeds(chain_model)
    outputs = builder.finish(draft, ()).run(feeds)
    assert_same(outputs, evaluate(chain_model, feeds))
