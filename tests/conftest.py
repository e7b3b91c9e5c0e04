"""No test reads this machine's settings or writes into its home."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def a_home_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in [*os.environ]:
        if name.startswith("MULLIGAN"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home / name.lower()))
    monkeypatch.setenv("MULLIGAN_HOME", str(home / "mulligan"))
