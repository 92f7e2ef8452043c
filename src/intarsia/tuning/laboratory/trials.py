# SPDX-License-Identifier: Apache-2.0
"""Regions are compiled and run for the first time in a worker, before this process does it.

A library that aborts, hangs or computes nonsense costs its region a place, and not the process its
life. Verdicts are kept among the caches, by the version of the backend, the machine and the
region's shape hash: what is known is not tried again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from intarsia.backends.sources import code_version
from intarsia.cache import make_cache_folder, write_entry
from intarsia.errors import ReasonCode, SettingError
from intarsia.graph.hashes import shape_hash
from intarsia.hashing import digest
from intarsia.process.selftest import machine_text
from intarsia.tuning.laboratory.laboratory import Laboratory
from intarsia.tuning.laboratory.values import OutOfTimeError, Probe, Refused

if TYPE_CHECKING:
    from intarsia.graph.region import Region
    from intarsia.place.setting import Capability, Setting

logger = logging.getLogger(__name__)

KIND = "trials"
"""The folder of the verdicts inside the cache folder."""

_MOST_VERDICTS = 20_000
_PRUNED = 100
"""Files are counted once in so many that are written."""

_OURS = frozenset(("reference",))
"""Backends that call nothing but ONNX's evaluator, which is Python."""

_NOT_TOLD = frozenset((ReasonCode.UNAVAILABLE, ReasonCode.DYNAMIC_SHAPE))
"""What says nothing of a region: a machine out of reach, or no value to begin with."""


class RegionTrials:
    """Tries the regions of one model in a laboratory.

    Args:
        setting: The model and the machine.
        laboratory: One that is open, with what it knows; None opens one when it is needed.

    Attributes:
        tried: How many regions were tried, and not only looked up.
    """

    def __init__(self, setting: Setting, laboratory: Laboratory | None = None) -> None:
        self._setting = setting
        self._given = laboratory
        self._own: Laboratory | None = None
        self._caches = setting.backends.settings.cache_folder()
        self._known: dict[str, Refused | None] = {}
        self.tried = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()

    def refusal(self, capability: Capability, region: Region) -> Refused | None:
        """Return why a region must not be loaded by this process; None if it may be.

        Args:
            capability: Of the target.
            region: Of the model.

        Raises:
            BackendError: No worker can be had, or nothing here can run the model.
        """
        if capability.backend.name in _OURS:
            return None
        key = self._key(capability, region)
        if key not in self._known:
            file = self._caches / KIND / f"{key}.json"
            verdict = _read(file)
            if verdict is None:
                verdict = self._try(capability, region, file)
            self._known[key] = verdict[0] if verdict else None
        return self._known[key]

    def _key(self, capability: Capability, region: Region) -> str:
        code = code_version(capability.backend, capability.context)
        threads = str(capability.context.num_threads)
        target = str(capability.target)
        return digest((target, code, threads, machine_text(), shape_hash(region)))

    def _try(
        self, capability: Capability, region: Region, file: Path
    ) -> tuple[Refused | None, ...]:
        refused = self._with_laboratory(lambda lab: _prepare(lab, capability, region))
        self.tried += 1
        if refused is not None and refused[0] in _NOT_TOLD:
            logger.info("a region is not tried on %s: %s", capability.target, refused[1])
            return (None,)
        if refused is None or "SIGKILL" not in refused[1]:  # that may have been lack of memory
            _keep(self._caches, file, refused)
        return (refused,)

    def _with_laboratory(self, ask: Callable[[Laboratory], Refused | None]) -> Refused | None:
        if self._given is not None:
            try:
                return ask(self._given)
            except OutOfTimeError:  # of tuning; the trial takes what it takes
                self._given = None
        if self._own is None:
            self._own = Laboratory(self._setting)
        return ask(self._own)


def _prepare(lab: Laboratory, capability: Capability, region: Region) -> Refused | None:
    if capability.target not in lab.setting.targets:
        return ReasonCode.UNAVAILABLE, "the worker has no such target"
    position = lab.setting.targets.index(capability.target)
    probe = Probe.region(position, region.nodes)
    refusal = lab.prepare([probe])[probe].refusal
    lab.drop([probe])
    return refusal


def _read(file: Path) -> tuple[Refused | None, ...] | None:
    """Return the verdict that was kept, in a tuple; None if there is none."""
    try:
        record = json.loads(file.read_bytes())
        code, reason = record["code"], record["reason"]
        return ((ReasonCode(code), str(reason)) if code else None,)
    except (OSError, ValueError, KeyError, TypeError):  # it is tried anew
        return None


def _keep(caches: Path, file: Path, refused: Refused | None) -> None:
    code, reason = refused or ("", "")
    try:
        make_cache_folder(caches)
        write_entry(file, json.dumps({"code": str(code), "reason": reason}).encode())
        if int(file.stem[:8], 16) % _PRUNED == 0:
            entries = sorted(file.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)
            for entry in entries[:-_MOST_VERDICTS]:
                entry.unlink()
    except (OSError, SettingError) as error:
        logger.info("the verdict on a region is not kept: %s", error)
