# SPDX-License-Identifier: Apache-2.0
"""Tuning with backends that were given as objects."""

import sys

import pytest

import intarsia
from intarsia.backends.fake import FakeBackend
from intarsia.backends.registry import collect
from intarsia.errors import BackendError
from intarsia.settings import Settings
from intarsia.tuning.laboratory.plug_ins import describe_plug_ins, load_all

SOURCE = """
from intarsia.backends.fake import FakeBackend
from intarsia.settings import Settings


class Mine(FakeBackend):
    name = "mine"

    def __init__(self, number="1.0"):
        self.number = number

    def version(self):
        return self.number


BACKEND = Mine()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module with a backend that is not installed."""
    (tmp_path / "backend_of_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import backend_of_test

    yield backend_of_test
    del sys.modules["backend_of_test"]


def _with(backends, *others):
    kept = [known for name, known in backends.by_name.items() if name in ("onnxruntime", "llvm")]
    return collect((*others, *kept))


def test_installed_backends_need_not_be_handed_over(backends):
    assert not describe_plug_ins(backends).backends


def test_an_object_of_a_module_is_imported_by_its_name(backends, module):
    found = describe_plug_ins(_with(backends, module.BACKEND))
    assert [one.place for one in found.backends] == ["backend_of_test:BACKEND"]
    loaded = load_all(found, Settings.from_environment())
    assert loaded.by_kind["fake"].value is module.BACKEND
    assert "fake" not in loaded.by_name
    assert "onnxruntime" in loaded.by_name


def test_other_objects_travel_with_their_state(backends, module):
    found = describe_plug_ins(_with(backends, module.Mine("2.5")))
    assert load_all(found, Settings.from_environment()).by_kind["fake"].version() == "2.5"


@pytest.mark.exhaustive
@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_a_backend_given_as_an_object_is_tuned(backends, module, chain_model, tmp_path, objective):
    exe = intarsia.tune(
        chain_model,
        "fake -cost=*:1e-3",
        backends=_with(backends, module.Mine("2.5")),
        costs=str(tmp_path / "costs.sqlite"),
        num_threads=1,
        objective=objective,
    )
    report = exe.explain().tuning
    assert report.versions == ("mine 2.5",)
    assert report.seconds == pytest.approx(1e-3 * len(exe.placement.regions[0].nodes))
    assert not report.failures


def test_what_cannot_be_handed_over_says_what_to_do(backends, chain_model, tmp_path):
    class Local(FakeBackend):
        name = "local"

    with pytest.raises(BackendError, match="'local' was given as an object") as caught:
        intarsia.tune(
            chain_model,
            "fake -cost=*:1e-3",
            backends=_with(backends, Local()),
            costs=str(tmp_path / "costs.sqlite"),
            num_threads=1,
        )
    assert "entry-point group" in caught.value.hint


def test_a_class_of_the_main_module_says_what_to_do(backends, module, monkeypatch):
    monkeypatch.setattr(module.Mine, "__module__", "__main__")
    with pytest.raises(BackendError, match="main module"):
        describe_plug_ins(_with(backends, module.BACKEND))
