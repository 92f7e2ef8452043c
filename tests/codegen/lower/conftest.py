# SPDX-License-Identifier: Apache-2.0
"""Models through lowering: as groups, as programs, and as numbers compared with onnxruntime."""

import numpy as np
import onnxruntime
import pytest

import intarsia
from intarsia.codegen.lower.region import lower_region
from intarsia.codegen.unit import AVX512
from intarsia.graph.load import load
from intarsia.graph.region import Region
from intarsia.graph.snapshot import snapshot


@pytest.fixture(scope="session")
def lower_model():
    """A function from a model to its program as one region, and the region."""

    def lower(model, unit=AVX512):
        graph = snapshot(load(model))
        region = Region.of(graph, range(len(graph.nodes)))
        return lower_region(region, unit), region

    return lower


@pytest.fixture(scope="session")
def run_both(backends):
    """A function that runs a model natively and in onnxruntime, and compares.

    A run on NaN and infinity goes before, and must leave nothing behind.
    """

    def run(model, feeds, target="llvm", rtol=1e-4):
        wanted = evaluate(model, feeds)
        exe = intarsia.compile(model, target, num_threads=1, backends=backends)
        assert {region.backend for region in exe.placement.regions} <= {"llvm"}
        exe.run({name: _poison(array) for name, array in feeds.items()})
        results = exe.run(feeds)
        for name, want in wanted.items():
            got = results[name]
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            finite = np.abs(want[np.isfinite(want)]) if want.dtype.kind == "f" else None
            scale = 0 if finite is None else float(finite.max(initial=1))
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale, err_msg=name)
        return exe

    return run


def evaluate(model, feeds):
    """Run a model as it is in onnxruntime, without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def _poison(array):
    if array.dtype.kind != "f":
        return array
    places = np.arange(array.size).reshape(array.shape)
    return np.where(places % 2, np.nan, np.inf).astype(array.dtype)
