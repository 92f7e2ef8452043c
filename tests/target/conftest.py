# SPDX-License-Identifier: Apache-2.0
"""What tests of the target system share."""

import pytest

from intarsia.target.registry import REGISTRY
from intarsia.target.user_files import UserFiles


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty folder to work in, for a process that has read no file of the user's yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("INTARSIA_TARGETS", raising=False)
    monkeypatch.setattr(REGISTRY.tags, "files", UserFiles(REGISTRY.tags.check_new))
    return tmp_path
