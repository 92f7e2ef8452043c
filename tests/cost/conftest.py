# SPDX-License-Identifier: Apache-2.0
"""Databases to test with: a file, and a PostgreSQL server of our own where it is installed."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from intarsia.cost.database import CostDatabase
from intarsia.cost.key import BoundaryKey, CostKey

_MOST_PATH = 60
"""The path of a socket has 107 bytes (`sun_path` of unix(7)), our folder among them."""


def _find_program(name):
    found = shutil.which(name)
    others = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return found or (str(others[-1]) if others else None)


def _unprivileged():
    """The user that the server runs as: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("PostgreSQL does not run as root, and there is no user to run it as")


def _temporary_folder(user):
    """A folder that the user reaches and whose sockets have names that are short enough."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        above = [Path(parent).resolve(), *Path(parent).resolve().parents]
        is_open = all(
            item.stat().st_mode & stat.S_IXOTH or item.stat().st_uid == user.pw_uid
            for item in above
            if item.is_dir()
        )
        if Path(parent).is_dir() and is_open and len(parent) < _MOST_PATH:
            return Path(tempfile.mkdtemp(prefix="intarsia-pg-", dir=parent))
    pytest.skip("there is no folder for temporary files that PostgreSQL's user reaches")


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL server in a folder of its own; gives a function that empties its database."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    initdb, postgres = _find_program("initdb"), _find_program("postgres")
    if not (initdb and postgres):
        pytest.skip("PostgreSQL's server (initdb, postgres) is not installed")
    user = _unprivileged()
    folder = _temporary_folder(user)
    process = None
    try:
        os.chown(folder, user.pw_uid, user.pw_gid)
        owner = {"cwd": folder} | (
            {"user": user.pw_uid, "group": user.pw_gid} if os.geteuid() == 0 else {}
        )
        options = ["-U", "tester", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(
            [initdb, "-D", folder / "data", *options], check=True, capture_output=True, **owner
        )
        with (folder / "log").open("w") as log:
            settings = (
                *("listen_addresses=", f"unix_socket_directories={folder}", "fsync=off"),
                *("full_page_writes=off", "shared_buffers=8MB", "max_wal_size=32MB"),
            )
            flags = [part for setting in settings for part in ("-c", setting)]
            process = subprocess.Popen(
                [postgres, "-D", folder / "data", *flags], stdout=log, stderr=log, **owner
            )
        for _ in range(2400):  # a server that does not come up ends by itself
            try:
                connection = psycopg.connect(
                    f"host={folder} user=tester dbname=postgres", autocommit=True
                )
                break
            except psycopg.OperationalError:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.05)
        else:
            pytest.fail((folder / "log").read_text())

        def empty():
            connection.execute("drop schema public cascade")
            connection.execute("create schema public")
            connection.execute("grant usage on schema public to public")
            return f"postgresql://tester@/postgres?host={folder}"

        with connection:
            yield empty
    finally:
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # at once: nothing is to be kept
            process.wait(120)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """Where a database may be made: of each kind once."""
    if request.param == "sqlite":
        return str(tmp_path / "costs.sqlite")
    return request.getfixturevalue("server")()


@pytest.fixture
def database(url):
    """An empty database of each kind."""
    with CostDatabase.open(url) as opened:
        yield opened


@pytest.fixture
def make_key():
    """A function that makes keys that differ in what is given."""

    def make(region="r0", **changes):
        fields = {
            "target": "llvm -mcpu=x86-64 -libs='a b',\"c\"",
            "backend": "llvm 22.1",
            "machine": "0123456789abcdef",
            "threads": "2",
        }
        return CostKey(region, **(fields | changes))

    return make


@pytest.fixture
def make_junction(make_key):
    """A function that makes keys of boundaries."""

    def make(region="r0", next_region="r1", **changes):
        key = make_key(region, **changes)
        return BoundaryKey(
            key.region,
            key.target,
            next_region,
            key.target,
            key.backend,
            key.machine,
            key.threads,
        )

    return make
