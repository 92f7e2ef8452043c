# SPDX-License-Identifier: Apache-2.0
"""What we write on nodes, and how a user's pattern means one; imports nothing of ONNX."""

from __future__ import annotations

from fnmatch import fnmatchcase

DEVICE_KEY = "intarsia.device"
"""The node metadata in which an annotation is kept."""

WHY_KEYS = {
    "region": "intarsia.region",
    "backend": "intarsia.backend",
    "why": "intarsia.why",
    "refused": "intarsia.refused",
    "computed": "intarsia.program_nodes",
}
"""The node metadata for people to read in a model that is annotated; nobody reads it back."""

SUMMARY_KEY = "intarsia.placement"
"""The metadata of a model that is annotated with a line for people on what runs where."""

CLAIM_KEY = "intarsia.claim"
"""The metadata of an output with the shape that the model declares for it, as in `1x3x224`."""

LAYER_KEY = "layer_ann"
"""The node metadata in which ONNX Runtime looks for a node's layer."""

ORIGIN_KEY = "intarsia.origin"
"""The node metadata with a JSON list of names of nodes of the original model."""

COMPUTED_KEY = "intarsia.computed"
"""The metadata of a node that computes numbers when it runs although they follow from sizes: a
program for some sizes then has them as the program for all sizes has."""

CALLS_KEY = "intarsia.calls"
"""The node metadata with a JSON list of the calls in whose place the node stands."""


def name_matches(name: str, pattern: str) -> bool:
    """Whether a pattern means a name: the name itself, or a glob (`*`, `?`, `[...]`)."""
    return name == pattern or fnmatchcase(name, pattern)
