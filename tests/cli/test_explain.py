# SPDX-License-Identifier: Apache-2.0
"""`intarsia explain`."""

from pathlib import Path


def test_explain_says_what_runs_where_and_why(call, mixed_model):
    answer = call("explain", mixed_model, "-t", "openvino, onnxruntime")
    assert answer.code == 0
    for text in ("2 nodes in 2 regions", "fallback", "priority", "Cast of int64 ('n')", "cast"):
        assert text in answer.out


def test_explain_lists_copies_with_their_bytes(call, model):
    answer = call("explain", model, "-t", "fake -ops=Relu, onnxruntime", "--json")
    assert answer.code == 0
    assert [copy["nbytes"] for copy in answer.json["copies"]] == [32, 32]
    assert answer.json["copies"][0]["destination"] == "ext_dev:0/fake"


def test_explain_reads_a_package(call, package):
    answer = call("explain", package, "--all")
    assert answer.code == 0
    assert "run 0 on onnxruntime" in answer.out
    assert "fourth" in answer.out


def test_explain_of_one_node_has_its_refusals(call, mixed_model):
    target = ["-t", "openvino, onnxruntime", "--node", "cast"]
    answer = call("explain", mixed_model, *target)
    assert answer.code == 0
    assert "unsupported-dtype: Cast of int64 ('n')" in answer.out
    (node,) = call("explain", mixed_model, *target, "--json").json["nodes"]
    assert node["target"] == "onnxruntime"
    assert node["why"] == "fallback"
    assert node["refusals"][0]["target"] == "openvino"


def test_an_unknown_node_gets_the_nearest_names(call, package):
    answer = call("explain", package, "--node", "secnd")
    assert answer.code == 2
    assert "no node 'secnd'" in answer.err
    assert "'second'" in answer.err


def test_explain_shows_devices_with_their_bytes(call, model):
    answer = call("explain", model, "-t", "fake -ops=Relu, onnxruntime", "--json")
    host, fake = answer.json["devices"]
    assert (host["device"], fake["device"]) == ("cpu:0", "ext_dev:0/fake")
    assert fake["incoming"] == {"copies": 1, "nbytes": 32, "seconds": None}
    assert fake["peak_bytes"] == fake["tensor_bytes"] > 0
    table = call("explain", model, "-t", "fake -ops=Relu, onnxruntime").out
    assert "copies in" in table
    assert table.count("ext_dev:0/fake") >= 3  # the region, the device, the copies


def test_explain_times_regions_and_copies(call, package):
    answer = call("explain", package, "--profile", "2", "--json")
    assert answer.code == 0
    assert all(view["seconds"] >= 0 for view in answer.json["devices"])
    assert len(answer.json["region_seconds"]) == len(answer.json["placement"]["regions"])
    assert "ms" in call("explain", package, "--profile", "1").out


def test_where_nothing_was_measured_it_says_why_costs_are_missing(call, package):
    answer = call("explain", package, "--node", "first")
    assert answer.code == 0
    assert "costs elsewhere are not known: it was found by greedy placement" in answer.out
    answer = call("explain", package, "--cuts")
    assert answer.code == 2
    assert "this plan has no costs: it was found by greedy placement" in answer.err


def test_where_nothing_was_measured_refusals_say_why_nodes_are_elsewhere(call, package):
    everything = call("explain", package, "--json").json["placement"]
    for target in everything["targets"]:
        answer = call("explain", package, "--not-on", target, "--json")
        assert answer.code == 0
        absent = [name for unit in answer.json["units"] for name in unit["nodes"]]
        elsewhere = [
            node["name"]
            for region in everything["regions"]
            if region["target"] != target
            for node in region["nodes"]
        ]
        assert sorted(absent) == sorted(elsewhere)
        assert all(unit["reason"] for unit in answer.json["units"])
    shown = call("explain", package, "--not-on", everything["targets"][0])
    assert "what it would cost is not known" in shown.out
    assert call("explain", package, "--not-on", "nosuch").code == 2


def test_explain_writes_a_report_that_says_where_it_is(call, package):
    answer = call("explain", package, "--html", "report.html", "--json")
    assert answer.code == 0
    assert "wrote report.html (" in answer.err
    text = Path("report.html").read_text(encoding="utf-8")
    for name in ("first", "fifth", "onnxruntime"):
        assert f"<td>{name}</td>" in text


def test_a_report_does_not_take_the_place_of_its_model(call, package):
    answer = call("explain", package, "--html", package)
    assert answer.code == 2
    assert "is the model itself" in answer.err
    assert call("explain", package, "--html", "none/report.html").code == 2
