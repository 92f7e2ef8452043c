# SPDX-License-Identifier: Apache-2.0
"""Random graphs: valid ONNX models drawn from a seed, with numbers to run them on.

Every operator that the ONNX reference evaluator knows is drawn, in operator sets 9 to 22, unless
`LEFT_OUT` says why not; families beside have narrow types and free sizes (`GraphFamily`).
`docs/differential.md` describes what they are for.
"""

from intarsia.testing.graphs.drawing import (
    LEFT_OUT,
    OPERATORS,
    OPSETS,
    GraphFamily,
    RandomGraph,
    draw_graph,
    generation,
)

__all__ = [
    "LEFT_OUT",
    "OPERATORS",
    "OPSETS",
    "GraphFamily",
    "RandomGraph",
    "draw_graph",
    "generation",
]
