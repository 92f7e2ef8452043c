# SPDX-License-Identifier: Apache-2.0
"""Caches of `Concat(past, new)` that grow where they lie: same numbers, and nothing copied."""

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia.errors import InputError, ModelError
from intarsia.runtime.overlaps import find_overlaps
from intarsia.session.cached_decoder import CachedDecoder
from intarsia.zoo import decoders
from intarsia.zoo.transformers import Llama

SIZE = Llama(layers=1, width=64, hidden=96, heads=4, key_heads=2, words=61)
HEADS, HEAD = SIZE.key_heads, SIZE.head
ROW_BYTES = HEADS * HEAD * 4


@pytest.fixture(scope="module")
def model():
    return decoders.optimum(SIZE, np.random.default_rng(0))


@pytest.fixture(scope="module")
def peer(model):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


@pytest.fixture
def decoder(model, compiled):
    """One with no history, on a program that is compiled once."""
    made = object.__new__(CachedDecoder)
    made.__dict__ |= compiled.__dict__ | {"copied_bytes": 0, "_rows": {}}
    return made


@pytest.fixture(scope="module")
def compiled(model):
    return CachedDecoder(model, "llvm", num_threads=1)


def feeds_of(ids, done):
    count = ids.shape[1]
    return {
        "input_ids": ids,
        "attention_mask": np.ones((len(ids), done + count), np.int64),
        "position_ids": np.tile(np.arange(done, done + count), (len(ids), 1)),
    }


def empty(batch=1):
    shape = (batch, HEADS, 0, HEAD)
    return {f"past_key_values.0.{kind}": np.zeros(shape, np.float32) for kind in ("key", "value")}


def past_of(outputs):
    return {
        name.replace("present", "past_key_values"): array
        for name, array in outputs.items()
        if name != "logits"
    }


def close(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-5 * np.abs(array).max())


def tokens(count, seed=0, batch=1):
    return np.random.default_rng(seed).integers(0, SIZE.words, (batch, count))


def test_steps_add_their_rows_to_what_is_there(decoder, peer):
    past, theirs, done = empty(), empty(), 0
    starts = set()
    for number, count in enumerate((5, 1, 1, 3, 1)):
        feeds = feeds_of(tokens(count, number), done)
        outputs, wanted = decoder.run(feeds | past), peer(feeds | theirs)
        close(outputs, wanted)
        past, theirs, done = past_of(outputs), past_of(wanted), done + count
        starts.add(outputs["present.0.key"].ctypes.data)
    assert decoder.copied_bytes == 0
    assert len(starts) == 1


def test_another_view_of_a_present_is_used_where_it_lies(decoder, peer):
    outputs = decoder.run(feeds_of(tokens(5), 0) | empty())
    wanted = peer(feeds_of(tokens(5), 0) | empty())
    feeds = feeds_of(tokens(1, 1), 5)
    past = {name: array[:] for name, array in past_of(outputs).items()}
    close(decoder.run(feeds | past), peer(feeds | past_of(wanted)))
    assert decoder.copied_bytes == 0


def test_a_step_calls_no_kernel_that_copies_the_past(decoder):
    """What is bound to one memory has a call less for each cache than what is not."""
    outputs = decoder.run(feeds_of(tokens(5), 0) | empty())
    inputs = feeds_of(tokens(1), 5) | {
        name: np.moveaxis(array, 2, 0) for name, array in past_of(outputs).items()
    }
    rows = {name: held.memory for name, held in decoder._rows.items()}
    program = decoder.executable.program_for(inputs)
    counts = []
    for memory in (rows, {name: array.copy() for name, array in rows.items()}):
        presents = {name: array[:6] for name, array in memory.items()}
        context = program.context(inputs, presents)
        counts.append(len(list(context.calls(lambda *_: None, by_kernel=True))))
    assert counts[1] - counts[0] == len(decoder.caches)


def test_inputs_need_not_be_contiguous(decoder, peer):
    ids = np.asfortranarray(tokens(5, batch=2))
    feeds = feeds_of(ids, 0) | empty(2)
    close(decoder.run(feeds), peer(feeds | {"input_ids": np.ascontiguousarray(ids)}))


def test_rows_of_a_cache_may_be_joined_to_it():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[past,4] past, float[new,4] new) => (float[all,4] present) {
        present = Concat<axis = 0>(past, new)
    }"""
    decoder = CachedDecoder(onnx.parser.parse_model(text), "llvm", num_threads=1)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    held = decoder.run({"past": rows[:0], "new": rows})["present"]
    found = decoder.run({"past": held, "new": held[1:]})["present"]
    np.testing.assert_array_equal(found, np.concatenate([rows, rows[1:]]))


def test_a_past_that_is_an_output_too_is_no_cache():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[past,4] past, float[new,4] new) => (float[all,4] present, float[past,4] past) {
        present = Concat<axis = 0>(past, new)
    }"""
    with pytest.raises(ModelError, match="cache"):
        CachedDecoder(onnx.parser.parse_model(text), "llvm")


def test_memory_doubles_when_there_is_no_room(decoder, peer):
    first = feeds_of(tokens(60), 0)
    outputs, wanted = decoder.run(first | empty()), peer(first | empty())
    for done in range(60, 70):
        feeds = feeds_of(tokens(1, done), done)
        outputs, wanted = decoder.run(feeds | past_of(outputs)), peer(feeds | past_of(wanted))
    close(outputs, wanted)
    assert decoder.copied_bytes == 2 * 64 * ROW_BYTES  # once, when both were full
    assert len(decoder._rows["present.0.key"].memory) == 130


def test_an_array_of_the_callers_own_is_copied_once(decoder, peer):
    feeds = feeds_of(tokens(7), 0)
    wanted = peer(feeds | empty())
    own = past_of(wanted)
    outputs = wanted
    for done in range(7, 10):
        feeds = feeds_of(tokens(1, done), done)
        outputs, wanted = decoder.run(feeds | past_of(outputs)), peer(feeds | past_of(wanted))
        close(outputs, wanted)
        assert decoder.copied_bytes == 2 * 7 * ROW_BYTES
    np.testing.assert_array_equal(own["past_key_values.0.key"], outputs["present.0.key"][:, :, :7])


def test_an_older_present_begins_another_text_and_arrays_stay_as_they_were(decoder, peer):
    start = feeds_of(tokens(4), 0)
    outputs, wanted = decoder.run(start | empty()), peer(start | empty())
    found = []
    for seed in (1, 2):  # both go on from the same four tokens
        feeds = feeds_of(tokens(1, seed), 4)
        one, other = decoder.run(feeds | past_of(outputs)), peer(feeds | past_of(wanted))
        close(one, other)
        found.append((one, {name: array.copy() for name, array in one.items()}))
    assert decoder.copied_bytes == 2 * 4 * ROW_BYTES
    for one, kept in found:
        for name, array in kept.items():
            np.testing.assert_array_equal(one[name], array)


def test_another_batch_is_another_cache(decoder, peer):
    decoder.run(feeds_of(tokens(4), 0) | empty())
    feeds = feeds_of(tokens(3, batch=2), 0)
    outputs, wanted = decoder.run(feeds | empty(2)), peer(feeds | empty(2))
    close(outputs, wanted)
    feeds = feeds_of(tokens(1, batch=2), 3)
    close(decoder.run(feeds | past_of(outputs)), peer(feeds | past_of(wanted)))


def test_what_is_wrong_is_said(decoder):
    feeds = feeds_of(tokens(2), 0)
    with pytest.raises(InputError, match=r"no array is given for 'past_key_values\.0\.key'"):
        decoder.run(feeds)
    flat = {name: np.zeros(3, np.float32) for name in empty()}
    with pytest.raises(InputError, match="too few"):
        decoder.run(feeds | flat)
    with pytest.raises(InputError, match="input_idz"):
        decoder.run(feeds | empty() | {"input_idz": feeds["input_ids"]})


def test_a_model_without_such_a_cache_is_refused():
    text = '<ir_version: 9, opset_import: ["" : 20]> m (float[2] x) => (float[2] y) { y = Relu(x) }'
    with pytest.raises(ModelError, match="no cache that grows"):
        CachedDecoder(onnx.parser.parse_model(text), "llvm")


def test_caches_of_other_backends_are_right_and_count_as_copied(model, peer):
    decoder = CachedDecoder(model, "onnxruntime", num_threads=1)
    feeds = feeds_of(tokens(5), 0)
    outputs, wanted = decoder.run(feeds | empty()), peer(feeds | empty())
    for done in (5, 6):
        feeds = feeds_of(tokens(1, done), done)
        outputs, wanted = decoder.run(feeds | past_of(outputs)), peer(feeds | past_of(wanted))
        close(outputs, wanted)
    assert decoder.copied_bytes == 2 * (5 + 6) * ROW_BYTES


def test_memory_that_begins_alike_is_told():
    memory = np.zeros((8, 2, 3), np.float32)
    (same,) = find_overlaps({"past": memory[:4], "present": memory[:5]})
    assert same == ("past", "present", True)
    (apart,) = find_overlaps({"past": memory[1:4], "present": memory[:5]})
    assert apart == ("past", "present", False)
    (other,) = find_overlaps({"past": memory[:4].reshape(4, 6), "present": memory[:5]})
    assert not other[2]


def test_it_has_a_name_in_the_package():
    assert intarsia.CachedDecoder is CachedDecoder
