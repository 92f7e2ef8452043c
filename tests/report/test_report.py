# SPDX-License-Identifier: Apache-2.0
"""Views of values: what they hold, and that tables show names as they are."""

import math

import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

from intarsia.backends.reference import ReferenceBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Refusal
from intarsia.errors import BackendError, ReasonCode
from intarsia.plan.placement import NodePlacement, PlacedRegion, Placement
from intarsia.report.nodes import find_nodes, group_refusals
from intarsia.report.tables import make_table, placement_table
from intarsia.report.targets import availability
from intarsia.report.tensors import summarize


def printed(renderable, width=1000):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.fixture
def placement():
    nodes = tuple(NodePlacement(f"[red]n{i}[/red]", "Relu", "fallback", (f"u{i}",)) for i in (0, 1))
    refusals = tuple(
        Refusal(node.name, "Relu", "npu", ReasonCode.UNSUPPORTED_OP, f"no kernel for {node.name}")
        for node in nodes
    )
    region = PlacedRegion("onnxruntime", "cpu:0", "onnxruntime", nodes)
    return Placement("greedy", ("npu", "onnxruntime"), "onnxruntime", (region,), refusals)


def test_brackets_in_names_are_no_markup():
    assert "[red]n0[/red]" in printed(make_table("[bold]", ("a",), [("[red]n0[/red]",)]))


def test_long_names_are_folded_and_never_cut():
    name = "block/" * 30
    text = printed(make_table("", ("name",), [(name,)]), width=40)
    assert "…" not in text
    assert name in "".join(text.split())


def test_placement_table_has_a_row_per_region(placement):
    text = printed(placement_table(placement))
    assert "Relu x2" in text
    assert "cpu:0" in text
    assert "fallback" in text


def test_nodes_are_found_by_their_own_name_and_by_the_users(placement):
    (by_name,) = find_nodes(placement, "[red]n1[/red]")
    (by_origin,) = find_nodes(placement, "u1")
    assert by_name == by_origin
    assert [refusal.target for refusal in by_name.refusals] == ["npu"]
    assert find_nodes(placement, "u2") == ()


def test_refusals_are_grouped_by_what_they_say(placement):
    (group,) = group_refusals(placement)
    assert group.count == 2
    assert group.first == "[red]n0[/red]"


def test_a_summary_has_range_mean_and_first_values():
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    (summary,) = summarize({"y": array})
    assert (summary.min, summary.max, summary.mean) == (0, 5, 2.5)
    assert summary.first == (0, 1, 2, 3, 4)
    assert summary.shape == (2, 3)


def test_a_summary_of_a_narrow_float_is_exact():
    (summary,) = summarize({"y": np.array([0.5, 1.5], ml_dtypes.bfloat16)})
    assert summary.dtype == "bfloat16"
    assert summary.mean == 1.0


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.zeros((0, 2), np.float32), "float32"),
        (np.array(["a", "b"], object), "string"),
        (np.array([1 + 2j]), "complex128"),
        ([np.ones(2)], "list"),
        (None, "NoneType"),
    ],
)
def test_what_has_no_range_gets_none(value, dtype):
    (summary,) = summarize({"y": value})
    assert summary.dtype == dtype
    assert summary.min is None
    assert summary.mean is None


def test_a_nan_is_not_hidden():
    (summary,) = summarize({"y": np.array([1.0, np.nan])})
    assert math.isnan(summary.mean)


class Uninstalled(ReferenceBackend):
    name = "ghost"
    kinds = ("ghost",)

    def version(self):
        raise BackendError("Ghost is not available", hint="pip install ghost")


def test_a_backend_without_its_runtime_says_why():
    found = availability("ghost", collect([Uninstalled()], {"broken": "ImportError: no"}))
    assert found.version is None
    assert str(found) == "Ghost is not available"
    assert found.hint == "pip install ghost"


def test_a_broken_plug_in_says_why():
    assert "ImportError: no" in str(
        availability("broken", collect([], {"broken": "ImportError: no"}))
    )
