# SPDX-License-Identifier: Apache-2.0
"""Tuners in processes of their own: killed in the middle, and two on one database."""

import signal
import subprocess
import sys

import pytest

import intarsia
from intarsia.cost.database import CostDatabase

TARGET = [
    "fake:0 -cost=Relu:1e-3,*:2e-3 -call-cost=1e-5",
    "fake:1 -cost=Relu:2e-3,*:1e-3 -call-cost=1e-5",
]

TEXT = """
g (float[2,8] x) => (float[2,8] y) {
    a = Relu(x)
    b = Abs(a)
    y = Relu(b)
}
"""

CODE = """
import os, signal, sys
import intarsia
from intarsia.cost.database import CostDatabase

def write_and_die(*arguments, **options):
    write(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

write = CostDatabase.add_all
if sys.argv[1] == "killed":
    CostDatabase.add_all = write_and_die
exe = intarsia.tune(sys.argv[2], sys.argv[4:], costs=sys.argv[3], num_threads=1)
print([(region.target, len(region.nodes)) for region in exe.placement.regions])
"""


@pytest.fixture
def start(tmp_path, parse_model):
    """A function that starts a tuner in a process of its own."""
    model = tmp_path / "m.onnx"
    model.write_bytes(parse_model(TEXT).SerializeToString())
    running = []

    def begin(fate="alive"):
        arguments = [fate, str(model), str(tmp_path / "costs.sqlite"), *TARGET]
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def _sample_count(costs):
    import sqlalchemy as sa

    from intarsia.cost import tables

    with (
        CostDatabase.open(str(costs), create=False) as database,
        database.store.read() as connection,
    ):
        return len(connection.execute(sa.select(tables.samples)).all())


@pytest.mark.exhaustive
def test_a_killed_tuner_leaves_what_it_measured(start, tmp_path):
    costs = tmp_path / "costs.sqlite"
    process = start("killed")
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    before = _sample_count(costs)
    assert before > 0
    exe = intarsia.tune(tmp_path / "m.onnx", TARGET, costs=str(costs), num_threads=1)
    assert exe.explain().tuning.known >= 1
    assert len(exe.placement.regions) == 3
    assert _sample_count(costs) >= before


@pytest.mark.exhaustive
def test_two_tuners_share_a_database(start, tmp_path):
    processes = [start(), start()]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][0].count("fake") == 3
