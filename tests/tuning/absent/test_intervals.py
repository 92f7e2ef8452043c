# SPDX-License-Identifier: Apache-2.0
"""What is known of machines that are not here, and the cases that it leaves open."""

from intarsia.cost.cost import CostSource
from intarsia.cost.estimator import CostSubject, Estimator
from intarsia.cost.peak import target_peak
from intarsia.target import Target
from intarsia.tuning.absent.outlooks import cases_of, make_planner, solve_case, targets_of

TEXT = """
g (float[4,4] x) => (float[4,4] y) {
    [product] a = MatMul(x, x)
    [scale] b = Mul(a, x)
    [last] y = Relu(b)
}
"""
EVEN = "fake:1 -cost=*:1e-3 -call-cost=1e-5 -estimate=1"


def test_cases_hold_each_target_against_the_others(parse_model, setting_of):
    assert len(cases_of((0,))) == 1
    cases = cases_of((0, 2, 3))
    assert [(set(case.fast), set(case.slow)) for case in cases[1:3]] == [
        ({0}, {2, 3}),
        ({2, 3}, {0}),
    ]
    planner = make_planner(
        setting_of(parse_model(TEXT), f"{EVEN}, fake:0 -cost=*:1.1e-3 -estimate=1"), None
    )
    placed = {targets_of(solve_case(planner.problem(case)).chosen, 3) for case in cases_of((0, 1))}
    assert len(placed) > 1


def test_a_device_of_unknown_speed_may_be_slow(parse_model, setting_of):
    model = parse_model(TEXT.replace("4,4", "512,512"))
    planner = make_planner(setting_of(model, "llvm -mcpu=x86-64-v3, onnxruntime"), None)
    sources = {(position, cost.source) for (position, _), cost in planner.costs.items()}
    assert sources == {(0, CostSource.ESTIMATED), (1, CostSource.ROOFLINE)}
    known = planner.costs[1, 0]
    assert known.high_seconds <= 11 * known.low_seconds
    subject = next(iter(planner.subjects.values()))
    unknown = Estimator().cost(
        CostSubject(subject.region, subject.key, target_peak(Target("opencl")))
    )
    assert unknown.high_seconds > 1000 * unknown.low_seconds
    assert "up to 300 times as slow" in unknown.provenance


def test_a_runtime_runs_on_the_cpu_that_another_target_names(parse_model, setting_of):
    model = parse_model(TEXT.replace("4,4", "512,512"))
    slow = make_planner(setting_of(model, "llvm -mcpu=x86-64, onnxruntime"), None)
    fast = make_planner(setting_of(model, "llvm -mcpu=x86-64-v3, onnxruntime"), None)
    assert slow.costs[1, 0].low_seconds > 1.5 * fast.costs[1, 0].low_seconds
