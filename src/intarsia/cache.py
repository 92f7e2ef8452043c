# SPDX-License-Identifier: Apache-2.0
"""The one folder of all caches: how it is told from other folders, what is in it, emptying it.

Each kind of entry has a folder of its own inside.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from intarsia.errors import SettingError
from intarsia.files import whole_file, writing_hint

TAG_NAME = "CACHEDIR.TAG"
TAG_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55"
"""First line of the tag file. Source: Cache Directory Tagging Specification, Ford 2004."""

_TAG = f"""{TAG_SIGNATURE}
# This folder holds caches of intarsia. `intarsia cache clear` empties it.
"""
_OWNER = "intarsia"
_OTHER_THINGS = f"it holds other files and no {TAG_NAME} written by intarsia"


@dataclass(frozen=True, slots=True)
class CacheKind:
    """The entries of one kind: how many files, and their size in bytes."""

    kind: str
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What is in the folder.

    Attributes:
        folder: Its path.
        exists: Whether it has been made.
        is_ours: Whether it carries our tag; only then is it ever emptied.
        is_writable: Whether entries can be written, or the folder be made.
        kinds: In order of their names.
        obstacle: Why nothing can be written; empty if it can.
    """

    folder: str
    exists: bool
    is_ours: bool
    is_writable: bool
    kinds: tuple[CacheKind, ...]
    obstacle: str = ""

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return sum(kind.entries for kind in self.kinds)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return sum(kind.nbytes for kind in self.kinds)


def make_cache_folder(folder: Path) -> Path:
    """Make the folder with its tag, unless it is there, and return it.

    Raises:
        SettingError: It cannot be written, or is a folder with other things in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(folder):
            if not _is_ready(folder) and not _is_ours(folder):  # another process may have been it
                raise _not_ours(folder)
            write_entry(folder / TAG_NAME, _TAG.encode())
    except OSError as error:
        raise SettingError(
            f"the cache folder {str(folder)!r} cannot be written: {error.strerror or error}",
            hint=writing_hint(error, "set INTARSIA_CACHE_DIR to a folder of yours"),
        ) from error
    return folder


def write_entry(path: Path, content: bytes) -> None:
    """Write a file of a cache as a whole, or not at all: others read the old one or the new one.

    Its folder is made if need be, the cache folder is not.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as draft:
        draft.write_bytes(content)


def cache_info(folder: Path) -> CacheInfo:
    """Return what is in the folder; one that is not there is empty. Links are not followed.

    Files beside the folders of the kinds are counted as `other`.
    """
    kinds: dict[str, list[int]] = {}
    is_ours = _is_ours(folder)
    for path, _, files in os.walk(folder) if is_ours else ():
        inner = Path(path).relative_to(folder).parts
        for name in files:
            if not inner and name == TAG_NAME:
                continue
            try:
                nbytes = os.lstat(f"{path}/{name}").st_size  # a path's own takes 3 times as long
            except FileNotFoundError:  # another process removed it
                continue
            kinds.setdefault(inner[0] if inner else "other", []).append(nbytes)
    obstacle = _obstacle(folder)
    return CacheInfo(
        str(folder),
        folder.is_dir(),
        is_ours,
        not obstacle,
        tuple(CacheKind(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(kinds.items())),
        obstacle,
    )


def clear_cache(folder: Path) -> CacheInfo:
    """Remove every entry; the folder stays, with its tag.

    Returns:
        What was in it.

    Raises:
        SettingError: The folder does not carry our tag, or something cannot be removed.
    """
    import shutil  # running a program clears nothing

    before = cache_info(folder)
    if not before.exists:
        return before
    if not before.is_ours:
        if not any(folder.iterdir()):
            return before
        raise _not_ours(folder)
    try:
        for item in sorted(folder.iterdir()):
            if item.is_symlink() or not item.is_dir():
                if item.name != TAG_NAME:
                    item.unlink()
            else:
                shutil.rmtree(item)
    except OSError as error:
        raise SettingError(
            f"the cache cannot be emptied: {error.filename}: {error.strerror}",
            hint="remove it by hand",
        ) from error
    return before


def _is_ours(folder: Path) -> bool:
    tag = folder / TAG_NAME
    try:
        text = "" if tag.is_symlink() else tag.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.startswith(TAG_SIGNATURE) and _OWNER in text


def _is_ready(folder: Path) -> bool:
    """Tell whether a folder is empty but for a tag that is being written, or was cut short."""
    for item in folder.iterdir():
        if not item.name.startswith(TAG_NAME) or item.is_symlink():
            return False
        with suppress(FileNotFoundError):  # it has its name by now
            if not _TAG.encode().startswith(item.read_bytes()):
                return False
    return True


def _obstacle(folder: Path) -> str:
    """Return why no entry can be written, empty if one can: it is tried, and nothing is left.

    What permissions say is not enough: root may all, but not below a file, on a medium that is
    read-only or in `/proc`.
    """
    import tempfile  # nor asks this

    place = folder
    while not place.exists() and not place.is_symlink() and place != place.parent:
        place = place.parent
    try:
        if place != folder:
            tempfile.TemporaryDirectory(dir=place).cleanup()  # as the folder would be made
            return ""
        inside = list(folder.iterdir())
        if not (_is_ours(folder) or _is_ready(folder)):
            return _OTHER_THINGS
        for each in (folder, *(item for item in inside if item.is_dir())):
            with tempfile.TemporaryFile(dir=each):
                pass
    except OSError as error:
        return f"{error.strerror or error}"
    return ""


def _not_ours(folder: Path) -> SettingError:
    return SettingError(
        f"{str(folder)!r} is not a cache folder of intarsia: {_OTHER_THINGS}",
        hint="set INTARSIA_CACHE_DIR to an empty folder, or remove it by hand",
    )
