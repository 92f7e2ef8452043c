# SPDX-License-Identifier: Apache-2.0
"""What is said of costs elsewhere follows from the figures and how far predictions are off."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from intarsia.plan.placement import Placement
from intarsia.plan.tuning import TuningReport, UnitCost, UnitReport
from intarsia.report.absence import absences, absences_view, compare_plans
from intarsia.report.tuning import units_view

HERE, THERE = "llvm", "openvino"
REPORT = TuningReport(
    *((HERE, THERE), (), "", 1, "latency", (), "llvm alone", False, "llvm alone"),
    *(10e-3, 10e-3, 10e-3, 0.95),
)
PLACEMENT = Placement("collage", (HERE, THERE), HERE, ())
SECONDS = st.floats(0, 1e-2)


def _report(here, there, predicted, refusal=""):
    costs = (
        UnitCost(HERE, alone_seconds=1e-3, plan_seconds=here),
        UnitCost(THERE, alone_seconds=1e-3, plan_seconds=there, refusal=refusal),
    )
    unit = UnitReport(("node",), ("Relu",), HERE, 0, costs)
    return replace(REPORT, unit_reports=(unit,), predicted_seconds=predicted)


def _text(view):
    console = Console(file=io.StringIO(), width=300)
    console.print(view)
    return console.file.getvalue()


@given(SECONDS, SECONDS, SECONDS)
def test_words_and_figures_never_contradict(here, there, predicted):
    report = _report(here, there, predicted)
    (unit,) = report.unit_reports
    worse, reason = compare_plans(report, unit, unit.costs[1])
    error = abs(predicted - 10e-3)
    if worse is not None:
        assert worse > error >= 0
        assert reason == "dearer"
    else:
        assert there - here <= error
        assert reason.startswith("as cheap" if there - here >= -error else "predicted to be")
        assert "cheaper there, but llvm alone was the fastest" in reason or "as cheap" in reason
    assert "-0." not in _text(absences_view(absences(PLACEMENT, report, THERE), complete=True))


def test_where_nothing_was_searched_there_is_no_telling():
    report = _report(None, None, 10e-3)
    (unit,) = report.unit_reports
    assert compare_plans(report, unit, unit.costs[1]) == (None, "no plan to compare")


def test_a_refusal_comes_before_all_figures():
    (absent,) = absences(PLACEMENT, _report(1, 2, 1, "unsupported-op: no"), THERE).units
    assert (absent.reason, absent.worse_seconds) == ("unsupported-op: no", None)


@pytest.mark.parametrize(
    ("there", "words"), [(8e-3, "cheaper there, but"), (10.001e-3, "dearer"), (13e-3, "dearer")]
)
def test_a_node_is_explained_in_words_beside_its_figures(there, words):
    report = _report(10e-3, there, 10e-3)
    text = _text(units_view(report, report.unit_reports))
    assert words in text
    assert "runs here" in text
