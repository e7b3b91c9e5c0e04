"""Under gevent, as best we can: a patched process records from greenlets and leaves, and nothing is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mulligan.contract.store import DEFAULT_TENANT, journals_of
from mulligan.record.journal_import import recover_journals
from mulligan.store.sqlite import SqliteStore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gevent") is None, reason="gevent is not installed (pip install gevent)"
)

PROGRAM = """
    from gevent import monkey

    monkey.patch_all()
    import sys
    import gevent
    import mulligan

    mulligan.configure(store=sys.argv[1])

    @mulligan.tool
    def look(place, n):
        gevent.sleep(0)
        return n

    def work(place):
        for n in range(50):
            look(place, n)

    gevent.joinall([gevent.spawn(work, f"place {n}") for n in range(20)], raise_error=True)
"""


def run_of(store: Path, code: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program, str(store)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    return done


def kept(path: Path) -> int:
    store = SqliteStore(path)
    recover_journals(store, DEFAULT_TENANT, journals_of(path))
    try:
        return store.health(DEFAULT_TENANT).steps
    finally:
        store.close()


def test_greenlets_record_and_a_normal_exit_keeps_it_all(tmp_path):
    done = run_of(tmp_path / "a.db", "")
    assert done.returncode == 0
    assert kept(tmp_path / "a.db") == 1000
    assert not list(journals_of(tmp_path / "a.db").glob("*.journal"))


def test_a_flush_in_a_greenlet_ends_and_lets_the_others_go_on(tmp_path):
    done = run_of(
        tmp_path / "a.db",
        """
        others = [gevent.spawn(work, f"other {n}") for n in range(4)]
        print(gevent.spawn(mulligan.flush, 30).get(timeout=40))
        gevent.joinall(others, raise_error=True)
        """,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True"])
    assert kept(tmp_path / "a.db") == 1200


def test_what_a_killed_process_has_recorded_is_adopted(tmp_path):
    done = run_of(tmp_path / "a.db", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode < 0
    assert kept(tmp_path / "a.db") == 1000
