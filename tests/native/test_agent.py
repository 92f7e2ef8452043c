# SPDX-License-Identifier: Apache-2.0
"""The agent: regions on another machine run, are timed there, and survive a way that breaks."""

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from intarsia.backends.remote import RemoteClock, RemoteExecutable
from intarsia.errors import BackendError, ExecutionError, LinkError
from intarsia.native.agent import Agent, MachineMemory, agent_sources
from intarsia.process.runner import parse_runner

END = np.int8([4])
EMULATOR, COMPILER = "qemu-aarch64-static", "aarch64-linux-gnu-gcc-12"

REGIONS = r"""
#define _POSIX_C_SOURCE 200112L
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

int32_t scale_call(const void *const *inputs, void *const *outputs)
{
    const float *x = inputs[0], *factor = inputs[1];
    float *y = outputs[0];
    for (int i = 0; i < 1000; ++i)
        y[i] = x[i] * factor[0];
    return 0;
}

int32_t break_call(const void *const *inputs, void *const *outputs)
{
    (void)outputs;
    switch (*(const int8_t *)inputs[0]) {
    case 0:
        return -5;
    case 1:
        abort();
    case 2:
        exit(4);
    case 3:
        return kill(getpid(), SIGKILL);
    default:
        for (volatile int i = 1; i != 0;)
            continue;
    }
    return 0;
}

static float *held;

int32_t hold_call(const void *const *inputs, void *const *outputs)
{
    (void)inputs;
    held = outputs[0];
    for (int i = 0; i < 1000; ++i)
        held[i] = 1;
    return 0;
}

int32_t change_call(const void *const *inputs, void *const *outputs)
{
    (void)outputs;
    for (int i = 0; i < 1000; ++i)
        held[i] = *(const float *)inputs[0];
    return 0;
}
"""


def build(folder, compiler="cc", *options):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    sources = {**agent_sources(("scale", "break", "hold", "change")), "regions.c": REGIONS}
    for name, text in sources.items():
        (folder / name).write_text(text)
    command = [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", *options]
    subprocess.run([*command, *sources, "-o", "program"], cwd=folder, check=True)
    return (folder / "program").read_bytes()


@pytest.fixture(params=["here", "ssh", EMULATOR])
def agent(request, tmp_path):
    if request.param == EMULATOR and shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed")
    if request.param == "ssh":
        runner = request.getfixturevalue("by_ssh")
    else:
        runner = parse_runner(request.param)
    options = (COMPILER, "-static") if request.param == EMULATOR else ()
    agent = Agent(build(tmp_path, *options), runner)
    yield agent
    agent.close()


def test_a_region_runs_on_what_is_sent_and_what_is_kept_and_is_timed_there(agent):
    rng = np.random.default_rng(0)
    x, y = rng.random((10, 100), np.float32), np.empty((10, 100), np.float32)
    factor = agent.keep(np.float32([3]))
    for _ in range(2):
        begin = time.perf_counter()
        done = agent.run(0, [x, factor], [y], rounds=5)
        took = time.perf_counter() - begin
        np.testing.assert_array_equal(y, x * np.float32(3))
        assert done.status == 0
        assert len(done.seconds) == 5
        assert all(seconds > 0 for seconds in done.seconds)
        assert sum(done.seconds) < took
    other = agent.keep(np.float32([-1]))
    agent.run(0, [x, other], [y])
    np.testing.assert_array_equal(y, -x)
    agent.run(0, [x, factor], [4000])  # the result is not wanted
    agent.run(0, [x, factor], [y])
    np.testing.assert_array_equal(y, x * np.float32(3))
    assert agent.starts == 1


def test_what_fails_there_is_one_error_and_the_next_call_starts_anew(agent):
    x, y = np.ones(1000, np.float32), np.empty(1000, np.float32)
    factor = agent.keep(np.float32([2]))
    assert agent.run(1, [np.int8([0])], []).status == -5
    with pytest.raises(ExecutionError, match="was ended by SIGABRT"):
        agent.run(1, [np.int8([1])], [])
    agent.run(0, [x, factor], [y])
    assert y.tolist() == [2.0] * 1000
    with pytest.raises(ExecutionError, match="ended with 4 instead of an answer"):
        agent.run(1, [np.int8([2])], [])
    with pytest.raises(ExecutionError, match=r"ended with 3 .*no memory left for bytes"):
        agent.run(0, [x, factor], [1 << 62])
    with pytest.raises(ExecutionError, match="there is no region 7"):
        agent.run(7, [x], [y])
    with pytest.raises(LinkError, match="was ended by SIGKILL"):  # from outside, as it seems
        agent.run(1, [np.int8([3])], [])
    agent.run(0, [x, factor], [y])
    assert agent.starts == 6


def test_a_region_that_takes_too_long_is_ended_there_and_the_next_call_starts_anew(agent):
    agent.seconds = 0.5
    place = re.escape(agent.runner.place)
    late = rf"region 1 of the agent on {place} took more than 0\.5 s and was ended"
    with pytest.raises(ExecutionError, match=late) as caught:
        agent.run(1, [np.int8([4])], [])
    assert "INTARSIA_CALL_SECONDS" in caught.value.hint
    agent.seconds = 60
    assert agent.run(1, [np.int8([0])], []).status == -5


def test_a_way_that_breaks_costs_one_call(by_ssh, ssh_server, tmp_path):
    region = RemoteExecutable(build(tmp_path), by_ssh, "llvm")
    x, y = np.ones(1000, np.float32), np.empty(1000, np.float32)
    step = region.bind([x, np.float32([2])], [y], None)
    step()
    ssh_server.cut()
    with pytest.raises(LinkError, match=r"on 127\.0\.0\.1"):
        step()
    y.fill(0)
    step()
    assert y.tolist() == [2.0] * 1000


def test_an_agent_ends_itself_when_nobody_asks_any_more(by_ssh, ssh_server, tmp_path):
    agent = Agent(build(tmp_path), by_ssh)
    assert agent.run(1, [np.int8([0])], []).status == -5
    (program,) = Path(by_ssh.parent).glob("intarsia.*/agent")
    calling = threading.Thread(target=pytest.raises, args=(LinkError, agent.run, 1, [END], []))
    calling.start()
    wait_until(lambda: used_seconds(program) > 0.2)  # it is in the region
    ssh_server.cut()
    calling.join()
    wait_until(lambda: used_seconds(program) is None and not program.parent.exists())
    assert agent.run(1, [np.int8([0])], []).status == -5
    agent.close()


def used_seconds(program):
    """Return the CPU time of the process that runs a program; None if there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder.joinpath("exe").readlink()).startswith(str(program)):
                ticks = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
                return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return None


def wait_until(is_so):
    for _ in range(6000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came true")


def test_a_region_that_refuses_names_its_target(tmp_path):
    region = RemoteExecutable(build(tmp_path), parse_runner("here"), "llvm -runner=here", 1)
    with pytest.raises(BackendError, match="on this machine failed with -5") as caught:
        region.bind([np.int8([0])], [], None)()
    assert caught.value.target == "llvm -runner=here"


def test_a_program_that_is_no_agent_is_told(tmp_path):
    with pytest.raises(ExecutionError, match="is not an agent of this version"):
        Agent(b"#!/bin/sh\ncat /dev/zero\n", parse_runner("here")).run(0, [], [])


def test_the_clock_leaves_out_the_way(tmp_path):
    region = RemoteExecutable(build(tmp_path), parse_runner("here"), "llvm")
    assert not RemoteClock([object()])
    clock = RemoteClock([object(), region])
    step = region.bind([np.ones(1000, np.float32), np.float32([2])], [np.empty(1000, "f4")], None)
    begin = clock()
    step()
    took = clock() - begin
    assert took + region.away_seconds() > 0
    assert region.away_seconds() > 0


def test_what_is_left_there_is_read_by_another_program_and_comes_back_only_if_wanted(
    agent, tmp_path
):
    other = Agent(agent._program, agent.runner)
    x, y, z = (np.full(1000, value, np.float32) for value in (1, 0, 0))
    memory = MachineMemory.of(agent.runner)
    assert MachineMemory.of(agent.runner) is memory
    alone, both = memory.tensor(4000), memory.tensor(4000, z)
    factor = agent.keep(np.float32([2]))
    agent.run(0, [x, factor], [alone])
    other.run(0, [alone, np.float32([5])], [both])
    assert z.tolist() == [10.0] * 1000
    agent.run(0, [both, factor], [y])
    assert y.tolist() == [20.0] * 1000
    assert np.frombuffer(alone.read(), np.float32).tolist() == [2.0] * 1000
    assert (agent.carried_tensors, other.carried_tensors) == (2, 2)  # x and y; a factor and z
    memory.forget(b"/elsewhere/0")  # not the folder that is used
    other.run(0, [alone, np.float32([5])], [both])
    memory.forget(memory.path(alone.number))
    with pytest.raises(LinkError, match="not there any more"):
        other.run(0, [alone, np.float32([5])], [both])
    agent.run(0, [x, factor], [alone])  # in a new folder
    other.run(0, [alone, np.float32([-5])], [both])
    assert z.tolist() == [-10.0] * 1000
    folder = Path(os.fsdecode(memory.path(alone.number))).parent
    assert folder.is_dir()
    numbers = {alone.number, both.number}
    del alone, both
    assert memory.tensor(4).number in numbers  # a place is used again
    del memory
    wait_until(lambda: not folder.exists())
    other.close()


def test_programs_there_pass_tensors_by_address(agent):
    other = Agent(agent._program, agent.runner)
    left, y = MachineMemory(agent.runner).tensor(4000), np.empty(1000, np.float32)
    agent.run(2, [], [left])
    for value in (1, 7, -3):
        if value != 1:  # where the region of this program wrote, the other's reads
            agent.run(3, [np.float32([value])], [])
        other.run(0, [left, np.float32([2])], [y])
        assert y.tolist() == [2.0 * value] * 1000
    assert other.starts == agent.starts == 1
    other.close()


def test_what_a_machine_has_no_room_for_travels_until_there_is_room(agent, tmp_path, caplog):
    other = Agent(agent._program, agent.runner)
    x, z = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    memory = MachineMemory(agent.runner)
    alone, both = memory.tensor(4000), memory.tensor(4000, z)
    for tensor in (alone, both):
        Path(os.fsdecode(memory.path(tensor.number))).symlink_to("/dev/full")
    agent.run(0, [x, np.float32([2])], [alone])
    other.run(0, [alone, np.float32([5])], [both])
    assert z.tolist() == [10.0] * 1000
    assert np.frombuffer(alone.read(), np.float32).tolist() == [2.0] * 1000
    assert (agent.carried_tensors, other.carried_tensors) == (3, 3)  # both ways
    (warning,) = caplog.messages
    place = agent.runner.place
    folder = Path(os.fsdecode(memory.path(alone.number))).parent
    assert warning == (
        f"{place} has no place for a tensor of 4000 bytes in {folder} (No space left on device): "
        "it travels with each call"
    )
    agent.run(0, [x, np.float32([3])], [alone])  # what could not be written is gone: room again
    other.run(0, [alone, np.float32([5])], [both])
    assert z.tolist() == [15.0] * 1000
    assert (agent.carried_tensors, other.carried_tensors) == (5, 5)
    other.close()


def test_what_one_program_misses_there_costs_no_other_program_its_tensors(tmp_path):
    agent, other = (Agent(build(tmp_path), parse_runner("here")) for _ in range(2))
    x, y = np.ones(1000, np.float32), np.empty(1000, np.float32)
    memory = MachineMemory(agent.runner)
    mine, theirs = memory.tensor(4000), memory.tensor(4000)
    agent.run(0, [x, np.float32([2])], [mine])
    with pytest.raises(LinkError, match="not there any more"):
        other.run(0, [theirs, np.float32([5])], [y])  # nobody has written it
    agent.run(0, [mine, np.float32([4])], [y])
    assert y.tolist() == [8.0] * 1000
    folder = Path(os.fsdecode(memory.path(mine.number))).parent
    shutil.rmtree(folder)  # as somebody may who tidies up
    agent.run(0, [x, np.float32([3])], [mine])
    assert Path(os.fsdecode(memory.path(mine.number))).parent != folder
    agent.run(0, [mine, np.float32([5])], [y])
    assert y.tolist() == [15.0] * 1000
    agent.run(0, [x, np.float32([-3])], [mine])  # in a new folder, where it stays
    assert mine.carried is None
    agent.close()
    other.close()
