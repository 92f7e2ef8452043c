# SPDX-License-Identifier: Apache-2.0
"""What is bound is read and written by each run; both classes are driven by the same lines."""

import numpy as np
import onnxruntime
import pytest

import intarsia.session
from intarsia.errors import InputError

X = np.array([[1, -2], [3, -4]], np.float32)


DEVICES = {"x": "fake -ops=Neg", "output:n": "fake -ops=Neg"}


@pytest.fixture(
    params=["onnxruntime", "intarsia", "intarsia on two devices", "intarsia with device borders"]
)
def runtime(request, parse_model):
    """The module that a program imports, and a session of `y = Relu(x), n = Neg(y)`."""
    model = parse_model("g (float[2,2] x) => (float[2,2] y, float[2,2] n) {y = Relu(x) n = Neg(y)}")
    if request.param == "onnxruntime":
        return onnxruntime, onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
    targets = None if request.param == "intarsia" else "fake -ops=Neg, reference"
    if request.param == "intarsia with device borders":
        model = intarsia.on_device(model, DEVICES)
    return intarsia.session, intarsia.session.InferenceSession(model, targets=targets)


def test_a_bound_input_is_read_anew_by_each_run(runtime):
    _, session = runtime
    binding, x = session.io_binding(), X.copy()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_output("n", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], np.maximum(x, 0))
    x[:] = 7
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    first, second = binding.get_outputs()
    np.testing.assert_array_equal(first.numpy(), x)
    np.testing.assert_array_equal(second.numpy(), -x)


def test_outputs_are_written_where_they_are_bound(runtime):
    ort, session = runtime
    binding = session.io_binding()
    x = ort.OrtValue.ortvalue_from_numpy(X)
    y = ort.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32)
    n = np.zeros((2, 2), np.float32)
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    binding.bind_output("n", "cpu", 0, np.float32, n.shape, n.ctypes.data)
    for _ in range(2):
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(y.numpy(), np.maximum(X, 0))
        np.testing.assert_array_equal(n, -np.maximum(X, 0))
        n[:] = 0
    assert [value.shape() for value in binding.get_outputs()] == [[2, 2], [2, 2]]


def test_a_buffer_may_be_input_and_output(runtime):
    ort, session = runtime
    binding, value = session.io_binding(), ort.OrtValue.ortvalue_from_numpy(X.copy())
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    binding.bind_ortvalue_output("n", value)
    for expected in (-np.maximum(X, 0), np.zeros((2, 2))):
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(value.numpy(), expected)


def test_memory_is_bound_by_its_address(runtime):
    _, session = runtime
    binding, x = session.io_binding(), X.copy()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("n")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], -np.maximum(X, 0))


def test_bindings_can_be_cleared(runtime):
    _, session = runtime
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("n")
    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (y,) = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    binding.clear_binding_inputs()
    with pytest.raises(Exception, match=r"x|[Ii]nput"):
        session.run_with_iobinding(binding)


def test_values_are_fed_and_returned(runtime):
    ort, session = runtime
    x = ort.OrtValue.ortvalue_from_numpy(X)
    (n,) = session.run_with_ort_values(["n"], {"x": x})
    assert isinstance(n, ort.OrtValue)
    np.testing.assert_array_equal(n.numpy(), -np.maximum(X, 0))
    np.testing.assert_array_equal(session.run(["n"], {"x": x})[0], n.numpy())


@pytest.mark.parametrize("ort", [onnxruntime, intarsia.session], ids=["onnxruntime", "intarsia"])
@pytest.mark.parametrize(
    "array",
    [X, np.array([1, 2, 3]), np.array([True, False]), np.zeros((2, 0, 3), np.float32)],
    ids=["float32", "int64", "bool", "empty"],
)
def test_a_value_describes_itself(ort, array):
    value = ort.OrtValue.ortvalue_from_numpy(array)
    names = {"float32": "float", "int64": "int64", "bool": "bool"}
    assert value.data_type() == f"tensor({names[array.dtype.name]})"
    assert (value.shape(), value.device_name()) == (list(array.shape), "cpu")
    assert value.tensor_size_in_bytes() == array.nbytes
    assert (value.has_value(), value.is_tensor()) == (True, True)
    assert not value.is_sparse_tensor()
    assert not value.is_tensor_sequence()
    if array.size:
        assert np.asarray(value).ctypes.data == value.data_ptr()
        assert ort.OrtValue.from_dlpack(value).data_ptr() == value.data_ptr()
        changed = np.zeros_like(array)
        value.update_inplace(changed)
    np.testing.assert_array_equal(np.asarray(value, np.float64), np.zeros(array.shape))
    assert value.__dlpack_device__() == (1, 0)


def test_a_value_of_another_type_shares_the_bytes():
    for ort in (onnxruntime, intarsia.session):
        value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(X, 1)
        assert (value.element_type(), value.shape()) == (1, [2, 2])
        assert ort.OrtValue.ortvalue_from_shape_and_type([3], 7).element_type() == 7


@pytest.fixture
def session(parse_model):
    model = parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    return intarsia.session.InferenceSession(model, targets="llvm")


def test_what_is_bound_in_place_is_not_copied(session):
    binding, x, y = session.io_binding(), np.ones(2, np.float32), np.zeros(2, np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", intarsia.session.OrtValue(y))
    session.run_with_iobinding(binding)
    assert np.shares_memory(binding.get_outputs()[0].numpy(), y)
    assert y.tolist() == [1, 1]


def test_arrays_that_lie_otherwise_are_copied(session):
    binding, x, y = session.io_binding(), np.ones(4, np.float32)[::2], np.zeros((2, 2), np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", intarsia.session.OrtValue(y[:, 0]))
    session.run_with_iobinding(binding)
    assert y.tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (lambda b: b.bind_cpu_input("z", X), "no input 'z'"),
        (lambda b: b.bind_output("z"), "no output 'z'"),
        (lambda b: b.bind_output("y", "cuda"), "cuda:0"),
        (lambda b: b.bind_output("y", "cpu", 1), "cpu:1"),
        (lambda b: b.bind_output("y", buffer_ptr=64), "element_type="),
        (lambda b: b.bind_ortvalue_output("y", intarsia.session.OrtValue(X)), "'y' has shape"),
        (lambda b: b.bind_input("x", "cpu", 0, 999, [1], 64), "element type 999"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(session, bind, message):
    with pytest.raises(InputError, match=message):
        bind(session.io_binding())


def test_a_binding_belongs_to_its_session(session, parse_model):
    other = intarsia.session.InferenceSession(
        parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }"), targets="llvm"
    )
    with pytest.raises(InputError, match="another session"):
        other.run_with_iobinding(session.io_binding())
