# SPDX-License-Identifier: Apache-2.0
"""Errors say whose fault it is, name what is at fault, and hint at what to do."""

import pickle

import pytest

from intarsia import errors
from intarsia.errors import (
    BackendError,
    CostDatabaseError,
    ExecutionError,
    InputError,
    IntarsiaError,
    InternalError,
    LinkError,
    LockError,
    ModelError,
    PackageError,
    PlacementError,
    SettingError,
    TargetError,
    UnsupportedError,
)

EVERY = sorted(
    (
        item
        for item in vars(errors).values()
        if isinstance(item, type) and issubclass(item, IntarsiaError)
    ),
    key=lambda item: item.__name__,
)


@pytest.mark.parametrize("error_class", EVERY)
def test_every_error_carries_node_target_and_hint(error_class):
    error = error_class("it broke", node="n", target="llvm", hint="mend it")
    assert (error.message, error.node, error.target) == ("it broke", "n", "llvm")
    assert str(error) == "it broke\nhint: mend it"
    assert str(error_class("it broke")) == "it broke"
    assert isinstance(error, IntarsiaError)


@pytest.mark.parametrize(
    ("error_class", "code"),
    [
        (ModelError, 2),
        (TargetError, 2),
        (InputError, 2),
        (PlacementError, 2),
        (UnsupportedError, 2),
        (PackageError, 2),
        (CostDatabaseError, 2),
        (LockError, 2),
        (SettingError, 2),
        (BackendError, 3),
        (ExecutionError, 3),
        (LinkError, 3),
        (InternalError, 4),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(error_class, code):
    assert error_class("x").exit_code == code


@pytest.mark.parametrize(
    "error_class", [ModelError, TargetError, InputError, PlacementError, SettingError]
)
def test_bad_values_are_value_errors_too(error_class):
    assert issubclass(error_class, ValueError)


def test_an_unsupported_error_carries_its_refusals():
    assert UnsupportedError("x", refusals=["a", "b"]).refusals == ("a", "b")


def test_a_backend_error_names_its_backend():
    assert ExecutionError("x", backend="openvino").backend == "openvino"


def test_an_error_keeps_its_message_across_processes():
    copy = pickle.loads(pickle.dumps(ExecutionError("x", backend="openvino", hint="h")))
    assert str(copy) == "x\nhint: h"
    assert copy.backend == "openvino"
