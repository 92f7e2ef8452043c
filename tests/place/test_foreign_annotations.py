# SPDX-License-Identifier: Apache-2.0
"""Annotations of others place nodes, beneath our own; ours are written in their words too."""

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.errors import PlacementError, TargetError

TARGET = "fake:0, fake:1, reference"


def placed(exe):
    return {node.name: r.target for r in exe.placement.regions for node in r.nodes}


def whys(exe):
    return {node.name: node.why for r in exe.placement.regions for node in r.nodes}


@pytest.fixture
def compile_chain(backends):
    """A function that compiles for two fakes and the reference, and returns who got which node."""

    def run(model, target=TARGET, **options):
        return intarsia.compile(model, target, placement="manual", backends=backends, **options)

    return run


@pytest.fixture
def chain(chain_model):
    """The chain, free to be annotated; its node by name."""
    model = onnx.ModelProto()
    model.CopyFrom(chain_model)
    model.ir_version = 11
    return model, {node.name: node for node in model.graph.node}


def layered(chain, **layers):
    model, nodes = chain
    for name, layer in layers.items():
        nodes[name].metadata_props.add(key="layer_ann", value=layer)
    return model


def configure(chain, devices, name="pair", /, **stages):
    """Add a configuration; per node a stage, or `[devices]` that its first output is on."""
    model, nodes = chain
    model.configuration.add(name=name, num_devices=len(devices), device=devices)
    for node, where in stages.items():
        item = nodes[node].device_configurations.add(configuration_id=name)
        if isinstance(where, list):
            item.sharding_spec.add(tensor_name=nodes[node].output[0], device=where)
        else:
            item.pipeline_stage = where
    return model


def test_layers_are_mapped_to_targets(chain, compile_chain):
    model = layered(chain, first="encoder/0", second="encoder/1", third="decoder")
    exe = compile_chain(model, layers={"encoder": "fake:1"})
    assert placed(exe) == {
        "first": "fake:1",
        "second": "fake:1",
        "third": "reference",
        "fourth": "reference",
        "fifth": "reference",
    }
    assert whys(exe)["first"] == "layer 'encoder=fake:1'"


def test_without_a_mapping_layers_say_nothing(chain, compile_chain):
    exe = compile_chain(layered(chain, first="encoder"))
    assert set(placed(exe).values()) == {"reference"}


def test_an_exact_layer_wins_over_a_prefix_and_a_longer_prefix_over_a_shorter(chain, compile_chain):
    model = layered(chain, first="enc", second="encoder", third="encoder/deep", fourth="other")
    rules = {"e": "reference", "encoder": "fake:1", "=encoder": "fake:0"}
    found = placed(compile_chain(model, layers=rules))
    assert found["first"] == "reference"
    assert found["second"] == "fake"
    assert found["third"] == "fake:1"


def test_a_layer_that_matches_nothing_is_an_error(chain, compile_chain):
    model = layered(chain, first="encoder")
    with pytest.raises(PlacementError, match="'=enc=fake:1' matches no node") as caught:
        compile_chain(model, layers={"=enc": "fake:1"})
    assert "'encoder'" in caught.value.hint


def test_layers_of_a_model_without_any_are_an_error(chain_model, compile_chain):
    with pytest.raises(PlacementError) as caught:
        compile_chain(chain_model, layers={"enc": "fake:1"})
    assert "layer_ann" in caught.value.hint


def test_a_layer_for_an_unknown_target_is_an_error(chain, compile_chain):
    with pytest.raises(TargetError, match="layer 'enc=opencl'"):
        compile_chain(layered(chain, first="encoder"), layers={"enc": "opencl"})


def test_a_device_configuration_places_by_the_devices_of_the_tensors(chain, compile_chain):
    exe = compile_chain(configure(chain, ["fake:0", "FAKE:1"], first=[0], second=[1]))
    found = placed(exe)
    assert (found["first"], found["second"], found["third"]) == ("fake", "fake:1", "reference")
    assert whys(exe)["second"] == "device configuration 'pair'"


def test_without_tensors_the_pipeline_stage_is_the_device(chain, compile_chain):
    found = placed(compile_chain(configure(chain, ["fake:0", "fake:1"], first=0, second=1)))
    assert (found["first"], found["second"]) == ("fake", "fake:1")


def test_a_device_that_means_several_targets_leaves_the_choice_open(chain, compile_chain):
    model = configure(chain, ["EXT_DEV", "EXT_DEV:1"], first=[0], second=[1])
    found = placed(compile_chain(model))
    assert (found["first"], found["second"]) == ("reference", "fake:1")


def test_a_device_that_is_not_here_beside_one_that_is_is_an_error(chain, compile_chain):
    model = configure(chain, ["fake:0", "CUDA:0"], first=[0], second=[1])
    with pytest.raises(PlacementError, match=r"'second'.*'pair'.*'CUDA:0'") as caught:
        compile_chain(model)
    assert caught.value.node == "second"


def test_a_device_out_of_range_is_an_error(chain, compile_chain):
    with pytest.raises(PlacementError, match=r"'first'.*'pair' has no device 7"):
        compile_chain(configure(chain, ["fake:0", "fake:1"], first=[7]))


def test_a_configuration_for_another_machine_is_one_line(chain, compile_chain, caplog):
    exe = compile_chain(configure(chain, ["CUDA:0", "CUDA:1"], first=[0], second=[1]))
    assert set(placed(exe).values()) == {"reference"}
    (line,) = [r.getMessage() for r in caplog.records if "another machine" in r.getMessage()]
    assert "pair" in line


def test_of_several_configurations_the_one_that_is_all_here_is_followed(chain, compile_chain):
    configure(chain, ["fake:0", "CUDA:1"], "half", first=[0])
    model = configure(chain, ["fake:1"], "whole", first=[0])
    assert placed(compile_chain(model))["first"] == "fake:1"


def test_a_node_that_is_split_over_devices_is_placed_whole(chain, compile_chain, caplog):
    exe = compile_chain(configure(chain, ["fake:0", "fake:1"], first=[0, 1]))
    assert placed(exe)["first"] == "reference"
    assert any("split over several devices" in r.getMessage() for r in caplog.records)


def test_pins_win_over_ours_over_device_configurations_over_layers(chain, compile_chain):
    layered(chain, first="l", second="l", third="l", fourth="l")
    model = configure(chain, ["fake:0"], first=[0], second=[0], third=[0])
    chain[1]["second"].metadata_props.add(key="intarsia.device", value="reference")
    found = placed(compile_chain(model, layers={"l": "fake:1"}, pins={"first": "fake:1"}))
    assert [found[name] for name in ("first", "second", "third", "fourth")] == [
        "fake:1",
        "reference",
        "fake",
        "fake:1",
    ]


def test_our_own_annotation_still_contradicts_a_pin(chain, compile_chain):
    model, nodes = chain
    nodes["first"].metadata_props.add(key="intarsia.device", value="fake:0")
    with pytest.raises(PlacementError, match="contradicts"):
        compile_chain(model, pins={"first": "fake:1"})


PINS = {"second": "fake:1", "f*": "fake:0"}


def test_a_placement_is_written_in_three_ways(chain_model, compile_chain):
    written = intarsia.annotate(chain_model, compile_chain(chain_model, pins=PINS))
    onnx.checker.check_model(written, full_check=True)
    (configuration,) = written.configuration
    assert configuration.name == "intarsia"
    assert list(configuration.device) == ["fake", "fake:1", "reference"]
    second = next(node for node in written.graph.node if node.name == "second")
    facts = {entry.key: entry.value for entry in second.metadata_props}
    assert facts == {
        "intarsia.device": "fake:1",
        "layer_ann": "fake-2",
        "intarsia.region": "1 (there are 4)",
        "intarsia.backend": "fake",
        "intarsia.why": "pin 'second=fake:1'",
        "intarsia.program_nodes": f"{second.op_type} second",
    }
    summary = {entry.key: entry.value for entry in written.metadata_props}["intarsia.placement"]
    assert summary.startswith("5 nodes in 4 regions: ")
    (item,) = second.device_configurations
    assert item.pipeline_stage == 1
    assert [(spec.tensor_name, list(spec.device)) for spec in item.sharding_spec] == [("mid", [1])]


@pytest.mark.parametrize("kept", ["intarsia.device", "layer_ann", "device_configurations"])
def test_each_way_alone_gives_the_same_placement_again(chain_model, compile_chain, kept):
    exe = compile_chain(chain_model, pins=PINS)
    written = intarsia.annotate(chain_model, exe)
    for node in written.graph.node:
        entries = [entry for entry in node.metadata_props if entry.key == kept]
        del node.metadata_props[:]
        node.metadata_props.extend(entries)
        if kept != "device_configurations":
            del node.device_configurations[:]
    layers = {"fake-1": "fake:0", "fake-2": "fake:1"} if kept == "layer_ann" else {}
    assert placed(compile_chain(written, layers=layers)) == placed(exe)


def test_an_annotated_network_compiles_to_the_same_placement_and_runs_in_onnxruntime(
    backends, random_feeds
):
    onnxruntime = pytest.importorskip("onnxruntime")
    from intarsia.zoo import build

    model = build("squeezenet")
    target = "openvino, onnxruntime"
    exe = intarsia.compile(model, target, exclude=["openvino:MaxPool"], backends=backends)
    assert len(exe.placement.regions) > 2
    written = intarsia.annotate(model, exe.placement)
    onnx.checker.check_model(written, full_check=True)
    again = intarsia.compile(written, target, placement="manual", backends=backends)
    assert placed(again) == placed(exe)
    feeds = random_feeds(model)
    before, after = (
        onnxruntime.InferenceSession(m.SerializeToString()).run(None, feeds)
        for m in (model, written)
    )
    np.testing.assert_array_equal(before, after)


def test_annotating_again_replaces_what_was_written(chain_model, compile_chain):
    exe = compile_chain(chain_model, pins=PINS)
    once = intarsia.annotate(chain_model, exe)
    assert intarsia.annotate(once, exe) == once


def test_the_users_model_and_what_else_it_says_stay(chain, compile_chain):
    model, nodes = chain
    nodes["first"].metadata_props.add(key="author", value="me")
    configure(chain, ["CUDA:0"], "theirs", first=[0])
    before = model.SerializeToString()
    written = intarsia.annotate(model, compile_chain(model))
    assert model.SerializeToString() == before
    assert [item.name for item in written.configuration] == ["theirs", "intarsia"]
    first = next(node for node in written.graph.node if node.name == "first")
    assert ("author", "me") in [(entry.key, entry.value) for entry in first.metadata_props]
    assert len(first.device_configurations) == 2


def test_nodes_without_names_and_out_of_order_are_found(parse_model, compile_chain):
    model = parse_model("g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(a) y = Exp(b) }")
    model.graph.node.insert(0, model.graph.node.pop())
    exe = compile_chain(model, pins={"b": "fake:1"})
    written = intarsia.annotate(model, exe)
    found = {
        node.output[0]: {entry.key: entry.value for entry in node.metadata_props}
        for node in written.graph.node
    }
    assert found["b"]["intarsia.device"] == "fake:1"
    assert found["y"]["intarsia.device"] == "reference"
    assert [node.name for node in written.graph.node] == ["y", "a", "b"]  # as explanations say


def test_refusals_and_nodes_that_are_gone_are_told(parse_model, backends):
    model = parse_model("""g (int64[3] n) => (float[3] y) <float[3] c = {1, 2, 3}> {
        [cast] f = Cast<to = 1>(n) [gone] d = Exp(c) [sum] y = Add(f, d) }""")
    exe = intarsia.compile(model, "openvino, onnxruntime", backends=backends)
    found = {
        node.name: {entry.key: entry.value for entry in node.metadata_props}
        for node in intarsia.annotate(model, exe).graph.node
    }
    refusals = [one for one in exe.placement.refusals if one.node == "cast"]
    assert refusals
    assert all(one.reason in found["cast"]["intarsia.refused"] for one in refusals)
    assert found["gone"].keys() == {"intarsia.why"}
    assert "computed while compiling" in found["gone"]["intarsia.why"]


def test_the_placement_of_another_model_is_refused(chain_model, parse_model, compile_chain):
    other = parse_model("g (float[4] x) => (float[4] y) { [only] y = Relu(x) }")
    with pytest.raises(PlacementError, match="of another model"):
        intarsia.annotate(chain_model, compile_chain(other))
