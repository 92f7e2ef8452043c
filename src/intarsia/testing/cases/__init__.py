# SPDX-License-Identifier: Apache-2.0
"""The table of cases: what convolutional networks and transformers are made of."""

from intarsia.testing.case import OperatorCase
from intarsia.testing.cases.elementwise import ELEMENTWISE, MOVEMENT
from intarsia.testing.cases.windows import LINEAR, WINDOWS

CASES: tuple[OperatorCase, ...] = (*ELEMENTWISE, *LINEAR, *MOVEMENT, *WINDOWS)
"""Every case of the kit, in a fixed order; ids are unique."""
