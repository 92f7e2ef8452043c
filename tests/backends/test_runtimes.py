# SPDX-License-Identifier: Apache-2.0
"""What comes with the import of a runtime."""

import importlib.util
import os
import subprocess
import sys

import pytest

CODE = """
import os, threading
before = dict(os.environ)
from intarsia.backends.openvino import core
core()
print([one.name for one in threading.enumerate()], dict(os.environ) == before)
"""


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="OpenVINO is not here")
def test_openvino_tells_nobody_that_it_is_imported():
    """It would from a thread, which forks."""
    environment = {
        name: text
        for name, text in os.environ.items()
        if name not in ("CI", "TF_BUILD", "JENKINS_URL")
    }
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['MainThread'] True\n"
