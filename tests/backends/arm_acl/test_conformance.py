# SPDX-License-Identifier: Apache-2.0
"""The backend keeps the promises that the conformance kit checks, under an emulator.

A program is built and an emulator started for each region, so what is tried here is a case for
each function; `examine` tries all (docs/machines.md says with what result).
"""

import pytest
from tests.backends.arm_acl.conftest import TARGET

from intarsia.backends.arm_acl.backend import BACKEND
from intarsia.testing import conformance
from intarsia.testing.cases import CASES
from intarsia.testing.tolerance import Tolerance

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("acl_target")]

TOLERANCES = {"float32": Tolerance(1e-4, 1e-4)}
"""The library's Winograd transforms of 3x3 convolutions, which it always takes, are less exact."""

TRIED = (
    "Conv-wide",
    "Conv-depthwise_multiplied",
    "MaxPool-2x2",
    "Softmax-last_axis",
    "Concat-two",
    "Gemm-plain",
)

test_contract = conformance(BACKEND, TARGET, checks=["contract", "devices"])
test_operators = conformance(
    BACKEND,
    TARGET,
    checks=["numbers"],
    cases=[case for case in CASES if str(case) in TRIED],
    tolerances=TOLERANCES,
)
test_processes = conformance(BACKEND, TARGET, checks=["processes"], tolerances=TOLERANCES)
