# SPDX-License-Identifier: Apache-2.0
"""The table of cases: what convolutional networks and transformers are made of."""

from intarsia.testing.case import OperatorCase
from intarsia.testing.cases.elementwise import ELEMENTWISE
from intarsia.testing.cases.linear import LINEAR
from intarsia.testing.cases.movement import MOVEMENT
from intarsia.testing.cases.windows import WINDOWS

CASES: tuple[OperatorCase, ...] = (*ELEMENTWISE, *LINEAR, *MOVEMENT, *WINDOWS)
"""Every case of the kit, in a fixed order; ids are unique."""
