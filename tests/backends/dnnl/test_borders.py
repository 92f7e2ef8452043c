# SPDX-License-Identifier: Apache-2.0
"""Layouts at a region's border: blocks of channels without a reorder, and the same numbers."""

from dataclasses import replace

import numpy as np
import pytest

from intarsia.backends.device import HostDevice, ThreadOptions
from intarsia.backends.dnnl.backend import DnnlBackend
from intarsia.errors import BackendError, PackageError
from intarsia.graph.arena import aligned_bytes
from intarsia.graph.state import blocked_state
from intarsia.settings import Settings


def dnnl():
    """The backend as the environment has it now."""
    return DnnlBackend(Settings.from_environment())


def numbers(count, seed):
    """Return the text of numbers."""
    values = np.random.default_rng(seed).standard_normal(count) * 0.1
    return ",".join(f"{value:.3f}" for value in values)


@pytest.fixture(scope="session")
def block(parse_model):
    """A function from a batch and channels to a residual block with two outputs."""

    def make(batch=2, channels=32):
        return parse_model(
            f"""case (float[{batch},{channels},10,9] x)
            => (float[{batch},{channels},10,9] y, float[{batch},32,10,9] z)
            <float[{channels},{channels},3,3] w = {{{numbers(channels**2 * 9, 0)}}},
             float[32,{channels},1,1] v = {{{numbers(32 * channels, 1)}}}> {{
                a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w)
                d = Add(c, x) y = Relu(d) e = Conv(y, v) z = Sigmoid(e) }}"""
        )

    return make


def run(candidate, context, arrays):
    """Compile, load and run a candidate; return the outputs and what was loaded."""
    artifact = dnnl().compile(candidate, context)
    loaded = dnnl().load(artifact, HostDevice(ThreadOptions(1)))
    inputs = []
    for spec, array in zip(artifact.inputs, arrays, strict=True):
        buffer = aligned_bytes(spec.nbytes).view(np.float32).reshape(spec.shape)
        buffer[...] = array.reshape(spec.shape)
        inputs.append(buffer)
    outputs = [
        aligned_bytes(spec.nbytes).view(np.float32).reshape(spec.shape) for spec in artifact.outputs
    ]
    loaded.bind(inputs, outputs, aligned_bytes(loaded.scratch_bytes))()
    return outputs, loaded


def to_blocks(array, size):
    batch, channels, *image = array.shape
    return np.ascontiguousarray(
        array.reshape(batch, channels // size, size, *image).transpose(0, 1, 3, 4, 2)
    )


def from_blocks(array):
    batch, outer, height, width, size = array.shape
    return array.transpose(0, 1, 4, 2, 3).reshape(batch, outer * size, height, width)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_blocked_border_has_no_reorder_and_the_same_numbers(library, block, whole, batch):
    candidate, context = whole(block(batch))
    x = np.random.default_rng(2).standard_normal((batch, 32, 10, 9)).astype(np.float32)
    plain, loaded = run(candidate, context, [x])
    assert sum(not step.nodes for step in loaded.assembly.steps) > 0
    ((inputs, outputs),) = dnnl().states(candidate, context)
    size = library.block
    assert {state.layout for state in (*inputs, *outputs)} == {f"nchw{size}c"}
    wanted = replace(candidate, inputs=inputs, outputs=outputs)
    blocked, loaded = run(wanted, context, [to_blocks(x, size)])
    assert [array.shape for array in blocked] == [(batch, 32 // size, 10, 9, size)] * 2
    assert all(step.nodes for step in loaded.assembly.steps)  # a reorder computes no node
    for actual, expected in zip(blocked, plain, strict=True):
        np.testing.assert_allclose(from_blocks(actual), expected, rtol=1e-5, atol=1e-5)


def test_one_end_alone_may_be_blocked(library, block, whole):
    candidate, context = whole(block())
    x = np.random.default_rng(2).standard_normal((2, 32, 10, 9)).astype(np.float32)
    plain, _ = run(candidate, context, [x])
    size = library.block
    first = blocked_state(candidate.outputs[0], size)
    wanted = replace(candidate, outputs=(first, candidate.outputs[1]))
    mixed, _ = run(wanted, context, [x])
    np.testing.assert_allclose(from_blocks(mixed[0]), plain[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mixed[1], plain[1], rtol=1e-5, atol=1e-5)


def test_what_cannot_be_blocked_is_refused(library, block, whole):
    candidate, context = whole(block(1, 12))
    state = blocked_state(candidate.inputs[0], library.block)
    with pytest.raises(BackendError, match=r"cannot take 'x' in the layout nchw"):
        dnnl().compile(replace(candidate, inputs=(state,)), context)
    unknown = replace(candidate.inputs[0], layout="hwcn")
    with pytest.raises(BackendError, match="in the layout hwcn"):
        dnnl().compile(replace(candidate, inputs=(unknown,)), context)


@pytest.mark.parametrize("batch", [1, 2])
def test_channels_in_blocks_are_joined_in_place(library, parse_model, whole, batch):
    text = f"""case (float[{batch},32,6,5] x) => (float[{batch},96,6,5] y)
    <float[32,32,1,1] w = {{{numbers(1024, 0)}}}, float[64,32,1,1] v = {{{numbers(2048, 1)}}}> {{
        a = Conv(x, w) b = Conv(x, v) y = Concat<axis=1>(b, a) }}"""
    candidate, context = whole(parse_model(text))
    x = np.random.default_rng(2).standard_normal((batch, 32, 6, 5)).astype(np.float32)
    (plain,), _ = run(candidate, context, [x])
    ((inputs, outputs),) = dnnl().states(candidate, context)
    wanted = replace(candidate, inputs=inputs, outputs=outputs)
    (blocked,), loaded = run(wanted, context, [to_blocks(x, library.block)])
    np.testing.assert_allclose(from_blocks(blocked), plain, rtol=1e-5, atol=1e-5)
    assert len(loaded.assembly.steps) == (2 if batch == 1 else 3)


def test_a_product_prefers_the_plain_border(library, parse_model, whole):
    del library
    text = "case (float[64,64] x) => (float[64,64] y) { y = MatMul(x, x) }"
    assert dnnl().states(*whole(parse_model(text))) == ()


def test_a_damaged_layout_is_an_error(library, block, whole):
    import msgspec

    from intarsia.backends.dnnl.program import decode

    candidate, context = whole(block(1, 12))
    artifact = dnnl().compile(candidate, context)
    program = msgspec.structs.replace(decode(artifact), input_blocks=(library.block,))
    damaged = replace(artifact, payload=msgspec.msgpack.encode(program))
    with pytest.raises(PackageError, match="in blocks"):
        dnnl().load(damaged, HostDevice(ThreadOptions(1)))
