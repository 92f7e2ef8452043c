# SPDX-License-Identifier: Apache-2.0
"""Checks every reference inside a plan that was read from a file.

After it, no buffer is bound outside its memory and no step reads what was not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from intarsia.arrays import Array, np_dtype
from intarsia.backends.values import Artifact
from intarsia.graph.arena import ALIGNMENT
from intarsia.graph.state import BLOCKS, PLAIN
from intarsia.plan.devices import HOST_DOMAIN, domain_text
from intarsia.plan.placement import CONTROL_FLOW
from intarsia.plan.plan import (
    HOST,
    CopyStep,
    Plan,
    PlanTensor,
    RegionStep,
    TensorStorage,
    needed_sizes,
)

_BLOCKED_RANK = 5


def verify_plan(plan: Plan, artifacts: Sequence[Artifact], constants: Mapping[str, Array]) -> None:
    """Check a plan against its artifacts.

    Args:
        plan: What a package says.
        artifacts: One per region of the plan.
        constants: By name, the constants that are outputs of the model.

    Raises:
        ValueError: Says what does not fit.
    """
    problem = (
        _devices_problem(plan)
        or _regions_problem(plan, artifacts)
        or _tensors_problem(plan, constants)
        or _arenas_problem(plan)
        or _borders_problem(plan)
        or _steps_problem(plan, artifacts)
        or _bodies_problem(plan, artifacts)
        or _late_problem(plan)
    )
    if problem:
        raise ValueError(problem)


def _devices_problem(plan: Plan) -> str:
    if len(plan.arena_bytes) != len(plan.devices) or not plan.devices:
        return "devices and arenas do not match"
    if plan.devices[HOST] != domain_text(HOST_DOMAIN):
        return "the first device is not the host"
    if min(plan.arena_bytes) < 0:
        return "an arena has a negative size"
    return ""


def _regions_problem(plan: Plan, artifacts: Sequence[Artifact]) -> str:
    regions = plan.placement.regions
    if [region.backend for region in regions] != [artifact.backend for artifact in artifacts]:
        return "regions and artifacts do not match"
    if not all(region.nodes and region.device in plan.devices for region in regions):
        return "a region has no nodes, or no device"
    return ""


def _tensors_problem(plan: Plan, constants: Mapping[str, Array]) -> str:
    for position, tensor in enumerate(plan.tensors):
        if not 0 <= tensor.device < len(plan.devices):
            return f"tensor {tensor.name!r} is on no device"
        is_movable = tensor.storage in (
            TensorStorage.ARENA,
            TensorStorage.INPUT,
            TensorStorage.OUTPUT,
        )
        if tensor.device != HOST and not (is_movable and _is_dense(tensor)):
            return f"tensor {tensor.name!r} is {tensor.storage}, but not the host's"
        if tensor.layout != PLAIN and not _is_blocked(tensor):
            return f"tensor {tensor.name!r} cannot be in the layout {tensor.layout!r}"
        if tensor.shape is None:
            is_late = tensor.storage is TensorStorage.ARENA and tensor.device == HOST
            if is_late and position in plan.extents and _is_dtype(tensor.dtype):
                continue
            if tensor.storage not in (TensorStorage.SLOT, TensorStorage.INPUT):
                return f"tensor {tensor.name!r} has no shape"
        elif min(tensor.shape, default=0) < 0 or not _is_dtype(tensor.dtype):
            return f"tensor {tensor.name!r} has a negative dimension or an unknown dtype"
        elif tensor.storage is TensorStorage.ARENA:
            end = tensor.offset + math.prod(tensor.shape) * np_dtype(tensor.dtype).itemsize
            is_inside = tensor.offset >= 0 and end <= plan.arena_bytes[tensor.device]
            if not is_inside or tensor.offset % ALIGNMENT or tensor.dtype == "string":
                return f"tensor {tensor.name!r} lies outside its arena"
        elif tensor.storage is TensorStorage.CONSTANT and not _is_stored(tensor, constants):
            return f"constant {tensor.name!r} is missing, or of another dtype or shape"
    return ""


def _arenas_problem(plan: Plan) -> str:
    needed = [0] * len(plan.devices)
    for tensor in plan.tensors:
        if tensor.storage is TensorStorage.ARENA:
            needed[tensor.device] += -(-tensor.spec.nbytes // ALIGNMENT) * ALIGNMENT
    # Else one changed digit would have any amount of memory allocated.
    is_oversized = any(size > most for size, most in zip(plan.arena_bytes, needed, strict=True))
    return "an arena is larger than all of its tensors" if is_oversized else ""


def _is_blocked(tensor: PlanTensor) -> bool:
    """Tell whether a tensor is what its layout in blocks of channels makes of an image."""
    block = BLOCKS.get(tensor.layout, 0)
    is_inner = tensor.storage is TensorStorage.ARENA and tensor.dtype == "float32"
    shape = tensor.shape or ()
    return is_inner and block > 0 and len(shape) == _BLOCKED_RANK and shape[-1] == block


def _is_dense(tensor: PlanTensor) -> bool:
    return tensor.shape is not None and tensor.dtype != "string"


def _is_dtype(name: str) -> bool:
    if name == "string":
        return True
    try:
        dtype = np_dtype(name)
    except (TypeError, AttributeError):
        return False
    return dtype.name == name and not dtype.hasobject


def _is_stored(tensor: PlanTensor, constants: Mapping[str, Array]) -> bool:
    data = constants.get(tensor.name)
    return data is not None and (data.dtype.name, data.shape) == (tensor.dtype, tensor.shape)


def _borders_problem(plan: Plan) -> str:
    if not all(0 <= i < len(plan.tensors) for i in (*plan.inputs, *plan.outputs)):
        return "an input or output does not exist"
    if any(plan.tensors[i].storage is not TensorStorage.INPUT for i in plan.inputs):
        return "an input is not stored as one"
    outputs = [plan.tensors[i] for i in plan.outputs]
    if any(one.device != HOST and one.storage is TensorStorage.ARENA for one in outputs):
        return "an output on a device is not stored as one"
    return ""


def _steps_problem(plan: Plan, artifacts: Sequence[Artifact]) -> str:
    written = {*plan.inputs}
    written |= {i for i, item in enumerate(plan.tensors) if item.storage is TensorStorage.CONSTANT}
    for step in plan.steps:
        reads, writes = _traffic(step)
        if not all(0 <= i < len(plan.tensors) for i in (*reads, *writes)):
            return "a step uses a tensor that does not exist"
        if not written.issuperset(reads) or not written.isdisjoint(writes):
            return "a step reads what is not written yet, or writes what is"
        written.update(writes)
        problem = (
            _copy_problem(plan, step)
            if isinstance(step, CopyStep)
            else _run_problem(plan, step, artifacts)
        )
        if problem:
            return problem
    return "" if written.issuperset(plan.outputs) else "an output is never written"


def _traffic(step: RegionStep | CopyStep) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(step, CopyStep):
        return (step.source,), (step.destination,)
    return step.inputs, step.outputs


def _copy_problem(plan: Plan, step: CopyStep) -> str:
    source, destination = plan.tensors[step.source], plan.tensors[step.destination]
    types = [(end.dtype, end.shape, end.layout) for end in (source, destination)]
    if types[0] != types[1]:
        return f"the copy of {source.name!r} changes its type"
    is_host = source.device == destination.device == HOST
    if source.shape is None and is_host and source.dtype != "string":  # between slot and arena
        return ""
    if source.shape is None or source.dtype == "string":
        return f"{source.name!r} is copied, and is not a dense tensor"
    return ""


def _run_problem(plan: Plan, step: RegionStep, artifacts: Sequence[Artifact]) -> str:
    if not 0 <= step.region < len(artifacts):
        return "a step runs a region that does not exist"
    artifact, region = artifacts[step.region], plan.placement.regions[step.region]
    inputs = [plan.tensors[i] for i in step.inputs]
    outputs = [plan.tensors[i] for i in step.outputs]
    fits = [item.spec for item in inputs] == list(artifact.inputs)
    if not fits or [item.spec for item in outputs] != list(artifact.outputs):
        return f"region {step.region} is bound to tensors that do not fit"
    if any(plan.devices[item.device] != region.device for item in (*inputs, *outputs)):
        return f"region {step.region} is bound to tensors of another device"
    return ""


def _late_problem(plan: Plan) -> str:
    """Return what does not fit of the sizes that the data decides."""
    names = [one.name for one in plan.late]
    if len(set(names)) < len(names) or any(one.axis < 0 for one in plan.late):
        return "a size is found twice, or nowhere"
    if not set(names) <= {one.name for one in plan.late if 0 <= one.tensor < len(plan.tensors)}:
        return "a size is that of a tensor that does not exist"
    written = {i for i in plan.inputs if plan.tensors[i].shape is None}
    for step in plan.steps:
        found = {one.name for one in plan.late if one.tensor in written}
        if not needed_sizes(plan, step) <= found:
            return "a step needs a size that is not found yet"
        written.update(
            i for i in _traffic(step)[1] if plan.tensors[i].storage is TensorStorage.SLOT
        )
    return ""


def _bodies_problem(plan: Plan, artifacts: Sequence[Artifact]) -> str:
    """Return what does not fit of the bodies of control flow; their plans are checked apart."""
    names: dict[int, list[str]] = {}
    for body in plan.bodies:
        names.setdefault(body.region, []).append(body.name)
    for number, artifact in enumerate(artifacts):
        if (artifact.backend == CONTROL_FLOW) is not (number in names):
            return f"region {number} has bodies that nothing runs, or runs bodies that it has not"
    is_known = all(0 <= number < len(artifacts) for number in names)
    is_unique = all(len(set(those)) == len(those) for those in names.values())
    return "" if is_known and is_unique else "a body is of no region, or there twice"
