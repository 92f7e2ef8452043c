# SPDX-License-Identifier: Apache-2.0
"""Indices that are out of bounds: the error, and looking for them at a region's border.

Generated code looks at indices itself. A library that does not, and would compute some number from
what lies nearby, is checked where the indices enter its region; those that it computes itself are
not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from intarsia.arrays import Array
from intarsia.backends.device import Buffer, Step, ValueSlot
from intarsia.decoding import decode_json
from intarsia.errors import InputError, PackageError

if TYPE_CHECKING:
    from intarsia.backends.values import Artifact
    from intarsia.graph.region import Region

_KEY = "index_checks"


class BorderCheck(msgspec.Struct, frozen=True, array_like=True):
    """Indices among a region's inputs.

    Attributes:
        position: Of the input.
        node: Name of the node that reads them.
        indices: Their name.
        extents: They are in `[-extent, extent)`, each entry of the last dimension of one of
            several.
    """

    position: int
    node: str
    indices: str
    extents: list[int]

    def look(self, array: Array, target: str) -> None:
        """Check the indices.

        Raises:
            InputError: One is out of bounds.
        """
        from intarsia.graph.indices import find_outside  # few regions have any

        problem = find_outside(array, self.extents)
        if problem is not None:
            raise outside(problem[0], self.indices, self.node, problem[1], target)


def outside(index: int, indices: str, node: str, extent: int, target: str) -> InputError:
    """Return the error that an index is out of bounds.

    Args:
        index: The index.
        indices: The tensor that it is in.
        node: The node that reads it.
        extent: How many entries there are.
        target: Where the node runs.
    """
    return InputError(
        f"index {index} in {indices!r} is out of bounds: node {node!r} has {extent} entries",
        node=node,
        target=target,
        hint=f"give indices from {-extent} to {extent - 1}",
    )


def misfit(parameter: str, node: str, target: str) -> InputError:
    """Return the error that a parameter says something else than the shapes of its node.

    Args:
        parameter: The tensor that it is.
        node: The node that reads it.
        target: Where the node runs.
    """
    return InputError(
        f"{parameter!r} does not fit the shapes of node {node!r}",
        node=node,
        target=target,
        hint="the shapes of its tensors were known when it was compiled",
    )


def border_checks(region: Region) -> Mapping[str, str]:
    """Return what metadata of an artifact says about indices among a region's inputs."""
    import json  # reading one is msgspec's

    from intarsia.graph.indices import has_free_bound, index_uses

    graph, nodes = region.graph, frozenset(region.nodes)
    index_inputs = {}
    for position, value in enumerate(region.inputs):
        if graph.values[value].dtype not in ("int32", "int64"):
            continue
        for use in index_uses(graph, value):
            if use.node in nodes and not has_free_bound(graph, graph.nodes[use.node]):
                node, name = graph.nodes[use.node].name, graph.values[value].name
                index_inputs[position, use.extents] = (position, node, name, use.extents)
    return {_KEY: json.dumps(list(index_inputs.values()))} if index_inputs else {}


def _read(artifact: Artifact) -> list[BorderCheck]:
    """Return the checks of an artifact.

    Raises:
        PackageError: They are damaged.
    """
    try:
        checks = decode_json(artifact.metadata.get(_KEY, "[]"), list[BorderCheck])
    except msgspec.DecodeError as error:
        raise PackageError(f"the checks of a region of {artifact.target} are damaged") from error
    if any(not 0 <= check.position < len(artifact.inputs) for check in checks):
        raise PackageError(f"the checks of a region of {artifact.target} are damaged")
    return checks


def look(artifact: Artifact, inputs: Sequence[Buffer]) -> None:
    """Look at the indices among a region's inputs.

    Raises:
        InputError: One is out of bounds.
    """
    _look(_read(artifact), inputs, artifact.target)


def _look(checks: Sequence[BorderCheck], inputs: Sequence[Buffer], target: str) -> None:
    for check in checks:
        buffer = inputs[check.position]
        check.look(buffer.value if isinstance(buffer, ValueSlot) else buffer, target)


def with_checks(
    step: Step, artifact: Artifact, inputs: Sequence[Buffer], *, afterwards: bool = False
) -> Step:
    """Return a step that looks at the indices among its inputs.

    Args:
        step: Runs the region.
        artifact: What was loaded, with `border_checks` in its metadata.
        inputs: What the step is bound to.
        afterwards: Whether to look only after the step has failed, to say why.
    """
    checks, target = _read(artifact), artifact.target
    if not checks:
        return step

    def guarded() -> None:
        _look(checks, inputs, target)
        step()

    def explained() -> None:
        try:
            step()
        except Exception:
            _look(checks, inputs, target)
            raise

    # Afterwards costs nothing where all is well: for libraries that fail by themselves, without
    # saying where.
    return explained if afterwards else guarded
