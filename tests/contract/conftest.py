"""Each test of this folder runs against every Store there is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from stores import STORES, Writer

from mulligan.contract.store import Store
from mulligan.store import remote


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for limit in (
        "RECALL_TIMEOUT_SECONDS",
        "KEY_VALUE_TIMEOUT_SECONDS",
        "SEND_TIMEOUT_SECONDS",
    ):  # however busy the machine is
        monkeypatch.setattr(remote, limit, 60.0)
    with contextlib.ExitStack() as stack:
        if request.param == "postgres":
            import sql_rules  # skips where psycopg is not installed

            stack.enter_context(sql_rules.checked())
        store = STORES[request.param](tmp_path)
        yield store
        store.close()


@pytest.fixture
def write(store: Store) -> Writer:
    return Writer(store)
