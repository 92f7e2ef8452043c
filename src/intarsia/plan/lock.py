# SPDX-License-Identifier: Apache-2.0
"""A plan as a lock file: what runs where, and what that depends on, as text to commit.

It refers to nodes by name and to targets by text, so that it is readable and its changes show as
changes of lines. `compile(frozen=...)` carries it out, or says what is different now.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import msgspec

from intarsia.cost.records import Assigned
from intarsia.decoding import decode_json
from intarsia.errors import LockError
from intarsia.files import whole_file, writing_hint
from intarsia.graph.state import PLAIN
from intarsia.plan.identity import Change, Identity, compare_identities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from intarsia.plan.plan import Plan

LOCK_VERSION = 1
LOCK_NAME = "plan.lock.json"
"""What a lock file is called by custom."""

Policy: TypeAlias = Literal["greedy", "manual", "collage"]

_FORMAT = "intarsia-plan-lock"
_MAX_BYTES = 256 << 20
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises: of JSON that is wrong, of what is not text, of JSON that is too deep."""
_ORDER = ("format", "version", "policy", "summary", "world", "regions", "layouts", "bodies")


class Lock(msgspec.Struct, frozen=True, rename={"identity": "world"}):
    """A plan without its code.

    Attributes:
        policy: How it was found: `greedy`, `manual` or `collage`.
        identity: What it depends on; `world` in the file.
        regions: Texts of placed targets with their nodes' names, in the order in which they run.
        summary: One line on how it was found; empty if that is not known.
        layouts: By name, how values lie between regions that are not plain there; they follow from
            the regions, so it only shows whether they still do. None: that is not known.
        bodies: By `NODE/ATTRIBUTE`, the regions of each body of an If, Loop or Scan that the plan
            runs itself. They follow from all else, so it only shows whether they still do.
        format: What kind of file it is.
        version: Version of the format.
    """

    policy: Policy
    identity: Identity
    regions: tuple[Assigned, ...]
    summary: str = ""
    layouts: dict[str, str] | None = None
    bodies: dict[str, tuple[Assigned, ...]] = {}
    format: str = _FORMAT
    version: int = LOCK_VERSION

    def __str__(self) -> str:
        """Its JSON text: equal locks give equal text."""
        fields = msgspec.to_builtins(self)
        ordered = {name: fields[name] for name in _ORDER if name != "bodies" or self.bodies}
        return msgspec.json.format(msgspec.json.encode(ordered), indent=1).decode() + "\n"


def lock_plan(plan: Plan) -> Lock:
    """Return the lock of a plan.

    Raises:
        LockError: The plan does not say what it depends on.
    """
    if plan.identity is None:
        raise LockError(
            "the plan does not record what it depends on",
            hint="compile the model again with this version of Intarsia",
        )
    summary = "" if plan.tuning is None else plan.tuning.summary
    policy = cast("Policy", plan.placement.policy)
    return Lock(
        policy, plan.identity, placed_regions(plan), summary, plan.layouts, body_regions(plan)
    )


def placed_regions(plan: Plan) -> tuple[Assigned, ...]:
    """Return the regions of a plan as a lock file has them."""
    return tuple(
        Assigned(region.target, tuple(node.name for node in region.nodes))
        for region in plan.placement.regions
    )


def body_regions(plan: Plan) -> dict[str, tuple[Assigned, ...]]:
    """Return the regions of the bodies that a plan runs itself, by `NODE/ATTRIBUTE`."""
    regions: dict[str, tuple[Assigned, ...]] = {}
    for body in plan.bodies:
        path = f"{plan.placement.regions[body.region].nodes[0].name}/{body.name}"
        regions[path] = placed_regions(body.plan)
        regions |= {f"{path}/{deeper}": those for deeper, those in body_regions(body.plan).items()}
    return regions


def write_lock(lock: Lock, path: str | Path) -> None:
    """Write a lock file; it appears whole or not at all.

    Raises:
        LockError: The file cannot be written.
    """
    try:
        with whole_file(path) as draft:
            draft.write_text(str(lock), encoding="utf-8")
    except OSError as error:
        raise LockError(
            f"cannot write {str(path)!r}: {error.strerror or error}", hint=writing_hint(error)
        ) from error


def read_lock(path: str | Path) -> Lock:
    """Read a lock file.

    Raises:
        LockError: It cannot be read, is not a lock file, or is of a newer version.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise LockError(
            f"cannot read {str(path)!r}: {error.strerror or error}",
            hint=f"`intarsia plan lock PACKAGE -o {LOCK_NAME}` writes one",
        ) from error
    return decode_lock(data, str(path))


def decode_lock(data: bytes | str, name: str) -> Lock:
    """Return a lock from its text.

    Args:
        data: What `str` of a lock gives.
        name: Where it comes from, for messages.

    Raises:
        LockError: It is not a lock, or of a newer version.
    """
    try:
        head = decode_json(data, _Head)
    except _UNREADABLE as error:
        raise _wrong(name, str(error)) from error
    if head.format != _FORMAT:
        raise _wrong(name, f"the format is {head.format!r}")
    if head.version > LOCK_VERSION:
        raise LockError(
            f"{name!r} is a lock file of version {head.version}, newer than {LOCK_VERSION}, which "
            "this version of Intarsia knows",
            hint="upgrade Intarsia",
        )
    try:
        return decode_json(data, Lock)
    except _UNREADABLE as error:
        raise _wrong(name, str(error)) from error


class _Head(msgspec.Struct):
    """What every version has."""

    format: str = ""
    version: int = 0


def _wrong(name: str, what: str) -> LockError:
    return LockError(
        f"{name!r} is not a lock file: {what}",
        hint=f"`intarsia plan lock PACKAGE -o {LOCK_NAME}` writes one",
    )


def check_lock(lock: Lock, identity: Identity) -> tuple[Change, ...]:
    """Return what has changed since a plan was locked; nothing if it still holds."""
    return compare_identities(lock.identity, identity)


def check_layouts(lock: Lock, layouts: Mapping[str, str]) -> None:
    """Compare how values lie between the regions of a locked plan with how they did.

    They follow from the regions; what backends answer may follow from more than an identity tells.

    Args:
        lock: The plan.
        layouts: By name, the layouts that are not plain now.

    Raises:
        LockError: One is another.
    """
    if lock.layouts is None or lock.layouts == layouts:
        return
    names = sorted(lock.layouts.keys() | layouts.keys())
    name = next(name for name in names if lock.layouts.get(name) != layouts.get(name))
    raise LockError(
        f"between its regions {name!r} was {lock.layouts.get(name, PLAIN)} when the plan was "
        f"locked, and would be {layouts.get(name, PLAIN)} now",
        hint="compile without --frozen, and lock the new plan",
    )


def check_bodies(lock: Lock, plan: Plan) -> None:
    """Compare the bodies of a locked plan's control flow with those of the plan that was built.

    Raises:
        LockError: Some are placed in another way.
    """
    regions = body_regions(plan)
    for path in sorted(lock.bodies.keys() | regions.keys()):
        if lock.bodies.get(path) != regions.get(path):
            raise LockError(
                f"the regions of the body {path!r} are not those that were locked",
                hint="compile without --frozen, and lock the new plan",
            )
