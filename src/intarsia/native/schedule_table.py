# SPDX-License-Identifier: Apache-2.0
"""Tuned schedules on disk: a file for each CPU, number of threads, and digest of our generators.

An entry says what was found for the kernels of one shape, also that nothing beat the heuristic, so
that it is not measured again. Files are replaced as a whole; who writes first reads what another
process has added meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from intarsia.cache import make_cache_folder, write_entry
from intarsia.codegen.lower.schedules import HEURISTICS, ScheduleChoice, Schedules
from intarsia.codegen.sources import source_digest
from intarsia.decoding import decode_json
from intarsia.errors import SettingError
from intarsia.files import writing_hint
from intarsia.native.machine import NativeCpu, host_machine, llvm_version
from intarsia.native.native_target import target_cpu, target_threads
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.target import Target

logger = logging.getLogger(__name__)

_GENERATORS = ("intarsia.codegen", "intarsia.native")
"""What decides how fast a kernel is, its rivals, and what the heuristic would pick."""


class TunedSchedule(msgspec.Struct, frozen=True):
    """What was found for the kernels of one shape.

    Attributes:
        choice: The fastest; None if nothing was faster than the heuristic's with confidence.
        ratio: How many times as fast as the heuristic's it is; the median over rounds.
        low: The lower end of the interval of that ratio.
        high: The upper end.
        candidates: How many were compared.
        microseconds: What the heuristic's takes.
    """

    choice: ScheduleChoice | None
    ratio: Annotated[float, msgspec.Meta(gt=0)]
    low: float
    high: float
    candidates: int
    microseconds: float


class _File(msgspec.Struct):
    about: dict[str, str]
    entries: dict[str, TunedSchedule]


_unreadable: dict[Path, str] = {}
"""What was warned of last, by file; forgotten when a file is read again."""


def _warn_unreadable(file: Path, problem: str) -> None:
    """Log why a table counts as empty, once for as long as that is so."""
    if _unreadable.get(file) != problem:
        _unreadable[file] = problem
        logger.warning("tuned schedules in %s cannot be read: %s", file, problem)


@dataclass(frozen=True, slots=True)
class ScheduleTable:
    """The entries for one CPU and number of threads.

    Attributes:
        folder: Where the files of all CPUs are.
        cpu: What code is generated for.
        threads: Of a run.
        caches: The folder of all caches, if `folder` is inside it.
    """

    folder: Path
    cpu: NativeCpu
    threads: int
    caches: Path | None = None

    @property
    def file(self) -> Path:
        """Where the entries are."""
        parts = "\0".join(self._about().values())
        digest = hashlib.sha256(parts.encode()).hexdigest()[:24]
        return self.folder / f"{digest}.json"

    def _about(self) -> dict[str, str]:
        """Return what the entries depend on."""
        here = host_machine()
        return {
            "triple": self.cpu.triple,
            "cpu": self.cpu.name,
            "features": self.cpu.features,
            "measured on": here.name,
            "threads": str(self.threads),
            "llvm": llvm_version(),
            "sources": source_digest(_GENERATORS),
        }

    def entries(self) -> dict[str, TunedSchedule]:
        """Return all entries by key; none if there is no file, or it is damaged."""
        try:
            entries = decode_json(self.file.read_bytes(), _File).entries
        except (FileNotFoundError, NotADirectoryError):
            entries = {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _warn_unreadable(self.file, str(error))
            return {}
        _unreadable.pop(self.file, None)
        return entries

    def schedules(self) -> Schedules:
        """Return the choices that beat heuristics."""
        choices = {
            k: entry.choice for k, entry in self.entries().items() if entry.choice is not None
        }
        return Schedules(choices) if choices else HEURISTICS

    def digest(self) -> str:
        """Return 8 hexadecimal digits that say which choices there are; nothing without any."""
        choices = self.schedules().choices
        data = msgspec.json.encode(choices, order="sorted")
        return hashlib.blake2b(data, digest_size=4).hexdigest() if choices else ""

    def add(self, entries: Mapping[str, TunedSchedule]) -> None:
        """Write entries beside those that are there; of one key the new one stays.

        Raises:
            SettingError: The folder cannot be written.
        """
        if self.caches is not None:
            make_cache_folder(self.caches)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Read again just before writing: of two tuners that end at once, one loses its entries
            # at worst, and measures them again.
            content = _File(self._about(), {**self.entries(), **entries})
            write_entry(self.file, msgspec.json.format(msgspec.json.encode(content), indent=1))
        except OSError as error:
            raise SettingError(
                f"tuned schedules cannot be kept in {str(self.file)!r}: {error.strerror or error}",
                hint=writing_hint(error, "set INTARSIA_SCHEDULES to a folder of yours"),
            ) from error


def find_table(target: Target, num_threads: int, settings: Settings) -> ScheduleTable:
    """Return the entries for what a target's code runs on.

    Args:
        target: Of native code.
        num_threads: Threads that one run may use, of which the target may allow fewer.
        settings: Say where tuned schedules are.
    """
    cpu, _ = target_cpu(target)
    threads = target_threads(target, num_threads)
    caches = None if settings.schedules else settings.cache_folder()
    return ScheduleTable(settings.schedules_folder(), cpu, threads, caches)
