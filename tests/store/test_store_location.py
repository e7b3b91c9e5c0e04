"""Where a process keeps what it records, and where else while that cannot be used."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from mulligan.core.failure import NewerStoreError, SettingsError, StoreError, StoreLockedError
from mulligan.store import sqlite
from mulligan.store.sqlite import MemoryStore, SqliteStore
from mulligan.store.urls import StoreLocation


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of the machine, which is where the refuge is."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def at(url: object, home: Path = Path("/nowhere")) -> StoreLocation:
    return StoreLocation(str(url), lambda: home)


def test_a_url_that_cannot_be_meant_is_refused_before_anything_is_opened():
    with pytest.raises(SettingsError, match="Unknown store type 'mongodb'"):
        at("mongodb://db/mulligan")


def test_a_store_in_memory_does_not_outlive_the_process_and_its_home_is_not_looked_for():
    def nobody() -> Path:
        raise RuntimeError("no home")

    place = StoreLocation("memory:", nobody)
    assert not place.is_persistent
    assert not place.exists()
    assert isinstance(place.open_or_fallback(), MemoryStore)


def test_a_file_is_there_once_it_was_opened(tmp_path: Path):
    place = at(tmp_path / "kept.db")
    assert (place.is_persistent, place.exists()) == (True, False)
    with closing(place.open()) as store:
        assert isinstance(store, SqliteStore)
    assert place.exists()


def test_its_journals_are_beside_it_and_its_owners_alone(tmp_path: Path):
    folder = at(tmp_path / "deep" / "kept.db").journals()
    assert folder.parent == tmp_path / "deep"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_kept_there_is_kept_in_the_temporary_folder_and_that_is_told(
    tmp_path: Path, elsewhere: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    place = at(tmp_path / "blocked" / "kept.db")
    with caplog.at_level(logging.WARNING, "mulligan"), closing(place.open_or_fallback()) as store:
        assert isinstance(store, SqliteStore)
        assert elsewhere in store.path.parents
    assert f"records go to the fallback store {elsewhere}" in caplog.text
    assert elsewhere in place.journals().parents
    with pytest.raises(StoreError):
        place.open()


def test_records_for_a_file_of_a_newer_version_wait_in_the_journal(tmp_path: Path, elsewhere: Path):
    place = at(tmp_path / "newer.db")
    place.open().close()
    with closing(sqlite3.connect(tmp_path / "newer.db")) as connection:
        connection.execute("PRAGMA user_version=999")
    with pytest.raises(NewerStoreError, match="written by a newer mulligan"):
        place.open_or_fallback()
    assert [*elsewhere.rglob("*.db")] == []


def test_records_wait_in_the_journal_while_another_process_migrates_the_file(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    at(tmp_path / "earlier.db").open().close()
    monkeypatch.setattr(sqlite, "MIGRATIONS", (*sqlite.MIGRATIONS, ()))
    monkeypatch.setattr(SqliteStore.__init__, "__defaults__", (*SqliteStore.__init__.__defaults__[:-1], 10))
    with closing(sqlite3.connect(tmp_path / "earlier.db", isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLockedError):
            at(tmp_path / "earlier.db").open_or_fallback()
    assert [*elsewhere.rglob("*.db")] == []


def test_for_a_server_there_is_no_refuge_its_journals_wait_at_home(tmp_path: Path):
    place = at("http://127.0.0.1:9", tmp_path)
    assert place.is_networked
    assert place.journals().parent == tmp_path
