# SPDX-License-Identifier: Apache-2.0
"""Decoders as Optimum and ONNX Runtime GenAI export them, step by step against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import intarsia
import intarsia.session
from intarsia.errors import InputError
from intarsia.runtime.recorder import RunRecorder
from intarsia.zoo import decoders
from intarsia.zoo.transformers import Llama

SIZE = Llama(layers=2, width=64, hidden=96, heads=4, key_heads=2, words=96)
LAYOUTS = {"optimum": decoders.optimum, "genai": decoders.genai}
CACHES = [f"{layer}.{kind}" for layer in range(SIZE.layers) for kind in ("key", "value")]
PROMPT, TOKENS, ROOM = 7, 32, 48


@pytest.fixture(scope="module", params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture(scope="module")
def models():
    return {name: build(SIZE, np.random.default_rng(0)) for name, build in LAYOUTS.items()}


@pytest.fixture(scope="module")
def sessions(models):
    return {
        name: intarsia.InferenceSession(model, targets="llvm") for name, model in models.items()
    }


@pytest.fixture(scope="module")
def programs(sessions):
    return {name: session.executable for name, session in sessions.items()}


def peer_of(model):
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def prompt(batch=1, length=PROMPT):
    return np.random.default_rng(1).integers(0, SIZE.words, (batch, length))


def empty_cache(batch=1, room=0):
    shape = (batch, SIZE.key_heads, room, SIZE.head)
    return {name: np.zeros(shape, np.float32) for name in CACHES}


def feeds_of(layout, ids, done, cache):
    batch, new = ids.shape
    feeds = {"input_ids": ids, "attention_mask": np.ones((batch, done + new), np.int64)}
    if layout == "optimum":
        feeds["position_ids"] = np.tile(np.arange(done, done + new), (batch, 1))
    return {**feeds, **{f"past_key_values.{name}": array for name, array in cache.items()}}


def steps(layout, run, batch=1, room=0, tokens=TOKENS):
    """Decode greedily; yield what each step returns."""
    ids, done, cache = prompt(batch), 0, empty_cache(batch, room)
    for _ in range(tokens + 1):
        outputs = run(feeds_of(layout, ids, done, cache))
        yield outputs
        done += ids.shape[1]
        cache = {name: outputs[f"present.{name}"] for name in CACHES}
        ids = outputs["logits"][:, -1:].argmax(-1)


def check(layout, model, run, **options):
    peer = peer_of(model)
    names = [one.name for one in peer.get_outputs()]

    def both(feeds):
        want = dict(zip(names, peer.run(None, feeds), strict=True))
        got = run(feeds)
        for name in names:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=2e-5, err_msg=name)
        return want

    return list(steps(layout, both, **options))


def test_a_prompt_and_tokens_of_a_session_are_onnx_runtimes(layout, models, sessions):
    session = sessions[layout]
    assert {arg.name for arg in session.get_inputs()} >= {"input_ids", "attention_mask"}
    names = [arg.name for arg in session.get_outputs()]
    outputs = check(
        layout,
        models[layout],
        lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)),
    )
    assert len(outputs) == TOKENS + 1
    assert outputs[-1]["present.0.key"].shape == (1, 2, PROMPT + TOKENS, SIZE.head)


def test_a_batch_of_prompts(layout, models, programs):
    check(layout, models[layout], programs[layout].run, batch=3, tokens=3)
    assert {region.backend for region in programs[layout].placement.regions} == {"llvm"}


def test_a_buffer_with_room_comes_back_as_long(models, programs):
    """What the model declares of its present is what counts of it, whoever allocates it."""
    outputs = check("genai", models["genai"], programs["genai"].run, room=ROOM, tokens=4)
    assert outputs[-1]["present.1.value"].shape == (1, 2, ROOM, SIZE.head)


def test_a_program_for_some_sizes_is_the_same_to_the_bit(models, programs):
    exe, cache = programs["genai"], empty_cache(room=ROOM)
    feeds = feeds_of("genai", prompt(length=1), 5, cache)
    sizes = {"batch_size": 1, "sequence_length": 1}
    sizes |= {"past_sequence_length": ROOM, "total_sequence_length": 6}
    own, every = exe.specialise(sizes), exe.generic.at(sizes)
    for name, array in own.run(feeds).items():
        np.testing.assert_array_equal(array, every.run(feeds)[name])


def test_lengths_that_come_once_in_a_text_get_no_program_of_their_own(programs):
    exe, cache = programs["genai"], empty_cache(room=ROOM)
    before = [kept.sizes for kept in exe._kept.values() if not kept.is_generic]
    for _ in range(5):  # more often than sizes that settle have to come
        for done in range(TOKENS):
            exe.run(feeds_of("genai", prompt(length=1), done, cache))
    exe._pool.submit(int).result()  # when all is done that was asked of it
    own = [kept.sizes for kept in exe._kept.values() if not kept.is_generic]
    assert all(sizes in before for sizes in own)


def test_both_layouts_compute_the_same(programs):
    runs = [steps(layout, programs[layout].run, tokens=3) for layout in LAYOUTS]
    for first, second in zip(*runs, strict=True):
        np.testing.assert_allclose(first["logits"], second["logits"], rtol=1e-3, atol=1e-4)


def bound_steps(session, module, caches, tokens=TOKENS):
    """Decode as ONNX Runtime GenAI does: past and present are one value; yield what is bound."""
    values = {name: module.OrtValue.ortvalue_from_numpy(array) for name, array in caches.items()}
    ids, done = prompt(), 0
    for _ in range(tokens + 1):
        binding = session.io_binding()
        for name, array in feeds_of("genai", ids, done, {}).items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("logits")
        for name, value in values.items():
            binding.bind_ortvalue_input(f"past_key_values.{name}", value)
            binding.bind_ortvalue_output(f"present.{name}", value)
        session.run_with_iobinding(binding)
        logits = binding.get_outputs()[0].numpy()
        done += ids.shape[1]
        yield binding, done, logits
        ids = logits[:, -1:].argmax(-1)


def kernels_of(context):
    calls = context.calls(RunRecorder(context), by_kernel=True)
    return [kernel.kernel for _, kernel, _ in calls if kernel is not None]


def test_past_and_present_in_one_buffer_are_not_copied(models, sessions):
    """Beyond the block that is read together, whatever lay in the buffer still lies there."""
    room = 800
    theirs, ours = empty_cache(room=room), empty_cache(room=room)
    for array in ours.values():
        array[...] = np.nan
    addresses = {name: array.ctypes.data for name, array in ours.items()}
    session = sessions["genai"]
    pairs = zip(
        bound_steps(peer_of(models["genai"]), onnxruntime, theirs),
        bound_steps(session, intarsia.session, ours),
        strict=True,
    )
    for (_, _, want), (binding, done, got) in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)
        program = session.executable.latest
        assert not program.plan.copies
        inputs, outputs = binding._context.border()
        for name, address in addresses.items():
            names = [program.plan.tensors[i].name for i in program.plan.inputs]
            assert inputs[names.index(f"past_key_values.{name}")].ctypes.data == address
            names = [program.plan.tensors[i].name for i in program.plan.outputs]
            assert outputs[names.index(f"present.{name}")].ctypes.data == address
        kernels = kernels_of(binding._context)
        assert (kernels.count("carry"), kernels.count("append")) == (0, 2 * SIZE.layers)
        for name, array in ours.items():
            np.testing.assert_allclose(
                array[:, :, :done], theirs[name][:, :, :done], rtol=1e-4, atol=2e-5
            )
            assert np.isnan(array[:, :, 384:]).all()


def test_a_past_of_its_own_is_carried_over(programs):
    cache, rest = empty_cache(room=ROOM), empty_cache(room=ROOM)
    feeds = feeds_of("genai", prompt(), 0, cache)
    results = {f"present.{name}": array for name, array in rest.items()}
    context = programs["genai"].context(feeds, results)
    assert kernels_of(context).count("carry") == 2 * SIZE.layers


def test_bound_arrays_may_be_past_and_present(programs):
    exe, cache = programs["genai"], empty_cache(room=ROOM)
    expected = next(steps("genai", exe.run, room=ROOM))
    logits = np.zeros((1, PROMPT, SIZE.words), np.float32)
    results = {f"present.{name}": array for name, array in cache.items()}
    call = exe.bind(feeds_of("genai", prompt(), 0, cache), {**results, "logits": logits})
    call()
    np.testing.assert_array_equal(logits, expected["logits"])
    for name, array in cache.items():
        np.testing.assert_array_equal(array, expected[f"present.{name}"])


@pytest.mark.parametrize("case", ["another past", "a part of it", "a model that joins them"])
def test_other_memory_of_two_tensors_is_refused(programs, case):
    layout = "optimum" if case == "a model that joins them" else "genai"
    ids = prompt(length=1)
    buffers = empty_cache(room=ROOM)
    cache = dict(buffers)
    if layout == "optimum":
        cache = {name: array[:, :, :-1].copy() for name, array in buffers.items()}
        buffers = {"0.key": np.zeros(ROOM * 32, np.float32).reshape(1, 2, ROOM, 16)}
        cache["0.key"] = buffers["0.key"].reshape(-1)[: 32 * (ROOM - 1)].reshape(1, 2, -1, 16)
    elif case == "another past":
        buffers["0.key"] = cache["0.value"]
    else:
        whole = np.zeros(ROOM * 32 + 16, np.float32)
        cache["0.key"] = whole[:-16].reshape(1, 2, ROOM, 16)
        buffers["0.key"] = whole[16:].reshape(1, 2, ROOM, 16)
    done = ROOM - 1 if layout == "optimum" else 5
    results = {f"present.{name}": array for name, array in buffers.items()}
    with pytest.raises(InputError, match=r"'present\.0\.key' and .* the same memory"):
        programs[layout].bind(feeds_of(layout, ids, done, cache), results)


def test_a_package_adds_in_place_too(programs, tmp_path):
    path = tmp_path / "decoder.intarsia"
    programs["genai"].save(path)
    exe, cache = intarsia.load(path), empty_cache(room=ROOM)
    results = {f"present.{name}": array for name, array in cache.items()}
    context = exe.context(feeds_of("genai", prompt(), 0, cache), results)
    assert "carry" not in kernels_of(context)


def test_programs_for_a_prompt_and_a_token_have_one_copy_of_large_weights():
    size = Llama(layers=1, width=512, hidden=512, heads=8, key_heads=8, words=512)
    model = decoders.genai(size, np.random.default_rng(0))
    exe = intarsia.compile(model, "llvm")
    held: dict[int, int] = {}
    sizes = {"batch_size": 1, "past_sequence_length": 64}
    for new, total in ((64, 64), (1, 64)):
        program = exe.specialise({**sizes, "sequence_length": new, "total_sequence_length": total})
        assert program is not exe.generic
        for artifact in (*program.artifacts, *exe.generic.artifacts):
            held |= {one.data.ctypes.data: one.data.nbytes for one in artifact.constants}
    weights = sum(4 * int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
    assert weights <= sum(held.values()) < 1.01 * weights
