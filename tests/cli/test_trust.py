# SPDX-License-Identifier: Apache-2.0
"""`--trust`: the commands that open a package run a stranger's code only if the user says so."""

import pytest

from intarsia.backends.llvm import LlvmBackend
from intarsia.runtime.package import read_package

COMMANDS = (("check",), ("explain", "--profile", "2"), ("run",))
"""`explain` loads a package only for a profile."""


@pytest.fixture
def package(call, model, monkeypatch, tmp_path):
    """`chain.intarsia` with native code, which another installation wrote."""
    assert call("compile", model, "-t", "llvm").code == 0
    monkeypatch.setenv("INTARSIA_KEYS_DIR", str(tmp_path / "other"))
    return "chain.intarsia"


@pytest.fixture
def loaded(monkeypatch):
    """What code `llvm` loads."""
    payloads, load = [], LlvmBackend.load

    def note(self, artifact, device):
        payloads.append(bytes(artifact.payload))
        return load(self, artifact, device)

    monkeypatch.setattr(LlvmBackend, "load", note)
    return payloads


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_strangers_code_is_loaded_only_with_trust(command, call, package, loaded):
    theirs = {bytes(one.payload) for one in read_package(package).artifacts}
    asked = call(*command, package)
    assert asked.code == 0
    assert "compiled again" in asked.out + asked.err
    # Made here of the same model it is the same code; then who compiled it counts.
    compiled = len(loaded)
    trusted = call(*command, package, "--trust")
    assert trusted.code == 0
    assert "compiled again" not in trusted.out + trusted.err
    assert theirs <= set(loaded[compiled:])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_without_trust_nothing_of_the_stranger_is_loaded(command, call, package, monkeypatch):
    compiled, compile_ = [], LlvmBackend.compile

    def note(self, candidate, context):
        compiled.append(candidate)
        return compile_(self, candidate, context)

    monkeypatch.setattr(LlvmBackend, "compile", note)
    monkeypatch.setenv("INTARSIA_PROGRAMS", "0")
    assert call(*command, package, "--trust").code == 0
    assert not compiled
    assert call(*command, package).code == 0
    assert bool(compiled) is (command[0] != "check")  # which loads nothing then
