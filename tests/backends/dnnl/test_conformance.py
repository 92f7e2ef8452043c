# SPDX-License-Identifier: Apache-2.0
"""The backend keeps the promises that the conformance kit checks."""

import pytest

from intarsia.backends.dnnl.backend import BACKEND
from intarsia.testing import conformance

pytestmark = pytest.mark.usefixtures("library")

test_dnnl = conformance(BACKEND, target="dnnl, onnxruntime")
