# SPDX-License-Identifier: Apache-2.0
"""Runs a region with the ONNX reference evaluator: slow, and right by definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intarsia.arrays import np_dtype
from intarsia.backends.artifact import check_payload, first_line
from intarsia.backends.corrections import corrections
from intarsia.backends.index_checks import look
from intarsia.backends.values import Artifact
from intarsia.errors import BackendError, ExecutionError, ReasonCode

if TYPE_CHECKING:
    import onnx

    from intarsia.graph.region import Region


class Evaluator:
    """An artifact whose constants are inputs of its model, ready to be evaluated.

    Args:
        artifact: Made by `onnx_artifact(..., constants="inputs")`.

    Raises:
        BackendError: The evaluator does not know an operator.
    """

    def __init__(self, artifact: Artifact) -> None:
        import onnx

        check_payload(artifact)
        self.artifact = artifact
        self.constants = {constant.name: constant.data for constant in artifact.constants}
        try:
            self._session = make_evaluator(onnx.load_from_string(artifact.payload))
        except Exception as error:
            raise BackendError(
                f"the ONNX reference evaluator cannot load a region: {first_line(error)}",
                backend=artifact.backend,
                target=artifact.target,
            ) from error

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Evaluate the region on arrays in the order of `artifact.inputs`.

        Raises:
            ExecutionError: The evaluator failed.
            InputError: An index is out of bounds; the evaluator does not always notice.
        """
        look(self.artifact, inputs)
        feeds = dict(self.constants)
        feeds.update(zip((spec.name for spec in self.artifact.inputs), inputs, strict=True))
        try:
            # What overflows or divides by zero is a result here, not a mistake of the user's.
            with np.errstate(all="ignore"):
                outputs: Any = self._session.run(None, feeds)
        except Exception as error:
            raise ExecutionError(
                f"the ONNX reference evaluator failed: {first_line(error)}",
                backend=self.artifact.backend,
                target=self.artifact.target,
            ) from error
        return [
            np.asarray(output, np_dtype(spec.dtype)) if spec.shape is not None else output
            for output, spec in zip(outputs, self.artifact.outputs, strict=True)
        ]


def make_evaluator(model: onnx.ModelProto) -> Any:
    """Return `onnx.reference.ReferenceEvaluator` with what it gets wrong put right."""
    from onnx.reference import ReferenceEvaluator

    opset = next(
        (imported.version for imported in model.opset_import if imported.domain in ("", "ai.onnx")),
        0,
    )
    return ReferenceEvaluator(model, new_ops=corrections(opset))


def lacks_evaluation(region: Region) -> tuple[ReasonCode, str] | None:
    """Return why the reference evaluator cannot take a one-node region, or None."""
    from intarsia.graph.extract import extract

    payload = extract(region, constants="inputs").model
    try:
        Evaluator(Artifact("reference", "", "reference", payload, (), ()))
    except BackendError as error:
        return ReasonCode.UNSUPPORTED_OP, error.message
    return None
