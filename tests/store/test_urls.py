"""From a URL to a Store."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pytest

from mulligan.core.failure import SettingsError, StoreError
from mulligan.store import urls
from mulligan.store.sqlite import MemoryStore, SqliteStore


@pytest.mark.parametrize("url", ["memory:", "memory://"])
def test_a_store_in_memory(url):
    assert isinstance(urls.open_store(url), MemoryStore)


def test_a_path_is_a_store_in_a_file(tmp_path):
    store = urls.open_store(str(tmp_path / "a.db"))
    assert isinstance(store, SqliteStore)
    store.close()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/a.db", "/data/a.db"),
        ("a.db", "a.db"),
        ("sqlite:///data/a.db", "/data/a.db"),
        ("sqlite:////data/a.db", "/data/a.db"),
        ("sqlite:a.db", "a.db"),
    ],
)
def test_a_file_may_be_named_in_several_ways(url, path):
    assert urls.sqlite_path(url) == Path(path)


@pytest.mark.parametrize(
    "url", ["", "/", "sqlite://", "sqlite:///", ":memory:", "sqlite::memory:", "sqlite://:memory:"]
)
def test_a_url_that_names_no_file_is_told_what_is_known(url):
    with pytest.raises(SettingsError, match="memory:, sqlite:///PATH, a path, postgresql://HOST/DATABASE, or the http"):
        urls.open_store(url)


def test_a_scheme_nobody_knows_is_told_what_is_known():
    with pytest.raises(SettingsError, match=r"Unknown store type .mysql.\. Use memory:"):
        urls.open_store("mysql://host/db")


def test_the_home_of_nobody_is_told():
    with pytest.raises(SettingsError, match="home folder of an unknown user"):
        urls.sqlite_path("~nobody-of-that-name/a.db")


@pytest.mark.skipif(sys.platform == "win32", reason="rights of POSIX")
def test_the_refuge_is_ours_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    refuge = urls.fallback_path()
    assert refuge.parent.stat().st_mode & 0o077 == 0
    assert urls.fallback_path() == refuge

    refuge.parent.chmod(0o755)
    with pytest.raises(StoreError, match="belongs to another user"):
        urls.fallback_path()
    refuge.parent.rmdir()
    os.symlink(tmp_path, refuge.parent)
    with pytest.raises(StoreError, match="belongs to another user"):
        urls.fallback_path()


@pytest.mark.parametrize(
    "url",
    [
        "192.0.2.2:4700",
        "192.0.2.2",
        "localhost:4700",
        "localhost/x",
        "mulligan.example.com",
        "box:4700/path",
        "[::1]:4700",
    ],
)
def test_an_address_without_its_scheme_is_no_file(url):
    with pytest.raises(SettingsError, match=re.escape(f"Did you mean http://{url}?")):
        urls.sqlite_path(url)


@pytest.mark.parametrize(
    "path", ["./192.0.2.2:4700", "failures.db", "a.b/c.db", "/srv/box:4700/a.db", "C:/a.db", "a:b"]
)
def test_a_path_that_only_resembles_an_address_is_a_file(path):
    assert urls.sqlite_path(path) == Path(path)
