# SPDX-License-Identifier: Apache-2.0
"""Graphs of `torch.compile` are programs with PyTorch's numbers, or say why they are not."""

import functools
import logging

import pytest

from intarsia.arrays import address_of
from intarsia.errors import InputError, ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from intarsia import from_torch  # noqa: E402
from intarsia.torch import backend  # noqa: E402
from intarsia.torch.exported import to_onnx  # noqa: E402
from intarsia.torch.untraced import UntracedParts  # noqa: E402

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.filterwarnings("ignore:::torch", "ignore:::copyreg"),
]

OPTIONS = {"target": "onnxruntime", "strict": True, "num_threads": 1}


class Network(torch.nn.Module):
    """Parameters, a buffer, a plain number, a size, nothing, and an input that comes back."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x, factor=1.5):
        return self.linear(x).relu() * factor + self.shift, None, x.shape[0], x


@pytest.fixture(scope="module")
def network():
    return Network().eval()


@pytest.fixture(scope="module", autouse=True)
def one_registry():
    """PyTorch makes its table of operators for each export; here one serves all."""
    from torch.onnx._internal.exporter import _registration

    with pytest.MonkeyPatch.context() as patch:
        make = functools.cache(_registration.ONNXRegistry.from_torchlib)
        patch.setattr(_registration.ONNXRegistry, "from_torchlib", staticmethod(make))
        yield


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def made(monkeypatch):
    """The graphs that are compiled in a test."""
    graphs = []

    class Noted(backend.CompiledGraph):
        def __init__(self, *args):
            super().__init__(*args)
            graphs.append(self)

    monkeypatch.setattr(backend, "CompiledGraph", Noted)
    return graphs


def rows(count):
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count))


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_one_program_serves_every_batch_and_what_changes_makes_another(network, made):
    compiled = torch.compile(network, backend="intarsia", dynamic=True, options=OPTIONS)
    for count in (2, 3, 5):
        x = rows(count)
        result, nothing, size, same = compiled(x)
        assert_same(result, network(x)[0])
        assert (nothing, size) == (None, count)
        assert same is x
    (graph,) = made
    (first,) = graph.programs.values()

    assert_same(compiled(x, 2.5)[0], network(x, 2.5)[0])  # a constant of its program
    assert list(graph.programs) == [(1.5,), (2.5,)]
    torch._dynamo.reset()
    again = torch.compile(network, backend="intarsia", dynamic=True, options=OPTIONS)
    assert_same(again(x)[0], network(x)[0])
    assert list(made[1].programs.values()) == [first]  # the graph came before

    network.linear.bias.add_(1)
    assert_same(again(x)[0], network(x)[0])
    assert first not in made[1].programs.values()


def test_what_may_be_differentiated_is_left_to_pytorch(network, caplog):
    compiled = torch.compile(network, backend="intarsia")
    with torch.enable_grad(), caplog.at_level(logging.WARNING, "intarsia"):
        result = compiled(rows(1))[0]
    assert result.requires_grad
    assert_same(result, network(rows(1))[0])
    (line,) = caplog.messages
    assert "its gradients may be asked for (call it under torch.inference_mode()" in line


def counting(x, seen):
    seen.add_(1)
    return x + seen


@pytest.mark.parametrize(("device", "why"), [("cpu", "changes"), ("meta", "is on meta")])
def test_a_graph_that_is_no_program_says_so_in_one_line(device, why, caplog):
    x, seen, other = torch.eye(3, device=device), *torch.zeros(2, 3, device=device)
    compiled = torch.compile(counting, backend="intarsia")
    with caplog.at_level(logging.WARNING, "intarsia"):
        results = [compiled(x, seen) for _ in range(2)]
    expected = [counting(x, other) for _ in range(2)]
    assert all(one.device == x.device for one in results)
    if device == "cpu":
        assert_same(results, expected)
    (line,) = caplog.messages
    assert line.startswith("PyTorch runs a graph of 2 operations: ")
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"options": {"targets": "llvm"}}, "option 'targets' is unknown"),
        ({"mode": "max-autotune"}, "mode 'max-autotune' is unknown"),
    ],
)
def test_options_are_checked(more, message):
    compiled = torch.compile(torch.relu, backend="intarsia", **more)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        compiled(torch.ones(2))


def test_an_exported_program_is_compiled_over_its_parameters(network):
    batch = torch.export.Dim("batch", max=64)
    exported = torch.export.export(network, (rows(2),), dynamic_shapes=({0: batch},))
    model = to_onnx(exported)
    for name, tensor in network.state_dict().items():
        array = model.graph.initializers[name].const_value.numpy()
        assert address_of(array) == tensor.data_ptr()
    program = from_torch(exported, "llvm", dynamic_shapes=({0: batch},))
    assert [str(spec) for spec in program.inputs] == ["x: float32[batch,8]"]
    for count in (1, 4):
        x = rows(count)
        assert_same(torch.from_dlpack(program(x)[0]), network(x)[0])
    with pytest.raises(InputError, match="'x' is float64"):
        program(rows(1).double())
    with pytest.raises(ModelError, match="is not an exported program"):
        from_torch(network)


class Windows(torch.nn.Module):
    """Attention within windows, of grouped heads and with a mask, and of one head alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x, mask):
        attend = torch.nn.functional.scaled_dot_product_attention
        y = self.linear(x)  # batch, windows, heads, positions, features
        windows = attend(y, y[:, :, :2], y[:, :, :2], attn_mask=mask, enable_gqa=True)
        one_head = y[:, 0, 0]
        return windows, attend(one_head, one_head, one_head, is_causal=True, scale=0.5)


def test_attention_of_other_than_four_dimensions_is_exported():
    module = Windows().eval()
    x, mask = torch.randn(2, 3, 4, 5, 8), torch.randn(5, 5)
    shapes = ({0: torch.export.Dim("batch")}, None)
    exported = torch.export.export(module, (x, mask), dynamic_shapes=shapes)
    weight = to_onnx(exported).graph.initializers["linear.weight"].const_value
    assert address_of(weight.numpy()) == module.linear.weight.data_ptr()
    program = from_torch(exported, "onnxruntime", dynamic_shapes=shapes)
    more = torch.randn(3, 3, 4, 5, 8)
    results = program.run({"x": more, "mask": mask})
    for result, expected in zip(results.values(), module(more, mask), strict=True):
        torch.testing.assert_close(torch.from_dlpack(result), expected)


def test_tensors_and_arrays_share_memory():
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        tensor = torch.tensor([[0, 1], [1, 0]]).to(dtype)
        array = backend.to_array(tensor)
        assert str(dtype).endswith(array.dtype.name)
        back = backend.to_tensor(array)
        assert back.data_ptr() == address_of(array) == tensor.data_ptr()
        assert torch.equal(back, tensor)


def causal(length):
    return torch.nn.Transformer.generate_square_subsequent_mask(length)


def padding(batch, length):
    return torch.arange(length) >= torch.arange(length - batch, length)[:, None] + 1


def said(caplog):
    """What a user is told, such as why PyTorch runs a graph."""
    return [one for one in caplog.records if one.name.partition(".")[0] == "intarsia"]


LAYERS = {
    "norms last": ({}, {}),
    "norms first, and Gelu": ({"norm_first": True, "activation": "gelu"}, {}),
    "a mask of scores": ({}, {"src_mask": causal(7)}),
    "a mask of keys": ({}, {"src_key_padding_mask": padding(3, 7)}),
    "both masks": ({}, {"src_mask": causal(7), "src_key_padding_mask": padding(3, 7)}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_an_encoder_on_its_fast_path_is_exported(name, caplog):
    options, masks = LAYERS[name]
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options).eval()
    compiled = torch.compile(layer, backend="intarsia", options=OPTIONS)
    x = torch.randn(3, 7, 16)
    torch.testing.assert_close(compiled(x, **masks), layer(x, **masks))
    assert not said(caplog)


@pytest.mark.parametrize("average", [True, False, None])
def test_attention_of_several_heads_on_its_fast_path_is_exported(average, caplog):
    torch.manual_seed(0)
    heads = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    compiled = torch.compile(heads, backend="intarsia", options=OPTIONS)
    x = torch.randn(3, 7, 16)
    more = {"need_weights": average is not None, "average_attn_weights": bool(average)}
    wanted, weights = heads(x, x, x, key_padding_mask=padding(3, 7), **more)
    found, found_weights = compiled(x, x, x, key_padding_mask=padding(3, 7), **more)
    torch.testing.assert_close(found, wanted)
    if average is None:
        assert found_weights is weights is None
    else:
        torch.testing.assert_close(found_weights, weights)
    assert not said(caplog)


def test_fast_paths_are_exported_in_operators_that_llvm_has():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    compiled = torch.compile(layer, backend="intarsia", options={**OPTIONS, "target": "llvm"})
    x = torch.randn(3, 7, 16)
    masks = {"src_key_padding_mask": padding(3, 7)}
    torch.testing.assert_close(compiled(x, **masks), layer(x, **masks), rtol=1e-4, atol=1e-5)


def test_a_fast_path_has_nan_where_all_keys_are_masked():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    compiled = torch.compile(layer, backend="intarsia", options=OPTIONS)
    x, closed = torch.randn(2, 5, 16), torch.tensor([[True], [False]]).expand(2, 5)
    found = compiled(x, src_key_padding_mask=closed)
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1], layer(x, src_key_padding_mask=closed)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_a_mask_of_one_dimension_is_of_keys(dtype):
    class Masked(torch.nn.Module):
        def forward(self, x, mask):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)

    x, mask = torch.randn(3, 5, 8), (torch.arange(5) % 2).to(dtype)
    program = from_torch(torch.export.export(Masked(), (x, mask)), "onnxruntime")
    (result,) = program.run({"x": x, "mask": mask}).values()
    torch.testing.assert_close(torch.from_dlpack(result), Masked()(x, mask))


def test_parts_of_a_tensor_are_no_sequence():
    class Parts(torch.nn.Module):
        def forward(self, x):
            first, second, _ = x.split(4, dim=-1)
            return first + second

    x = torch.arange(24.0).reshape(2, 12)
    program = from_torch(torch.export.export(Parts().eval(), (x,)), target="llvm", num_threads=1)
    (output,) = program.run({program.inputs[0].name: x.numpy()}).values()
    assert (output == Parts()(x).numpy()).all()


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.LSTM(8, 16, batch_first=True)
        self.second = torch.nn.GRU(16, 4, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        made, (_, cell) = self.first(x.relu())
        return self.second(made)[0], cell


def test_recurrent_layers_are_told_of_and_compiled_where_pytorch_traces_them(caplog):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    UntracedParts().watch()
    module, x = Recurrent().eval(), torch.ones(2, 5, 8)
    with torch.inference_mode():
        expected = module(x)
        compiled = torch.compile(module, backend="intarsia", options=OPTIONS)
        torch.testing.assert_close(compiled(x), expected)
        (message,) = [one.getMessage() for one in caplog.records if one.name == "intarsia"]
        assert "does not support RNN, GRU, or LSTM" in message
        assert "allow_rnn=True" in message
        caplog.clear()
        torch._dynamo.reset()
        with torch._dynamo.config.patch(allow_rnn=True):
            whole = torch.compile(module, backend="intarsia", options=OPTIONS, fullgraph=True)
            torch.testing.assert_close(whole(x), expected)
    assert not [one for one in caplog.records if one.name == "intarsia"]
