# SPDX-License-Identifier: Apache-2.0
"""TensorScatter in native code, against the ONNX reference evaluator."""

import numpy as np
import onnx.parser
import pytest

import intarsia
from intarsia.backends.evaluator import make_evaluator
from intarsia.errors import InputError

CACHES = {
    "float[2,3,8,5] past, float[2,3,2,5] new": "",
    "int64[2,8,5] past, int64[2,3,5] new": "",
    "float[2,8,3,4] past, float[2,1,3,4] new": "<axis = 1>",
    "double[2,3,8] past, double[2,3,8] new": "<axis = -1>",
}


def model_of(inputs, attributes, write="int64[2] write"):
    whole = inputs.partition(" past")[0]
    given = "past, new, write" if write else "past, new"
    return onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g ({inputs}{", " if write else ""}{write})'
        f" => ({whole} y) {{ y = TensorScatter{attributes}({given}) }}"
    )


def feeds_of(model):
    rng = np.random.default_rng(0)
    kinds = {1: np.float32, 7: np.int64, 11: np.float64}
    feeds = {}
    for value in model.graph.input[:2]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = (9 * rng.standard_normal(shape)).astype(
            kinds[value.type.tensor_type.elem_type]
        )
    return feeds


def rows_of(feeds):
    """How many more entries fit behind the new ones."""
    return max(a - b for a, b in zip(feeds["past"].shape, feeds["new"].shape, strict=True))


@pytest.mark.parametrize("inputs", CACHES)
def test_new_entries_go_where_indices_say(backends, inputs):
    model = model_of(inputs, CACHES[inputs])
    feeds = feeds_of(model)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    for write in ([0, 0], [0, rows_of(feeds)], [rows_of(feeds), 0]):
        given = {**feeds, "write": np.array(write, np.int64)}
        (wanted,) = make_evaluator(model).run(None, given)
        np.testing.assert_array_equal(exe.run(given)["y"], wanted)


def test_without_indices_they_go_to_the_front(backends):
    model = model_of(next(iter(CACHES)), "", write="")
    feeds = feeds_of(model)
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    (wanted,) = make_evaluator(model).run(None, feeds)
    np.testing.assert_array_equal(exe.run(feeds)["y"], wanted)


@pytest.mark.parametrize("write", [[0, 7], [-1, 0]])
def test_what_does_not_fit_is_an_error(backends, write):
    model = model_of(next(iter(CACHES)), "")
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    with pytest.raises(InputError, match="write"):
        exe.run({**feeds_of(model), "write": np.array(write, np.int64)})


def test_any_batch_has_one_program(backends):
    inputs = "float[b,3,8,5] past, float[b,3,1,5] new"
    model = model_of(inputs, "", write="int64[b] write")
    exe = intarsia.compile(model, "llvm", num_threads=1, backends=backends)
    rng = np.random.default_rng(1)
    for batch in (1, 4):
        feeds = {
            "past": rng.standard_normal((batch, 3, 8, 5)).astype("f4"),
            "new": rng.standard_normal((batch, 3, 1, 5)).astype("f4"),
            "write": rng.integers(0, 8, batch),
        }
        (wanted,) = make_evaluator(model).run(None, feeds)
        np.testing.assert_array_equal(exe.run(feeds)["y"], wanted)


def test_a_cache_that_wraps_around_is_refused(backends):
    model = model_of(next(iter(CACHES)), '<mode = "circular">')
    exe = intarsia.compile(model, "llvm, reference", num_threads=1, backends=backends)
    (refusal,) = exe.placement.refusals
    assert "goes on at the front" in refusal.reason
