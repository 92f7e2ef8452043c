# SPDX-License-Identifier: Apache-2.0
"""Plans for machines that are not here."""

import pytest

from intarsia.errors import SettingError
from intarsia.place.collage.absent import plan_without_measuring
from intarsia.place.collage.options import Options

TEXT = """
g (float[4,4] x) => (float[4,4] y) {
    [product] a = MatMul(x, x)
    [scale] b = Mul(a, x)
    [last] y = Relu(b)
}
"""
CHEAP = "fake:0 -cost=MatMul:1e-4,*:9e-3 -call-cost=1e-5 -estimate=1"
EVEN = "fake:1 -cost=*:1e-3 -call-cost=1e-5 -estimate=1"


def plan(setting, objective="latency"):
    calls, report = plan_without_measuring(setting, None, Options(objective=objective))
    return {nodes: position for position, nodes in calls}, report


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("", {(0,): 0, (1, 2): 1}),
        (" -groups=MatMul+Mul", {(0,): 0, (1, 2): 1}),
        (" -groups=MatMul+Mul -is-whole", {(0, 1, 2): 1}),
    ],
)
def test_a_piece_of_what_is_only_taken_whole_is_planned_nowhere_alone(
    parse_model, setting_of, says, found
):
    placed, report = plan(setting_of(parse_model(TEXT), f"{CHEAP}{says}, {EVEN}"))
    assert placed == found
    assert report.seconds is None
    assert report.predicted_seconds == pytest.approx(2.1e-3 if (0,) in found else 3e-3, rel=0.02)


def test_memory_is_not_estimated(parse_model, setting_of):
    setting = setting_of(parse_model(TEXT), f"{CHEAP}, {EVEN}")
    with pytest.raises(SettingError, match="not estimated"):
        plan(setting, "memory")
