# SPDX-License-Identifier: Apache-2.0
"""What PyTorch does not trace into graphs: Python runs it, and no backend hears of it.

PyTorch says nothing of that by itself, but counts it with its reasons while it traces.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

logger = logging.getLogger("intarsia")

_FACTS = re.compile(r"^\s*(?:Explanation|Hint): (.+)$", re.MULTILINE)
"""In the text of a reason: what is not traced, then what to do about it, a line each."""


class UntracedParts:
    """Says of each reason for which PyTorch leaves a part of a model to Python, once."""

    def __init__(self) -> None:
        self._known = set(counters["unimplemented"])
        self._told: set[str] = set()

    def watch(self) -> None:
        """Look at what PyTorch counts whenever it has traced, until `torch._dynamo.reset()`."""
        callback_handler.register_end_callback(self._tell)

    def _tell(self, _: Any) -> None:
        for reason in set(counters["unimplemented"]) - self._known:
            self._known.add(reason)
            found = _FACTS.findall(reason) or [reason.strip().partition("\n")[0]]
            text = f"{found[0]} (hint: {found[1]})" if len(found) > 1 else found[0]
            if text not in self._told:
                self._told.add(text)
                logger.warning("PyTorch runs what it does not trace: %s", text)
