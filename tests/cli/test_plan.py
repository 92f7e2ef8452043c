# SPDX-License-Identifier: Apache-2.0
"""`intarsia plan lock|diff` and `compile --frozen`."""

import json

import pytest

_TARGETS = "fake -ops=Relu,Add, reference"


@pytest.fixture
def locked(call, model):
    """`a.intarsia`, of two targets, and its lock file."""
    assert call("compile", model, "-t", _TARGETS, "-o", "a.intarsia").code == 0
    answer = call("plan", "lock", "a.intarsia")
    assert answer.code == 0
    assert answer.out.startswith("wrote plan.lock.json (")
    return "plan.lock.json"


def test_a_frozen_plan_is_that_plan(call, model, locked, folder):
    answer = call("compile", model, "--frozen", locked, "-o", "b.intarsia")
    assert answer.code == 0
    assert call("plan", "diff", "a.intarsia", "b.intarsia").code == 0
    assert call("plan", "diff", locked, "b.intarsia").out.startswith("the same plan: ")
    again = call("plan", "lock", "b.intarsia", "-o", "again.json", "--json")
    assert again.json["file"] == "again.json"
    assert (folder / "again.json").read_text() == (folder / locked).read_text()


def test_a_changed_environment_is_refused_and_named(call, model, locked, folder):
    answer = call("compile", model, "--frozen", locked, "-t", "reference")
    assert answer.code == 2
    assert "the plan was locked in another environment: targets: " in answer.err
    assert "hint: " in answer.err
    assert not (folder / "chain.intarsia").exists()
    answer = call("compile", model, "--frozen", locked, "--pin", "first=reference", "--json")
    assert answer.json["error"]["type"] == "LockError"


def test_plans_are_compared(call, model, locked):
    assert call("compile", model, "-t", "reference", "-o", "c.intarsia").code == 0
    answer = call("plan", "diff", "a.intarsia", "c.intarsia")
    assert answer.code == 1
    assert "nodes elsewhere" in answer.out
    assert "changed: targets: " in answer.out
    found = call("plan", "diff", locked, "c.intarsia", "--json").json
    moved = {name: move for move in found["moves"] for name in move["nodes"]}
    assert moved.keys() == {"second", "fifth"}
    assert moved["second"]["now"] == "reference"
    assert found["regions"][1] == 1
    assert {cut["is_new"] for cut in found["cuts"]} == {False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "lock", "none.intarsia"), "none.intarsia"),
        (("plan", "diff", "wrong.json", "wrong.json"), "'wrong.json' is not a lock file"),
        (("plan", "diff", "none.json", "none.json"), "cannot read 'none.json'"),
        (("compile", "chain.onnx", "--frozen", "wrong.json"), "'wrong.json' is not a lock file"),
        (
            ("compile", "chain.onnx", "--frozen", "plan.lock.json", "--placement", "greedy"),
            "placement 'greedy' contradicts a frozen plan",
        ),
    ],
)
def test_what_is_wrong_is_one_line(call, locked, folder, arguments, message):
    (folder / "wrong.json").write_text(json.dumps({"format": "other"}))
    answer = call(*arguments)
    assert answer.code == 2
    assert message in answer.err


def test_a_locked_plan_brings_its_threads(call, model, folder, monkeypatch):
    monkeypatch.delenv("INTARSIA_NUM_THREADS", raising=False)
    assert call("compile", model, "-t", _TARGETS, "-o", "a.intarsia", "--threads", "1").code == 0
    assert call("plan", "lock", "a.intarsia").code == 0
    assert call("compile", model, "--frozen", "plan.lock.json", "-o", "b.intarsia").code == 0
    assert call("plan", "diff", "a.intarsia", "b.intarsia").code == 0
    answer = call("compile", model, "--frozen", "plan.lock.json", "--threads", "3")
    assert answer.code == 2
    assert "threads: 1 -> 3\nhint: give --threads 1" in answer.err
    monkeypatch.setenv("INTARSIA_NUM_THREADS", "2")  # what is set is said, too
    answer = call("compile", model, "--frozen", "plan.lock.json")
    assert "threads: 1 -> 2" in answer.err


def test_a_lock_file_is_not_locked_again(call, locked):
    answer = call("plan", "lock", locked)
    assert answer.code == 2
    assert "is a lock file already" in answer.err
