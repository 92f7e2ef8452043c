# SPDX-License-Identifier: Apache-2.0
"""The server as a process: over sockets, with a public client, until a signal ends it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.serving.conftest import json_input
from tests.serving.test_queue import LONG, queue_threads, wait_until

httpx = pytest.importorskip("httpx")

LOOPS = """
loops (int64 trip, float x) => (float y) {
    yes = Constant<value = bool {1}>()
    y = Loop(trip, yes, x)
    <body = body (int64 i, bool go, float a) => (bool on, float b) {
        on = Identity(go) one = Constant<value = float {1}>() b = Add(a, one)
    }>
}
"""
"""As many steps as a request says: it takes as long as a test needs it to."""

STEPS = 400_000


@contextlib.contextmanager
def serving(folder, *arguments):
    """Yield a server's process, and where it listens."""
    command = [sys.executable, "-m", "intarsia", "serve", *map(str, arguments)]
    environment = {**os.environ, "INTARSIA_CACHE_DIR": str(folder / "cache")}
    log = (folder / "log").open("w+")
    with subprocess.Popen(
        [*command, "-t", "onnxruntime", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=folder,
        env=environment,
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            yield process, json.loads(line)
        finally:
            process.kill()
            log.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rows_model, texts_model, parse_model):
    """A folder with models."""
    folder = tmp_path_factory.mktemp("server")
    for name, model in (
        ("rows", rows_model),
        ("texts", texts_model),
        ("loops", parse_model(LOOPS)),
    ):
        onnx.save(model, folder / f"{name}.onnx")
    return folder


def loops_body(steps):
    inputs = [
        {"name": "trip", "shape": [], "datatype": "INT64", "data": [steps]},
        {"name": "x", "shape": [], "datatype": "FP32", "data": [0]},
    ]
    return {"inputs": inputs}


@contextlib.contextmanager
def in_flight(url):
    """Yield the list that gets the answer to a request that runs now."""
    answers = []

    def ask():
        answers.append(
            httpx.post(f"{url}/v2/models/loops/infer", json=loops_body(STEPS), timeout=LONG)
        )

    def runs(count):
        text = httpx.get(f"{url}/metrics", timeout=LONG).text
        return f'intarsia_active_runs{{model="loops"}} {count}.0' in text

    wait_until(lambda: runs(0))  # nothing is left of what was given up before
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: answers or runs(1))
    yield answers
    thread.join(LONG)


def test_a_public_client_is_served_until_the_server_is_ended(folder):
    models = [folder / f"{name}.onnx" for name in ("rows", "texts", "loops")]
    with serving(folder, *models, "--grpc-port", 0, "--max-body", 1) as (process, told):
        assert told["address"] == "127.0.0.1"
        assert told["models"] == ["loops", "rows", "texts"]
        url = f"http://127.0.0.1:{told['http_port']}"
        client = Path(__file__).with_name("client.py")
        ports = [str(told["http_port"]), str(told["grpc_port"])]
        done = subprocess.run(
            [sys.executable, str(client), *ports, str(models[0])],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG,
        )
        assert (done.returncode, done.stdout) == (0, "all answers are right\n"), done.stderr

        # What is larger than may be is refused while it is sent.
        answer = httpx.post(f"{url}/v2/models/rows/infer", content=bytes(3 << 20), timeout=LONG)
        assert answer.status_code == 413
        slow = httpx.post(
            f"{url}/v2/models/loops/infer",
            json={**loops_body(STEPS), "parameters": {"timeout": 1000}},
            timeout=LONG,
        )
        assert slow.status_code == 504

        with in_flight(url) as answers:
            process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
        assert answers[0].status_code == 200
        assert answers[0].json()["outputs"][0]["data"] == [STEPS]
        assert json.loads(process.stdout.read()) == {"event": "stopped", "whole": True}
    log = (folder / "log").read_text()
    assert "Traceback" not in log
    assert log.splitlines()[-1] == "stopped: all requests that were in flight are answered"


@pytest.mark.exhaustive
def test_ctrl_c_ends_it_with_one_line(folder):
    with serving(folder, folder / "loops.onnx") as (process, told):
        assert told["grpc_port"] is None
        with in_flight(f"http://127.0.0.1:{told['http_port']}") as answers:
            process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130
        assert answers[0].status_code == 200
    lines = (folder / "log").read_text().splitlines()
    assert lines[-1] == "interrupted"
    assert not [line for line in lines if "Traceback" in line or "stopped" in line]


def test_a_port_that_is_taken_is_an_error_before_anything_is_loaded(folder, call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--port", "--grpc-port"):
            answer = call("serve", folder / "rows.onnx", "--port", 0, option, port)
            assert answer.code == 2
            assert f"error: port {port} of '127.0.0.1' cannot be had" in answer.err
            assert "loading" not in answer.err


def test_what_cannot_be_served_is_an_error(folder, call, monkeypatch):
    monkeypatch.chdir(folder)
    for arguments, words in (
        ((), "there is nothing to serve"),
        (("nowhere.onnx",), "there is no file 'nowhere.onnx'"),
        (("rows.onnx", "rows=texts.onnx"), "two models have the name 'rows'"),
        (("rows.onnx", "--wait", "3"), "--wait is how long"),
        (("rows.onnx", "--bind", "no such host"), "there is no interface 'no such host'"),
        (("--repository", "nowhere"), "the folder 'nowhere' cannot be read"),
        (("-",), "a model cannot be read from standard input"),
    ):
        answer = call("serve", *arguments, "--port", 0, "--dry-run", "--json")
        assert answer.code == 2, arguments
        assert words in answer.err
        assert words in answer.json["error"]["message"]


def test_a_package_that_is_missing_is_named_with_its_extra(folder, call, monkeypatch):
    monkeypatch.setattr("intarsia.serving.extras.find_spec", lambda name: None)
    answer = call("serve", folder / "rows.onnx", "--dry-run")
    assert answer.code == 3
    assert "needs the package starlette" in answer.err
    assert "pip install 'intarsia[serve]'" in answer.err


def test_a_dry_run_says_what_would_be_served(folder, call, package_of_strangers):
    before = queue_threads()
    answer = call(
        *("serve", folder / "rows.onnx", "-t", "onnxruntime", "--port", 0),
        *("--repository", folder, "--batch", "4", "--dry-run", "--json"),
    )
    assert answer.code == 0, answer.err
    (rows,) = (one for one in answer.json["models"] if one["index"]["name"] == "rows")
    assert rows["index"]["state"] == "READY"
    assert rows["metadata"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    others = {one["index"]["name"]: one["metadata"] for one in answer.json["models"]}
    assert others["texts"] is None

    options = ("--port", 0, "--dry-run", "--require-signature")
    answer = call("serve", package_of_strangers, *options)
    assert answer.code == 2
    assert "was not written here" in answer.err
    assert call("serve", package_of_strangers, *options[:-1], "--trust").code == 0
    wait_until(lambda: queue_threads() <= before)


@pytest.fixture
def package_of_strangers(tmp_path, chain_model, monkeypatch):
    """A package that another installation wrote."""
    import intarsia

    with monkeypatch.context() as patch:
        patch.setenv("INTARSIA_KEYS_DIR", str(tmp_path / "their_keys"))
        intarsia.compile(chain_model, "onnxruntime").save(tmp_path / "theirs.intarsia")
    return tmp_path / "theirs.intarsia"


def test_messages_are_those_that_public_clients_have():
    """Names, numbers and types of fields, as in the messages of tritonclient."""
    code = (
        "import tritonclient.grpc.service_pb2 as theirs\n"
        "from intarsia.serving import messages\n"
        "def facts(one):\n"
        "    return {f.name: (f.number, f.type, f.is_repeated, f.message_type and "
        "f.message_type.name) for f in one.fields}\n"
        "for name in messages._MESSAGES:\n"
        "    other = theirs.DESCRIPTOR\n"
        "    one = None\n"
        "    for part in name.split('.'):\n"
        "        one = (other.message_types_by_name if one is None else one.nested_types_by_name)"
        "[part]\n"
        "    assert facts(messages.message(name).DESCRIPTOR) == facts(one), name\n"
        "print('equal')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=LONG
    )
    assert done.stdout == "equal\n", done.stderr


def test_a_served_model_has_the_numbers_of_a_loop(folder, by_onnxruntime):
    """What the other tests rely on: the model counts its steps."""
    model = onnx.load(folder / "loops.onnx")
    feeds = {"trip": np.array(7), "x": np.array(0, np.float32)}
    assert by_onnxruntime(model, feeds)["y"] == 7
    assert json_input("x", feeds["x"])["shape"] == []
