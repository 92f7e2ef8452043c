# SPDX-License-Identifier: Apache-2.0
"""Tuning on another machine: its own clock, its own fingerprint, and a way that breaks."""

import contextlib
import sqlite3
import threading

import numpy as np
import onnx
import pytest

import intarsia
from intarsia.cost.fingerprint import machine_of, machines_digest, this_machine
from intarsia.errors import LinkError
from intarsia.process import runner

NET = """<ir_version: 8, opset_import: ["": 17]>
net (float[4, 16] x) => (float[4, 16] y) { a = Relu(x)  y = Softmax(a) }"""


def test_the_fingerprint_of_a_machine_is_what_is_there(by_ssh, ssh_server):
    machine_of.cache_clear()
    assert machine_of(ssh_server.text) == this_machine()  # the way leads back here
    emulated = machine_of("/bin/sh -c x")
    assert emulated.cpu.startswith("/bin/sh -c x on ")
    assert machines_digest(["", "here", ssh_server.text]) == this_machine().digest
    assert machines_digest(["", "/bin/sh -c x"]) not in (this_machine().digest, emulated.digest)
    with pytest.raises(LinkError, match="no 'qemu-none' here"):
        machine_of("qemu-none")


def test_a_machine_that_does_not_answer_at_once_is_asked_again(by_ssh, ssh_server, monkeypatch):
    monkeypatch.setattr(runner, "_NAPS", (0.01, 0.01))
    machine_of.cache_clear()
    by_ssh.disconnect()
    ssh_server.stop()
    asked = []

    def ask():
        asked.append(len(asked))
        if len(asked) == 3:
            ssh_server.start()
        return machines_digest([ssh_server.text])

    try:
        assert runner.insist(ask) == this_machine().digest
        assert len(asked) == 3
        machine_of.cache_clear()
        by_ssh.disconnect()
        ssh_server.stop()
        with pytest.raises(LinkError, match="refused the connection"):
            runner.insist(lambda: machines_digest([ssh_server.text]))
    finally:
        ssh_server.start()


@pytest.mark.exhaustive
def test_a_way_that_breaks_costs_measurements_and_not_the_run(by_ssh, ssh_server, tmp_path):
    target = f"llvm -runner={ssh_server.text}"
    done = threading.Event()

    def cut_again_and_again():
        for _ in range(4):
            if not done.wait(3):
                ssh_server.cut()

    cutting = threading.Thread(target=cut_again_and_again)
    cutting.start()
    try:
        exe = intarsia.tune(
            onnx.parser.parse_model(NET), target, budget=120, costs=str(tmp_path / "c.sqlite")
        )
    finally:
        done.set()
        cutting.join()
    x = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)
    here = intarsia.compile(onnx.parser.parse_model(NET), "onnxruntime")
    np.testing.assert_allclose(exe(x), here(x), rtol=1e-5)
    with contextlib.closing(sqlite3.connect(tmp_path / "c.sqlite")) as connection:
        machines = connection.execute("select distinct machine from intarsia_key").fetchall()
        assert machines == [(this_machine().digest,)]
        assert connection.execute("select count(*) from intarsia_poison").fetchone() == (0,)
        assert connection.execute("select count(*) from intarsia_sample").fetchone() > (0,)
