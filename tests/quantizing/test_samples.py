# SPDX-License-Identifier: Apache-2.0
"""How samples are read, cut into runs, and divided."""

import numpy as np
import pytest

from intarsia.errors import InputError
from intarsia.graph.load import load, read_signature
from intarsia.quantizing.samples import divide, make_samples, read_samples

FIXED = "net (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
BATCH = "net (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"
INNER = "net (float[N,S] x, float[S] z) => (float[N,S] y) { y = Add(x, z) }"


@pytest.fixture
def signature(parse_model):
    """A function from the text of a model to what it takes."""
    return lambda text: read_signature(load(parse_model(text), stays_free=True), {})


def drawn(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_a_fixed_batch_is_cut_into_runs_of_its_size(signature):
    values = drawn(6, 3)
    runs = read_samples({"x": values}, signature(FIXED))
    assert [run["x"].tolist() for run in runs] == [values[i : i + 2].tolist() for i in (0, 2, 4)]


def test_a_free_batch_is_cut_into_runs_of_one(signature):
    runs = read_samples({"x": drawn(5, 3)}, signature(BATCH))
    assert [run["x"].shape for run in runs] == [(1, 3)] * 5


def test_an_axis_in_front_counts_samples_of_any_input(signature):
    runs = read_samples({"x": drawn(4, 1, 7), "z": drawn(4, 7)}, signature(INNER))
    assert [(run["x"].shape, run["z"].shape) for run in runs] == [((1, 7), (7,))] * 4
    runs = read_samples({"x": drawn(4, 7), "z": drawn(4, 7)}, signature(INNER))
    assert len(runs) == 4


def test_files_of_a_folder_go_by_name_and_may_differ_in_length(signature, tmp_path):
    for name, length in (("b", 9), ("a", 5)):
        np.savez(tmp_path / f"{name}.npz", x=drawn(2, length), z=drawn(2, length))
    runs = read_samples(tmp_path, signature(INNER))
    assert [run["z"].shape for run in runs] == [(5,), (5,), (9,), (9,)]
    runs = read_samples([tmp_path / "b.npz", str(tmp_path / "a.npz")], signature(INNER))
    assert [run["z"].shape for run in runs] == [(9,), (9,), (5,), (5,)]


@pytest.mark.parametrize(
    ("text", "arrays", "message"),
    [
        (FIXED, {"x": drawn(5, 3)}, r"shape \[5, 3\], and one run wants \[2,3\]"),
        (FIXED, {"x": drawn(2, 4)}, r"4"),
        (FIXED, {"x": drawn(2, 3).astype(np.float64)}, "is float64, the model wants float32"),
        (FIXED, {"y": drawn(2, 3)}, "unknown input 'y'; input 'x' is missing"),
        (FIXED, {"x": drawn(0, 3)}, "there are no samples"),
        (INNER, {"x": drawn(2, 4), "z": drawn(3, 4)}, "2 of 'x', 3 of 'z'"),
        (INNER, {"x": drawn(2, 4), "z": drawn(2, 5)}, "dimension 'S' is 4"),
        (INNER, {"x": drawn(4, 4), "z": drawn(4)}, r"'z' has shape \[4\]"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(text, arrays, message, signature):
    with pytest.raises(InputError, match=message):
        read_samples(arrays, signature(text))


def test_what_is_no_file_of_arrays_is_refused(signature, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("text")
    np.save(tmp_path / "one.npy", drawn(2, 3))
    for name, message in (
        ("empty", "there is no .npz file in"),
        ("text.npz", "is not a .npz file of plain arrays"),
        ("one.npy", "is not a .npz file of plain arrays"),
        ("missing.npz", "there is no file"),
    ):
        with pytest.raises(InputError, match=message):
            read_samples(tmp_path / name, signature(FIXED))


@pytest.mark.parametrize(("count", "held_out"), [(1, 0), (3, 0), (4, 1), (9, 2), (12, 3)])
def test_every_fourth_sample_is_held_out(count, held_out):
    divided = divide([{"x": np.full(1, i)} for i in range(count)])
    assert divided.is_held_out is bool(held_out)
    trial = [int(run["x"][0]) for run in divided.trial]
    assert trial == (list(range(3, count, 4)) if held_out else list(range(count)))
    assert len(divided.calibration) == count - held_out


def test_samples_have_one_hash_and_others_have_another(signature):
    made = [divide(make_samples(signature(BATCH), seed, 5)).digest() for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
