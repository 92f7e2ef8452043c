# SPDX-License-Identifier: Apache-2.0
"""Requests wait in turn, run together where that was asked for, and end in time."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.serving.conftest import answer_of, json_input

import intarsia
from intarsia.errors import ExecutionError, InputError
from intarsia.serving.batching import BatchRule, limit_batch
from intarsia.serving.queue import MOST_LEFT

LONG = 600.0
"""Seconds that nothing here takes."""


def queue_threads():
    """The threads that run requests to the model `rows`, of all servers."""
    return {one for one in threading.enumerate() if one.name == "intarsia-serve-rows"}


class Gate:
    """Stands before a program of one free dimension, which runs when it is told to."""

    def __init__(self, program):
        self.program, self._run = program, program.run_until
        program.run_until = self.run_until
        self.open, self.begun = threading.Event(), threading.Semaphore(0)
        self.rows = []
        self.failing = ()

    def run_until(self, feeds, is_over):
        self.rows.append(len(feeds["x"]))
        self.begun.release()
        assert self.open.wait(LONG)
        if any(value in feeds["x"] for value in self.failing):
            raise InputError("a row is wrong")
        return self._run(feeds, is_over)


def body_of(array, **parameters):
    return {"inputs": [json_input("x", array)], "parameters": parameters}


@pytest.fixture
def gated(start, rows_model):
    """A function from limits to a server of one model, and the gate before it."""
    gates = []

    def make(**limits):
        def open_program(path):
            gate = Gate(intarsia.compile(path, "onnxruntime"))
            gates.append(gate)
            return gate.program

        server = start({"rows": rows_model}, open_program=open_program, **limits)
        return server, gates[-1]

    yield make
    for gate in gates:
        gate.open.set()


def ask_together(server, arrays):
    """Return the answers to requests that are all under way at once."""
    with ThreadPoolExecutor(len(arrays)) as pool:
        asked = [pool.submit(server.infer, "rows", body_of(array)) for array in arrays]
        return [one.result(LONG) for one in asked]


def ask_while_one_runs(server, gate, arrays, before):
    """Return the answers to requests of which the first runs while the others wait.

    Args:
        server: Who is asked.
        gate: Before its model; it is opened.
        arrays: What is asked.
        before: Called when all others wait.
    """
    with ThreadPoolExecutor(len(arrays)) as pool:
        asked = [pool.submit(server.infer, "rows", body_of(arrays[0]))]
        try:
            assert gate.begun.acquire(timeout=LONG)
            asked += [pool.submit(server.infer, "rows", body_of(array)) for array in arrays[1:]]
            waiting = len(arrays) - 1
            wait_until(lambda: server.count("intarsia_waiting_requests", model="rows") == waiting)
            before()
        finally:
            gate.open.set()
        return [one.result(LONG) for one in asked]


def wait_until(tell):
    """Return when something is so; other threads see to that."""
    for _ in range(int(LONG / 0.005)):
        if tell():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never came")


def hang(server):
    """Ask what nobody waits for any more once it runs: its thread hangs until the gate opens."""
    before = server.count("intarsia_hung_runs", model="rows")
    answers = []
    body = body_of(np.ones((1, 3), np.float32), timeout=50_000)

    def is_hung():  # one that no thread took in time has left the queue
        answers.append(server.infer("rows", body))
        return server.count("intarsia_hung_runs", model="rows") > before

    wait_until(is_hung)
    return answers


def draw(count):
    drawn = np.random.default_rng(5)
    return [drawn.standard_normal((1 + i % 3, 3)).astype(np.float32) for i in range(count)]


def test_clients_at_once_get_their_own_numbers(start, rows_model, by_onnxruntime):
    server = start({"rows": rows_model}, workers=2)
    arrays = draw(12)
    for array, answer in zip(arrays, ask_together(server, arrays), strict=True):
        assert answer.status_code == 200, answer.text
        wanted = by_onnxruntime(rows_model, {"x": array})["y"]
        found = np.reshape(answer_of(answer)[1]["y"], wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_requests_that_wait_are_run_together_with_equal_numbers(start, rows_model, by_onnxruntime):
    """The first request fills no batch, and waits for the others: one run for all of them."""
    arrays = draw(6)
    rows = sum(map(len, arrays))
    server = start({"rows": rows_model}, batch=BatchRule(rows, LONG), queue=16)
    for array, answer in zip(arrays, ask_together(server, arrays), strict=True):
        assert answer.status_code == 200, answer.text
        wanted = by_onnxruntime(rows_model, {"x": array})["y"]
        found = np.reshape(answer_of(answer)[1]["y"], wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert server.count("intarsia_run_seconds_count", model="rows") == 1
    assert server.count("intarsia_run_requests_sum", model="rows") == len(arrays)


def test_what_waits_while_a_run_is_under_way_is_the_next_run(gated):
    server, gate = gated(batch=BatchRule(4, 0.0))
    arrays = [np.ones((1, 3), np.float32)] * 6
    answers = ask_while_one_runs(server, gate, arrays, lambda: None)
    assert all(one.status_code == 200 for one in answers)
    assert gate.rows == [1, 4, 1]


def test_a_wrong_row_is_only_its_own_requests_fault(gated):
    server, gate = gated(batch=BatchRule(4, LONG))
    gate.failing = (7.0,)
    gate.open.set()
    arrays = [np.full((1, 3), value, np.float32) for value in (1, 7, 2, 3)]
    answers = ask_together(server, arrays)
    assert [one.status_code for one in answers] == [200, 400, 200, 200]
    assert answers[1].json() == {"error": "a row is wrong"}
    assert gate.rows[0] == 4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("m (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }", "no free dimension"),
        ("m (float[2, n] x) => (float[2, n] y) { y = Relu(x) }", "is not free"),
        ("m (float[n, n] x) => (float[n, n] y) { y = Relu(x) }", "in other dimensions too"),
        (
            "m (float[n, 3] x) => (float[3, n] y) { y = Transpose(x) }",
            "output 'y' has no first dimension 'n'",
        ),
        (
            "m (float[n, 3] x) => (float[n, 3] y) { y = Softmax<axis = 0>(x) }",
            "other numbers together than alone",
        ),
    ],
)
def test_a_model_whose_rows_belong_together_is_not_batched(tmp_path, parse_model, text, reason):
    program = intarsia.compile(parse_model(text), "onnxruntime")
    assert reason in limit_batch(program, BatchRule(8, 0.0))


def test_a_batch_is_no_larger_than_a_bound(parse_model, rows_model):
    program = intarsia.compile(rows_model, "onnxruntime", shapes={"n": "1..4"})
    assert limit_batch(program, BatchRule(8, 0.0)) == BatchRule(4, 0.0)


def test_more_requests_than_may_wait_are_refused(gated):
    server, gate = gated(queue=2)
    arrays = [np.ones((1, 3), np.float32)] * 3
    refused = []

    def ask():
        refused.append(server.infer("rows", body_of(arrays[0])))

    answers = ask_while_one_runs(server, gate, arrays, ask)
    assert all(one.status_code == 200 for one in answers)
    assert refused[0].status_code == 429
    assert "2 requests wait for model 'rows'" in refused[0].json()["error"]


def test_a_request_that_takes_too_long_is_told_so_and_others_go_on(gated):
    server, gate = gated(queue=16)
    for _ in range(MOST_LEFT):  # each keeps its thread, and another one takes its place
        for answer in hang(server):
            assert answer.status_code == 504
            assert "longer than 0.05 s" in answer.json()["error"]
    gate.open.set()
    assert server.infer("rows", body_of(np.ones((1, 3), np.float32))).status_code == 200
    assert server.count("intarsia_waiting_requests", model="rows") == 0


def test_when_all_threads_hang_requests_are_refused_until_one_comes_back(gated):
    before = set(threading.enumerate())
    server, gate = gated(queue=16, workers=2)
    plain = body_of(np.ones((1, 3), np.float32))

    def hung():
        return server.count("intarsia_hung_runs", model="rows")

    for _ in range(MOST_LEFT + 1):
        assert {answer.status_code for answer in hang(server)} == {504}
    assert hung() == MOST_LEFT + 1
    wait_until(lambda: len(gate.rows) == MOST_LEFT + 1)
    queue = server.service.repository.find("rows").queue
    last = queue.put({"x": np.ones((1, 3), np.float32)})
    wait_until(lambda: len(gate.rows) == MOST_LEFT + 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.infer, "rows", plain)  # behind the last thread that works
        wait_until(lambda: server.count("intarsia_waiting_requests", model="rows") == 1)
        queue.leave(last)
        told = waiting.result(LONG)
    for answer in (told, server.infer("rows", plain)):
        assert answer.status_code == 503
        assert f"all threads of model 'rows' hang: {MOST_LEFT + 2}" in answer.json()["error"]
    assert server.client.get("/v2/models/rows/ready").status_code == 503
    assert server.count("intarsia_waiting_requests", model="rows") == 0
    gate.open.set()
    wait_until(lambda: hung() == 0)
    arrays = [np.ones((1, 3), np.float32)] * 4
    assert [one.status_code for one in ask_together(server, arrays)] == [200] * 4
    assert server.client.get("/v2/models/rows/ready").status_code == 200
    # No more than there were at first, once those that ended are gone.
    wait_until(lambda: len(queue_threads() - before) == 2)


def test_the_servers_own_limit_holds_for_every_request(gated):
    server, gate = gated(timeout=0.05)
    answer = server.infer("rows", body_of(np.ones((1, 3), np.float32), timeout=10**12))
    assert answer.status_code == 504
    gate.open.set()


def test_a_request_that_nobody_waits_for_is_not_run(gated):
    server, gate = gated()
    first = threading.Thread(
        target=server.infer, args=("rows", body_of(np.ones((1, 3), np.float32)))
    )
    first.start()
    assert gate.begun.acquire(timeout=LONG)
    late = body_of(np.ones((2, 3), np.float32), timeout=20_000)
    assert server.infer("rows", late).status_code == 504  # it has waited, and never began
    gate.open.set()
    first.join(LONG)
    assert server.service.repository.close(time.monotonic() + LONG)
    assert gate.rows == [1]


@pytest.mark.mistakes
def test_a_backend_that_fails_is_an_error_of_the_server(start, rows_model):
    class Broken(Gate):
        def run_until(self, feeds, is_over):
            del feeds, is_over
            if self.failing:
                raise ExecutionError("the library fell over", hint="start it again")
            raise RuntimeError("secret path")

    made = []

    def open_program(path):
        made.append(Broken(intarsia.compile(path, "onnxruntime")))
        return made[-1].program

    server = start({"rows": rows_model}, open_program=open_program)
    answer = server.infer("rows", body_of(np.ones((1, 3), np.float32)))
    assert (answer.status_code, answer.json()) == (500, {"error": "internal error: RuntimeError"})
    made[0].failing = (0,)
    answer = server.infer("rows", body_of(np.ones((1, 3), np.float32)))
    assert answer.status_code == 500
    assert json.loads(answer.content)["error"] == "the library fell over (start it again)"


def test_a_request_whose_client_has_gone_leaves_the_queue(gated):
    server, gate = gated()
    told = [
        {"type": "http.request", "body": json.dumps(body_of(np.ones((1, 3), np.float32))).encode()},
        {"type": "http.disconnect"},
    ]
    answered = []

    async def receive():
        if len(told) == 1:
            await asyncio.to_thread(
                gate.begun.acquire, timeout=LONG
            )  # it goes while the model runs
        return told.pop(0)

    async def send(message):
        answered.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v2/models/rows/infer",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    asyncio.run(server.client.app(scope, receive, send))
    assert answered[0]["status"] == 499
    gate.open.set()
    assert server.infer("rows", body_of(np.ones((1, 3), np.float32))).status_code == 200
    assert server.count("intarsia_waiting_requests", model="rows") == 0
