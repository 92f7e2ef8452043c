"""The other emitters as parameters of a test."""

import pytest
from tests.codegen.emit.runners import run_c, run_opencl, run_opencl_groups

RUNNERS = {"c": run_c, "opencl": run_opencl, "opencl-groups": run_opencl_groups}


@pytest.fixture(params=RUNNERS)
def run(request):
    """A function that runs a kernel in another language and compares it with the interpreter."""
    return RUNNERS[request.param]
