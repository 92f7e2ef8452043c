# SPDX-License-Identifier: Apache-2.0
"""Without oneDNN on this machine nothing here can be tried, and pytest says so."""

import pytest

from intarsia.backends.dnnl.library import driver
from intarsia.errors import BackendError


@pytest.fixture(scope="session")
def library():
    """OneDNN, or a skip that says what is missing."""
    try:
        return driver()
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
