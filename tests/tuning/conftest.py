# SPDX-License-Identifier: Apache-2.0
"""Settings of small models for the laboratory's tests."""

import itertools
from functools import partial

import pytest
from tests.tuning.exact import ExactLaboratory, copies

from intarsia.place.machine import Machine
from intarsia.place.request import Request
from intarsia.place.setting import make_setting
from intarsia.target import CompilationConfig
from intarsia.tuning.budget import Budget
from intarsia.tuning.laboratory.laboratory import Laboratory


@pytest.fixture(scope="session")
def setting_of(backends):
    """A function from a model and a machine to a `Setting`."""

    def make(model, target, num_threads=1, known=backends):
        config = CompilationConfig.resolve(target)
        request = Request(model=model, num_threads=num_threads, placement="collage")
        return make_setting(request, Machine(config, known))

    return make


@pytest.fixture
def open_laboratory(setting_of):
    """A function that opens a laboratory, which is closed after the test."""
    opened = []

    def make(model, target, **options):
        setting = setting_of(model, target, options.pop("num_threads", 1))
        opened.append(Laboratory(setting, **options))
        return opened[-1]

    yield make
    for laboratory in opened:
        laboratory.close()


@pytest.fixture
def exact(monkeypatch):
    """Exact costs in this process instead of a laboratory, and no budget that a machine spends."""
    ticks = itertools.count()
    for module in ("tuner", "by_sizes"):
        monkeypatch.setattr(f"intarsia.tuning.{module}.Laboratory", ExactLaboratory)
        budget = partial(Budget, clock=lambda: 1e-6 * next(ticks))
        monkeypatch.setattr(f"intarsia.tuning.{module}.Budget", budget)
    monkeypatch.setattr(
        "intarsia.tuning.prospector.measure_calls",
        lambda lab: {i: costs.call_seconds for i, costs in enumerate(lab.costs)},
    )
    monkeypatch.setattr("intarsia.tuning.prospector.measure_copies", copies)
