# SPDX-License-Identifier: Apache-2.0
"""Without oneDNN on this machine nothing here can be tried, and pytest says so."""

import pytest

from intarsia.backends.dnnl.library import driver
from intarsia.errors import BackendError
from intarsia.settings import Settings


@pytest.fixture(scope="session")
def library():
    """OneDNN, or a skip that says what is missing."""
    try:
        return driver(Settings.from_environment())
    except BackendError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def peer():
    """A function that runs a model with ONNX Runtime."""
    import onnxruntime

    def run(model, feeds):
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, feeds), strict=True))

    return run


@pytest.fixture(scope="session")
def whole():
    """A function from a model to its whole graph as a candidate for `dnnl`, and a context."""
    from intarsia.backends.values import BuildContext, Candidate
    from intarsia.graph.load import load
    from intarsia.graph.region import Region
    from intarsia.graph.snapshot import snapshot
    from intarsia.target import CompilationConfig

    def make(model, target="dnnl"):
        graph = snapshot(load(model))
        config = CompilationConfig.resolve(f"{target}, reference")
        placed, fallback = config.targets
        region = Region.of(graph, range(len(graph.nodes)))
        context = BuildContext(placed, fallback.target, config, 1)
        return Candidate.plain(region, placed), context

    return make
