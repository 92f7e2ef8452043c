# SPDX-License-Identifier: Apache-2.0
"""`tune` tries regions in a worker: a library that aborts costs a demotion, which is remembered."""

import pytest

import intarsia
from intarsia.errors import ReasonCode
from intarsia.tuning.laboratory import trials


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["segfault", "compile-segfault"])
def test_a_library_that_aborts_costs_tuning_a_demotion(
    chain_model, fault, own_cache, random_feeds, evaluate, assert_same, monkeypatch
):
    """In the first run or while compiling; a build tries nothing again that tuning learnt."""
    target = f"fake -fault={fault} -fault-ops=Tanh -cost=*:1e-6, reference"
    exe = intarsia.tune(chain_model, target, budget=5.0, num_threads=1)
    placed = {n.op_type: r.backend for r in exe.placement.regions for n in r.nodes}
    assert placed["Tanh"] == "reference"
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))

    tried = []
    real = trials.RegionTrials._try
    monkeypatch.setattr(
        trials.RegionTrials, "_try", lambda self, *what: tried.append(what) or real(self, *what)
    )
    again = intarsia.compile(chain_model, target, careful=True, placement="greedy", num_threads=1)
    refusals = [one for one in again.placement.refusals if one.op_type == "Tanh"]
    assert refusals[0].code == ReasonCode.CRASHED
    verdicts = list((own_cache / trials.KIND).iterdir())
    assert verdicts
    count = len(tried)
    intarsia.compile(
        chain_model, target, careful=True, placement="greedy", num_threads=1, cache=False
    )
    assert len(tried) == count  # all is known
