# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime's options do here what docs/onnxruntime.md says."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import intarsia.session
from intarsia.errors import BackendError, ExecutionError, SettingError, TargetError


@pytest.fixture(params=["onnxruntime", "intarsia"])
def runtime(request):
    """The module that a program imports."""
    return onnxruntime if request.param == "onnxruntime" else intarsia.session


def scaled_model():
    """Return `y = x * W` with W = [1, 2, 3] among the initializers."""
    weight = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "W")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    node = helper.make_node("Mul", ["x", "W"], ["y"], "mul")
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external(model, location, offset=0, length=12):
    """Move the initializer's data into a file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    fields = {"location": location, "offset": offset, "length": length}
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


ONES = np.ones(3, np.float32)


def test_an_initializer_is_replaced(runtime):
    options = runtime.SessionOptions()
    value = runtime.OrtValue.ortvalue_from_numpy(np.array([5, 6, 7], np.float32))
    options.add_initializer("W", value)
    session = runtime.InferenceSession(scaled_model().SerializeToString(), options)
    assert session.run(None, {"x": ONES})[0].tolist() == [5, 6, 7]


def test_a_file_with_weights_may_be_in_memory(runtime):
    options = runtime.SessionOptions()
    content = np.array([9, 5, 6, 7], np.float32).tobytes()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [len(content)])
    model = external(scaled_model(), "w.bin", offset=4)
    session = runtime.InferenceSession(model.SerializeToString(), options)
    assert session.run(None, {"x": ONES})[0].tolist() == [5, 6, 7]


def test_external_initializers_may_be_values(runtime, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(external(scaled_model(), "never_written.bin"), path)
    options = runtime.SessionOptions()
    value = runtime.OrtValue.ortvalue_from_numpy(np.array([5, 6, 7], np.float32))
    options.add_external_initializers(["W"], [value])
    session = runtime.InferenceSession(str(path), options)
    assert session.run(None, {"x": ONES})[0].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("name", "value"),
    [("V", np.ones(3, np.float32)), ("W", np.ones(4, np.float32)), ("W", [[1], [2, 3]])],
)
def test_an_initializer_that_does_not_fit_is_an_error_that_names_it(name, value):
    options = intarsia.session.SessionOptions()
    options.add_initializer(name, value)
    with pytest.raises(SettingError, match=f"initializer '{name}'"):
        intarsia.session.InferenceSession(scaled_model(), options)


def test_a_file_in_memory_that_nobody_reads_or_that_is_short_is_an_error():
    for location, content in (("other.bin", b"0" * 12), ("w.bin", b"0" * 4)):
        options = intarsia.session.SessionOptions()
        options.add_external_initializers_from_files_in_memory(
            [location], [content], [len(content)]
        )
        with pytest.raises(SettingError, match=location):
            intarsia.session.InferenceSession(external(scaled_model(), "w.bin"), options)


def free_model():
    """Return `y = Abs(x)` with dimensions that have names or denotations."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "columns", 5])
        for name in "xy"
    )
    for value in (x, y):
        value.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
        value.type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_free_dimensions_are_fixed_by_name_or_denotation(runtime):
    options = runtime.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 4)
    options.add_free_dimension_override_by_name("columns", 6)
    session = runtime.InferenceSession(free_model().SerializeToString(), options)
    assert session.get_inputs()[0].shape == [4, 6, 5]
    options = runtime.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 3)
    options.add_free_dimension_override_by_denotation("DATA_CHANNEL", 2)
    session = runtime.InferenceSession(free_model().SerializeToString(), options)
    assert session.get_inputs()[0].shape == [3, 2, 5]
    assert session.run(None, {"x": -np.ones((3, 2, 5), np.float32)})[0].sum() == 30


def test_threads_are_handed_on_and_may_not_contradict():
    options = intarsia.session.SessionOptions()
    options.intra_op_num_threads = 1
    session = intarsia.session.InferenceSession(scaled_model(), options)
    assert session.executable.plan.identity.threads == 1
    assert session.get_session_options() is options
    with pytest.raises(SettingError, match="intra_op_num_threads=1 contradicts num_threads=2"):
        intarsia.session.InferenceSession(scaled_model(), options, num_threads=2)


def test_the_level_of_optimisation_is_onnx_runtimes():
    options = intarsia.session.SessionOptions()
    options.graph_optimization_level = intarsia.session.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = intarsia.session.InferenceSession(scaled_model(), options, targets="onnxruntime")
    assert session.get_providers() == ["onnxruntime -graph_optimization=none"]
    without = intarsia.session.InferenceSession(scaled_model(), options, targets="llvm")
    assert all(text.startswith("llvm") for text in without.get_providers())
    default = intarsia.session.InferenceSession(scaled_model(), options)
    assert "onnxruntime -graph_optimization=none" in default.get_providers()
    assert default.executable.plan.placement.regions[0].target.startswith("llvm")
    options.graph_optimization_level = 17
    with pytest.raises(SettingError, match="graph_optimization_level 17"):
        intarsia.session.InferenceSession(scaled_model(), options)


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_fields_are_onnx_runtimes_and_no_others(name, runtime):
    theirs, ours = (getattr(module, name)() for module in (onnxruntime, intarsia.session))
    for field in filter(lambda each: not each.startswith("_"), dir(theirs)):
        value = getattr(theirs, field)
        if not callable(value) and field != "profile_file_prefix":
            assert getattr(ours, field) == (int(value) if hasattr(value, "value") else value), field
            setattr(ours, field, getattr(ours, field))
    with pytest.raises(AttributeError, match="intra_op_threads"):
        getattr(runtime, name)().intra_op_threads = 4


def test_one_host_is_given_at_every_level_of_optimisation():
    options = intarsia.session.SessionOptions()
    hosts = {"host": "onnxruntime", "target_host": "reference"}
    for level in (99, 0):
        options.graph_optimization_level = level
        with pytest.raises(TargetError, match="are both given"):
            intarsia.session.InferenceSession(scaled_model(), options, targets="fake", **hosts)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("add_initializer", ("W", np.zeros(3, np.float32))),
        ("add_external_initializers", (["W"], [np.zeros(3, np.float32)])),
        ("add_external_initializers_from_files_in_memory", (["w.bin"], [b"0"], [1])),
        ("add_free_dimension_override_by_name", ("N", 3)),
        ("add_free_dimension_override_by_denotation", ("DATA_BATCH", 3)),
        ("register_custom_ops_library", ("ops.so",)),
    ],
)
def test_what_changes_a_model_is_not_passed_over_with_a_package(method, arguments, tmp_path):
    intarsia.compile(scaled_model(), "reference").save(tmp_path / "m.intarsia")
    options = intarsia.session.SessionOptions()
    getattr(options, method)(*arguments)
    with pytest.raises(SettingError, match="is compiled already") as caught:
        intarsia.session.InferenceSession(tmp_path / "m.intarsia", options)
    named = {"add_external_initializers": "add_initializer"}.get(method, method)
    assert caught.value.hint == f"leave {named} out, or give the .onnx file"


def test_the_path_of_a_library_may_hold_what_separates_paths(tmp_path):
    options = intarsia.session.SessionOptions()
    path = tmp_path / "a,b 'c'.so"
    options.register_custom_ops_library(path)
    with pytest.raises(BackendError) as caught:
        intarsia.session.InferenceSession(scaled_model(), options, targets="onnxruntime")
    assert repr(str(path)) in caught.value.message


def test_entries_are_kept(runtime):
    options, run_options = runtime.SessionOptions(), runtime.RunOptions()
    options.add_session_config_entry("session.key", "1")
    run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert options.get_session_config_entry("session.key") == "1"
    key = "memory.enable_memory_arena_shrinkage"
    assert run_options.get_run_config_entry(key) == "cpu:0"
    with pytest.raises((RuntimeError, SettingError), match="does not have configuration with key"):
        options.get_session_config_entry("no such")


def test_what_cannot_be_had_is_refused():
    options = intarsia.session.SessionOptions()
    options.optimized_model_filepath = "out.onnx"
    with pytest.raises(SettingError, match="optimized_model_filepath") as caught:
        intarsia.session.InferenceSession(scaled_model(), options)
    assert "executable.save" in caught.value.hint
    with pytest.raises(SettingError, match="LoraAdapter"):
        intarsia.session.RunOptions().add_active_adapter(onnxruntime.LoraAdapter())
    with pytest.raises(SettingError, match="SessionOptions") as caught:
        intarsia.session.InferenceSession(scaled_model(), onnxruntime.SessionOptions())
    assert "intarsia.session" in caught.value.hint


def test_a_run_that_is_to_end_does_not_start(runtime):
    session = runtime.InferenceSession(scaled_model().SerializeToString())
    run_options = runtime.RunOptions()
    run_options.terminate = True
    with pytest.raises(Exception, match="terminate") as caught:
        session.run(None, {"x": ONES}, run_options)
    if runtime is intarsia.session:
        assert isinstance(caught.value, ExecutionError)


def test_the_profile_has_a_line_for_each_run_and_step(tmp_path):
    options = intarsia.session.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = intarsia.session.InferenceSession(
        scaled_model(), options, targets="fake -ops=Mul, reference"
    )
    assert session.get_profiling_start_time_ns() > 0
    outputs = [session.run(None, {"x": ONES})[0].tolist() for _ in range(2)]
    assert outputs == [[1, 2, 3], [1, 2, 3]]
    path = session.end_profiling()
    lines = Path(path).read_text().splitlines()
    assert path.startswith(options.profile_file_prefix)
    assert (lines[0], lines[-1]) == ("[", "]")
    events = json.loads("\n".join(lines))
    assert len(lines) == len(events) + 2
    assert [event["name"] for event in events] == [
        *("model_run", "copy x", "region 0", "copy y") * 2
    ]
    runs = [event for event in events if event["name"] == "model_run"]
    assert all(event["ph"] == "X" and event["dur"] >= 0 for event in events)
    assert runs[0]["ts"] < runs[1]["ts"]
    with pytest.raises(SettingError, match="profiling is not on"):
        session.end_profiling()


def test_the_profile_has_iterations_inside_of_their_loop(tmp_path, parse_model):
    model = parse_model("""g (int64 m, float[4] x) => (float[4] y) <bool yes = {1}> {
        y = Loop(m, yes, x) <body = b (int64 i, bool on, float[4] v) => (bool on, float[4] u) {
            u = Add(v, x) }> }""")
    options = intarsia.session.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = intarsia.session.InferenceSession(model, options, targets="llvm, onnxruntime")
    (y,) = session.run(None, {"m": np.array(3), "x": np.ones(4, np.float32)})
    assert y.tolist() == [4] * 4
    run, loop, *inner = json.loads(Path(session.end_profiling()).read_text())
    assert [event["name"] for event in inner] == ["body", "region 0"] * 3
    assert loop["args"]["op_name"] == "Loop"

    def is_inside(event, other):
        begin, end = other["ts"], other["ts"] + other["dur"]
        return begin - 0.002 <= event["ts"] and event["ts"] + event["dur"] <= end + 0.002

    assert is_inside(loop, run)
    for body, step in zip(inner[::2], inner[1::2], strict=True):
        assert is_inside(body, loop)
        assert is_inside(step, body)


def test_a_profile_that_cannot_be_written_is_an_error(tmp_path):
    options = intarsia.session.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "no folder" / "trace")
    session = intarsia.session.InferenceSession(scaled_model(), options)
    with pytest.raises(SettingError, match="no folder"):
        session.end_profiling()


def test_a_free_dimension_without_an_override_stays_free(runtime):
    options = runtime.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 4)
    session = runtime.InferenceSession(free_model().SerializeToString(), options)
    assert session.get_inputs()[0].shape == [4, "columns", 5]
    for columns in (2, 3):
        (y,) = session.run(None, {"x": -np.ones((4, columns, 5), np.float32)})
        assert y.shape == (4, columns, 5)
