"""Fifty writers, a server that is killed with SIGKILL, a database that is restarted: acknowledged is stored, once.

The long form is `benchmarks/faults.py --writers 50 --seconds 60`.
"""

from __future__ import annotations

import pytest
from ingest import Kept, write_through_faults
from postgres import Server, fresh_database, had

pytest.importorskip("uvicorn", reason="needs the extra: pip install 'mulligan[server]'")


def check(url, survived):
    kept = Kept(url)
    assert survived.senders.acknowledged == kept.runs  # each writer sends a run again until it is acknowledged
    assert kept.is_whole
    kept.check()


def test_what_a_killed_server_acknowledged_is_stored_once(tmp_path):
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    survived = write_through_faults(url, None)
    assert survived.kills == 1
    check(url, survived)


@pytest.mark.postgres
def test_what_was_acknowledged_before_a_database_restarted_is_stored_once():
    had()
    with Server(durable=True) as database, fresh_database(database.url) as url:

        def restart() -> None:
            database.stop("immediate")
            database.start()

        survived = write_through_faults(url, restart)
        assert (survived.kills, survived.restarts) == (1, 1)
        check(url, survived)
