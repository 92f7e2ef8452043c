# SPDX-License-Identifier: Apache-2.0
"""How a kind names the passes that it brings: `STAGE: NAME`, in the order in which they run.

Here are names only. `place.pipeline` finds what they mean, and merges those of several targets.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from intarsia.errors import TargetError


class Stage(StrEnum):
    """When a pass runs, in order."""

    BEFORE = "before placement"
    AFTER = "after placement"
    REGION = "region"


STANDARD_PIPELINE = (
    "before placement: remove-unused",
    "before placement: lift-constants",
    "before placement: fold-constants",
    "before placement: inline-bodies",
    "before placement: split-sequences",
    "before placement: eliminate-identities",
    "before placement: fuse-affine",
    "before placement: convolve-before-resizing",
    "before placement: merge-linear",
    "before placement: activate-before-views",
    "before placement: convolve-tokens",
    "before placement: eliminate-duplicates",
    "before placement: remove-unused",
    "before placement: deduplicate-initializers",
    "before placement: separate-dequantize",
    "after placement: merge-regions",
)
"""What a kind brings that says nothing else."""


def split_pass(text: str) -> tuple[Stage, str]:
    """Return the stage and the name of an entry of a pipeline.

    Raises:
        TargetError: It is not of the form `STAGE: NAME`.
    """
    stage, colon, name = text.partition(": ")
    if not colon or not name or name != name.strip() or stage not in tuple(Stage):
        raise TargetError(
            f"{text!r} is not an entry of a pipeline",
            hint=f"write 'STAGE: NAME'; stages: {', '.join(Stage)}",
        )
    return Stage(stage), name


def check_pipeline(pipeline: Iterable[str]) -> tuple[str, ...]:
    """Return a pipeline whose entries are well-formed and in the order of the stages.

    Raises:
        TargetError: One is malformed, or stands after one of a later stage.
    """
    entries = tuple(pipeline)
    latest, order = 0, list(Stage)
    for text in entries:
        rank = order.index(split_pass(text)[0])
        if rank < latest:
            raise TargetError(
                f"{text!r} stands after a pass of a later stage",
                hint=f"stages are in this order: {', '.join(Stage)}",
            )
        latest = rank
    return entries
