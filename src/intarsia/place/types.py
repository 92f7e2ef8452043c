# SPDX-License-Identifier: Apache-2.0
"""Types of what operators make that ONNX does not know: asked of the backends that do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from intarsia.backends.api import TypeInferring
from intarsia.errors import IntarsiaError, InternalError
from intarsia.graph.infer import adopt_types, infer_shapes
from intarsia.place.hooks import calling

if TYPE_CHECKING:
    import onnx_ir as ir

    from intarsia.backends.candidate import BuildContext
    from intarsia.backends.registry import Backends
    from intarsia.target import PlacedTarget

logger = logging.getLogger("intarsia")


def fill_types(
    model: ir.Model, contexts: Mapping[PlacedTarget, BuildContext], backends: Backends
) -> None:
    """Ask the backends of a machine, in order, for the types that the model leaves open.

    What none of them knows stays open: no region begins or ends there.

    Args:
        model: Loaded; ours to change.
        contexts: By target, what its backend is given.
        backends: Serve the targets.
    """
    for placed, context in contexts.items():
        if not _has_open(model):
            return
        backend = backends.for_target(placed.target)
        if not isinstance(backend, TypeInferring):
            continue
        try:
            with calling(backend.name, context, "when asked for types"):
                found = backend.infer_types(model, context)
        except InternalError:
            raise
        except IntarsiaError as error:
            logger.info("%s tells no types: %s", placed, error.message)
            continue
        adopt_types(model, found)
        infer_shapes(model)


def _has_open(model: ir.Model) -> bool:
    return any(value.name and value.type is None for node in model.graph for value in node.outputs)
