# SPDX-License-Identifier: Apache-2.0
"""Models with free dimensions are tuned at some sizes, and plans change where measuring says so."""

import io
import json
import zipfile
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from rich.console import Console
from tests.tuning.exact import ExactLaboratory

import intarsia
from intarsia.accepted.choices import fit_calls
from intarsia.cost.records import Assigned
from intarsia.errors import (
    BackendError,
    CostDatabaseError,
    InputError,
    PackageError,
    ReasonCode,
    SettingError,
)
from intarsia.measure.racing import Ratio
from intarsia.plan.by_sizes import from_json, is_consistent, to_json
from intarsia.plan.compare import compare_plans
from intarsia.plan.lock import placed_regions
from intarsia.report.differences import plan_difference_view
from intarsia.runtime.archive import write_archive
from intarsia.runtime.package import read_package
from intarsia.tuning import by_sizes
from intarsia.tuning.by_sizes import FINENESS, find_switch
from intarsia.tuning.requests import choose_sizes, read_requests

BY_BYTES = "fake:0 -cost=*:1e-4 -copy-cost=0,1e-7"
BY_NODES = "fake:1 -cost=*:3e-4 -copy-cost=0,0"
TARGET = f"{BY_BYTES}, {BY_NODES}"
CROSSOVER = 6e-4 / (2 * 32 * 1e-7)
"""The length at which copying 32 bytes for each step in and out takes what nodes save."""

TEXT = """
g (float[batch,seq,8] x) => (float[batch,seq,8] y) {
    [one] a = Relu(x)
    [two] b = Abs(a)
    [three] y = Relu(b)
}
"""


@pytest.fixture
def model(parse_model):
    return parse_model(TEXT)


@pytest.fixture
def costs(tmp_path, monkeypatch):
    """A cost database of the test's own, which `compile` asks too."""
    file = str(tmp_path / "costs.sqlite")
    monkeypatch.setenv("INTARSIA_COSTS", file)
    return file


def tune(model, target=TARGET, sizes=None, **options):
    sizes = {"seq": [16, 128, 512]} if sizes is None else sizes
    return intarsia.tune(model, target, sizes=sizes, num_threads=1, **options)


def targets_at(exe, **sizes):
    """Return the targets of the program for some sizes."""
    return {region.target.split(" ")[0] for region in exe.specialise(sizes).placement.regions}


@pytest.fixture
def quiet_generic(monkeypatch):
    """A function that says how a program for all sizes compares with others: no test times any."""

    def say(ratio):
        value = Ratio(ratio, ratio, ratio, 6)
        monkeypatch.setattr(by_sizes, "compare_programs", lambda first, second: value)

    say(2.0)
    return say


def test_plans_change_where_both_were_measured_to_be_equal(exact, model, costs):
    exe = tune(model)
    plans = exe.plans
    assert plans.dimension == "seq"
    assert [point.sizes["seq"] for point in plans.points] == [16, 128, 512]
    switch, none = plans.switches
    assert none is None  # the same plan at both
    assert switch.size == pytest.approx(CROSSOVER, abs=2)
    assert switch.below < CROSSOVER < switch.above
    assert switch.tie == switch.size
    assert plans.is_settled
    below, above = plans.intervals
    assert (below.low, below.high) == (None, switch.size - 1)
    assert (above.low, above.high) == (switch.size, None)
    for seq, target in (
        (1, "fake"),
        (60, "fake"),
        (switch.size - 1, "fake"),
        (switch.size, "fake:1"),
    ):
        assert targets_at(exe, seq=seq) == {target}
    x = np.random.default_rng(0).standard_normal((1, 100, 8)).astype(np.float32)
    np.testing.assert_array_equal(exe.run({"x": x})["y"], np.maximum(np.abs(np.maximum(x, 0)), 0))
    assert exe.specialise({"seq": 100}).placement.policy == "collage"


def test_compile_uses_the_plans_that_were_measured_before(exact, model, costs):
    found = tune(model).plans
    exe = intarsia.compile(model, TARGET, num_threads=1)
    assert exe.plans == found
    assert targets_at(exe, seq=30) == {"fake"}
    assert targets_at(exe, seq=300) == {"fake:1"}
    at_measured = exe.specialise({"seq": 128}).explain().tuning
    assert at_measured.winner.startswith("fake:1")
    greedy = intarsia.compile(model, TARGET, num_threads=1, placement="greedy")
    assert greedy.plans is None
    assert targets_at(greedy, seq=300) == {"fake"}
    pinned = intarsia.compile(model, TARGET, num_threads=1, pins={"one": "fake:0"})
    assert pinned.plans is None  # they were found without the pin


def test_an_explanation_says_which_interval_and_why(exact, model, costs):
    exe = tune(model)
    exe.specialise({"seq": 100})
    text = str(exe.explain())
    switch = exe.plans.switches[0]
    assert f"its plan: {exe.plans.points[1].winner}: measured at seq=128" in text
    assert f"holds for seq from {switch.size}" in text
    assert f"seq up to {switch.size - 1}: {exe.plans.points[0].winner}, measured at 16" in text
    assert f"measured at {', '.join(map(str, sorted(switch.measured)))}: equal at" in text


def test_a_package_has_the_plans(exact, model, costs, tmp_path):
    exe = tune(model)
    file = tmp_path / "m.intarsia"
    exe.save(file)
    loaded = intarsia.load(file)
    assert loaded.plans == exe.plans
    assert {sizes["seq"] for sizes in loaded.sizes} == {16, 128, 512}
    assert targets_at(loaded, seq=50) == {"fake"}
    assert targets_at(loaded, seq=200) == {"fake:1"}
    assert intarsia.load(file, frozen=True).plans == exe.plans
    assert read_package(file).free.plans == exe.plans


def change_manifest(file, change):
    with zipfile.ZipFile(file) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    manifest = json.loads(entries["manifest.json"])
    change(manifest)
    entries["manifest.json"] = json.dumps(manifest).encode()
    write_archive(file, [(name, memoryview(content)) for name, content in entries.items()])


def test_a_package_of_before_has_no_plans_and_one_with_wrong_ones_is_refused(
    exact, model, costs, tmp_path
):
    file = tmp_path / "m.intarsia"
    tune(model).save(file)
    change_manifest(file, lambda manifest: manifest["free"].pop("plans"))
    old = intarsia.load(file)
    assert old.plans is None
    assert old.run({"x": np.ones((1, 16, 8), np.float32)})["y"].shape == (1, 16, 8)
    tune(model).save(file)
    change_manifest(file, lambda manifest: manifest["free"]["plans"].update(plans=[]))
    with pytest.raises(PackageError, match="plans by sizes are inconsistent"):
        read_package(file)


def test_of_several_dimensions_the_nearest_sizes_decide(exact, model, costs):
    exe = tune(model, sizes={"batch": [1, 8], "seq": [16, 128]})
    plans = exe.plans
    assert plans.dimension == ""
    assert plans.switches == plans.intervals == ()
    assert len(plans.points) == 4
    assert len(plans.plans) == 2
    choice = plans.choose({"batch": 1, "seq": 40})
    assert plans.points[choice.point].sizes == {"batch": 1, "seq": 16}
    assert choice.why.endswith("measured at batch=1, seq=16, the nearest sizes")
    assert targets_at(exe, batch=1, seq=40) == {"fake"}
    assert targets_at(exe, batch=7, seq=40) == {"fake:1"}
    assert "other sizes have the plan of the nearest of these, by logarithms" in str(plans)


def test_one_sizes_alone_decides_for_all(exact, model, costs):
    exe = intarsia.tune(model, TARGET, num_threads=1)
    (point,) = exe.plans.points
    assert point.sizes == {"batch": 1, "seq": 128}
    assert targets_at(exe, seq=4) == {"fake:1"}
    assert exe.plans.choose({"batch": 1, "seq": 4}).why.endswith("batch=1, seq=128 alone")


def test_what_was_measured_is_not_measured_again(exact, model, costs, monkeypatch):
    first = tune(model).plans
    done = ExactLaboratory.last
    assert tune(model).plans == first
    assert ExactLaboratory.last is done  # no other was opened
    assert intarsia.tune(model, TARGET, num_threads=1).plans == first
    more = tune(model, sizes={"seq": [16, 64, 128, 512]}).plans
    assert more.switches[0] is None
    assert more.switches[1].size == pytest.approx(CROSSOVER, rel=0.05)
    again = tune(model, resume=True).plans
    assert ExactLaboratory.last is not done
    assert again.switches == first.switches


class StoppedLaboratory(ExactLaboratory):
    """Is interrupted at some length."""

    at = 128

    def race(self, probes, **options):
        (value,) = self.setting.graph.inputs
        if self.setting.graph.values[value].shape[1] == self.at:
            raise KeyboardInterrupt
        return super().race(probes, **options)


def test_an_interruption_keeps_what_was_measured(exact, model, costs, monkeypatch):
    monkeypatch.setattr("intarsia.tuning.tuner.Laboratory", StoppedLaboratory)
    exe = tune(model)
    assert [point.sizes["seq"] for point in exe.plans.points] == [16, 128]
    assert not exe.plans.is_settled
    assert "not measured at batch=1, seq=512" in str(exe.plans)
    assert intarsia.compile(model, TARGET, num_threads=1).plans is None  # nothing is accepted yet
    monkeypatch.setattr("intarsia.tuning.tuner.Laboratory", ExactLaboratory)
    monkeypatch.setattr(by_sizes, "Laboratory", StoppedLaboratory)
    monkeypatch.setattr(StoppedLaboratory, "at", 76)
    half = tune(model).plans
    assert not half.is_settled
    assert any("interrupted" in note for note in half.notes)
    assert intarsia.compile(model, TARGET, num_threads=1).plans.switches == half.switches
    monkeypatch.setattr(by_sizes, "Laboratory", ExactLaboratory)
    assert tune(model).plans.is_settled


def test_without_time_the_middle_is_taken_and_said(exact, model, costs, monkeypatch):
    monkeypatch.setattr(by_sizes, "race_plans", lambda *_: None)
    plans = tune(model).plans
    assert (plans.switches[0].size, plans.switches[0].is_settled) == (45, False)
    assert "not measured: the middle of 16 and 128" in str(plans)
    assert any("no time" in note for note in plans.notes)


def test_nothing_accepted_is_an_error_where_nothing_may_be_measured(exact, model, costs):
    from intarsia.compiler import carry_out
    from intarsia.place.request import Request

    request = Request(model=model, target=TARGET, placement="collage", may_measure=False)
    with pytest.raises(CostDatabaseError, match="no plan was accepted"):
        carry_out(replace(request, sizes=({"seq": 16},)))
    with pytest.raises(InputError, match="no free dimension 'length'"):
        tune(model, sizes={"length": 3})


def test_progress_names_the_sizes(exact, model, costs):
    seen = []
    tune(model, progress=lambda status: seen.append(status.sizes))
    assert list(dict.fromkeys(seen))[:3] == [
        "batch=1, seq=16 (1 of 3)",
        "batch=1, seq=128 (2 of 3)",
        "batch=1, seq=512 (3 of 3)",
    ]
    assert "seq=45" in seen


ATTENTION = """
free (float[batch,seq,8] x) => (float[batch,seq,8] y) {
    [query] q = MatMul(x, w)
    [turn] t = Transpose <perm: ints = [0, 2, 1]> (x)
    [scores] s = MatMul(q, t)
    [shares] p = Softmax <axis: int = -1> (s)
    [mix] y = MatMul(p, x)
}
"""


@pytest.fixture
def attention():
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 17]>' + ATTENTION)
    w = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


class LengthLaboratory(ExactLaboratory):
    """Native code takes long for long sequences, libraries for each call."""

    def _seconds(self, probe):
        (value,) = self.setting.graph.inputs
        length = self.setting.graph.values[value].shape[1]
        names = [str(target) for target in self.setting.targets]
        return sum(
            1e-6 * length * len(nodes) if names[position].startswith("llvm") else 1.5e-4
            for position, nodes in probe.calls
        )


def test_real_backends_take_turns_by_length(exact, attention, costs, monkeypatch, quiet_generic):
    for module in ("tuner", "by_sizes"):
        monkeypatch.setattr(f"intarsia.tuning.{module}.Laboratory", LengthLaboratory)
    tuned = tune(attention, "llvm, onnxruntime", sizes={"seq": [4, 64]})
    assert tuned.plans.switches[0].size == pytest.approx(30, abs=1)
    assert [point.generic_ratio for point in tuned.plans.points] == [2.0, 2.0]
    exe = intarsia.compile(attention, "llvm, onnxruntime", num_threads=1)
    assert exe.plans == tuned.plans
    session = onnxruntime.InferenceSession(
        attention.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for seq, kind in ((3, "llvm"), (20, "llvm"), (40, "onnxruntime"), (100, "onnxruntime")):
        program = exe.specialise({"batch": 2, "seq": seq})
        assert {region.backend for region in program.placement.regions} == {kind}
        x = np.random.default_rng(seq).standard_normal((2, seq, 8)).astype(np.float32)
        expected = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_where_the_program_for_all_sizes_is_as_fast_no_other_is_compiled(
    exact, attention, costs, monkeypatch, quiet_generic
):
    quiet_generic(1.01)
    exe = tune(attention, "onnxruntime", sizes={"seq": [4, 64]})
    assert not any(point.needs_own for point in exe.plans.points)
    made = []
    monkeypatch.setattr(type(exe._source), "make", lambda self, shapes: made.append(shapes))
    x = np.ones((1, 9, 8), np.float32)
    for _ in range(5):
        exe.run({"x": x})
    exe._pool.shutdown(wait=True)
    assert not made
    assert "this is the program for all sizes" in str(exe.explain())


def test_a_failing_program_for_all_sizes_is_noted(exact, attention, costs, monkeypatch):
    def fail(first, second):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(by_sizes, "compare_programs", fail)
    exe = tune(attention, "onnxruntime", sizes={"seq": [4]})
    assert exe.plans.points[0].generic_ratio is None
    assert "the program for all sizes fails at batch=1, seq=4: out of luck" in exe.plans.notes


def test_programs_are_compared_in_turns(attention, costs):
    exe = intarsia.compile(attention, "onnxruntime", sizes={"seq": [8]}, num_threads=1)
    sizes = {"batch": 1, "seq": 8}
    ratio = by_sizes.compare_programs(exe.generic.at(sizes), exe.specialise(sizes))
    assert ratio.rounds >= 3
    assert ratio.value > 0


@given(
    low=st.integers(1, 300),
    factor=st.floats(1.2, 60),
    part=st.floats(0, 1),
    slope=st.floats(0.2, 3),
)
def test_a_switch_is_where_times_are_equal(low, factor, part, slope):
    high = max(low + 2, round(low * factor))
    true = low * (high / low) ** part
    asked = []

    def compare(size):
        asked.append(size)
        assert low < size < high
        value = (true / size) ** slope
        return Ratio(value, value, value, 6)

    switch = find_switch(low, high, compare)
    assert low < switch.size <= high
    assert switch.is_settled
    assert list(switch.measured) == asked
    assert len(set(asked)) == len(asked)
    if switch.tie is None:
        assert switch.below - 1 <= true <= switch.above + 1
        assert switch.above - switch.below <= 1 or switch.above <= FINENESS * switch.below
    else:
        assert abs(true / switch.tie - 1) < 0.15


def test_a_switch_without_time_is_not_settled():
    answers = iter([Ratio(2.0, 2.0, 2.0, 3), None])
    switch = find_switch(10, 1000, lambda size: next(answers))
    assert (switch.below, switch.above, switch.is_settled) == (100, 1000, False)
    assert switch.measured == (100,)
    assert "then time was up" in str(switch)


def test_plans_survive_json_and_wrong_ones_are_found(exact, model, costs):
    plans = tune(model).plans
    assert from_json(to_json(plans)) == plans
    for wrong in (
        replace(plans, points=()),
        replace(plans, plans=()),
        replace(plans, switches=()),
        replace(plans, dimension="length"),
        replace(plans, points=plans.points[::-1]),
        replace(plans, points=(replace(plans.points[0], sizes={"n": 1}), *plans.points[1:])),
    ):
        assert not is_consistent(wrong)
        assert from_json(to_json(wrong)) is None
    assert from_json("{}") is None
    assert from_json("nonsense") is None


def test_a_plan_of_other_sizes_is_fitted_by_names(setting_of, parse_model):
    setting = setting_of(parse_model(TEXT.replace("batch,seq", "1,4")), "fake:0, fake:1")
    first, second = map(str, setting.targets)
    exactly = (Assigned(first, ("one",)), Assigned(second, ("two", "three")))
    assert fit_calls(setting, exactly) == ((0, (0,)), (1, (1, 2)))
    backwards = exactly[::-1]  # regions that cannot run in this order are cut anew
    assert fit_calls(setting, backwards) == ((0, (0,)), (1, (1, 2)))
    unknown = (Assigned(second, ("one", "folded")),)
    assert fit_calls(setting, unknown) == ((1, (0, 1, 2)),)  # others join their neighbours
    partly = (Assigned("gone", ("one",)), Assigned(second, ("three",)))
    assert fit_calls(setting, partly) == ((0, (0, 1)), (1, (2,)))
    assert fit_calls(setting, (Assigned("gone", ("one", "two", "three")),)) is None


def test_a_node_that_its_target_refuses_at_these_sizes_goes_to_another(setting_of, parse_model):
    model = parse_model(TEXT.replace("batch,seq", "1,4"))
    setting = setting_of(model, "fake:0 -ops=Relu, fake:1")
    first = str(setting.targets[0])
    assert fit_calls(setting, (Assigned(first, ("one", "two", "three")),)) == (
        (0, (0,)),
        (1, (1,)),
        (0, (2,)),
    )


def test_a_few_sizes_stand_for_all_requests(tmp_path):
    file = tmp_path / "requests.jsonl"
    rows = [{"batch": 1, "seq": 8, "count": 6}, {"batch": 1, "seq": 16}, {"batch": 1, "seq": 512}]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert read_requests(file) == rows
    chosen = choose_sizes(file)
    assert [one["seq"] for one in chosen.sizes] == [8, 16, 512]
    assert "8 requests with 3 different sizes" in chosen.text
    assert "100.0% of the requests have these" in chosen.text
    lengths = [{"seq": seq, "count": 1000 // seq} for seq in range(1, 101)]
    many = choose_sizes(lengths)
    assert [one["seq"] for one in many.sizes] == [1, 2, 7, 27, 100]
    assert "quantiles of seq" in many.text
    assert "the others lie between them" in many.text
    squares = [{"h": n, "w": n + 1, "count": n} for n in range(1, 20)]
    frequent = choose_sizes(squares, 2)
    assert frequent.sizes == ({"h": 18, "w": 19}, {"h": 19, "w": 20})
    assert "the most frequent sizes" in frequent.text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "there are no requests"),
        ("{}", "there are no requests"),
        ('{"seq": 1}\n{"seq": "long"}', "line 2 of"),
        ('{"seq": 1}\n{"batch": 2}', "request 2 has other dimensions"),
        ('{"seq": -1}', "request 1: -1 is no 'seq'"),
        ('{"seq": 1, "count": 0}', "request 1: 0 is no 'count'"),
    ],
)
def test_what_is_no_request_is_said(lines, message, tmp_path):
    file = tmp_path / "requests.jsonl"
    file.write_text(lines)
    with pytest.raises(InputError, match=message):
        choose_sizes(file)


def test_requests_take_the_place_of_sizes(exact, model, costs):
    requests = [{"batch": 1, "seq": seq} for seq in (16, 16, 128)]
    exe = intarsia.tune(model, TARGET, requests=requests, num_threads=1)
    assert [point.sizes["seq"] for point in exe.plans.points] == [16, 128]
    assert "3 requests" in exe.plans.chosen
    assert exe.plans.chosen in str(exe.explain())
    with pytest.raises(SettingError, match="exclude one another"):
        intarsia.tune(model, TARGET, requests=requests, sizes={"seq": 1})
    with pytest.raises(InputError, match="cannot read requests"):
        intarsia.tune(model, TARGET, requests="nowhere.jsonl")


def test_the_regions_of_a_program_are_those_of_its_plan(exact, model, costs):
    exe = tune(model)
    for point in exe.plans.points:
        program = exe.specialise(point.sizes)
        assert {(one.target, frozenset(one.nodes)) for one in placed_regions(program.plan)} == {
            (one.target, frozenset(one.nodes)) for one in exe.plans.plans[point.plan]
        }
    assert msgspec.json.encode(exe.explain())


def test_kept_programs_have_the_plan_of_now(exact, model, costs, own_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    tune(path, sizes={"seq": [16, 512]})
    x = np.ones((1, 30, 8), np.float32)

    def compile_and_run():
        exe = intarsia.compile(path, TARGET, num_threads=1)
        exe.run({"x": x})
        return {region.target.split(" ")[0] for region in exe.placement.regions}

    def kept():
        return {file.name for file in (own_cache / "programs").glob("*.intarsia")}

    assert compile_and_run() == {"fake"}
    before = kept()
    assert compile_and_run() == {"fake"}
    assert kept() == before
    tune(path, sizes={"seq": [512]})
    assert compile_and_run() == {"fake:1"}
    assert len(kept()) == len(before) + 1


class NarrowLaboratory(ExactLaboratory):
    """Can run nothing long."""

    longest = 128

    def _refusal(self, probe):
        (value,) = self.setting.graph.inputs
        if self.setting.graph.values[value].shape[1] > self.longest:
            return ReasonCode.COMPILE_FAILED, "too long"
        return super()._refusal(probe)


def test_sizes_at_which_nothing_runs_are_noted(exact, model, costs, monkeypatch):
    monkeypatch.setattr("intarsia.tuning.tuner.Laboratory", NarrowLaboratory)
    plans = tune(model).plans
    assert [point.sizes["seq"] for point in plans.points] == [16, 128]
    assert "not measured at batch=1, seq=512: no plan could be run" in str(plans)
    monkeypatch.setattr(NarrowLaboratory, "longest", 1)
    with pytest.raises(BackendError, match="no plan could be run"):
        tune(model, sizes={"seq": [17, 129]})


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", [TARGET, "llvm, onnxruntime"])
def test_real_measurements_give_plans_that_hold(target, attention, costs, tmp_path):
    exe = tune(attention, target, sizes={"seq": [8, 256]}, budget=300)
    plans = exe.plans
    assert is_consistent(plans)
    if target == TARGET:  # the clock of these devices is exact: bytes against 5 nodes
        (switch,) = plans.switches
        assert switch.size == pytest.approx(5 * 2e-4 / (2 * 32 * 1e-7), rel=0.1)
    exe.save(tmp_path / "m.intarsia")
    session = onnxruntime.InferenceSession(
        attention.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for program in (exe, intarsia.load(tmp_path / "m.intarsia", num_threads=1)):
        for seq in (3, 8, 100, 300):
            x = np.random.default_rng(seq).standard_normal((2, seq, 8)).astype(np.float32)
            expected = session.run(None, {"x": x})[0]
            program.specialise({"batch": 2, "seq": seq})
            np.testing.assert_allclose(program.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


def test_two_packages_are_compared_by_what_they_say_of_sizes(exact, model, costs):
    one, other = tune(model).plans, tune(model, sizes={"seq": [16]}).plans
    regions = one.plans[0]
    assert compare_plans(regions, regions, by_sizes=(one, one)).is_empty
    difference = compare_plans(regions, regions, by_sizes=(one, other))
    assert not difference.is_empty
    only_first, only_second = difference.by_sizes
    switch = one.switches[0].size
    assert [line.split(":")[0] for line in only_first] == [
        f"seq up to {switch - 1}",
        f"seq from {switch}",
    ]
    assert [line.split(":")[0] for line in only_second] == ["batch=1, seq=16"]
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(plan_difference_view(difference, complete=False))
    assert f"only in the first: seq from {switch}: fake:1" in console.export_text()
