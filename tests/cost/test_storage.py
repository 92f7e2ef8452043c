# SPDX-License-Identifier: Apache-2.0
"""Where the database is, and on what kind of disk."""

from pathlib import Path

import pytest

from intarsia.cost.storage import (
    database_file,
    database_url,
    filesystem_type,
    has_database,
    is_local,
)
from intarsia.settings import Settings


def test_the_default_is_among_the_caches(tmp_path):
    settings = Settings(cache_dir=str(tmp_path))
    file = tmp_path / "costs" / "costs.sqlite"
    assert database_file(database_url(None, settings)) == file
    assert not has_database(None, settings)
    file.parent.mkdir()
    file.touch()
    assert has_database(None, settings)


def test_the_setting_and_the_argument_win(tmp_path):
    settings = Settings(costs=str(tmp_path / "team.sqlite"))
    assert database_file(database_url(None, settings)) == tmp_path / "team.sqlite"
    assert database_file(database_url(str(tmp_path / "a?b %25.db"))) == tmp_path / "a?b %25.db"
    assert database_file(database_url("~/c.db")) == Path("~/c.db").expanduser()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_server_is_one_url_whatever_its_spelling(scheme):
    url = database_url(f"{scheme}://me@host/costs")
    assert url == "postgresql+psycopg://me@host/costs"
    assert database_file(url) is None
    assert has_database(url)


_MOUNTS = r"""
22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:30 / /home rw - nfs4 server:/home rw
31 30 0:31 / /home/me/local\040disk rw - xfs /dev/sdb rw
32 27 0:32 / /mnt/over rw - nfs server:/x rw
33 27 0:33 / /mnt/over rw - btrfs /dev/sdc rw
34 27 0:34 / /mnt/share rw - fuse.sshfs me@host: rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "local"),
    [
        ("/var/cache/costs.sqlite", "ext4", True),
        ("/home/me/costs.sqlite", "nfs4", False),
        ("/homes/costs.sqlite", "ext4", True),
        ("/home/me/local disk/costs.sqlite", "xfs", True),
        ("/mnt/over/costs.sqlite", "btrfs", True),
        ("/mnt/share/costs.sqlite", "fuse.sshfs", False),
    ],
)
def test_the_filesystem_is_that_of_the_nearest_mount(tmp_path, path, kind, local):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(_MOUNTS)
    assert filesystem_type(Path(path), mounts) == kind
    assert is_local(Path(path), mounts) == local


def test_what_nobody_knows_is_not_local(tmp_path):
    assert not is_local(tmp_path, tmp_path / "none")
