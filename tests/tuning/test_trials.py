# SPDX-License-Identifier: Apache-2.0
"""Regions that are tried in a worker first: what takes that costs a demotion, and is remembered."""

import pytest

import intarsia
from intarsia.errors import ReasonCode, TrialError
from intarsia.tuning.laboratory import trials


@pytest.fixture
def laboratories(monkeypatch):
    """How many laboratories were opened."""
    opened = []

    def open_laboratory(*arguments):
        opened.append(arguments)
        return laboratory(*arguments)

    laboratory = trials.Laboratory
    monkeypatch.setattr(trials, "Laboratory", open_laboratory)
    return opened


def places(exe):
    return {
        node.op_type: region.backend for region in exe.placement.regions for node in region.nodes
    }


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("segfault", ReasonCode.CRASHED),
        pytest.param("compile-segfault", ReasonCode.CRASHED, marks=pytest.mark.exhaustive),
        pytest.param("wrong", ReasonCode.NUMERICS, marks=pytest.mark.exhaustive),
    ],
)
def test_what_takes_a_worker_costs_a_demotion_and_is_remembered(
    chain_model, fault, code, own_cache, laboratories, random_feeds, evaluate, assert_same
):
    target = f"fake -fault={fault} -fault-ops=Tanh, reference"
    for count in (1, 1):  # the second time all is known
        exe = intarsia.compile(chain_model, target, careful=True, num_threads=1)
        assert places(exe)["Tanh"] == "reference"
        assert "fake" in places(exe).values()
        refusals = [one for one in exe.placement.refusals if one.op_type == "Tanh"]
        assert refusals[0].code == code
        assert "in a process of its own" in refusals[0].reason
        assert len(laboratories) == count
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))
    with pytest.raises(TrialError, match="in a process of its own"):
        intarsia.compile(chain_model, target, careful=True, strict=True, num_threads=1)


@pytest.mark.exhaustive
def test_a_region_that_works_is_tried_once(chain_model, own_cache, laboratories):
    for _ in range(2):
        exe = intarsia.compile(chain_model, "onnxruntime", careful=True, num_threads=1)
        assert set(places(exe).values()) == {"onnxruntime"}
        assert len(laboratories) == 1
    (verdict,) = (own_cache / trials.KIND).iterdir()
    verdict.write_text("{")  # damaged: it is tried anew
    intarsia.compile(chain_model, "onnxruntime", careful=True, num_threads=1, cache=False)
    assert len(laboratories) == 2


@pytest.mark.exhaustive
def test_another_version_of_a_library_is_tried_again(
    chain_model, own_cache, laboratories, monkeypatch
):
    intarsia.compile(chain_model, "fake, reference", careful=True, num_threads=1)
    monkeypatch.setattr("intarsia.backends.fake.FakeBackend.version", lambda _: "later")
    intarsia.compile(chain_model, "fake, reference", careful=True, num_threads=1)
    assert len(laboratories) == 2
