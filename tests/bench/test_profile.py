# SPDX-License-Identifier: Apache-2.0
"""Profiles of kernels: every node is in one, and its work is counted."""

import json

import numpy as np
import pytest

import intarsia
from intarsia import zoo
from intarsia.__main__ import main
from intarsia.bench.profile import profile_kernels, raise_peaks, slowest
from intarsia.cost.peak import Peak
from intarsia.errors import SettingError
from intarsia.graph.load import load
from intarsia.graph.ops import node_flop
from intarsia.passes.prepare import prepare
from intarsia.runtime.feeds import sample_feeds


@pytest.fixture(scope="module")
def model():
    return zoo.build("random:1")


def profile_of(model, target, **options):
    executable = intarsia.compile(model, target, num_threads=1, **options)
    feeds = sample_feeds(executable.inputs)
    return executable, profile_kernels(executable, feeds, threads=1, rounds=2)


def test_every_node_is_in_a_kernel_and_its_work_is_counted(model):
    executable, profile = profile_of(model, "llvm")
    (region,) = executable.placement.regions
    names = {node.name for node in region.nodes}
    covered = [name for row in profile.rows for name in row.nodes]
    assert set(covered) <= names
    convolutions = {node.name for node in region.nodes if node.op_type == "Conv"}
    assert convolutions
    assert convolutions <= set(covered)
    graph = prepare(load(model)).graph
    wanted = sum(node_flop(graph, node.id) for node in graph.nodes if node.op_type == "Conv")
    found = sum(row.flop for row in profile.rows if convolutions & set(row.nodes))
    assert wanted <= found <= 1.2 * wanted  # activations and sums are fused into them


def test_shares_add_up_and_rates_are_of_the_work(model):
    _, profile = profile_of(model, "llvm")
    assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert slowest(profile)[0].seconds == max(row.seconds for row in profile.rows)
    for row in profile.rows:
        assert row.nbytes > 0
        assert row.seconds > 0
        assert " -> " in row.shape or row.kernel == "fill"
        rate = row.flop / row.seconds / profile.peak_flop_per_second
        spared = {"Winograd F(2)": 2.25, "Winograd F(4)": 4}.get(row.note, 1)
        assert row.of_compute == pytest.approx(rate / spared, rel=1e-3)
        assert max(row.of_compute, row.of_memory) <= 1 + 1e-9
        assert 0 <= row.left_seconds < row.seconds
        assert row.bound == ("compute" if row.of_compute >= row.of_memory else "memory")


def test_what_is_not_read_is_not_counted(parse_model):
    model = parse_model("""g (float[50000, 8] x, int64[3] i) => (float[1, 3, 10, 12] y)
        <int64[4] s = {1, 3, 2, 4}, int64[8] p = {0, 0, 4, 4, 0, 0, 4, 4}>
        { a = Gather(x, i) b = Reshape(a, s) y = Pad(b, p) }""")
    _, profile = profile_of(model, "llvm")
    moved = {row.kernel: row.nbytes for row in profile.rows}
    assert moved["gather"] == 2 * 3 * 8 * 4 + 3 * 8
    assert moved["fill"] == (3 * 10 * 12 - 3 * 2 * 4) * 4


def test_other_backends_show_whole_regions_and_copies(parse_model):
    model = parse_model("g (float[2, 8] x) => (float[2, 8] z) { y = Relu(x) z = Neg(y) }")
    _, profile = profile_of(model, "fake -ops=Relu, onnxruntime")
    assert [row.kernel for row in profile.rows] == ["copy", "region", "copy", "region"]
    assert profile.rows[0].nbytes == 64


LOOP = """g (int64 m, float[64] x) => (float[64] y) <bool yes = {1}> {
    h = Exp(x)
    y = Loop(m, yes, h) <body = b (int64 i, bool on, float[64] v) => (bool on, float[64] u) {
        s = ReduceMax(v) low = Less(s, h) one = Squeeze(s)
        cold = Less(one, s) c = Squeeze(cold)
        t = If(c) <
            then_branch = t () => (float[64] a) { a = Tanh(v) },
            else_branch = e () => (float[64] d) { d = Softmax(v) }>
        u = Where(low, t, v) }> }"""


def test_bodies_are_rows_below_their_operator(parse_model):
    """The counts are those of the run: 5 iterations, in each of which the else branch is taken."""
    executable = intarsia.compile(parse_model(LOOP), "llvm, onnxruntime", num_threads=1)
    feeds = {"m": np.array(5), "x": np.linspace(0, 1, 64, dtype=np.float32)}
    profile = profile_kernels(executable, feeds, threads=1, rounds=2)
    by_path = {row.path: row for row in profile.rows}
    assert list(by_path) == sorted(by_path)
    (loop,) = (row for row in profile.rows if row.kernel == "control flow" and len(row.path) == 1)
    body = by_path[*loop.path, "body"]
    assert (body.kernel, body.count, loop.count) == ("body", 5, 1)
    (branch,) = (row for row in profile.rows if row.kernel == "control flow" and len(row.path) == 3)
    assert branch.count == 5
    counts = {row.path[-2]: row.count for row in profile.rows if len(row.path) == 5}
    assert counts == {"then_branch": 0, "else_branch": 5}
    inside = [row for row in profile.rows if row.path[:-1] == body.path]
    assert {row.count for row in inside} == {5}
    assert sum(row.seconds for row in inside) == pytest.approx(body.inner_seconds)
    assert loop.seconds >= body.seconds >= body.inner_seconds > 0
    top = [row for row in profile.rows if len(row.path) == 1]
    assert sum(row.share for row in top) == pytest.approx(1)
    assert sum(row.own_seconds for row in profile.rows) == pytest.approx(
        sum(row.seconds for row in top), rel=1e-6
    )
    ordered = slowest(profile)
    assert ordered[ordered.index(loop) + 1] is body  # what is inside of a row follows it


def test_no_round_is_an_error(model):
    executable = intarsia.compile(model, "llvm", num_threads=1)
    with pytest.raises(SettingError, match="0 rounds"):
        profile_kernels(executable, sample_feeds(executable.inputs), threads=1, rounds=0)


def test_the_command_prints_kernels(tmp_path, model, capsys):
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    arguments = ["bench", str(path), "-t", "llvm", "--threads", "1", "--rounds", "2", "--profile"]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rows"][0]["kernel"]
    assert answer["peak_flop_per_second"] > 0
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "GFLOP/s of multiply-adds" in out
    assert "in sum" in out


@pytest.mark.parametrize("nbytes", [100, 10_000])
def test_no_part_of_a_peak_is_more_than_all_of_it(nbytes):
    """Where what measures the peak was disturbed, calls have reached more than it."""
    machine = Peak({"float32": 1e9}, 1e9, 2e9, cache_bytes=1000)
    work = [(500, nbytes, 1e-7), (10, nbytes, 1e-9), (0, 0, 1.0)]
    raised, flop_per_second = raise_peaks(machine, 1e9, work)
    for flop, moved, seconds in work:
        assert flop / seconds <= flop_per_second
        assert moved / seconds <= raised.bandwidth(moved)
    assert flop_per_second == pytest.approx(1e10)
    assert raised.flop_per_second == machine.flop_per_second


def test_peaks_that_nothing_reaches_stay():
    machine = Peak({"float32": 1e9}, 1e9, 2e9, cache_bytes=1000)
    assert raise_peaks(machine, 1e9, [(10, 100, 1.0)]) == (machine, 1e9)
