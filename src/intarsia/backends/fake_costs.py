# SPDX-License-Identifier: Apache-2.0
"""What running costs on the `fake` kind: invented, exact, and told by its device's own clock.

All of it is in the target: `fake -cost=Relu:1e-3,Conv+Relu:2e-3,*:1e-4 -call-cost=1e-5`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.errors import TargetError

ANY = "*"
"""Stands for every operator that has no cost of its own."""

_DEFAULT_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class FakeCosts:
    """The prices of one target.

    Attributes:
        operators: Seconds by operator, or by a whole region's operators joined by `+` in the order
            of the nodes.
        fusion: The k-th operator of a region costs `fusion ** k` of its price.
        call_seconds: Of each call.
        copy_seconds: Of each copy to or from the device.
        copy_seconds_per_byte: Beside that.
        kept: Bytes by operator that a loaded region keeps.
        estimate: What `estimate` says, as a part of the truth; None means that it says nothing.
    """

    operators: Mapping[str, float] = field(default_factory=dict)
    fusion: float = 1.0
    call_seconds: float = 0.0
    copy_seconds: float = 0.0
    copy_seconds_per_byte: float = 0.0
    estimate: float | None = None
    kept: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> FakeCosts:
        """Read the attributes of a target.

        Raises:
            TargetError: One is no number.
        """
        operators, kept = (
            {
                name: _number(attribute, text)
                for name, _, text in (entry.rpartition(":") for entry in attrs.get(attribute, ()))
            }
            for attribute in ("cost", "kept")
        )
        copy, copied_byte, *_ = (
            *(_number("copy-cost", text) for text in attrs.get("copy-cost", ())),
            *(0.0, 0.0),
        )
        factor = attrs.get("estimate")
        return cls(
            operators,
            _number("fusion", attrs.get("fusion", "1")),
            _number("call-cost", attrs.get("call-cost", "0")),
            copy,
            copied_byte,
            None if factor is None else _number("estimate", factor),
            kept,
        )

    def seconds(self, operators: Sequence[str]) -> float:
        """Return what one run of a region costs, the call itself left out.

        Args:
            operators: Of its nodes, in their order.
        """
        whole = self.operators.get("+".join(operators))
        if whole is not None:
            return whole
        other = self.operators.get(ANY, _DEFAULT_SECONDS)
        prices = (self.operators.get(name, other) for name in operators)
        return sum(price * self.fusion**k for k, price in enumerate(prices))

    def kept_bytes(self, operators: Sequence[str]) -> int:
        """Return how many bytes a loaded region keeps.

        Args:
            operators: Of its nodes.
        """
        other = self.kept.get(ANY, 0.0)
        return round(sum(self.kept.get(name, other) for name in operators))


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise TargetError(
            f"-{name}={text!r} is no number of seconds",
            hint="write seconds: -cost=Relu:1e-3,Add:2e-3 -call-cost=1e-5 -copy-cost=1e-6,1e-10",
        )
    return number
