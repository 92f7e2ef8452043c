# SPDX-License-Identifier: Apache-2.0
"""The HTML report in a real browser: searched, clicked, and compared with what commands print."""

import json
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest

from intarsia.__main__ import main
from intarsia.report.page.page import load_bundle

WEB = Path(__file__).parents[2] / "web"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def look(tmp_path):
    """A function that opens a report in headless Chromium and returns what is seen there."""
    node, chromium = shutil.which("node"), shutil.which("chromium")
    for name, has in (
        ("node", node),
        ("chromium", chromium),
        ("the packages of web/package.json (make report-bundle)", (WEB / "node_modules").is_dir()),
        ("the program that draws (make report-bundle)", load_bundle() is not None),
    ):
        if not has:
            pytest.skip(f"reports are not opened here without {name}")

    def open_report(file, *options):
        command = [node, WEB / "look.mjs", file, chromium, tmp_path / "profile", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["errors"] == []
        assert seen["dialogs"] == []  # no name was run
        assert seen["requests"] == [Path(file).as_uri()]
        return seen

    return open_report


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function that runs a command in an empty folder and returns the JSON that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        assert main([*arguments, "--json"]) in (0, 1)
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def chain(tmp_path, chain_model):
    """`chain.onnx`, one of whose names tries to be markup."""
    model = onnx.ModelProto()
    model.CopyFrom(chain_model)
    model.graph.node[3].name = HOSTILE
    onnx.save(model, tmp_path / "chain.onnx")
    return "chain.onnx"


def type_text(value):
    return f"{value['dtype']}[{','.join(map(str, value['shape']))}]"


def find(told, name):
    """What `explain --json` says of a node: its region, itself, and its values."""
    regions = told["placement"]["regions"]
    (found,) = [
        (i, region, node)
        for i, region in enumerate(regions)
        for node in region["nodes"]
        if node["name"] == name
    ]
    (wired,) = [node for node in told["wiring"]["nodes"] if node["name"] == name]
    values = told["wiring"]["values"]
    return (*found, [values[i] for i in wired["inputs"]], [values[i] for i in wired["outputs"]])


def test_a_node_is_found_and_clicked_and_reads_as_json_has_it(call, look, chain):
    target = ["-t", "fake -ops=Relu,Tanh, onnxruntime"]
    told = call("explain", chain, *target, "--html", "report.html")
    seen = look(Path("report.html").absolute(), "--node", "ALERT", "--from", "first", "--axe")
    index, region, node, reads, writes = find(told, HOSTILE)
    panel = seen["searched"]
    assert seen["found"] == [f"{HOSTILE} Tanh, {region['target']}"]
    assert panel["heading"] == HOSTILE
    assert panel["facts"]["operator"] == node["op_type"] == "Tanh"
    assert panel["facts"]["target"] == region["target"]
    assert panel["facts"]["device"] == region["device"]
    assert panel["facts"]["region"] == f"region {index}"
    assert panel["facts"]["why"] == node["why"]
    assert [row[:2] for row in panel["tables"]["Reads"]] == [
        [v["name"], type_text(v)] for v in reads
    ]
    assert [row[:2] for row in panel["tables"]["Writes"]] == [
        [v["name"], type_text(v)] for v in writes
    ]
    assert seen["clicked"] == panel
    assert seen["next"]["heading"] != panel["heading"]
    (copy,) = [one for one in told["copies"] if one["tensor"] == "a"]
    assert seen["edge"]["heading"] == "copy"
    assert seen["edge"]["tables"]["Values"] == [["a", "float32[2,4]"]]
    (row,) = seen["edge"]["tables"]["Copied in"]
    assert row[:2] == ["a", f"{copy['source']} → {copy['destination']}"]
    assert row[2].startswith(f"{copy['nbytes']} (")
    assert len(told["copies"]) == seen["tables"]["Devices and copies: copies"]
    assert seen["violations"] == []
    assert seen["passes"] > 10


@pytest.mark.exhaustive
def test_the_keyboard_reaches_everything_and_a_line_is_picked(call, look, chain):
    call("explain", chain, "-t", "fake -ops=Relu,Tanh, onnxruntime", "--html", "report.html")
    report = Path("report.html").absolute()
    seen = look(report, "--keys", "--node", "fifth", "--from", "third", "--dark")
    buttons = ["Zoom in (+)", "Zoom out (-)", "Show the whole graph (0)"]
    keys = seen["keys"]
    assert keys["tabs"][:7] == ["search", "view", *buttons, "Graph of the model", "What was picked"]
    assert keys["back"] == "What was picked"
    assert keys["picked"] == "first"  # of the first node on
    assert keys["entered"] == "What was picked"
    assert keys["left"] == "Graph of the model"
    assert keys["nothing"] == "the model"
    assert keys["searching"] == "search"
    assert keys["isClosed"]
    assert seen["searched"]["heading"] == "fifth"
    assert seen["edge"] == {"heading": "value", "tables": {"Values": [["b", "float32[2,4]"]]}}


@pytest.mark.exhaustive
def test_a_tuned_plan_has_costs_on_every_target(call, look, chain):
    told = call(
        *("tune", chain, "-t", "fake -cost=*:1e-3, onnxruntime", "--threads", "1"),
        *("--budget", "8s", "--database", "costs.sqlite", "--html", "report.html"),
    )["tuning"]
    seen = look(Path("report.html").absolute(), "--node", "sigmoid", "--axe")
    (unit,) = [unit for unit in told["unit_reports"] if "third" in unit["nodes"]]
    (costs,) = [rows for name, rows in seen["searched"]["tables"].items() if "Cost" in name]
    assert [row[0].removesuffix(" (runs here)") for row in costs] == [
        cost["target"] for cost in unit["costs"]
    ]
    for row, cost in zip(costs, unit["costs"], strict=True):
        if cost["alone_seconds"] is not None:
            shown = float(row[1].removesuffix(" ms"))
            assert shown == pytest.approx(1e3 * cost["alone_seconds"], rel=5e-3)
    (plans,) = [rows for name, rows in seen["tables"].items() if "whole plans" in name]
    assert plans == len(told["finalists"])
    assert seen["violations"] == []


@pytest.mark.exhaustive
def test_a_profile_has_a_timeline_with_each_call(call, look, chain):
    target = ["-t", "fake -ops=Relu, llvm", "--rounds", "3"]
    told = call("bench", chain, "--profile", *target, "--html", "report.html")
    seen = look(Path("report.html").absolute(), "--axe", "--dark")
    assert seen["tables"]["One run: calls"] == seen["calls"] == len(told["run"]) > 3
    assert seen["violations"] == []


@pytest.mark.exhaustive
def test_two_plans_are_compared(call, look, chain):
    for name, target in (("a", "onnxruntime"), ("b", "fake -ops=Relu, onnxruntime")):
        call("compile", chain, "-t", target, "-o", f"{name}.intarsia")
    told = call("plan", "diff", "a.intarsia", "b.intarsia", "--html", "report.html")
    seen = look(Path("report.html").absolute(), "--node", "second", "--axe")
    (move,) = told["moves"]
    assert move["nodes"] == ["second"]
    assert seen["searched"]["facts"]["in the first plan"] == move["before"] == "onnxruntime"
    assert seen["searched"]["facts"]["target"] == move["now"]
    assert seen["violations"] == []
