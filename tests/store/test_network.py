"""A store is never put where locks may not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan.core.failure import StoreError
from mulligan.store import sqlite
from mulligan.store.sqlite import SqliteStore

LINE = "{id} 1 0:{id} / {point} rw,relatime shared:{id} - {sort} {what} rw"


@pytest.fixture
def mount(tmp_path, monkeypatch):
    """Says that some folders are mounts of some sorts."""
    monkeypatch.setattr(sqlite, "MOUNT_TABLE_PATH", tmp_path / "mountinfo")

    def mount(**points: str) -> None:
        told = [("/", "ext4"), *((str(tmp_path / point), sort) for point, sort in points.items())]
        lines = [
            LINE.format(id=n, point=point.replace(" ", r"\040"), sort=sort, what="x")
            for n, (point, sort) in enumerate(told)
        ]
        (tmp_path / "mountinfo").write_text("\n".join([*lines, "a line nobody understands", ""]))

    return mount


@pytest.mark.parametrize("sort", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_store_on_a_network_file_system_is_refused_before_anything_is_made(tmp_path, mount, sort):
    mount(home=sort)
    with pytest.raises(StoreError, match=rf"network file system \({sort}\).*MULLIGAN_HOME"):
        SqliteStore(tmp_path / "home" / "deep" / "a.db")
    assert not (tmp_path / "home").exists()


def test_a_disk_of_this_machine_is_fine_also_inside_a_network(tmp_path, mount):
    mount(home="nfs4", **{"home/local disk": "ext4"})
    assert sqlite.detect_network_filesystem(tmp_path / "home" / "a.db") == "nfs4"
    assert sqlite.detect_network_filesystem(tmp_path / "home" / "local disk" / "a.db") == ""
    assert sqlite.detect_network_filesystem(tmp_path / "homestead" / "a.db") == ""


def test_where_nobody_can_say_it_is_taken_for_local(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "MOUNT_TABLE_PATH", tmp_path / "none")
    assert sqlite.detect_network_filesystem(Path("/anywhere")) == ""
