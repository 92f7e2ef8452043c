# SPDX-License-Identifier: Apache-2.0
"""Pipelines: what `target show` prints is what `compile` runs, in that order."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests import opencl

import intarsia
from intarsia.__main__ import main
from intarsia.backends.ort_ep.providers import PROVIDERS
from intarsia.backends.reference import ReferenceBackend
from intarsia.backends.registry import collect
from intarsia.backends.values import Pass, Piece
from intarsia.errors import BackendError, TargetError
from intarsia.target import DeviceType, TargetKind, get_kind, list_kinds
from intarsia.target.pipeline import STANDARD_PIPELINE, Stage
from intarsia.testing import Status, case, examine, fed

DIAMOND = """g (float[4] x) => (float[4] y, float[4] z) {
    [a] p = Relu(x) [b] q = Neg(p) [c] r = Exp(p) [d] y = Add(q, r) [e] z = Abs(q)
}"""


class PlugIn(ReferenceBackend):
    """Computes as the reference does, and writes down which of its passes run."""

    def __init__(self, name, pipeline, passes=(), refines=("*",)):
        self.name = name
        self.log = []
        self.kinds = (
            TargetKind(
                name,
                DeviceType.CPU,
                is_complete=not refines,
                refines=refines,
                pipeline=pipeline,
            ),
        )
        self.passes = tuple(
            Pass(stage, known, self.logging(stage, known, run)) for stage, known, run in passes
        )

    def logging(self, stage, name, run):
        def call(*arguments):
            self.log.append(f"{stage}: {name}")
            return run(*arguments)

        return call


def nothing(model, context):
    pass


def as_it_is(graph, pieces, context):
    return pieces


@pytest.fixture
def known(backends):
    """A function that adds plug-ins to the installed backends."""

    def add(*plug_ins):
        return collect([*backends.by_name.values(), *plug_ins])

    return add


def texts(exe):
    return [run.text for run in exe.explain().passes]


@pytest.mark.parametrize("target", ["reference", "onnxruntime", "openvino, onnxruntime"])
def test_compile_runs_what_target_show_prints(target, parse_model, backends, capsys):
    assert main(["target", "show", target, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    shown = shown["target"] if "target" in shown else shown["config"]
    assert shown["pipeline"]
    exe = intarsia.compile(parse_model(DIAMOND), target, backends=backends)
    assert texts(exe) == shown["pipeline"]
    assert main(["target", "show", target]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("pipeline"))
    assert [line.strip() for line in lines[start + 1 :]] == shown["pipeline"]


def test_explain_lists_the_passes_that_ran(parse_model, backends, capsys, tmp_path):
    exe = intarsia.compile(parse_model(DIAMOND), "reference", backends=backends)
    exe.save(tmp_path / "p.intarsia")
    assert main(["explain", str(tmp_path / "p.intarsia"), "--all"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index("passes:") + 1
    shown = lines[start : start + len(STANDARD_PIPELINE)]
    assert shown == [f"{text} (reference)" for text in STANDARD_PIPELINE]


_ELSEWHERE = ("arm_acl", "c", "cmsis-nn", "ethos-u", *PROVIDERS)
"""Kinds that need a library by its path or a way to a machine; their own tests compile for them."""


def is_here(name, backend):
    """Tell whether a kind has what it needs: `cuda`, `metal` and others need a device."""
    if backend.require_kind is None:
        return name != "opencl" or opencl.has_device()
    try:
        backend.require_kind(name)
    except BackendError:
        return False
    return True


def test_every_kind_that_a_backend_serves_names_passes_that_there_are(known, parse_model):
    backends = known()
    model = parse_model("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    for name, backend in backends.by_kind.items():
        if name in _ELSEWHERE or not is_here(name, backend):
            continue
        target = name if get_kind(name).is_complete else f"{name}, onnxruntime"
        exe = intarsia.compile(model, target, backends=backends)
        assert tuple(texts(exe)) == get_kind(name).pipeline, backend


def test_kinds_bring_the_standard_pipeline_unless_they_say_otherwise():
    assert TargetKind("plain", DeviceType.CPU).pipeline == STANDARD_PIPELINE
    assert get_kind("composite").pipeline == ()
    for name in list_kinds(all=True):
        for text in get_kind(name).pipeline:
            assert text.partition(": ")[0] in tuple(Stage), name


def test_own_passes_run_where_the_pipeline_names_them(known, parse_model):
    pipeline = (
        "before placement: first",
        *STANDARD_PIPELINE[:-1],
        "before placement: second",
        *STANDARD_PIPELINE[-1:],
        "after placement: split",
        "region: third",
    )
    passes = (
        (Stage.REGION, "third", nothing),
        (Stage.AFTER, "split", as_it_is),
        (Stage.BEFORE, "second", nothing),
        (Stage.BEFORE, "first", nothing),
    )
    plug_in = PlugIn("steps", pipeline, passes)
    exe = intarsia.compile(parse_model(DIAMOND), "steps, onnxruntime", backends=known(plug_in))
    assert texts(exe) == list(pipeline)
    assert plug_in.log == [text for text in pipeline if text not in STANDARD_PIPELINE]
    (on_region,) = (run for run in exe.plan.passes if run.region is not None)
    assert str(on_region) == "region 0: third (steps)"


def test_a_pass_that_is_not_named_does_not_run(known, parse_model):
    plug_in = PlugIn("lazy", (), [(Stage.BEFORE, "never", nothing)], refines=())
    exe = intarsia.compile(parse_model(DIAMOND), "lazy", backends=known(plug_in))
    assert texts(exe) == []
    assert plug_in.log == []
    assert len(exe.placement.regions) == 5  # nothing merged them
    x = np.array([-1.0, 0.0, 1.0, 2.0], np.float32)
    p = np.maximum(x, 0)
    np.testing.assert_allclose(exe(x)[0], np.exp(p) - p, rtol=1e-6)


def test_pipelines_merge_in_the_order_of_priority(known, parse_model):
    """What both have runs once; the rest stands after what it stands after in its own list."""
    first = PlugIn(
        "first",
        ("before placement: tidy", "before placement: remove-unused", STANDARD_PIPELINE[-1]),
        [(Stage.BEFORE, "tidy", nothing)],
    )
    second = PlugIn(
        "second",
        (
            "before placement: remove-unused",
            "before placement: late",
            "before placement: fold-constants",
            "before placement: remove-unused",
            STANDARD_PIPELINE[-1],
            "after placement: look",
            "region: mine",
        ),
        [
            (Stage.BEFORE, "late", nothing),
            (Stage.AFTER, "look", as_it_is),
            (Stage.REGION, "mine", nothing),
        ],
        refines=(),
    )
    exe = intarsia.compile(
        parse_model(DIAMOND), "first, second", backends=known(first, second), pins={"e": "second"}
    )
    assert [(run.text, run.target) for run in exe.plan.passes] == [
        ("before placement: tidy", "first"),
        ("before placement: remove-unused", "first"),
        ("before placement: late", "second"),
        ("before placement: fold-constants", "second"),
        ("before placement: remove-unused", "second"),
        ("after placement: merge-regions", "first"),
        ("after placement: look", "second"),
        ("region: mine", "second"),
    ]
    assert second.log.count("region: mine") == 1  # not on the region of the other target
    assert first.log == ["before placement: tidy"]


def test_passes_of_ours_work_on_what_a_plug_in_added(known, parse_model):
    def double(model, context):
        (node,) = model.graph
        two = ir.Value(name="two", const_value=ir.tensor(np.full((1, 2, 1, 1), 2, np.float32)))
        model.graph.register_initializer(two)
        output = node.outputs[0]
        product = ir.node("Mul", [output, two])
        product.outputs[0].name, output.name = output.name, "single"
        product.outputs[0].type, product.outputs[0].shape = output.type, output.shape
        model.graph.insert_after(node, product)
        model.graph.outputs[0] = product.outputs[0]

    plug_in = PlugIn(
        "doubler",
        ("before placement: double", *STANDARD_PIPELINE),
        [(Stage.BEFORE, "double", double)],
    )
    model = parse_model(
        """g (float[1,1,3,3] x) => (float[1,2,3,3] y) <float[2,1,1,1] w = {3, 5}> {
            [conv] y = Conv(x, w)
        }"""
    )
    exe = intarsia.compile(model, "doubler, onnxruntime", backends=known(plug_in))
    ((node,),) = (region.nodes for region in exe.placement.regions)
    assert node.name == "conv"
    y = exe(np.ones((1, 1, 3, 3), np.float32))
    np.testing.assert_allclose(y[0, :, 0, 0], [6, 10])


def test_passes_of_two_backends_with_one_name_are_two(known, parse_model):
    pipeline = ("before placement: own", *STANDARD_PIPELINE)
    plug_ins = [
        PlugIn("left", pipeline, [(Stage.BEFORE, "own", nothing)]),
        PlugIn("right", pipeline, [(Stage.BEFORE, "own", nothing)]),
    ]
    exe = intarsia.compile(
        parse_model(DIAMOND), "left, right, onnxruntime", backends=known(*plug_ins)
    )
    assert texts(exe).count("before placement: own") == 2
    assert [plug_in.log for plug_in in plug_ins] == [["before placement: own"]] * 2


def test_a_pass_may_cut_regions_smaller(known, parse_model):
    def split(graph, pieces, context):
        return [Piece(piece.target, (node,)) for piece in pieces for node in piece.nodes]

    plug_in = PlugIn(
        "cutter", (*STANDARD_PIPELINE, "after placement: cut"), [(Stage.AFTER, "cut", split)]
    )
    exe = intarsia.compile(parse_model(DIAMOND), "cutter, onnxruntime", backends=known(plug_in))
    assert [len(region.nodes) for region in exe.placement.regions] == [1] * 5


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda pieces: pieces[:-1], "left nodes out"),
        (lambda pieces: pieces[::-1], "comes before what it reads"),
        (lambda pieces: [*pieces, pieces[0]], "in two pieces"),
        (lambda pieces: [Piece(p.target, ()) for p in pieces], "is empty"),
        (lambda pieces: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_pieces_that_cannot_run_are_an_error_that_names_the_pass(
    wrong, problem, known, parse_model
):
    plug_in = PlugIn(
        "broken",
        ("after placement: wreck", *STANDARD_PIPELINE[-1:]),
        [(Stage.AFTER, "wreck", lambda graph, pieces, context: wrong(list(pieces)))],
    )
    with pytest.raises(BackendError, match=f"'wreck'.*{problem}") as caught:
        intarsia.compile(parse_model(DIAMOND), "broken, reference", backends=known(plug_in))
    assert caught.value.backend == "broken"


def rename_input(model, context):
    model.graph.inputs[0].name = "other"


def read_nothing(model, context):
    node = ir.node("Relu", [ir.Value(name="nobody")])
    model.graph.append(node)


@pytest.mark.parametrize(("wreck", "problem"), [(rename_input, "other names"), (read_nothing, "")])
@pytest.mark.parametrize("stage", [Stage.BEFORE, Stage.REGION])
def test_a_pass_that_breaks_the_model_is_named(wreck, problem, stage, known, parse_model):
    name = f"wrecker-{stage.name.lower()}"
    plug_in = PlugIn(name, (f"{stage}: wreck",), [(stage, "wreck", wreck)])
    with pytest.raises(BackendError, match=f"'wreck' of backend '{name}'.*{problem}"):
        intarsia.compile(
            parse_model(DIAMOND), f"{name}, onnxruntime", backends=known(plug_in), strict=True
        )


def test_a_failing_pass_on_a_region_moves_the_region(known, parse_model):
    def fail(model, context):
        if any(node.op_type == "Exp" for node in model.graph):
            raise ValueError("no Exp")

    plug_in = PlugIn("picky", (*STANDARD_PIPELINE, "region: try"), [(Stage.REGION, "try", fail)])
    exe = intarsia.compile(parse_model(DIAMOND), "picky, onnxruntime", backends=known(plug_in))
    (refusal,) = exe.placement.refusals
    assert (refusal.node, refusal.op_type) == ("c", "Exp")
    assert "failed in its pass 'try': ValueError: no Exp" in refusal.reason
    assert exe.placement.coverage() == {"picky": 4, "onnxruntime": 1}


def test_a_region_pass_may_add_constants_that_a_package_keeps(known, parse_model, tmp_path):
    weights = np.arange(4096, dtype=np.float32)

    def scale(model, context):
        value = ir.Value(name="scale", const_value=ir.tensor(weights))
        model.graph.register_initializer(value)
        (node,) = model.graph
        product = ir.node("Mul", [node.inputs[0], value])
        model.graph.insert_before(node, [product])
        node.replace_input_with(0, product.outputs[0])

    plug_in = PlugIn(
        "scaler", (*STANDARD_PIPELINE, "region: scale"), [(Stage.REGION, "scale", scale)]
    )
    backends = known(plug_in)
    model = parse_model("g (float[4096] x) => (float[4096] y) { y = Neg(x) }")
    exe = intarsia.compile(model, "scaler, onnxruntime", backends=backends)
    x = np.ones(4096, np.float32)
    np.testing.assert_array_equal(exe(x), -weights)
    exe.save(tmp_path / "p.intarsia")
    loaded = intarsia.load(tmp_path / "p.intarsia", backends=backends)
    np.testing.assert_array_equal(loaded(x), -weights)
    assert loaded.plan.passes == exe.plan.passes


def test_a_rewritten_region_keeps_big_constants_by_reference(known, parse_model):
    weights = np.arange(2048, dtype=np.float32)
    model = parse_model("g (float[2048] x, float[2048] w) => (float[2048] y) { y = Add(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    plug_in = PlugIn(
        "sharer", (*STANDARD_PIPELINE, "region: look"), [(Stage.REGION, "look", nothing)]
    )
    exe = intarsia.compile(model, "sharer, onnxruntime", backends=known(plug_in))
    assert [constant.name for constant in exe.artifacts[0].constants] == ["w"]
    np.testing.assert_array_equal(exe(np.ones(2048, np.float32)), weights + 1)


def test_during_a_pass_the_refined_target_is_current(known, parse_model):
    seen = []

    def look(model, context):
        seen.append((str(intarsia.Target.current()), str(context.target)))

    plug_in = PlugIn("looker", ("before placement: look",), [(Stage.BEFORE, "look", look)])
    intarsia.compile(
        parse_model(DIAMOND), "looker, onnxruntime", backends=known(plug_in), num_threads=1
    )
    assert seen == [("onnxruntime", "looker")]
    assert intarsia.Target.current() is None


def test_during_every_hook_the_refined_target_is_current(known, parse_model):
    seen = {}

    class Watcher(PlugIn):
        def rules(self, context):
            seen["rules"] = str(intarsia.Target.current())
            return super().rules(context)

        def check(self, candidate, context):
            seen["check"] = str(intarsia.Target.current())

        def compile(self, candidate, context):
            seen["compile"] = str(intarsia.Target.current())
            return super().compile(candidate, context)

        def load(self, artifact, device):
            seen["load"] = str(intarsia.Target.current())
            return super().load(artifact, device)

    text = "watcher, onnxruntime -graph_optimization=none"
    intarsia.compile(
        parse_model(DIAMOND), text, backends=known(Watcher("watcher", STANDARD_PIPELINE))
    )
    refined = "onnxruntime -graph_optimization=none"
    assert seen == dict.fromkeys(("rules", "check", "compile", "load"), refined)


def test_an_unknown_pass_is_an_error_before_any_work(known):
    plug_in = PlugIn("typo", ("before placement: fold-constant",))
    with pytest.raises(BackendError, match="neither Intarsia nor its backend") as caught:
        intarsia.compile("missing.onnx", "typo, onnxruntime", backends=known(plug_in))
    assert "did you mean 'before placement: fold-constants'" in caught.value.hint


def test_a_backend_must_not_replace_a_pass_of_ours(known):
    plug_in = PlugIn("thief", (), [(Stage.BEFORE, "fold-constants", nothing)])
    with pytest.raises(
        BackendError, match="'before placement: fold-constants', which exists already"
    ):
        known(plug_in)


@pytest.mark.parametrize(
    ("pipeline", "problem"),
    [
        (["tidy"], "not an entry of a pipeline"),
        (["somewhere: tidy"], "not an entry of a pipeline"),
        (["region: "], "not an entry of a pipeline"),
        (["region: a", "before placement: b"], "of a later stage"),
    ],
)
def test_a_malformed_pipeline_is_refused_when_the_kind_is_made(pipeline, problem):
    with pytest.raises(TargetError, match=problem):
        TargetKind("odd", DeviceType.CPU, pipeline=pipeline)


def test_the_conformance_kit_runs_passes_on_regions_too(known):
    def sign(model, context):
        model.graph.name = "signed"

    class Signed(PlugIn):
        def compile(self, candidate, context):
            assert candidate.region.graph.name == "signed"
            return super().compile(candidate, context)

    plug_in = Signed("signer", (*STANDARD_PIPELINE, "region: sign"), [(Stage.REGION, "sign", sign)])
    cases = [case("Relu", "plain", fed(2, 3))]
    report = examine(plug_in, checks=["numbers"], cases=cases)
    assert {verdict.status for verdict in report.verdicts} == {Status.PASSED}
    assert plug_in.log
