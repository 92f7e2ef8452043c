# SPDX-License-Identifier: Apache-2.0
"""Where the cost database is, and whether its disk is one that several processes can map.

Light: it asks whether there is a database without loading what opens one.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from urllib.parse import quote, unquote

from intarsia.cache import make_cache_folder
from intarsia.cpus import read_text
from intarsia.errors import CostDatabaseError
from intarsia.files import writing_hint
from intarsia.settings import DEFAULTS, Settings, expanded

FILE_NAME = "costs.sqlite"
FOLDER_NAME = "costs"
"""The default database's folder inside the cache folder."""

SCHEMA_VERSION = 1
"""The schema of the tables; the database stores its own under `SCHEMA_NAME`."""

SCHEMA_NAME = "schema_version"

SQLITE_SCHEME = "sqlite:///"

# fmt: off
NETWORK_FILESYSTEMS = frozenset((
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fhgfs", "gfs", "gfs2",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb3",
    "smbfs", "vboxsf", "virtiofs", "vmhgfs",
))
# fmt: on
"""Filesystem types behind which other kernels may be. So may they be behind FUSE."""

_ELSEWHERE = "set INTARSIA_CACHE_DIR to a folder of yours, or name another file in INTARSIA_COSTS"

_FUSE = "fuse"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_MIN_FIELDS = 5


def database_url(url: str | None = None, settings: Settings = DEFAULTS) -> str:
    """Return the URL of the cost database.

    Args:
        url: A file, or a URL as SQLAlchemy writes it; None means what the settings say, and if
            they say nothing a file among the caches.
        settings: Say where it is if nothing else does.
    """
    text = url or settings.costs or str(default_file(settings))
    if "://" not in text:
        return f"{SQLITE_SCHEME}{quote(str(expanded(text).absolute()))}"
    scheme, _, rest = text.partition("://")
    if scheme in ("postgres", "postgresql"):
        return f"postgresql+psycopg://{rest}"
    return text


def default_file(settings: Settings) -> Path:
    """Return the file among the caches."""
    return settings.cache_folder().absolute() / FOLDER_NAME / FILE_NAME


def make_folder(file: Path, settings: Settings) -> None:
    """Make the folder of a database; if it is among the caches, theirs with its tag first.

    Raises:
        CostDatabaseError: It cannot be made.
        SettingError: The folder of the caches cannot be.
    """
    if file == default_file(settings):
        make_cache_folder(settings.cache_folder())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CostDatabaseError(
            f"the folder of the cost database {str(file)!r} cannot be made: "
            f"{error.strerror or error}",
            hint=writing_hint(error, _ELSEWHERE),
        ) from error


def database_file(url: str) -> Path | None:
    """Return the file that a URL names, or None if it names a server."""
    if not url.startswith(SQLITE_SCHEME):
        return None
    return Path(unquote(url.removeprefix(SQLITE_SCHEME).partition("?")[0]))


def has_database(url: str | None = None, settings: Settings = DEFAULTS) -> bool:
    """Tell whether there is a cost database to ask; a server counts as one.

    Raises:
        CostDatabaseError: Its folder may not be looked into.
    """
    file = database_file(database_url(url, settings))
    return file is None or is_there(file)


def is_there(file: Path) -> bool:
    """Tell whether there is a file of a database.

    Raises:
        CostDatabaseError: Its folder may not be looked into.
    """
    try:  # Path.is_file says no to whatever is wrong from Python 3.14 on
        return stat.S_ISREG(file.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # of a name that no file can have
        return False
    except OSError as error:
        raise CostDatabaseError(
            f"whether there is a cost database {str(file)!r} cannot be seen: {error.strerror}",
            hint=_ELSEWHERE,
        ) from error


def filesystem_type(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the filesystem that a path is on; empty where the system does not tell.

    Source:
        proc_pid_mountinfo(5); of several mounts on one place the last is the one that is seen.
    """
    path = path.resolve()
    kind, deepest = "", -1
    for line in read_text(mountinfo).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < _MIN_FIELDS or not after:
            continue
        point = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= deepest:
            kind, deepest = after.split()[0], len(point.parts)
    return kind


def is_local(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Tell whether a path is known to be on a disk of this machine.

    SQLite's write-ahead log needs memory that all its users share, which no network gives.

    Source:
        Write-Ahead Logging, sqlite.org/wal.html, section 1.
    """
    kind = filesystem_type(path, mountinfo)
    return bool(kind) and kind not in NETWORK_FILESYSTEMS and not kind.startswith(_FUSE)
