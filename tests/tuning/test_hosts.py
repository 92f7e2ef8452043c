# SPDX-License-Identifier: Apache-2.0
"""The search and its worker know the host that has what no target takes, and give it no more."""

from intarsia.place.decide import decide_in_order
from intarsia.tuning.laboratory.values import Probe
from intarsia.tuning.proposals.space import make_space

MODEL = """
g (float[4] x, bool c) => (float[4] y) {
    r = Relu(x)
    t = If (c) <
        then_branch = yes () => (float[4] p) { p = Add(r, r) },
        else_branch = no () => (float[4] q) { q = Neg(r) }>
    y = Sigmoid(t)
}"""


DET = """
g (float[1,2,2] x) => (float[1,2,2] y, float[1] t) {
    r = Relu(x)
    t = Det(r)
    y = Sigmoid(r)
}"""


def test_a_stand_in_has_only_what_it_must_have(setting_of, parse_model):
    setting = setting_of(parse_model(DET), "dnnl, llvm")
    assert [str(item) for item in setting.targets[2:]] == ["onnxruntime"]
    space = make_space(setting)
    assert space.targets == ((0, 1), (2,), (0, 1))
    assert [plan.single for plan in space.plans] == [0, 1]


def test_what_the_plan_runs_itself_needs_no_stand_in(setting_of, parse_model):
    setting = setting_of(parse_model(MODEL), "dnnl, llvm")
    assert [item.target.kind.name for item in setting.targets] == ["dnnl", "llvm"]


def test_a_plan_with_a_host_is_measured_and_agrees(open_laboratory, parse_model):
    laboratory = open_laboratory(parse_model(MODEL), "fake -ops=Relu,Sigmoid")
    probe = Probe(decide_in_order(laboratory.setting).calls(laboratory.setting.targets))
    assert {position for position, _ in probe.calls} == {0, 1}
    assert laboratory.prepare([probe])[probe].refusal is None
